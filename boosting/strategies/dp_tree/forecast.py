"""Rounds and bytes of a private tree before anyone counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota
from hedgerow.boosting.budget import NOT_REPEATABLE, against_silos
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.strategies.dp_tree.bins import CELLS, STAGES
from hedgerow.boosting.strategies.dp_tree.noisy_tree import bin_counts
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.steps import REVEALS, STANDING, sums_of
from hedgerow.boosting.sums.allowances import SumAllowances
from hedgerow.boosting.sums.costs import CIPHERTEXT, KEM_KEY, SEALING
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.dp_tree.parameters import DPTree

_SUM_UP, _SUM_DOWN = 216, 20
"""Bytes of a sum beside counts, signatures and what each further silo adds; measured."""

_PLAIN_UP, _PLAIN_DOWN = 100, 30
"""The same without secure sums."""

_STANDING_UP, _STANDING_DOWN = 35, 20
"""Bytes of a silo's first exchange beside what is asked; measured."""

_ARRAY = 9
"""Bytes of an array beside its elements."""

_KEY, _BOX, _OWN_SHARES = 880, 1582, 568
"""Bytes of a silo's signed key, of its sealed shares for another with their commitments, and of the
commitments to what it keeps; measured."""


def forecast(
    parameters: DPTree, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return the bytes of a full tree: 8 a count, and keys, shares and signatures of the sums.

    Of bin edges it takes what continuous features usually need: one interval at first, then
    two, then one for each edge.
    """
    secure, depth = parameters.secure, parameters.depth
    n_silos = max(len(n_samples), 3 if secure else 1)
    queries = Queries(parameters, schema, n_silos)
    edges = queries.any_edges()
    n_edges = sum(len(own) for own in edges)
    stages = STAGES if queries.numeric else 0
    most = parameters.bins - 1
    per_feature = [1, *[min(2, most)] * (STAGES - 2), most][:stages]
    intervals = [len(queries.numeric) * count for count in per_feature]
    sum_up, sum_down = _PLAIN_UP, _PLAIN_DOWN
    if secure:
        sum_up, sum_down = _SUM_UP + 40 * n_silos, _SUM_DOWN + 83 * n_silos
    by_feature = _ARRAY * schema.n_features
    cells_up = sum(8 * CELLS * count + sum_up for count in intervals)
    asked = (*intervals[1:], n_edges)[:stages]
    cells_down = sum(4 * count + by_feature + sum_down for count in asked)
    counts_up, counts_down = 0, 0
    for level in range(depth + 1):
        counts_up += 8 * (1 << level) * queries.values_per_node(edges, level) + sum_up
        nodes = (1 << min(level + 2, depth + 1)) - 1
        counts_down += nodes * (12 + max(bin_counts(schema, edges), default=1)) + 4 * _ARRAY
        counts_down += 4 * n_edges + by_feature + sum_down
    calls = 2 if secure else 1
    standing = (_STANDING_UP, _STANDING_DOWN + by_feature)
    steps = {
        Call.HISTOGRAMS.value: (calls * (depth + 1), counts_up, counts_down),
        Call.SUMS.value: (
            calls * stages + 1, cells_up + standing[0], cells_down + standing[1],
        ),
    }  # fmt: skip
    if secure:
        boxes = (n_silos - 1) * (_BOX + CIPHERTEXT)
        steps[Call.KEYS.value] = (1, _KEY + KEM_KEY, (_KEY + KEM_KEY) * n_silos)
        steps[Call.SHARES.value] = (1, boxes + _OWN_SHARES, boxes)
    rows = sum(n_samples.values()) / n_silos
    return Forecast(
        rounds=depth + 1,
        steps=steps,
        reveals=REVEALS,
        notes=(
            f"epsilon {parameters.epsilon:g} for the whole job, a row being the unit",
            *_against(queries, parameters.sum_parameters(job, n_silos).least_silos),
            "for a full tree: noise ends it before, and a node that does not split asks less",
            *((NOT_REPEATABLE,) if math.isfinite(parameters.epsilon) else ()),
        ),
        work={
            Call.HISTOGRAMS.value: {
                Work.CELL: 25 * rows * schema.n_features * (depth + 1),  # measured
                Work.EXCHANGE: SEALING * (depth + 1) * secure,
            },
            Call.SUMS.value: {Work.EXCHANGE: SEALING * stages * secure},
        },
    )


def _against(queries: Queries, n_parts: int) -> tuple[str, ...]:
    """Return how far epsilon holds against silos that know their parts of a sum's noise."""
    if not queries.parameters.secure or math.isinf(queries.parameters.epsilon):
        return ()
    epsilon = queries.parameters.epsilon
    return (against_silos(epsilon, n_parts, queries.epsilon_against),)


def allowances(
    parameters: DPTree, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: one sum a stage of bin edges, one a level."""
    sums = SumAllowances(parameters.sum_parameters(job, n_silos), n_silos)
    cells, counts = sums_of(parameters.epsilon, parameters.binning)
    levels = parameters.depth + 1
    sums.setups(1, levels)
    sums.sums(cells, STAGES, 1, STAGES)
    sums.sums(counts, levels, levels)
    return (*sums.found, StepQuota(STANDING, UNBOUNDED, levels + 1))
