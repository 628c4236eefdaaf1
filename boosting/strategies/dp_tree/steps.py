"""What the private tree's silos and coordinator send each other, beside the sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from hedgerow.boosting.exchange import Call, Discloses, Receipt, Step
from hedgerow.boosting.strategies.dp_tree.bins import EdgeSearch
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree
from hedgerow.boosting.sums.steps import SumSteps, sum_steps
from hedgerow.crypto.masking.noise import discrete_laplace_epsilon

Reply = TypeVar("Reply")

REVEALS = (
    "Coordinator and silos: noisy counts by class in every node, and by bin or cut in every "
    "split query, summed over all silos; with private binning also noisy counts by interval. "
    "All of it together is epsilon-differentially private for adding or removing one row; the tree "
    "is derived from it. A silo of a sum knows its own part of the noise: epsilon holds against "
    "those who know the parts of any silos, as long as honest others of that sum keep theirs "
    "secret. That is against the coordinator together with one silo where honest is not set (all "
    "silos but one), and against the coordinator only where it is all silos. If fewer keep theirs, "
    "more is known by far than in proportion: with honest = 3 and two parts left, a query of a "
    f"stated epsilon of 0.1 has {discrete_laplace_epsilon(0.1, parts=2, honest=3):.3f}, one of "
    f"0.01 has {discrete_laplace_epsilon(0.01, parts=2, honest=3):.3f}; hedgerow plan says what "
    "the job has against one, two and three silos. With "
    "binning = quantile the bin edges are exact statistics of the rows that epsilon does not "
    "cover. With secure = false the coordinator sees each silo's counts, each with the whole "
    "noise. Differential privacy hides single rows, not what is common to a silo's rows: "
    "with all others but one colluding, that silo's noisy counts are known. Outside of "
    "epsilon, without noise: before the first query the silos agree in the clear on the "
    "schema, so coordinator and silos learn all column names and the union of the silos' "
    "category and class lists (the coordinator each silo's own), and the coordinator each "
    "silo's row count rounded up to a power of two; a category that one row alone has shows "
    "that row. The model file contains the united category lists."
)

Query = EdgeSearch | BinnedTree
"""All that the next query depends on: the bin edges so far, or the tree so far."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowthState:
    """The next query: one of both is given."""

    search: EdgeSearch | None
    """While bin edges are not settled."""
    tree: BinnedTree | None

    def __post_init__(self) -> None:
        if (self.search is None) == (self.tree is None):
            raise ValueError("expected bin edges or a tree")

    @classmethod
    def of(cls, query: Query) -> GrowthState:
        """Return the state of a query."""
        return cls(query, None) if isinstance(query, EdgeSearch) else cls(None, query)

    @property
    def query(self) -> Query:
        """The query."""
        query = self.tree if self.search is None else self.search
        assert query is not None, "one of both is given"
        return query


STANDING = Step(
    "standing", Call.SUMS, Receipt, GrowthState, "that the silo is present", Discloses.NOTHING
)
CELL_SUMS = sum_steps(
    "cells", Call.SUMS, Call.SUMS, GrowthState, "rows by interval of each numeric feature",
    Discloses.NOISED,
)  # fmt: skip
COUNT_SUMS = sum_steps(
    "counts", Call.HISTOGRAMS, Call.HISTOGRAMS, BinnedTree,
    "rows by class, of each open node and of each bin or cut in it, with noise",
    Discloses.NOISED,
)  # fmt: skip


def sums_of(epsilon: float, binning: str) -> tuple[SumSteps[GrowthState], SumSteps[BinnedTree]]:
    """Return the sums of cells and of counts; what has no noise discloses counts where plain."""
    noisy = math.isfinite(epsilon)
    return (
        CELL_SUMS if noisy and binning == "private" else _exact(CELL_SUMS),
        COUNT_SUMS if noisy else _exact(COUNT_SUMS),
    )


def _exact(steps: SumSteps[Reply]) -> SumSteps[Reply]:
    return replace(steps, plain=replace(steps.plain, discloses=Discloses.COUNTS))
