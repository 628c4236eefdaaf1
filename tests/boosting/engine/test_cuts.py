"""Cut points: summaries merged by weight, bisecting on counts, bin budgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.cuts import (
    FENCE,
    Cuts,
    begin_bisection,
    bisected_thresholds,
    count_below,
    cuts_from_thresholds,
    merge_summaries,
    propose,
    refine,
    summarise,
    summary_points,
)
from hedgerow.boosting.errors import DataError


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


def test_row_weights_move_the_cuts() -> None:
    x = np.arange(1000, dtype=np.float32)
    weight = np.where(x < 100, 9.0, 0.1)
    median = merge_summaries([summarise(x, 512, weight)], 2)[0]
    assert median < 100


def test_silos_without_values_give_a_single_bin() -> None:
    schema = Schema((Feature("f"),), "y", Task.REGRESSION, 0)
    nothing = summarise(np.array([np.nan], np.float32), 8)
    cuts = cuts_from_thresholds(schema, [merge_summaries([nothing], 8)])
    assert cuts.values.tolist() == [FENCE]


def bisect(
    parts: list[NDArray[np.float32]], max_bin: int, tolerance: float
) -> tuple[NDArray[np.float32], int]:
    columns = [[np.sort(p[~np.isnan(p)])] for p in parts]
    state = begin_bisection(np.array([sum(c[0].shape[0] for c in columns)]), max_bin)
    for n_exchanges in range(1, 60):
        feature, key = propose(state, tolerance)
        if feature.shape[0] == 0:
            return bisected_thresholds(state)[0], n_exchanges
        below = sum(count_below(c, feature, key) for c in columns)
        state = refine(state, feature, key, np.asarray(below))
    raise AssertionError("does not converge")


def test_bisecting_on_summed_counts_finds_even_ranks() -> None:
    rng = np.random.default_rng(1)
    parts = [
        rng.normal(m, s, n).astype(np.float32)
        for m, s, n in ((0, 1, 5000), (3, 9, 700), (-1e4, 1, 90))
    ]
    thresholds, n_exchanges = bisect(parts, 64, 1e-4)
    assert thresholds.shape == (63,)
    assert rank_error(np.concatenate(parts), thresholds) <= 2e-4
    assert n_exchanges <= 34


def test_bisecting_separates_the_values_of_a_discrete_feature() -> None:
    parts = [
        np.repeat(np.array([0, 1, 2, 5], np.float32), [40, 5, 30, 25]),
        np.array([np.nan, 1, 5], np.float32),
    ]
    thresholds, _ = bisect(parts, 8, 1e-4)
    bins = np.searchsorted(thresholds, [0, 1, 2, 5], side="right")
    assert np.unique(bins).shape[0] == 4


def test_bin_budgets_follow_their_policy() -> None:
    fixed = [summary_points("fixed", 256, n, 1000, 700, 3) for n in (700, 200, 100)]
    assert fixed == [1024, 1024, 1024]
    proportional = [summary_points("proportional", 256, n, 1000, 700, 3) for n in (700, 200, 1)]
    assert proportional == [1024, 4 * 73, 32]
    printed = [summary_points("pax_printed", 256, n, 900, 300, 3) for n in (300, 150)]
    assert printed == [1024, 2048]
    with pytest.raises(DataError, match="bins_policy"):
        summary_points("wide", 256, 1, 1, 1, 1)


def test_cuts_that_do_not_increase_are_refused() -> None:
    with pytest.raises(DataError, match="increasing"):
        Cuts(
            np.array([1.0, 1.0], np.float32),
            np.array([0, 2]),
            np.array([False]),
            np.array([-FENCE], np.float32),
        )
