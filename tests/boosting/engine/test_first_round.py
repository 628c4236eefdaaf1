"""Sorting, summaries and bins of columns, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Feature, Schema, Task
from hedgerow.boosting.engine import summaries
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import cuts_from_thresholds
from hedgerow.boosting.engine.sorting import SortedColumn, sorted_keys, values_of
from hedgerow.boosting.engine.summaries import summarise

finite = st.floats(width=32, allow_infinity=False)


def column(kind: str, n: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(n)
    drawn = {
        "normal": rng.standard_normal(n),
        "whole": rng.integers(-3, 300, n),
        "crowded": np.where(rng.random(n) < 0.01, 1e30 * rng.random(n), 1 + 1e-4 * rng.random(n)),
        "zeros": np.where(rng.random(n) < 0.5, -0.0, rng.choice([0.0, 1e-44, -1e-44], n)),
        "gaps": np.where(rng.random(n) < 0.3, np.nan, rng.random(n)),
    }
    return drawn[kind].astype(np.float32)


KINDS = ["normal", "whole", "crowded", "zeros", "gaps"]


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, max_size=60))
def test_keys_are_in_the_order_of_their_values(values: list[float]) -> None:
    x = np.array(values, np.float32)
    found = values_of(sorted_keys(x))
    expected = np.sort(x[~np.isnan(x)] + np.float32(0.0))
    assert np.array_equal(found, expected)
    assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_counts_below_a_key_need_two_bytes_a_value(kind: str) -> None:
    x = column(kind, 20_000)
    own, keys = SortedColumn.of(x), sorted_keys(x)
    rng = np.random.default_rng(0)
    asked = np.append(rng.choice(keys, 500), rng.integers(0, 1 << 32, 500)).astype(np.int64)
    assert np.array_equal(own.count_below(asked), np.searchsorted(keys, asked))
    assert own.low.nbytes == 2 * keys.shape[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_points", [1, 7, 1024, 10**6])
def test_a_summary_is_that_of_the_distinct_values_and_their_counts(
    kind: str, max_points: int
) -> None:
    x = column(kind, 5000)
    found = summarise(x, max_points)
    values, counts = np.unique(x[~np.isnan(x)] + np.float32(0.0), return_counts=True)
    ends = np.cumsum(counts).astype(np.float64)
    last = np.arange(len(values))
    if len(values) > max_points:

        def runs(ranks: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            at = np.searchsorted(ends, ranks * (1 - 1e-12))
            return np.append(0.0, ends[:-1])[at], ends[at]

        last = np.searchsorted(ends, summaries._ends(ends[-1], max_points, runs) * (1 - 1e-12))
    assert np.array_equal(found.values, values[last])
    assert np.array_equal(found.weights, np.diff(ends[last], prepend=0.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "n_cuts"), [(300, 5), (20_000, 255), (20_000, 900)])
def test_bins_are_those_of_a_binary_search(kind: str, n: int, n_cuts: int) -> None:
    x = column(kind, n)
    present = np.sort(x[~np.isnan(x)] + np.float32(0.0))
    inner = np.unique(present[np.arange(n_cuts) * present.shape[0] // n_cuts])
    cuts = cuts_from_thresholds(Schema((Feature("x"),), "y", Task.REGRESSION, 0), [inner])
    expected = np.searchsorted(inner, x, side="right")
    expected[np.isnan(x)] = inner.shape[0] + 1
    binned = bin_features(x[:, None], cuts)
    assert np.array_equal(binned.by_row[:, 0], expected)
    assert np.array_equal(binned.by_feature[0], expected)
    assert binned.any_missing == bool(np.isnan(x).any())
    numbers = binned.values(cuts, slice(0, n))[:, 0]
    again = bin_features(numbers[:, None], cuts)
    assert np.array_equal(again.by_row, binned.by_row)


def test_missing_values_beside_256_bins_take_two_bytes_and_one_more_reading() -> None:
    x = np.append(np.arange(256), np.nan).astype(np.float32)
    inner = (np.arange(255) + 0.5).astype(np.float32)
    schema = Schema((Feature("a"), Feature("b")), "y", Task.REGRESSION, 0)
    cuts = cuts_from_thresholds(schema, [inner, inner])
    reads = [0, 0]

    def read(j: int) -> NDArray[np.float32]:
        reads[j] += 1
        return np.where(np.isnan(x), np.float32(j - 1 or np.nan), x)

    columns = Columns(257, (lambda: read(0), lambda: read(1)))
    binned = bin_features(columns, cuts)
    assert binned.by_row.dtype == np.uint16
    assert binned.by_row[256].tolist() == [0, 256]
    assert reads == [1, 2]
