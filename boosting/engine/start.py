"""Where margins start: the base score of a job, from the labels of all silos.

Means come from exact sums and medians from counts, so that the score is the same however the
rows are spread over silos.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.bisection import MIN_CELL, Bisector, count_below
from hedgerow.boosting.engine.objective import Objective, StartRule
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.job import Booster
from hedgerow.boosting.sums.exact import label_parts, mean_labels
from hedgerow.crypto.masking.fixed_point import log2_ceil

Floats = NDArray[np.float64]
Score = float | tuple[float, ...]
"""A base score of all outputs, or one of each label."""


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
) -> Score:
    """Return the base score of a training on these labels: the job's, or their statistic.

    Of several labels it is one of each.
    """
    if booster.base_score is not None:
        return booster.base_score
    if objective.start_rule is StartRule.MEAN:
        means = mean_labels(label_parts(objective.start_values(y), weight))
        return score_of(map(objective.start_of, means))
    if objective.start_rule is StartRule.MEDIAN:
        search, column = median_search(), SortedColumn.of(y.astype(np.float32))
        while not search.done:
            search.take(count_below([column], search.column, search.key))
        return search.medians[0]
    return objective.default_base_score


def score_of(scores: Iterable[float]) -> Score:
    """Return the base scores of all labels, a number where there is one label."""
    found = tuple(scores)
    return found if len(found) > 1 else found[0]


def margins_of(objective: Objective, score: Score) -> Floats:
    """Return where the margins of outputs begin, shape (1,) or (n_labels,), float64."""
    return np.array([objective.margin_of(one) for one in np.atleast_1d(score).tolist()])


def median_search(min_cell: int = MIN_CELL) -> Bisector:
    """Return the search for a median, to a thousandth of the rows or ``min_cell`` of them."""
    return Bisector(1, 2, 1e-3, min_cell, median=True)
