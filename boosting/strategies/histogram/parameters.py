"""Parameters of histogram boosting."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import COLUMNS, PrivacyProperties
from hedgerow.boosting.checks import (
    OneOf,
    Within,
    check_declared,
    on_cpus,
    one_of,
    only_with,
    within,
)
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bisection import MIN_CELL
from hedgerow.boosting.engine.bounds import rows_of_leaf
from hedgerow.boosting.engine.objective import (
    StartRule,
    check_parameters,
    objective_of,
    searches_median,
)
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import ADAPTIVE, IN_CELLS
from hedgerow.boosting.strategies.histogram.cohorts import (
    Cohort,
    cohorts,
    drawn_from,
    most_drawn,
    n_close,
)
from hedgerow.boosting.streams import round_drawn
from hedgerow.boosting.sums.steps import SumParameters

if TYPE_CHECKING:
    from hedgerow.boosting.engine.objective import Objective
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import JobParameters


@dataclass(frozen=True, slots=True)
class Histogram:
    """The ``[histogram]`` table of a job."""

    name: ClassVar[str] = "histogram"

    rounds: Annotated[int, Within(1, 100_000)] = 100
    secure: bool = True
    """Mask sums; needs three silos."""
    dropout_recovery: bool = True
    """Go on when silos are lost inside a sum, for one more exchange a sum."""
    blind_coordinator: bool = False
    """Hide totals, trees and cut points from the coordinator. Silos keep the model."""
    threshold: int | None = None
    """Silos that must agree to an unmasking; ``floor(2n/3) + 1`` when ``None``."""
    binning: Annotated[str, OneOf(("summary", "recursive", "given"))] = "recursive"
    """``recursive`` (bisecting on securely summed counts), ``summary`` (quantile summaries in
    clear) or ``given`` (``cut_points``)."""
    cut_points: tuple[str, ...] = ()
    """For ``given``: ``"feature: 0.5 1.5 2"`` for each numeric feature."""
    binning_error: Annotated[float, Within(0.0, 0.1)] = 0.0
    """Rank error of ``recursive``, relative to the rows; 0 is ``1 / (8 max_bin)``, or less where a
    bin is smaller since values of many rows have bins of their own."""
    min_cell: Annotated[int, Within(1, 1_000_000)] = MIN_CELL
    """Rows of all silos that a bin has at least, but with ``given``. ``recursive`` looks for no cut
    point between two values with fewer rows between them. With a median or quantile also of a cell
    of labels, and of a range of residuals that is divided."""
    bins_policy: Annotated[str, OneOf(("fixed", "pax_printed", "proportional"))] = "fixed"
    """Size of a silo's summary: ``fixed``, ``pax_printed`` or ``proportional`` (PAX)."""
    pax_epsilon: Annotated[float, Within(0.0, 1.0)] = 0.0
    """Of ``pax_printed``: ε of the paper's equation 1; a silo with a share s of the rows has ``1 /
    (pax_epsilon s)`` bins. 0 gives equal silos ``max_bin``."""
    growth: Annotated[str, OneOf(("", "depthwise", "lossguide"))] = ""
    """``depthwise`` or ``lossguide``; empty takes ``grow_policy`` of ``[booster]``."""
    max_split_nodes: Annotated[int, Within(0, 1 << 16)] = 0
    """Nodes of a level whose sums are made at a time, by tree, which bounds a silo's vectors; 0 for
    all. The trees are the same for any value."""
    multi_output: bool = False
    """One tree with vector leaves a round instead of one tree a class."""
    one_output_rounds: tuple[int, ...] = ()
    """With ``multi_output``: rounds, from 0, that grow one tree a class nevertheless."""
    sampling: str = "none"
    """``none``, ``uniform``, ``goss`` or ``mvs``; each silo draws from its own rows. A silo with
    too few rows for GOSS uses all of them."""
    sampling_rate: float = 0.5
    """Share of the rows that uniform and MVS keep."""
    sampling_scope: Annotated[str, OneOf(("local", "global"))] = "local"
    """``local``: each silo has its own MVS threshold; ``global``: one for all, from summed
    log-histograms of the rows' scores; silos with larger gradients then keep more rows."""
    reweight: bool = True
    """Whether uniform weights its rows by ``1 / sampling_rate`` (XGBoost does not)."""
    mvs_lambda: float = 0.1
    """See :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    top_rate: float = 0.2
    """See :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    other_rate: float = 0.1
    """See :class:`hedgerow.boosting.engine.sampling.Sampler`."""
    coarse_bits: Annotated[int, OneOf((0, *range(2, 17)))] = 0
    """Bits of the gradients that splits are searched on, 2 to 16; leaves are then renewed from
    lossless sums. 0: lossless throughout."""
    ring_bits: Annotated[int, OneOf((64, 48))] = 64
    """Ring that the range proof of lossless sums fits, 64 or 48."""
    fraction_bits: Annotated[int, OneOf((0, *range(16, 53)))] = 24
    """Of lossless gradients, 16 to 52 and at most what the ring allows; more where gradients are
    bounded below 1/4. 0: as many as the ring allows."""
    filled_bins: bool = False
    """Whether sums leave out bins that the node's parent has empty in all silos, which tells silos
    where others have rows."""
    etas: tuple[float, ...] = ()
    """Step size of each round, in place of ``eta`` of ``[booster]``."""
    class_start: bool = False
    """Whether margins of classes begin at the logarithms of their shares of all rows, less their
    mean, as XGBoost's; at 0 otherwise."""
    feature_weights: tuple[float, ...] = ()
    """How likely each feature is drawn, in their order, where columns are sampled; empty for all
    alike. One of weight 0 is never drawn."""
    base_margin: tuple[str, ...] = ()
    """Columns in which rows bring where their margins begin, one an output, in place of the base
    score. The model has the base score: who predicts gives base margins, too."""
    gradients: str = ""
    """Name and digest of the function by which each script of a federation of scripts computes
    gradients of its rows, in place of those of the objective."""
    validation: Annotated[float, Within(0.0, 0.5)] = 0.0
    """Share of each silo's rows held out to score rounds on."""
    validation_tables: bool = False
    """Whether each silo brings a table of validation rows, in place of ``validation``; rounds are
    then scored on the training rows, too."""
    interval: Annotated[float, Within(0.0, 0.999)] = 0.0
    """Share of rows that an interval around a prediction is to hold: its half width is a secure
    quantile of the errors of rows held back (``validation``, ``validation_tables``); 0 for none."""
    early_stopping_rounds: Annotated[int, Within(0, 100_000)] = 0
    """Rounds without a better score on validation rows, or without these on the training rows, that
    end the job; 0 is never. The result is then the model of the best round."""
    tol: Annotated[float, Within(0.0, math.inf)] = 0.0
    """Only a score that is better by more than this counts as better for
    ``early_stopping_rounds``."""
    silos_per_round: Annotated[int, Within(0, 1_000_000)] = 0
    """Silos, at least, that a round's trees are grown from, drawn by the job's seed from the silos
    that the job names; 0 for all. Six silos and more are drawn in fixed groups of three to five. At
    least ``min_silos``, with secure sums three."""

    @property
    def sampler(self) -> Sampler:
        """How silos draw their rows."""
        return Sampler(
            self.sampling,
            self.sampling_rate if self.sampling in ("uniform", "mvs") else 1.0,
            self.reweight,
            self.mvs_lambda,
            self.top_rate,
            self.other_rate,
        )

    @property
    def shares_threshold(self) -> bool:
        """Whether all silos sample by one threshold."""
        return self.sampling == "mvs" and self.sampling_scope == "global"

    def sum_parameters(self, job: JobParameters) -> SumParameters:
        """Return how sums are made."""
        return SumParameters(
            secure=self.secure,
            dropout_recovery=self.dropout_recovery,
            blind_coordinator=self.blind_coordinator,
            threshold=self.threshold,
            batch=64,
            least_silos=max(job.min_silos, 3 if self.secure else 1),
            checks_totals=self.checks_totals,
        )

    @property
    def checks_totals(self) -> bool:
        """Whether silos check node totals, and derive leaf values from these themselves."""
        return self.secure and not self.blind_coordinator

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where a parameter does not suit the number of silos."""
        if self.threshold is None or not self.secure:
            return
        nearest = min(max(self.threshold, n_silos // 2 + 1), n_silos)
        if self.threshold != nearest:
            raise InvalidJob(
                f"[histogram] threshold: expected more than half of {n_silos} silos and at most "
                f"all, received {self.threshold}; the nearest is {nearest}"
            )

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        booster = job.booster
        # Sampled rows may weigh more than one; the hessians of several outputs are added up.
        others = self.multi_output or self.gradients or booster.loss
        counted = self.sampling == "none" and not others
        leaf_rows = rows_of_leaf(job.objective, booster, job.columns) if counted else 1
        if job.objective in ADAPTIVE:  # a leaf is a quantile in a range of that many rows
            leaf_rows = min(self.min_cell, self._renewed_rows(booster))
        return PrivacyProperties(
            booster.max_depth,
            bins=booster.max_bin,
            cell_rows=1 if self.binning == "given" else self.min_cell,
            leaf_rows=leaf_rows,
            filled_bins=self.filled_bins or self.blind_coordinator,
            drawn_silos=min(map(len, self.cohorts(job)), default=0),
            close_sums=self.close_cohorts(job),
            binnings=self._binnings(job),
        )

    def _binnings(self, job: JobParameters) -> tuple[tuple[str, str], ...]:
        """Return how the job divides labels and columns: by all that the cut points follow from."""
        named = {new: old for old, new in job.columns.rename}
        labels = (job.label, *job.columns.of_label)
        own = {name: named.get(name, name) for name in labels}
        rows = ""
        if self.validation:  # rows held back are drawn by the names that the job has for labels
            rows = f", validation {self.validation!r} of seed {job.seed} and {', '.join(labels)}"
        if job.columns.missing is not None:
            rows += f", missing {job.columns.missing!r}"
        if job.columns.missing_label:
            given = (own[name] for name in (job.label, *job.columns.more_labels))
            rows += f", rows with {' and '.join(given)}"
        found = f"max_bin {job.booster.max_bin}, {self.binning}, min_cell {self.min_cell}"
        if self.binning_error:
            found += f", binning_error {self.binning_error!r}"
        if self.cut_points:
            found += f", cut_points {sha256('; '.join(self.cut_points).encode()).hexdigest()[:16]}"
        binnings = [(COLUMNS, f"{found}{rows}")]
        median = job.booster.base_score is None and searches_median(job.objective)
        if job.objective in IN_CELLS or median:
            seen = job.columns.label_upper or job.columns.event  # whose times alone are divided
            events = f", events by {own[seen]}" if seen else ""
            binnings.append((f"labels {own[job.label]}", f"min_cell {self.min_cell}{rows}{events}"))
        slopes = {name: getattr(job.booster, name) for name in ("huber_slope", "fair_c")}
        steep = [f"{name} {slope!r}" for name, slope in slopes.items() if slope != 1.0]
        if job.objective in _STEPS and (job.booster.base_score is not None or steep):
            # Its first sums count labels on either side of the base score.
            how = ", ".join([f"{job.objective} from {job.booster.base_score!r}", *steep])
            binnings.append((f"labels {own[job.label]}", f"{how}{rows}"))
        if self.interval:  # errors are labels less what the job's own model says of them
            whole = sha256(repr(_said(replace(job, **_NO_MATTER))).encode()).hexdigest()[:16]
            binnings.append(
                (f"errors of {own[job.label]}", f"interval {self.interval!r} of {whole}")
            )
        return tuple(binnings)

    def way_of_model(self, job: JobParameters, model: bytes) -> tuple[str, str]:
        """Return whose errors are counted for an interval: a job may be run to other models."""
        named = {new: old for old, new in job.columns.rename}
        label = named.get(job.label, job.label)
        return f"errors of {label} by its models", f"model {model.hex()[:16]}"

    def check_rows(self, n_rows: int, job: JobParameters) -> None:
        """Refuse draws of a tree that have, or leave out, so few of the rows of a round's silos.

        A tree's first sums are of the drawn rows alone, and those of two trees of a round differ by
        rows that are in one of them. Of a round's silos, of which none knows the others' rows, the
        share of all silos is taken for that of their rows.

        Raises
        ------
        InvalidJob
        """
        shares = {"goss": self.top_rate + self.other_rate, "none": 1.0}
        whose, least = "all silos", 2 * self.min_cell
        if self.sampling != "none" and (drawn_silos := self.cohorts(job)):
            whose = "a round's silos"
            n_rows = n_rows * min(map(len, drawn_silos)) // len(job.silos)
        drawn = shares.get(self.sampling, self.sampling_rate) * n_rows
        if drawn < n_rows and min(drawn, n_rows - drawn) < least:
            raise InvalidJob(
                f"[histogram] sampling: expected draws of {least} rows or more (twice min_cell) "
                f"that leave out as many, received {drawn:.0f} of {n_rows} rows of "
                f"{whose}; raise or lower the share, or sample nothing"
            )

    def draws(self, job: JobParameters) -> bool:
        """Return whether rows, columns, silos or roundings are drawn for each round."""
        others = self.sampling != "none" or self.coarse_bits or self.silos_per_round
        return bool(others) or job.booster.draws

    def close_cohorts(self, job: JobParameters) -> int:
        """Return how many of the sets that are drawn tell fewer than three silos apart."""
        drawn = self.cohorts(job)
        return n_close(job.silos, drawn, job.seed, job.group_size) if self.secure and drawn else 0

    def cohorts(self, job: JobParameters) -> tuple[Cohort, ...]:
        """Return the silos of each round; nothing where all silos take part in all rounds."""
        if not self.silos_per_round:
            return ()
        return cohorts(
            drawn_from(job),
            self.silos_per_round,
            job.seed,
            self.rounds,
            round_drawn(job, 0),
            job.group_size,
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        check_declared(self.name, self)
        _ = self.sampler
        self._validate_effects(job)
        booster = self.booster_of(job)
        objective = self.objective_of(job, booster)
        tree = TreeParameters.of(booster, max(len(booster.monotone_constraints), 1))
        within("booster", "max_bin", booster.max_bin, 2, 65535)
        within("booster", "num_parallel_tree", booster.num_parallel_tree, 1, 1_000)
        if any(not 0 <= one < self.rounds for one in self.one_output_rounds):
            raise InvalidJob(
                f"[histogram] one_output_rounds: expected numbers from 0 to {self.rounds - 1}, "
                f"received {', '.join(map(str, self.one_output_rounds))}"
            )
        if booster.subsample != 1.0:
            raise InvalidJob(
                f"[booster] subsample: expected 1, received {booster.subsample}; use sampling and "
                "sampling_rate of [histogram]"
            )
        if booster.base_score is not None:
            objective.margin_of(booster.base_score)
        elif job.columns.weighs and objective.start_rule is StartRule.MEDIAN:
            raise InvalidJob(
                f"[columns] weight, class_weight: {job.objective} starts from the median of rows "
                "that all count the same: set base_score of [booster]"
            )
        if objective.renews:
            self._validate_renewed(job, tree)
        if objective.by_risk_sets:
            self._validate_compared(job)
        if self.multi_output and (tree.monotone or booster.increasing or booster.decreasing):
            raise InvalidJob(
                "[booster] monotone_constraints: not supported by trees with several outputs"
            )
        if self.binning == "given" and not self.cut_points:
            raise InvalidJob(
                "[histogram] cut_points: expected values with binning = 'given', received none"
            )
        if self.etas and len(self.etas) != self.rounds:
            raise InvalidJob(
                f"[histogram] etas: expected one of each of {self.rounds} rounds, received "
                f"{len(self.etas)}"
            )
        if any(not 0 <= eta < math.inf for eta in self.etas):
            raise InvalidJob("[histogram] etas: expected finite numbers from 0")
        weights = self.feature_weights
        if weights and not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
            raise InvalidJob(
                "[histogram] feature_weights: expected finite numbers from 0, one of them above 0"
            )
        if self.gradients and self.validation:
            raise InvalidJob(
                f"[histogram] validation: expected 0 with gradients of a script, which has its "
                f"rows in order, received {self.validation}; give validation_tables"
            )
        n_outputs = job.classes if job.task is Task.MULTICLASS else len(job.labels)
        if self.base_margin and len(self.base_margin) != (n_outputs or len(self.base_margin)):
            raise InvalidJob(
                f"[histogram] base_margin: expected {n_outputs} columns, one an output, received "
                f"{len(self.base_margin)}"
            )
        if self.validation and self.validation_tables:
            raise InvalidJob(
                "[histogram] validation: expected 0, for silos bring validation_tables, received "
                f"{self.validation}"
            )
        if self.blind_coordinator and job.warm_start is not None:
            raise InvalidJob(
                "[histogram] blind_coordinator: expected false with [warm_start], for the "
                "coordinator has the starting model, received true"
            )
        if self.interval:
            self._validate_interval(job)
        if self.blind_coordinator:
            self._validate_blind(job, tree, objective.start_rule)
        if self.silos_per_round:
            self._validate_drawn(job)
        metrics.check(job.metrics, job.task, len(job.labels), job.objective)

    def _validate_effects(self, job: JobParameters) -> None:
        """Refuse what would be ignored."""
        draw, table, booster = self.sampling, self.name, job.booster
        several = job.task is Task.MULTICLASS or max(len(job.labels), len(booster.quantiles)) > 1
        for condition, needed, names in (
            (draw in ("uniform", "mvs"), "sampling of uniform or mvs", ("sampling_rate",)),
            (draw == "uniform", "sampling = 'uniform'", ("reweight",)),
            (draw == "mvs", "sampling = 'mvs'", ("mvs_lambda", "sampling_scope")),
            (draw == "goss", "sampling = 'goss'", ("top_rate", "other_rate")),
            (self.binning == "recursive", "binning = 'recursive'", ("binning_error",)),
            (
                self.binning != "given" or job.objective in IN_CELLS,
                "binning of recursive or summary",
                ("min_cell",),
            ),
            (self.binning == "summary", "binning = 'summary'", ("bins_policy",)),
            (self.bins_policy == "pax_printed", "bins_policy = 'pax_printed'", ("pax_epsilon",)),
            (self.binning == "given", "binning = 'given'", ("cut_points",)),
            (not self.blind_coordinator, "blind_coordinator = false", ("filled_bins",)),
            (self.secure, "secure = true", ("dropout_recovery", "threshold")),
            (self.early_stopping_rounds, "early_stopping_rounds above 0", ("tol",)),
            (booster.draws, "colsample_bytree, bylevel or bynode", ("feature_weights",)),
            (several, "several classes, labels or quantiles", ("multi_output",)),
            (self.multi_output, "multi_output = true", ("one_output_rounds",)),
            (
                job.task is Task.MULTICLASS and booster.base_score is None and not self.gradients,
                "several classes, no base_score and no gradients",
                ("class_start",),
            ),
        ):
            only_with(condition, needed, table, self, *names)
        depthwise = self.booster_of(job).grow_policy != "lossguide" and not self.blind_coordinator
        needed = "depthwise growth and blind_coordinator = false"
        only_with(depthwise, needed, table, self, "max_split_nodes")
        one_of("booster", "tree_method", booster.tree_method, ("hist",))
        on_cpus(booster.device)
        one_of("booster", "sampling_method", booster.sampling_method, ("uniform",))
        check_parameters(job.objective, booster, "no gradients of a script" * bool(self.gradients))

    def _validate_renewed(self, job: JobParameters, tree: TreeParameters) -> None:
        """Refuse what does not go with leaves that are quantiles of residuals."""
        booster = job.booster
        monotone = tree.monotone or booster.increasing or booster.decreasing
        for refused, key, why in (
            (self.blind_coordinator, "blind_coordinator = true", "silos alone open its sums"),
            (self.silos_per_round, "silos_per_round", "cells of labels are of all silos' rows"),
            (self.coarse_bits, "coarse_bits", "leaves are no sums that could be renewed"),
            (
                self.sampling != "none" and (self.sampling != "uniform" or self.reweight),
                "sampling but uniform with reweight = false",
                "min_child_weight counts rows, each as one",
            ),
            (monotone, "monotone constraints", "quantiles do not keep to them"),
            (job.columns.weighs, "[columns] weight", "rows are counted, each as one"),
            (self.base_margin, "base_margin", "residuals are searched in the range of labels"),
            (len(job.labels) > 1, "several labels", "cells are of one label"),
        ):
            if refused:
                raise InvalidJob(
                    f"[booster] objective: expected another one than {job.objective} with {key}, "
                    f"since {why}"
                )
        if self._renewed_rows(booster) < self.min_cell:
            raise InvalidJob(
                f"[booster] min_child_weight: expected at least min_cell = {self.min_cell} with "
                f"{job.objective}, whose leaves are searched by counts of as many rows, received "
                f"{booster.min_child_weight:g}"
            )

    def _renewed_rows(self, booster: Booster) -> int:
        """Return how many rows a leaf has at least where each row's hessian is 1 of each output."""
        n_outputs = max(len(booster.quantiles), 1) if self.multi_output else 1
        return math.ceil(booster.min_child_weight / n_outputs)

    def _validate_interval(self, job: JobParameters) -> None:
        """Refuse what has no rows or no errors to make intervals of."""
        held = self.validation or self.validation_tables
        for refused, key, why in (
            (job.task is not Task.REGRESSION, "classes or times", "it is around a number"),
            (len(job.labels) > 1, "several labels", "it is of one label"),
            (len(job.booster.quantiles) == 1, "one quantile", "it is around two or more"),
            (not held, "validation = 0", "errors of rows that trees have seen are too small"),
            (self.blind_coordinator, "blind_coordinator", "silos alone open its sums"),
            (self.early_stopping_rounds, "early_stopping_rounds", "errors are of the last round"),
            (job.columns.weighs, "[columns] weight", "rows are counted, each as one"),
        ):
            if refused:
                raise InvalidJob(
                    f"[histogram] interval: expected 0 with {key}, since {why}, received "
                    f"{self.interval:g}"
                )

    def _validate_compared(self, job: JobParameters) -> None:
        """Refuse what does not go with rows that are compared with those of other silos."""
        for refused, key, why in (
            (self.blind_coordinator, "blind_coordinator = true", "silos alone open its sums"),
            (self.silos_per_round, "silos_per_round", "cells of times are of all silos' rows"),
            (self.coarse_bits, "coarse_bits", "few rows have gradients near their bound"),
            (job.columns.weighs, "[columns] weight", "rows at risk are counted, each as one"),
        ):
            if refused:
                raise InvalidJob(
                    f"[booster] objective: expected another one than {job.objective} with {key}, "
                    f"since {why}"
                )

    def _validate_drawn(self, job: JobParameters) -> None:
        """Refuse what does not go with silos that are drawn for a round."""
        least = self.sum_parameters(job).least_silos
        n_silos, most = len(job.silos), most_drawn(job.silos, job.seed, job.group_size)
        if job.silos and self.silos_per_round > most:
            raise InvalidJob(
                f"[histogram] silos_per_round: expected 0 to {most} of {n_silos} silos, which "
                f"leaves some out, received {self.silos_per_round}"
            )
        if self.silos_per_round < least:
            raise InvalidJob(
                f"[histogram] silos_per_round: expected 0 or at least {least}, the fewest silos "
                f"that a sum is over, received {self.silos_per_round}"
            )
        for refused, key, why in (
            (self.blind_coordinator, "blind_coordinator", "all silos open a blind job's sums"),
            (self.shares_threshold, "sampling_scope = 'global'", "nobody knows a cohort's rows"),
            (self.threshold is not None, "threshold", "it follows from the number of silos drawn"),
        ):
            if refused:
                raise InvalidJob(f"[histogram] silos_per_round: expected 0 with {key}, since {why}")

    def _validate_blind(
        self, job: JobParameters, tree: TreeParameters, start_rule: StartRule
    ) -> None:
        if not self.secure:
            raise InvalidJob("[histogram] blind_coordinator: expected secure = true")
        if self.binning == "summary":
            raise InvalidJob(
                "[histogram] binning: expected 'recursive' or 'given', since a blind coordinator "
                "sees no summaries"
            )
        for name in ("validation", "validation_tables", "early_stopping_rounds"):
            if value := getattr(self, name):
                raise InvalidJob(
                    f"[histogram] {name}: expected {type(value)()}, received {value}; a blind "
                    "coordinator learns no scores"
                )
        if self.shares_threshold:
            raise InvalidJob(
                "[histogram] sampling_scope: expected local, since a blind coordinator finds no "
                "threshold"
            )
        if start_rule is StartRule.MEDIAN and job.booster.base_score is None:
            raise InvalidJob(
                "[booster] base_score: expected a number, since a blind coordinator finds no median"
            )
        if not tree.loss_guided:
            within("booster", "max_depth", tree.max_depth, 1, 12)
        elif not tree.max_leaves:
            raise InvalidJob(
                "[booster] max_leaves: expected a limit, since the sums of a blind job are padded "
                "to the largest possible tree"
            )

    def objective_of(self, job: JobParameters, booster: Booster) -> Objective:
        """Return the job's objective."""
        found = objective_of(job.objective, job.task, booster, in_cells=True)
        if self.class_start:
            found = replace(found, start_rule=StartRule.MEAN)
        return found.by_script() if self.gradients else found

    def booster_of(self, job: JobParameters) -> Booster:
        """Return the job's booster with ``growth`` in it."""
        return replace(job.booster, grow_policy=self.growth) if self.growth else job.booster


_STEPS = ("lae", "huber", "reg:pseudohubererror", "fair", "log_cosh")
"""Losses whose gradients are as of a step at the label, or near it."""
_NO_MATTER: dict[str, Any] = {
    "name": "", "min_silos": 1, "metrics": (), "silos": (), "has_test": False, "keep_model": True,
    "step_timeout_seconds": 0.0, "start_timeout_seconds": 0.0, "max_close_sums": 0,
    "approvals": None, "audit": None,
}  # fmt: skip
"""Of a job: what no model follows from."""


def _said(value: Any) -> Any:
    """Return what a record has of other values than its defaults, by name.

    So a field that a later release adds changes nothing while it is not set.
    """
    if not is_dataclass(value):
        return value
    found = []
    for one in fields(value):
        own, made = getattr(value, one.name), one.default_factory
        if own != (one.default if made is MISSING else made()):
            found.append((one.name, _said(own)))
    return sorted(found, key=itemgetter(0))
