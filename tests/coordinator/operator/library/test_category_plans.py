"""Plans of tables with many categories: near what is moved, and bounds that hold."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.coordinator.operator.library.jobs import plan_tables, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate

JOBS: dict[str, dict[str, Any]] = {
    "bagging": {"rounds": 3},
    "fedxgbllr": {"rounds": 1, "trees": 6, "combiner": "logit_ridge", "secure": False},
    "simfl": {"rounds": 3},
}


def rows(n: int, sizes: list[int], numbers: int, seed: int) -> dict[str, Any]:
    """Return columns of numbers and of categories, and a label that depends on all."""
    rng, shared = np.random.default_rng(seed), np.random.default_rng(99)
    columns: dict[str, Any] = {f"x{k}": rng.normal(size=n) for k in range(numbers)}
    score = sum(columns.values(), rng.normal(size=n))
    for k, size in enumerate(sizes):
        codes, effect = rng.integers(0, size, n), shared.normal(size=size)
        columns[f"c{k}"] = np.array([f"category {code:06d}" for code in codes])
        score = score + effect[codes]
    return {**columns, "label": (score > 0).astype(int)}


def moved(
    strategy: str, tables: dict[str, Any], **settings: Any
) -> tuple[int, int, list[int], str]:
    """Return planned and moved bytes of trees, up; those of each silo; and the plan's notes."""
    asked: dict[str, Any] = {"min_silos": 3, "silos": ["a", "b", "c"], **JOBS[strategy]}
    job = hedgerow.Job(strategy, **{**asked, **settings})
    read = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    plan = plan_tables(job.parameters, read)
    found = federate(job, read, Conditions(crypto=False)).view
    planned, told = (
        [step.bytes_up for step in steps if step.method == "ExchangeTrees"]
        for steps in (plan.steps, found.steps)
    )
    return sum(planned), sum(told), told, " ".join(plan.notes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", JOBS)
@pytest.mark.parametrize(
    ("n", "sizes", "numbers"),
    [(2000, [300], 3), (2000, [3000], 3), (4000, [8000], 0), (1500, [40, 9, 700], 2)],
    ids=["hundreds", "thousands", "near-unique", "several"],
)
def test_plans_of_text_are_within_a_factor_of_two(
    strategy: str, n: int, sizes: list[int], numbers: int
) -> None:
    tables = {name: rows(n, sizes, numbers, seed) for seed, name in enumerate("abc")}
    planned, told, _, _ = moved(strategy, tables)
    assert told / 2 < planned < told * 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strategy", ["bagging", "fedxgbllr"])
def test_at_most_is_never_exceeded(strategy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(2 ** rng.uniform(0.5, 12)) for _ in range(rng.integers(0, 4))]
    numbers = int(rng.integers(0 if sizes else 1, 4))
    tables = {name: rows(int(2 ** rng.uniform(5, 11)), sizes, numbers, k + 7 * seed)
              for k, name in enumerate("abc")}  # fmt: skip
    booster = {
        "max_depth": int(rng.integers(1, 9)), "eta": 1.0, "min_child_weight": 0.0, "lambda": 0.0,
        "max_cat_threshold": int(rng.choice([1, 64, 5000])),
        "max_cat_to_onehot": int(rng.choice([1, 4, 100])),
    }  # fmt: skip
    own = {"scrub": str(rng.choice(["none", "stats"]))}
    _, _, told, notes = moved(strategy, tables, booster=booster, **own)
    bound = re.search(r"at most (\d+) bytes", notes)
    assert bound is not None
    assert max(told) <= int(bound[1])
