"""The expected cost of a histogram job, by formulas that assume full trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota, most_levels
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bisection import MOST_PASSES
from hedgerow.boosting.engine.cox import n_risk_values
from hedgerow.boosting.engine.leaf_quantiles import N_PASSES as LEAF_PASSES
from hedgerow.boosting.engine.objective import StartRule, unusual_loss
from hedgerow.boosting.engine.sampling import ThresholdSearch
from hedgerow.boosting.engine.summaries import summary_points
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.job import ADAPTIVE
from hedgerow.boosting.metric_sums import n_residues
from hedgerow.boosting.strategies.histogram.opening import most_cells
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan
from hedgerow.boosting.strategies.histogram.rings import MISSING_BITS, PASSES, Widest
from hedgerow.boosting.strategies.histogram.steps import (
    COUNTS,
    CUTS,
    ENTER,
    ERRORS,
    GROWN,
    HISTOGRAMS,
    LEAVES,
    MEDIAN,
    PROPOSALS,
    QUANTILES,
    RISK,
    SCORES,
    SYNC,
    THRESHOLDS,
    DecidedSum,
    reveals,
)
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.sums.maximum import N_PLACES
from hedgerow.boosting.sums.steps import SUM
from hedgerow.boosting.work import Forecast, Work
from hedgerow.crypto.masking.totals import N_LIMBS

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.cohorts import Cohort
    from hedgerow.boosting.strategies.histogram.parameters import Histogram

_RINGS = 40  # heads of the widths of what is asked next
_PASSES = 9  # of a search of smooth columns
_RESIDUALS = 29  # that rows of a leaf are counted below, of smooth labels
_EVENTS = 0.6  # share of rows of survival whose event was seen
_WORD = 8 * N_LIMBS
_TOTALS = 60  # a word, and heads of arrays
_WIDE, _HEAVY = 500, 5e6  # columns, and bytes of a round, from which a plan says what to change
_SPLIT = 17  # node, feature, bin, default, and a node requested next


def _search(parameters: Histogram, max_bin: int, n_rows: int) -> tuple[int, float]:
    """Return bins of a column and the counts that its search asks for, of smooth distributions.

    Both are fitted to normal, lognormal and even columns of 200 to 100,000 rows.
    """
    least = parameters.min_cell
    error = parameters.binning_error if parameters.binning == "recursive" else 0.0
    bins = min(max_bin, n_rows / (1.6 * least) if least > 1 else n_rows)
    bins = max(1.0, min(bins, 0.72 / error if error else bins))
    finer = -math.log2(8 * bins * max(error, least / max(n_rows, 1))) if error else 0.0
    return round(bins), 45 + bins * max(1.4, 4.6 + finer * (2.2 if finer > 0 else 1.1))


def _bits_a_number(plan: HistogramPlan, n_rows: int, level: int) -> float:
    """Return the mean bits of a number of a level's sums (:mod:`.rings`), with bins left out.

    Assumes features without missing values whose bins have as many rows each, no row weights, and
    nodes that divide their rows evenly.
    """
    bound = plan.objective.bound or (1.0, 1.0)
    scales = plan.scales(plan.numbers(n_rows, bound))
    widest = Widest.of(scales[0])
    sizes = plan.most_bins
    if level == 0:
        return (widest.grad + widest.hess) / 2 + MISSING_BITS / plan.width / float(sizes.mean())
    rows = max(1.0, n_rows / 2 ** (level - 1))
    in_bin = np.maximum(rows / sizes, 1.0)
    in_bin += 2 * np.sqrt(in_bin)  # the greatest bin, where splits have left bins of many sizes
    row_g, row_h = scales[0].most_grad / n_rows, scales[0].most_hess / n_rows
    grad = np.minimum(np.log2(4 * np.sqrt(in_bin) * row_g / 2) + 1.5, widest.grad)
    hess = np.minimum(np.log2(in_bin * row_h) + 0.5, widest.hess)
    path = (1 - 0.5 / sizes.shape[0]) ** level
    sent = np.maximum(sizes * path - 1, 0)
    return float((sent * (grad + hess)).sum() / sizes.sum() / 2)


def forecast(
    parameters: Histogram, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return messages and bytes of one silo by step, and what is revealed."""
    first = next(iter(parameters.one_output_rounds), 0)
    plan = HistogramPlan.of(parameters, job, schema).of_round(first)
    ways = {
        "secure": parameters.secure,
        "dropout_recovery": parameters.dropout_recovery,
        "shares_key": parameters.sum_parameters(job).shares_key,
    }
    bill = CostEstimate(max(len(n_samples), 1), **ways)
    n_rows = sum(n_samples.values())
    max_bin, n_numeric = job.booster.max_bin, len(plan.numeric)
    bins, counts = _search(parameters, max_bin, n_rows)
    if parameters.binning != "given" and not parameters.blind_coordinator:
        few = replace(plan.job, booster=replace(job.booster, max_bin=max(2, bins)))
        plan = HistogramPlan.of(parameters, few, schema).of_round(first)
    bill.exchange(Call.SKETCHES, SMALL, SMALL, 2)
    n_marks, word = N_PLACES + parameters.checks_totals, _WORD * parameters.checks_totals
    bill.sum(Call.SUMS, 8 * (1 + n_marks), 8 * n_marks + SMALL)
    if job.booster.base_score is None and plan.objective.start_rule is StartRule.MEAN:
        labels = 8 * plan.n_start_values + word
        bill.sum(Call.SUMS, labels, labels + SMALL)
    elif job.booster.base_score is None and plan.objective.start_rule is StartRule.MEDIAN:
        bill.sum(Call.SUMS, 100 + word, 100 + word, 5)
    if plan.objective.in_cells:
        n_searched = round(_EVENTS * n_rows) if plan.objective.by_risk_sets else n_rows
        n_cells, n_counts = _search(parameters, most_cells(plan.objective), n_searched)
        of_cells = 8 * n_counts / _PASSES + word
        bill.sum(Call.SUMS, of_cells, of_cells, _PASSES)
        if plan.objective.by_risk_sets:
            at_risk = 8 * n_risk_values(n_cells) + word
            bill.sum(Call.SUMS, at_risk, at_risk, parameters.rounds)
    if parameters.binning == "summary":
        points = _mean_points(parameters, max_bin, list(n_samples.values()))
        bill.exchange(Call.SKETCHES, n_numeric * points * 12, n_numeric * max_bin * 4)
        bill.sum(Call.SKETCHES, of_bins := 8 * n_numeric * max_bin + word, of_bins)
    elif parameters.binning == "recursive":
        counted = 8 * n_numeric * counts / _PASSES + word
        bill.sum(Call.SKETCHES, counted, counted, _PASSES)
        bill.do(Call.SKETCHES, Work.EXCHANGE, 2 * n_numeric)  # searches of columns; measured
    cohorts, p, whole = parameters.cohorts(job), plan.tree, bill
    rounds = played = parameters.rounds
    if cohorts:  # a silo's mean
        n_drawn = sum(map(len, cohorts))
        played = -(-n_drawn // len(job.silos))
        bill = CostEstimate(-(-n_drawn // rounds), **ways)
    rule, found = plan.bounds, 8 * (N_PLACES + n_marks)
    if rule.asks_rows:
        whole.sum(Call.SUMS, found, found + SMALL, -(-rounds // rule.rounds))
    if rule.asks_sample:
        bill.sum(Call.SUMS, found, found + SMALL, played)
    if parameters.shares_threshold:
        counted = 8 * ThresholdSearch.n_values + word
        bill.sum(Call.SUMS, counted, counted, ThresholdSearch.N_PASSES * played)
    n_levels = plan.n_levels if p.max_depth or p.loss_guided else 12
    for level in range(n_levels):
        n_splits = 1 if p.loss_guided else 1 << level
        reply: float = plan.n_trees * n_splits * _SPLIT
        if parameters.blind_coordinator:
            n_bytes = reply = plan.n_padded(0, level) * plan.blind_ring / 8
        else:
            if level + 1 < n_levels:
                reply += plan.n_trees * (_RINGS + 2 * n_splits * schema.n_features)
            if parameters.filled_bins and 6 <= level < n_levels - 1:
                reply += plan.n_padded(0, level + 1) / plan.width / 8
            n_bytes = plan.n_padded(0, level) * _bits_a_number(plan, n_rows, level) / 8
        nodes = 1 << max(level - 1, 0)  # one of each pair
        if parameters.checks_totals:
            n_bytes += _WORD
            reply += _TOTALS + plan.n_trees * nodes * plan.width * 8
        n_sums = -(-nodes // (parameters.max_split_nodes or nodes))
        times = n_sums * played
        bill.sum(Call.HISTOGRAMS, n_bytes / n_sums, reply / n_sums + SMALL, times, whole=level > 0)
        bill.do(Call.HISTOGRAMS, Work.EXCHANGE, 0.6 * times)  # cuts, splits, routing; measured
    # Below the root the smaller child of each node is counted, and the rows are routed.
    cells_a_tree = n_rows / bill.n_silos * schema.n_features * (1 + 0.5 * (n_levels - 1)) * 1.5
    bill.do(Call.HISTOGRAMS, Work.CELL, cells_a_tree * plan.n_trees * played)
    if parameters.coarse_bits or parameters.checks_totals:
        renewed = plan.n_padded_leaves if parameters.coarse_bits else 0
        reply = SMALL + renewed * 2
        if parameters.checks_totals:
            reply = _TOTALS + SMALL + 4 * plan.n_padded_leaves + renewed * 8
        n_bytes = renewed * parameters.ring_bits // 8 + _WORD * parameters.checks_totals
        bill.sum(Call.HISTOGRAMS, n_bytes, reply, played, whole=True)
    if plan.objective.renews:
        counted = _RESIDUALS * 8 * plan.n_padded_leaves / plan.width + word
        times = LEAF_PASSES * played
        bill.sum(Call.HISTOGRAMS, counted, counted + SMALL, times, whole=True)
        bill.do(Call.HISTOGRAMS, Work.EXCHANGE, 0.6 * times)
    if cohorts:
        bill.setups(1, played, 1)
        grown = plan.n_padded_leaves * (_SPLIT / plan.width + 2)
        bill.exchange(Call.HISTOGRAMS, SMALL, SMALL + grown, rounds - played)
        whole.add(bill)
        bill = whole
    tables = parameters.validation_tables
    stops = bool(parameters.validation or tables or parameters.early_stopping_rounds)
    scored = not parameters.blind_coordinator and (stops or not job.has_test)
    if scored:
        n_numbers = (1 + tables) * n_residues(plan.metric_names, schema.n_scored)
        bill.sum(Call.SUMS, 8 * n_numbers, SMALL, rounds)
        bill.do(Call.SUMS, Work.EXCHANGE, rounds * (4 + 2.75 * parameters.secure))
    if parameters.interval:
        bill.sum(Call.SUMS, 100 + word, 100 + word, 6, whole=True)
    bill.setups(parameters.sum_parameters(job).batch)
    notes = [
        *unusual_loss(job.objective, job.booster),
        f"assumes full trees of {plan.n_levels} levels; smaller trees send less",
    ]
    if parameters.binning == "recursive":
        notes.append("how many values are counted until cut points are found depends on the values")
    if scored:
        rows = "validation" if parameters.validation else "training"
        rows += " and validation" if tables else ""
        notes.append(f"rounds are scored on the silos' {rows} rows by secure sums")
    notes += _wide_notes(schema.n_features, bill.steps[Call.HISTOGRAMS.value][1] / rounds)
    notes += _drawn_notes(parameters, job, cohorts)
    all_rows = sorted(silo for silo, n in n_samples.items() if parameters.sampler.keeps_all(n))
    if parameters.sampling == "goss" and all_rows:
        notes.append(f"too few rows for GOSS, all of them are used in: {', '.join(all_rows)}")
    cells = n_rows * schema.n_features * rounds * plan.n_trees
    return Forecast(
        rounds,
        dict(sorted(bill.steps.items())),
        reveals(
            {
                "quantile": job.objective in ADAPTIVE,
                "cox": job.objective == "survival:cox",
                "loss": bool(job.booster.loss),
                "interval": parameters.interval > 0,
                "ranking": job.task is Task.RANKING,
                "close": job.max_close_sums > 0 or parameters.silos_per_round > 0,
                "secure": parameters.secure,
                "clear": not parameters.secure,
                "blind": parameters.blind_coordinator,
                "recursive": parameters.binning == "recursive",
                "summary": parameters.binning == "summary",
                "global": parameters.sampling_scope == "global",
                "proportional": parameters.bins_policy == "proportional",
                "drawn": parameters.silos_per_round > 0,
            }
        ),
        tuple(notes),
        "seconds" if cells < 1e9 else "minutes" if cells < 1e12 else "hours",
        bill.work,
    )


def _mean_points(parameters: Histogram, max_bin: int, n_samples: Sequence[int]) -> float:
    """Return a silo's mean number of points in the summary of a feature without equal values."""
    total, largest = sum(n_samples), max(n_samples, default=0)
    policy, epsilon = parameters.bins_policy, parameters.pax_epsilon
    points = [
        min(n, summary_points(policy, max_bin, n, total, largest, len(n_samples), epsilon))
        for n in n_samples
    ]
    return sum(points) / max(len(points), 1)


def _wide_notes(n_features: int, up: float) -> list[str]:
    """Return what to change where histograms of many columns move, or cut points take, very much.

    Parameters
    ----------
    up : float
        Bytes of a silo's histograms of a round.
    """
    if n_features < _WIDE and up < _HEAVY:
        return []
    return [
        f"{n_features:,} columns: {up / 1e6:.1f} MB of histograms up from a silo each round, and "
        "cut points are searched column by column: drop columns that say nothing (features, "
        "[columns] drop), set a smaller [booster] max_bin, or take bagging or private_boost, "
        "whose bytes do not grow with columns"
    ]


def _drawn_notes(parameters: Histogram, job: JobParameters, cohorts: Sequence[Cohort]) -> list[str]:
    """Say which silos the sums are over, and how far those of two rounds tell silos apart."""
    if not cohorts:
        return []
    sizes = sorted({len(drawn) for drawn in cohorts})
    number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    found = [f"a round is over {number} of {len(job.silos)} silos, which the job's seed draws"]
    if parameters.secure:
        found.append(
            f"{parameters.close_cohorts(job)} of the sets of silos that are drawn tell fewer than "
            "three silos apart by the sets before them; the difference of two rounds' sums "
            "estimates theirs"
        )
    return found


def allowances(
    parameters: Histogram, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: the opening once, then as many levels a round."""
    plan = HistogramPlan.of(parameters, job, schema)
    rounds, blind = parameters.rounds, parameters.blind_coordinator
    sums = SumAllowances(parameters.sum_parameters(job), n_silos)

    def add(kind: DecidedSum[Any], times: int, rounds: int = 1, levels: int = 1) -> None:
        sums.sums(kind.relayed if blind else kind.decided, times, rounds, levels)

    found = [
        StepQuota(SYNC, UNBOUNDED),
        StepQuota(ENTER, rounds + 1, rounds + 1),
    ]
    drawn = bool(parameters.silos_per_round)
    sums.setups(rounds << drawn, rounds)
    if drawn:
        found.append(StepQuota(GROWN, rounds, rounds))
    starts_from = None if job.booster.base_score is not None else plan.objective.start_rule
    asked = plan.bounds.asks_rows + plan.bounds.asks_sample
    opening = 2 if starts_from is StartRule.MEAN else 1
    asked += plan.checks_totals  # who has checked the trees, at each entry
    sums.sums(SUM, opening + rounds * asked, rounds if asked else 1)
    if starts_from is StartRule.MEDIAN or plan.objective.in_cells:
        add(MEDIAN, MOST_PASSES)
    if parameters.interval:
        add(ERRORS, MOST_PASSES, rounds)
    if plan.objective.by_risk_sets:
        sums.sums(RISK, rounds, rounds)
    if plan.objective.renews:
        add(QUANTILES, LEAF_PASSES * rounds, rounds)
    if parameters.binning == "summary":
        found.append(StepQuota(CUTS, 1))
        add(COUNTS, 1)
    elif parameters.binning == "recursive":
        add(COUNTS, MOST_PASSES)
        found += [StepQuota(PROPOSALS, 2 * MOST_PASSES + 2)] * blind
    if parameters.shares_threshold:
        add(THRESHOLDS, ThresholdSearch.N_PASSES * rounds, rounds)
    booster, most_nodes = parameters.booster_of(job), parameters.max_split_nodes
    levels = most_levels(booster, booster.max_depth, most_nodes)
    # Below the root a level may be summed again.
    passes = levels if blind else 1 + PASSES * (levels - 1)
    add(HISTOGRAMS, rounds * passes, rounds, levels)
    if parameters.coarse_bits or parameters.checks_totals:
        add(LEAVES, rounds, rounds)
    if not blind:
        sums.sums(SCORES, rounds, rounds)
    return (*sums.found, *found)
