"""Metrics from integer sums: the same bits however rows are spread, and near those of floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting import metric_sums, metrics
from hedgerow.boosting.metric_sums import SummedMetrics
from tests.boosting.test_metrics import CASES


@settings(max_examples=25, deadline=None)
@given(
    objective=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    weighted=st.booleans(),
)
def test_totals_are_the_same_bits_however_rows_are_spread_and_near_the_metric(
    objective: str, seed: int, cuts: list[int], weighted: bool
) -> None:
    make, task = CASES[objective]
    y, margin, weight = make(seed, n=300)
    names = tuple(metrics.known(task))
    n_outputs = 1 if margin.ndim == 1 else margin.shape[1]
    largest = float(weight.max()) if weighted else 1.0
    summed = SummedMetrics(names, n_outputs, largest, 300)

    def part(rows: np.ndarray) -> np.ndarray:
        own = weight[rows] if weighted else None
        return summed.parts(y[rows], margin[rows], objective=objective, weight=own)

    parts = [part(rows) for rows in np.split(np.arange(300), sorted(cuts))]
    total = np.sum(parts, axis=0, dtype=np.uint64)
    assert total.shape == (summed.n_residues,)
    assert np.array_equal(total, part(np.random.default_rng(seed).permutation(300)))
    found = metrics.combine(names, summed.totals(total), n_outputs=n_outputs)
    expected = metrics.combine(
        names,
        metrics.sums(names, y, margin, objective=objective, weight=weight if weighted else None),
        n_outputs=n_outputs,
    )
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("margin", [np.inf, -np.inf, np.nan, 3e38])
def test_rows_scored_by_a_made_up_model_are_summed_and_never_refused(margin: float) -> None:
    for objective, name in (("binary:logistic", "logloss"), ("reg:squarederror", "rmse")):
        summed = SummedMetrics((name,), 1)
        y = np.array([0.0, 1.0])
        parts = summed.parts(y, np.full(2, margin), objective=objective)
        assert parts.shape == (summed.n_residues,)
        summed.totals(parts)


def test_a_weight_above_the_largest_counts_as_the_largest() -> None:
    summed = SummedMetrics(("balanced_accuracy",), 1, largest_weight=2.0, n_rows=2)
    y, margin = np.array([0.0, 1.0]), np.array([-1.0, 1.0])
    parts = summed.parts(y, margin, objective="binary:logistic", weight=np.array([1.5, 9.0]))
    assert summed.totals(parts).tolist() == [1.5, 2.0, 1.5, 2.0]


def test_a_number_of_rows_that_is_made_up_as_none_does_not_end_a_silo() -> None:
    make, _ = CASES["binary:logistic"]
    y, margin, weight = make(0, n=30)
    summed = SummedMetrics(("logloss",), 1, 1.0, 0)
    parts = summed.parts(y, margin, objective="binary:logistic", weight=weight)
    assert parts.shape == (summed.n_residues,)


@pytest.mark.parametrize("light", [2.0**-30, 2.0**-21, 1e-6])
def test_rows_far_lighter_than_the_heaviest_of_the_job_have_their_auc(light: float) -> None:
    """Of up to 2**31 rows; their weights were rounded to none, and the AUC was no number."""
    make, _ = CASES["binary:logistic"]
    y, margin, _ = make(0, n=300)
    weight = np.full(300, light)
    summed = SummedMetrics(("auc", "logloss"), 1)
    parts = summed.parts(y, margin, objective="binary:logistic", weight=weight)
    found = metrics.combine(("auc", "logloss"), summed.totals(parts), n_outputs=1)
    unweighted = summed.parts(y, margin, objective="binary:logistic")
    expected = metrics.combine(("auc", "logloss"), summed.totals(unweighted), n_outputs=1)
    assert found == pytest.approx(expected, rel=1e-6)


def test_more_rows_than_a_block_are_summed_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    make, _ = CASES["binary:logistic"]
    y, margin, weight = make(1, n=300)
    summed = SummedMetrics(("auc",), 1, float(weight.max()))
    whole = summed.parts(y, margin, objective="binary:logistic", weight=weight)
    monkeypatch.setattr(metric_sums, "_BLOCK", 64)
    assert np.array_equal(
        whole, summed.parts(y, margin, objective="binary:logistic", weight=weight)
    )
