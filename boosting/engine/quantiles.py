"""Where a column is divided: at even ranks, but for values that hold more rows than a bin."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.int64, np.float64)


def even_ranks(
    rows: NDArray[np.float64] | NDArray[np.int64],
    solid: NDArray[np.bool_],
    max_bin: int,
    least: float = 0.0,
) -> tuple[NDArray[np.float64], float]:
    """Return the ranks that divide a column into at most ``max_bin`` bins, and a bin's mean rows.

    A solid cell with more rows than the mean bin gets a bin of its own. The bins that this frees
    are those of the other rows, whose mean is then smaller, and so on. Fewer of the other rows
    between two such cells than half a bin are in the bin of the latter one.

    Parameters
    ----------
    rows : ndarray of shape (n_cells,)
        Of adjacent cells, in the order of their values.
    solid : ndarray of shape (n_cells,)
        Cells that cannot be divided further.
    least : float
        Rows of a bin in the mean, at least.

    Returns
    -------
    ranks : ndarray of shape (at most max_bin - 1,)
        Increasing, between 0 and the sum of rows, both excluded.
    mean : float
        Rows of a bin without a cell of its own.
    """
    total = float(rows.sum())
    heavy = np.zeros(rows.shape[0], dtype=np.bool_)
    rest, left = total, max_bin
    while True:
        n_bins = max(1, min(left, int(rest // least) if least > 0 else left))
        mean = rest / n_bins
        more = solid & ~heavy & (rows > mean)
        if not more.any():
            break
        heavy |= more
        rest = max(0.0, total - float(rows[heavy].sum()))
        left = max_bin - int(heavy.sum())
    ends = np.cumsum(rows)
    found: list[NDArray[np.float64]] = []
    begin, left = 0.0, n_bins
    for i in [*np.flatnonzero(heavy).tolist(), None]:
        end = total if i is None else float(ends[i] - rows[i])
        between = end - begin
        n = min(left, int(between * left / rest + 0.5)) if between > 0 and rest > 0 else 0
        if n:
            found.append(begin + between * np.arange(0 if begin else 1, n) / n)
        elif begin and i is not None:
            found.append(np.array([begin]))
        if i is not None:
            if n:
                found.append(np.array([end]))
            begin = float(ends[i])
        rest, left = rest - between, left - n
    ranks = np.concatenate([np.empty(0), *found])
    return distinct(ranks[(ranks > 0) & (ranks < total)]), mean


def distinct(x: NDArray[Number]) -> NDArray[Number]:
    """Return the values of a short array once, ascending; ``np.unique`` builds a table of them."""
    found = np.sort(x)
    new = np.ones(found.shape[0], np.bool_)
    new[1:] = found[1:] != found[:-1]
    return found[new]
