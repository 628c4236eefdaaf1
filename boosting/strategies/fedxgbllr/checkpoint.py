"""The coordinator's state of a FedXGBllr job between rounds, and the result that it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import Stored, readable
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.boosting.strategies.fedxgbllr.agreement import AgreedTerms
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, CombinerState
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    ENSEMBLE,
    MODEL,
    StackedModel,
    ensemble_of,
)
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    Ensembles,
    LabelScale,
    PackedEnsemble,
    RoundState,
    SharedCuts,
    StackingProgress,
)
from hedgerow.boosting.trees.ensemble import Tree

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Stacking(Stored):
    """What is stored of a :class:`Checkpoint`."""

    what: ClassVar[str] = "a checkpoint of FedXGBllr"
    n_silos: int
    labels: LabelScale
    cuts: SharedCuts | None
    uploads: dict[Silo, PackedEnsemble]
    rows: dict[Silo, int]
    state: CombinerState
    round: int
    final: bool
    choice: int
    best: NDArray[Any] | None
    best_round: int
    best_score: float
    rates: NDArray[Any] | None


@dataclass(slots=True)
class Checkpoint(BestRound):
    """The coordinator's state after round 0; :meth:`encode` makes it durable."""

    terms: AgreedTerms
    uploads: dict[Silo, PackedEnsemble]
    """Each silo's trees as they were received."""
    rows: dict[Silo, int]
    """Training rows of each silo."""
    trees: list[list[Tree]]
    """In the order of ``uploads``."""
    combiner: Combiner
    state: CombinerState
    round: int = 1
    """The next round."""
    final: bool = False
    choice: int = 0
    best: NDArray[Any] | None = None
    """The point that is to be the result."""
    rates: Floats | None = field(default=None)
    """Of shape (n_outputs, n_trees), or None. Learnt rates over the silos' rows."""
    best_round: int = field(default=0, kw_only=True)

    @classmethod
    def begin(
        cls,
        terms: AgreedTerms,
        uploads: dict[Silo, PackedEnsemble],
        rows: dict[Silo, int],
        trees: list[list[Tree]],
    ) -> Checkpoint:
        """Return the state once all trees are received."""
        combiner, _ = terms.combine(trees)
        final = terms.parameters.n_rounds == 0
        return cls(terms, uploads, rows, trees, combiner, combiner.initial(), final=final)

    @property
    def progress(self) -> StackingProgress:
        """What a silo needs to continue from here."""
        exact = self.combiner.exact_points
        state = RoundState(
            self.round,
            Ensembles(self.uploads),
            exact(self.state.candidates),
            self.choice,
            self.final,
            None if self.best is None else exact(self.best[None]),
        )
        return StackingProgress(self.terms.labels, self.terms.shared_cuts, state)

    def encode(self) -> bytes:
        """Return the state as bytes."""
        return _Stacking(
            self.terms.n_silos,
            LabelScale(self.terms.center, self.terms.scale),
            self.terms.shared_cuts,
            self.uploads,
            self.rows,
            self.state,
            self.round,
            self.final,
            self.choice,
            self.best,
            self.best_round,
            self.best_score,
            self.rates,
        ).encode()

    @classmethod
    def decode(
        cls, parameters: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
    ) -> Checkpoint:
        """Return the state of :meth:`encode`; raises DataError for anything else."""
        kept = _Stacking.decode(checkpoint)
        with readable(kept.what):
            terms = AgreedTerms.start(parameters, job, schema, kept.n_silos)
            terms = terms.with_labels(kept.labels)
            if kept.cuts is not None:
                terms = terms.with_cuts(kept.cuts)
            trees = [terms.decode(upload, silo) for silo, upload in kept.uploads.items()]
            return cls(
                terms,
                kept.uploads,
                kept.rows,
                trees,
                terms.combine(trees)[0],
                kept.state,
                kept.round,
                kept.final,
                kept.choice,
                kept.best,
                kept.rates,
                best_round=kept.best_round,
                best_score=kept.best_score,
            )

    @property
    def point(self) -> NDArray[Any]:
        """What the result predicts with."""
        return self.state.solution if self.best is None else self.best

    def model(self) -> StackedModel:
        """Return the result so far."""
        job, schema = self.terms.job, self.terms.schema
        point, rates = self.point, self.rates
        if rates is None:
            rates = self.combiner.rates(point, None)
        return StackedModel(
            ensemble_of(job, schema, self.trees, 0.5 if job.task is Task.BINARY else 0.0),
            self.terms.parameters.combiner,
            job.task,
            tuple(self.uploads),
            tuple(self.rows[silo] for silo in self.uploads),
            point,
            self.combiner.head if isinstance(self.combiner, HeadCombiner) else None,
            self.terms.center,
            self.terms.scale,
            rates,
        )


def artefact(
    parameters: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return the files of a checkpoint's model; see :mod:`.stacked_model`."""
    record = Checkpoint.decode(parameters, job, schema, checkpoint)
    about = {
        "job": job.name,
        "rounds": record.round - 1,
        "best_round": record.best_round,
        "rates_seen_on_rows": record.rates is not None,
    }
    files = record.model().files(about)
    first = MODEL if MODEL in files else ENSEMBLE
    return Artefact({first: files[first], **files}, first)
