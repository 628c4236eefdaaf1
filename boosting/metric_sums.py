"""Sums of metrics as integers, for secure sums: no bound has to be agreed on before them.

Sums of row weights are rounded weight by weight to a step that follows from the largest weight;
all others are exact sums of their rows' terms (:mod:`hedgerow.boosting.sums.exact`), of losses in
float32. So the totals
are the same bits however rows are spread over silos, and a silo says nothing in clear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import RowMetric
from hedgerow.boosting.metrics import metric_of, power_of
from hedgerow.boosting.metrics.scores import Floats, scored_rows
from hedgerow.boosting.sums.exact import LIMBS, exact_parts, exact_sums
from hedgerow.crypto.masking.fixed_point import log2_ceil
from hedgerow.crypto.masking.masks import Residues

_EXACT_BITS, _RING_BITS = 52, 62
_BLOCK = 1 << 20  # rows whose weights are added in float64 without rounding
MOST_ROWS = 1 << 31
"""Of all silos together, where nobody says how many they are."""


@dataclass(frozen=True, slots=True)
class SummedMetrics:
    """Metrics of a job as integer sums."""

    names: tuple[str, ...]
    n_outputs: int
    largest_weight: float = 1.0
    """Of any row of any silo."""
    n_rows: int = MOST_ROWS
    """Of all silos together, at most."""

    @property
    def n_residues(self) -> int:
        """Length of a silo's part."""
        return n_residues(self.names, self.n_outputs)

    @property
    def compares(self) -> bool:
        """Whether rows are compared with each other: a silo's part is of all of them at once."""
        return any(metric_of(name).compares for name in self.names)

    def parts(
        self,
        y: Floats,
        margin: NDArray[np.floating],
        *,
        objective: str,
        weight: Floats | None = None,
        center: float = 0.0,
        metric: RowMetric | None = None,
    ) -> NDArray[np.uint64]:
        """Return a silo's part, shape (n_residues,); as :func:`hedgerow.boosting.metrics.sums`.

        Parts of some of its rows may be added up, modulo 2**64, unless the metrics compare rows.
        """
        rows = replace(scored_rows(y, margin, objective, weight, center), metric=metric)
        within = np.clip(rows.weight, 0.0, self.largest_weight)
        steps = np.rint(np.where(np.isnan(within), 0.0, within) * 2.0**self._fraction_bits)
        found = [np.zeros(0, np.uint64)]
        for name in self.names:
            each = metric_of(name)
            if each.terms is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    loss, *others = each.terms(rows, power_of(name))
                    # An exponential's last bit depends on where in an array the row is.
                    loss = loss.astype(np.float32).astype(np.float64)
                found.append(exact_parts(loss, *others))
            else:
                total = np.zeros(each.width(self.n_outputs), np.int64)
                for k in range(0, len(y), _BLOCK):
                    own = slice(k, k + _BLOCK)
                    counted = scored_rows(y[own], margin[own], objective, steps[own], center)
                    total += each.total(counted, 0.0).astype(np.int64)
                found.append(total.view(np.uint64))
        return np.concatenate(found)

    def totals(self, residues: Residues) -> Floats:
        """Return what :func:`hedgerow.boosting.metrics.combine` takes, from the sum of parts."""
        found, at = [np.zeros(0)], 0
        for name in self.names:
            metric = metric_of(name)
            end = at + metric.width(self.n_outputs) * (1 if metric.terms is None else LIMBS)
            if metric.terms is None:
                counts = residues[at:end].view(np.int64).astype(np.float64)
                found.append(counts * 2.0**-self._fraction_bits)
            else:
                found.append(np.array([_nearest(s) for s in exact_sums(residues[at:end])]))
            at = end
        return np.concatenate(found)

    @property
    def _fraction_bits(self) -> int:
        """Bits of a weight's fraction with which a ring has the sums of all rows exactly."""
        n_rows, largest = max(1, self.n_rows), Fraction(max(self.largest_weight, 2.0**-100))
        return min(
            _RING_BITS - log2_ceil(n_rows * largest),
            _EXACT_BITS - log2_ceil(min(n_rows, _BLOCK) * largest),
        )


def n_residues(names: Sequence[str], n_outputs: int) -> int:
    """Return the length of a silo's part of the sums of some metrics."""
    each = (metric_of(name) for name in names)
    return sum(m.width(n_outputs) * (1 if m.terms is None else LIMBS) for m in each)


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:  # of false sums
        return math.inf if exact > 0 else -math.inf
