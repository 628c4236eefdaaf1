"""What the two halves store."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.boosting.checkpoints import Whole, dump_record, load_record
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.payloads import Bytes1
from hedgerow.boosting.strategies.histogram.steps import OpeningTerms, TrainingState

_WHAT = "a record of a histogram job"


@dataclass(frozen=True, slots=True)
class RoundCheckpoint:
    """All that the coordinator half needs to go on from the next round.

    Parameters
    ----------
    round : int
        The next round.
    best_round, best_score
        Of the validation rows so far.
    state : TrainingState or None
        ``None`` with a blind coordinator.
    """

    round: Whole
    best_round: Whole
    best_score: float
    state: TrainingState | None

    def encode(self) -> bytes:
        """Return the record as bytes."""
        return dump_record(self)

    @classmethod
    def decode(cls, data: bytes) -> RoundCheckpoint:
        """Read :meth:`encode`; raises DataError for anything else."""
        return load_record(cls, data, _WHAT)


@dataclass(frozen=True, slots=True)
class BegunRound:
    """What a coordinator decided from the first sum of a round that has not ended.

    Parameters
    ----------
    round : int
    present : tuple[Silo, ...]
        Silos of that sum.
    model : ndarray of shape (n,), uint8
        The round's trees as if they were closed then, as ``model.ubj``.
    terms : OpeningTerms or None
        Of the first round, which no checkpoint precedes.
    """

    round: Whole
    present: tuple[Silo, ...]
    model: Bytes1
    terms: OpeningTerms | None

    def encode(self) -> bytes:
        """Return the record as bytes."""
        return dump_record(self)

    @classmethod
    def decode(cls, data: bytes) -> BegunRound:
        """Read :meth:`encode`; raises DataError for anything else."""
        return load_record(cls, data, _WHAT)


@dataclass(frozen=True, slots=True)
class SiloCopy:
    """The model that a silo of a blind job has after round ``round``."""

    round: Whole
    state: TrainingState

    def encode(self) -> bytes:
        """Return the record as bytes."""
        return dump_record(self)

    @classmethod
    def decode(cls, data: bytes) -> SiloCopy:
        """Read :meth:`encode`; raises DataError for anything else."""
        return load_record(cls, data, _WHAT)
