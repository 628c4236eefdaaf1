"""Gradients of rankings by pairs of a query's rows (LambdaMART), by XGBoost's own formulas.

Pairs are those of XGBoost's ``lambdarank_pair_method = "topk"``, its default: each of the first
rows of a query by score, with every row below it. ``"mean"`` draws pairs by a query's place among
the queries of all silos, which no silo knows.

A query's gradients are normalised to ``log2(1 + S)`` over ``S``, where ``S`` is twice the sum of
``|g|`` over its pairs. A row's pairs are some of them, so its ``|g|`` is at most half of that
logarithm; ``h`` of a pair is at most twice its ``|g|``. A pair's change of the metric is at most 1,
divided by 0.01 or more, so ``S`` is at most 200 times the number of pairs: :func:`bound`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.queries import MOST_RELEVANT, MOST_ROWS, query_starts
from hedgerow.crypto.native.kernels import Strided, kernel

NDCG, PAIRWISE, MAP = range(3)
KINDS = {"rank:ndcg": NDCG, "rank:pairwise": PAIRWISE, "rank:map": MAP}
_LEAST_DISTANCE = 0.01
_LEAST = 1e-16


def bound(top: int) -> tuple[float, float]:
    """Return the largest ``|g|`` and ``h`` of a row, for pairs of the first ``top`` rows.

    They are whole numbers above the bounds, which rounding to float32 does not reach. Only where
    scores of a pair are so far apart that its ``g`` rounds to 0 can its ``h`` be more than twice
    it, by 1e-16; what is beyond a bound is clipped there.
    """
    pairs = min(top, MOST_ROWS) * MOST_ROWS
    most = math.ceil(math.log2(1 + 2 * pairs / _LEAST_DISTANCE))
    return float(most // 2 + 1), float(most)


def labels_refused(kind: int, y: NDArray[Any]) -> str:
    """Return what is expected of labels, shape (n_samples, 2); empty where they are so."""
    relevance = y[:, 0]
    most = 1 if kind == MAP else MOST_RELEVANT
    if not np.all((relevance >= 0) & (relevance <= most) & (relevance == np.floor(relevance))):
        return f"expected whole numbers from 0 to {most}"
    if np.diff(query_starts(y[:, 1])).max(initial=0) > MOST_ROWS:
        return f"expected at most {MOST_ROWS} rows of a query"
    return ""


def write_gradients(
    kind: int,
    top: int,
    margins: NDArray[np.float32],
    y: NDArray[Any],
    g: NDArray[np.float32],
    h: NDArray[np.float32],
    *,
    by_distance: bool = True,
) -> None:
    """Write g and h of the rows of whole queries.

    Parameters
    ----------
    kind : int
        One of :data:`KINDS`.
    top : int
        Rows of a query, by score, that are compared with all rows below them.
    margins, g, h : ndarray of shape (n_samples,), float32
    y : ndarray of shape (n_samples, 2)
        Relevance, and a number of the query.
    by_distance : bool
        Whether what a pair changes is divided by how far its scores are apart.
    """
    labels, starts = y[:, 0].astype(np.float32), query_starts(y[:, 1])
    own = np.ascontiguousarray(margins)
    query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    ranked = np.lexsort((-own, query))  # rows of equal score or label keep their order
    best = labels[np.lexsort((-labels, query))]
    work = np.empty((3, int(np.diff(starts).max(initial=0))))
    given = (own, labels, starts, ranked, best, work, Strided(g), Strided(h))
    _lambdas(kind, top, int(by_distance), *given)


@kernel("boosting/tables", "lambdas")
def _lambdas(kind, top, by_distance, margins, y, starts, ranked, best, work, g, h):  # type: ignore[no-untyped-def]
    one, least = np.float32(1.0), np.float32(1e-16)
    discount = 1.0 / np.log2(np.arange(work.shape[1]) + 2.0)
    g[:], h[:] = 0.0, 0.0
    for first, stop in pairwise(starts):
        rows = ranked[first:stop]
        label, score, n = y[rows].astype(np.float64), margins[rows], len(rows)
        relevant = np.cumsum(label)
        precise = np.cumsum(label / (np.arange(n) + 1.0))
        i, j = np.triu_indices(min(n, top), 1, n)  # i is the better rank
        i, j = (own[label[i] != label[j]] for own in (i, j))
        better = label[i] > label[j]
        high, low = np.where(better, i, j), np.where(better, j, i)
        change = np.ones(len(i))
        if kind == NDCG:
            ideal = np.cumsum(discount[: min(n, top)] * _gain(best[first:stop][:top]))[-1]
            more, less = _gain(label[high]), _gain(label[low])
            now = more * discount[high] + less * discount[low]
            then = less * discount[high] + more * discount[low]
            change = np.abs((now - then) * (1.0 / ideal if ideal > 0.0 else 0.0))
        elif kind == MAP:
            between = precise[j - 1] - precise[i]
            up = relevant[j] / (j + 1.0) - (relevant[i] + 1.0) / (i + 1.0) - between
            down = relevant[i] / (i + 1.0) - relevant[j] / (j + 1.0) + between
            change = np.abs(np.where(better, down, up) / relevant[-1])
        apart = score[high] - score[low]
        if by_distance and score[0] != score[-1]:
            change /= np.abs(apart).astype(np.float64) + _LEAST_DISTANCE
        chance = one / (np.exp(np.minimum(-apart, np.float32(88.7))) + one + least)
        chance = chance.astype(np.float64)
        grad = ((chance - 1.0) * change).astype(np.float32)
        hess = (np.maximum(chance * (1.0 - chance), _LEAST) * change * 2.0).astype(np.float32)
        both = rows[np.stack([high, low], axis=1).ravel()]
        np.add.at(g, both, np.stack([grad, -grad], axis=1).ravel())
        np.add.at(h, both, np.repeat(hess, 2))
        total = np.cumsum(-2.0 * np.append(0.0, grad))[-1]
        if total > 0.0:
            scale = np.float32(math.log2(1.0 + total) / total)
            g[first:stop] *= scale
            h[first:stop] *= scale


def _gain(label: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.ldexp(1.0, label.astype(np.int64)) - 1.0
