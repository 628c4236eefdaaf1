"""Which cells of a table are told as one, so that no count that is told is a small one.

Cells are merged, none is left out: a count that is not told then follows from no others. Classes
are told by groups of these groups, each of which has enough rows of every class. So all that is
told of a column are counts of nested partitions of the rows, and every part has ``least`` rows.
That holds within one column only. Of columns that depend on each other, as age and age group, the
cells of one may be those of the other but for a few rows: so counts are told in multiples of
``least`` (by the strategy explore), and only whether such a difference passes a multiple is seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def row_groups(counts: Integers, least: int, *, ordered: bool) -> Integers:
    """Return the group of each cell, by position; -1 for a first cell that has no rows.

    Parameters
    ----------
    counts : ndarray of shape (n_cells,), int64
        Rows without a value, then of each bin or category.
    ordered : bool
        Whether only neighbours may be merged, as of bins.
    """
    found = np.arange(len(counts))
    first = int(counts[0] == 0 and len(counts) > 1)
    if ordered:
        found[first:] = _runs(counts[first:, None], least)
    else:
        found[first:] = _joined(counts[first:, None], least)
    if first:
        found[0] = -1
    return found


def class_groups(cells: Integers, least: int, *, ordered: bool) -> Integers:
    """Return the group of each row of a table of counts by class; all -1 where there is one only.

    Parameters
    ----------
    cells : ndarray of shape (n_cells, n_classes), int64
    """
    if cells.shape[1] < 2:
        return np.full(len(cells), -1)
    found = _runs(cells, least) if ordered else _joined(cells, least)
    return found if found.max(initial=0) else np.full(len(cells), -1)


def merged(cells: Integers, groups: Integers) -> Integers:
    """Return the sums of the rows of a table by group, leaving out those of group -1."""
    out = np.zeros((int(groups.max(initial=-1)) + 1, *cells.shape[1:]), np.int64)
    kept = groups >= 0
    np.add.at(out, groups[kept], cells[kept])
    return out


def _runs(cells: Integers, least: int) -> Integers:
    """Return groups of neighbours with at least that many rows in each column."""
    found = np.zeros(len(cells), np.int64)
    group, inside = 0, np.zeros(cells.shape[1], np.int64)
    for k, own in enumerate(cells):
        found[k] = group
        inside = inside + own
        if (inside >= least).all():
            group, inside = group + 1, np.zeros_like(inside)
    if group and not (inside >= least).all():
        found[found == group] = group - 1  # too few are left over: those before have them
    return found


def _joined(cells: Integers, least: int) -> Integers:
    """Return groups: cells that are large enough for themselves, all others as the last one."""
    small = [k for k, own in enumerate(cells) if (own < least).any()]
    large = [k for k in range(len(cells)) if k not in set(small)]
    rest = sorted(large, key=lambda k: (int(cells[k].sum()), k))
    while small and rest and (cells[small].sum(axis=0) < least).any():
        small.append(rest.pop(0))
    found = np.empty(len(cells), np.int64)
    kept = sorted(rest)
    found[kept] = np.arange(len(kept))
    found[small] = len(kept)
    return found
