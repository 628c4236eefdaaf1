"""Thresholds found by bisecting on summed counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.boosting.engine import bisection
from hedgerow.boosting.engine.bisection import (
    MIN_CELL,
    MOST_PASSES,
    SIGNIFICANT_BITS,
    Bisector,
    count_below,
    most_keys,
)
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.errors import SumCorrupt
from tests.boosting.engine.test_first_round import KINDS, column
from tests.boosting.engine.test_summaries import rank_error


def run(search: Bisector, parts: list[NDArray[np.float32]]) -> tuple[int, int]:
    """Search one column; return exchanges and keys asked about."""
    columns = [[SortedColumn.of(p)] for p in parts]
    n_exchanges = n_keys = 0
    while not search.done:
        n_exchanges, n_keys = n_exchanges + 1, n_keys + search.key.shape[0]
        search.take(np.sum([count_below(c, search.column, search.key) for c in columns], axis=0))
    return n_exchanges, n_keys


def bisect(
    parts: list[NDArray[np.float32]], max_bin: int, tolerance: float = 0.0, min_cell: int = 1
) -> NDArray[np.float32]:
    search = Bisector(1, max_bin, tolerance, min_cell)
    run(search, parts)
    return search.thresholds[0]


def sizes(x: NDArray[np.float32], thresholds: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rows of each bin."""
    bins = np.searchsorted(thresholds, x[~np.isnan(x)], side="right")
    return np.bincount(bins, minlength=thresholds.shape[0] + 1)


def test_bisecting_on_summed_counts_finds_even_ranks() -> None:
    rng = np.random.default_rng(1)
    parts = [
        rng.normal(m, s, n).astype(np.float32)
        for m, s, n in ((0, 1, 5000), (3, 9, 700), (-1e3, 1, 90))
    ]
    thresholds = bisect(parts, 64, 1e-4)
    assert thresholds.shape == (63,)
    assert rank_error(np.concatenate(parts), thresholds) <= 3e-4
    assert rank_error(np.concatenate(parts), bisect(parts, 64)) <= 1 / (8 * 64)


def test_bisecting_separates_the_values_of_a_discrete_feature() -> None:
    parts = [
        np.repeat(np.array([0, 1, 2, 5], np.float32), [40, 5, 30, 25]),
        np.array([np.nan, 1, 5], np.float32),
    ]
    bins = np.searchsorted(bisect(parts, 8), [0, 1, 2, 5], side="right")
    assert np.unique(bins).shape[0] == 4
    coarse = np.searchsorted(bisect(parts, 8, min_cell=10), [0, 1, 2, 5], side="right")
    assert np.unique(coarse).shape[0] == 3, "six rows are in no bin of their own"


def test_values_of_many_rows_get_bins_of_their_own_and_free_those_they_would_fill() -> None:
    rng = np.random.default_rng(2)
    amount = np.round(rng.lognormal(7, 1.5, 4000))
    x = np.concatenate([np.zeros(30_000), np.full(6000, 100.25), amount]).astype(np.float32)
    thresholds = bisect([x], 32, min_cell=10)
    assert thresholds.shape[0] >= 29
    rows = np.sort(sizes(x, thresholds))
    assert abs(rows[-1] - 30_000) <= 10
    assert 6000 <= rows[-2] <= 6000 + 4000 / 30
    assert rows[-3] <= 1.5 * 4000 / 30


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(width=32, allow_nan=True, allow_infinity=True),
            st.sampled_from([0.0, -0.0, 1.0, -7.0, 0.1, 3e38, -3e38]),
        ),
        max_size=60,
    ),
    st.lists(st.integers(1, 400), max_size=4),
    st.sampled_from([2, 3, 8, 32, 256]),
    st.sampled_from([1, 5, 10]),
    st.sampled_from([0.0, 1e-3, 0.1]),
)
def test_every_search_ends_within_its_bounds(
    values: list[float], masses: list[int], max_bin: int, min_cell: int, tolerance: float
) -> None:
    x = np.array(values, np.float32)
    x = np.concatenate([x, *(np.full(n, v, np.float32) for n, v in zip(masses, x, strict=False))])
    search = Bisector(1, max_bin, tolerance, min_cell)
    n_exchanges, n_keys = run(search, [x])
    found = search.thresholds[0]
    assert n_exchanges <= MOST_PASSES
    assert n_keys <= most_keys(max_bin, tolerance) + 1
    assert found.shape[0] < max_bin
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    if found.shape[0]:
        finite = x[x < bisection.FENCE]
        assert sizes(finite, found).min() >= min_cell


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_bin", [2, 16, 64, 256])
def test_searches_of_common_columns_take_few_exchanges_and_keys(kind: str, max_bin: int) -> None:
    n_exchanges, n_keys = run(Bisector(1, max_bin), [column(kind, 20_000)])
    assert n_exchanges <= 22
    assert n_keys <= 0.85 * most_keys(max_bin, 0.0)


def test_no_cell_of_few_rows_is_divided_and_no_key_is_finer_than_the_grid() -> None:
    rng = np.random.default_rng(3)
    x = rng.lognormal(3, 1, 2400).astype(np.float32)
    own, search = [SortedColumn.of(x)], Bisector(1, 256)
    known = {0: 0, 1 << 32: 2400}
    while not search.done:
        counts = count_below(own, search.column, search.key)
        keys = search.key.tolist()
        for key in keys[1:]:
            low, high = (max(k for k in known if k < key), min(k for k in known if k > key))
            assert known[high] - known[low] >= MIN_CELL
            assert key % (1 << (24 - SIGNIFICANT_BITS)) == 0
        known |= dict(zip(keys, counts.tolist(), strict=True))
        search.take(counts)
    assert sizes(x, search.thresholds[0]).min() >= MIN_CELL


def test_columns_far_from_zero_are_searched_as_finely_as_their_spread_needs() -> None:
    seconds = 1.7e9 + 86_400 * 30 * np.random.default_rng(4).random(20_000)
    assert bisect([seconds.astype(np.float32)], 256, min_cell=10).shape[0] >= 250


@pytest.mark.parametrize("n_rows", [0, 1, 9, 15, 19])
def test_fewer_rows_than_two_bins_have_are_in_one(n_rows: int) -> None:
    assert bisect([np.arange(n_rows, dtype=np.float32)], 64, min_cell=10).shape == (0,)


@pytest.mark.parametrize("labels", [np.arange(501.0), np.repeat([0, 5, 9.5], [100, 300, 101])])
def test_a_median_is_found_to_the_rows_of_a_cell(labels: NDArray[np.float64]) -> None:
    search = Bisector(1, 2, 1e-3, median=True)
    _, n_keys = run(search, [labels.astype(np.float32)])
    below = np.count_nonzero(labels < search.medians[0])
    above = np.count_nonzero(labels > search.medians[0])
    assert max(below, above) <= 250 + MIN_CELL
    assert n_keys < 400


def test_a_median_of_no_rows_is_zero_and_that_of_one_value_is_this_value() -> None:
    for values, median in ([], 0.0), ([0.1] * 30, pytest.approx(0.1, rel=1e-5)):
        search = Bisector(1, 2, 1e-3, median=True)
        run(search, [np.array(values, np.float32)])
        assert search.medians == [median]


def test_searches_by_other_sums_do_not_share_what_is_found() -> None:
    one, same, other = (Bisector(1, 8) for _ in range(3))
    for search, n_rows in ((one, 100), (same, 100), (other, 5)):
        search.take(np.array([n_rows]))
    assert one.key is same.key
    assert not one.done
    assert other.done
    one.take(np.arange(one.key.shape[0]))
    assert same.n_rows == [100], "a search goes on by sums of its own"
    assert same.key is not one.key


@pytest.mark.parametrize("told", [[-1], [100, 60] + [50] * 30, [100] + [101] * 31, [100, 50]])
def test_counts_of_no_table_are_refused(told: list[int]) -> None:
    search = Bisector(1, 8)
    first, then = np.array(told[:1]), np.array(told[1:32])
    if told[0] >= 0:
        search.take(first)
        first = then
    with pytest.raises(SumCorrupt, match="counts: expected"):
        search.take(first)


@pytest.mark.parametrize(
    "labels",
    [
        np.random.default_rng(1).normal(size=5000),
        np.random.default_rng(2).integers(-3, 9, 3000).astype(float),
        np.where(np.random.default_rng(3).random(3000) < 0.7, 0.0, -np.arange(3000.0)),
    ],
    ids=["smooth", "whole", "heavy"],
)
def test_cells_have_enough_rows_and_a_value_among_them(labels: NDArray[np.float64]) -> None:
    x = labels.astype(np.float32)
    search = Bisector(1, 1024)
    run(search, [x[:1000], x[1000:]])
    (cells,) = search.cells
    inside = np.searchsorted(cells.thresholds, x, side="right")
    assert np.array_equal(np.bincount(inside), cells.rows)
    assert cells.rows.min() >= MIN_CELL
    assert np.array_equal(np.sort(cells.values), cells.values)
    within = np.abs(np.searchsorted(cells.thresholds, cells.values) - np.arange(len(cells.values)))
    assert within.max() <= 1  # the first cell's value may be its end
    assert np.median(np.abs(cells.values[inside] - x)) < 0.02 * x.std()
    for value, count in zip(*np.unique(x, return_counts=True), strict=True):
        if count > 100:
            assert cells.values[np.searchsorted(cells.thresholds, value, side="right")] == (
                pytest.approx(value, rel=1e-4, abs=1e-6)
            )
