"""Parameters of bagging."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import (
    OneOf,
    Within,
    check_declared,
    check_gpu,
    one_of,
    only_with,
    within,
)
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bounds import rows_of_leaf
from hedgerow.boosting.engine.objective import check_parameters, check_quantiles, check_ranking
from hedgerow.boosting.engine.ranking import KINDS as RANKINGS
from hedgerow.boosting.engine.survival import check_failure_times
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.strategies.bagging.participation import LR_MODES
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.local import check_fits

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters

OBJECTIVES: dict[Task, tuple[str, ...]] = {
    Task.BINARY: ("binary:logistic", "binary:logitraw"),
    Task.MULTICLASS: ("multi:softprob", "multi:softmax"),
    Task.REGRESSION: (
        "reg:squarederror",
        "reg:pseudohubererror",
        "reg:absoluteerror",
        "reg:quantileerror",
        "reg:squaredlogerror",
        "reg:logistic",
        "reg:gamma",
        "reg:tweedie",
        "count:poisson",
    ),
    Task.SURVIVAL: ("survival:aft",),
    Task.RANKING: tuple(RANKINGS),
}
"""Objectives of XGBoost that silos can share; the others need a statistic of all labels a step."""
_ROUNDS_A_SETUP = 32
"""Rounds whose scores are summed with the same keys; a silo that comes back waits for new ones."""


@dataclass(frozen=True, slots=True)
class Bagging:
    """The ``[bagging]`` table of a job."""

    rounds: Annotated[int, Within(1, 100_000)] = 50
    """Federated rounds; FLeXGBoost's ``num_rounds``."""
    trees_per_round: Annotated[int, Within(1, 1_000)] = 1
    """Boosting steps of a silo in a round; FLeXGBoost's ``num-local-round``. 1 is "tree", more is
    "tree plus"."""
    lr_mode: Annotated[str, OneOf(LR_MODES)] = "rows"
    """Learning rate of silo k among the participants P. All of them fit the same residual, so their
    rates add up to the round's step. ``plain``: ``eta``; ``uniform``: ``eta / |P|``; ``rows``:
    ``eta n_k / sum n`` (FLeXGBoost's ``normalized_lr``); ``gain``: ``eta G_k / sum G`` with the
    total split gain G of the silo's new trees, applied after training; ``total``: as ``rows`` with
    ``eta_total``. Where a participant is lost before it offers, the trees of the others are scaled
    to the rates that hold without it."""
    eta_total: float | None = None
    """The round's step under ``total``."""
    silos_per_round: Annotated[int, Within(0, 1_000_000)] = 0
    """Participants drawn for a round from the job's seed (``num_clients_per_round`` of
    ``pool_size``); 0 for all."""
    scrub: Annotated[str, OneOf(("none", "stats"))] = "stats"
    """``stats``: gains, covers and weights are zeroed before trees leave the silo. Among three
    silos or more, one secure sum after the last round gives the model the covers and gains of all
    silos' rows together; with two it has none, and so no importance by gain and no SHAP values.
    ``none``: each tree has those of the silo that made it."""
    mode: Annotated[str, OneOf(("bagging", "cyclic"))] = "bagging"
    """``bagging``, or ``cyclic``: one silo after the other takes part."""
    validation: Annotated[float, Within(0.0, 0.5)] = 0.0
    """Share of each silo's rows held back for the score that selects the best round."""
    early_stopping_rounds: int = 0
    """Rounds without a better validation score before training ends; 0 for never. The result is
    then the model of the best round."""
    evaluate: Annotated[str, OneOf(("auto", "none", "silos"))] = "auto"
    """Whether silos score their own rows too: ``silos``, ``none``, or ``auto``: where the
    coordinator has no test rows. Scores of three silos or more are masked sums over the rows of
    all; fewer tell each one's metrics to four digits."""
    secure_mean: bool = True
    """Whether the mean label of a regression is summed securely; needs three silos."""
    leaf_bound: Annotated[float, Within(0.0, math.inf)] = 10.0
    """Largest leaf value over the learning rate in a classification; silos keep to it and an upload
    that does not is refused. 0 for no bound."""

    name: ClassVar[str] = "bagging"

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds * self.trees_per_round

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        booster = job.booster
        leaf_rows = rows_of_leaf(job.objective, booster, job.columns)
        return PrivacyProperties(booster.max_depth, bins=booster.max_bin, leaf_rows=leaf_rows)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        name, booster = self.name, job.booster
        check_declared(name, self)
        within(name, "early_stopping_rounds", self.early_stopping_rounds, 0, self.rounds)
        within("booster", "eta", booster.eta, 1e-6, 1.0)
        within("booster", "num_parallel_tree", booster.num_parallel_tree, 1, 1_000)
        one_of("booster", "tree_method", booster.tree_method, ("hist", "approx", "exact"))
        check_gpu(booster.device, booster.tree_method)
        one_of("booster", "objective", job.objective, OBJECTIVES[job.task])
        one_of("booster", "sampling_method", booster.sampling_method, ("uniform",))
        check_parameters(job.objective, booster)
        check_failure_times(booster)
        check_ranking(booster)
        check_quantiles(booster, 1e-6, 1 - 1e-6)
        if booster.more_alphas:
            raise InvalidJob(
                "[booster] quantile_alpha, more_alphas: expected one with bagging, received "
                f"{len(booster.quantiles)}: take histogram, or submit a job for each"
            )
        regression = job.task is Task.REGRESSION
        only_with(regression, "a regression", name, self, "secure_mean")
        only_with(job.task.of_classes, "a classification", name, self, "leaf_bound")
        only_with(self.mode == "bagging", "mode = 'bagging'", name, self, "silos_per_round")
        if self.lr_mode == "total":
            if self.eta_total is None:
                raise InvalidJob("[bagging] eta_total: lr_mode total requires a value")
            within(name, "eta_total", self.eta_total, 1e-6, math.inf)
        elif self.eta_total is not None:
            raise InvalidJob(
                f"[bagging] eta_total: expected none with lr_mode {self.lr_mode}, "
                f"received {self.eta_total}"
            )
        if self.early_stopping_rounds and self.validation == 0.0:
            raise InvalidJob(
                "[bagging] validation: expected above 0 for early stopping, received 0"
            )
        if job.task is Task.MULTICLASS and job.classes == 2:
            raise InvalidJob("task: expected binary for two classes, received multiclass")
        metrics.check(job.metrics, job.task, len(job.labels), job.objective)

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where more silos are to be drawn than there are."""
        within(self.name, "silos_per_round", self.silos_per_round, 0, n_silos)

    def draws(self, job: JobParameters) -> bool:
        """Return whether rows, columns or silos are drawn for each round, or take turns."""
        return bool(self.silos_per_round) or self.mode == "cyclic" or job.booster.draws

    def validate_for(self, job: JobParameters, schema: Schema) -> None:
        """Raise :class:`InvalidJob` where the parameters do not suit the silos' tables."""
        check_fits(job.booster, job.objective, schema)

    def step(self, job: JobParameters) -> float:
        """Return the learning rate that ``lr_mode`` shares out."""
        return job.booster.eta if self.eta_total is None else self.eta_total

    def masks_mean(self, n_silos: int) -> bool:
        """Return whether the mean label is summed securely."""
        return self.secure_mean and n_silos >= 3

    @property
    def rounds_a_setup(self) -> int:
        """Rounds whose scores are summed with the same keys, at most."""
        return min(self.rounds, _ROUNDS_A_SETUP)

    def scores_silos(self, job: JobParameters) -> bool:
        """Return whether silos score the rows that they train on."""
        auto = self.evaluate == "auto" and not job.has_test
        return auto or self.evaluate == "silos"

    def sums_covers(self, n_silos: int) -> bool:
        """Return whether covers and gains are summed over all silos after the last round."""
        return self.scrub == "stats" and n_silos >= 3

    def limits(self, job: JobParameters, schema: Schema, n_steps: int, eta: float) -> TreeLimits:
        """Return what a silo's trees must keep to."""
        bounded = self.leaf_bound > 0 and job.task.of_classes
        booster = job.booster
        return TreeLimits(
            groups=step_groups(n_steps, schema.n_outputs, booster.num_parallel_tree),
            n_categories=schema.n_categories,
            max_depth=booster.max_depth,
            max_nodes=0 if booster.tree_method == "exact" else max(0, 2 * booster.max_leaves - 1),
            leaf_bound=self.leaf_bound * eta if bounded else math.inf,
        )
