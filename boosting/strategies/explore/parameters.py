"""Parameters of exploring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import Within, check_declared, follows
from hedgerow.boosting.engine.bisection import MIN_CELL
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.sums.steps import SumParameters

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters


@dataclass(frozen=True, slots=True)
class Explore:
    """The ``[explore]`` table of a job."""

    name: ClassVar[str] = "explore"

    bins: Annotated[int, Within(2, 256)] = 20
    """Bins of a numeric column at most; quantiles are told at their ends."""
    min_cell: Annotated[int, Within(1, 1_000_000)] = MIN_CELL
    """Rows of all silos that every count that is told has at least. Means, deviations and
    correlations are rounded so that this many rows move none of them by more than a step."""

    @property
    def n_results(self) -> int:
        """One: the table of statistics."""
        return 1

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 1

    def sum_parameters(self, job: JobParameters) -> SumParameters:
        """Return how sums are made: silos alone open them, and check what was relayed."""
        return SumParameters(
            dropout_recovery=False,
            blind_coordinator=True,
            least_silos=max(job.min_silos, 3),
            checks_totals=True,
        )

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        return PrivacyProperties(
            1, bins=self.bins, cell_rows=self.min_cell, leaf_rows=None, tells_counts=True
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        check_declared(self.name, self)
        follows(self.name, job.booster, ())
        if job.columns.missing_label:
            raise InvalidJob(
                "[columns] missing_label: an explore job counts all rows, for counts with and "
                f"without a few rows tell of these; received {job.columns.missing_label!r}"
            )
        if job.booster.objective is not None:
            raise InvalidJob(
                "[booster] objective: an explore job has none, for it trains no model; received "
                + job.booster.objective
            )
        if job.metrics:
            raise InvalidJob(
                "metrics: an explore job has none, for it trains no model; received "
                + ", ".join(job.metrics)
            )
