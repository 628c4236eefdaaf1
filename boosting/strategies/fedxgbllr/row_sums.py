"""Exact sums over the rows of all silos, of which no silo's own sum is rounded.

Each row's numbers become integers before they are added, in steps that follow from the job, the
points that all silos have, and the powers of two above the most rows of a silo, the largest weight
and, of a regression, the largest target. So totals are the same bits however rows are spread over
silos. The steps are coarse enough that float64 adds up the integers of a silo without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.rounds.scores import finds_weight
from hedgerow.boosting.strategies.fedxgbllr.steps import SUMS
from hedgerow.boosting.sums.floats import exponent_of, within
from hedgerow.crypto.masking.fixed_point import FixedPoint, fraction_bits, log2_ceil, signed

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

EXACT_BITS = 52
"""Whole numbers below 2 to this power add up in float64 without rounding."""
_MOST_EXPONENT = 31  # no silo has 2**31 rows: one that says so would make all silos' steps coarse
_LARGEST = 2.0**128


def n_bounds(job: JobParameters) -> int:
    """Return how many largest numbers silos find before a sum over their rows."""
    return 1 + finds_weight(job) + (job.task is Task.REGRESSION)


def own_bounds(job: JobParameters, y: Floats, weight: Floats | None) -> tuple[int, ...]:
    """Return the powers of two above a silo's numbers, as many as :func:`n_bounds`.

    None of them depends on what the coordinator has sent but for the scale of labels.
    """
    found = [exponent_of(np.array([float(len(y))]))]
    if finds_weight(job):
        found.append(exponent_of(np.ones(1) if weight is None else weight))
    if job.task is Task.REGRESSION:
        found.append(exponent_of(y))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What a row's numbers are at most, and how many rows there are."""

    task: Task
    n_silos: int
    n_rows: int
    """Of a silo, at most."""
    weight: float
    target: float
    """Of a regression: the largest magnitude of a label that trees are grown on."""

    @classmethod
    def of(cls, job: JobParameters, n_silos: int, found: Sequence[int]) -> RowBounds:
        """Return the bounds that follow from the largest of all silos' :func:`own_bounds`."""
        exponents = list(found)
        n_rows = 1 << min(_MOST_EXPONENT, max(0, exponents.pop(0)))
        weight = 2.0 ** exponents.pop(0) if finds_weight(job) else job.columns.heaviest
        target = 2.0 ** exponents.pop(0) if job.task is Task.REGRESSION else 0.0
        return cls(job.task, n_silos, n_rows, weight, target)

    def derivatives(self, margin: float) -> tuple[float, float, float]:
        """Return the most that a row's loss and its derivatives by a margin are, times weight."""
        if self.task is Task.REGRESSION:
            away = _capped(margin + self.target)
            return _capped(self.weight * away * away), _capped(self.weight * away), self.weight
        # Each class's part of a cross-entropy is at most the range of margins, and log(classes).
        return _capped(self.weight * (2 * margin + 32.0)), self.weight, self.weight / 4

    def scale(self, bound: float) -> FixedPoint:
        """Return how numbers of rows within a bound become integers."""
        whole = fraction_bits(self.n_silos * self.n_rows, bound, SUMS.ring_bits)
        bits = EXACT_BITS - log2_ceil(self.n_rows * Fraction(bound))
        return FixedPoint(self.n_silos * self.n_rows, bound, min(whole, bits), SUMS.ring_bits)


def whole(values: Floats, scale: FixedPoint) -> Floats:
    """Return each number as a whole one of a scale's steps, still in float64.

    One that is no number counts as 0, one beyond the bound as the bound.
    """
    return np.rint(np.ldexp(within(values, scale.bound), scale.fraction_bits))


def largest_margin(values: Floats, offsets: Integers, intercept: Floats) -> float:
    """Return the most that a row's margin is, of leaf values (n_leaves,) and intercepts."""
    by_tree = np.maximum.reduceat(np.abs(values), offsets[:-1]) if len(values) else np.zeros(0)
    # Exactly rounded, so that all parties find the same.
    return _capped(math.fsum(by_tree) + float(np.abs(intercept).max(initial=0.0)))


def decoded(total: NDArray[np.uint64], fraction_bits: Integers, at_least_0: Integers) -> Floats:
    """Return the totals of integers as float64.

    Parameters
    ----------
    fraction_bits : ndarray of shape (n_values,)
        Of each total's steps.
    at_least_0 : ndarray of int64
        Places of totals that no rows have below 0.

    Raises
    ------
    SumCorrupt
        They are of no rows.
    """
    sums = signed(total, SUMS.ring_bits)
    if (sums[at_least_0] < 0).any():
        raise SumCorrupt(f"sum {SUMS.name!r}: a loss or a second derivative below zero")
    return np.ldexp(sums.astype(np.float64), -fraction_bits)


def _capped(value: float) -> float:
    return min(value, _LARGEST) if value == value else _LARGEST
