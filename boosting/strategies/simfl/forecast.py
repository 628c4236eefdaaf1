"""Rounds and bytes of a SimFL job before anyone trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import StepQuota
from hedgerow.boosting.exchange import Call
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.steps import SYNC, TREES
from hedgerow.boosting.strategies.simfl.steps import GRADIENTS, HASHES, RANGES, REVEALS
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.steps import SUM
from hedgerow.boosting.trees.categories import bytes_of_sets
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.exchange import Silo
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.simfl.parameters import SimFL

_UP, _DOWN = 45, 70
"""Bytes of an exchange beside what it carries; measured."""


def forecast(
    parameters: SimFL, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return rounds and bytes of one silo, the mean of all.

    Of N rows and K silos, a silo sends the hashes of N / K rows and receives the others'; in each
    round the K - 1 others send a number pair for each of N / K rows, and one silo receives their
    total. Trees are taken to be full on rows enough, as in the source, of 7.5 bytes a leaf.
    """
    silos = max(1, sum(1 for n in n_samples.values() if n > 0))
    rows = max(1.0, sum(n_samples.values()) / silos)
    others, share = silos - 1, 1.0 / silos
    full = 2.0 ** (job.booster.max_depth or 12)
    if job.booster.max_leaves:
        full = min(full, float(job.booster.max_leaves))
    leaves = full / (1.0 + 30.0 * full / (rows * silos))
    leaf_bytes = 7.5 + bytes_of_sets(schema, job.booster, pooled=True)[0]
    tree = leaf_bytes * leaves * schema.n_outputs * job.booster.num_parallel_tree + 10.0
    pairs = 8.0 * rows * schema.n_outputs
    bill = CostEstimate(silos, secure=silos >= 3)
    ranges, hashes = 8.0 * schema.n_features, 8.0 * rows * parameters.n_hashes(schema)
    bill.exchange(Call.SKETCHES, ranges + _UP, ranges + _DOWN)
    bill.exchange(Call.SKETCHES, hashes + _UP, others * hashes + _DOWN)
    rounds = parameters.rounds
    bill.exchange(Call.GRADIENTS, others * share * pairs + _UP, share * pairs + _DOWN, rounds)
    bill.exchange(Call.TREES, share * tree + _UP, others * share * tree + _DOWN, rounds + 1)
    n_cells = rows * schema.n_features * (job.booster.max_depth or 12) * schema.n_outputs
    bill.do(Call.TREES, Work.CELL, 6.5 * n_cells * (rounds + silos) / silos)  # growing, scoring
    bill.do(Call.TREES, Work.EXCHANGE, 4.2 * schema.n_outputs * rounds)
    if base_score.fixed(job) is None:
        bill.sum(Call.SUMS, SMALL, SMALL)
        bill.setups(1)
    paper = paper_bytes(parameters, job, schema, silos, round(rows * silos))
    return Forecast(
        rounds,
        bill.steps,
        REVEALS,
        (
            f"all silos together, up and down: {paper} bytes by SimFL's formula "
            "8KNL + 8T(N + (2^D - 1)(K - 1)), whose trees are full",
            "the model has no covers and gains, and so no importance by gain and no SHAP values",
        ),
        cpu_class="minutes",
        work=bill.work,
    )


def paper_bytes(
    parameters: SimFL, job: JobParameters, schema: Schema, n_silos: int, n_rows: int
) -> int:
    """Return ``8KNL + 8T(N + (2^D - 1)(K - 1))``, a term ``8T`` for each output."""
    nodes = (1 << (job.booster.max_depth or 12)) - 1
    trees = 8 * parameters.rounds * schema.n_outputs * (n_rows + nodes * (n_silos - 1))
    return 8 * n_silos * n_rows * parameters.n_hashes(schema) + trees


def allowances(
    parameters: SimFL, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: hashes once, gradients and trees once a round."""
    rounds, secure = parameters.rounds, n_silos >= 3
    means = SumAllowances(mean_parameters(job.min_silos, secure), n_silos)
    if base_score.fixed(job) is None:
        means.sums(SUM, 1)
        if secure:
            means.setups(1, 1)
    return (
        *means.found,
        StepQuota(RANGES, 1),
        StepQuota(HASHES, 1),
        StepQuota(SYNC, rounds + 1, rounds + 1),
        StepQuota(GRADIENTS, rounds, rounds),
        StepQuota(TREES, rounds, rounds),
    )
