"""Rates of trees: silos' sums add up to the pooled closed form or minimum."""

from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.losses import loss_and_derivatives
from hedgerow.boosting.strategies.fedxgbllr.row_sums import RowBounds
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import (
    RateCombiner,
    TreeRates,
    gram_sums,
    gram_width,
    newton_step,
)
from tests.boosting.strategies.fedxgbllr.test_heads import random_leaves
from tests.boosting.strategies.fedxgbllr.test_training import TASKS, labels_for
from tests.late import Late

linear_model: Any = Late("sklearn.linear_model")

N_TREES = 9


def n_outputs_of(task):
    return 3 if task is Task.MULTICLASS else 1


def parts_of(rows, n_parts):
    """Yield the rows of silos that hold equal parts."""
    leaves = rows.leaves
    for some in np.array_split(np.arange(leaves.n_samples), n_parts):
        ordinals = LeafOrdinals(leaves.table, leaves.ordinals[some])
        yield TrainingRows(
            ordinals, rows.y[some], None if rows.weight is None else rows.weight[some]
        )


@pytest.mark.parametrize("task", TASKS)
def test_gram_sums_of_silos_add_up_to_those_of_the_pooled_rows(task):
    q = n_outputs_of(task)
    leaves = random_leaves(70, N_TREES, 1, q)
    y, weights = labels_for(task, 70, 2), np.random.default_rng(3).random(70)
    at = TreeRates.mean(leaves.table, 3, q)
    rows = TrainingRows(leaves, y, weights)
    pooled = gram_sums(rows, task, at)
    assert pooled.shape == (gram_width(leaves.table, q),)
    parts = [gram_sums(part, task, at) for part in parts_of(rows, 3)]
    np.testing.assert_allclose(sum(parts), pooled, rtol=1e-12, atol=1e-12)


def test_ridge_is_the_pooled_closed_form_in_one_step():
    leaves = random_leaves(200, N_TREES, 1)
    y = labels_for(Task.REGRESSION, 200, 2) + 3.0
    prior = TreeRates.mean(leaves.table, 3, 1)
    parts = parts_of(TrainingRows(leaves, y), 4)
    total = sum(gram_sums(part, Task.REGRESSION, prior) for part in parts)
    found = newton_step(total, leaves.table, prior, prior, penalty=7.0)
    F = leaves.outputs(np.arange(200)).astype(np.float64)
    # centred closed form: the intercept is not penalised
    Fc, r = F - F.mean(0), y - F @ prior.rates
    expected = np.linalg.solve(Fc.T @ Fc + 7.0 * np.eye(N_TREES), Fc.T @ (r - r.mean()))
    np.testing.assert_allclose(found.rates - prior.rates, expected, atol=1e-9)
    np.testing.assert_allclose(found.intercept[0], (y - F @ found.rates).mean(), atol=1e-8)


def test_newton_steps_of_logit_ridge_reach_scikit_learns_logistic_regression():
    leaves = random_leaves(300, N_TREES, 1)
    signal = leaves.margins(leaves.table.values.astype(float), 1)[:, 0]
    y = (np.random.default_rng(4).random(300) < 1 / (1 + np.exp(-3 * signal))).astype(float)
    zero = TreeRates(np.zeros(N_TREES), np.zeros(1))
    at = zero
    for _ in range(6):
        sums = gram_sums(TrainingRows(leaves, y), Task.BINARY, at)
        at = newton_step(sums, leaves.table, at, zero, 2.0)
    F = leaves.outputs(np.arange(300)).astype(np.float64)
    oracle = linear_model.LogisticRegression(C=1 / 2.0, tol=1e-10, max_iter=1000).fit(F, y)
    np.testing.assert_allclose(at.rates, oracle.coef_[0], atol=1e-5)
    np.testing.assert_allclose(at.intercept, oracle.intercept_, atol=1e-5)


def test_newton_steps_for_several_classes_lower_the_softmax_loss():
    leaves = random_leaves(300, N_TREES, 1, 3)
    margins = 3 * leaves.margins(leaves.table.values.astype(float), 3)
    y = np.argmax(margins + np.random.default_rng(1).gumbel(size=margins.shape), 1).astype(float)
    prior = at = TreeRates.mean(leaves.table, 3, 3)
    losses = []
    for _ in range(6):
        values = at.leaf_values(leaves.table)
        losses.append(
            loss_and_derivatives(y, leaves.margins(values, 3) + at.intercept, Task.MULTICLASS)[
                0
            ].sum()
        )
        sums = gram_sums(TrainingRows(leaves, y), Task.MULTICLASS, at)
        at = newton_step(sums, leaves.table, at, prior, 1.0)
    assert losses[1] < losses[0]
    assert min(losses) == pytest.approx(losses[-1], rel=1e-2)
    assert losses[-1] < 0.8 * losses[0]


def test_a_row_of_great_weight_leaves_the_slopes_of_the_others_their_digits():
    n, q = 2000, 1
    leaves = random_leaves(n, 40, 1)
    y, weights = labels_for(Task.REGRESSION, n, 2), np.ones(n)
    weights[7] = 1e4
    rows = TrainingRows(leaves, y, weights)
    combiner = RateCombiner(leaves.table, Task.REGRESSION, 20, q, 1, (100.0,))
    state = combiner.initial()
    bounds = RowBounds(Task.REGRESSION, 20, 1 << 12, 2.0**14, 8.0)
    own = [combiner.row_sums(state.candidates, part, 1, bounds) for part in parts_of(rows, 4)]
    assert {len(one) for one in own} == {combiner.n_sums(1)}
    found = combiner.read_sums(state.candidates, np.sum(own, axis=0).view(np.uint64), 1, bounds)
    exact = gram_sums(rows, Task.REGRESSION, combiner._rates(state.solution))

    def margins(sums):
        return combiner.margins(combiner.advance(state, sums, 1).solution, leaves)

    assert np.abs(margins(found) - margins(exact)).max() < 5e-4
