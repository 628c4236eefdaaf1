"""What both halves of FedXGBllr agree on: scale of the labels, cut points, form of the trees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.engine.summaries import increasing_columns
from hedgerow.boosting.errors import ModelRejected, OfferRejected
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.leaf_search import LeafCombiner
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafTable
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.steps import LabelScale, PackedEnsemble, SharedCuts
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import RateCombiner
from hedgerow.boosting.strategies.fedxgbllr.uploads import UploadForm, decode_trees, with_fences
from hedgerow.boosting.streams import Purpose
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.packing import Shrinkage

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

Floats = NDArray[np.float64]

_LOSSES = {Task.BINARY: "logloss", Task.MULTICLASS: "mlogloss", Task.REGRESSION: "mse"}


def job_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that the job reports on test rows."""
    return job.metrics or metrics.defaults(job.task)


def validation_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that silos add up on validation rows; the first one selects.

    AUC is not among them: its sums are a histogram, several times the network's size. Where a job
    names it first, the next one selects. The task's loss is always among them.
    """
    named = [name for name in job_metrics(job) if name != "auc"]
    return tuple(dict.fromkeys([*named, _LOSSES[job.task]]))


@dataclass(frozen=True, slots=True)
class AgreedTerms:
    """How both halves read labels, cut points and trees."""

    parameters: FedXGBllr
    job: JobParameters
    schema: Schema
    n_silos: int
    """Silos of the roster."""
    center: float = 0.0
    scale: float = 1.0
    """``center`` and ``scale``: trees are grown on ``(label - center) / scale``."""
    cuts: list[NDArray[np.float32]] | None = None
    """List of ndarray, or None. Shared cut points between fences."""

    @classmethod
    def start(
        cls, parameters: FedXGBllr, job: JobParameters, schema: Schema, n_silos: int
    ) -> AgreedTerms:
        """Return the terms before anything has been exchanged.

        Raises
        ------
        InvalidJob
            The network is too narrow for the schema's outputs.
        """
        parameters.validate_for(job, schema)
        n_silos = max(1, n_silos)
        job = parameters.silo_job(job, n_silos)
        base = job.booster.base_score
        center = base if base is not None and job.task is Task.REGRESSION else 0.0
        return cls(parameters, job, schema, n_silos, center)

    @property
    def n_steps(self) -> int:
        """Boosting steps of each silo."""
        return self.parameters.steps_per_silo(self.n_silos)

    @property
    def form(self) -> UploadForm:
        """How trees are sent."""
        booster = self.job.booster
        shrinkage = Shrinkage(
            booster.eta / booster.num_parallel_tree, booster.lambda_, booster.alpha
        )
        scrub = self.parameters.scrub == "stats"
        return UploadForm(shrinkage, scrub, self.parameters.leaf_bits, self.cuts)

    @property
    def limits(self) -> TreeLimits:
        """Limits of a silo's trees."""
        booster = self.job.booster
        return TreeLimits(
            step_groups(self.n_steps, self.schema.n_outputs, booster.num_parallel_tree),
            self.schema.n_categories,
            booster.max_depth,
        )

    @property
    def sums(self) -> SumParameters:
        """How silos add up their vectors."""
        return sum_parameters(self.parameters, self.job)

    def decode(self, ensemble: PackedEnsemble, silo: str) -> list[Tree]:
        """Return a silo's trees.

        Raises
        ------
        ModelRejected
            They are not what the job asks for; names the silo.
        """
        try:
            return decode_trees(ensemble, self.form, self.schema, self.limits)
        except OfferRejected as error:
            raise ModelRejected(f"trees of {silo}: {error}") from error

    def combine(self, trees: list[list[Tree]]) -> tuple[Combiner, list[Tree]]:
        """Return the combiner of the silos' trees, and the trees in one list."""
        every = [tree for of_silo in trees for tree in of_silo]
        seed = np.random.SeedSequence([self.job.seed, Purpose.NETWORK_START]).generate_state(1)[0]
        combiner = combiner_of(
            self.parameters,
            LeafTable.of(every),
            self.job.task,
            len(trees),
            self.schema.n_outputs,
            int(seed),
        )
        return combiner, every

    def targets(self, dataset: Dataset) -> Floats:
        """Return the labels that trees and combiners are trained on."""
        if self.job.task is not Task.REGRESSION:
            return dataset.labels
        most = float(np.finfo(np.float32).max)
        with np.errstate(over="ignore"):
            # Clipped, not refused: a center and scale that were made up tell nothing of labels.
            return np.clip((dataset.labels - self.center) / self.scale, -most, most)

    def margins(self, combined: Floats) -> Floats:
        """Return margins on the label's scale."""
        return self.center + self.scale * combined

    @property
    def labels(self) -> LabelScale:
        """Scale of the labels, for the wire."""
        return LabelScale(self.center, self.scale)

    def with_labels(self, labels: LabelScale) -> AgreedTerms:
        """Return the terms with the scale of the labels."""
        if not (math.isfinite(labels.center) and 0 < labels.scale < math.inf):
            raise OfferRejected("labels: expected a finite center and a positive scale")
        return replace(self, center=labels.center, scale=labels.scale)

    @property
    def shared_cuts(self) -> SharedCuts | None:
        """The shared cut points, for the wire."""
        if self.cuts is None:
            return None
        inner = [of_feature[1:-1] for of_feature in self.cuts]
        sizes = np.array([len(of_feature) for of_feature in inner], np.int64)
        return SharedCuts(sizes, np.concatenate(inner))

    def with_cuts(self, cuts: SharedCuts) -> AgreedTerms:
        """Return the terms with shared cut points."""
        inner = increasing_columns(cuts.sizes, cuts.values, self.schema.n_features)
        return replace(self, cuts=with_fences(inner))


def combiner_of(
    parameters: FedXGBllr, table: LeafTable, task: Task, n_silos: int, n_outputs: int, seed: int
) -> Combiner:
    """Return the combiner of the trees of ``table``, an equal share of which each silo grew.

    Parameters
    ----------
    seed : int
        Of a network's start weights.
    """
    if parameters.is_network:
        kind, width = HeadKind(parameters.combiner), table.n_trees // n_silos
        head = Head(kind, n_silos, width, n_outputs, parameters.channels)
        return HeadCombiner(parameters, head, task, table.groups, seed)
    rounds, penalties = parameters.n_rounds, parameters.penalties
    if parameters.combiner == "leaves":
        return LeafCombiner(table, task, n_silos, n_outputs, rounds, penalties)
    return RateCombiner(table, task, n_silos, n_outputs, rounds, penalties)


def sum_parameters(parameters: FedXGBllr, job: JobParameters) -> SumParameters:
    """Return how the silos of a job add up their vectors."""
    secure = parameters.secure
    least = max(3 if secure else 1, job.min_silos)
    return SumParameters(secure=secure, least_silos=least, checks_totals=secure)
