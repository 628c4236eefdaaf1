"""Trees of some silos, grown before a job, for the bytes that its plan tells.

How many leaves trees have, and how often they divide a feature of many categories, depends on the
data by more than any formula of sizes tells. Only who has the tables can know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.trees.local import booster_parameters, constrained, grow, matrix
from hedgerow.crypto.threads import usable_cores

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.trees.ensemble import Tree

_CELLS = 2e7
"""Histogram values, about a quarter of a second, that steps after a silo's first may take."""
_TOO_MANY = 2e8
"""Of a silo's first step: nothing is grown."""
_SILOS = 3
"""Grown for at most, the largest."""


@dataclass(frozen=True, slots=True)
class SampledTrees:
    """Means over trees."""

    leaves: float
    n_bytes: float
    """Of a tree as it is sent."""


def most_leaves(booster: Booster, n_samples: Iterable[int]) -> float:
    """Return how many leaves a tree has at most; infinite where nothing limits them.

    Parameters
    ----------
    n_samples : Iterable of int
        Rows of each silo, each leaf having one at least; 0 where a silo has not told any.
    """
    rows = [*n_samples]
    limits = [2.0**booster.max_depth] if booster.max_depth else []
    limits += [float(booster.max_leaves)] if booster.max_leaves else []
    limits += [float(max(rows))] if rows and all(rows) else []
    return min(limits, default=math.inf)


def told_most(up: float, down: float) -> str:
    """Return what a plan says of the bytes of trees as large as the job lets them be."""
    if math.isinf(up):
        return "nothing limits the size of trees: max_depth and max_leaves are 0"
    return f"at most {int(up)} bytes up from a silo and {int(down)} down to it"


def measure(
    tables: Iterable[Dataset],
    booster: Booster,
    objective: str,
    n_steps: int,
    pack: Callable[[Sequence[Tree]], int],
) -> SampledTrees | None:
    """Return sizes of the trees that XGBoost grows on these tables; None where it takes long.

    Parameters
    ----------
    tables : Iterable
        Of silos, under the agreed schema.
    n_steps : int
        Boosting steps of a silo; as many are grown as take a moment, one at least.
    pack : callable
        Trees to the bytes that they are sent in.
    """
    largest = sorted((t for t in tables if t.n_samples), key=lambda t: -t.n_samples)[:_SILOS]
    leaves, n_bytes, n_trees = 0, 0, 0
    n_threads = usable_cores()
    for table in largest:
        schema = table.schema
        depth = booster.max_depth or 12
        cells = table.n_samples * schema.n_features * depth * schema.n_outputs
        cells *= booster.num_parallel_tree
        if cells > _TOO_MANY:
            return None
        given = constrained(booster, schema), objective, schema.n_outputs, n_threads, "cpu"
        steps = min(n_steps, max(1, int(_CELLS / len(largest) / max(1, cells))))
        trees = grow(booster_parameters(*given), matrix(table, n_threads), steps)
        leaves += sum(int(np.count_nonzero(tree.is_leaf)) for tree in trees)
        n_bytes += pack(trees)
        n_trees += len(trees)
    return SampledTrees(leaves / n_trees, n_bytes / n_trees) if n_trees else None
