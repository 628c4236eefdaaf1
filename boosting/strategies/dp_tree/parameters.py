"""Parameters of the differentially private tree."""

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
from hedgerow.boosting.strategies.dp_tree.noisy_tree import QUERIES
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.trees.decision_tree import OBJECTIVES
from hedgerow.boosting.trees.genetics import MAX_DEPTH

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

BINNINGS = ("private", "quantile")


@dataclass(frozen=True, slots=True)
class DPTree:
    """The ``[dp_tree]`` table of a job."""

    name: ClassVar[str] = "dp_tree"

    epsilon: Annotated[float, Within(1e-3, math.inf)]
    """The whole budget; infinite gives the tree without noise. It has no default."""
    depth: Annotated[int, Within(1, MAX_DEPTH)] = 4
    bins: Annotated[int, Within(2, 256)] = 5
    """Bins of a numeric feature."""
    honest: Annotated[int, Within(0, 100_000)] = 0
    """``t``: silos whose parts make up the whole noise; 0 takes all silos but one. A sum is over
    one silo more at least, so that epsilon holds against each silo of it, who knows its own part;
    with all silos it holds against the coordinator only. Only with ``secure``."""
    secure: bool = True
    """False shows the coordinator every silo's counts; then each silo adds the whole noise."""
    binning: Annotated[str, OneOf(BINNINGS)] = "private"
    """``"quantile"`` finds bin edges from sums **without noise**: the edges and the counts behind
    them are not covered by epsilon. What the benchmark in FedGA-Tree does."""
    binning_share: Annotated[float, Within(0.01, 0.9)] = 0.2
    """Share of epsilon that private bin edges spend."""
    query: Annotated[str, OneOf(QUERIES)] = "histogram"

    @property
    def n_results(self) -> int:
        """Results of a full tree: one for each level."""
        return self.depth + 1

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 1

    def honest_of(self, n_silos: int) -> int:
        """Return how many silos' parts make up the whole noise."""
        if not self.secure:
            return 1
        return self.honest or max(1, n_silos - 1)

    def sum_parameters(self, job: JobParameters, n_silos: int) -> SumParameters:
        """Return how the sums over a roster of ``n_silos`` are made."""
        with_member = min(self.honest_of(n_silos) + self.secure, n_silos)
        return SumParameters(secure=self.secure, least_silos=max(job.min_silos, with_member))

    def colluders(self, job: JobParameters, n_silos: int) -> int | None:
        """Return how many silos of each sum may tell the coordinator their parts of the noise.

        ``None`` where there are no parts: no noise, or each silo's own is whole.
        """
        if not self.secure or math.isinf(self.epsilon):
            return None
        return self.sum_parameters(job, n_silos).least_silos - self.honest_of(n_silos)

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        noisy, binning = self.epsilon <= LARGE_EPSILON, self.binning == "private"
        return PrivacyProperties(
            self.depth,
            self.epsilon,
            private=math.isfinite(self.epsilon) and binning and self.secure,
            bins=self.bins,
            cell_rows=None if noisy and binning else 1,
            leaf_rows=None if noisy else 1,
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        check_declared(self.name, self)
        if job.task is Task.REGRESSION:
            raise InvalidJob("task: expected classes to count, received a regression")
        one_of("booster", "objective", job.objective, (OBJECTIVES[job.task],))
        only_with(self.secure, "secure = true", self.name, self, "honest")
        noisy = self.binning == "private" and math.isfinite(self.epsilon)
        only_with(noisy, "private bins and a finite epsilon", self.name, self, "binning_share")
        follows(self.name, job.booster, ())
        metrics.check(job.metrics, job.task)

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where more honest silos are expected than there are."""
        within(self.name, "honest", self.honest, 0, n_silos)
