"""No count that an explore job tells, and no difference of such counts, is of a few rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hedgerow.boosting.engine.cells import class_groups, merged, row_groups

COUNTS = st.integers(1, 12).flatmap(
    lambda n: arrays(np.int64, (n, 3), elements=st.sampled_from([0, 1, 4, 9, 10, 11, 60]))
)


@given(COUNTS, st.booleans())
def test_cells_are_merged_until_each_has_enough_rows(table: np.ndarray, ordered: bool) -> None:
    rows = np.append(0, table.sum(axis=1)) if ordered else table.sum(axis=1)
    groups = row_groups(rows, 10, ordered=ordered)
    told = merged(rows, groups)
    assert told.sum() == rows.sum()  # nothing is left out that would follow from the total
    assert len(told) == 1 or (told >= 10).all()
    if ordered:
        assert all(b - a in (0, 1) for a, b in pairwise(groups))  # neighbours only
    wide = class_groups(merged(table if not ordered else np.vstack([0 * table[:1], table]), groups),
                        10, ordered=ordered)  # fmt: skip
    cells = merged(
        merged(table if not ordered else np.vstack([0 * table[:1], table]), groups), wide
    )
    assert len(cells) != 1  # one group would say no more than the classes' own counts
    assert (cells >= 10).all()
    if len(cells):
        assert (cells.sum(axis=0) == table.sum(axis=0)).all()


def test_a_few_missing_values_are_told_with_the_lowest_bin() -> None:
    assert row_groups(np.array([3, 20, 30]), 10, ordered=True).tolist() == [0, 0, 1]
    assert row_groups(np.array([0, 20, 30]), 10, ordered=True).tolist() == [-1, 0, 1]
    assert row_groups(np.array([12, 20, 30]), 10, ordered=True).tolist() == [0, 1, 2]


def test_one_small_category_takes_the_next_smallest_with_it() -> None:
    assert row_groups(np.array([0, 50, 3, 20]), 10, ordered=False).tolist() == [-1, 0, 1, 1]
