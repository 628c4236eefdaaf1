"""Fitting tree structures to a silo's rows: thresholds, leaves and scores of a whole population.

A structure (see :mod:`boosting.trees.genetics`) says which feature each decision node asks. Fitting
it chooses at every node the cut of *that* feature with the least weighted Gini impurity
(classification) or squared error (regression), as CART does with all features to choose from.
What happens at a node depends only on the features and turns above it, so structures with a
common path share its splits: the population is walked as one trie, depth first, and each
distinct (rows, feature) pair is split once.

Both criteria are one: with ``s`` the sums of a side (weights by class, or of the centred label)
and ``w`` its weight, the best cut has the greatest ``sum(s**2) / w`` over both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.trees.genetics import Genes, depth_of

CATEGORICAL_ORDERS = ("ordinal", "target")
"""How the values of a categorical feature are put in a row before it is cut."""

_LARGEST = np.float32(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class RankedTable:
    """A silo's rows with each value replaced by its rank among the feature's distinct values.

    Parameters
    ----------
    dataset : Dataset
    codes : ndarray of shape (n_features, n_samples), int32
        Rank of the value from 0, -1 where it is missing.
    values : ndarray of shape (sum of distinct values,), float32
        Distinct values, ascending, feature after feature.
    starts : ndarray of shape (n_features + 1,), int64
        Where each feature's values begin in ``values``.
    categorical : ndarray of shape (n_features,), bool
    sums : ndarray of shape (n_samples, n_sums), float64
        What a split adds up: the row's weight in the column of its class, or weight times the
        centred label in the only column.
    weight : ndarray of shape (n_samples,), float64
    center : float
        The weighted mean of the labels of a regression, 0 for classification.
    by_target : bool
        Whether categories are ordered by their label statistics in the node instead of by code.
    """

    dataset: Dataset
    codes: NDArray[np.int32]
    values: NDArray[np.float32]
    starts: NDArray[np.int64]
    categorical: NDArray[np.bool_]
    sums: NDArray[np.float64]
    weight: NDArray[np.float64]
    center: float
    by_target: bool

    @property
    def is_regression(self) -> bool:
        """Whether leaves are means instead of classes."""
        return self.dataset.schema.task is Task.REGRESSION

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.dataset.n_samples

    @property
    def all_rows(self) -> NDArray[np.int64]:
        """Positions of all rows."""
        return np.arange(self.n_samples, dtype=np.int64)


def rank_table(dataset: Dataset, categorical_order: str = "target") -> RankedTable:
    """Return the table with its values ranked, once for all structures.

    Parameters
    ----------
    categorical_order : {"ordinal", "target"}
        ``"target"`` orders the categories within a node by the share of class 1 (binary), of the
        node's most frequent class (multiclass) or by the mean label (regression); the best cut of
        that order is the best of all two-way partitions for binary labels and means (Breiman et
        al., theorem 4.5). ``"ordinal"`` cuts the global category list as it stands.
    """
    if categorical_order not in CATEGORICAL_ORDERS:
        raise ValueError(f"categorical_order is one of {CATEGORICAL_ORDERS}")
    schema, n_samples = dataset.schema, dataset.n_samples
    codes = np.empty((schema.n_features, n_samples), dtype=np.int32)
    distinct: list[NDArray[np.float32]] = []
    for feature in range(schema.n_features):
        column = dataset.X[:, feature]
        present = ~np.isnan(column)
        found, rank = np.unique(column[present], return_inverse=True)
        codes[feature] = -1
        codes[feature, present] = rank.reshape(-1)
        distinct.append(found.astype(np.float32))
    weight = np.ones(n_samples) if dataset.weight is None else dataset.weight
    labels, center = dataset.labels, 0.0
    if schema.task is Task.REGRESSION:
        total = float(weight.sum())
        center = float(weight @ labels) / total if total > 0 else 0.0
        sums = (weight * (labels - center))[:, np.newaxis]
    else:
        sums = np.zeros((n_samples, max(2, schema.n_classes)))
        sums[np.arange(n_samples), labels.astype(np.int64)] = weight
    return RankedTable(
        dataset,
        codes,
        np.concatenate(distinct) if distinct else np.empty(0, dtype=np.float32),
        np.cumsum([0, *(len(found) for found in distinct)], dtype=np.int64),
        np.array([feature.is_categorical for feature in schema.features], dtype=np.bool_),
        np.ascontiguousarray(sums),
        np.ascontiguousarray(weight, dtype=np.float64),
        center,
        categorical_order == "target",
    )


@njit(cache=True, nogil=True)
def _gather_groups(codes, n_values, rows, sums, weight, group_code, group_sums, group_stat):  # type: ignore[no-untyped-def]
    """Add up the rows by rank; return the number of ranks met, ascending in ``group_code``.

    ``group_stat`` gets weight and row count. Slot ``n_values`` of the result is not used: the
    missing rows are left out and found by the caller as the rest of the node.
    """
    m, n_sums = rows.shape[0], sums.shape[1]
    if n_values <= 4 * m + 16:
        group_sums[:n_values] = 0.0
        group_stat[:n_values] = 0.0
        for i in range(m):
            row = rows[i]
            code = codes[row]
            if code >= 0:
                for s in range(n_sums):
                    group_sums[code, s] += sums[row, s]
                group_stat[code, 0] += weight[row]
                group_stat[code, 1] += 1.0
        n_groups = 0
        for code in range(n_values):
            if group_stat[code, 1] > 0.0:
                if code != n_groups:
                    group_sums[n_groups] = group_sums[code]
                    group_stat[n_groups] = group_stat[code]
                group_code[n_groups] = code
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
        if n_groups == 0 or group_code[n_groups - 1] != code:
            group_code[n_groups] = code
            group_sums[n_groups] = 0.0
            group_stat[n_groups] = 0.0
            n_groups += 1
        for s in range(n_sums):
            group_sums[n_groups - 1, s] += sums[row, s]
        group_stat[n_groups - 1, 0] += weight[row]
        group_stat[n_groups - 1, 1] += 1.0
    return n_groups


@njit(cache=True, nogil=True)
def _best_cut(  # type: ignore[no-untyped-def]
    codes, values, is_categorical, by_target, rows, sums, weight, node_sums, node_weight,
    min_leaf, group_code, group_sums, group_stat, goes_left,
):  # fmt: skip
    """Find the best cut of one feature for the rows of one node.

    Returns (score, threshold, rank, missing_left): ``rank`` is the greatest rank below the
    threshold, -1 with score -inf when no cut is admissible. For a categorical feature
    ``goes_left`` is filled by rank. Ties go to the lower cut, missing right first.
    """
    m, n_sums, n_values = rows.shape[0], sums.shape[1], values.shape[0]
    n_groups = _gather_groups(
        codes, n_values, rows, sums, weight, group_code, group_sums, group_stat
    )
    best, best_cut, best_missing_left = -np.inf, -1, False
    threshold = np.float32(0.0)
    if n_groups == 0:
        return best, threshold, -1, False
    order = np.arange(n_groups)
    if is_categorical and by_target:
        column = 1 if n_sums == 2 else int(np.argmax(node_sums)) if n_sums > 2 else 0
        means = np.empty(n_groups)
        for k in range(n_groups):
            means[k] = group_sums[k, column] / max(group_stat[k, 0], 1e-300)
        order = np.argsort(means, kind="mergesort")
    missing_sums = node_sums.copy()
    missing_weight = node_weight
    n_missing = np.float64(m)
    for k in range(n_groups):
        for s in range(n_sums):
            missing_sums[s] -= group_sums[k, s]
        missing_weight -= group_stat[k, 0]
        n_missing -= group_stat[k, 1]
    if n_missing == 0.0:
        missing_sums[:] = 0.0
        missing_weight = 0.0
    left = np.zeros(n_sums)
    left_weight, n_left = 0.0, 0.0
    for j in range(n_groups):
        k = order[j]
        for s in range(n_sums):
            left[s] += group_sums[k, s]
        left_weight += group_stat[k, 0]
        n_left += group_stat[k, 1]
        for missing_left in range(2):
            # The last cut sends every present value left: only missing ones can go right.
            if missing_left == 1 and (n_missing == 0.0 or j == n_groups - 1):
                break
            count = n_left + missing_left * n_missing
            w_left = left_weight + missing_left * missing_weight
            w_right = node_weight - w_left
            if count < min_leaf or m - count < min_leaf or w_left <= 0.0 or w_right <= 0.0:
                continue
            square_left, square_right = 0.0, 0.0
            for s in range(n_sums):
                a = left[s] + missing_left * missing_sums[s]
                b = node_sums[s] - a
                square_left += a * a
                square_right += b * b
            score = square_left / w_left + square_right / w_right
            if score > best + 1e-10 * max(1e-290, abs(best)) or best_cut < 0:
                best, best_cut, best_missing_left = score, j, missing_left == 1
    if best_cut < 0:
        return -np.inf, threshold, -1, False
    if is_categorical:
        chosen_left = 0.0
        for j in range(best_cut + 1):
            chosen_left += group_stat[order[j], 0]
        present = node_weight - missing_weight
        # A category not met in this node follows the heavier side.
        goes_left[:n_values] = chosen_left > present - chosen_left
        for j in range(n_groups):
            goes_left[group_code[order[j]]] = j <= best_cut
        return best, threshold, n_values, best_missing_left
    if best_cut == n_groups - 1:
        return best, np.float32(_LARGEST), n_values - 1, best_missing_left
    low = group_code[best_cut]
    high = group_code[best_cut + 1]
    middle = 0.5 * (np.float64(values[low]) + np.float64(values[high]))
    threshold = np.float32(middle)
    if threshold <= values[low]:
        threshold = values[high]
    rank = low
    while rank + 1 < high and values[rank + 1] < threshold:
        rank += 1
    return best, threshold, rank, best_missing_left


@njit(cache=True, nogil=True)
def _is_pure(rows, sums, weight, total, total_weight):  # type: ignore[no-untyped-def]
    """Tell whether no split can help: one class only, or all labels the same."""
    n_sums = sums.shape[1]
    if n_sums > 1:
        for s in range(n_sums):
            if total[s] > 0.0:
                return total[s] >= total_weight * (1.0 - 1e-12)
        return True
    first = sums[rows[0], 0] / max(weight[rows[0]], 1e-300)
    for i in range(1, rows.shape[0]):
        if sums[rows[i], 0] / max(weight[rows[i]], 1e-300) != first:
            return False
    return True


@njit(cache=True, nogil=True)
def _score_leaf(rows, sums, weight, total, total_weight, scored, score_sums, square, result):  # type: ignore[no-untyped-def]
    """Add a leaf's part to a structure's tallies.

    Classification: ``result[c]`` true positives, ``result[n + c]`` predictions of class ``c``.
    Regression: ``result[0]`` squared error of the centred labels.
    """
    n_sums = sums.shape[1]
    if n_sums > 1:
        label = np.argmax(total)
        for i in range(scored.shape[0]):
            row = scored[i]
            result[label] += score_sums[row, label]
            result[n_sums + label] += square[row]
        return
    mean = total[0] / total_weight if total_weight > 0.0 else 0.0
    error = 0.0
    for i in range(scored.shape[0]):
        row = scored[i]
        w = weight[row]
        if w > 0.0:
            residual = sums[row, 0] / w - mean
            error += w * residual * residual
    result[0] += error


@njit(cache=True, nogil=True)
def _partition(codes, rows, scratch, is_categorical, goes_left, rank, missing_left, out):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True)
def _walk(  # type: ignore[no-untyped-def]
    level, depth, low, high, score_low, score_high, n_pairs, population, codes, values, starts,
    categorical, by_target, sums, weight, min_leaf, row_buffer, score_buffer, who, where,
    group_code, group_sums, group_stat, scratch, same, tallies,
):  # fmt: skip
    """Fit one set of rows for every structure that reaches it, then go down.

    ``who[level, :n_pairs]`` are the structures that reach these rows, ``where`` the position of
    the node each has there. Buffers hold one level's rows at a time: the right side waits behind
    the left one while the levels below are overwritten.
    """
    rows = row_buffer[level, low:high]
    scored = rows if same else score_buffer[level, score_low:score_high]
    n_sums = sums.shape[1]
    total = np.zeros(n_sums)
    total_weight = 0.0
    for i in range(rows.shape[0]):
        total_weight += weight[rows[i]]
        for s in range(n_sums):
            total[s] += sums[rows[i], s]
    part = np.zeros(tallies.shape[1])
    _score_leaf(rows, sums, weight, total, total_weight, scored, sums, weight, part)
    if (
        level == depth
        or rows.shape[0] < 2 * min_leaf
        or _is_pure(rows, sums, weight, total, total_weight)
    ):
        for k in range(n_pairs):
            tallies[who[level, k]] += part
        return
    genes = np.empty(n_pairs, dtype=np.int64)
    for k in range(n_pairs):
        genes[k] = population[who[level, k], where[level, k]]
    order = np.argsort(genes, kind="mergesort")
    right_step = 1 << (depth - level - 1)
    first = 0
    while first < n_pairs:
        feature = genes[order[first]]
        last = first
        while last < n_pairs and genes[order[last]] == feature:
            last += 1
        rank = -1
        missing_left = False
        goes_left = np.empty(0, dtype=np.bool_)
        if feature >= 0:
            own = values[starts[feature] : starts[feature + 1]]
            if categorical[feature]:
                goes_left = np.empty(own.shape[0], dtype=np.bool_)
            _, _, rank, missing_left = _best_cut(
                codes[feature], own, categorical[feature], by_target, rows, sums, weight, total,
                total_weight, min_leaf, group_code, group_sums, group_stat, goes_left,
            )  # fmt: skip
        if rank < 0:
            for k in range(first, last):
                tallies[who[level, order[k]]] += part
            first = last
            continue
        n_left = _partition(
            codes[feature], rows, scratch, categorical[feature], goes_left, rank, missing_left,
            row_buffer[level + 1, low:high],
        )  # fmt: skip
        score_left = 0
        if not same:
            score_left = _partition(
                codes[feature], scored, scratch, categorical[feature], goes_left, rank,
                missing_left, score_buffer[level + 1, score_low:score_high],
            )  # fmt: skip
        for side in range(2):
            step = 1 if side == 0 else right_step
            for k in range(first, last):
                who[level + 1, k - first] = who[level, order[k]]
                where[level + 1, k - first] = where[level, order[k]] + step
            begin = low if side == 0 else low + n_left
            end = low + n_left if side == 0 else high
            score_begin = score_low if side == 0 else score_low + score_left
            score_end = score_low + score_left if side == 0 else score_high
            _walk(
                level + 1, depth, begin, end, score_begin, score_end, last - first, population,
                codes, values, starts, categorical, by_target, sums, weight, min_leaf, row_buffer,
                score_buffer, who, where, group_code, group_sums, group_stat, scratch, same,
                tallies,
            )  # fmt: skip
        first = last


def tally_structures(
    table: RankedTable,
    population: Genes,
    fit_rows: NDArray[np.int64],
    score_rows: NDArray[np.int64] | None,
    min_leaf: int,
) -> NDArray[np.float64]:
    """Fit every structure on some rows and add up its hits and errors on others.

    Parameters
    ----------
    population : ndarray of shape (n_structures, n_genes), int16
    fit_rows : ndarray of row positions
        At least one.
    score_rows : ndarray of row positions, or None
        None scores the rows that were fitted.
    min_leaf : int
        Least rows on either side of a split.

    Returns
    -------
    ndarray of shape (n_structures, 2 * n_classes) or (n_structures, 1), float64
        Classification: weight of true positives by class, then of predictions by class.
        Regression: weighted sum of squared errors.
    """
    depth = depth_of(population.shape[1])
    n_structures, n_fit = population.shape[0], fit_rows.shape[0]
    same = score_rows is None
    scored = np.empty(0, dtype=np.int64) if score_rows is None else score_rows
    rows = np.empty((depth + 1, n_fit), dtype=np.int64)
    rows[0] = fit_rows
    score_buffer = np.empty((depth + 1, scored.shape[0]), dtype=np.int64)
    score_buffer[0] = scored
    who = np.empty((depth + 1, n_structures), dtype=np.int64)
    where = np.zeros((depth + 1, n_structures), dtype=np.int64)
    who[0] = np.arange(n_structures)
    n_sums = table.sums.shape[1]
    most = int(max(np.diff(table.starts).max(initial=0), n_fit)) + 1
    tallies = np.zeros((n_structures, 2 * n_sums if n_sums > 1 else 1))
    _walk(
        0, depth, 0, n_fit, 0, scored.shape[0], n_structures, population.astype(np.int64),
        table.codes, table.values, table.starts, table.categorical, table.by_target, table.sums,
        table.weight, min_leaf, rows, score_buffer, who, where, np.empty(most, dtype=np.int64),
        np.empty((most, n_sums)), np.empty((most, 2)),
        np.empty(max(n_fit, scored.shape[0]), dtype=np.int64), same, tallies,
    )  # fmt: skip
    return tallies


def f1_of(
    hits: NDArray[np.float64], predicted: NDArray[np.float64], actual: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return F1 from tallies: of class 1 for two classes, else the mean over classes that occur.

    Parameters
    ----------
    hits, predicted : ndarray of shape (..., n_classes), float64
        Weight of true positives and of predictions.
    actual : ndarray of shape (n_classes,), float64
        Weight of each class among the scored rows.

    Returns
    -------
    ndarray of shape (...), float64, in [0, 1]
        0 where a class has neither rows nor predictions.
    """
    both = predicted + actual
    f1 = np.divide(2.0 * hits, both, out=np.zeros_like(hits), where=both > 0.0)
    if actual.shape[0] == 2:
        of_one: NDArray[np.float64] = f1[..., 1]
        return of_one
    occurs = actual > 0.0
    mean: NDArray[np.float64] = f1[..., occurs].mean(axis=-1) if occurs.any() else f1[..., 0]
    return mean


def fitness_of(
    table: RankedTable,
    population: Genes,
    fit_rows: NDArray[np.int64],
    score_rows: NDArray[np.int64] | None,
    min_leaf: int,
) -> NDArray[np.float64]:
    """Return each structure's score: F1, or the mean squared error.

    Parameters and rows are those of :func:`tally_structures`.

    Returns
    -------
    ndarray of shape (n_structures,), float64
        F1 in [0, 1], greater is better; mean squared error in squared label units, less is better.
    """
    tallies = tally_structures(table, population, fit_rows, score_rows, min_leaf)
    scored = fit_rows if score_rows is None else score_rows
    if table.is_regression:
        total = float(table.weight[scored].sum())
        error: NDArray[np.float64] = tallies[:, 0] / total if total > 0 else tallies[:, 0]
        return error
    n_classes = table.sums.shape[1]
    return f1_of(tallies[:, :n_classes], tallies[:, n_classes:], table.sums[scored].sum(axis=0))


@dataclass(frozen=True, slots=True)
class Cut:
    """A split of one node.

    Parameters
    ----------
    feature : int
    threshold : float
        A float32: ``x < threshold`` goes left. 0 for a categorical feature.
    left_codes : frozenset of int or None
        Category codes that go left; None for a numeric feature.
    missing_left : bool
    unseen_left : bool
        Where a category goes that the silo's rows do not have at all.
    score : float
        ``sum(s**2) / w`` over both sides; differences are impurity decreases.
    """

    feature: int
    threshold: float
    left_codes: frozenset[int] | None
    missing_left: bool
    unseen_left: bool
    score: float


def best_cut(
    table: RankedTable, rows: NDArray[np.int64], features: NDArray[np.int64], min_leaf: int
) -> tuple[Cut, NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the best cut of the rows by any of the features, and the rows of both sides.

    ``None`` when the rows are pure, too few, or constant in every feature. Of cuts that are
    equally good within 1e-10 of their score the lowest feature, then the lowest cut, wins.
    """
    total = table.sums[rows].sum(axis=0)
    total_weight = float(table.weight[rows].sum())
    if rows.shape[0] < 2 * min_leaf or _is_pure(
        rows, table.sums, table.weight, total, total_weight
    ):
        return None
    n_sums = table.sums.shape[1]
    most = int(max(np.diff(table.starts).max(initial=0), rows.shape[0])) + 1
    group = (np.empty(most, dtype=np.int64), np.empty((most, n_sums)), np.empty((most, 2)))
    best: tuple[Cut, int, NDArray[np.bool_]] | None = None
    for feature in features.tolist():
        own = table.values[table.starts[feature] : table.starts[feature + 1]]
        is_categorical = bool(table.categorical[feature])
        goes_left = np.zeros(own.shape[0], dtype=np.bool_)
        score, threshold, rank, missing_left = _best_cut(
            table.codes[feature], own, is_categorical, table.by_target, rows, table.sums,
            table.weight, total, total_weight, min_leaf, *group, goes_left,
        )  # fmt: skip
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
    n_left = _partition(
        table.codes[cut.feature], rows, np.empty_like(rows), cut.left_codes is not None,
        goes_left, rank, cut.missing_left, parts,
    )  # fmt: skip
    return cut, parts[:n_left], parts[n_left:]
