"""Queries of a ranking: which rows are of one, and how well their order is by their scores.

Labels of a ranking are of shape (n_samples, 2): how relevant a row is, and the number of its query
within the silo, which rises from row to row. A query's name and number never leave the silo.

References
----------
XGBoost, https://xgboost.readthedocs.io/en/stable/tutorials/learning_to_rank.html, of whose metrics
these are the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob

Floats = NDArray[np.float64]

MOST_RELEVANT = 31
"""Largest label: its gain is 2 to its power, less one."""
MOST_ROWS = 1 << 16
"""Rows of a query at most, by which gradients are bounded."""


def query_starts(query: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each query begins, and after the last one the number of rows.

    Parameters
    ----------
    query : ndarray of shape (n_samples,)
        Numbers that differ where another query begins.
    """
    changes = np.flatnonzero(query[1:] != query[:-1]) + 1
    return np.concatenate([[0], changes, [len(query)]] if len(query) else [[0]]).astype(np.int64)


def rows_of_queries(y: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the rows of some queries as a mask.

    Parameters
    ----------
    y : ndarray of shape (n_samples, 2)
    chosen : ndarray of shape (n_queries,), bool
    """
    return np.asarray(np.repeat(chosen, np.diff(query_starts(y[:, 1]))))


@dataclass(frozen=True, slots=True)
class QueryScore:
    """A metric of queries: ``ndcg``, ``map`` or ``pre``, as XGBoost's names say it."""

    family: str
    top: float = math.inf
    """How many of the first ranks count."""
    empty: float = 1.0
    """Of a query without a relevant row: 0 where the name ends in ``-``."""

    @classmethod
    def of(cls, name: str) -> QueryScore:
        """Return what a name says, as ``ndcg@10`` or ``map-``; raises :class:`InvalidJob`."""
        family, at, number = name.removesuffix("-").partition("@")
        if at and not (number.isascii() and number.isdigit() and 0 < int(number) < 1 << 31):
            raise InvalidJob(f"metrics: '{name}': expected a whole number above 0 after the @")
        return cls(family, int(number) if at else math.inf, 0.0 if name.endswith("-") else 1.0)

    def values(self, margin: Floats, y: Floats) -> Floats:
        """Return the metric of each query, shape (n_queries,), float64.

        Parameters
        ----------
        margin : ndarray of shape (n_samples,), float64
            Of rows of equal margin the first one has the better rank.
        y : ndarray of shape (n_samples, 2), float64
        """
        relevance, starts = y[:, 0], query_starts(y[:, 1])
        sizes = np.diff(starts)
        number = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.arange(len(relevance)) - starts[number]
        ordered, counts = relevance[np.lexsort((-margin, number))], rank < self.top

        def total(values: Floats) -> Floats:
            return np.bincount(number, values, minlength=len(sizes)).astype(np.float64)

        def share(part: Floats, whole: Floats) -> Floats:
            out = np.full(len(sizes), self.empty)
            return np.asarray(np.divide(part, whole, out=out, where=whole > 0))

        if self.family == "ndcg":
            best = relevance[np.lexsort((-relevance, number))]
            gains = (counts * (np.exp2(one) - 1) / np.log2(rank + 2.0) for one in (ordered, best))
            return share(*map(total, gains))
        hits = (ordered > 0).astype(np.float64)
        if self.family == "pre":
            return total(hits * counts) / np.minimum(sizes, self.top)
        run = np.cumsum(hits)
        before = np.concatenate([[0.0], run])[starts[:-1]]  # hits of the queries before
        precise = total(hits * counts * (run - before[number]) / (rank + 1.0))
        return share(precise, np.minimum(total(hits), self.top))
