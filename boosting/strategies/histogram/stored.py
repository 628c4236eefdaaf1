"""What the two halves store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from hedgerow.boosting.checkpoints import Stored, Whole
from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.metric_sums import MOST_ROWS
from hedgerow.boosting.payloads import Bytes1, Int64s
from hedgerow.boosting.strategies.histogram.steps import OpeningTerms, TrainingState


class _Record(Stored):
    __slots__ = ()
    what = "a record of a histogram job"


@dataclass(frozen=True, slots=True)
class Interval:
    """What errors of rows held back say of an interval around a prediction."""

    width: float
    """Half of it; infinite where rows are too few for the share asked, or a silo was lost."""
    rows: Annotated[int, range(MOST_ROWS + 1)]


NO_INTERVAL = Interval(math.inf, 0)


@dataclass(frozen=True, slots=True)
class CountedTimes:
    """Rows of all silos by cell of their times, at the first round of a job of hazards."""

    events: Int64s
    """Of shape (n_cells,), int64. Rows whose event was seen."""
    rows: Int64s
    """Of shape (n_cells,), int64. All rows."""


@dataclass(frozen=True, slots=True)
class RoundCheckpoint(_Record):
    """All that the coordinator half needs to go on from the next round."""

    round: Whole
    """The next round."""
    best_round: Whole
    best_score: float
    """``best_round`` and ``best_score``: of the validation rows so far."""
    state: TrainingState | None
    """``None`` with a blind coordinator."""
    times: CountedTimes | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class BegunRound(_Record):
    """What a coordinator knows from the first sum of a round that has not ended."""

    round: Whole
    present: tuple[Silo, ...]
    """Silos of that sum."""
    model: Bytes1
    """Of shape (n,), uint8. The round's trees, each of its root alone, as ``model.ubj``."""
    terms: OpeningTerms | None
    """Of the first round, which no checkpoint precedes."""


@dataclass(frozen=True, slots=True)
class UnwitnessedRound(_Record):
    """The number of rounds of a checkpoint whose last trees no silo has received."""

    rounds: Whole


@dataclass(frozen=True, slots=True)
class SiloCopy(_Record):
    """The model that a silo of a blind job has after round ``round``."""

    round: Whole
    state: TrainingState


@dataclass(frozen=True, slots=True)
class CheckedModel(_Record):
    """Digests of the model that a silo has checked, or others for it, after the last rounds."""

    rounds: tuple[Whole, ...] = ()
    """The model's numbers of rounds, ascending."""
    digests: tuple[bytes, ...] = ()
    interval: Interval | None = None
    """Around predictions of the whole model, where the job asks for one."""

    def then(self, rounds: int, digest: bytes) -> CheckedModel:
        """Return the record with a model of more rounds, or of as many played again."""
        before = [own for own in zip(self.rounds, self.digests, strict=True) if own[0] < rounds]
        kept = (*before[-1:], (rounds, digest))
        return CheckedModel(tuple(n for n, _ in kept), tuple(own for _, own in kept))

    def checked_rounds(self, digests: Sequence[bytes], bare: Sequence[bool], sender: str) -> int:
        """Return how many rounds of a model that another party sent are checked; -1 for unknown.

        Parameters
        ----------
        digests : sequence of bytes
            Of the model after 0, 1, ... rounds.
        bare : sequence of bool
            By round, whether its trees are roots alone, as after a restart without a silo.

        Raises
        ------
        ModelRejected
            It has another tree than the one that this silo has checked.
        """
        known = [
            own for own in zip(self.rounds, self.digests, strict=True) if own[0] < len(digests)
        ]
        start = max((n for n, own in known if digests[n] == own), default=-1)
        for n, own in known:
            if digests[n] != own and not (0 <= start < n and all(bare[start:n])):
                raise ModelRejected(
                    f"{sender} has sent another model of {n} rounds than the one whose trees this "
                    "silo has checked"
                )
        return start
