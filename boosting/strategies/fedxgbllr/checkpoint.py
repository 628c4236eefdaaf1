"""The coordinator's state of a FedXGBllr job between rounds, and the result that it gives."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.fedxgbllr.agreement import UPLOAD, Terms, named, silos_of
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, CombinerState
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    ENSEMBLE,
    MODEL,
    StackedModel,
    ensemble_of,
)
from hedgerow.boosting.tensors import Tensors
from hedgerow.boosting.trees.ensemble import Tree

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Checkpoint:
    """The coordinator's state after round 0; :meth:`encode` makes it durable.

    Parameters
    ----------
    uploads : dict
        Each silo's trees as they were received.
    rows : dict
        Training rows of each silo.
    trees : list of list of Tree
        In the order of ``uploads``.
    round : int
        The next round.
    best : ndarray or None
        The point that is to be the result.
    rates : ndarray of shape (n_outputs, n_trees), or None
        Learnt rates over the silos' rows.
    """

    terms: Terms
    uploads: dict[Silo, Arrays]
    rows: dict[Silo, int]
    trees: list[list[Tree]]
    combiner: Combiner
    state: CombinerState
    round: int = 1
    final: bool = False
    choice: int = 0
    best: NDArray[Any] | None = None
    best_round: int = 0
    best_score: float = math.nan
    rates: Floats | None = field(default=None)

    @classmethod
    def begin(
        cls,
        terms: Terms,
        uploads: dict[Silo, Arrays],
        rows: dict[Silo, int],
        trees: list[list[Tree]],
    ) -> Checkpoint:
        """Return the state once all trees are received."""
        combiner, _ = terms.combine(trees)
        final = terms.parameters.n_rounds == 0
        return cls(terms, uploads, rows, trees, combiner, combiner.initial(), final=final)

    def told(self) -> Arrays:
        """Return what a silo needs to continue from here."""
        arrays: Arrays = {
            **self.terms.told(),
            "round": np.array([self.round], np.int64),
            "candidates": self.state.candidates.astype(self.combiner.point_type),
            "choice": np.array([self.choice], np.int64),
            "final": np.array([self.final], np.uint8),
        }
        for silo, upload in self.uploads.items():
            arrays |= named(upload, silo)
        return arrays

    def encode(self) -> bytes:
        """Return the state as bytes."""
        about = {
            "n_steps": self.terms.n_steps,
            "rows": self.rows,
            "round": self.round,
            "final": self.final,
            "choice": self.choice,
            "best_round": self.best_round,
            "best_score": None if math.isnan(self.best_score) else self.best_score,
        }
        arrays: Arrays = {
            **self.told(),
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            "candidates": self.state.candidates,
            "solution": self.state.solution,
            **{f"memory.{name}": np.asarray(value) for name, value in self.state.memory.items()},
        }
        if self.best is not None:
            arrays["best"] = self.best
        if self.rates is not None:
            arrays["rates"] = self.rates
        saved = safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in arrays.items()})
        return bytes(saved)

    @classmethod
    def decode(
        cls, parameters: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
    ) -> Checkpoint:
        """Return the state of :meth:`encode`."""
        arrays = safetensors.numpy.load(checkpoint)
        about = json.loads(arrays["about"].tobytes())
        told = Tensors(arrays)
        terms = Terms(parameters, job, schema, about["n_steps"]).heard(told)
        silos = silos_of(told)
        trees = [terms.decode(told, f".{silo}") for silo in silos]
        memory = {
            name[len("memory.") :]: array
            for name, array in arrays.items()
            if name.startswith("memory.")
        }
        return cls(
            terms,
            {
                silo: {
                    name: arrays[f"{name}.{silo}"] for name in UPLOAD if f"{name}.{silo}" in arrays
                }
                for silo in silos
            },
            {Silo(silo): rows for silo, rows in about["rows"].items()},
            trees,
            terms.combine(trees)[0],
            CombinerState(arrays["candidates"], arrays["solution"], memory),
            about["round"],
            about["final"],
            about["choice"],
            arrays.get("best"),
            about["best_round"],
            math.nan if about["best_score"] is None else about["best_score"],
            arrays.get("rates"),
        )

    def model(self) -> StackedModel:
        """Return the result so far."""
        job, schema = self.terms.job, self.terms.schema
        point = self.state.solution if self.best is None else self.best
        rates = self.rates
        if rates is None:
            every = [tree for trees in self.trees for tree in trees]
            no_rows = LeafOrdinals.of(every, np.empty((0, schema.n_features), np.float32))
            rates = self.combiner.rates(point, no_rows)
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
