"""Quantiles of all leaves at once, searched on summed counts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.engine.leaf_quantiles import N_PASSES, LeafQuantiles, LeafRows, steps_of
from hedgerow.boosting.errors import SumCorrupt

LABELS = np.linspace(-10, 10, 500, dtype=np.float32)
MIN_ROWS = 10


def searched(
    nodes: list[NDArray[np.int64]],
    residuals: list[NDArray[np.float64]],
    alpha: float,
    leaves: tuple[int, ...],
) -> tuple[LeafQuantiles, int]:
    """Search over the rows of some silos; return the search and its exchanges."""
    search = LeafQuantiles(LABELS, [alpha] * len(leaves), MIN_ROWS)
    pairs = zip(nodes, residuals, strict=True)
    silos = [LeafRows([(node, own, leaves)]) for node, own in pairs]
    n = 0
    while search.n_asked:
        search.take(np.sum([silo.below(search) for silo in silos], axis=0))
        n += 1
    return search, n


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [3.0, 0.01])
def test_leaves_are_the_quantiles_to_a_part_of_their_range(alpha: float, scale: float) -> None:
    rng = np.random.default_rng(5)
    leaves = (3, 4, 7)
    sizes = (800, 350, 90)
    nodes = [rng.choice(leaves, n, p=(0.6, 0.3, 0.1)) for n in sizes]
    residuals = [rng.normal(size=len(own)) * scale + (own - 4) for own in nodes]
    search, n_exchanges = searched(nodes, residuals, alpha, leaves)
    assert n_exchanges == N_PASSES
    node, residual = np.concatenate(nodes), np.concatenate(residuals)
    step, _ = steps_of(LABELS)
    for leaf, value in zip(leaves, search.values, strict=True):
        own = residual[node == leaf]
        exact = np.quantile(own, alpha)
        near = max(step, abs(exact) / 32) * 1.01
        # Where the range between two powers of two has few rows it is not divided.
        power = 2.0 ** np.floor(np.log2(abs(exact)))
        inside = np.count_nonzero((np.abs(own) >= power) & (np.abs(own) < 2 * power))
        assert abs(value - exact) < near or (inside < 2 * MIN_ROWS and abs(value - exact) < power)


def test_silos_add_to_what_one_table_gives() -> None:
    rng = np.random.default_rng(6)
    node, residual = rng.integers(1, 3, 500), rng.normal(size=500)
    whole, _ = searched([node], [residual], 0.3, (1, 2))
    spans = slice(0, 1), slice(1, 1), slice(1, 500)
    parts, _ = searched([node[own] for own in spans], [residual[own] for own in spans], 0.3, (1, 2))
    assert np.array_equal(whole.values, parts.values)


def test_no_range_with_few_rows_is_divided() -> None:
    step, n_powers = steps_of(LABELS)
    few, many = np.full(MIN_ROWS - 1, 300 * step), np.full(MIN_ROWS, 300 * step)
    for residual, divided in (few, False), (many, True):
        search = LeafQuantiles(LABELS, [0.5], MIN_ROWS)
        rows = LeafRows([(np.zeros(len(residual), np.int64), residual, (0,))])
        assert search.n_asked == 2 * (n_powers + 1) + 2
        search.take(rows.below(search))
        assert bool(search.n_asked) == divided
        if divided:  # inside the power of two that has the quantile, and nowhere else
            assert 256 * step < search.asked[0].min() <= search.asked[0].max() < 512 * step


def test_nothing_finer_than_the_step_is_asked() -> None:
    residual = np.full(1000, 0.0)
    search, _ = searched([np.zeros(1000, np.int64)], [residual], 0.5, (0,))
    step, _ = steps_of(LABELS)
    assert abs(search.values[0]) <= step


@pytest.mark.parametrize("alpha", [0.01, 0.99])
def test_past_the_outer_power_a_leaf_is_the_last_that_was_asked_about(alpha: float) -> None:
    side = 1 if alpha > 0.5 else -1
    search, _ = searched([np.zeros(50, np.int64)], [np.full(50, side * 1e9)], alpha, (0,))
    step, n_powers = steps_of(LABELS)
    assert search.values[0] == side * step * 2**n_powers
    empty, _ = searched([np.zeros(0, np.int64)], [np.zeros(0)], alpha, (0,))
    assert empty.values[0] == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda below: below[:-1], "expected"),
        (lambda below: below[::-1], "grow with the residual"),
        (lambda below: below - 1, "grow with the residual"),
    ],
)
def test_counts_of_no_table_are_refused(change: object, why: str) -> None:
    search = LeafQuantiles(LABELS, [0.5], MIN_ROWS)
    rows = LeafRows([(np.zeros(50, np.int64), np.linspace(-20, 20, 50), (0,))])
    with pytest.raises(SumCorrupt, match=why):
        search.take(change(rows.below(search)))  # type: ignore[operator]


@pytest.mark.parametrize("labels", [[5.0], [0.0], [0.0] * 9 + [7.0], [-1e30, 1e30], [1e-30, 2e-30]])
def test_there_is_a_grid_for_any_labels(labels: list[float]) -> None:
    step, n_powers = steps_of(np.array(labels, np.float32))
    assert 0 < step < np.inf
    assert 1 <= n_powers <= 40
    assert step * 2.0**n_powers >= np.ptp(labels)
