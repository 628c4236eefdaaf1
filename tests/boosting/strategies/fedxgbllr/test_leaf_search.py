"""Leaf values learnt anew: the search over silos reaches the pooled minimum."""

from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_search import (
    LeafSearch,
    LeafSums,
    leaf_pulls,
    leaf_sums,
    rescaled_rates,
)
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import TreeRates
from tests.boosting.strategies.fedxgbllr.test_heads import random_leaves
from tests.boosting.strategies.fedxgbllr.test_training import TASKS, labels_for
from tests.boosting.strategies.fedxgbllr.test_tree_rates import N_TREES, n_outputs_of, parts_of
from tests.late import Late

optimize: Any = Late("scipy.optimize")


@pytest.mark.parametrize("task", TASKS)
def test_leaf_search_over_silos_reaches_the_pooled_minimum(task):
    q = n_outputs_of(task)
    leaves = random_leaves(150, N_TREES, 1, q)
    y, weights = labels_for(task, 150, 2), np.random.default_rng(3).random(150) + 0.5
    prior = np.append(TreeRates.mean(leaves.table, 3, q).leaf_values(leaves.table), np.zeros(q))
    rows, n_leaves = TrainingRows(leaves, y, weights), leaves.table.n_leaves
    mean = (prior[:n_leaves] ** 2).mean()

    def objective(point):
        sums = leaf_sums(rows, task, point, with_curvature=False)
        away = np.append((point - prior)[:n_leaves], np.zeros(q))
        pull = 5.0 * 2 * mean / (prior**2 + mean) * away
        return sums.loss + 0.5 * pull @ away, sums.gradient + pull

    pulls = 5.0 * leaf_pulls(prior, q)
    search = LeafSearch.start(prior, pulls, N_TREES // q)
    for number in range(40):
        parts = [
            leaf_sums(part, task, search.trial, with_curvature=number == 0)
            for part in parts_of(rows, 3)
        ]
        total = LeafSums(
            sum(p.loss for p in parts),
            sum(p.gradient for p in parts),
            sum(p.curvature for p in parts) if number == 0 else None,
        )
        search = search.advance(total)
    least = optimize.minimize(
        objective, prior, jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    assert search.value == pytest.approx(least.fun, rel=1e-5)
    _, slope = objective(search.point)
    assert np.abs(slope).max() < 1e-2 * np.abs(objective(prior)[1]).max()


def test_leaf_search_never_accepts_a_worse_point():
    leaves = random_leaves(60, N_TREES, 1)
    rows = TrainingRows(leaves, labels_for(Task.BINARY, 60, 2))
    prior = np.zeros(leaves.table.n_leaves + 1)
    # a far too long first step
    search = LeafSearch.start(prior, 0.01 * leaf_pulls(prior, 1), 1)
    values = []
    for number in range(25):
        sums = leaf_sums(rows, Task.BINARY, search.trial, with_curvature=number == 0)
        search = search.advance(sums)
        values.append(search.value)
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.5 * values[0]


def test_large_leaves_are_pulled_less_to_the_prior():
    pulls = leaf_pulls(np.array([0.1, -0.1, 2.0, 0.0, 5.0]), 1)
    assert pulls[4] == 0.0  # the intercept
    assert pulls[0] == pulls[1]
    assert pulls[2] < pulls[0] < pulls[3] == pytest.approx(2.0)
    np.testing.assert_allclose(leaf_pulls(np.full(4, 0.3), 1)[:3], 1.0)
    np.testing.assert_array_equal(leaf_pulls(np.zeros(4), 1), [1.0, 1.0, 1.0, 0.0])


def test_learnt_leaves_read_as_rates_are_the_factors_that_made_them():
    table = random_leaves(1, N_TREES, 0).table
    factors = np.linspace(0, 2, N_TREES)
    values = TreeRates(factors, np.zeros(1)).leaf_values(table)
    np.testing.assert_allclose(rescaled_rates(table, values), factors, atol=1e-12)
