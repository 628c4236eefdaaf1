from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.sums.exact import (
    LIMBS,
    exact_parts,
    exact_sums,
    label_parts,
    mean_labels,
)

numbers = st.floats(-1e38, 1e38)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    silos=st.lists(st.lists(numbers, max_size=9), min_size=1, max_size=5),
)
def test_sums_are_exact_however_rows_are_spread(silos: list[list[float]]) -> None:
    residues = np.zeros(LIMBS, np.uint64)
    for rows in silos:
        residues = residues + exact_parts(np.array(rows))
    every = [value for rows in silos for value in rows]
    (total,) = exact_sums(residues)
    assert total == sum(Fraction(round(Fraction(value) * 2**140), 2**140) for value in every)
    assert np.array_equal(exact_parts(np.array(every)), residues)  # limb by limb


def test_a_million_rows_of_the_largest_numbers_stay_exact() -> None:
    column = np.full((1 << 20) + 1, math.nextafter(2.0**119, 0.0))
    (total,) = exact_sums(exact_parts(column))
    assert total == Fraction(float(column[0])) * len(column)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_label_is_the_closest_number(weighted: bool) -> None:
    rng = np.random.default_rng(7)
    labels, weight = rng.normal(300.0, 1e-3, 1000), rng.uniform(0.1, 9.0, 1000)
    given_weight = weight if weighted else None
    (mean,) = mean_labels(label_parts(labels, given_weight))
    sums = [map(Fraction, weight * labels), map(Fraction, weight)]
    first, second = (sum(part) for part in sums) if weighted else (sum(map(Fraction, labels)), 1000)
    assert mean == float(Fraction(first) / second)


@pytest.mark.parametrize(
    ("wrong", "counted"),
    [(math.nan, 0.0), (math.inf, 2.0**128), (-math.inf, -(2.0**128)), (1e300, 2.0**128)],
)
def test_a_number_outside_the_range_counts_as_its_end_and_no_silo_refuses(
    wrong: float, counted: float
) -> None:
    assert exact_sums(exact_parts(np.array([1.0, wrong]))) == (1 + Fraction(counted),)


def test_a_mean_without_weight_is_refused() -> None:
    with pytest.raises(DataError, match="positive weight"):
        mean_labels(label_parts(np.ones(3), np.zeros(3)))
