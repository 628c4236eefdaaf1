"""The largest exponent over silos, and nothing else of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.boosting.sums.maximum import HIGHEST, LOWEST, N_PLACES, maxima, maximum_parts

exponents = st.integers(-1074, 1023)


@given(st.lists(st.tuples(exponents, exponents), min_size=1, max_size=6))
def test_the_total_tells_the_largest_of_each_within_the_range(silos: list[tuple[int, int]]) -> None:
    total = np.sum([maximum_parts(*own) for own in silos], axis=0, dtype=np.uint64)
    expected = [min(max(LOWEST, *column), HIGHEST) for column in zip(*silos, strict=True)]
    assert list(maxima(total)) == expected


def test_silos_without_rows_mark_no_place() -> None:
    assert not maximum_parts(LOWEST, -1074).any()
    assert maximum_parts(LOWEST).shape == (N_PLACES,)
