"""Thresholds found by bisecting on summed counts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.engine import bisection
from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.sorting import SortedColumn
from tests.boosting.engine.test_first_round import column
from tests.boosting.engine.test_summaries import rank_error


def bisect(
    parts: list[NDArray[np.float32]], max_bin: int, tolerance: float
) -> tuple[NDArray[np.float32], int]:
    columns = [[SortedColumn.of(p)] for p in parts]
    search = Bisector(1, max_bin, tolerance)
    for n_exchanges in range(60):
        if search.done:
            return search.thresholds[0], n_exchanges
        search.take(np.sum([count_below(c, search.column, search.key) for c in columns], axis=0))
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
    assert n_exchanges <= 12


def test_bisecting_separates_the_values_of_a_discrete_feature() -> None:
    parts = [
        np.repeat(np.array([0, 1, 2, 5], np.float32), [40, 5, 30, 25]),
        np.array([np.nan, 1, 5], np.float32),
    ]
    thresholds, n_exchanges = bisect(parts, 8, 1e-4)
    assert n_exchanges <= 12
    bins = np.searchsorted(thresholds, [0, 1, 2, 5], side="right")
    assert np.unique(bins).shape[0] == 4


@pytest.mark.parametrize(("max_bin", "most"), [(256, 12), (64, 13), (16, 13), (2, 12)])
@pytest.mark.parametrize("kind", ["normal", "whole", "crowded", "zeros", "gaps"])
def test_steps_that_share_an_exchange_find_what_one_step_each_finds(
    kind: str, max_bin: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = column(kind, 20_000)
    found, n_exchanges = bisect([x], max_bin, 1e-4)
    monkeypatch.setattr(bisection, "_MOST_STEPS", 1)
    expected, n_steps = bisect([x], max_bin, 1e-4)
    assert np.array_equal(found, expected)
    assert n_exchanges <= min(most, n_steps)
