"""The best cut of a node's rows, as CART finds it: least Gini impurity or squared error.

Both criteria are one: with ``s`` the sums of a side (weights by class, or of the centred label)
and ``w`` its weight, the best cut has the greatest ``sum(s**2) / w`` over both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.ranked import RankedTable
from hedgerow.crypto.native.kernels import kernel

_LARGEST = np.float32(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Cut:
    """A split of one node."""

    feature: int
    threshold: float
    """A float32: ``x < threshold`` goes left. 0 for a categorical feature."""
    left_codes: frozenset[int] | None
    """Category codes that go left; None for a numeric feature."""
    missing_left: bool
    unseen_left: bool
    """Whether a category that none of the silo's rows has goes left."""
    score: float
    """``sum(s**2) / w`` over both sides; differences are impurity decreases."""


class NodeSums(NamedTuple):
    """The rows of a node and their sums; a named tuple, which compiled code can take.

    ``total`` has shape (n_sums,), ``weight`` is the rows' weight.
    """

    rows: NDArray[np.int64]
    total: NDArray[np.float64]
    weight: float


class Groups(NamedTuple):
    """Buffers for the sums of a node's rows by rank of one feature, ranks rising.

    ``stat`` has weight and row count; as many entries as a feature has ranks, or a node rows.
    """

    code: NDArray[np.int64]
    sums: NDArray[np.float64]
    stat: NDArray[np.float64]


def groups_of(table: RankedTable, most_rows: int) -> Groups:
    """Return buffers for nodes of at most ``most_rows`` rows."""
    most = int(max(np.diff(table.starts).max(initial=0), most_rows)) + 1
    n_sums = table.sums.shape[1]
    return Groups(np.empty(most, dtype=np.int64), np.empty((most, n_sums)), np.empty((most, 2)))


def _gather_groups(table, feature, n_values, rows, groups):
    """Add up the rows by rank; return the number of ranks met, ascending in ``groups.code``.

    Rows with a missing value are left out: the caller finds them as the rest of the node.
    """
    codes = table.codes[feature]
    known = rows[codes[rows] >= 0]
    if n_values > 4 * rows.shape[0] + 16:  # the kernel sorts few rows of many values
        known = np.sort(known)
    found, group = np.unique(codes[known], return_inverse=True)
    n_groups = found.shape[0]
    groups.code[:n_groups], groups.sums[:n_groups], groups.stat[:n_groups] = found, 0.0, 0.0
    np.add.at(groups.sums, group, table.sums[known])
    np.add.at(groups.stat[:, 0], group, table.weight[known])
    np.add.at(groups.stat[:, 1], group, 1.0)
    return n_groups


@kernel("boosting/trees", "cut_feature")
def cut_feature(table, feature, node, min_leaf, groups, goes_left, out):
    """Find the best cut of one feature for the rows of one node.

    Writes score, threshold, rank and missing_left: ``rank`` is the greatest rank below the
    threshold, -1 with score -inf when no cut is admissible. For a categorical feature
    ``goes_left`` is filled by rank. Ties go to the lower cut, missing right first.
    """
    values = table.values[table.starts[feature] : table.starts[feature + 1]]
    is_categorical = table.categorical[feature]
    m, n_sums, n_values = node.rows.shape[0], table.sums.shape[1], values.shape[0]
    n_groups = _gather_groups(table, feature, n_values, node.rows, groups)
    out[:] = -np.inf, 0.0, -1, False
    if n_groups == 0:
        return
    code, sums, stat = (own[:n_groups] for own in groups)
    weight, n_rows = stat.T
    order = np.arange(n_groups)
    if is_categorical and table.by_target:
        column = 1 if n_sums == 2 else int(np.argmax(node.total)) if n_sums > 2 else 0
        order = np.argsort(sums[:, column] / np.maximum(weight, 1e-300), kind="stable")
    # One after another, as the kernel subtracts: what is left depends on the order.
    missing_sums = np.subtract.accumulate(np.vstack([node.total, sums]))[-1]
    missing_weight = np.subtract.accumulate(np.append(node.weight, weight))[-1]
    n_missing = m - n_rows.sum()
    if n_missing == 0.0:
        missing_sums, missing_weight = np.zeros(n_sums), 0.0
    left, left_weight, n_left = (np.cumsum(own[order], axis=0) for own in (sums, weight, n_rows))
    best, best_cut, best_missing_left = -np.inf, -1, False
    for j in range(n_groups):
        # The last cut sends every present value left: only missing ones can go right.
        for missing_left in range(2 if n_missing and j < n_groups - 1 else 1):
            count = n_left[j] + missing_left * n_missing
            w_left = left_weight[j] + missing_left * missing_weight
            w_right = node.weight - w_left
            if count < min_leaf or m - count < min_leaf or w_left <= 0.0 or w_right <= 0.0:
                continue
            a = left[j] + missing_left * missing_sums
            b = node.total - a
            score = np.cumsum(a * a)[-1] / w_left + np.cumsum(b * b)[-1] / w_right
            if score > best + 1e-10 * max(1e-290, abs(best)) or best_cut < 0:
                best, best_cut, best_missing_left = score, j, missing_left == 1
    if best_cut < 0:
        return
    if is_categorical:
        present = node.weight - missing_weight
        # A category not met in this node follows the heavier side.
        goes_left[:n_values] = left_weight[best_cut] > present - left_weight[best_cut]
        goes_left[code[order]] = np.arange(n_groups) <= best_cut
        out[:] = best, 0.0, n_values, best_missing_left
        return
    if best_cut == n_groups - 1:
        out[:] = best, _LARGEST, n_values - 1, best_missing_left
        return
    low, high = code[best_cut], code[best_cut + 1]
    threshold = np.float32(0.5 * (np.float64(values[low]) + np.float64(values[high])))
    if threshold <= values[low]:
        threshold = values[high]
    rank = low + np.searchsorted(values[low + 1 : high], threshold)
    out[:] = best, threshold, rank, best_missing_left


@kernel("boosting/trees", "is_pure")
def is_pure(table, node):
    """Return whether no split can help: one class only, or all labels the same."""
    if table.sums.shape[1] > 1:
        some = node.total[node.total > 0.0]
        return not some.shape[0] or some[0] >= node.weight * (1.0 - 1e-12)
    means = table.sums[node.rows, 0] / np.maximum(table.weight[node.rows], 1e-300)
    return bool((means == means[0]).all())


@kernel("boosting/trees", "divide_rows")
def partition(codes, rows, scratch, is_categorical, goes_left, rank, missing_left, out):
    """Write the left rows to the front of ``out``, the right ones behind; return the left count."""
    code = codes[rows]
    left = goes_left[code] if is_categorical else code <= rank
    left = np.where(code < 0, missing_left, left).astype(np.bool_)
    out[: rows.shape[0]] = np.concatenate([rows[left], rows[~left]])
    return int(left.sum())


def best_cut(
    table: RankedTable, rows: NDArray[np.int64], features: NDArray[np.int64], min_leaf: int
) -> tuple[Cut, NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the best cut of the rows by any of the features, and the rows of both sides.

    ``None`` when the rows are pure, too few, or constant in every feature. Of cuts that are
    equally good within 1e-10 of their score the lowest feature, then the lowest cut, wins.
    """
    columns, rows = table.columns, np.ascontiguousarray(rows)
    node = NodeSums(rows, table.sums[rows].sum(axis=0), float(table.weight[rows].sum()))
    if rows.shape[0] < 2 * min_leaf or is_pure(columns, node):
        return None
    groups = groups_of(table, rows.shape[0])
    best: tuple[Cut, int, NDArray[np.bool_]] | None = None
    out = np.empty(4)
    for feature in features.tolist():
        own = table.values_of(feature)
        is_categorical = bool(table.categorical[feature])
        goes_left = np.zeros(own.shape[0], dtype=np.bool_)
        cut_feature(columns, feature, node, min_leaf, groups, goes_left, out)
        score, threshold, missing_left = float(out[0]), float(out[1]), out[3] > 0
        rank = int(out[2])
        if rank < 0 or (best is not None and score <= best[0].score + 1e-10 * abs(best[0].score)):
            continue
        left_codes = frozenset(own[goes_left].astype(int).tolist()) if is_categorical else None
        codes = table.codes[feature][rows]
        side = goes_left[codes] if is_categorical else codes <= rank
        heavier_left = 2.0 * float(table.weight[rows[side & (codes >= 0)]].sum()) > float(
            table.weight[rows[codes >= 0]].sum()
        )
        cut = Cut(
            feature,
            0.0 if is_categorical else float(threshold),
            left_codes,
            bool(missing_left),
            heavier_left,
            float(score),
        )
        best = (cut, rank, goes_left)
    if best is None:
        return None
    cut, rank, goes_left = best
    parts = np.empty_like(rows)
    n_left = partition(
        table.codes[cut.feature], rows, np.empty_like(rows), cut.left_codes is not None,
        goes_left, rank, cut.missing_left, parts,
    )  # fmt: skip
    return cut, parts[:n_left], parts[n_left:]
