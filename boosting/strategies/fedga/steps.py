"""What FedGA's silos and coordinator send each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Discloses, Receipt, Step
from hedgerow.boosting.payloads import Float64s, UInt16s
from hedgerow.boosting.strategies.fedga.packed import PackedStructures
from hedgerow.boosting.trees.genetics import Genes, gene_count

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

REVEALS = (
    "Coordinator: each silo's best tree depth, its row count with discrete Laplace noise (budget "
    "epsilon_rows, once) and, without noise, rounded up to a power of two, the features of its own "
    "CART tree in their places without thresholds and leaves, the score of every structure on its "
    "rows to three decimals, two votes of a regression, and test scores to four digits where the "
    "silo has 20 test rows or more, rows counted by their weights if they have any; no silo sends "
    "scores unless its policy allows them. Silos: median depth and all structures that were bred, "
    "no other silo's scores or thresholds. The scores are statistics of the training rows without "
    "formal privacy: who sees them (the coordinator, and any silo that it colludes with) and "
    "knows a silo's other rows can test whether a row is among them; docs/threat-model.md tells "
    "how well. Colluding silos without the coordinator learn nothing of the others but the "
    "structures. The tree itself never leaves its silo. The schema is agreed in the clear: "
    "coordinator and silos learn all column names and the union of the silos' category and class "
    "lists, and the coordinator each silo's own. Each silo's model file contains the united "
    "category lists."
)

UNIT = 1000
"""Scores are rounded to thousandths."""


class SearchPhase(Enum):
    """What a silo is to do next."""

    VOTE = "vote"
    PROPOSE = "propose"
    SCORE = "score"
    END = "end"


@dataclass(frozen=True, slots=True, eq=False)
class SearchTask:
    """What a silo is to do next, and with what."""

    phase: SearchPhase
    round: int
    """Generation whose scores are due; at the end, the last one."""
    depth: int
    """Decision levels of every structure; 0 before the silos have voted on it."""
    active: bool
    """Whether this silo is drawn for this generation (in the opening: whether it votes)."""
    full: bool
    """Fit and score on all rows; else fit on one part, score on the other."""
    structures: PackedStructures | None
    """What an active silo scores; at the end, the finalists."""


@dataclass(frozen=True, slots=True)
class DepthVote:
    """A silo's best depth (0 abstains) and its noisy row count (0 where it takes no part)."""

    depth: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A silo's own structure, None where it takes no part, and its votes of a regression."""

    structure: PackedStructures | None
    """One structure."""
    full: bool
    """Whether to fit and score on all rows."""
    elite: bool
    """Whether the silos' own structures always survive."""


@dataclass(frozen=True, slots=True, eq=False)
class Introduction:
    """What a silo adds to its first scores where it was not drawn in the opening."""

    rows: int
    """Noisy row count, from 1."""
    structure: PackedStructures
    """The silo's own structure, one."""


@dataclass(frozen=True, slots=True, eq=False)
class StructureScores:
    """A silo's scores of one brood."""

    thousandths: UInt16s
    """Of shape (n_structures,), uint16. F1, or mean squared error over the silo's label variance,
    times 1000, at most 65535; empty where the silo was not drawn."""
    introduction: Introduction | None


@dataclass(frozen=True, slots=True, eq=False)
class TreeComparison:
    """A silo's test scores: of its federated tree, of its own tree; empty without test rows.

    Both are of shape (n_metrics,), in the order of :func:`reported_metrics`.
    """

    federated: Float64s
    own: Float64s

    def __post_init__(self) -> None:
        if self.federated.shape != self.own.shape:
            raise ValueError(
                f"expected two sets of scores of one length, received {len(self.federated)} and "
                f"{len(self.own)}"
            )


STANDING = Step(
    "standing", Call.SCORES, Receipt, SearchTask, "that the silo is present", Discloses.NOTHING
)
DEPTHS = Step(
    "depths", Call.SCORES, DepthVote, SearchTask,
    "best tree depth by cross-validation; row count with discrete Laplace noise", Discloses.SCORES,
)  # fmt: skip
PROPOSALS = Step(
    "proposals", Call.SCORES, Proposal, SearchTask,
    "features of the silo's own tree, without thresholds and leaves; two votes of a regression",
    Discloses.TREES,
)  # fmt: skip
SCORES = Step(
    "scores", Call.SCORES, StructureScores, SearchTask,
    "score of each structure on the silo's rows, three decimals; the first time also row count "
    "with noise and the features of the silo's own tree", Discloses.SCORES,
)  # fmt: skip
INTRODUCED_SCORES = replace(SCORES, discloses=Discloses.TREES)
"""The same step where it has those features; the job's proposals and depths need both classes."""
REPORTS = Step(
    "reports", Call.SCORES, TreeComparison, Receipt,
    "test scores of the silo's federated and of its own tree, four digits, where it has test rows",
    Discloses.SCORES,
)  # fmt: skip


def reported_metrics(job: JobParameters, metric: str) -> tuple[str, ...]:
    """Return the metrics that silos report: what is searched for, then the job's own."""
    primary = "mse" if job.task is Task.REGRESSION else metric
    return tuple(dict.fromkeys((primary, *job.metrics)))


def opened(structures: PackedStructures, depth: int, n_features: int, sender: str) -> Genes:
    """Return structures of that depth over those features.

    Raises
    ------
    OfferRejected
        They have another depth, or test columns that do not exist.
    """
    if structures.n_genes != gene_count(depth):
        raise OfferRejected(
            f"{sender}: expected structures of {gene_count(depth)} genes, received "
            f"{structures.n_genes}"
        )
    genes = structures.unpack()
    if genes.max() >= n_features:
        raise OfferRejected(f"{sender}: a structure tests feature {genes.max()} of {n_features}")
    return genes
