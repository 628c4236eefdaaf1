"""Quantile summaries: merged by weight, sized by bin budgets, checked when a peer sends them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.summaries import (
    QuantileSummaries,
    merge_summaries,
    summarise,
    summary_points,
)
from hedgerow.boosting.errors import DataError, OfferRejected


def rank_error(values: NDArray[np.float32], thresholds: NDArray[np.float32]) -> float:
    """Greatest distance of an achieved rank from the nearest even quantile."""
    ranks = np.searchsorted(np.sort(values), thresholds, side="left") / values.shape[0]
    targets = np.arange(1, thresholds.shape[0] + 1) / (thresholds.shape[0] + 1)
    return float(np.abs(ranks - targets).max())


def test_merged_summaries_of_unequal_silos_cut_at_even_ranks() -> None:
    values = np.sort(np.random.default_rng(0).normal(size=20000)).astype(np.float32)
    parts = np.split(values, np.cumsum([10000, 6000, 2000, 1500]))
    merged = merge_summaries([summarise(p, 4 * 256) for p in parts], 256)
    assert merged.shape == (255,)
    assert rank_error(values, merged) < 0.0039
    unweighted = np.quantile(
        np.concatenate([np.quantile(p, np.arange(1, 256) / 256) for p in parts]),
        np.arange(1, 256) / 256,
    )
    assert rank_error(values, unweighted.astype(np.float32)) > 0.2


def test_a_tables_own_cuts_keep_the_rank_error_that_is_asked() -> None:
    values = np.random.default_rng(2).lognormal(0, 3, 20_001).astype(np.float32)
    schema = Schema((Feature("f"),), "y", Task.REGRESSION, 0)
    table = Dataset(schema, values[:, None], np.zeros(len(values)))

    def error(asked: float) -> float:
        return rank_error(values, local_cuts(table, 16, asked).of(0)[:-1])

    assert 0.002 < error(0.0) <= 1 / (8 * 16) < error(0.1)
    assert error(0.001) <= 0.001
    assert error(1e-9) <= 1 / len(values)


def test_few_distinct_values_each_get_a_bin() -> None:
    parts = [np.array([0, 0, 1, 1, 1], np.float32), np.array([2, 7, np.nan], np.float32)]
    merged = merge_summaries([summarise(p, 64) for p in parts], 16)
    assert merged.tolist() == [0.5, 1.5, 4.5]


def test_thresholds_separate_even_neighbouring_floats() -> None:
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    merged = merge_summaries([summarise(np.array([low, high], np.float32), 8)], 8)
    assert merged.shape == (1,)
    assert low < merged[0] <= high


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3, width=16), min_size=1, max_size=300),
    st.integers(2, 40),
)
def test_a_summary_stands_for_all_rows(values: list[float], max_points: int) -> None:
    summary = summarise(np.array(values, np.float32), max_points)
    assert summary.values.shape[0] <= max_points
    assert summary.weights.sum() == pytest.approx(len(values))
    assert np.all(summary.weights > 0)
    assert np.all(np.diff(summary.values) > 0)
    assert summary.values[-1] == np.max(np.array(values, np.float32))


def test_bin_budgets_follow_their_policy() -> None:
    fixed = [summary_points("fixed", 256, n, 1000, 700, 3) for n in (700, 200, 100)]
    assert fixed == [1024, 1024, 1024]
    proportional = [summary_points("proportional", 256, n, 1000, 700, 3) for n in (700, 200, 1)]
    assert proportional == [1024, 4 * 73, 32]
    printed = [summary_points("pax_printed", 256, n, 900, 300, 3) for n in (300, 150)]
    assert printed == [1024, 2048]
    # Equation 1: ε_i = ε_A n_i / N, and 1 / ε_i bins.
    given = [summary_points("pax_printed", 256, n, 900, 600, 3, 0.02) for n in (600, 300, 9, 1)]
    assert given == [4 * 75, 4 * 150, 4 * 5000, 4 * 45_000]
    assert [summary_points("pax_printed", 256, n, 900, 899, 2, 1.0) for n in (899, 0)] == [32, 3600]
    with pytest.raises(DataError, match="bins_policy"):
        summary_points("wide", 256, 1, 1, 1, 1)


def test_summaries_travel_one_after_another() -> None:
    columns = [np.arange(9, dtype=np.float32), np.empty(0, np.float32), np.ones(3, np.float32)]
    summaries = [summarise(column, 4) for column in columns]
    read = QuantileSummaries.of(summaries).read(3)
    for sent, received in zip(summaries, read, strict=True):
        assert np.array_equal(sent.values, received.values)
        assert np.array_equal(sent.weights, received.weights)
    assert QuantileSummaries.of([]).read(0) == []


@pytest.mark.parametrize(
    ("sizes", "values", "weights"),
    [
        ([2], [1, 2], [1, 1]),
        ([3, -1], [1, 2], [1, 1]),
        ([1, 2], [1, 2], [1, 1]),
        ([2, 0], [2, 1], [1, 1]),
        ([1, 1], [1, np.nan], [1, 1]),
        ([1, 1], [1, 2], [1, 0]),
        ([1, 1], [1, 2], [1, np.inf]),
        ([1, 1], [1, 2], [1]),
    ],
)
def test_summaries_that_cannot_be_are_refused(
    sizes: list[int], values: list[float], weights: list[float]
) -> None:
    offer = QuantileSummaries(
        np.array(sizes, np.int64), np.array(values, np.float32), np.array(weights, np.float64)
    )
    with pytest.raises(OfferRejected):
        offer.read(2)
