"""Parameters of boosting over public structures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import LARGE_EPSILON, PrivacyProperties
from hedgerow.boosting.checks import (
    OneOf,
    Within,
    check_declared,
    follows,
    one_of,
    only_with,
    within,
)
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.sums.steps import SumParameters

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

OBJECTIVES = {
    Task.BINARY: "binary:logistic",
    Task.MULTICLASS: "multi:softprob",
    Task.REGRESSION: "reg:squarederror",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What the trees are, and the learning rate of a batch of one tree."""

    trees: int
    depth: int
    trees_per_exchange: int
    step: float


@dataclass(frozen=True, slots=True)
class PrivateBoost:
    """The ``[private_boost]`` table of a job."""

    name: ClassVar[str] = "private_boost"

    epsilon: Annotated[float | None, Within(1e-3, math.inf, below=True)] = None
    """The whole budget, of one row. Without it there is no noise: secure sums only."""
    delta: Annotated[float | None, Within(1e-18, 1e-2)] = None
    """At which the budget is that epsilon: ``n ** -1.1`` is usual, for ``n`` rows of all silos
    together. Both or neither."""
    reason: str = ""
    """Why epsilon is above 10, for those who agree to the job; refused without."""
    trees: Annotated[int, Within(0, 10_000)] = 0
    """0 takes the rule: 1,000 without a budget, else 100 to 600 by epsilon and delta."""
    depth: Annotated[int, Within(0, 10)] = 0
    """0 takes the rule: 6 without a budget, else 3 or 4; 3 where the structure is cyclic."""
    trees_per_exchange: Annotated[int, Within(0, 1_000)] = 0
    """0 takes the rule: 20 without a budget, else 2."""
    structure: Annotated[str, OneOf(("random", "cyclic"))] = "random"
    """Features and thresholds are drawn from the job's seed; "cyclic" makes each tree of one
    feature, features taking turns: the model is a sum of one curve a feature."""
    splits: Annotated[str, OneOf(("level", "node"))] = "level"
    """Whether all nodes of a level split alike, or each in its own way."""
    bins: Annotated[int, Within(2, 1024)] = 32
    """Bins of a numeric feature's range, whose ends are thresholds."""
    step: Annotated[float, Within(0.0, 1.0)] = 0.0
    """Learning rate of a tree; 0 takes the rule: 0.1 without a budget, else 0.2, of several
    classes 0.1 to 0.5, the fewer trees the more."""
    damping: Annotated[float, Within(0.0, math.inf, below=True)] = 5.0
    """Added to the hessians of every leaf."""
    shrinkage: Annotated[float, Within(0.0, 100.0)] = 4.0
    """Deviations of the noise that are added, too."""
    clip: Annotated[float, Within(0.01, 1.0)] = 0.15
    """Largest residual of a regression, in lengths of the label's range."""
    honest: Annotated[int, Within(0, 100_000)] = 0
    """``t``: silos whose parts make up the whole noise; 0 takes all silos but one. A sum is over
    one silo more at least, so that epsilon holds against each silo of it."""
    repeats: Annotated[int, Within(0, 1_000)] = 1
    """Batches that the budget lets silos answer once more, over other silos, after an attempt has
    ended in the middle of one."""
    secure: bool = True
    """False shows the coordinator every silo's sums; then each silo adds the whole noise."""
    dropout_recovery: bool = True
    """False saves an exchange a batch, and ends the attempt when a silo is lost."""

    @property
    def rule(self) -> Rule:
        """The parameters, those left out by the written rule.

        ``delta`` tells the number of rows that it was chosen for, ``delta ** (-1 / 1.1)``: the
        larger that is times epsilon, the more trees and leaves can be told.
        """
        # Curves of few steps, at other places in each tree, are smooth; 64 steps follow chance.
        found = Rule(1000, 3 if self.structure == "cyclic" else 6, 20, 0.1)
        if self.epsilon is not None:
            signal = self.epsilon * (self.delta or 1e-6) ** (-1 / 1.1)
            trees = min(600, max(100, round(100 * (signal / 1000) ** 0.5)))
            deep = signal > 15_000 and self.structure == "random"
            found = Rule(trees, 4 if deep else 3, 2, 0.2)
        return Rule(
            self.trees or found.trees,
            self.depth or found.depth,
            self.trees_per_exchange or found.trees_per_exchange,
            self.step or found.step,
        )

    @property
    def n_results(self) -> int:
        """Rounds that are reported: one for each batch."""
        rule = self.rule
        return -(-rule.trees // rule.trees_per_exchange)

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 100

    def honest_of(self, n_silos: int) -> int:
        """Return how many silos' parts make up the whole noise."""
        if not self.secure:
            return 1
        return self.honest or max(1, n_silos - 1)

    def sum_parameters(self, job: JobParameters, n_silos: int) -> SumParameters:
        """Return how the sums over a roster of ``n_silos`` are made."""
        least = job.min_silos
        if self.epsilon is not None:
            least = max(least, min(self.honest_of(n_silos) + self.secure, n_silos))
        recovery = self.dropout_recovery
        return SumParameters(secure=self.secure, dropout_recovery=recovery, least_silos=least)

    def colluders(self, job: JobParameters, n_silos: int) -> int | None:
        """Return how many silos of each sum may tell the coordinator their parts of the noise."""
        if not self.secure or self.epsilon is None:
            return None
        return self.sum_parameters(job, n_silos).least_silos - self.honest_of(n_silos)

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        hidden = self.epsilon is not None and self.epsilon <= LARGE_EPSILON
        return PrivacyProperties(
            self.rule.depth,
            self.epsilon,
            delta=self.delta or 0.0,
            private=self.epsilon is not None and self.secure,
            bins=self.bins,
            cell_rows=None if hidden else 1,  # of ranges and a seed that the operator chooses
            leaf_rows=None if hidden else 1,
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        check_declared(self.name, self)
        one_of("booster", "objective", job.objective, (OBJECTIVES[job.task],))
        follows(self.name, job.booster, ("base_score",))
        metrics.check(job.metrics, job.task)
        noisy = self.epsilon is not None
        if (self.epsilon is None) != (self.delta is None):
            raise InvalidJob(
                f"[{self.name}] delta: expected both epsilon and delta, or neither; "
                "rows ** -1.1 is a usual delta"
            )
        large = noisy and self.epsilon is not None and self.epsilon > LARGE_EPSILON
        if large and not self.reason.strip():
            raise InvalidJob(
                f"[{self.name}] reason: an epsilon of {self.epsilon:g} promises next to nothing; "
                f"expected at most {LARGE_EPSILON:g}, or the reason for more in words"
            )
        only_with(large, f"an epsilon above {LARGE_EPSILON:g}", self.name, self, "reason")
        only_with(noisy, "a budget", self.name, self, "shrinkage", "repeats")
        only_with(noisy and self.secure, "a budget and secure = true", self.name, self, "honest")
        only_with(self.structure == "random", 'structure = "random"', self.name, self, "splits")
        only_with(self.secure, "secure = true", self.name, self, "dropout_recovery")
        only_with(job.task is Task.REGRESSION, "a regression", self.name, self, "clip")

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where more honest silos are expected than there are."""
        within(self.name, "honest", self.honest, 0, n_silos)
