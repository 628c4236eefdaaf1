"""Category names in XGBoost's own form: its bytes, and nothing that would lead it astray."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.trees import categories, ubjson
from hedgerow.boosting.trees.loading import load

NAMES = ("", "a", "aa", "b", "yé", "zz", "é", "日本")


def model_of(names: tuple[str, ...]) -> bytes:
    column = pa.array(list(names) * 4).dictionary_encode()
    table = pa.table({"a": column, "n": np.arange(4.0 * len(names))})
    rows = xgb.DMatrix(table, np.sin(np.arange(4 * len(names))), enable_categorical=True)
    return bytes(xgb.train({"max_depth": 2, "nthread": 1}, rows, 2).save_raw("ubj"))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1, unique=True))
def test_names_are_encoded_as_xgboost_saves_them(names: list[str]) -> None:
    raw = model_of(tuple(names))
    ensemble = load(raw)
    assert ensemble.category_names == (tuple(names), None)
    assert ensemble.save() == raw
    assert load(ensemble.save("json")).save() == raw


def test_a_model_without_categories_has_none() -> None:
    assert categories.encode([None, ()])["enc"] == []
    assert categories.decode({"enc": []}, ("q", "q"), 2) == ()


BAD: dict[str, tuple[str, Any]] = {
    "beyond their bytes": ("offsets", [0, 1, 3, 4, 8, 10, 12, 10**9, 17]),
    "falling ends": ("offsets", [0, 3, 1, 4, 8, 10, 12, 11, 17]),
    "a start after the first byte": ("offsets", [1, 3, 4, 4, 4, 4, 4, 17]),
    "ends that are no numbers": ("offsets", np.array([0, 17], np.float32)),
    "twice the same": ("offsets", [0, 0, 0, 17]),
    "cut inside a letter": ("offsets", [0, 6, 17]),
    "wide characters": ("values", np.full(17, 1000, np.int16)),
    "none of a categorical feature": ("offsets", []),
}


@pytest.mark.parametrize("what", BAD)
def test_foreign_names_are_refused(what: str) -> None:
    document = ubjson.read(model_of(NAMES))
    enc = document["learner"]["gradient_booster"]["model"]["cats"]["enc"]
    key, value = BAD[what]
    enc[0][key] = value if isinstance(value, np.ndarray) else np.array(value, np.int32)
    with pytest.raises(ModelRejected, match="categor"):
        load(ubjson.write(document))


def test_names_of_some_features_and_numbers_are_refused() -> None:
    one = {"offsets": np.array([0, 1], np.int32), "values": np.frombuffer(b"a", np.int8)}
    for cats in ({"enc": [one]}, {"enc": [one, one]}, {"enc": [{"type": 15, "values": [1]}, one]}):
        with pytest.raises(ModelRejected, match="categor"):
            categories.decode(cats, ("c", "q"), 2)
