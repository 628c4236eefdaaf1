"""Edges by descent: exact without noise, near with little, sane with much."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.strategies.dp_tree.bins import (
    CELLS,
    STAGES,
    count_cells,
    descend,
    edges_of,
    keys_of,
    start_descent,
    value_of,
)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=100)
@given(st.lists(finite, min_size=2, max_size=30))
def test_keys_are_in_the_order_of_the_numbers(values: list[float]) -> None:
    column = np.array(values, dtype=np.float32)
    keys = keys_of(column)
    assert np.array_equal(np.argsort(keys, kind="stable"), np.argsort(column, kind="stable"))
    assert all(value_of(int(key)) == value for key, value in zip(keys, column, strict=True))


def edges_from(parts: list[np.ndarray], n_bins: int, scale: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    descent = start_descent(n_bins)
    for stage in range(STAGES):
        counts = sum(count_cells(part, descent.intervals, stage) for part in parts)
        noise = np.rint(rng.laplace(0.0, scale, counts.shape)).astype(np.int64)
        descent = descend(descent, counts + noise, scale * 2**0.5)
    return edges_of(descent)


@pytest.mark.parametrize("kind", ["normal", "lognormal", "years", "wide"])
def test_without_noise_bins_hold_equal_shares_of_all_silos_rows(kind: str) -> None:
    rng = np.random.default_rng(1)
    column = {
        "normal": lambda: rng.normal(size=20_000),
        "lognormal": lambda: np.exp(3 * rng.normal(size=20_000)),
        "years": lambda: rng.uniform(1950, 2020, 20_000),
        "wide": lambda: rng.uniform(-1e30, 1e30, 20_000),
    }[kind]().astype(np.float32)
    edges = edges_from(np.array_split(np.sort(column), 7), 5)
    bins = np.searchsorted(edges, column, side="right")
    shares = np.bincount(bins, minlength=5) / len(column)
    assert len(edges) == 4
    np.testing.assert_allclose(shares, 0.2, atol=0.02)


def test_a_row_counts_once_a_stage_and_missing_ones_never() -> None:
    rng = np.random.default_rng(2)
    column = rng.normal(size=500).astype(np.float32)
    column[:100] = np.nan
    descent = start_descent(4)
    for stage in range(STAGES):
        counts = count_cells(column, descent.intervals, stage)
        assert counts.shape == (len(descent.intervals), CELLS)
        assert counts.sum() <= 400
        descent = descend(descent, counts, 0.0)
    assert count_cells(column, start_descent(4).intervals, 0).sum() == 400


def test_two_values_have_bins_of_their_own() -> None:
    column = np.repeat(np.array([0.0, 1.0], dtype=np.float32), [900, 100])
    edges = edges_from([column], 5)
    bins = np.searchsorted(edges, column, side="right")
    assert (bins[:900] < bins[900:].min()).all()


def test_little_noise_moves_edges_little() -> None:
    rng = np.random.default_rng(3)
    column = rng.normal(size=200_000).astype(np.float32)
    edges = edges_from([column], 5, scale=50.0)
    exact = np.quantile(column, [0.2, 0.4, 0.6, 0.8])
    np.testing.assert_allclose(edges, exact, atol=0.05)


def test_nothing_but_noise_still_gives_finite_edges() -> None:
    edges = edges_from([np.zeros(0, dtype=np.float32)], 5, scale=100.0)
    assert np.isfinite(edges).all()
    assert 1 <= len(edges) <= 4
