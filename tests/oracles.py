"""Data and reference results for the tests: real tables where they are at hand, XGBoost's trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.cuts import FENCE, Cuts
from hedgerow.boosting.job import Booster
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.local import label_arguments

PLAIN_TASKS = tuple(task for task in Task if task not in (Task.SURVIVAL, Task.RANKING))
"""Tasks whose label is one number or class: what every strategy has."""
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def real_sets(*names: str) -> list[str]:
    """Return those of the named tables that this machine has."""
    return [name for name in names if (SHARED / f"{name}.parquet").exists()]


@cache
def real(name: str, task: Task, n_rows: int = 3000) -> Dataset:
    """Load evenly spaced rows of a real table; text columns become categories."""
    table = pq.read_table(SHARED / f"{name}.parquet")
    step = max(1, table.num_rows // n_rows)
    table = table.take(pa.array(np.arange(0, table.num_rows, step)[:n_rows]))
    features, columns = [], []
    for column in table.column_names:
        if column.startswith(("_", "label")):
            continue
        values = table[column].combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode().dictionary_encode()
            codes = values.indices.to_numpy(zero_copy_only=False).astype(np.float64)
            features.append(Feature(column, tuple(values.dictionary.to_pylist())))
            columns.append(codes)
        else:
            features.append(Feature(column))
            columns.append(values.to_numpy(zero_copy_only=False).astype(np.float64))
    y = table["label"].to_numpy().astype(np.float64)
    n_classes = {Task.BINARY: 2, Task.REGRESSION: 0}.get(task, int(y.max()) + 1)
    X = np.stack(columns, axis=1).astype(np.float32)
    return Dataset(Schema(tuple(features), "label", task, n_classes), X, y)


@cache
def generated(
    task: Task,
    n_rows: int = 3000,
    *,
    seed: int = 0,
    missing: float = 0.1,
    categories: tuple[int, ...] = (3, 12),
    weighted: bool = False,
) -> Dataset:
    """Make a table with numeric, rounded, missing and categorical columns."""
    rng = np.random.default_rng(seed)
    numeric = rng.normal(size=(n_rows, 5))
    numeric[:, 1] = np.round(numeric[:, 1], 1)
    numeric[:, 2] = rng.integers(0, 4, n_rows)
    codes = [rng.integers(0, n, n_rows) for n in categories]
    for column, n in zip(codes, categories, strict=True):
        column[:n] = np.arange(n)  # every code occurs, so XGBoost sees as many bins
    effects = [rng.normal(size=n)[c] for n, c in zip(categories, codes, strict=True)]
    signal = numeric[:, 0] * numeric[:, 1] + np.sin(3 * numeric[:, 3]) + sum(effects)
    signal = signal + rng.normal(0, 0.7, n_rows)
    X = np.column_stack([numeric, *codes]).astype(np.float32)
    gaps = rng.random(X.shape) < missing
    gaps[:, 4] = False
    gaps[: max((*categories, 1))] = False
    X[gaps] = np.nan
    y, n_classes = signal, 0
    if task is Task.BINARY:
        y, n_classes = (signal > 0).astype(np.float64), 2
    elif task is Task.MULTICLASS:
        y, n_classes = np.digitize(signal, [-1.5, 0.0, 1.5]).astype(np.float64), 4
    elif task is Task.SURVIVAL:
        y = bounds(np.exp(signal), rng)
    elif task is Task.RANKING:
        y = np.stack([np.digitize(signal, [-1, 0.5, 1.5]), np.arange(n_rows) // 13], axis=1)
    y = y.astype(np.float32).astype(np.float64)
    features = [Feature(f"n{i}") for i in range(5)]
    features += [
        Feature(f"c{i}", tuple(f"v{k}" for k in range(n))) for i, n in enumerate(categories)
    ]
    weight = rng.uniform(0.5, 3.0, n_rows).astype(np.float32).astype(np.float64)
    return Dataset(
        Schema(tuple(features), "label", task, n_classes), X, y, weight if weighted else None
    )


def bounds(times: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return times as they are known: seen, or by one or two bounds, of shape (n_rows, 2)."""
    kind = rng.choice(4, len(times), p=(0.4, 0.4, 0.1, 0.1))
    cut = np.exp(rng.normal(size=(len(times), 2)))
    low = np.where(kind == 1, times * np.minimum(cut[:, 0], 1), times)  # seen, or later than that
    low = np.where(kind == 2, 0, np.where(kind == 3, times * 0.7, low))
    high = np.where(kind == 1, np.inf, np.where(kind >= 2, times * (1 + cut[:, 1]), times))
    return np.stack([low, high], axis=1)


def several(data: Dataset, n_labels: int = 3) -> Dataset:
    """Return a table with more labels, made of its label and its features."""
    rng, y = np.random.default_rng(1), data.labels
    more = [
        y + np.nan_to_num(data.X[:, k].astype(np.float64)) + rng.normal(0, 0.3, len(y))
        for k in range(n_labels - 1)
    ]
    if data.schema.task is Task.BINARY:
        more = [(label > k).astype(np.float64) for k, label in enumerate(more)]
    labels = np.stack([y, *more], axis=1).astype(np.float32).astype(np.float64)
    names = tuple(f"label_{k}" for k in range(1, n_labels))
    return replace(data, y=labels, schema=replace(data.schema, more_labels=names))


def quantile_matrix(data: Dataset, max_bin: int) -> xgb.QuantileDMatrix:
    return xgb.QuantileDMatrix(
        data.X,
        **label_arguments(data.y, data.schema.task),
        weight=data.weight,
        max_bin=max_bin,
        feature_types=data.schema.feature_types,
        enable_categorical=True,
        nthread=1,
    )


def xgboost_cuts(data: Dataset, max_bin: int) -> Cuts:
    """Return XGBoost's own cuts of a table.

    XGBoost lists for each feature its lower fence, then its cuts, whose last is an upper fence.
    """
    schema = data.schema
    indptr, values = quantile_matrix(data, max_bin).get_quantile_cut()
    blocks, lower = [], []
    for j, feature in enumerate(schema.features):
        block = np.asarray(values[int(indptr[j]) : int(indptr[j + 1])], dtype=np.float32)
        if feature.categories is not None:
            blocks.append(np.arange(max(1, len(feature.categories)), dtype=np.float32))
            lower.append(np.float32(-1.0))
        elif block.shape[0] < 2:
            blocks.append(np.array([FENCE], dtype=np.float32))
            lower.append(-FENCE)
        else:
            blocks.append(block[1:])
            lower.append(block[0])
    return Cuts(
        values=np.concatenate(blocks),
        offsets=np.concatenate([[0], np.cumsum([b.shape[0] for b in blocks])]).astype(np.int64),
        categorical=np.array([f.is_categorical for f in schema.features], dtype=np.bool_),
        lower=np.array(lower, dtype=np.float32),
    )


def xgboost_trees(
    data: Dataset, booster: Booster, objective: str, base_score: float, rounds: int, **extra: Any
) -> list[Tree]:
    """Train XGBoost ``hist`` and return its trees."""
    parameters = {
        **booster.native(),
        "objective": objective,
        "base_score": base_score,
        "max_bin": booster.max_bin,
        "tree_method": "hist",
        "nthread": 1,
        **extra,
    }
    if data.schema.n_outputs > 1 and not data.schema.more_labels:
        parameters["num_class"] = data.schema.n_outputs
    return trees_of(xgb.train(parameters, quantile_matrix(data, booster.max_bin), rounds))


@dataclass(frozen=True)
class Difference:
    """Where two trees first differ; empty ``what`` when they do not."""

    tree: int
    what: str


def first_difference(ours: list[Tree], theirs: list[Tree], rtol: float = 2e-5) -> Difference:
    """Compare structure, thresholds, categories exactly, and leaf values within ``rtol``.

    The direction of missing values is compared where it matters, that is through covers: a wrong
    direction moves rows and so the children's hessians.
    """
    if len(ours) != len(theirs):
        return Difference(-1, f"{len(ours)} trees against {len(theirs)}")
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.n_nodes != b.n_nodes or a.group != b.group:
            return Difference(i, f"{a.n_nodes} nodes against {b.n_nodes}")
        if not (np.array_equal(a.left, b.left) and np.array_equal(a.right, b.right)):
            return Difference(i, "shape")
        if not np.array_equal(a.feature, b.feature):
            return Difference(i, "features")
        categorical = dict(a.categories)
        if sorted(categorical) != sorted(dict(b.categories)):
            return Difference(i, "which splits are categorical")
        for node, codes in b.categories:
            if not np.array_equal(categorical[node], codes):
                return Difference(i, f"categories of node {node}")
        splits = ~a.is_leaf
        splits[list(categorical)] = False
        if not np.array_equal(a.threshold[splits], b.threshold[splits]):
            return Difference(i, "thresholds")
        scale = max(1e-3, float(np.abs(b.threshold[b.is_leaf]).max()))
        for name, tolerance in (("threshold", scale), ("cover", 1.0), ("weight", scale)):
            x, y = getattr(a, name), getattr(b, name)
            where = a.is_leaf if name == "threshold" else np.ones(a.n_nodes, bool)
            if not np.allclose(x[where], y[where], rtol=rtol, atol=rtol * tolerance):
                return Difference(i, name)
        if not np.allclose(a.gain, b.gain, rtol=1e-3, atol=1e-3 * max(1.0, b.gain.max())):
            return Difference(i, "gains")
    return Difference(-1, "")
