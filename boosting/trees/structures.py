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


def _summed(values):
    """Return the sum, added one after another as the kernel does."""
    return np.cumsum(values, axis=0)[-1] if values.shape[0] else 0.0


def _score_leaf(table, node, scored, part):
    """Write a leaf's part of a structure's tallies.

    Classification: ``part[c]`` true positives, ``part[n + c]`` predictions of class ``c``.
    Regression: ``part[0]`` squared error of the centred labels.
    """
    sums, weight = table.sums, table.weight[scored]
    n_sums = sums.shape[1]
    if n_sums > 1:
        label = np.argmax(node.total)
        part[label], part[n_sums + label] = _summed(sums[scored, label]), _summed(weight)
        return
    mean = node.total[0] / node.weight if node.weight > 0.0 else 0.0
    own, w = scored[weight > 0.0], weight[weight > 0.0]
    residual = sums[own, 0] / w - mean
    part[0] = _summed(w * residual * residual)


def _walk(table, search, level, rows, scored, who, where, tallies):
    """Fit one set of rows for every structure that reaches it, then go down.

    ``who`` are the structures that reach these rows, ``where`` the position of the node each has
    there.
    """
    node = NodeSums(rows, _summed(table.sums[rows]), _summed(table.weight[rows]))
    part = np.zeros(tallies.shape[1])
    _score_leaf(table, node, scored, part)
    if level == search.depth or rows.shape[0] < 2 * search.min_leaf or is_pure(table, node):
        tallies[who] += part
        return
    genes = search.population[who, where]
    for feature in np.unique(genes).tolist():
        own, rank = genes == feature, -1
        if feature >= 0:
            n_values = table.starts[feature + 1] - table.starts[feature]
            goes_left, cut = np.empty(n_values, dtype=np.bool_), np.empty(4)
            cut_feature(table, feature, node, search.min_leaf, search.groups, goes_left, cut)
            rank = int(cut[2])
        if rank < 0:
            tallies[who[own]] += part
            continue
        sides = []
        for some in (rows, scored):
            parts, room = np.empty_like(some), np.empty_like(some)
            n_left = partition(
                table.codes[feature], some, room, table.categorical[feature], goes_left, rank,
                cut[3] > 0, parts,
            )  # fmt: skip
            sides.append((parts[:n_left], parts[n_left:]))
        for side, step in enumerate((1, 1 << (search.depth - level - 1))):
            fit, score = (parts[side] for parts in sides)
            _walk(table, search, level + 1, fit, score, who[own], where[own] + step, tallies)


@kernel("boosting/trees", "walk_structures")
def _tally(table, search, tallies):
    rows = search.rows[0]
    scored, who = rows if search.same else search.scored[0], np.arange(search.population.shape[0])
    _walk(table, search, 0, rows, scored, who, np.zeros_like(who), tallies)


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
