"""What the silo half of a histogram job takes of memory for its rows, at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.job import ADAPTIVE, IN_CELLS
from hedgerow.boosting.storage import MemoryNeed

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram

_COLUMN_BYTES, _TEXT_BYTES = 20, 64
"""Of a value of a column that a thread reads: float32, its keys twice, what Parquet has of it."""
_VECTORS = 6
"""Arrays as long as a level's vector: sums, packed words, masks and what is sent of them."""
_MOST_LEVEL_NODES = 1 << 20


def memory(
    parameters: Histogram,
    job: JobParameters,
    schema: Schema,
    n_rows: int,
    n_threads: int,
    stored: float,
) -> MemoryNeed:
    """Return the bytes of a silo's rows in a job.

    A row has its label (4 bytes, a number that is no class 8, two bounds 16; twice where some rows
    are held out, with their positions), for each output a margin and float32 gradients (4 and 8
    bytes), and twice its place in each tree (8; its position in the sample is gone before the
    second is written). For a coarse search it has a pair of integers and what was drawn for it (16
    and 8), where rows are sampled its score, weight and draw (32 in all). Gradients are there again
    by tree where a round has several. With leaves that are quantiles it has the value in place of
    its label, its residual and leaf, and both in order (30 in all). Queries of a ranking are
    ordered and scored all at once (100).

    Columns are read before any of that but the label is there, and the margins where the job goes
    on from a model.
    """
    outputs = max(schema.n_outputs, job.classes, len(job.booster.quantiles), 1)
    vector = parameters.multi_output and not parameters.one_output_rounds
    trees = (1 if vector else outputs) * job.booster.num_parallel_tree
    held = {Task.REGRESSION: 8, Task.SURVIVAL: 16, Task.RANKING: 16}.get(schema.task, 4) * len(
        schema.labels
    )
    label = 2 * held + 9 if parameters.validation else held
    pairs = 32 if parameters.coarse_bits else 8
    gradients = pairs * outputs + (pairs * max(outputs, trees) if trees > 1 else 0)
    drawn = 0 if parameters.sampler.method == "none" else 32
    if drawn and job.booster.num_parallel_tree > 1:  # rows are drawn for each tree
        gradients += pairs * trees
    ordered = 30 if job.objective in ADAPTIVE else 60 if job.objective in IN_CELLS else 0
    ordered = 100 if schema.task is Task.RANKING else ordered
    training = label + 4 * outputs + gradients + 8 * trees + drawn + ordered
    text = any(schema.n_categories)
    reading = label + (4 * outputs if job.warm_start is not None else 0)
    reading += min(n_threads, schema.n_features) * (_TEXT_BYTES if text else _COLUMN_BYTES)
    most = job.booster.max_bin
    bins = [n or most for n in schema.n_categories]
    booster = parameters.booster_of(job)
    nodes = 1 << max(booster.max_depth - 2, 0) if booster.max_depth else n_rows
    most_nodes = min(booster.max_leaves or nodes, parameters.max_split_nodes or nodes)
    nodes = max(1, min(nodes, most_nodes, n_rows, _MOST_LEVEL_NODES))
    vectors = _VECTORS * 16 * outputs * nodes * sum(bins)
    width = 1 if max(bins, default=0) <= 1 << 8 else 2
    return MemoryNeed(
        n_rows * max(training, reading) + vectors,
        n_rows * schema.n_features * width,
        n_rows * held,
    )
