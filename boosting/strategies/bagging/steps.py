"""What silos and coordinator exchange: trees in packed blocks, and sums of scores.

An ensemble grows by *blocks*: the trees that one silo added in one round, packed. A silo that has
the first ``version`` rounds receives the blocks of the rounds after them, its own without data. A
running SHA-256 over the blocks shows whether two parties have the same ensemble.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import Call, Discloses, Receipt, Silo, Step
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import PlainVector

REVEALS = (
    "The coordinator and every silo learn all trees: thresholds are values that occur in the "
    "silo that made them, leaf values are statistics of small groups of its rows; with scrub = "
    "none so are covers and gains. With scrub = stats and three silos or more the coordinator "
    "learns gradients and hessians by leaf of the finished model, summed securely over all "
    "silos, and they are in the model. The coordinator learns row counts, and where silos are "
    "evaluated their loss sums and score counts by class. The mean label of a regression is "
    "summed securely among three silos or more; otherwise the coordinator learns each silo's "
    "label sum. There is no differential privacy; k colluding parties learn no more than one, "
    "but of a secure sum the total of the other silos. Model files contain the united category "
    "lists of the schema that all agreed on."
)
"""What each party learns beyond the result."""

GENESIS = hashlib.sha256(b"hedgerow trees v1").digest()
"""Running digest of no blocks."""


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """The trees that a silo added in a round.

    Parameters
    ----------
    silo : Silo
    round : int
    steps : int
        Boosting steps in ``data``.
    factor : float
        Leaf values are multiplied by it; 1.0 unless the round's learning rates were settled
        after training.
    data : bytes
        Packed trees (:mod:`hedgerow.boosting.trees.packing`); empty where the receiver has them.
    """

    silo: Silo
    round: int
    steps: int
    factor: float
    data: bytes


@dataclass(frozen=True, slots=True)
class TreeStanding:
    """The federation's state: what a silo needs to take the next step.

    Parameters
    ----------
    round : int
        Round of the next offer.
    eta : float
        Learning rate for that round; 0 for a silo that adds no trees in it.
    base_score : float or None
        On the label's scale; None until the silos have agreed on it.
    version : int
        Rounds in the ensemble.
    digest : bytes
        Running SHA-256 over all its blocks.
    score_train, score_valid : bool
        Whether the silo is first to offer the scores, after ``version`` rounds, of the rows that
        it trains on and of those that it holds back.
    blocks : tuple[TreeBlock, ...]
        Blocks that the silo does not have yet.
    """

    round: int
    eta: float
    base_score: float | None
    version: int
    digest: bytes
    score_train: bool = False
    score_valid: bool = False
    blocks: tuple[TreeBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeCatchUp:
    """A silo's request to be brought up to date.

    Parameters
    ----------
    version : int
        Rounds that it holds.
    first_round : int
        Earliest round that it can still offer in; -1 at its start.
    n_samples : int
        Its rows.
    """

    version: int
    first_round: int
    n_samples: int


@dataclass(frozen=True, slots=True)
class TreeOffer:
    """A silo's new trees; no steps from a silo that adds none in this round.

    Parameters
    ----------
    version : int
        Rounds that it holds.
    steps : int
        Boosting steps in ``data``.
    gain : float
        Total split gain of the trees.
    data : bytes
        Packed trees.
    """

    version: int
    steps: int
    gain: float
    data: bytes


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


SYNC = Step(
    "sync", Call.TREES, TreeCatchUp, TreeStanding,
    "how many rounds of the model it holds; its row count", Discloses.SCHEMA,
)  # fmt: skip
TREES = Step(
    "trees",
    Call.TREES,
    TreeOffer,
    TreeStanding,
    "to all silos: new trees, whose thresholds are values of its rows and whose leaves are "
    "statistics of small groups of them",
    Discloses.TREES,
)
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


def extend_digest(digest: bytes, block: TreeBlock) -> bytes:
    """Return the running digest with one more block, ``data`` included."""
    name = block.silo.encode()
    head = struct.pack("<IIId", len(name), block.round, block.steps, block.factor)
    return hashlib.sha256(digest + head + name + block.data).digest()
