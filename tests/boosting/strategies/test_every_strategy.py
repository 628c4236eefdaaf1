"""A job of each strategy trains: what `deploy/ci/matrix` runs with each version of XGBoost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hedgerow

JOBS: dict[str, dict[str, Any]] = {
    "bagging": {"rounds": 4},
    "dp_tree": {"epsilon": 50.0, "depth": 3},
    "fedga": {"generations": 2},
    "fedxgbllr": {"rounds": 4, "combiner": "logit_ridge"},
    "histogram": {"rounds": 4},
    "private_boost": {
        "trees": 120,
        "columns": {
            "ranges": {name: [-3.0, 3.0] for name in "abc"},
            "levels": {"shop": ["north", "south", "west"]},
        },
    },
    "secureboost": {"rounds": 4, "active": "bank", "min_silos": 2},
    "simfl": {"rounds": 4},
}
WATCHED = {"secureboost": "test.auc", "fedga": "test.f1"}
"""Metrics of those whose results have a part, or a model, in each silo."""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(JOBS))
def test_a_job_of_each_strategy_learns(strategy: str) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(900, 3))
    X[rng.random(X.shape) < 0.05] = np.nan
    shop = rng.choice(["north", "south", "west"], 900)
    table: dict[str, Any] = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "shop": shop}
    told = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) * (shop == "north")
    table["label"] = (told + rng.normal(0, 0.3, 900) > 0).astype(int)
    job = {"min_silos": 3, "seed": 1, **JOBS[strategy]}
    where: dict[str, Any] = {"silos": 3}
    if strategy == "secureboost":
        table["_id"] = np.arange(900)
        where = {"parties": "bank:label,shop;clinic:a,b,c"}
    run = hedgerow.simulate(hedgerow.Job(strategy, **job), table, **where, crypto=False)
    watched = WATCHED.get(strategy)
    assert (run.metrics[watched][-1] if watched else run.model.score(table)) > 0.7
