"""What silos and coordinator exchange beside trees: sums of scores, and of gradients by leaf."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import Call, Discloses, Receipt, Step
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import PlainVector

REVEALS = (
    "The coordinator and every silo learn all trees: thresholds are values that occur in the "
    "silo that made them, leaf values are statistics of small groups of its rows. Those of a "
    "silo's first tree tell the numbers of rows and of positives of most leaves exactly, with or "
    "without covers. With scrub = none trees have covers and gains of single silos. With scrub = "
    "stats and three silos or more the coordinator learns gradients and hessians by leaf of the "
    "finished model, summed securely over all "
    "silos, and they are in the model. The coordinator learns row counts, and where silos are "
    "evaluated their loss sums and score counts by class. The mean label of a regression is "
    "summed securely among three silos or more; otherwise the coordinator learns each silo's "
    "label sum. There is no differential privacy; k colluding parties learn no more than one, "
    "but of a secure sum the total of the other silos. Model files contain the united category "
    "lists of the schema that all agreed on."
)
"""What each party learns beyond the result."""


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """Metrics of a silo's own rows in their additive form.

    Parameters
    ----------
    train, valid : ndarray of shape (n,), float64
        :func:`hedgerow.boosting.metrics.sums` over the rows trained on, and over those held back;
        empty where they are not scored.
    """

    train: NDArray[np.float64]
    valid: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreVerdict:
    """Whether training ends with the round that was scored."""

    stop: bool


SCORES = Step(
    "scores",
    Call.SCORES,
    ScoreSums,
    ScoreVerdict,
    "to the coordinator: sums of losses and counts of scores over its rows, by class",
    Discloses.SCORES,
)

COVERS = float_sum(
    "covers",
    Call.SUMS,
    PlainVector,
    Receipt,
    "gradients and hessians of its rows, by leaf of the finished model",
    Discloses.COUNTS,
    ring_bits=32,
)
