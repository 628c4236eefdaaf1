"""Sums over rows as integers: the same bits however rows are spread, and near the float sums."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_search import LeafCombiner
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.row_sums import RowBounds, n_bounds, own_bounds
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import RateCombiner
from tests.boosting.strategies.fedxgbllr.test_heads import random_leaves
from tests.boosting.strategies.fedxgbllr.test_training import TASKS, labels_for
from tests.boosting.strategies.fedxgbllr.test_tree_rates import N_TREES, n_outputs_of

N_ROWS = 5000  # more than a block of the normal equations


def spread(rows: TrainingRows, rng: np.random.Generator, n_silos: int) -> list[TrainingRows]:
    """Return the rows of silos, each row in any of them and in any order."""
    order = rng.permutation(rows.leaves.n_samples)
    found = []
    for some in np.split(order, np.sort(rng.integers(0, len(order), n_silos - 1))):
        leaves = LeafOrdinals(rows.leaves.table, rows.leaves.ordinals[some])
        weight = None if rows.weight is None else rows.weight[some]
        found.append(TrainingRows(leaves, rows.y[some], weight))
    return found


def job_of(task: Task, *, weighs: bool) -> Any:
    return SimpleNamespace(task=task, columns=ColumnRules(weight="w" if weighs else ""))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["leaves", "rates"])
@pytest.mark.parametrize("weighs", [False, True])
def test_totals_are_the_same_bits_however_rows_are_spread_and_near_the_float_sums(
    task, kind, weighs
):
    q, rng = n_outputs_of(task), np.random.default_rng(5)
    leaves = random_leaves(N_ROWS, N_TREES, 1, q)
    y = labels_for(task, N_ROWS, 2)
    weight = rng.lognormal(size=N_ROWS) if weighs else None
    rows, job = TrainingRows(leaves, y, weight), job_of(task, weighs=weighs)
    if kind == "leaves":
        combiner: Any = LeafCombiner(leaves.table, task, 3, q, 5, (1.0, 10.0))
    else:
        combiner = RateCombiner(leaves.table, task, 3, q, 2, (1.0, 10.0))
    for round_ in (1, 2):
        candidates = combiner.initial().candidates + np.float32(0.1 * (round_ - 1))
        totals = []
        for n_silos in (3, 3, 3, 1):
            parts = spread(rows, rng, n_silos)
            own = [own_bounds(job, part.y, part.weight) for part in parts]
            found = tuple(map(max, zip(*own, strict=True)))
            assert len(found) == n_bounds(job)
            if n_silos > 1:  # the power of two above the most rows of a silo
                found = (13, *found[1:])
            bounds = RowBounds.of(job, 3, found)
            sums = [combiner.row_sums(candidates, part, round_, bounds) for part in parts]
            totals.append(np.sum(sums, axis=0))
        assert totals[0].shape == (combiner.n_sums(round_),)
        for total in totals[1:]:
            np.testing.assert_array_equal(total, totals[0])
        read = combiner.read_sums(candidates, totals[0].view(np.uint64), round_, bounds)
        exact = combiner.local(candidates, rows, round_, 0, rng, lambda: None)
        np.testing.assert_allclose(read, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())
        corrupt = totals[0].copy()
        corrupt[0] = -1
        with pytest.raises(SumCorrupt, match="below zero"):
            combiner.read_sums(candidates, corrupt.view(np.uint64), round_, bounds)


@pytest.mark.parametrize("size", [1e30, -1e300])
def test_points_that_were_made_up_spoil_nothing_but_the_sum(size):
    rng = np.random.default_rng(5)
    for task in TASKS:
        q = n_outputs_of(task)
        leaves = random_leaves(60, N_TREES, 1, q)
        rows = TrainingRows(leaves, labels_for(task, 60, 2))
        job = job_of(task, weighs=False)
        bounds = RowBounds.of(job, 3, own_bounds(job, rows.y, None))
        for combiner in (
            LeafCombiner(leaves.table, task, 3, q, 5, (1.0,)),
            RateCombiner(leaves.table, task, 3, q, 2, (1.0,)),
        ):
            wide = combiner.initial().candidates.astype(np.float64)
            candidates = wide + size * rng.normal(size=wide.shape)
            sums = combiner.row_sums(candidates, rows, 2, bounds)
            assert np.isfinite(
                combiner.read_sums(candidates, np.abs(sums).view(np.uint64), 2, bounds)
            ).all()
