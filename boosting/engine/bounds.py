"""Bounds of gradients that all parties derive alike, without what a silo would say of its rows.

Losses with bounded gradients have bounds from the job and the largest row weight. For others silos
find the largest gradients by a sum that tells the largest only
(:mod:`hedgerow.boosting.sums.maximum`), from time to time; between two of these sums the bounds
grow by what the trees' leaves can move a margin. A gradient outside its bound is clipped, row by
row, so that bounds need not be true for silos to answer alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import Objective
from hedgerow.boosting.engine.quantising import (
    FLOAT32_BITS,
    Pair,
    bound_of_exponents,
    row_bound,
    sampled_bound,
)
from hedgerow.boosting.engine.ranking import bound
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.engine.survival import MOST
from hedgerow.boosting.job import ADAPTIVE, ADAPTIVE_LEAF_ROWS, Booster, ColumnRules
from hedgerow.boosting.queries import MOST_ROWS

_ROUNDS = 16
"""Rounds whose bounds follow from one sum of largest gradients."""
_COARSE_ROUNDS = 4
""":data:`_ROUNDS` of gradients of a few bits."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest gradients that silos found, and what margins have moved by since."""

    grad: int
    hess: int
    """``grad`` and ``hess``: powers of two above ``|g|`` and ``h`` of any row, row weights
    included."""
    moved: float = 0.0
    """Sum of the largest ``|leaf value|`` of each round since."""

    def after(self, values: NDArray[np.float32]) -> Largest:
        """Return what is known after a round of trees with these leaf values."""
        return replace(self, moved=self.moved + float(np.abs(values).max(initial=0.0)))

    def bound(self, objective: Objective) -> Pair:
        """Return bounds of ``|g|`` and ``h`` of any row.

        ``h`` is at least the slope of ``g`` and, where the loss is exponential, grows by at most
        ``exp(moved)``. Only powers of two and products are used, the same at every party.
        """
        grad, hess = bound_of_exponents(self.grad, self.hess)
        if objective.exponential:
            factor = math.ldexp(1.0, math.ceil(min(1.4427 * self.moved, FLOAT32_BITS)))
            grad, hess = grad + hess * (factor - 1.0), hess * factor
        else:
            grad += hess * self.moved
        most = math.ldexp(1.0, FLOAT32_BITS)
        return min(grad, most), min(hess, most)


@dataclass(frozen=True, slots=True)
class BoundRule:
    """Where a job's bounds of gradients come from."""

    objective: Objective
    sampler: Sampler
    n_outputs: int
    coarse: bool = False
    """Whether gradients are rounded to a few bits, for which a loose bound is a bad one."""
    shared: bool = False
    """Whether one threshold of MVS is found for all silos."""

    @property
    def asks_sample(self) -> bool:
        """Whether the largest gradients of the weighted sample are found in every round."""
        if self.sampler.method == "mvs" and self.sampler.mvs_lambda <= 0:
            return True
        return self.coarse and not self.shared and self.sampler.method in ("goss", "mvs")

    @property
    def asks_rows(self) -> bool:
        """Whether the largest gradients of all rows are found, unless they are known."""
        unknown = self.objective.bound is None and not self.objective.by_risk_sets
        return unknown and (self.shared or not self.asks_sample)

    @property
    def rounds(self) -> int:
        """Return in how many rounds the largest gradients of all rows are found once."""
        if self.objective.curves:
            return 1
        if self.coarse:
            return 1 if self.objective.exponential else _COARSE_ROUNDS
        return _ROUNDS

    def is_due(self, largest: Largest | None, round_: int) -> bool:
        """Return whether the largest gradients of all rows are found before a round."""
        return self.asks_rows and (largest is None or round_ % self.rounds == 0)

    def of_rows(self, max_weight: float, largest: Largest | None) -> Pair:
        """Return bounds of any row's gradients, before it is sampled."""
        known = row_bound(self.objective, max_weight)
        if known is None and largest is None:  # only those of the sample are found
            assert self.asks_sample
            return math.inf, math.inf
        if known is None:
            assert largest is not None
            known = largest.bound(self.objective)
        return known

    def of_sample(self, rows: Pair, found: Pair | None, threshold: float | None) -> Pair:
        """Return bounds of the gradients of a round's sample, sampling weights included.

        Parameters
        ----------
        rows : (float, float)
            :meth:`of_rows`.
        found : (float, float) or None
            The largest of the sample's, where they are asked.
        threshold : float or None
            Of MVS for all silos: a row's sampling weight times its score is at most that.
        """
        if found is not None:
            return found
        if threshold is not None:
            top = threshold * (1 + 1e-6)
            return max(rows[0], top), max(rows[1], top / math.sqrt(self.sampler.mvs_lambda))
        sampled = sampled_bound(self.sampler, self.n_outputs, rows)
        assert sampled is not None
        return sampled


_STEEPEST = {
    "binary:hinge": 1.0,
    "binary": 0.25,
    "bce": 0.25,
    "reg:logistic": 0.25,
    "multi": 0.5,
    "softmax": 0.5,
    "survival": MOST,
    "rank": bound(MOST_ROWS)[1],
}
_UNBOUNDED = (
    "tweedie", "reg:tweedie", "reg:gamma", "count:poisson", "reg:squaredlogerror", "survival:cox",
)  # fmt: skip


def rows_of_leaf(objective: str, booster: Booster, columns: ColumnRules) -> int:
    """Return how many rows a leaf has at least, by ``min_child_weight``.

    That bounds the sum of hessians: a row adds at most 1/4 to it under a logistic loss, 1/2 under
    a softmax, 1 under most others, times its weight; where that has no bound, or the job has a
    column of weights, one row may be enough. A leaf of an :data:`~hedgerow.boosting.job.ADAPTIVE`
    objective tells of no more than ten.
    """
    if objective in _UNBOUNDED:
        return 1
    steepest = _STEEPEST.get(objective, _STEEPEST.get(objective.split(":")[0], 1.0))
    steepest *= max(1, booster.scale_pos_weight) * columns.heaviest
    least = max(1, math.ceil(booster.min_child_weight / steepest))
    return min(least, ADAPTIVE_LEAF_ROWS) if objective in ADAPTIVE else least
