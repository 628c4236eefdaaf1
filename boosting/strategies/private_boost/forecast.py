"""Exchanges and bytes of boosting over public structures before anyone sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota
from hedgerow.boosting.budget import NOT_REPEATABLE, against_silos
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.strategies.private_boost.mechanism import Mechanism
from hedgerow.boosting.strategies.private_boost.steps import REVEALS, STANDING, leaf_sums
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost


def forecast(
    parameters: PrivateBoost, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return the bytes of all batches: 4 or 8 a sum up, 2 a leaf value down."""
    n_silos = max(len(n_samples), 3 if parameters.secure else 1)
    rule, n_batches = parameters.rule, parameters.n_results
    n_outputs = max(1, schema.n_outputs)
    n_leaves = rule.trees * n_outputs << rule.depth
    rows = sum(n_samples.values())
    sums = parameters.sum_parameters(job, n_silos)
    cost = CostEstimate(
        n_silos, secure=parameters.secure, dropout_recovery=parameters.dropout_recovery
    )
    width = 4 if rows < 1 << 13 or parameters.epsilon is not None else 8
    up, down = 2 * width * n_leaves / n_batches, 2 * n_leaves / n_batches
    cost.exchange(Call.SUMS, SMALL, SMALL)
    cost.sum(Call.HISTOGRAMS, up, down + SMALL, n_batches)
    cost.setups(sums.batch)
    leaves = rows / n_silos * rule.trees * rule.depth * n_outputs
    cost.do(Call.HISTOGRAMS, Work.CELL, 4 * leaves)  # measured
    notes: tuple[str, ...] = (f"{rule.trees} trees of depth {rule.depth} in {n_batches} batches",)
    if parameters.epsilon is not None:
        notes += (
            f"epsilon {parameters.epsilon:g} at delta {parameters.delta:g} for the whole job, a "
            "row being the unit",
            *_against(parameters, job, schema, n_silos, sums.least_silos),
            NOT_REPEATABLE,
        )
    return Forecast(
        rounds=n_batches, steps=cost.steps, reveals=REVEALS, notes=notes, work=cost.work
    )


def _against(
    parameters: PrivateBoost, job: JobParameters, schema: Schema, n_silos: int, n_parts: int
) -> tuple[str, ...]:
    """Return how far epsilon holds against silos that know their parts of a sum's noise."""
    declared = {name for name, _ in (*job.columns.ranges, *job.columns.levels)}
    if not parameters.secure or not declared >= set(schema.names):
        return ()
    plan = Mechanism(parameters, job, schema, n_silos)
    assert parameters.epsilon is not None
    return (against_silos(parameters.epsilon, n_parts, plan.epsilon_against),)


def allowances(
    parameters: PrivateBoost, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: one sum a batch."""
    sums, n_batches = parameters.sum_parameters(job, n_silos), parameters.n_results
    found = SumAllowances(sums, n_silos)
    found.setups(1, n_batches)
    found.sums(leaf_sums(noisy=parameters.epsilon is not None), n_batches, n_batches)
    return (*found.found, StepQuota(STANDING, UNBOUNDED, n_batches + 1))
