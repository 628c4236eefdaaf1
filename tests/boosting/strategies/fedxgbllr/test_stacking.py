"""Linear combiners: silos' sums add up to the pooled closed form or minimum."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.stacking import (
    LeafSearch,
    LeafSums,
    TreeRates,
    gram_sums,
    gram_width,
    leaf_pulls,
    leaf_sums,
    loss_and_derivatives,
    newton_step,
    rescaled_rates,
)
from tests.boosting.strategies.fedxgbllr.test_heads import random_leaves
from tests.boosting.strategies.fedxgbllr.test_learning_rates import TASKS, labels_for

N_TREES = 9


def n_outputs_of(task):
    return 3 if task is Task.MULTICLASS else 1


def parts_of(leaves, y, weights, n_parts):
    for rows in np.array_split(np.arange(leaves.n_samples), n_parts):
        yield LeafOrdinals(leaves.table, leaves.ordinals[rows]), y[rows], weights[rows]


@pytest.mark.parametrize("task", TASKS)
def test_derivatives_equal_finite_differences(task):
    y = labels_for(task, 12, 0)
    margins = np.random.default_rng(1).normal(size=(12, n_outputs_of(task)))
    _, first, second = loss_and_derivatives(y, margins, task)
    h = 1e-5
    for c in range(margins.shape[1]):
        shift = np.zeros_like(margins)
        shift[:, c] = h
        up = loss_and_derivatives(y, margins + shift, task)
        down = loss_and_derivatives(y, margins - shift, task)
        np.testing.assert_allclose(first[:, c], (up[0] - down[0]) / (2 * h), atol=1e-8)
        np.testing.assert_allclose(second[:, c], (up[1][:, c] - down[1][:, c]) / (2 * h), atol=1e-8)


@pytest.mark.parametrize("task", TASKS)
def test_gram_sums_of_silos_add_up_to_those_of_the_pooled_rows(task):
    q = n_outputs_of(task)
    leaves = random_leaves(70, N_TREES, 1, q)
    y, weights = labels_for(task, 70, 2), np.random.default_rng(3).random(70)
    at = TreeRates.mean(leaves.table, 3, q)
    pooled = gram_sums(leaves, y, task, at, weights)
    assert pooled.shape == (gram_width(leaves.table, q),)
    parts = [gram_sums(part, t, task, at, w) for part, t, w in parts_of(leaves, y, weights, 3)]
    np.testing.assert_allclose(sum(parts), pooled, rtol=1e-12, atol=1e-12)


def test_ridge_is_the_pooled_closed_form_in_one_step():
    leaves = random_leaves(200, N_TREES, 1)
    y = labels_for(Task.REGRESSION, 200, 2) + 3.0
    prior = TreeRates.mean(leaves.table, 3, 1)
    total = sum(
        gram_sums(part, t, Task.REGRESSION, prior)
        for part, t, _ in parts_of(leaves, y, np.ones(200), 4)
    )
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
        at = newton_step(gram_sums(leaves, y, Task.BINARY, at), leaves.table, at, zero, 2.0)
    F = leaves.outputs(np.arange(300)).astype(np.float64)
    oracle = LogisticRegression(C=1 / 2.0, tol=1e-10, max_iter=1000).fit(F, y)
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
        sums = gram_sums(leaves, y, Task.MULTICLASS, at)
        at = newton_step(sums, leaves.table, at, prior, 1.0)
    assert losses[1] < losses[0]
    assert min(losses) == pytest.approx(losses[-1], rel=1e-2)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("task", TASKS)
def test_leaf_search_over_silos_reaches_the_pooled_minimum(task):
    q = n_outputs_of(task)
    leaves = random_leaves(150, N_TREES, 1, q)
    y, weights = labels_for(task, 150, 2), np.random.default_rng(3).random(150) + 0.5
    prior = np.append(TreeRates.mean(leaves.table, 3, q).leaf_values(leaves.table), np.zeros(q))
    n_leaves = leaves.table.n_leaves
    mean = (prior[:n_leaves] ** 2).mean()

    def objective(point):
        sums = leaf_sums(leaves, y, task, point, with_curvature=False, row_weights=weights)
        away = np.append((point - prior)[:n_leaves], np.zeros(q))
        pull = 5.0 * 2 * mean / (prior**2 + mean) * away
        return sums.loss + 0.5 * pull @ away, sums.gradient + pull

    pulls = 5.0 * leaf_pulls(prior, q)
    search = LeafSearch.start(prior, pulls, N_TREES // q)
    for number in range(40):
        parts = [
            leaf_sums(part, t, task, search.trial, with_curvature=number == 0, row_weights=w)
            for part, t, w in parts_of(leaves, y, weights, 3)
        ]
        total = LeafSums(
            sum(p.loss for p in parts),
            sum(p.gradient for p in parts),
            sum(p.curvature for p in parts) if number == 0 else None,
        )
        search = search.advance(total)
    least = minimize(objective, prior, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    assert search.value == pytest.approx(least.fun, rel=1e-5)
    _, slope = objective(search.point)
    assert np.abs(slope).max() < 1e-2 * np.abs(objective(prior)[1]).max()


def test_leaf_search_never_accepts_a_worse_point():
    leaves = random_leaves(60, N_TREES, 1)
    y = labels_for(Task.BINARY, 60, 2)
    prior = np.zeros(leaves.table.n_leaves + 1)
    # a far too long first step
    search = LeafSearch.start(prior, 0.01 * leaf_pulls(prior, 1), 1)
    values = []
    for number in range(25):
        search = search.advance(
            leaf_sums(leaves, y, Task.BINARY, search.trial, with_curvature=number == 0)
        )
        values.append(search.value)
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.5 * values[0]


def test_leaves_that_stand_out_are_held_less_to_the_prior():
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
