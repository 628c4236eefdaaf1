"""Small data sets and boosters of every kind that bagging supports, for the tests of trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task

N_CATEGORIES = 9


@dataclass(frozen=True)
class Kind:
    """A kind of job: task, objective, and booster parameters beyond the defaults."""

    name: str
    task: Task
    objective: str
    base_score: float
    extra: dict[str, Any]


KINDS = (
    Kind("binary", Task.BINARY, "binary:logistic", 0.5, {"max_depth": 5}),
    Kind("regression", Task.REGRESSION, "reg:squarederror", 1.25, {"max_depth": 4, "alpha": 0.3}),
    Kind("poisson", Task.REGRESSION, "count:poisson", 1.5, {"max_depth": 3}),
    Kind("classes", Task.MULTICLASS, "multi:softprob", 0.0, {"max_depth": 3}),
    Kind(
        "forest",
        Task.MULTICLASS,
        "multi:softprob",
        0.0,
        {"num_parallel_tree": 3, "subsample": 0.6, "max_depth": 3},
    ),
    Kind(
        "lossguide",
        Task.BINARY,
        "binary:logistic",
        0.5,
        {"grow_policy": "lossguide", "max_leaves": 24, "max_depth": 0},
    ),
    Kind("pruned", Task.BINARY, "binary:logistic", 0.5, {"tree_method": "exact", "gamma": 2.0}),
    Kind("one-hot", Task.REGRESSION, "reg:squarederror", 1.25, {"max_cat_to_onehot": 32}),
)


def schema(kind: Kind, categorical: bool = True) -> Schema:
    categories = tuple(f"c{i}" for i in range(N_CATEGORIES))
    last = Feature("colour", categories if categorical else None)
    features = (Feature("a"), Feature("b"), Feature("weird[<name"), last)
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3, Task.REGRESSION: 0}[kind.task]
    return Schema(features, "label", kind.task, n_classes)


def dataset(kind: Kind, n: int, seed: int, *, missing: float = 0.1) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    X[:, 3] = rng.integers(0, N_CATEGORIES, n)
    signal = X[:, 0] + X[:, 1] * X[:, 2] + np.sin(X[:, 3]) + rng.normal(0, 0.5, n)
    X[rng.random(X.shape) < missing] = np.nan
    y = signal
    if kind.task is Task.BINARY:
        y = (signal > 0).astype(np.float64)
    elif kind.task is Task.MULTICLASS:
        y = np.digitize(signal, [-0.7, 0.7]).astype(np.float64)
    elif kind.objective == "count:poisson":
        y = rng.poisson(np.exp(np.clip(signal, -3, 2))).astype(np.float64)
    categorical = kind.extra.get("tree_method") != "exact"
    return Dataset(schema(kind, categorical), X, y.astype(np.float64))


def matrix(data: Dataset) -> xgb.DMatrix:
    return xgb.DMatrix(
        data.X,
        label=data.y,
        feature_types=data.schema.feature_types,
        enable_categorical=True,
        nthread=1,
    )


def parameters(kind: Kind, seed: int = 0) -> dict[str, Any]:
    given = {"objective": kind.objective, "base_score": kind.base_score, "nthread": 1, "seed": seed}
    if kind.task is Task.MULTICLASS:
        given["num_class"] = 3
    return {**given, **kind.extra}


def train(kind: Kind, data: Dataset, steps: int, seed: int = 0) -> xgb.Booster:
    return xgb.train(parameters(kind, seed), matrix(data), steps)


def raw(booster: xgb.Booster) -> bytes:
    return bytes(booster.save_raw("ubj"))


def margin(booster: xgb.Booster, data: Dataset) -> NDArray[np.float32]:
    return booster.predict(matrix(data), output_margin=True, validate_features=False)
