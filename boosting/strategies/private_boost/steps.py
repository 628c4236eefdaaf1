"""What the silos and the coordinator send each other, beside the sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.boosting.exchange import Call, Discloses, Receipt, Step
from hedgerow.boosting.payloads import UInt16s
from hedgerow.boosting.sums.steps import SumSteps, sum_steps

REVEALS = (
    "Coordinator and silos: the sums of gradients and hessians in every leaf of trees whose "
    "features and thresholds no row decides, over all silos, and so the model. With epsilon they "
    "have Skellam noise: all of it together, the model with its covers included, is (epsilon, "
    "delta)-differentially private for adding or removing one row. A silo of a sum knows its own "
    "part of the noise: epsilon holds against those who know the parts of any silos, as long as "
    "honest others of that sum keep theirs secret; that is against the coordinator together with "
    "one silo where honest is not set (all silos but one). Where fewer keep theirs the noise left "
    "is in proportion, and hedgerow plan says what epsilon that is. With secure = false the "
    "coordinator sees each silo's sums, each with the whole noise. Without epsilon there is no "
    "noise: the sums over all silos are exact, small leaves included. Differential privacy hides "
    "single rows, not what is common to a silo's rows. Ranges and categories are those of the job "
    "and tell nothing of rows. Outside of epsilon, without noise: column names, the names of the "
    "classes, and each silo's row count rounded up to a power of two. Scores on the coordinator's "
    "test rows are of its own rows; silos score none."
)
"""What each party learns beyond the result."""


@dataclass(frozen=True, slots=True, eq=False)
class BoostedTrees:
    """The trees before a batch: what a silo that enters needs."""

    batch: int
    """The next one."""
    row_bits: int
    """All silos together have at most two to this power rows."""
    values: UInt16s
    """Leaf values of all trees so far, float16, batch by batch."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchValues:
    """The leaf values of a batch, from its noisy sums."""

    values: UInt16s
    """float16, by tree, output and leaf."""


STANDING = Step(
    "standing", Call.SUMS, Receipt, BoostedTrees, "that the silo is present", Discloses.NOTHING
)
LEAF_SUMS = sum_steps(
    "leaf-sums", Call.HISTOGRAMS, Call.HISTOGRAMS, BatchValues,
    "gradients and hessians by leaf of public trees, with noise", Discloses.NOISED,
)  # fmt: skip


def leaf_sums(*, noisy: bool) -> SumSteps[BatchValues]:
    """Return the sums of leaves; what has no noise discloses counts where plain."""
    if noisy:
        return LEAF_SUMS
    return replace(LEAF_SUMS, plain=replace(LEAF_SUMS.plain, discloses=Discloses.COUNTS))
