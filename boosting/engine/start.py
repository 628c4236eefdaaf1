"""Where margins start: the base score of a job, from the labels of all silos.

Means come from exact sums and medians from counts, so that the score is the same however the
rows are spread over silos.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.bisection import MIN_CELL, Bisector, count_below
from hedgerow.boosting.engine.objective import Objective, StartRule
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.job import Booster
from hedgerow.boosting.sums.exact import label_parts, mean_label
from hedgerow.crypto.fixed_point import log2_ceil


def weight_exponent(n_rows: int, weight: NDArray[np.float64] | None) -> int:
    """Return the power of two above the largest row weight of a silo; rows weigh 1 without any."""
    if weight is None:
        return log2_ceil(float(n_rows > 0))
    return log2_ceil(float(weight.max(initial=0.0)))


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
        return objective.start_of(mean_label(label_parts(objective.start_values(y), weight)))
    if objective.start_rule is StartRule.MEDIAN:
        search, column = median_search(), SortedColumn.of(y.astype(np.float32))
        while not search.done:
            search.take(count_below([column], search.column, search.key))
        return search.medians[0]
    return objective.default_base_score


def median_search(min_cell: int = MIN_CELL) -> Bisector:
    """Return the search for a median, to a thousandth of the rows or ``min_cell`` of them."""
    return Bisector(1, 2, 1e-3, min_cell, median=True)
