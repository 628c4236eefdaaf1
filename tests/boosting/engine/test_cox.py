"""Cox's gradients by cells of time: those of rows compared one by one, and XGBoost's."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.cox import RiskSets, cell_labels, n_risk_values, risk_parts
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import DataError, SumCorrupt
from hedgerow.boosting.job import Booster

Floats = NDArray[np.float64]


def rows(n: int, seed: int, ties: bool) -> tuple[Floats, NDArray[np.float32]]:
    """Return labels and margins of rows, of which some are censored."""
    rng = np.random.default_rng(seed)
    time = np.exp(rng.normal(size=n))
    time = np.round(time, 1) + 0.1 if ties else time.astype(np.float32).astype(np.float64)
    upper = np.where(rng.random(n) < 0.6, time, np.inf)
    margins = (2 * rng.normal(size=(n, 1))).astype(np.float32)
    return np.stack([time, upper], axis=1), margins


def one_by_one(
    cell: NDArray[np.integer], seen: NDArray[np.bool_], margin: Floats
) -> tuple[Floats, Floats]:
    """Return Breslow's gradients with cells as times: a row at risk at its own cell's events."""
    g, h = -seen.astype(np.float64), np.zeros(len(cell))
    for k in np.flatnonzero(seen):
        at_risk = np.where(cell >= cell[k], np.exp(margin), 0.0)
        share = at_risk / at_risk.sum()
        g += share
        h += share - share**2
    return g, h


def of_cells(y: Floats, thresholds: list[float]) -> NDArray[np.float32]:
    return cell_labels(y, np.array(thresholds, np.float32))


@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_those_of_rows_compared_one_by_one(seed: int) -> None:
    y, margins = rows(300, seed, ties=seed % 2 == 0)
    labels = of_cells(y, [0.3, 0.5, 0.9, 1.0, 1.7, 2.5])
    risk = RiskSets.of(risk_parts(labels, margins, 7), 7)
    pairs = risk.pairs(margins, labels)
    own = labels[:, 0].astype(int), labels[:, 1] > 0, margins[:, 0].astype(np.float64)
    g, h = one_by_one(*own)
    np.testing.assert_allclose(pairs[:, 0], g, atol=2e-6)
    np.testing.assert_allclose(pairs[:, 1], h, atol=2e-6)
    assert np.abs(pairs[:, 0]).max() <= risk.bound[0]
    assert 0 <= pairs[:, 1].min() <= pairs[:, 1].max() <= risk.bound[1]
    assert abs(pairs[:, 0].sum()) < 1e-3  # moving all margins by one number changes nothing


def test_a_cell_for_each_time_gives_xgboosts_gradients() -> None:
    """XGBoost's first tree of one row a leaf has them; no two times are the same, none is early."""
    y, margins = rows(200, 7, ties=False)
    first = y[:, 0].argmin()
    y[first, 1] = y[first, 0]
    times = np.sort(y[:, 0])
    labels = of_cells(y, times[1:].tolist())
    risk = RiskSets.of(risk_parts(labels, margins, 200), 200)

    signed = np.where(y[:, 0] == y[:, 1], y[:, 0], -y[:, 0])
    matrix = xgb.DMatrix(np.arange(200.0)[:, None], signed, base_margin=margins[:, 0])
    told = {"objective": "survival:cox", "max_depth": 0, "min_child_weight": 0, "eta": 1.0,
            "lambda": 1e-6, "max_bin": 512}  # fmt: skip
    model = xgb.train(told, matrix, 1)
    leaf = model.predict(matrix, pred_leaf=True)
    alone = np.isin(leaf, np.flatnonzero(np.bincount(leaf.astype(int)) == 1))
    assert alone.mean() > 0.7
    moved = model.predict(matrix, output_margin=True) - margins[:, 0]
    g, h = risk.pairs(margins, labels).astype(np.float64)[alone].T
    np.testing.assert_allclose(moved[alone] * (h + 1e-6), -g, rtol=1e-3, atol=1e-5)


def test_sums_are_the_same_bits_however_rows_are_spread() -> None:
    y, margins = rows(1000, 3, ties=True)
    labels = of_cells(y, [0.4, 1.0, 2.0])
    whole = risk_parts(labels, margins, 4)
    assert whole.shape == (n_risk_values(4),)
    order = np.random.default_rng(0).permutation(1000)
    parts = [risk_parts(labels[own], margins[own], 4) for own in np.split(order, [10, 10, 400])]
    assert np.array_equal(np.sum(parts, axis=0, dtype=np.uint64), whole)


def test_bounds_hold_for_margins_of_any_size() -> None:
    for scale in (0.0, 1.0, 20.0, 60.0, 300.0):
        y, margins = rows(400, 5, ties=True)
        margins *= np.float32(scale)
        labels = of_cells(y, [0.4, 1.0, 2.0])
        risk = RiskSets.of(risk_parts(labels, margins, 4), 4)
        pairs = risk.pairs(margins, labels)
        assert np.isfinite(pairs).all()
        assert np.abs(pairs[:, 0]).max() <= risk.bound[0] <= 2 * risk.events.sum()
        assert pairs[:, 1].max() <= risk.bound[1] <= max(risk.events.sum() / 2, 2 * risk.bound[0])


def test_sums_of_no_table_and_tables_without_events_are_refused() -> None:
    y, margins = rows(50, 1, ties=True)
    labels = of_cells(y, [1.0])
    good = risk_parts(labels, margins, 2)
    with pytest.raises(SumCorrupt, match="expected 22 numbers, received 21"):
        RiskSets.of(good[1:], 2)
    for k, wrong in ((0, 2**64 - 1), (1, 2**63), (2, 0), (4 + 4, 2**64 - 2**40)):
        bad = good.copy()
        bad[k] = wrong
        with pytest.raises(SumCorrupt, match="expected events, and rows at risk"):
            RiskSets.of(bad, 2)
    censored = labels * np.float32([1, 0])
    with pytest.raises(DataError, match="no silo has one"):
        RiskSets.of(risk_parts(censored, margins, 2), 2)


def test_labels_with_other_bounds_are_refused() -> None:
    objective = objective_of("survival:cox", Task.SURVIVAL, Booster(), in_cells=True)
    objective.check_labels(np.array([[1.0, 1.0], [2.0, np.inf]]), 0)
    with pytest.raises(DataError, match="survival:aft takes them"):
        objective.check_labels(np.array([[1.0, 2.0]]), 0)
    assert objective.margin_of(1.0) == 0.0
