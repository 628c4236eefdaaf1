"""Every ``model.ubj`` read by XGBoost alone: a frame scores as ``hedgerow predict`` scores it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.objective import _KINDS
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import OBJECTIVES, Bagging
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.coordinator.operator.library.models import open_model
from tests import oracles
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation.memory import Outcome, run_in_memory

AUTHORITY = Authority()
AIRPORTS = ("", "BOS", "Zoo", "boston", "zürich", "äh", "東京")
SILOS = ("a", "b", "c")


def table_of(task: Task, n: int, seed: int, objective: str = "") -> Dataset:
    """Return rows whose label depends on categories that are not in the order of their codes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, len(AIRPORTS), n)
    X = np.column_stack([rng.normal(size=n), codes, rng.integers(0, 3, n)]).astype(np.float32)
    signal = np.sin(5.0 * codes) + 0.5 * X[:, 0] * (X[:, 2] == 1) + rng.normal(0, 0.2, n)
    X[rng.random(X.shape) < 0.05] = np.nan
    y = signal
    if task is Task.REGRESSION:
        y = rng.poisson(np.exp(signal)) + 1.0
        if objective == "reg:logistic":
            y = 1 / y
    elif task is Task.SURVIVAL:
        y = oracles.bounds(np.exp(signal), rng)
    elif task is Task.RANKING:
        y = np.stack([signal > 0, np.arange(n) // 8], axis=1)
    else:
        y = np.digitize(signal, [0.0] if task is Task.BINARY else [-0.4, 0.4])
    features = (Feature("x"), Feature("from", AIRPORTS), Feature("kind", ("k1", "k2", "k3")))
    size = {Task.BINARY: 2, Task.MULTICLASS: 3}.get(task, 0)
    return Dataset(Schema(features, "label", task, size), X, y.astype(np.float64))


def cases() -> Iterator[Any]:
    def case(name: str, strategy: Any, task: Task, objective: str, **booster: Any) -> Any:
        given = Booster(**({"objective": objective} if objective else {}), max_depth=4, **booster)
        return pytest.param(strategy, task, given, id=f"{name}-{objective or task.value}")

    for task, names in OBJECTIVES.items():
        for objective in names:
            yield case("bagging", Bagging(rounds=2), task, objective)
    for task in Task:
        for objective in (name for name, kind in _KINDS.items() if task in kind[2]):
            yield case("histogram", Histogram(rounds=2), task, objective, max_cat_to_onehot=2)
        if task in (Task.SURVIVAL, Task.RANKING):
            continue
        yield case("simfl", SimFL(rounds=3), task, "")
        linear = "ridge" if task is Task.REGRESSION else "logit_ridge"
        stacked = FedXGBllr(trees=6, rounds=2, combiner=linear)
        yield case("fedxgbllr", stacked, task, "")
        yield case("fedga", FedGA(generations=2, population=6, max_depth=3), task, "")
        if task is not Task.REGRESSION:
            private = DPTree(math.inf, depth=3, bins=6, binning="quantile")
            yield case("dp_tree", private, task, "")


def run(strategy: Any, task: Task, booster: Booster) -> Outcome:
    job = JobParameters("t", strategy, task=task, seed=3, booster=booster)
    data = {name: table_of(task, 150, k, booster.objective) for k, name in enumerate(SILOS)}
    identities = {silo: TestIdentity(AUTHORITY, silo) for silo in data}
    outcome = run_in_memory(job, data, identities=identities.__getitem__, through_wire=True)
    assert outcome.error is None, outcome.error
    return outcome


def models_of(outcome: Outcome) -> Iterator[bytes]:
    assert outcome.artefact is not None
    for artefact in (outcome.artefact, *outcome.kept.values()):
        if artefact is not None and "model.ubj" in artefact.files:
            yield artefact.files["model.ubj"]


def frame_of(rows: Dataset) -> pa.Table:
    """Return the rows as a table whose dictionaries are in the order of their first rows."""
    columns = {}
    for feature, values in zip(rows.schema.features, rows.X.T, strict=True):
        if feature.categories is None:
            columns[feature.name] = pa.array(values)
            continue
        names = [None if np.isnan(v) else feature.categories[int(v)] for v in values]
        columns[feature.name] = pa.array(names).dictionary_encode()
    return pa.table(columns)


@pytest.mark.parametrize(("strategy", "task", "booster"), list(cases()))
def test_xgboost_alone_scores_a_frame_as_predict_does(
    strategy: Any, task: Task, booster: Booster, tmp_path: Path
) -> None:
    outcome = run(strategy, task, booster)
    test = table_of(task, 120, 9)
    path, data = tmp_path / "model.ubj", tmp_path / "test.parquet"
    models = list(models_of(outcome))
    assert models
    for raw in models:
        path.write_bytes(raw)
        for rows in (test, test.take(np.flatnonzero(test.X[:, 1] > 3)[:7])):
            frame = frame_of(rows)
            pq.write_table(frame.select(["kind", "x", "from"]), data)
            model = open_model(path)
            margins = model.margins(model.read(str(data), "")[0])
            expected = model.predictions(margins)
            stock = xgb.Booster(model_file=path)
            found = stock.predict(xgb.DMatrix(frame, enable_categorical=True))
            if booster.objective == "multi:softmax":
                expected = expected.argmax(axis=1)
            elif booster.objective == "binary:logitraw":
                expected = margins
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def booster() -> xgb.Booster:
    outcome = run(Bagging(rounds=3), Task.BINARY, Booster(max_depth=4))
    return xgb.Booster(model_file=bytearray(next(models_of(outcome))))


def test_pandas_frames_are_recoded_by_their_names(booster: xgb.Booster) -> None:
    rows = table_of(Task.BINARY, 200, 9)
    # XGBoost 3.2 cuts names of a pandas frame by characters, not bytes: ASCII only.
    rows = rows.take(np.flatnonzero(rows.X[:, 1] < 4))
    frame = frame_of(rows)
    codes = xgb.DMatrix(rows.X, feature_types=rows.schema.feature_types, enable_categorical=True)
    expected = booster.predict(codes, validate_features=False)
    table = frame.to_pandas()
    assert list(table["from"].cat.categories) != sorted(table["from"].cat.categories)
    for some in (
        table,
        table.iloc[:5].assign(kind=lambda t: t.kind.cat.remove_unused_categories()),
    ):
        found = booster.predict(xgb.DMatrix(some, enable_categorical=True))
        np.testing.assert_array_equal(found, expected[: len(some)])
    moved = table[["kind", "from", "x"]]
    with pytest.raises(ValueError, match="feature_names mismatch"):
        booster.predict(xgb.DMatrix(moved, enable_categorical=True))
    ordered = xgb.DMatrix(moved[booster.feature_names], enable_categorical=True)
    np.testing.assert_array_equal(booster.predict(ordered), expected)


def test_a_category_that_no_silo_had_is_missing_where_the_names_are_set_first(
    booster: xgb.Booster, tmp_path: Path
) -> None:
    """XGBoost 3.2 takes an unseen name for the next one that it knows: docs/file-formats.md."""
    rows = table_of(Task.BINARY, 4, 9)
    names = ["BOS", "elsewhere", None, "東京"]
    frame = frame_of(rows).set_column(1, "from", pa.array(names).dictionary_encode())
    path, data = tmp_path / "model.ubj", tmp_path / "test.parquet"
    booster.save_model(path)
    pq.write_table(frame, data)
    model = open_model(path)
    dataset, _ = model.read(str(data), "")
    assert dataset.X[[0, 3], 1].tolist() == [AIRPORTS.index("BOS"), AIRPORTS.index("東京")]
    assert np.isnan(dataset.X[1:3, 1]).all()
    stock = xgb.Booster(model_file=path)
    table = frame.to_pandas()
    for column, known in stock.get_categories(export_to_arrow=True).to_arrow():
        if known is not None:
            values = table[column].astype("category")
            table[column] = values.cat.set_categories(known.to_pylist())
    set_first = pa.Table.from_pandas(table[stock.feature_names], preserve_index=False)
    found = stock.predict(xgb.DMatrix(set_first, enable_categorical=True))
    np.testing.assert_allclose(found, model.predictions(model.margins(dataset)), rtol=1e-6)
