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
    codes, sums, weight = table.codes[feature], table.sums, table.weight
    m, n_sums = rows.shape[0], sums.shape[1]
    if n_values <= 4 * m + 16:
        groups.sums[:n_values] = 0.0
        groups.stat[:n_values] = 0.0
        for i in range(m):
            row = rows[i]
            code = codes[row]
            if code >= 0:
                for s in range(n_sums):
                    groups.sums[code, s] += sums[row, s]
                groups.stat[code, 0] += weight[row]
                groups.stat[code, 1] += 1.0
        n_groups = 0
        for code in range(n_values):
            if groups.stat[code, 1] > 0.0:
                if code != n_groups:
                    groups.sums[n_groups] = groups.sums[code]
                    groups.stat[n_groups] = groups.stat[code]
                groups.code[n_groups] = code
                n_groups += 1
        return n_groups
    # Few rows of many values: sort them, the row in the low half of the key.
    packed = np.empty(m, dtype=np.int64)
    n_present = 0
    for i in range(m):
        code = codes[rows[i]]
        if code >= 0:
            packed[n_present] = (np.int64(code) << 32) | np.int64(rows[i])
            n_present += 1
    packed = np.sort(packed[:n_present])
    n_groups = 0
    for i in range(n_present):
        code = np.int64(packed[i] >> 32)
        row = np.int64(packed[i] & 0xFFFFFFFF)
        if n_groups == 0 or groups.code[n_groups - 1] != code:
            groups.code[n_groups] = code
            groups.sums[n_groups] = 0.0
            groups.stat[n_groups] = 0.0
            n_groups += 1
        for s in range(n_sums):
            groups.sums[n_groups - 1, s] += sums[row, s]
        groups.stat[n_groups - 1, 0] += weight[row]
        groups.stat[n_groups - 1, 1] += 1.0
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
    best, best_cut, best_missing_left = -np.inf, -1, False
    threshold = np.float32(0.0)
    out[:] = -np.inf, threshold, -1, False
    if n_groups == 0:
        return
    order = np.arange(n_groups)
    if is_categorical and table.by_target:
        column = 1 if n_sums == 2 else int(np.argmax(node.total)) if n_sums > 2 else 0
        means = np.empty(n_groups)
        for k in range(n_groups):
            means[k] = groups.sums[k, column] / max(groups.stat[k, 0], 1e-300)
        order = np.argsort(means, kind="mergesort")
    missing_sums = node.total.copy()
    missing_weight = node.weight
    n_missing = np.float64(m)
    for k in range(n_groups):
        for s in range(n_sums):
            missing_sums[s] -= groups.sums[k, s]
        missing_weight -= groups.stat[k, 0]
        n_missing -= groups.stat[k, 1]
    if n_missing == 0.0:
        missing_sums[:] = 0.0
        missing_weight = 0.0
    left = np.zeros(n_sums)
    left_weight, n_left = 0.0, 0.0
    for j in range(n_groups):
        k = order[j]
        for s in range(n_sums):
            left[s] += groups.sums[k, s]
        left_weight += groups.stat[k, 0]
        n_left += groups.stat[k, 1]
        for missing_left in range(2):
            # The last cut sends every present value left: only missing ones can go right.
            if missing_left == 1 and (n_missing == 0.0 or j == n_groups - 1):
                break
            count = n_left + missing_left * n_missing
            w_left = left_weight + missing_left * missing_weight
            w_right = node.weight - w_left
            if count < min_leaf or m - count < min_leaf or w_left <= 0.0 or w_right <= 0.0:
                continue
            square_left, square_right = 0.0, 0.0
            for s in range(n_sums):
                a = left[s] + missing_left * missing_sums[s]
                b = node.total[s] - a
                square_left += a * a
                square_right += b * b
            score = square_left / w_left + square_right / w_right
            if score > best + 1e-10 * max(1e-290, abs(best)) or best_cut < 0:
                best, best_cut, best_missing_left = score, j, missing_left == 1
    if best_cut < 0:
        return
    if is_categorical:
        chosen_left = 0.0
        for j in range(best_cut + 1):
            chosen_left += groups.stat[order[j], 0]
        present = node.weight - missing_weight
        # A category not met in this node follows the heavier side.
        goes_left[:n_values] = chosen_left > present - chosen_left
        for j in range(n_groups):
            goes_left[groups.code[order[j]]] = j <= best_cut
        out[:] = best, threshold, n_values, best_missing_left
        return
    if best_cut == n_groups - 1:
        out[:] = best, _LARGEST, n_values - 1, best_missing_left
        return
    low = groups.code[best_cut]
    high = groups.code[best_cut + 1]
    middle = 0.5 * (np.float64(values[low]) + np.float64(values[high]))
    threshold = np.float32(middle)
    if threshold <= values[low]:
        threshold = values[high]
    rank = low
    while rank + 1 < high and values[rank + 1] < threshold:
        rank += 1
    out[:] = best, threshold, rank, best_missing_left


@kernel("boosting/trees", "is_pure")
def is_pure(table, node):
    """Return whether no split can help: one class only, or all labels the same."""
    rows, sums, weight = node.rows, table.sums, table.weight
    n_sums = sums.shape[1]
    if n_sums > 1:
        for s in range(n_sums):
            if node.total[s] > 0.0:
                return node.total[s] >= node.weight * (1.0 - 1e-12)
        return True
    first = sums[rows[0], 0] / max(weight[rows[0]], 1e-300)
    for i in range(1, rows.shape[0]):
        if sums[rows[i], 0] / max(weight[rows[i]], 1e-300) != first:
            return False
    return True


@kernel("boosting/trees", "divide_rows")
def partition(codes, rows, scratch, is_categorical, goes_left, rank, missing_left, out):
    """Write the left rows to the front of ``out``, the right ones behind; return the left count."""
    n_left, n_right = 0, 0
    for i in range(rows.shape[0]):
        row = rows[i]
        code = codes[row]
        if code < 0:
            left = missing_left
        elif is_categorical:
            left = goes_left[code]
        else:
            left = code <= rank
        if left:
            out[n_left] = row
            n_left += 1
        else:
            scratch[n_right] = row
            n_right += 1
    out[n_left : n_left + n_right] = scratch[:n_right]
    return n_left


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
