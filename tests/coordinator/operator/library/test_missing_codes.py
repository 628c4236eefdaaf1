"""A number that stands for a missing value, in every strategy that takes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.ports import Horizontal, strategy_of
from hedgerow.boosting.registry import NAMES
from hedgerow.boosting.trees.loading import load
from hedgerow.coordinator.operator.library.jobs import table_of
from hedgerow.coordinator.operator.library.memory import Conditions, MemoryResult, federate

RANGES = {"ranges": {"a": [-6, 6], "b": [-6, 6]}}
JOBS: dict[str, dict[str, Any]] = {
    "bagging": {"rounds": 2},
    "histogram": {"rounds": 2},
    "fedxgbllr": {"trees": 4, "combiner": "logit_ridge"},
    "fedga": {"generations": 3, "population": 6, "max_depth": 3},
    "dp_tree": {"depth": 2, "epsilon": float("inf"), **RANGES},
    "private_boost": {"trees": 2, "depth": 2, **RANGES},
    "explore": {},
    "simfl": {"rounds": 2},
}
CODE = -999.0


def run(strategy: str, code: float, **columns: float) -> MemoryResult:
    """Return a job's result over silos a third of whose values of one column are ``code``."""
    job = hedgerow.Job(
        strategy, silos=list("abc"), min_silos=3, seed=3, **JOBS[strategy], **columns
    )
    tables = {}
    for k, silo in enumerate("abc"):
        rng = np.random.default_rng(k)
        a, b, gone = rng.normal(size=300), rng.normal(size=300), rng.random(300) < 0.3
        table = {"a": np.where(gone, code, a), "b": b, "label": ((a > 0) | gone).astype(int)}
        tables[silo] = table_of(job.parameters, silo, table)
    return federate(job, tables, Conditions())


def model(found: MemoryResult) -> bytes:
    """Return the model, or that of the first silo where each has its own."""
    files = found.files
    return files.get("statistics.json") or files.get("model.ubj") or found.kept["a"]["model.ubj"]


@pytest.mark.parametrize("strategy", sorted(JOBS))
def test_a_code_for_missing_is_the_same_as_nothing(strategy: str) -> None:
    coded = run(strategy, CODE, missing=CODE)
    if strategy == "fedga":  # its noise is drawn anew; a number would be divided by
        thresholds = [t for tree in load(model(coded)).trees for t in tree.threshold]
        assert min(thresholds) > -10
        return
    assert model(coded) == model(run(strategy, np.nan))
    if strategy not in ("dp_tree", "private_boost"):  # whose ranges hide what a code would do
        assert model(coded) != model(run(strategy, CODE))


def test_every_horizontal_strategy_is_tried() -> None:
    horizontal = {name for name in NAMES if isinstance(strategy_of(name).layout, Horizontal)}
    assert set(JOBS) == horizontal
