"""Names of categories inside a stock XGBoost model, so that it reads data frames by itself.

XGBoost 3.1 and later keep, for each feature, the names behind its codes (``cats``), and recode a
pandas or Arrow frame by them. Without names XGBoost takes a frame's own codes, which are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hedgerow.boosting.errors import ModelRejected

Names = tuple[str, ...] | None
"""Names of a feature's categories by code; None where the feature is numeric."""

MAX_NAMES = 1 << 24
MAX_NAME_BYTES = 1 << 28
"""Most names of all features of a received model, and most bytes of them."""


def encode(features: Sequence[Names]) -> dict[str, Any]:
    """Return XGBoost's ``cats``; with nothing in it where no feature has categories."""
    if not any(features):
        none = np.empty(0, np.int32)
        return {"enc": [], "feature_segments": none, "sorted_idx": none}
    ranks: list[int] = []
    columns = []
    for names in features:
        raw = [name.encode() for name in names or ()]
        ends = [0, *accumulate(map(len, raw))] if raw else []
        columns.append(
            {
                "offsets": np.array(ends, np.int32),
                "values": np.frombuffer(b"".join(raw), np.int8),
            }
        )
        # XGBoost searches the names by their bytes as signed numbers.
        signed = [bytes(byte ^ 0x80 for byte in name) for name in raw]
        ranks += sorted(range(len(raw)), key=signed.__getitem__)
    sizes = [len(names or ()) for names in features]
    return {
        "enc": columns,
        "feature_segments": np.array([0, *accumulate(sizes)], np.int32),
        "sorted_idx": np.array(ranks, np.int32),
    }


def decode(cats: Any, types: Sequence[str], n_features: int) -> tuple[Names, ...]:
    """Return the names that a model of any origin has; empty where it has none.

    The search index is not read: :func:`encode` computes it.

    Raises
    ------
    ModelRejected
        Names that are not text, are repeated or too many, or whose ends are out of order.
    """
    columns = cats.get("enc", ())
    if not len(columns):
        return ()
    if len(columns) != n_features:
        raise ModelRejected("expected category names of all features, or of none")
    left = MAX_NAME_BYTES
    found: list[Names] = []
    for column, kind in zip(columns, types or ("",) * n_features, strict=True):
        names = _names(column)
        left -= len(column["values"])
        if kind and (kind == "c") != bool(names):
            raise ModelRejected("expected category names of the categorical features, no others")
        found.append(names or None)
    if left < 0 or sum(len(names or ()) for names in found) > MAX_NAMES:
        raise ModelRejected(f"category names that take more than {MAX_NAME_BYTES} bytes")
    return tuple(found)


def _names(column: Any) -> tuple[str, ...]:
    if "offsets" not in column:
        raise ModelRejected("the model has categories that are numbers; only text is supported")
    ends, values = (np.asarray(column[key]) for key in ("offsets", "values"))
    numbers = all(a.ndim == 1 and (a.dtype.kind == "i" or not a.size) for a in (ends, values))
    if not numbers or len(ends) > MAX_NAMES or len(values) > MAX_NAME_BYTES:
        raise ModelRejected("expected category names as bytes and their ends")
    if not len(ends):
        return ()
    if ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] != len(values):
        raise ModelRejected("expected category names one after another")
    if ((values < -128) | (values > 127)).any():
        raise ModelRejected("expected category names as bytes")
    raw = values.astype(np.int8).tobytes()
    try:
        names = tuple(raw[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError as error:
        raise ModelRejected("expected category names in UTF-8") from error
    if len(set(names)) != len(names):
        raise ModelRejected("expected category names that differ")
    return names
