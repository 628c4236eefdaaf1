"""Rounds and bytes of a job before anyone trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import StepQuota
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.exchange import Call
from hedgerow.boosting.metric_sums import n_residues
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.scores import finds_weight, masks_scores, score_parameters
from hedgerow.boosting.rounds.steps import SYNC, TREES
from hedgerow.boosting.strategies.bagging.covers import cover_parameters, n_bounds
from hedgerow.boosting.strategies.bagging.steps import COVERS, REVEALS, SCORES
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.steps import SUM
from hedgerow.boosting.trees.categories import bytes_of_sets
from hedgerow.boosting.trees.packing import Shrinkage, pack
from hedgerow.boosting.trees.samples import SampledTrees, measure, most_leaves, told_most
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset, Schema
    from hedgerow.boosting.exchange import Silo
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.bagging.parameters import Bagging
    from hedgerow.boosting.trees.ensemble import Tree

NO_COVERS = (
    "fewer than three silos: the model has no covers and gains, and so no importance by gain and "
    "no SHAP values"
)
"""What a scrubbed job lacks with two silos."""

_ROWS_OF_LEAF = {Task.BINARY: 30.0, Task.MULTICLASS: 200.0}
"""Of other tasks 7."""


def forecast(
    parameters: Bagging,
    job: JobParameters,
    schema: Schema,
    n_samples: Mapping[Silo, int],
    sizes: SampledTrees | None = None,
) -> Forecast:
    """Return rounds and bytes of one silo.

    How many leaves a tree of depth D has on n rows, and in how many bytes its thresholds pack,
    depends on the data: the forecast takes ``2^D / (1 + c * 2^D / n)`` leaves with c = 30 (7 for
    regression, 200 for multi-class) of 12.5 bytes (7.5 scrubbed), the middle of seven public sets;
    on others .43 to 3.21 times of that was measured. Splits of categories take more
    (:func:`bytes_of_sets`). Where ``sizes`` are given, they are taken.
    """
    silos = max(1, sum(1 for n in n_samples.values() if n > 0))
    rows = max(1.0, sum(n_samples.values()) / silos)
    rounds = parameters.rounds
    most = most_leaves(job.booster, n_samples.values())
    full = min(most, 2.0 ** (job.booster.max_depth or 12))
    of_sets, most_of_sets = bytes_of_sets(schema, job.booster)
    note = "trees have the size of some that were grown now"
    if sizes is None:
        note = (
            "the size of trees depends on the data: ExchangeTrees is a guess, of which .4 to 3.3 "
            "times was measured; plan --silo grows some trees and takes their size"
        )
        leaves = full / (1.0 + _ROWS_OF_LEAF.get(job.task, 7.0) * full / rows)
        of_leaf = (12.5 if parameters.scrub == "none" else 7.5) + of_sets
        sizes = SampledTrees(leaves, leaves * of_leaf)
    steps = parameters.trees_per_round * schema.n_outputs * job.booster.num_parallel_tree
    tree_bytes = steps * sizes.n_bytes + 10.0
    taking_part = (
        1 if parameters.mode == "cyclic" else min(silos, parameters.silos_per_round or silos)
    )
    share = taking_part / silos
    up = rounds * (share * tree_bytes + 50)
    down = rounds * (taking_part - share) * (tree_bytes + 12) + rounds * 100
    bill = CostEstimate(silos, secure=parameters.masks_mean(silos))
    bill.exchange(Call.TREES, up / (rounds + 1), down / (rounds + 1), rounds + 1)
    n_cells = rows * schema.n_features * (job.booster.max_depth or 12) * steps
    bill.do(Call.TREES, Work.CELL, 6.5 * n_cells * rounds)  # growing, routing and scoring; measured
    bill.do(Call.TREES, Work.EXCHANGE, 4.2 * steps * rounds)
    if base_score.fixed(job) is None:
        bill.sum(Call.SUMS, SMALL, SMALL)
        bill.setups(1)
    n_scored = _scored_tables(parameters, job)
    names = job.metrics or metrics.defaults(job.task)
    if n_scored and masks_scores(silos):
        scores = CostEstimate(silos, secure=True, shares_key=finds_weight(job))
        width = n_residues(names, schema.n_scored)
        bounds, a_setup = finds_weight(job), parameters.rounds_a_setup
        scores.float_sum(Call.SCORES, 8.0 * n_scored * width, 4, rounds, bounds=bounds)
        batch = score_parameters(job, a_setup).batch
        scores.setups(batch, -(-rounds // a_setup), n_sums=batch)
        bill.add(scores)
    elif n_scored:
        bill.exchange(Call.SCORES, n_scored * (8 + 8 * len(names)) + 50, 4, rounds)
    sums_covers = parameters.sums_covers(silos)
    if sums_covers:
        covers = CostEstimate(silos, secure=True, shares_key=True)
        size = 12.0 * rounds * taking_part * steps * sizes.leaves
        covers.float_sum(Call.SUMS, size, SMALL, bounds=n_bounds(job))
        covers.setups(2)
        bill.add(covers)
    bound = rounds * (steps * most * (32 + most_of_sets) + 200)
    return Forecast(
        rounds,
        bill.steps,
        REVEALS,
        (
            note,
            f"full trees: {told_most(bound, taking_part * bound)}",
            *(() if sums_covers or parameters.scrub == "none" else (NO_COVERS,)),
        ),
        work=bill.work,
    )


def tree_sizes(
    parameters: Bagging, job: JobParameters, tables: Sequence[Dataset]
) -> SampledTrees | None:
    """Return the sizes of the first trees on these tables."""
    booster = job.booster
    shrinkage = Shrinkage(booster.eta / booster.num_parallel_tree, booster.lambda_, booster.alpha)

    def sent(trees: Sequence[Tree]) -> int:
        scrubs = parameters.scrub == "stats"
        return len(pack([tree.scrubbed() for tree in trees] if scrubs else trees, shrinkage))

    return measure(
        tables, booster, job.objective, parameters.rounds * parameters.trees_per_round, sent
    )


def allowances(
    parameters: Bagging, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: trees and scores once a round, covers once.

    A setup for scores with too few silos is retried in the next round.
    """
    rounds = parameters.rounds
    secure = parameters.masks_mean(n_silos)
    sums_covers = parameters.sums_covers(n_silos)
    averages = base_score.fixed(job) is None
    means = SumAllowances(mean_parameters(job.min_silos, secure), n_silos)
    covers = SumAllowances(cover_parameters(job.min_silos), n_silos)
    if averages:
        means.sums(SUM, 1)
    if sums_covers:
        covers.float_sums(COVERS, 1, rounds + 1)
    scores = SumAllowances(score_parameters(job, parameters.rounds_a_setup), n_silos)
    scored = _scored_tables(parameters, job) > 0
    masks = scored and masks_scores(n_silos)
    if masks:
        scores.float_sums(SCORES, rounds, rounds, 2, bounds=finds_weight(job))
    if (averages and secure) or sums_covers or masks:
        times = (averages and secure) + sums_covers + masks * rounds
        covers.setups(times, rounds + 1, 1 + masks)
    return (
        *means.found,
        *covers.found,
        *scores.found,
        StepQuota(SYNC, rounds + 1, rounds + 1),
        StepQuota(TREES, rounds, rounds),
        *([StepQuota(SCORES.plain, rounds, rounds)] if scored and not masks else ()),
    )


def _scored_tables(parameters: Bagging, job: JobParameters) -> int:
    """Return how many tables of its own a silo scores: the rows trained on, those held back."""
    return parameters.scores_silos(job) + (parameters.validation > 0)
