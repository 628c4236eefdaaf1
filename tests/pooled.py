"""Training on one table with the engine: the reference of tests and benchmarks.

A federated histogram job gives exactly the trees of :func:`train_pooled` on the rows of all silos
with the same cuts; ``Training.blocks`` are the silos' row counts, for sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.bisection import MIN_CELL, Bisector, Cells, count_below
from hedgerow.boosting.engine.bounds import BoundRule, Largest
from hedgerow.boosting.engine.cox import TIME_CELLS, RiskSets, cell_labels, risk_parts
from hedgerow.boosting.engine.cuts import Cuts, local_cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower, GrownTree
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.leaf_quantiles import LeafQuantiles, LeafRows
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.quantising import (
    Quantiser,
    bound_of_exponents,
    exponents,
)
from hedgerow.boosting.engine.sampling import Sample, Sampler
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.engine.start import margins_of, start_score, weight_exponent
from hedgerow.boosting.engine.table import Table
from hedgerow.boosting.failure_times import is_event
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.opening import LABEL_CELLS, start_quantiles
from hedgerow.boosting.strategies.histogram.steps import LabelCells
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank


@dataclass(frozen=True, slots=True)
class Training:
    """How a pooled training differs from XGBoost's ``hist`` on the same table.

    Parameters
    ----------
    cuts : Cuts or None
        ``None`` takes the table's own quantiles.
    sampler : Sampler or None
        ``None`` takes the booster's ``subsample`` (uniform as in XGBoost, without reweighting, or
        ``gradient_based``, which is MVS).
    blocks : sequence of int or None
        Row counts of the silos that the table is made of, in roster order: sampling and coarse
        rounding then draw from each silo's own stream.
    multi_output : bool
        One tree with vector leaves a round, instead of one tree a class.
    coarse_bits : int
        Bits of the gradients that splits are searched on; 0 for lossless sums.
    ring_bits : int
        Ring of lossless sums, 64 or 48.
    fraction_bits : int
        Of lossless sums, at most; 0 for as many as the ring allows.
    """

    cuts: Cuts | None = None
    sampler: Sampler | None = None
    blocks: Sequence[int] | None = None
    multi_output: bool = False
    coarse_bits: int = 0
    ring_bits: int = 64
    fraction_bits: int = 0
    n_threads: int = 1
    min_cell: int = MIN_CELL
    """Rows of a cell of labels, with a median or quantile."""


def train_pooled(
    job: JobParameters, dataset: Dataset, rounds: int, training: Training | None = None
) -> Ensemble:
    """Train an ensemble on one table.

    Parameters
    ----------
    job : JobParameters
        Task, seed, objective and booster are used, its strategy is not.
    training : Training or None
        ``None`` trains as XGBoost does.
    """
    training = training or Training()
    coarse_bits, multi_output = training.coarse_bits, training.multi_output
    booster, schema = job.booster, dataset.schema
    objective = objective_of(job.objective, schema.task, booster, in_cells=True)
    objective.check_labels(dataset.labels, schema.n_classes)
    cuts = training.cuts or local_cuts(dataset, booster.max_bin)
    sampler = training.sampler or Sampler.of(booster)
    parameters = TreeParameters.of(booster, schema.n_features)
    base_score = start_score(objective, booster, dataset.labels, dataset.weight)
    cells = cells_of_labels(dataset, training.min_cell) if objective.in_cells else None
    if cells is not None and objective.renews and booster.base_score is None:
        base_score = start_quantiles(objective, cells)
    if dataset.base_margin is not None:
        base_score = objective.default_base_score
    ensemble = blank(schema, objective.model_name, booster, base_score)
    starts = margins_of(objective, base_score)
    if len(objective.quantiles) > 1:
        starts = np.broadcast_to(starts, len(objective.quantiles))
    table = Table.of(dataset, cuts, starts, training.n_threads)
    if dataset.base_margin is not None:
        table.margins[:] = dataset.base_margin
    if cells is not None and objective.by_risk_sets:
        table.y = cell_labels(dataset.labels, cells.thresholds)
    elif cells is not None:
        table.y = LabelCells(cells.thresholds, cells.values).of(dataset.labels)
    sizes = list(training.blocks or [dataset.n_samples])
    max_weight = 2.0 ** weight_exponent(dataset.n_samples, dataset.weight)
    n_outputs = max(schema.n_outputs, len(objective.quantiles))
    rule = BoundRule(objective, sampler, n_outputs, bool(coarse_bits))
    everyone = Sample(np.arange(dataset.n_samples, dtype=np.int32))
    largest: Largest | None = None
    parallel = booster.num_parallel_tree
    trees_per_round = (1 if multi_output else n_outputs) * parallel
    parameters = replace(parameters, eta=float(np.float32(parameters.eta) / np.float32(parallel)))
    for r in range(rounds):
        risk = None
        if cells is not None and objective.by_risk_sets:
            n_cells = len(cells.values)
            risk = RiskSets.of(risk_parts(table.y, table.margins, n_cells), n_cells)
            g, h = np.hsplit(risk.pairs(table.margins, table.y), 2)
        else:
            g, h = objective.gradients(table.margins, table.y, table.weight)
        sample = _sample_blocks(sampler, g, h, sizes, job.seed, r)
        by_tree = parallel > 1 and sampler.method != "none"
        draws = [generator(job.seed, k, r, Purpose.SAMPLING) for k in range(len(sizes))]
        if rule.is_due(largest, r):
            largest = Largest(*exponents(g, h, everyone))
        found = bound_of_exponents(*exponents(g, h, sample)) if rule.asks_sample else None
        known = risk.bound if risk is not None else rule.of_rows(max_weight, largest)
        bound = rule.of_sample(known, found, None)
        quantiser = Quantiser.fitting(
            dataset.n_samples,
            bound,
            ring_bits=training.ring_bits,
            coarse_bits=coarse_bits,
            fraction_bits=training.fraction_bits,
        )
        exact = quantiser.lossless(g, h, sample)
        searched = exact
        if coarse_bits:
            searched = _round_blocks(quantiser, g, h, sample, sizes, job.seed, r)
        before = table.margins.copy()
        trees: list[Tree] = []
        values: list[NDArray[np.float32]] = []
        for t in range(trees_per_round):
            groups = list(range(n_outputs)) if multi_output else [t // parallel]
            columns = None
            if parameters.samples_columns:
                rng = generator(job.seed, 0, r * trees_per_round + t, Purpose.COLUMNS)
                columns = ColumnSampler(schema.n_features, parameters, rng)
            first = 2 * (t // parallel)
            pair = slice(None) if multi_output else slice(first, first + 2)
            if by_tree:
                sample = _drawn_blocks(sampler, g, h, sizes, draws)
                exact = searched = quantiser.lossless(g, h, sample)
            grown, partition = grow_tree(
                table,
                sample,
                np.ascontiguousarray(searched[:, pair]),
                np.ascontiguousarray(exact[:, pair]) if coarse_bits else None,
                quantiser,
                cuts,
                parameters,
                columns,
            )
            if cells is not None and objective.renews:
                residual = table.y.astype(np.float64) - before[:, groups[0]]
                rank = objective.quantiles[groups[0]]
                grown = renewed(
                    table, grown, cells, residual, rank, parameters.eta, training.min_cell
                )
            table.add_tree(grown, partition, groups)
            trees.extend(grown.trees(cuts, groups))
            values.append(grown.value[grown.leaves])
        if largest is not None:
            largest = largest.after(np.concatenate(values) * parallel)
        ensemble = ensemble.extend(trees, n_steps=1)
    return ensemble


def cells_of_labels(dataset: Dataset, min_cell: int) -> Cells:
    """Return the cells that take the place of labels with a median or quantile."""
    hazards = dataset.schema.task is Task.SURVIVAL
    search = Bisector(1, TIME_CELLS if hazards else LABEL_CELLS, min_cell=min_cell, fine=True)
    y = dataset.labels
    column = SortedColumn.of((y[is_event(y), 0] if hazards else y).astype(np.float32))
    while not search.done:
        search.take(count_below([column], search.column, search.key))
    return search.cells[0]


def renewed(
    table: Table,
    tree: GrownTree,
    cells: Cells,
    residual: NDArray[np.float64],
    rank: float,
    eta: float,
    min_cell: int,
) -> GrownTree:
    """Return a tree with quantiles of one table's residuals as leaf values."""
    rows = LeafRows([(table.nodes_reached(tree), residual, tree.leaves)])
    search = LeafQuantiles(cells.values, [rank] * len(tree.leaves), min_cell)
    while search.n_asked:
        search.take(rows.below(search))
    value = np.zeros_like(tree.value)
    value[tree.leaves, 0] = eta * search.values
    return replace(tree, value=value)


def grow_tree(
    table: Table,
    sample: Sample,
    searched: NDArray[np.int64],
    exact: NDArray[np.int64] | None,
    quantiser: Quantiser,
    cuts: Cuts,
    parameters: TreeParameters,
    columns: ColumnSampler | None = None,
) -> tuple[GrownTree, RowPartition]:
    """Grow one tree on one table's integers.

    Parameters
    ----------
    searched : ndarray of shape (n_samples, 2 * n_outputs), int64
        Lossless or coarse; what histograms are made of.
    exact : ndarray of the same shape, or None
        Lossless, for leaf renewal after a coarse search.
    """
    partition = RowPartition(sample.rows)
    scale = quantiser.scale if exact is None else quantiser.coarse_scale
    totals = node_sums(partition, [0], searched)[0]
    grower = Grower(cuts, parameters, scale, totals, columns, table.n_threads)
    while grower.request:
        histograms = build_histograms(
            table.binned, partition, grower.request, searched, grower.layout, table.n_threads
        )
        partition.split_by_bins(table.binned, grower.supply(histograms))
    if exact is None:
        return grower.finish(), partition
    leaf_sums = node_sums(partition, grower.leaves, exact)
    return grower.finish(leaf_sums, quantiser.scale), partition


def _sample_blocks(
    sampler: Sampler,
    g: NDArray[np.float32],
    h: NDArray[np.float32],
    sizes: Sequence[int],
    seed: int,
    round: int,
) -> Sample:
    if sampler.method == "none":
        return sampler.draw(g, h, np.random.default_rng(0))
    draws = [generator(seed, silo, round, Purpose.SAMPLING) for silo in range(len(sizes))]
    return _drawn_blocks(sampler, g, h, sizes, draws)


def _drawn_blocks(
    sampler: Sampler,
    g: NDArray[np.float32],
    h: NDArray[np.float32],
    sizes: Sequence[int],
    draws: Sequence[np.random.Generator],
) -> Sample:
    parts: list[Sample] = []
    start = 0
    for rng, size in zip(draws, sizes, strict=True):
        part = slice(start, start + size)
        drawn = sampler.draw(g[part], h[part], rng)
        parts.append(Sample((drawn.rows + start).astype(np.int32), drawn.weight))
        start += size
    if len(parts) == 1:
        return parts[0]
    weights = [
        np.ones(p.rows.shape[0], np.float32) if p.weight is None else p.weight for p in parts
    ]
    return Sample(np.concatenate([p.rows for p in parts]), np.concatenate(weights))


def _round_blocks(
    quantiser: Quantiser,
    g: NDArray[np.float32],
    h: NDArray[np.float32],
    sample: Sample,
    sizes: Sequence[int],
    seed: int,
    round: int,
) -> NDArray[np.int64]:
    out = np.zeros((g.shape[0], 2 * g.shape[1]), dtype=np.int64)
    start = 0
    for silo, size in enumerate(sizes):
        low, high = np.searchsorted(sample.rows, [start, start + size])
        rows = (sample.rows[low:high] - start).astype(np.int32)
        weight = None if sample.weight is None else sample.weight[low:high]
        part = slice(start, start + size)
        out[part] = quantiser.coarse(
            g[part], h[part], Sample(rows, weight), generator(seed, silo, round, Purpose.ROUNDING)
        )
        start += size
    return out
