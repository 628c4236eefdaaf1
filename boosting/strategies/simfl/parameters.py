"""Parameters of SimFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import Within, check_declared, on_cpus, one_of, within
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.objective import check_parameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.local import check_fits

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters

OBJECTIVES: dict[Task, tuple[str, ...]] = {
    Task.BINARY: ("binary:logistic",),
    Task.MULTICLASS: ("multi:softprob",),
    Task.REGRESSION: (
        "reg:squarederror",
        "reg:pseudohubererror",
        "reg:tweedie",
        "count:poisson",
    ),
}
"""Objectives of XGBoost whose gradients silos compute themselves, in XGBoost's own numbers."""

MOST_HASHES = 40
"""Hash functions where the job does not say, at most."""


@dataclass(frozen=True, slots=True)
class SimFL:
    """The ``[simfl]`` table of a job."""

    rounds: Annotated[int, Within(1, 100_000)] = 500
    """Boosting steps of the model in all; silos take turns."""
    hashes: Annotated[int, Within(0, 255)] = 0
    """Hash functions; 0 for one less than there are features, 40 at most."""
    width: Annotated[float, Within(1e-3, 1e3)] = 4.0
    """Width of a hash function's buckets (the source's ``r``), where features are in [0, 1]: rows
    in one bucket of many functions are similar."""

    name: ClassVar[str] = "simfl"

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds

    def n_hashes(self, schema: Schema) -> int:
        """Return the number of hash functions."""
        return self.hashes or max(1, min(MOST_HASHES, schema.n_features - 1))

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about.

        A leaf may have one row of the silo that grows it: other silos' hessians count in
        ``min_child_weight``.
        """
        return PrivacyProperties(job.booster.max_depth, bins=job.booster.max_bin, leaf_rows=1)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        booster = job.booster
        check_declared(self.name, self)
        within("booster", "eta", booster.eta, 1e-6, 1.0)
        within("booster", "num_parallel_tree", booster.num_parallel_tree, 1, 1_000)
        one_of("booster", "tree_method", booster.tree_method, ("hist", "approx", "exact"))
        on_cpus(booster.device)
        one_of("booster", "objective", job.objective, OBJECTIVES[job.task])
        one_of("booster", "sampling_method", booster.sampling_method, ("uniform",))
        check_parameters(job.objective, booster)
        if job.task is Task.MULTICLASS and job.classes == 2:
            raise InvalidJob("task: expected binary for two classes, received multiclass")
        metrics.check(job.metrics, job.task)

    def validate_for(self, job: JobParameters, schema: Schema) -> None:
        """Raise :class:`InvalidJob` where the parameters do not suit the silos' tables."""
        check_fits(job.booster, job.objective, schema)

    def limits(self, job: JobParameters, schema: Schema) -> TreeLimits:
        """Return what a silo's trees must keep to."""
        booster = job.booster
        return TreeLimits(
            groups=step_groups(1, schema.n_outputs, booster.num_parallel_tree),
            n_categories=schema.n_categories,
            max_depth=booster.max_depth,
            max_nodes=0 if booster.tree_method == "exact" else max(0, 2 * booster.max_leaves - 1),
        )
