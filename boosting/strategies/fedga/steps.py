"""What FedGA's silos and coordinator tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Receipt, Step
from hedgerow.boosting.trees.genetics import LEAF, Genes, gene_count

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters


class Phase(IntEnum):
    """What a silo is to do next."""

    VOTE = 0
    PROPOSE = 1
    SCORE = 2
    END = 3


@dataclass(frozen=True, slots=True, eq=False)
class SearchTask:
    """What a silo is to do next, and with what.

    Parameters
    ----------
    phase : Phase
    round : int
        Generation whose scores are due; at the end, the last one.
    depth : int
        Decision levels of every structure; 0 before the silos have voted on it.
    active : bool
        Whether this silo is drawn for this generation (in the opening: whether it votes).
    full : bool
        Fit and score on all rows; else fit on one part, score on the other.
    structures : ndarray of shape (n_structures, n_genes), int16
        What an active silo scores; at the end, the finalists.
    """

    phase: Phase
    round: int
    depth: int
    active: bool
    full: bool
    structures: Genes


@dataclass(frozen=True, slots=True)
class DepthVote:
    """A silo's best depth (0 abstains) and its noisy row count (0 when it takes no part)."""

    depth: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A silo's own structure, shape (n_genes,) or empty, and its votes of a regression."""

    structure: Genes
    full: bool
    elite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A silo's scores of one brood, and its introduction when it is asked for the first time.

    Parameters
    ----------
    thousandths : ndarray of shape (n_structures,), uint16
        F1, or mean squared error over the silo's label variance, times 1000; empty when not asked.
    rows : int
        Noisy row count; 0 when introduced before.
    structure : ndarray of shape (n_genes,) or (0,), int16
        The silo's own structure; empty when introduced before.
    """

    thousandths: NDArray[np.uint16]
    rows: int
    structure: Genes


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A silo's test scores: its federated tree, its own tree; empty without test rows.

    Both are float64 of shape (n_metrics,), in the order of :func:`reported_metrics`.
    """

    federated: NDArray[np.float64]
    own: NDArray[np.float64]


STANDING = Step("standing", Call.SCORES, Receipt, SearchTask, "that the silo is there")
DEPTHS = Step(
    "depths", Call.SCORES, DepthVote, SearchTask,
    "best tree depth by cross-validation; row count with discrete Laplace noise",
)  # fmt: skip
PROPOSALS = Step(
    "proposals", Call.SCORES, Proposal, SearchTask,
    "features of the silo's own tree, without thresholds and leaves; two votes of a regression",
)  # fmt: skip
SCORES = Step(
    "scores", Call.SCORES, Scores, SearchTask,
    "score of each structure on the silo's rows, three decimals; the first time also row count "
    "with noise and the features of the silo's own tree",
)  # fmt: skip
REPORTS = Step(
    "reports", Call.SCORES, Comparison, Receipt,
    "test scores of the silo's federated and of its own tree, where it has test rows",
)  # fmt: skip


def reported_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that silos report: F1 or mean squared error, then the job's own."""
    primary = "mse" if job.task is Task.REGRESSION else "f1"
    return tuple(dict.fromkeys((primary, *job.metrics)))


def check_structures(structures: Genes, depth: int, n_features: int, who: str) -> None:
    """Refuse genes that would address columns that are not there."""
    n_genes = structures.shape[-1] if structures.size else gene_count(depth)
    if n_genes != gene_count(depth) or structures.min(initial=LEAF) < LEAF:
        raise OfferRejected(f"{who}: expected structures of depth {depth}")
    if structures.max(initial=LEAF) >= n_features:
        raise OfferRejected(f"{who}: a structure asks feature {structures.max()} of {n_features}")
