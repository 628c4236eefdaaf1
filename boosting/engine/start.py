"""Where margins start: the base score of a job, from the labels of all silos.

Means come from integer sums and medians from counts, so that the score is the same however the
rows are spread over silos.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.objective import Objective, StartRule
from hedgerow.boosting.job import Booster
from hedgerow.crypto.fixed_point import FixedPoint, log2_ceil


@dataclass(frozen=True, slots=True)
class LabelMean:
    """The mean label of all silos, from integer sums: equal however rows are spread.

    Parameters
    ----------
    n_rows : int
        Rows of all silos.
    weight_exponent, label_exponent : int
        Powers of two above the largest weight and the largest weighted ``|label|`` of all silos.
    """

    n_rows: int
    weight_exponent: int
    label_exponent: int

    def sums(self, y: NDArray[np.float64], weight: NDArray[np.float64] | None) -> NDArray[np.int64]:
        """Return a silo's part: weighted labels and weights, shape (2,), int64."""
        w = np.ones(y.shape[0]) if weight is None else weight
        label, weights = self._fixed
        return np.array([label.quantise(w * y).sum(), weights.quantise(w).sum()], dtype=np.int64)

    def mean(self, sums: NDArray[np.int64]) -> float:
        """Return the mean from the summed parts, rounded to float32; 0 without weight."""
        label, weights = self._fixed
        if sums[1] == 0:
            return 0.0
        total = math.ldexp(float(sums[0]), -label.fraction_bits)
        return float(np.float32(total / math.ldexp(float(sums[1]), -weights.fraction_bits)))

    @property
    def _fixed(self) -> tuple[FixedPoint, FixedPoint]:
        rows = max(1, self.n_rows)
        return (
            FixedPoint.fitting(rows, 2.0 ** max(self.label_exponent, -100)),
            FixedPoint.fitting(rows, 2.0 ** max(self.weight_exponent, -100)),
        )


def label_exponents(y: NDArray[np.float64], weight: NDArray[np.float64] | None) -> tuple[int, int]:
    """Return powers of two above the largest weight and weighted ``|label|`` of a silo."""
    w = np.ones(y.shape[0]) if weight is None else weight
    return (
        log2_ceil(float(w.max(initial=0.0))),
        log2_ceil(float(np.abs(w * y).max(initial=0.0))),
    )


def start_score(
    objective: Objective,
    booster: Booster,
    y: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
) -> float:
    """Return the base score of a training on these labels: the job's, or their statistic."""
    if booster.base_score is not None:
        return booster.base_score
    if objective.start_rule is StartRule.MEAN:
        labels = LabelMean(y.shape[0], *label_exponents(y, weight))
        return objective.start_of(labels.mean(labels.sums(y, weight)))
    if objective.start_rule is StartRule.MEDIAN:
        search, column = median_search(), np.sort(y.astype(np.float32))
        while not search.done:
            search.take(count_below([column], search.column, search.key))
        return found_median(search)
    return objective.default_base_score


def median_search() -> Bisector:
    """Return the search for a median: one threshold of one column."""
    return Bisector(1, 2, 0.0)


def found_median(search: Bisector) -> float:
    """Return the median that a search ended on; 0 without rows."""
    found = search.thresholds[0]
    return float(found[0]) if found.shape[0] else 0.0
