"""The exchanges of FedXGBllr, their payloads, and what they reveal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.summaries import QuantileSummaries
from hedgerow.boosting.exchange import Call, Discloses, Receipt, Silo, Step
from hedgerow.boosting.payloads import (
    Bytes1,
    Elements,
    Float32s,
    Float64s,
    Float64Table,
    Int64s,
    UInt16s,
)
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import sum_steps

Float32Table = Annotated[NDArray[np.float32], Elements("<f4", 2)]

REVEALS = """\
To the coordinator and to every silo: the trees of every silo. Thresholds are values of training
rows (with shared_cuts, of merged summaries), leaf values are statistics of small groups of rows;
scrub = stats removes gains, row counts (hessian sums) and inner weights. Trees reveal more than
histograms of the same depth under secure sums. Rows with weights count by them in all of this and
in what follows, but for row counts.
To the coordinator: each silo's row count, and in each round its vector: network weights after
training on its rows (cnn, conv3, dense), its normal equations over tree outputs (ridge,
logit_ridge), or its loss gradient by leaf (leaves; for regression the first round also counts rows
by leaf). With shared_cuts, quantile summaries, which are values of its rows.
With center_target or scale_target the coordinator learns the sum of all labels and of their
squares, with held-out rows, which networks have by default, the sums of metrics on them: summed
securely over three silos or more. Of fewer it learns each silo's, of the metrics four digits, which
no silo sends unless its policy allows scores.
To every silo: the combined state after each round.
With secure = true the coordinator learns only sums over silos of those vectors, too. It and every
silo learn once a round powers of two above the largest of all silos, never whose it is: of a
network's weights, else of the number of rows, of rows' weights where they have some, and of the
labels of a regression after centering; before masked metrics of rows with weights that of weights.
Of a network the coordinator learns in the end how many rows each hidden unit lets through. A
network follows from all rows of its silo: in that sum it matters which rows are in one silo. All
other sums are exact, of each row's numbers. Trees, row counts and summaries remain visible.
Model files contain the agreed schema's category lists. The coordinator and all silos but one
together learn that silo's vectors.
""".replace("\n", " ").strip()


# --- round 0 ---


@dataclass(frozen=True, slots=True)
class LabelScale:
    """Trees are grown on ``(label - center) / scale``."""

    center: float
    scale: float


@dataclass(frozen=True, slots=True)
class SharedCuts:
    """Cut points of all silos, feature after feature."""

    sizes: Int64s
    """Of shape (n_features,), int64. Cut points of each feature; 0 for a categorical one."""
    values: Float32s
    """Of shape (sizes.sum(),), float32. Increasing within a feature."""


@dataclass(frozen=True, slots=True)
class PackedEnsemble:
    """A silo's trees as they travel; see :mod:`.uploads`."""

    trees: Bytes1
    """Of shape (n_bytes,), uint8. A pack of :mod:`hedgerow.boosting.trees.packing`."""
    leaves: UInt16s | None = None
    """Of shape (n_leaves,), uint16, or None. With ``leaf_bits = 16``, leaf values as bits of
    float16, by tree and node. The pack has zeros in their place."""


@dataclass(frozen=True, slots=True)
class EnsembleOffer:
    """A silo's trees and the number of rows that they were grown on; no rows, no trees."""

    rows: int
    ensemble: PackedEnsemble | None


@dataclass(frozen=True, slots=True)
class Ensembles:
    """Trees by silo."""

    ensembles: Mapping[Silo, PackedEnsemble]


# --- rounds 1 to R ---


@dataclass(frozen=True, slots=True)
class LeafSlopes:
    """Loss and derivatives at each candidate point, sums over a silo's rows."""

    losses: Float64s
    """Of shape (n_points,), float64."""
    slopes: Float32s
    """Of shape (n_points * n_values,), float32. Gradients, point after point. In round 1 there is
    one point, and the diagonal of the Hessian follows its gradient."""


@dataclass(frozen=True, slots=True)
class QuantisedChange:
    """Changes of network weights in a few bits each; see :mod:`.weight_changes`."""

    steps: Bytes1
    """Of shape (n_values,) or, in 4 bits, (ceil(n_values / 2),), uint8."""
    scales: Float32s
    """Of shape (ceil(n_values / 256),), float32."""


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """Network weights after training, and the number of rows trained on."""

    rows: int
    weights: Float32s | None = None
    """Of shape (n_candidates * n_weights,), float32, or None. Candidate after candidate."""
    change: QuantisedChange | None = None
    """Their change since the round began, with ``weight_bits`` of 8 or 4."""


@dataclass(frozen=True, slots=True)
class RoundVector:
    """What a silo adds in a round in the clear; one field is set."""

    equations: Float64s | None = None
    """Of shape (n_values,), float64, or None. Normal equations; see
    :func:`.tree_rates.gram_sums`."""
    slopes: LeafSlopes | None = None
    network: TrainedWeights | None = None


@dataclass(frozen=True, slots=True)
class Points:
    """Candidate points; one field is set."""

    singles: Float32Table | None = None
    doubles: Float64Table | None = None
    """Of shape (n_candidates, n_values) or None. ``singles`` and ``doubles``: float32 for leaf
    values and network weights, float64 for rates of trees."""
    change: QuantisedChange | None = None
    """Changes of network weights since the round began, candidate after candidate."""


@dataclass(frozen=True, slots=True)
class NextPoints:
    """The points of the next round; ``final``: there is none."""

    points: Points
    final: bool


@dataclass(frozen=True, slots=True)
class MetricSums:
    """A silo's metrics of each candidate point on its validation rows; with fewer than three silos.

    In round 1 the point of round 0, the mean of the ensembles, comes before them.
    """

    sums: Float64s
    """Of shape (n_points * n_metrics,), float64. Values, four significant digits."""


@dataclass(frozen=True, slots=True)
class PointChoice:
    """What follows from metrics on validation rows."""

    choice: int
    """The best candidate."""
    keeps_all: bool
    """Whether all candidates continue, or the best one only."""
    final: bool
    """Whether this was the last round."""
    best: Float32s | None = None
    """Of shape (n_weights,), float32, or None. The weights of an earlier round that was better, at
    the end of training."""


@dataclass(frozen=True, slots=True)
class RateSums:
    """Learnt rates of a silo's rows, added up."""

    sums: Float32s
    """Of shape (n_outputs * n_trees,), float32. Mean derivative of the prediction by each tree's
    output, times rows."""
    rows: int


# --- a silo that arrives (again) ---


@dataclass(frozen=True, slots=True)
class ProgressQuery:
    """Asks for :class:`StackingProgress`."""


@dataclass(frozen=True, slots=True)
class RoundState:
    """The state of a job whose trees are known."""

    round: int
    """The next round, from 1."""
    ensembles: Ensembles
    points: Points
    choice: int
    """The candidate chosen earlier."""
    final: bool
    """Whether there is no next round."""
    best: Points | None = None
    """The point that is to be the result unless a later one is better; None before round 1."""


@dataclass(frozen=True, slots=True)
class StackingProgress:
    """The state of the job; ``None`` for what has not been agreed on yet, or never is."""

    labels: LabelScale | None = None
    cuts: SharedCuts | None = None
    state: RoundState | None = None


BASE = sum_steps(
    "base",
    Call.SUMS,
    Call.SUMS,
    LabelScale,
    "number of labels, their sum and the sum of their squares",
    Discloses.SCORES,
)
CUTS = Step(
    "cuts",
    Call.SKETCHES,
    QuantileSummaries,
    SharedCuts,
    "weighted quantiles of each numeric feature",
    Discloses.QUANTILES,
)
TREES = Step(
    "trees",
    Call.TREES,
    EnsembleOffer,
    Ensembles,
    "the silo's trees: thresholds and leaf values, statistics unless scrubbed; its row count",
    Discloses.TREES,
)
WEIGHTS = float_sum(
    "weights",
    Call.WEIGHTS,
    RoundVector,
    NextPoints,
    "network weights after training on the silo's rows",
    Discloses.WEIGHTS,
    ring_bits=48,
)
SUMS = float_sum(
    "sums",
    Call.SUMS,
    RoundVector,
    NextPoints,
    "normal equations of tree outputs, or loss gradient by leaf",
    Discloses.WEIGHTS,
    largest="rows, weights where they have some, labels of a regression",
)
SCORES = float_sum(
    "scores",
    Call.SCORES,
    MetricSums,
    PointChoice,
    "metrics of the silo's validation rows, four digits; masked, their sums",
    Discloses.SCORES,
    largest="weights of its rows, where they have some",
)
RATES = float_sum(
    "rates",
    Call.SCORES,
    RateSums,
    Receipt,
    "mean derivative of the prediction by each tree's output; masked, rows by hidden unit",
    Discloses.WEIGHTS,
)
SYNC = Step("sync", Call.TREES, ProgressQuery, StackingProgress, "nothing", Discloses.NOTHING)
TURN = Step("turn", Call.TREES, ProgressQuery, StackingProgress, "nothing", Discloses.NOTHING)
"""Has no reply: the place passes with its round, for silos that were left out of its scores."""
