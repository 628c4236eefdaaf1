"""What a histogram job is expected to cost: formulas, with trees taken as full."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting import metrics
from hedgerow.boosting.engine.objective import StartRule
from hedgerow.boosting.engine.sampling import N_SCORE_BINS, ThresholdSearch
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.ports import Forecast
from hedgerow.boosting.strategies.histogram.state import Plan
from hedgerow.boosting.sums.costs import SMALL, Bill
from hedgerow.boosting.sums.exact import N_LABEL_VALUES

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram

_SPLIT = 24
_PASSES_A_ROUND = 1.7  # cut points that are found are not counted again


def _bisections(error: float, max_bin: int, n_rows: int) -> float:
    """Return how often each cut point is counted for, on average over smooth distributions."""
    if error * n_rows < 1:
        return 16.0
    return max(2.0, 0.7 - math.log2(error * max_bin))


def forecast(
    strategy: Histogram, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return messages and bytes of one silo by step, and what is revealed."""
    plan = Plan.of(strategy, job, schema)
    bill = Bill(
        max(len(n_samples), 1), secure=strategy.secure, dropout_recovery=strategy.dropout_recovery
    )
    n_rows = sum(n_samples.values())
    max_bin, n_numeric = job.booster.max_bin, len(plan.numeric)
    bill.exchange(Call.SKETCHES, SMALL, SMALL, 2)
    bill.exchange(Call.SUMS, SMALL, SMALL)
    bill.sum(Call.SUMS, 8, SMALL)
    if job.booster.base_score is None and plan.objective.start_rule is StartRule.MEAN:
        bill.sum(Call.SUMS, 8 * N_LABEL_VALUES, 8 * N_LABEL_VALUES + SMALL)
    elif job.booster.base_score is None and plan.objective.start_rule is StartRule.MEDIAN:
        bill.sum(Call.SUMS, 8, SMALL, 32)
    if strategy.binning == "summary":
        points = min(4 * max_bin, max(n_samples.values(), default=0))
        bill.exchange(Call.SKETCHES, n_numeric * points * 12, n_numeric * max_bin * 4)
    elif strategy.binning == "recursive":
        passes = _bisections(strategy.binning_error, max_bin, n_rows)
        counted = n_numeric * (max_bin - 1) * passes / round(passes * _PASSES_A_ROUND)
        told = 8 if strategy.blind_coordinator else 16
        times = round(passes * _PASSES_A_ROUND)
        bill.sum(Call.SKETCHES, 8 * counted, told * counted, times)
    rounds, p = strategy.rounds, plan.parameters
    ring_bytes = (
        4
        if strategy.coarse_bits and n_rows << strategy.coarse_bits < 1 << 30
        else 8
        if strategy.coarse_bits
        else strategy.ring_bits // 8
    )
    if strategy.needs_bounds(job, schema.n_outputs):
        bill.exchange(Call.SUMS, SMALL, SMALL, rounds)
    if strategy.shares_threshold:
        bill.exchange(Call.SUMS, SMALL, SMALL, rounds)
        bill.sum(Call.SUMS, 16 * N_SCORE_BINS, SMALL, ThresholdSearch.N_PASSES * rounds)
    for level in range(plan.n_levels if p.max_depth or p.loss_guided else 12):
        n_splits = 1 if p.loss_guided else 1 << level
        reply = plan.n_trees * n_splits * (_SPLIT + 8)
        if strategy.blind_coordinator:
            reply = plan.n_padded(0, level) * ring_bytes
        n_bytes = plan.n_padded(0, level) * ring_bytes
        bill.sum(Call.HISTOGRAMS, n_bytes, reply + 2 * SMALL, rounds)
    if strategy.coarse_bits:
        n_bytes = plan.n_padded_leaves * strategy.ring_bits // 8
        bill.sum(Call.HISTOGRAMS, n_bytes, plan.n_padded_leaves * 2, rounds)
    if strategy.validation:
        names = job.metrics or metrics.defaults(schema.task)
        bill.exchange(Call.SUMS, SMALL, SMALL, rounds)
        bill.sum(Call.SUMS, 8 * metrics.width(names, schema.n_outputs), SMALL, rounds)
    bill.setups(strategy.sum_parameters(job).batch)
    notes = [f"trees of {plan.n_levels} levels taken as full; smaller trees send less"]
    if not strategy.validation and not strategy.blind_coordinator:
        notes.append("without test rows at the coordinator, rounds are scored by secure sums")
    cells = n_rows * schema.n_features * rounds * plan.n_trees
    return Forecast(
        rounds,
        {
            call: (bill.messages[call], bill.up[call], bill.down[call])
            for call in sorted(bill.messages)
        },
        strategy.reveals,
        tuple(notes),
        "seconds" if cells < 1e9 else "minutes" if cells < 1e12 else "hours",
    )
