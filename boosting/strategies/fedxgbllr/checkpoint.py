"""The coordinator's state of a FedXGBllr job between rounds, and the result that it gives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import readable
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
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


@dataclass(slots=True)
class Checkpoint:
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
    best_round: int = 0
    best_score: float = math.nan
    rates: Floats | None = field(default=None)
    """Of shape (n_outputs, n_trees), or None. Learnt rates over the silos' rows."""

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
        """Return the state as bytes: safetensors, with all that is no array as JSON in one."""
        about = {
            "n_silos": self.terms.n_silos,
            "center": self.terms.center,
            "scale": self.terms.scale,
            "silos": list(self.uploads),
            "rows": self.rows,
            "round": self.round,
            "final": self.final,
            "choice": self.choice,
            "best_round": self.best_round,
            "best_score": None if math.isnan(self.best_score) else self.best_score,
        }
        arrays: dict[str, NDArray[Any] | None] = {
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            "candidates": self.state.candidates,
            "solution": self.state.solution,
            "best": self.best,
            "rates": self.rates,
        }
        arrays |= {f"memory.{name}": value for name, value in self.state.memory.items()}
        for number, upload in enumerate(self.uploads.values()):
            arrays |= {f"trees.{number}": upload.trees, f"leaves.{number}": upload.leaves}
        cuts = self.terms.shared_cuts
        if cuts is not None:
            arrays |= {"cuts.sizes": cuts.sizes, "cuts.values": cuts.values}
        given = {k: np.ascontiguousarray(v) for k, v in arrays.items() if v is not None}
        return bytes(safetensors.numpy.save(given))

    @classmethod
    def decode(
        cls, parameters: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
    ) -> Checkpoint:
        """Return the state of :meth:`encode`; raises DataError for anything else."""
        with readable("a checkpoint of FedXGBllr"):
            return cls._decode(parameters, job, schema, safetensors.numpy.load(checkpoint))

    @classmethod
    def _decode(
        cls,
        parameters: FedXGBllr,
        job: JobParameters,
        schema: Schema,
        arrays: Mapping[str, NDArray[Any]],
    ) -> Checkpoint:
        about = json.loads(arrays["about"].tobytes())
        terms = AgreedTerms.start(
            parameters, job, schema, about.get("n_silos", len(about["silos"]))
        ).with_labels(LabelScale(about["center"], about["scale"]))
        if "cuts.sizes" in arrays:
            terms = terms.with_cuts(SharedCuts(arrays["cuts.sizes"], arrays["cuts.values"]))
        uploads = {
            Silo(silo): PackedEnsemble(arrays[f"trees.{number}"], arrays.get(f"leaves.{number}"))
            for number, silo in enumerate(about["silos"])
        }
        trees = [terms.decode(upload, silo) for silo, upload in uploads.items()]
        memory = {
            name.removeprefix("memory."): array
            for name, array in arrays.items()
            if name.startswith("memory.")
        }
        score = about["best_score"]
        return cls(
            terms,
            uploads,
            {Silo(silo): rows for silo, rows in about["rows"].items()},
            trees,
            terms.combine(trees)[0],
            CombinerState(arrays["candidates"], arrays["solution"], memory),
            about["round"],
            about["final"],
            about["choice"],
            arrays.get("best"),
            about["best_round"],
            math.nan if score is None else score,
            arrays.get("rates"),
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
