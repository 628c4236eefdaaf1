from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.crypto.masking import fixed_point
from hedgerow.crypto.masking.fixed_point import RINGS, FixedPoint, OutOfRange

rings = st.sampled_from(RINGS)


@given(
    rows=st.integers(1, 10**9),
    bound=st.floats(1e-6, 1e9),
    ring_bits=rings,
)
def test_range_proof_leaves_two_bits_and_is_nearly_tight(
    rows: int, bound: float, ring_bits: int
) -> None:
    s = fixed_point.fraction_bits(rows, bound, ring_bits)
    exact = rows * Fraction(bound) * Fraction(2) ** s
    assert exact <= Fraction(2) ** (ring_bits - 3)
    if s < 52:
        assert 2 * exact > Fraction(2) ** (ring_bits - 3)


def test_logistic_gradients_of_a_billion_rows_keep_thirty_one_bits() -> None:
    assert fixed_point.fraction_bits(10**9, 1.0) == 31
    assert fixed_point.fraction_bits(1000, 1.0) == 51
    assert fixed_point.fraction_bits(100, 1.0) == 52


@given(value=st.floats(min_value=0, allow_nan=False, allow_infinity=False, exclude_min=True))
def test_log2_ceil_is_exact(value: float) -> None:
    k = fixed_point.log2_ceil(value)
    assert Fraction(value) <= Fraction(2) ** k
    assert k == -1074 or Fraction(value) > Fraction(2) ** (k - 1)


@given(
    values=st.lists(st.floats(-3, 3), min_size=1, max_size=40),
    cut=st.integers(0, 40),
    ring_bits=rings,
)
def test_sums_of_residues_are_the_sum_of_rows_whatever_the_split(
    values: list[float], cut: int, ring_bits: int
) -> None:
    point = FixedPoint.fitting(len(values), 3.0, ring_bits)
    rows = point.quantise(np.array(values))
    parts = [rows[:cut].sum(keepdims=True), rows[cut:].sum(keepdims=True)]
    residues = [point.residues(part) for part in parts]
    total = residues[1] + residues[0]
    fixed_point.reduce_residues(total, ring_bits)
    assert point.integers(total)[0] == rows.sum()
    exact = sum((Fraction(v) for v in values), Fraction(0))
    error = abs(Fraction(float(point.decode(total)[0])) - exact)
    assert error <= len(values) * Fraction(2) ** (-point.fraction_bits) + Fraction(1, 2**48)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.0000001, -2.0])
def test_values_that_break_the_proof_are_rejected_without_being_named(bad: float) -> None:
    point = FixedPoint.fitting(10, 1.0)
    with pytest.raises(OutOfRange, match="some of 3 values") as caught:
        point.quantise(np.array([0.5, bad, 1.0]))
    assert str(bad) not in str(caught.value)


def test_a_quantisation_that_could_overflow_is_rejected_before_it_is_used() -> None:
    with pytest.raises(OutOfRange, match="do not fit a 32-bit ring"):
        FixedPoint(1 << 20, 1.0, 11, ring_bits=32)
    assert FixedPoint((1 << 20) - 1, 1.0, 11, ring_bits=32).largest_sum() < 1 << 31


def test_a_total_beyond_the_proven_bound_is_rejected() -> None:
    point = FixedPoint(4, 1.0, 8, ring_bits=32)
    with pytest.raises(OutOfRange, match="exceeds"):
        point.integers(np.array([4 * 256 + 1], dtype=np.uint32))
    assert point.integers(np.array([2**32 - 4 * 256], dtype=np.uint32))[0] == -1024


def test_rounding_is_half_to_even() -> None:
    point = FixedPoint(10, 4.0, 1)
    rows = point.quantise(np.array([0.25, 0.75, -0.25, -0.75, 1.25]))
    assert rows.tolist() == [0, 2, 0, -2, 2]


def test_stochastic_rounding_is_unbiased_and_keeps_whole_steps() -> None:
    point = FixedPoint(10, 4.0, 2)
    rng = np.random.default_rng(5)
    rows = point.quantise(np.full(200_000, 0.3), rng)
    assert set(rows.tolist()) == {1, 2}
    assert abs(rows.mean() / 4 - 0.3) < 0.001
    assert point.quantise(np.full(1000, -0.75), rng).tolist() == [-3] * 1000
    assert abs(point.quantise(np.full(1000, 4.0), rng)).max() <= point.largest_row()


def test_large_bounds_give_negative_fraction_bits() -> None:
    point = FixedPoint.fitting(10**6, 1e15)
    assert point.fraction_bits < 0
    rows = point.quantise(np.array([1e15, -1e15]))
    assert abs(point.decode(point.residues(rows))[0] / 1e15 - 1) < 1e-9


@given(words=st.lists(st.integers(0, 2**32 - 1), max_size=30), ring_bits=rings)
def test_packing_takes_the_rings_width_and_is_undone_by_unpacking(
    words: list[int], ring_bits: int
) -> None:
    residues = np.array(words, dtype=fixed_point.residue_dtype(ring_bits))
    if ring_bits > 32:
        residues *= np.uint64(2 ** (ring_bits - 32) - 1)
    packed = bytes(fixed_point.pack(residues, ring_bits))
    assert len(packed) == len(words) * ring_bits // 8
    assert packed == b"".join(int(r).to_bytes(ring_bits // 8, "little") for r in residues)
    pieces = [packed[:7], packed[7:]]
    again = fixed_point.unpack(pieces, len(residues), ring_bits)
    np.testing.assert_array_equal(again, residues)
    assert again.flags.writeable


def test_a_torn_packing_and_an_unknown_ring_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected 12 bytes of residues, received 11"):
        fixed_point.unpack([bytes(11)], 2, 48)
    with pytest.raises(ValueError, match="expected 12 bytes of residues, received 13"):
        fixed_point.unpack([bytes(13)], 2, 48)
    with pytest.raises(ValueError, match="not 40"):
        FixedPoint(1, 1.0, 1, ring_bits=40)
