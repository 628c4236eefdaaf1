"""What a FedXGBllr job will cost, before anyone trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import pow
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.metric_sums import n_residues
from hedgerow.boosting.rounds.scores import finds_weight, masks_scores
from hedgerow.boosting.strategies.fedxgbllr.agreement import (
    AgreedTerms,
    sum_parameters,
    validation_metrics,
)
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.row_sums import n_bounds
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    BASE,
    CUTS,
    RATES,
    REVEALS,
    SCORES,
    SUMS,
    SYNC,
    TREES,
    TURN,
    WEIGHTS,
)
from hedgerow.boosting.strategies.fedxgbllr.uploads import encode_trees
from hedgerow.boosting.strategies.fedxgbllr.weight_changes import BLOCK
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import SMALL, CostEstimate
from hedgerow.boosting.sums.exact import LIMBS
from hedgerow.boosting.sums.floats import FloatSum
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.trees.categories import bytes_of_sets
from hedgerow.boosting.trees.samples import SampledTrees, measure, most_leaves, told_most
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
    from hedgerow.boosting.trees.ensemble import Tree

_FRAME = 60  # bytes of a step's key and of an array's name, type and shape
_LEAF_BYTES = {("stats", 32): 5.8, ("stats", 16): 4.3, ("none", 32): 10.0}
_BATCH = SumParameters().batch


def leaves_of_tree(job: JobParameters, n_rows: float) -> float:
    """Return about how many leaves a tree has.

    ``2^D / (1 + 0.14 · 2^(0.94 D) / n^0.3)``, over ``1 + ((alpha + gamma) / 3)^1.75`` for what is
    pruned: fitted to trees of depth 5 to 8 on a9a, abalone, cod-rna, cpusmall and HIGGS, of which
    nearly all have between half and twice as many.
    """
    booster = job.booster
    full = float(2 ** (booster.max_depth or 12))
    grown = full / (1.0 + 0.14 * pow(full, 0.94) / pow(max(1.0, n_rows), 0.3))
    if booster.max_leaves:
        grown = min(grown, float(booster.max_leaves))
    return max(1.0, grown / (1.0 + pow((booster.alpha + booster.gamma) / 3.0, 1.75)))


def forecast(
    parameters: FedXGBllr,
    job: JobParameters,
    schema: Schema,
    n_samples: Mapping[Silo, int],
    sizes: SampledTrees | None = None,
) -> Forecast:
    """Return rounds, messages and bytes of one silo, and what is revealed.

    Networks and normal equations are exact. Trees of M steps go up once and (K - 1)·M come down;
    their size, and with it the vectors of ``leaves``, depends on the data and is estimated where
    no ``sizes`` are given.
    """
    job = parameters.silo_job(job, max(1, len(n_samples)))
    n_silos = max(1, sum(1 for n in n_samples.values() if n > 0))
    n_rows = sum(n_samples.values()) / n_silos * (1 - parameters.held_out)
    n_outputs = schema.n_outputs
    per_silo = parameters.steps_per_silo(max(1, len(n_samples)))
    width = per_silo * n_outputs * job.booster.num_parallel_tree
    of_sets, most_of_sets = bytes_of_sets(schema, job.booster)
    if sizes is None:
        leaves = leaves_of_tree(job, n_rows)
        leaf_bytes = _LEAF_BYTES[parameters.scrub, parameters.leaf_bits] + of_sets
        told = f"{leaves:.0f} leaves each are assumed, half or twice that is common"
        sizes = SampledTrees(leaves, leaves * leaf_bytes)
    else:
        told = f"{sizes.leaves:.0f} leaves each, as of some that were grown now"
    leaves = sizes.leaves
    own = width * sizes.n_bytes + _FRAME
    bill = CostEstimate(n_silos, secure=parameters.secure, shares_key=parameters.secure)
    bill.exchange(Call.TREES, own + _FRAME, (n_silos - 1) * (own + _FRAME))
    rounds = parameters.n_rounds
    up, down = _vectors(parameters, width, n_silos, n_outputs, leaves)
    n_weights = 0
    if parameters.is_network:
        n_weights = _head(parameters, width, n_silos, n_outputs).n_parameters
    call = Call.WEIGHTS if parameters.is_network else Call.SUMS

    def add(call: Call, up: float, down: float, times: int = 1, bounds: int = 1) -> None:
        if parameters.secure:
            bill.float_sum(call, up, down + SMALL, times, bounds=bounds)
        else:
            bill.exchange(call, up + _FRAME, down + _FRAME, times)

    if rounds:
        add(call, up, down, rounds, 1 if parameters.is_network else n_bounds(job))
    masks = not parameters.secure and masks_scores(n_silos)
    own_keys = CostEstimate(n_silos, secure=True, shares_key=finds_weight(job))
    if parameters.held_out and rounds:
        names = validation_metrics(job)
        summed = parameters.secure or masks
        size = 8 * (n_residues(names, n_outputs) if summed else len(names))
        bounds = finds_weight(job)
        # round 0 too; the weights of an earlier round that was best come back, at the end
        for times, points, back in ((rounds - 1, 1, 0), (1, 2, 4 * n_weights)):
            if masks:
                own_keys.float_sum(Call.SCORES, points * size, back + SMALL, times, bounds=bounds)
            else:
                add(Call.SCORES, points * size, back, times, bounds)
        own_keys.setups(1 + bounds, rounds * masks, 1 + bounds)
    if parameters.is_network and rounds:
        head = _head(parameters, width, n_silos, n_outputs)
        secure = 8 * (head.n_units + 1)  # counts of rows by hidden unit
        add(
            Call.SCORES, secure if parameters.secure else 4 * n_outputs * head.n_inputs, 0, bounds=0
        )
    bill.do(Call.TREES, Work.EXCHANGE, 6.6 * width)  # grown here, scored everywhere; measured
    bill.do(Call.TREES, Work.CELL, 6.5 * n_rows * schema.n_features * width * 8)
    if parameters.is_network:
        channels = parameters.channels * width * n_silos
        steps = n_rows * parameters.local_epochs * rounds
        bill.do(call, Work.MULTIPLY, 3.0 * steps * channels)  # there, back, and of the weights
    if parameters.needs_label_sums(job):
        summing = own_keys if masks else bill
        summing.sum(Call.SUMS, 8 * 3 * LIMBS, SMALL + _FRAME)
        own_keys.setups(1, int(masks), 1)
    bill.add(own_keys)
    if parameters.shared_cuts:
        size = schema.n_features * parameters.shared_cuts
        bill.exchange(Call.SKETCHES, 48 * size, 4 * size)
    bill.setups(_BATCH, rounds + parameters.needs_label_sums(job), 1)
    full = own + width * most_leaves(job.booster, n_samples.values()) * (24 + most_of_sets) + 200
    notes = [
        f"trees: {told}; {told_most(full, (n_silos - 1) * full)}",
        f"{per_silo} boosting steps a silo",
    ]
    if parameters.is_network:
        notes.append(f"network: {n_weights} weights")
    slow = parameters.is_network and n_rows * parameters.local_epochs * rounds > 2e6
    return Forecast(
        rounds + 1,
        dict(sorted(bill.steps.items())),
        REVEALS,
        tuple(notes),
        "minutes" if slow else "seconds",
        bill.work,
    )


def tree_sizes(
    parameters: FedXGBllr, job: JobParameters, tables: Sequence[Dataset]
) -> SampledTrees | None:
    """Return the sizes of trees on as many rows of these tables as they are grown on."""
    if not tables:
        return None
    terms = AgreedTerms.start(parameters, job, tables[0].schema, len(tables))
    y = np.concatenate([table.labels for table in tables])
    if parameters.needs_label_sums(job) and (scale := float(y.std())) > 0:
        terms = replace(terms, center=float(y.mean()), scale=scale)

    def sent(trees: Sequence[Tree]) -> int:
        upload = encode_trees(trees, terms.form)
        return len(upload.trees) + (0 if upload.leaves is None else upload.leaves.nbytes)

    given = []
    for table in tables:
        n = max(1, round(table.n_samples * (1 - parameters.held_out)))
        part = table.take(np.linspace(0, table.n_samples - 1, n).astype(np.intp))
        given.append(replace(part, y=terms.targets(part)))
    return measure(given, terms.job.booster, job.objective, terms.n_steps, sent)


def allowances(
    parameters: FedXGBllr, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: trees once, a vector and scores a round."""
    sums = SumAllowances(sum_parameters(parameters, job), n_silos)
    rounds = parameters.n_rounds
    sums.setups(rounds + 1, rounds + 1)
    masks = not parameters.secure and masks_scores(n_silos)
    own_keys = SumAllowances(mean_parameters(job.min_silos, masks), n_silos)
    own_keys.setups(rounds + 1, rounds + 1, 2)
    if parameters.needs_label_sums(job):
        (own_keys if masks else sums).sums(BASE, 1)
    if masks and parameters.held_out:
        own_keys.float_sums(SCORES, rounds, rounds + 1, 2, bounds=finds_weight(job))
    found = [StepQuota(SYNC, UNBOUNDED, 1), StepQuota(TREES, 1)]
    if parameters.held_out:
        found.append(StepQuota(TURN, rounds, rounds + 1))
    if parameters.shared_cuts:
        found.append(StepQuota(CUTS, 1))

    def add(kind: FloatSum[Any, Any], times: int, levels: int, bounds: bool = True) -> None:
        if parameters.secure:
            sums.float_sums(kind, times, rounds + 1, levels, bounds=bounds)
        else:
            found.append(StepQuota(kind.plain, times, rounds + 1, levels))

    add(WEIGHTS if parameters.is_network else SUMS, rounds, 1)
    if parameters.held_out and not masks:
        add(SCORES, rounds, 2, finds_weight(job))
    if parameters.is_network:
        add(RATES, 1, 3, bounds=False)
    return (*sums.found, *own_keys.found, *found)


def _head(parameters: FedXGBllr, width: int, n_silos: int, n_outputs: int) -> Head:
    return Head(HeadKind(parameters.combiner), n_silos, width, n_outputs, parameters.channels)


def _vectors(
    parameters: FedXGBllr, width: int, n_silos: int, n_outputs: int, leaves: float
) -> tuple[float, float]:
    """Return bytes up and down of a round's vectors."""
    if parameters.is_network:
        n = _head(parameters, width, n_silos, n_outputs).n_parameters
        if parameters.secure:
            return 6 * (n + 1), 4 * n
        each = n * parameters.weight_bits / 8 + (
            0 if parameters.weight_bits == 32 else 4 * -(-n // BLOCK)
        )
        return each + 8, each
    if parameters.combiner == "leaves":
        size = width * n_silos * leaves + n_outputs
        return size * (8 if parameters.secure else 4), size * 4
    p = width * n_silos // n_outputs + 1
    return 8.0 * n_outputs * (p * (p + 1) // 2 + p), 8.0 * (width * n_silos + n_outputs)
