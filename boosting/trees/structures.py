"""Fitting tree structures to a silo's rows: thresholds, leaves and scores of a whole population.

A structure (:mod:`hedgerow.boosting.trees.genetics`) names the feature of each decision node.
Fitting it chooses at every node the best cut of *that* feature
(:mod:`hedgerow.boosting.trees.node_cuts`), as CART does with all features to choose from.

What happens at a node depends only on the features and turns above it, so structures with a common
path share its splits: the population is walked as one trie, depth first, and each distinct (rows,
feature) pair is split once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.genetics import Genes, depth_of
from hedgerow.boosting.trees.node_cuts import (
    Groups,
    NodeSums,
    cut_feature,
    groups_of,
    is_pure,
    partition,
)
from hedgerow.boosting.trees.ranked import RankedTable
from hedgerow.crypto.native.kernels import kernel


class _Search(NamedTuple):
    """A population and the buffers of its walk; a named tuple, which compiled code can take.

    ``rows``, ``scored``, ``who`` and ``where`` have a row for each level.
    """

    population: NDArray[np.int64]
    depth: int
    min_leaf: int
    same: bool
    rows: NDArray[np.int64]
    scored: NDArray[np.int64]
    who: NDArray[np.int64]
    where: NDArray[np.int64]
    groups: Groups
    scratch: NDArray[np.int64]


def _score_leaf(table, node, scored, result):
    """Add a leaf's part to a structure's tallies.

    Classification: ``result[c]`` true positives, ``result[n + c]`` predictions of class ``c``.
    Regression: ``result[0]`` squared error of the centred labels.
    """
    sums, weight = table.sums, table.weight
    n_sums = sums.shape[1]
    if n_sums > 1:
        label = np.argmax(node.total)
        for i in range(scored.shape[0]):
            row = scored[i]
            result[label] += sums[row, label]
            result[n_sums + label] += weight[row]
        return
    mean = node.total[0] / node.weight if node.weight > 0.0 else 0.0
    error = 0.0
    for i in range(scored.shape[0]):
        row = scored[i]
        w = weight[row]
        if w > 0.0:
            residual = sums[row, 0] / w - mean
            error += w * residual * residual
    result[0] += error


def _walk(table, search, level, here, n_pairs, tallies):
    """Fit one set of rows for every structure that reaches it, then go down.

    ``search.who[level, :n_pairs]`` are the structures that reach these rows, ``search.where`` the
    position of the node each has there. Buffers hold one level's rows at a time: the right side
    waits behind the left one while the levels below are overwritten.
    """
    low, high, score_low, score_high = here
    who, where = search.who, search.where
    rows = search.rows[level, low:high]
    scored = rows if search.same else search.scored[level, score_low:score_high]
    n_sums = table.sums.shape[1]
    total = np.zeros(n_sums)
    total_weight = 0.0
    for i in range(rows.shape[0]):
        total_weight += table.weight[rows[i]]
        for s in range(n_sums):
            total[s] += table.sums[rows[i], s]
    node = NodeSums(rows, total, total_weight)
    part = np.zeros(tallies.shape[1])
    _score_leaf(table, node, scored, part)
    if level == search.depth or rows.shape[0] < 2 * search.min_leaf or is_pure(table, node):
        for k in range(n_pairs):
            tallies[who[level, k]] += part
        return
    genes = np.empty(n_pairs, dtype=np.int64)
    for k in range(n_pairs):
        genes[k] = search.population[who[level, k], where[level, k]]
    order = np.argsort(genes, kind="mergesort")
    right_step = 1 << (search.depth - level - 1)
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
            if table.categorical[feature]:
                n_values = table.starts[feature + 1] - table.starts[feature]
                goes_left = np.empty(n_values, dtype=np.bool_)
            cut = np.empty(4)
            cut_feature(table, feature, node, search.min_leaf, search.groups, goes_left, cut)
            rank, missing_left = int(cut[2]), cut[3] > 0
        if rank < 0:
            for k in range(first, last):
                tallies[who[level, order[k]]] += part
            first = last
            continue
        n_left = partition(
            table.codes[feature], rows, search.scratch, table.categorical[feature], goes_left,
            rank, missing_left, search.rows[level + 1, low:high],
        )  # fmt: skip
        score_left = 0
        if not search.same:
            score_left = partition(
                table.codes[feature], scored, search.scratch, table.categorical[feature],
                goes_left, rank, missing_left, search.scored[level + 1, score_low:score_high],
            )  # fmt: skip
        for side in range(2):
            step = 1 if side == 0 else right_step
            for k in range(first, last):
                who[level + 1, k - first] = who[level, order[k]]
                where[level + 1, k - first] = where[level, order[k]] + step
            if side == 0:
                below = (low, low + n_left, score_low, score_low + score_left)
            else:
                below = (low + n_left, high, score_low + score_left, score_high)
            _walk(table, search, level + 1, below, last - first, tallies)
        first = last


@kernel("boosting/trees", "walk_structures")
def _tally(table, search, tallies):
    here = (0, search.rows.shape[1], 0, search.scored.shape[1])
    _walk(table, search, 0, here, search.population.shape[0], tallies)


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
    scored = np.empty(0, dtype=np.int64) if score_rows is None else score_rows
    search = _Search(
        population=population.astype(np.int64),
        depth=depth,
        min_leaf=min_leaf,
        same=score_rows is None,
        rows=np.empty((depth + 1, n_fit), dtype=np.int64),
        scored=np.empty((depth + 1, scored.shape[0]), dtype=np.int64),
        who=np.empty((depth + 1, n_structures), dtype=np.int64),
        where=np.zeros((depth + 1, n_structures), dtype=np.int64),
        groups=groups_of(table, n_fit),
        scratch=np.empty(max(n_fit, scored.shape[0]), dtype=np.int64),
    )
    search.rows[0], search.scored[0], search.who[0] = fit_rows, scored, np.arange(n_structures)
    n_sums = table.sums.shape[1]
    tallies = np.zeros((n_structures, 2 * n_sums if n_sums > 1 else 1))
    _tally(table.columns, search, tallies)
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


CLASS_SCORES = ("f1", "accuracy")
"""What a search of trees for classes may be for."""


def class_score(
    metric: str,
    hits: NDArray[np.float64],
    predicted: NDArray[np.float64],
    actual: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return one of :data:`CLASS_SCORES` from the tallies of :func:`f1_of`."""
    if metric == "f1":
        return f1_of(hits, predicted, actual)
    total = float(actual.sum())
    right: NDArray[np.float64] = hits.sum(axis=-1)
    return right / total if total > 0.0 else right


def fitness_of(
    table: RankedTable,
    population: Genes,
    fit_rows: NDArray[np.int64],
    score_rows: NDArray[np.int64] | None,
    min_leaf: int,
    metric: str = "f1",
) -> NDArray[np.float64]:
    """Return each structure's score: one of :data:`CLASS_SCORES`, or the mean squared error.

    Parameters and rows are those of :func:`tally_structures`.

    Returns
    -------
    ndarray of shape (n_structures,), float64
        In [0, 1], greater is better; mean squared error in squared label units, less is better.
    """
    tallies = tally_structures(table, population, fit_rows, score_rows, min_leaf)
    scored = fit_rows if score_rows is None else score_rows
    if table.is_regression:
        total = float(table.weight[scored].sum())
        error: NDArray[np.float64] = tallies[:, 0] / total if total > 0 else tallies[:, 0]
        return error
    n_classes = table.sums.shape[1]
    hits, predicted = tallies[:, :n_classes], tallies[:, n_classes:]
    return class_score(metric, hits, predicted, table.sums[scored].sum(axis=0))
