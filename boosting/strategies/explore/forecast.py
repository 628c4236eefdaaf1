"""Exchanges and bytes of exploring before anyone sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import StepQuota
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.explore.release import MOST_PASSES
from hedgerow.boosting.strategies.explore.steps import LENGTH, RELEASE, REVEALS
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.sums.maximum import N_PLACES
from hedgerow.boosting.sums.steps import SUM
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters

_PASSES = 8  # of a search, as measured
_KEYS = 7  # that a bin needs, as measured
_LEVELS = 6  # of a categorical column with a share of rows that counts for Cramér's V


def forecast(
    parameters: Explore, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return the bytes of all sums; a search's are as of measured tables."""
    n_silos, rows = max(len(n_samples), 3), sum(n_samples.values())
    sizes = schema.n_categories
    numeric = sum(not size for size in sizes) + (schema.n_classes == 0)
    cells = (numeric * parameters.bins + sum(sizes) + len(sizes)) * max(schema.n_classes, 2)
    levels = sum(min(size, _LEVELS) for size in sizes)
    pairs = numeric * (numeric + 1) + levels * (levels + 1) // 2
    cost = CostEstimate(n_silos, secure=True, dropout_recovery=False, shares_key=True)
    for n_values, times in (
        (max(schema.n_classes, 1), 1),
        (numeric * parameters.bins * _KEYS / _PASSES, _PASSES),
        (numeric * N_PLACES, 1),
        (cells + numeric, 1),
        (2 * numeric, 1),
        (numeric + pairs, 1),
    ):
        cost.exchange(Call.SUMS, SMALL, SMALL, times)
        cost.sum(Call.SUMS, 8 * n_values, 8 * n_values + SMALL, times)
    cost.exchange(Call.SUMS, 8 * (cells + numeric * numeric), SMALL)
    cost.setups(1)
    cost.do(Call.SUMS, Work.CELL, rows / n_silos * numeric * (numeric + 20))
    notes = (f"no count of fewer than {parameters.min_cell} rows of all silos is told",)
    return Forecast(rounds=1, steps=cost.steps, reveals=REVEALS, notes=notes, work=cost.work)


def allowances(
    parameters: Explore, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen."""
    found = SumAllowances(parameters.sum_parameters(job), n_silos)
    found.setups(1)
    found.sums(SUM, MOST_PASSES)
    return (*found.found, StepQuota(LENGTH, MOST_PASSES), StepQuota(RELEASE, 1))
