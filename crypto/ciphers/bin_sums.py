"""Which rows to add up for the histograms of many features, with as few additions as possible.

A histogram of ciphertexts needs, for every feature and bin, the sum of the rows in that bin: one
addition a row and feature. Two facts save most of them, in any ciphertext scheme:

* **joint cells**: features whose bins have few combinations are summed once by combination, and
  each feature's bins are sums of cells. A group of m features costs n row additions, not m·n;
* **the fullest cell** of a group is the node's total minus the group's other cells, so its rows
  need not be added at all.

The plan holds indices only, so it works for anything that can be added and subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.ciphers.sparse_bins import SparseBins

Bins = NDArray[np.uint8] | NDArray[np.uint16]

_WORTH_JOINING = 2
"""How many row additions an addition of cells may cost, when joining is decided."""
_WORTH_DERIVING = 4
"""The same for the subtraction that derives the fullest cell."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Sums over runs of an index: sum s is over ``index[starts[s]:starts[s + 1]]``.

    In the index of points, ``~i`` is minus point i.
    """

    index: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Count the sums."""
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class BinSumPlan:
    """The additions of one node's histograms."""

    rows: Segments
    """First: sums of rows; these are points 0, 1, ..."""
    total: Segments
    """One sum of points, the node's total; it is the point after those of `rows`."""
    derived: Segments
    """Then: the total, and with it each group's fullest cell; further points, in this order. The
    total comes alone in `total`, since the derived cells stand on it."""
    bins: Segments
    """Last: one sum of points for each feature and bin, feature by feature."""
    shape: tuple[int, int]
    """(n_features, n_bins)."""


def _segments(index: list[NDArray[np.int64]], lengths: list[NDArray[np.int64]]) -> Segments:
    empty = np.empty(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    return Segments(np.concatenate([empty, *index]), starts)


def _group(n_rows: int, n_used: NDArray[np.int64], joint: bool) -> list[list[int]]:
    """Put features into groups whose joint cells are few against the rows.

    Features with few used bins go together; with `joint` off every feature is alone.
    """
    if not joint:
        return [[feature] for feature in range(len(n_used))]
    groups: list[list[int]] = []
    cells = 1
    for feature in np.argsort(n_used, kind="stable").tolist():
        used = int(n_used[feature])
        if groups:
            larger = len(groups[-1]) + 1
            if larger * cells * used * _WORTH_JOINING <= n_rows:
                groups[-1].append(feature)
                cells *= used
                continue
        groups.append([feature])
        cells = used
    return groups


def plan_bin_sums(
    bins: Bins,
    n_bins: int,
    members: NDArray[np.int64] | None = None,
    *,
    joint: bool = True,
    derive: bool = True,
) -> BinSumPlan:
    """Plan the histograms of one node.

    Parameters
    ----------
    bins : ndarray of shape (n_rows, n_features), uint8 or uint16
        Bin of every row and feature, below `n_bins`.
    members : ndarray of shape (n_members,), int64, optional
        Rows of the node; all by default.
    joint, derive : bool
        Whether to use joint cells, and to derive fullest cells.

    Raises
    ------
    ValueError
        If the bins have another shape or type, or one is not below `n_bins`.
    """
    if bins.ndim != 2 or bins.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"bins of shape (n_rows, n_features), uint8 or uint16, expected; "
            f"received {bins.shape}, {bins.dtype}"
        )
    rows = np.arange(len(bins)) if members is None else np.asarray(members, np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(bins)):
        raise ValueError(f"members: rows 0 to {len(bins) - 1} expected")
    n, n_features = len(rows), bins.shape[1]
    columns = np.ascontiguousarray(bins[rows].T if members is not None else bins.T)
    if n and n_features and int(columns.max()) >= n_bins:
        raise ValueError(f"bins: {n_bins} bins a feature expected, one is numbered above")
    counts = [np.bincount(column, minlength=n_bins) for column in columns]
    used = [np.flatnonzero(count) for count in counts]
    n_used = np.fromiter((len(u) for u in used), np.int64, n_features)

    row_index: list[NDArray[np.int64]] = []
    row_lengths: list[NDArray[np.int64]] = []
    derived_index: list[NDArray[np.int64]] = []
    total = np.empty(0, np.int64)
    groups = _group(n, n_used, joint) if n else []
    points_of: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    n_sums = 0
    for group in groups:
        cell = np.zeros(n, np.uint32)
        for feature in group:
            compact = np.zeros(n_bins, np.uint32)
            compact[used[feature]] = np.arange(len(used[feature]))
            cell *= np.uint32(len(used[feature]))
            cell += compact[columns[feature]]
        n_cells = int(np.prod(n_used[group]))
        # numpy sorts 16-bit keys by radix
        order = np.argsort(cell.astype(np.uint16) if n_cells <= 1 << 16 else cell, kind="stable")
        sizes = np.bincount(cell, minlength=n_cells)
        filled = np.flatnonzero(sizes)
        lengths = sizes[filled]
        points = n_sums + np.arange(len(filled))
        fullest = int(np.argmax(lengths))
        # The first group stays whole: its cells make the total.
        if derive and points_of and lengths[fullest] > _WORTH_DERIVING * len(filled):
            before = int(lengths[:fullest].sum())
            order = np.delete(order, slice(before, before + int(lengths[fullest])))
            lengths = np.delete(lengths, fullest)
            points[fullest + 1 :] -= 1
            derived_index.append(np.delete(points, fullest))
            points[fullest] = -len(derived_index)
        row_index.append(rows[order])
        row_lengths.append(lengths)
        n_sums += len(lengths)
        if not points_of:
            total = points
        points_of.append((filled, points))

    bin_index = [np.empty(0, np.int64)] * n_features
    bin_lengths = [np.zeros(n_bins, np.int64) for _ in range(n_features)]
    for group, (filled, points) in zip(groups, points_of, strict=True):
        # Derived cells come after the sums of rows and the total.
        points = np.where(points < 0, n_sums - points, points)
        stride = int(np.prod(n_used[group]))
        for feature in group:
            stride //= int(n_used[feature])
            digit = filled // stride % n_used[feature]
            bin_index[feature] = points[np.argsort(digit, kind="stable")]
            bin_lengths[feature][used[feature]] = np.bincount(digit, minlength=n_used[feature])
    return BinSumPlan(
        rows=_segments(row_index, row_lengths),
        total=_segments([total], [np.array([len(total)])]),
        derived=_segments(
            [np.concatenate([np.array([n_sums]), ~cells]) for cells in derived_index],
            [np.array([len(cells) + 1]) for cells in derived_index],
        ),
        bins=_segments(bin_index, bin_lengths),
        shape=(n_features, n_bins),
    )


def plan_sparse_sums(
    bins: SparseBins, n_bins: int, rows: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> BinSumPlan:
    """Plan the histograms of one node whose rows are mostly in their features' usual bins.

    Parameters
    ----------
    rows : ndarray of shape (n_members,), int64
        Rows of the node.
    wanted : ndarray of shape (n_features,), bool
        Features whose usual bin is summed: the node's total less the feature's other bins. Of the
        others it is left empty.
    """
    n_features, first = len(bins.n_bins), bins.first
    index, counts = bins.of_node(rows)
    filled = np.flatnonzero(counts)
    feature = np.repeat(np.arange(n_features), bins.n_bins)
    place = feature * n_bins + np.arange(len(counts)) - first[feature]
    points = np.full(n_features * n_bins, -1)
    points[place[filled]] = np.arange(len(filled))
    row_index, row_lengths = [index.astype(np.int64)], [counts[filled]]
    total, derived, lengths = [], [], []
    n_sums = len(filled)
    if wanted.any():
        # All rows are one more sum of rows; the total is a point of its own after it.
        row_index.append(rows)
        row_lengths.append(np.array([len(rows)]))
        total.append(np.array([n_sums]))
        n_sums += 1
        others = np.searchsorted(filled, first)
        for k, j in enumerate(np.flatnonzero(wanted).tolist()):
            derived += [np.array([n_sums]), ~np.arange(others[j], others[j + 1])]
            lengths.append(1 + others[j + 1] - others[j])
            points[place[bins.usual_cells[j]]] = n_sums + 1 + k
    return BinSumPlan(
        rows=_segments(row_index, row_lengths),
        total=_segments(total, [np.array([len(part)]) for part in total]),
        derived=_segments(derived, [np.array(lengths, np.int64)]),
        bins=_segments([points[points >= 0]], [(points >= 0).astype(np.int64)]),
        shape=(n_features, n_bins),
    )
