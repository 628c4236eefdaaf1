"""What FedXGBllr's halves agree on, and what the coordinator keeps of a job between rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, HeadCombiner, State
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    ENSEMBLE,
    MODEL,
    StackedModel,
    ensemble_of,
)
from hedgerow.boosting.strategies.fedxgbllr.uploads import UploadForm, decode_trees
from hedgerow.boosting.streams import Purpose
from hedgerow.boosting.tensors import Tensors
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.packing import Shrinkage

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

_UPLOAD = ("trees", "leaves")
_LOSSES = {Task.BINARY: "logloss", Task.MULTICLASS: "mlogloss", Task.REGRESSION: "mse"}


def job_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that the job reports on test rows."""
    return job.metrics or metrics.defaults(job.task)


def validation_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that silos add up on validation rows; the first one selects.

    AUC is left out: its sums are a histogram, several times the network's size. Where it comes
    first, the next one selects; the task's loss is always among them.
    """
    named = [name for name in job_metrics(job) if name != "auc"]
    return tuple(dict.fromkeys([*named, _LOSSES[job.task]]))


def named(upload: Mapping[str, NDArray[Any]], silo: Silo) -> Arrays:
    """Return an upload's arrays under names that carry its silo."""
    return {f"{name}.{silo}": upload[name] for name in _UPLOAD if name in upload}


def silos_of(told: Tensors) -> tuple[Silo, ...]:
    """Return whose uploads are among the arrays, sorted."""
    start = "trees."
    return tuple(sorted(Silo(name[len(start) :]) for name in told.arrays if name.startswith(start)))


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both halves must do alike with labels, cuts and trees.

    Parameters
    ----------
    n_steps : int
        Boosting steps of each silo.
    center, scale : float
        Trees are grown on ``(y - center) / scale``.
    cuts : list of ndarray, or None
        Shared cut points between fences.
    """

    strategy: FedXGBllr
    job: JobParameters
    schema: Schema
    n_steps: int
    center: float = 0.0
    scale: float = 1.0
    cuts: list[NDArray[np.float32]] | None = None

    @classmethod
    def start(cls, strategy: FedXGBllr, job: JobParameters, schema: Schema, n_silos: int) -> Agreed:
        """Return what holds before silos have said anything."""
        job = strategy.silo_job(job, max(1, n_silos))
        base = job.booster.base_score
        center = base if base is not None and job.task is Task.REGRESSION else 0.0
        return cls(strategy, job, schema, strategy.steps_per_silo(n_silos), center)

    @property
    def form(self) -> UploadForm:
        """How trees are written."""
        booster = self.job.booster
        shrinkage = Shrinkage(
            booster.eta / booster.num_parallel_tree, booster.lambda_, booster.alpha
        )
        scrub = self.strategy.scrub == "stats"
        return UploadForm(shrinkage, scrub, self.strategy.leaf_bits, self.cuts)

    @property
    def limits(self) -> TreeLimits:
        """What a silo's trees must keep to."""
        booster = self.job.booster
        return TreeLimits(
            step_groups(self.n_steps, self.schema.n_outputs, booster.num_parallel_tree),
            tuple(len(feature.categories or ()) for feature in self.schema.features),
            booster.max_depth,
        )

    def decode(self, told: Tensors, suffix: str = "") -> list[Tree]:
        """Return the trees of an upload among ``told``."""
        return decode_trees(told, suffix, self.form, self.schema, self.limits)

    def combine(self, trees: list[list[Tree]]) -> tuple[Combiner, list[Tree]]:
        """Return the combiner of the silos' trees, and the trees in one list."""
        every = [tree for of_silo in trees for tree in of_silo]
        seed = np.random.SeedSequence([self.job.seed, Purpose.NETWORK_START]).generate_state(1)[0]
        combiner = self.strategy.combine(
            LeafTable.of(every), self.job.task, len(trees), self.schema.n_outputs, int(seed)
        )
        return combiner, every

    def targets(self, dataset: Dataset) -> Floats:
        """Return labels as trees and combiners see them."""
        if self.job.task is not Task.REGRESSION:
            return dataset.labels
        return (dataset.labels - self.center) / self.scale

    def margins(self, combined: Floats) -> Floats:
        """Return margins on the label's scale."""
        return self.center + self.scale * combined

    def told(self) -> Arrays:
        """Return it as arrays, for silos that synchronise and for checkpoints."""
        arrays: Arrays = {"labels": np.array([self.center, self.scale])}
        if self.cuts is not None:
            arrays["cuts"] = np.concatenate(self.cuts)
            arrays["cut_counts"] = np.array([len(c) for c in self.cuts], np.int64)
        return arrays

    def heard(self, told: Tensors) -> Agreed:
        """Return it after what :meth:`told` says."""
        center, scale = (float(v) for v in told.get("labels", "<f8", (2,)))
        cuts = self.cuts
        if told.has("cuts"):
            counts = told.get("cut_counts", "<i8", (self.schema.n_features,))
            values = told.get("cuts", "<f4", (int(counts.sum()),))
            cuts = np.split(values, np.cumsum(counts)[:-1])
        return replace(self, center=center, scale=scale, cuts=cuts)


@dataclass(slots=True)
class Record:
    """The coordinator's state after round 0; all that a checkpoint holds.

    Parameters
    ----------
    uploads : dict
        Each silo's trees as they were sent.
    rows : dict
        Training rows of each silo.
    trees : list of list of Tree
        In the order of ``uploads``.
    round : int
        The next round.
    best : ndarray or None
        The point that is to be the result.
    rates : ndarray of shape (n_outputs, n_trees), or None
        Learnt rates, as the silos' rows show them.
    """

    agreed: Agreed
    uploads: dict[Silo, Arrays]
    rows: dict[Silo, int]
    trees: list[list[Tree]]
    combiner: Combiner
    state: State
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
        agreed: Agreed,
        uploads: dict[Silo, Arrays],
        rows: dict[Silo, int],
        trees: list[list[Tree]],
    ) -> Record:
        """Return the state after all trees have come."""
        combiner, _ = agreed.combine(trees)
        final = agreed.strategy.n_rounds == 0
        return cls(agreed, uploads, rows, trees, combiner, combiner.initial(), final=final)

    def told(self) -> Arrays:
        """Return what a silo needs to go on from here."""
        arrays: Arrays = {
            **self.agreed.told(),
            "round": np.array([self.round], np.int64),
            "candidates": self.state.candidates.astype(self.combiner.point_type),
            "choice": np.array([self.choice], np.int64),
            "final": np.array([self.final], np.uint8),
        }
        for silo, upload in self.uploads.items():
            arrays |= named(upload, silo)
        return arrays

    def encode(self) -> bytes:
        """Return a checkpoint."""
        about = {
            "n_steps": self.agreed.n_steps,
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
        cls, strategy: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
    ) -> Record:
        """Return the state of a checkpoint."""
        arrays = safetensors.numpy.load(checkpoint)
        about = json.loads(arrays["about"].tobytes())
        told = Tensors(arrays)
        agreed = Agreed(strategy, job, schema, about["n_steps"]).heard(told)
        silos = silos_of(told)
        trees = [agreed.decode(told, f".{silo}") for silo in silos]
        memory = {
            name[len("memory.") :]: array
            for name, array in arrays.items()
            if name.startswith("memory.")
        }
        return cls(
            agreed,
            {
                silo: {
                    name: arrays[f"{name}.{silo}"] for name in _UPLOAD if f"{name}.{silo}" in arrays
                }
                for silo in silos
            },
            {Silo(silo): rows for silo, rows in about["rows"].items()},
            trees,
            agreed.combine(trees)[0],
            State(arrays["candidates"], arrays["solution"], memory),
            about["round"],
            about["final"],
            about["choice"],
            arrays.get("best"),
            about["best_round"],
            math.nan if about["best_score"] is None else about["best_score"],
            arrays.get("rates"),
        )

    def model(self) -> StackedModel:
        """Return the result as of now."""
        job, schema = self.agreed.job, self.agreed.schema
        point = self.state.solution if self.best is None else self.best
        rates = self.rates
        if rates is None:
            every = [tree for trees in self.trees for tree in trees]
            nowhere = LeafOrdinals.of(every, np.empty((0, schema.n_features), np.float32))
            rates = self.combiner.rates(point, nowhere)
        return StackedModel(
            ensemble_of(job, schema, self.trees, 0.5 if job.task is Task.BINARY else 0.0),
            self.agreed.strategy.combiner,
            job.task,
            tuple(self.uploads),
            tuple(self.rows[silo] for silo in self.uploads),
            point,
            self.combiner.head if isinstance(self.combiner, HeadCombiner) else None,
            self.agreed.center,
            self.agreed.scale,
            rates,
        )


def artefact_of(
    strategy: FedXGBllr, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return the files of a checkpoint's result."""
    record = Record.decode(strategy, job, schema, checkpoint)
    about = {
        "job": job.name,
        "rounds": record.round - 1,
        "best_round": record.best_round,
        "rates_seen_on_rows": record.rates is not None,
    }
    files = record.model().files(about)
    first = MODEL if MODEL in files else ENSEMBLE
    return Artefact({first: files[first], **files}, first)
