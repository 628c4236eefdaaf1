"""What silos and coordinator exchange beside trees: scores, and sums of gradients by leaf."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import Call, Discloses, Receipt
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import PlainVector

REVEALS = (
    "The coordinator and every silo learn all trees: thresholds are values that occur in the silo "
    "that made them, leaf values are statistics of small groups of its rows. Those of a silo's "
    "first tree tell the numbers of rows and of positives of most leaves exactly, with or without "
    "covers; of rows with weights they tell sums of weights, of a leaf with one row its weight. "
    "With scrub = none trees have covers and gains of single silos. With scrub = stats and three "
    "silos or more the coordinator learns gradients and hessians by leaf of the finished model, "
    "summed securely over all silos, and they are in the model; it and every silo learn the power "
    "of two above the largest number of rows of any silo, of rows with weights or a loss without a "
    "bound those above the largest gradient and hessian of a row, before scores of rows with "
    "weights that above the largest weight, never whose. The coordinator learns row counts. "
    "Leaf values of a ranking tell of labels of other rows of their rows' queries, too. "
    "Where silos are evaluated, three or more, it learns the sums of losses (of a ranking of "
    "scores of queries, and how many these are) and the counts of "
    "scores by class over the rows of all silos together, summed securely; of fewer silos each "
    "one's metrics to four digits, which no silo sends unless its policy allows scores. The mean "
    "of each label of a regression is summed securely among three silos or more; otherwise the "
    "coordinator learns each silo's label sums, under the same condition. There is no differential "
    "privacy; k colluding parties learn no more than one, but of a secure sum the total of the "
    "other silos. Model files contain the united category lists of the schema that all agreed on."
)
"""What each party learns beyond the result."""


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """Metrics of a silo's own rows, of a job with fewer than three silos."""

    train: NDArray[np.float64]
    valid: NDArray[np.float64]
    """Of shape (n,), float64. ``train`` and ``valid``: their values over the rows trained on, and
    over those held back, four significant digits; empty where they are not scored."""


@dataclass(frozen=True, slots=True)
class ScoreVerdict:
    """Whether training ends with the round that was scored."""

    stop: bool


SCORES = float_sum(
    "scores",
    Call.SCORES,
    ScoreSums,
    ScoreVerdict,
    "metrics of its rows, four digits; masked, sums of losses and counts of scores by class",
    Discloses.SCORES,
    largest="weights of its rows, where they have some",
)

COVERS = float_sum(
    "covers",
    Call.SUMS,
    PlainVector,
    Receipt,
    "gradients and hessians of its rows, by leaf of the finished model",
    Discloses.COUNTS,
    largest="rows, and gradients and hessians of a row where the job has no bound of them",
    ring_bits=48,
)
