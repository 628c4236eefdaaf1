"""Gradients against the printed vectors and finite differences."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine import survival
from hedgerow.boosting.engine.objective import Objective, objective_of
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.crypto.native.kernels import Strided

VECTORS = {
    "bce": (-0.425557, 0.244458),
    "lse": (-1.4, 2.0),
    "huber": (-0.573462, 0.549820),
    "fair": (-0.411765, 0.346021),
    "log_cosh": (-0.604368, 0.634740),
    "tweedie": (0.301126, 1.011271),
    "binary:logistic": (-0.425557, 0.244458),
    "reg:squarederror": (-0.7, 1.0),
    "lae": (-1.0, 1.0),
}
SCALAR = [
    *VECTORS,
    "reg:tweedie",
    "reg:pseudohubererror",
    "count:poisson",
    "reg:gamma",
    "reg:logistic",
    "binary:logitraw",
]


def task_of(name: str) -> Task:
    if name.startswith("survival:"):
        return Task.SURVIVAL
    if name.startswith("rank:"):
        return Task.RANKING
    if name == "bce" or name.startswith("binary:"):
        return Task.BINARY
    return (
        Task.MULTICLASS
        if name in ("softmax", "multi:softprob", "multi:softmax")
        else Task.REGRESSION
    )


@pytest.mark.parametrize("name", VECTORS)
def test_gradients_meet_the_printed_vectors(name: str) -> None:
    objective = objective_of(name, task_of(name), Booster())
    g, h = objective.gradients(np.array([[0.3]], np.float32), np.array([1.0]))
    assert (float(g[0, 0]), float(h[0, 0])) == pytest.approx(VECTORS[name], abs=1e-6)


@pytest.mark.parametrize("name", SCALAR)
def test_gradients_are_the_derivatives_of_the_loss(name: str) -> None:
    booster = Booster(huber_slope=1.7, fair_c=0.6, tweedie_variance_power=1.3)
    objective = objective_of(name, task_of(name), booster)
    s = np.linspace(-2, 2, 41, dtype=np.float32) + np.float32(0.013)
    y = np.tile([0.0, 1.0], 21)[:41]
    g, h = objective.gradients(s[:, None], y)
    step = 1 / 1024
    high = objective.losses((s + np.float32(step))[:, None], y)
    low = objective.losses((s - np.float32(step))[:, None], y)
    middle = objective.losses(s[:, None], y)
    assert np.allclose(g[:, 0], (high - low) / (2 * step), atol=2e-3)
    if name not in ("lae", "count:poisson"):  # surrogate and inflated hessians
        assert np.allclose(h[:, 0], (high - 2 * middle + low) / step**2, atol=2e-2)


def test_gradients_of_squared_logarithms_are_derivatives_above_minus_one() -> None:
    objective = objective_of("reg:squaredlogerror", Task.REGRESSION, Booster())
    s = np.linspace(-0.8, 1.5, 41, dtype=np.float32)
    y = np.linspace(0.0, 9.0, 41)
    g, h = objective.gradients(s[:, None], y)
    step = 1 / 1024
    high, low = (objective.losses((s + np.float32(d))[:, None], y) for d in (step, -step))
    assert np.allclose(g[:, 0], (high - low) / (2 * step), rtol=1e-3, atol=2e-3)
    curved = (high - 2 * objective.losses(s[:, None], y) + low) / step**2
    assert np.allclose(h[:, 0], np.maximum(curved, 1e-6), rtol=1e-2, atol=2e-2)
    beyond = objective.gradients(np.array([[-7.0]], np.float32), np.zeros(1))
    assert np.all(np.isfinite(beyond)), "as XGBoost, a margin below -1 counts as one above it"


def test_hinge_pushes_rows_within_the_margin_only() -> None:
    objective = objective_of("binary:hinge", Task.BINARY, Booster())
    s, y = np.array([[0.5], [1.5], [0.5], [-1.5]], np.float32), np.array([1.0, 1.0, 0.0, 0.0])
    g, h = objective.gradients(s, y)
    assert g[:, 0].tolist() == [-1.0, 0.0, 1.0, 0.0]
    assert h[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert objective.losses(s, y).tolist() == [0.5, 0.0, 1.5, 0.0]


def test_softmax_gradients_are_derivatives_and_xgboosts_hessian_is_twice_fates() -> None:
    rng = np.random.default_rng(0)
    s = rng.normal(size=(9, 4)).astype(np.float32)
    y = rng.integers(0, 4, 9).astype(np.float64)
    fate = objective_of("softmax", Task.MULTICLASS, Booster())
    g, h = fate.gradients(s, y)
    g2, h2 = objective_of("multi:softprob", Task.MULTICLASS, Booster()).gradients(s, y)
    assert np.array_equal(g, g2)
    assert np.allclose(2 * h, h2, rtol=1e-6)
    for c in range(4):
        up, down = s.copy(), s.copy()
        up[:, c] += np.float32(1 / 1024)
        down[:, c] -= np.float32(1 / 1024)
        assert np.allclose(g[:, c], (fate.losses(up, y) - fate.losses(down, y)) * 512, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        *SCALAR, "softmax", "multi:softprob", "multi:softmax", "reg:squaredlogerror",
        "binary:hinge",
    ],
)  # fmt: skip
def test_gradients_keep_within_the_bounds_and_are_finite(name: str) -> None:
    task = task_of(name)
    n_outputs = 3 if task is Task.MULTICLASS else 1
    objective = objective_of(name, task, Booster(huber_slope=0.3, fair_c=2.5, scale_pos_weight=3.0))
    s = np.repeat(np.array([-60, -3, -1e-9, 0, 2, 45], np.float32)[:, None], n_outputs, axis=1)
    s[:, 0] *= -1 if n_outputs > 1 else 1
    y = np.array([0, 1, 0, 1, 0, 1.0])
    g, h = objective.gradients(s, y)
    assert np.all(np.isfinite(g))
    assert np.all(h >= 0)
    assert np.all(np.isfinite(objective.losses(s, y)))
    if objective.bound is not None:
        assert np.abs(g).max() <= objective.bound[0]
        assert h.max() <= objective.bound[1]


def test_row_weights_and_positive_weight_multiply_both() -> None:
    booster = Booster(scale_pos_weight=4.0)
    objective = objective_of("binary:logistic", Task.BINARY, booster)
    s, y = np.zeros((2, 1), np.float32), np.array([0.0, 1.0])
    g, h = objective.gradients(s, y, np.array([2.0, 3.0]))
    assert g[:, 0].tolist() == [1.0, -6.0]
    assert h[:, 0].tolist() == [0.5, 3.0]


def test_bad_objectives_and_labels_are_named() -> None:
    with pytest.raises(InvalidJob, match="objective"):
        objective_of("rank:ndcg", Task.REGRESSION, Booster())
    with pytest.raises(InvalidJob, match="not for a regression"):
        objective_of("bce", Task.REGRESSION, Booster())
    with pytest.raises(InvalidJob, match="tweedie_variance_power"):
        objective_of("tweedie", Task.REGRESSION, Booster(tweedie_variance_power=1.0))
    with pytest.raises(DataError, match="0 and 1"):
        objective_of("bce", Task.BINARY, Booster()).check_labels(np.array([2.0]), 2)
    with pytest.raises(DataError, match="no negative"):
        objective_of("tweedie", Task.REGRESSION, Booster()).check_labels(np.array([-1.0]), 0)
    with pytest.raises(DataError, match="above 0"):
        objective_of("reg:gamma", Task.REGRESSION, Booster()).check_labels(np.zeros(1), 0)
    squared = objective_of("reg:squaredlogerror", Task.REGRESSION, Booster())
    with pytest.raises(DataError, match="above -1"):
        squared.check_labels(np.full(1, -1.0), 0)
    with pytest.raises(DataError, match="from 0 to 1"):
        objective_of("reg:logistic", Task.REGRESSION, Booster()).check_labels(np.array([1.5]), 0)


@pytest.mark.parametrize("name", [*SCALAR, "softmax", "reg:squaredlogerror", "binary:hinge"])
def test_a_base_score_and_its_margin_agree_with_the_exported_model(name: str) -> None:
    from hedgerow.boosting.dataset import Feature, Schema
    from hedgerow.boosting.trees.ensemble import blank

    task = task_of(name)
    objective = objective_of(name, task, Booster())
    schema = Schema((Feature("f"),), "y", task, 3 if task is Task.MULTICLASS else 2)
    score = 0.25
    margins = blank(schema, objective.model_name, Booster(), score).base_margins(1)
    assert np.allclose(margins, objective.margin_of(score), atol=1e-7)
    if name != "binary:logitraw":
        zero = blank(schema, objective.model_name, Booster(), objective.default_base_score)
        assert np.allclose(zero.base_margins(1), 0.0)


@pytest.mark.parametrize(
    "name", ["binary:logistic", "count:poisson", "reg:gamma", "reg:logistic", "survival:aft"]
)
def test_margins_of_base_scores_are_xgboost_s_to_the_bit(name: str) -> None:
    objective = objective_of(name, task_of(name), Booster())
    rows = xgboost.DMatrix(np.zeros((1, 1), np.float32), np.zeros(1), nthread=1)
    extreme = [1e-40, 1e-7, 0.9999995, 0.99999999]  # XGBoost clips them for a logistic loss
    for score in [*extreme, *10 ** np.random.default_rng(1).uniform(-6, -1e-6, 300)]:
        parameters = {"objective": name, "base_score": score, "nthread": 1}
        expected = xgboost.train(parameters, rows, 0).predict(rows, output_margin=True)[0]
        assert objective.margin_of(score) == expected


@pytest.mark.parametrize("score", [1e-46, 1e39, 0.0, -1.0])
def test_a_base_score_that_float32_has_not_is_refused(score: float) -> None:
    with pytest.raises(InvalidJob, match="expected a float32 above 0"):
        objective_of("count:poisson", Task.REGRESSION, Booster()).margin_of(score)


KNOWN = np.array([[0.7, 0.7], [0.7, np.inf], [0.0, 1.8], [0.6, 2.5], [3.1, 3.1], [0.0, np.inf]])
"""Seen, later, earlier, between, seen again, and nothing known at all."""


def failure_times(distribution: str, scale: float) -> Objective:
    booster = Booster(aft_loss_distribution=distribution, aft_loss_distribution_scale=scale)
    return objective_of("survival:aft", Task.SURVIVAL, booster)


@pytest.mark.parametrize("scale", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_gradients_of_failure_times_are_derivatives_of_their_loss(
    distribution: str, scale: float
) -> None:
    objective = failure_times(distribution, scale)
    s = np.repeat(np.linspace(-1, 1.5, 9, dtype=np.float32), len(KNOWN))[:, None]
    y = np.tile(KNOWN, (9, 1))
    g, h = objective.gradients(s, y)
    step = np.float32(1 / 256)
    high, middle, low = (objective.losses(s + d * step, y) for d in (1, 0, -1))
    slope, curve = (high - low) / (2 * step), (high - 2 * middle + low) / step**2
    assert np.allclose(g[:, 0], np.clip(slope, -15, 15), rtol=3e-3, atol=3e-3)
    assert np.allclose(h[:, 0], np.clip(curve, 1e-16, 15), rtol=2e-2, atol=2e-2)
    assert not g[5::6].any()  # of rows of which nothing is known


@pytest.mark.parametrize("scale", [1.0, 0.7, 3.3])
@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_gradients_of_failure_times_are_xgboost_s_in_all_ends(
    distribution: str, scale: float
) -> None:
    """A tree of one row has its gradients in leaf and cover; margins reach where all is clipped."""
    rng = np.random.default_rng(3)
    y = np.repeat(KNOWN, 12, axis=0) * np.exp(rng.normal(size=(72, 1)) * 3)
    s = (rng.normal(size=72) * np.tile([1, 8, 60, 900], 18)).astype(np.float32)
    weight = rng.uniform(0.5, 3, 72)
    objective = failure_times(distribution, scale)
    g, h = objective.gradients(s[:, None], y, weight)
    assert objective.bound == (15.0, 15.0)
    assert (np.abs(g[:, 0] / weight) <= 15 * (1 + 1e-6)).all()
    assert (h[:, 0] / weight <= 15 * (1 + 1e-6)).all()
    assert (h > 0).all()
    for k, bounds in enumerate(y):
        row = xgboost.DMatrix(
            np.zeros((1, 1), np.float32), weight=weight[k : k + 1], base_margin=s[k : k + 1],
            label_lower_bound=bounds[:1], label_upper_bound=bounds[1:], nthread=1,
        )  # fmt: skip
        given = {
            "objective": "survival:aft", "aft_loss_distribution": distribution, "eta": 1.0,
            "aft_loss_distribution_scale": scale, "min_child_weight": 0, "base_score": 0.5,
        }  # fmt: skip
        tree = xgboost.train(given, row, 1).get_dump(with_stats=True, dump_format="json")[0]
        found = json.loads(tree)
        assert found["cover"] == pytest.approx(h[k, 0], rel=1e-6)
        assert found["leaf"] == pytest.approx(-g[k, 0] / (np.float64(h[k, 0]) + 1), rel=1e-5)


@pytest.mark.parametrize("kind", range(3))
def test_the_kernel_of_failure_times_returns_its_python_twin_s_bytes(kind: int) -> None:
    rng = np.random.default_rng(kind)
    y = (np.repeat(KNOWN, 50, axis=0) * np.exp(rng.normal(size=(300, 1)) * 4)).astype(np.float32)
    s = (rng.normal(size=300) * np.tile([1, 10, 300], 100)).astype(np.float32)
    weight, (g, h), (a, b) = (
        rng.random(300, np.float32),
        np.empty((2, 300), "f4"),
        np.empty((2, 300), "f4"),
    )
    survival.failure_times(kind, 0.75, s, y, weight, Strided(g), Strided(h))
    survival.failure_times.__wrapped__(kind, 0.75, s, y, weight, a, b)
    assert np.array_equal(g, a)
    assert np.array_equal(h, b)


def test_bounds_that_are_none_and_distributions_that_there_are_not_are_refused() -> None:
    objective = failure_times("normal", 1.0)
    objective.check_labels(KNOWN, 0)
    for wrong in ([2.0, 1.0], [-1.0, 1.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(DataError, match="expected times from 0"):
            objective.check_labels(np.array([wrong]), 0)
    with pytest.raises(InvalidJob, match="aft_loss_distribution: expected one of normal"):
        failure_times("weibull", 1.0)
    for scale in (0.0, -1.0, np.nan, 1e9):
        with pytest.raises(InvalidJob, match="aft_loss_distribution_scale: expected"):
            failure_times("normal", scale)
    with pytest.raises(InvalidJob, match="survival:aft is not for a regression task"):
        objective_of("survival:aft", Task.REGRESSION, Booster())
