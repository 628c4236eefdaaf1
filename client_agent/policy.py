"""The silo's own rules, checked before anything leaves; the coordinator cannot override them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hedgerow.boosting.allowances import (
    EVERY_CLASS,
    IN_CLEAR,
    LARGE_EPSILON,
    UNLESS_SAID,
    PartyLimits,
    StepQuota,
    disclosed,
)
from hedgerow.boosting.engine.bisection import MIN_CELL
from hedgerow.boosting.errors import InvalidJob, PolicyDeclined
from hedgerow.boosting.exchange import Discloses
from hedgerow.boosting.job import Approvals
from hedgerow.boosting.metrics.scores import REGISTRY
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.warm_start import from_model
from hedgerow.boosting.work import Forecast
from hedgerow.services.wire.acceptance import MOST_COLUMNS, is_column

DEFAULT_DELTA = 1e-5
_NOT_TOLD = {"strategies", "announce", "announce_columns"}


class Policy(BaseModel):
    """``[policy]`` of the agent's configuration.

    What is not set is not restricted, but for values, counts and scores in clear, bins and losses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategies: tuple[str, ...] = Field(
        default=(),
        description="Strategies that may run; empty allows all of Hedgerow's own. One of another "
        "package runs only where it is named.",
    )
    metrics: tuple[str, ...] = Field(
        default=(), description="Metrics of other packages that may run; all of Hedgerow's own may."
    )
    operators: tuple[str, ...] = Field(
        default=(),
        description='Operators whose jobs may run, "all its silos" for those of scripts; empty '
        "allows all.",
    )
    approvers: tuple[str, ...] = Field(
        default=(),
        description="People, by the names of their certificates, of whom min_approvals must have "
        "approved a job.",
    )
    min_approvals: int = Field(
        default=0, ge=0, description="How many of approvers must approve a job; 0 for all of them."
    )
    min_silos: int = Field(default=1, ge=1, description="Least number of silos in a job.")
    min_rows: int = Field(default=0, ge=0, description="Least number of own rows.")
    features: tuple[str, ...] = Field(
        default=(), description="Columns of the table that may be features; empty allows all."
    )
    categorical: tuple[str, ...] = Field(
        default=(),
        description="Columns of the table whose numbers may leave as names of categories; * for "
        "all.",
    )
    max_depth: int | None = Field(default=None, ge=1, description="Largest tree depth.")
    max_rounds: int | None = Field(default=None, ge=1, description="Most rounds.")
    require_dp: bool = Field(
        default=False,
        description="Whether only jobs may run of which a finite epsilon covers all that leaves.",
    )
    max_epsilon: float | None = Field(
        default=None,
        gt=0,
        description="Most that all jobs together may spend on the table; unset is 10, with "
        "min_cell = 1 no limit.",
    )
    max_epsilon_job: float | None = Field(
        default=None, gt=0, description="Largest privacy budget of a job."
    )
    max_delta: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Largest delta of a privacy budget, and that at which the epsilon of all jobs "
        "is counted; unset is 1e-5 beside max_epsilon, max_epsilon_job or require_dp.",
    )
    min_colluders: int = Field(
        default=1,
        ge=0,
        description="Least number of a sum's silos that may tell the coordinator their parts of "
        "its noise while its epsilon holds; 0 allows jobs whose noise holds against none of them.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Most bytes that may leave in a job: by its forecast, and while it runs.",
    )
    peers: tuple[str, ...] = Field(
        default=(), description="Silos that may be in a job; empty allows all."
    )
    min_key_bits: int = Field(default=2048, ge=2048, description="Least Paillier modulus, bits.")
    min_ids: int = Field(
        default=1, ge=1, description="Least distinct row ids of any party of a vertical job."
    )
    max_ids: int = Field(
        default=20_000_000,
        ge=1,
        description="Most distinct row ids of any party of a vertical job.",
    )
    max_ids_ratio: float = Field(
        default=10.0,
        gt=0,
        description="Most distinct row ids of another party of a vertical job, in multiples of "
        "the own ones.",
    )
    max_ids_asked: float = Field(
        default=1000.0,
        gt=0,
        description="Most row ids about which other parties may ask over all jobs, in multiples of "
        "the own ones.",
    )
    max_common: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Largest share of the own row ids that may be common where another party has "
        "over four times as many.",
    )
    min_bin_rows: int = Field(
        default=5,
        ge=1,
        description="Least rows between two sums over bins of a column in a vertical job.",
    )
    max_classes: int | None = Field(
        default=None, ge=2, description="Most classes of the label of a vertical job."
    )
    max_trees: int | None = Field(default=None, ge=1, description="Most trees of a vertical job.")
    max_gradient_bits: int | None = Field(
        default=None, ge=8, description="Most bits of an encrypted gradient of a vertical job."
    )
    may_send: tuple[Discloses, ...] | None = Field(
        default=None,
        description="Classes of what may leave; unset allows all but quantiles, counts, hashes and "
        "scores.",
    )
    require_hybrid: bool = Field(
        default=False,
        description="Whether secure sums need keys of all silos by ML-KEM-768 beside X25519.",
    )
    max_crl_age: float | None = Field(
        default=None,
        gt=0,
        description="Oldest list of revoked certificates by which jobs may start, hours.",
    )
    require_secure: bool = Field(
        default=False,
        description="Whether no trees, quantiles, counts, hashes and weights may leave in clear.",
    )
    max_categories: int = Field(
        default=100,
        ge=0,
        description="Most categories of a feature, whose names all silos of a job learn.",
    )
    max_bin: int = Field(default=1024, ge=2, description="Most bins of a feature.")
    hide_bins: bool = Field(
        default=False,
        description="Whether no job may show other silos in which bins there are rows.",
    )
    min_leaf_rows: int = Field(
        default=1, ge=1, description="Least rows of a leaf that a job's parameters allow."
    )
    min_cell: int = Field(
        default=MIN_CELL,
        ge=1,
        description="Least rows of all silos between two cut points that a job searches, and of a "
        "count that an explore job tells. Cut points that a job gives may have one between them.",
    )
    max_explorations: int = Field(
        default=1,
        ge=0,
        description="Most explore jobs on the table: the difference of two may be a few rows.",
    )
    missing_codes: Literal["any"] | tuple[float, ...] | None = Field(
        default=None,
        description="Numbers that a job may say stand for missing values, or any: rows that have "
        "one are told apart, however few they are. Unset is 0, -1, 9, 99, 999 and so on, and -9, "
        "-99, ...",
    )
    max_binnings: int = Field(
        default=16,
        ge=0,
        description="Most ways in which jobs may divide the table's columns into bins: between the "
        "cut points of two there may be few rows.",
    )
    max_label_binnings: int = Field(
        default=1,
        ge=0,
        description="Most ways in which jobs with a median or quantile may divide a label of the "
        "table into cells.",
    )
    min_changed_rows: int = Field(
        default=MIN_CELL,
        ge=1,
        description="Least rows that have gone or come, a corrected one as both, where the table "
        "is not as it was in an earlier job: the sums of two jobs tell the rows between them.",
    )
    max_close_sums: int = Field(
        default=0,
        ge=0,
        description="Most sets over which sums of the table may open although they are no union of "
        "whole groups, or tell fewer than three silos apart.",
    )
    start_models: Literal["own", "any", "none"] = Field(
        default="own",
        description="Models from which jobs may start: those that this silo has checked and kept "
        "itself, of a run of the same strategy; any that an operator signs; or none.",
    )
    custom_loss: bool = Field(
        default=False,
        description="Whether a job may write down a loss of its own, whose gradients may be zero "
        "for all rows but a few that its operator looks for.",
    )
    announce: bool = Field(
        default=False,
        description="Whether operators may read the rules; of lists, only that there is one.",
    )
    announce_columns: bool = Field(
        default=False,
        description="Whether operators may read the names of a Parquet table's columns, of "
        "features alone where these are listed; never a value.",
    )
    max_attempts: int = Field(default=100, ge=1, description="Most attempts at one job.")

    @property
    def limits(self) -> PartyLimits:
        """What this silo's half of a vertical job holds the other parties to."""
        bits = self.max_gradient_bits or 0
        return PartyLimits(
            self.min_ids,
            self.max_ids,
            self.min_bin_rows,
            bits,
            self.max_ids_ratio,
            self.max_common,
            Discloses.SCORES in self.classes,
        )

    @property
    def classes(self) -> frozenset[Discloses]:
        """What may leave; :class:`~hedgerow.boosting.allowances.QuotaChannel` holds to it."""
        unset = EVERY_CLASS - UNLESS_SAID
        allowed = unset if self.may_send is None else frozenset(self.may_send)
        forbidden = IN_CLEAR if self.require_secure else frozenset()
        return (allowed | {Discloses.NOTHING}) - forbidden

    @field_validator("strategies")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                STRATEGIES.require(name)
            except InvalidJob as error:
                raise ValueError(str(error)) from error
        return names

    @model_validator(mode="after")
    def _approvable(self) -> Policy:
        if self.min_approvals > len(set(self.approvers)):
            raise ValueError(
                f"min_approvals: expected at most {len(set(self.approvers))}, the number of "
                f"approvers, received {self.min_approvals}"
            )
        return self

    def check_approvers(self, asked: Approvals, operator: str) -> None:
        """Raise :class:`PolicyDeclined` where a job could do without the policy's approvers.

        Enough of them must be among those who approve it; that they have signed is checked apart,
        once the job is to start. Who submits a job is nobody who approves it.
        """
        mine = Approvals(tuple(sorted(set(self.approvers))), self.min_approvals)
        counted = set(mine.without(operator).approvers)
        others = set(asked.without(operator).approvers) - counted
        if mine.approvers and asked.least - len(others) < mine.least:
            _decline(
                "approvers",
                f"{mine.least} of {', '.join(mine.approvers)} must approve a job, beside its "
                f"operator; the job asks {asked.least} of {', '.join(asked.approvers) or 'nobody'}",
            )

    def check(
        self,
        job: JobParameters,
        *,
        operator: str,
        silos: tuple[str, ...],
        columns: Sequence[str],
        named: Sequence[str] = (),
        categories: Mapping[str, int] = MappingProxyType({}),
        n_samples: int,
        forecast: Forecast,
        allowances: Iterable[StepQuota],
    ) -> None:
        """Raise :class:`PolicyDeclined`, naming the first rule that the job breaks.

        Parameters
        ----------
        columns : sequence of str
            The table's own names of the columns that features are made of: a job may rename them.
        named : sequence of str
            Those of them whose numbers all silos would learn as names of categories.
        categories : mapping
            How many categories of each feature all silos would learn.
        """
        strategy = job.strategy
        self.check_asker(strategy.name, operator, silos)
        if n_samples < self.min_rows:
            _decline("min_rows", f"this silo has fewer than {self.min_rows} rows")
        if self.features:
            foreign = [name for name in columns if name not in self.features]
            if foreign:
                _decline("features", f"{foreign[0]} may not be used")
        told = [] if "*" in self.categorical else set(named) - set(self.categorical)
        for name in sorted(told):
            _decline("categorical", f"numbers of {name} may not leave as names of categories")
        if not self._may_be_missing(job.columns.missing):
            _decline(
                "missing_codes",
                f"{job.columns.missing:g} may not stand for missing values, for the rows that have "
                "it would be told apart",
            )
        for name, count in categories.items():
            if count > self.max_categories:  # how many would tell about how many rows there are
                _decline("max_categories", f"{name} has over {self.max_categories} categories")
        kept = job.parameters.safeguards(job)
        if not self._may_have(job.booster.loss):
            _decline("custom_loss", "the job has a loss of its own")
        depth = kept.deepest
        if self.max_depth is not None and (depth == 0 or depth > self.max_depth):
            _decline("max_depth", f"{depth or 'no limit'} is over {self.max_depth}")
        rounds = forecast.rounds
        if self.max_rounds is not None and rounds > self.max_rounds:
            _decline("max_rounds", f"{rounds} is over {self.max_rounds}")
        epsilon = kept.epsilon
        if self.require_dp and epsilon is None:
            _decline("require_dp", f"{strategy.name} gives no differential privacy")
        if self.require_dp and not kept.private:
            _decline("require_dp", "no finite epsilon covers all that the job tells")
        for rule, most in (
            ("max_epsilon_job", self.max_epsilon_job), ("max_epsilon", self.max_epsilon)
        ):  # fmt: skip
            if most is not None and epsilon is not None and epsilon > most:
                _decline(rule, f"{epsilon:g} is over {most:g}")
        most = self.most_delta
        if most is not None and kept.delta > most:
            unset = ", as where it is not set" if self.max_delta is None else ""
            _decline("max_delta", f"{kept.delta:g} is over {most:g}{unset}")
        self.check_noise(job, len(silos))
        leaving = sum(up for _, up, _ in forecast.steps.values())
        if self.max_bytes is not None and leaving > self.max_bytes:
            _decline("max_bytes", f"about {leaving} bytes would leave, at most {self.max_bytes}")
        if kept.key_bits == 0:
            # Without encryption there are no short keys: only a rule that was written forbids it.
            if "min_key_bits" in self.model_fields_set:
                _decline("min_key_bits", "the job does not encrypt")
        elif kept.key_bits is not None and kept.key_bits < self.min_key_bits:
            _decline("min_key_bits", f"{kept.key_bits} is under {self.min_key_bits}")
        for rule, asked, most in (
            ("max_bin", kept.bins, self.max_bin),
            ("max_classes", kept.classes, self.max_classes),
            ("max_trees", kept.trees, self.max_trees),
            ("max_gradient_bits", kept.gradient_bits, self.max_gradient_bits),
        ):
            if most is not None and asked > most:
                _decline(rule, f"{asked} is over {most}")
        if kept.leaf_rows is not None and kept.leaf_rows < self.min_leaf_rows:
            _decline(
                "min_leaf_rows",
                f"a leaf may have {kept.leaf_rows} rows, at least {self.min_leaf_rows}",
            )
        if kept.cell_rows is not None and kept.cell_rows < self.min_cell:
            _decline("min_cell", f"{kept.cell_rows} is under {self.min_cell}")
        if self.hide_bins and kept.filled_bins:
            _decline("hide_bins", "silos learn which bins are empty in all silos")
        if 0 < kept.drawn_silos < self.min_silos:
            _decline(
                "min_silos", f"a round is over {kept.drawn_silos} silos, at least {self.min_silos}"
            )
        self._check_classes(strategy.name, allowances)

    def _may_be_missing(self, code: float | None) -> bool:
        if code is None or self.missing_codes == "any":
            return True
        if self.missing_codes is not None:
            return code in self.missing_codes
        return code in (0.0, -1.0) or (set(f"{abs(code):.0f}") == {"9"} and code == round(code))

    def _may_have(self, loss: str) -> bool:
        return self.custom_loss or not loss

    def check_asker(self, strategy: str, operator: str, silos: tuple[str, ...]) -> None:
        """Raise :class:`PolicyDeclined` where who asks may not; nobody need read the table."""
        self.check_strategy(strategy)
        if self.operators and operator not in self.operators:
            _decline("operators", f"{operator or 'nobody'} is not among them")
        self.check_cohort(silos)

    def check_strategy(self, strategy: str) -> None:
        """Raise :class:`PolicyDeclined` for one that may not run; nothing of it is imported."""
        if self.strategies and strategy not in self.strategies:
            _decline("strategies", f"{strategy} is not among {', '.join(self.strategies)}")
        if not self.strategies and STRATEGIES.is_foreign(strategy):
            _decline("strategies", f"{strategy} is of another package, and is not named")

    def check_packages(self, strategy: str, metrics: Sequence[str]) -> None:
        """Raise :class:`PolicyDeclined` for a strategy or metric that may not run, as above."""
        self.check_strategy(strategy)
        for name in metrics:
            if REGISTRY.is_foreign(family := name.partition("@")[0]) and family not in self.metrics:
                _decline("metrics", f"{family} is of another package, and is not named")

    @property
    def most_epsilon(self) -> float | None:
        """The rule ``max_epsilon``; where it is not set, what noise of many jobs may come to."""
        unset = LARGE_EPSILON if self.min_cell > 1 else None
        return unset if self.max_epsilon is None else self.max_epsilon

    @property
    def most_delta(self) -> float | None:
        """The rule ``max_delta``; where it is not set beside a budget, 1e-5."""
        budgets = self.max_epsilon or self.max_epsilon_job or self.require_dp
        return self.max_delta or (DEFAULT_DELTA if budgets else None)

    @property
    def announced(self) -> tuple[str, ...]:
        """Rules that are set, as operators may read them: of lists of names only that there is one.

        Which features, peers and operators a silo trusts is its own affair.
        """
        if not self.announce:
            return ()
        named = ("features", "peers", "operators")
        given = self.model_dump(mode="json", exclude_unset=True, exclude=_NOT_TOLD)
        return tuple(
            name if name in named else f"{name} = {json.dumps(value)}"
            for name, value in sorted(given.items())
        )

    def told(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return names of columns as operators may read them: none unless the rule says so."""
        given = set(self.features or columns)
        wanted = (one for one in columns if self.announce_columns and one in given)
        return tuple(islice(filter(is_column, wanted), MOST_COLUMNS))

    def _check_classes(self, name: str, allowances: Iterable[StepQuota]) -> None:
        refused = [one for one in disclosed(allowances).items() if one[0] not in self.classes]
        for discloses, step in refused:
            if self.require_secure and discloses in IN_CLEAR:
                _decline("require_secure", f"{name} sends {discloses.value} in step {step!r}")
        if refused:
            sent = ", ".join(f"{discloses.value} in step {step!r}" for discloses, step in refused)
            mend = ", ".join(repr(discloses.value) for discloses, _ in refused)
            _decline("may_send", f"{name} sends {sent}; add {mend} to may_send to allow it")

    def check_attempts(self, times: int) -> None:
        """Raise :class:`PolicyDeclined` where a job was begun too often already."""
        if times > self.max_attempts:
            _decline("max_attempts", f"this silo has begun the job {self.max_attempts} times")

    def check_start(self, job: JobParameters, checked: Callable[[str], tuple[str, str]]) -> None:
        """Raise :class:`PolicyDeclined` where a job may not go on from the model that it names.

        Parameters
        ----------
        checked : callable
            From a job's identifier to the SHA-256 of the model that this silo has itself checked
            and kept at its end, and the strategy; empty where there is none.
        """
        told = job.warm_start
        if told is None or self.start_models == "any":
            return
        if self.start_models == "none":
            _decline("start_models", "the job goes on from an earlier model")
        if not from_model(job):  # structures, of which the coordinator breeds any that it likes
            return
        model, strategy = checked(told.run)
        if model != told.model:
            _decline(
                "start_models", f"this silo has not checked and kept that model of run {told.run}"
            )
        if strategy != job.strategy.name:
            _decline("start_models", f"run {told.run} was of {strategy}, not {job.strategy.name}")

    def check_cohort(self, silos: tuple[str, ...]) -> None:
        """Raise :class:`PolicyDeclined` where the silos of a job are too few, or not all known.

        Silos may come and go between the assignment and the agreement, so both are checked.
        """
        if len(silos) < self.min_silos:
            _decline(
                "min_silos",
                f"the job has {len(silos)} silos, at least {self.min_silos}; a job whose own "
                f"min_silos is {self.min_silos} waits for them",
            )
        strangers = sorted(set(silos) - set(self.peers)) if self.peers else []
        if strangers:
            _decline("peers", f"{strangers[0]} is not among them")

    def check_noise(self, job: JobParameters, n_silos: int) -> None:
        """Raise :class:`PolicyDeclined` where too few silos could undo the noise of a sum.

        As the cohort is, checked again once the silos have agreed.
        """
        held = job.strategy.colluders(job.parameters, job, n_silos)
        if held is not None and held < self.min_colluders:
            _decline(
                "min_colluders",
                f"of {n_silos} silos {held or 'none'} may tell the coordinator their noise while "
                f"the job's epsilon holds, at least {self.min_colluders}; honest = "
                f"{max(n_silos - self.min_colluders, 0)} and min_silos = {n_silos} would do",
            )

    def check_revoked(self, age: float | None) -> None:
        """Raise :class:`PolicyDeclined` where the list of revoked certificates is too old.

        Parameters
        ----------
        age : float or None
            Seconds since the CA signed it; None where there is no list.
        """
        if self.max_crl_age is None or (age is not None and age <= self.max_crl_age * 3600.0):
            return
        old = "there is none" if age is None else f"it is {age / 3600.0:.1f} hours old"
        _decline("max_crl_age", f"of the list of revoked certificates: {old}")


def _decline(rule: str, why: str) -> None:
    raise PolicyDeclined(f"policy rule {rule}: {why}")
