"""The exchanges of FedXGBllr, and what they reveal."""

from __future__ import annotations

from hedgerow.boosting.exchange import Call, Step
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import sum_steps
from hedgerow.boosting.tensors import Tensors

REVEALS = """\
To the coordinator and to every silo: the trees of every silo. Thresholds are values of training
rows (with shared_cuts, of merged summaries), leaf values are statistics of small groups of rows;
scrub = stats removes gains, row counts (hessian sums) and inner weights. Trees reveal more than
histograms of the same depth under secure sums.
To the coordinator: each silo's row count, and in each round its vector: network weights after
training on its rows (cnn, conv3, dense), its normal equations over tree outputs (ridge,
logit_ridge), or its loss gradient by leaf (leaves; for regression the first round also counts rows
by leaf). With center_target or scale_target also the sum of its labels and of their squares; with
validation rows the sums of its metrics; with shared_cuts, quantile summaries, which are values of
its rows.
To every silo: the combined state after each round.
With secure = true the coordinator learns only sums over silos of those vectors, label sums and
metric sums, and of each silo the power of two above its largest entry; the trees, row counts and
summaries remain visible. The coordinator and all silos but one together learn that silo's vectors.
"""

BASE = sum_steps(
    "base",
    Call.SUMS,
    Call.SUMS,
    Tensors,
    "number of labels, their sum and the sum of their squares",
)
CUTS = Step("cuts", Call.SKETCHES, Tensors, Tensors, "weighted quantiles of each numeric feature")
TREES = Step(
    "trees",
    Call.TREES,
    Tensors,
    Tensors,
    "the silo's trees: thresholds and leaf values, statistics unless scrubbed; its row count",
)
WEIGHTS = float_sum(
    "weights",
    Call.WEIGHTS,
    Tensors,
    Tensors,
    "network weights after training on the silo's rows",
    ring_bits=48,
)
SUMS = float_sum(
    "sums",
    Call.SUMS,
    Tensors,
    Tensors,
    "normal equations of tree outputs, or loss gradient by leaf",
)
SCORES = float_sum(
    "scores", Call.SCORES, Tensors, Tensors, "sums of metrics over the silo's validation rows"
)
RATES = float_sum(
    "rates",
    Call.SCORES,
    Tensors,
    Tensors,
    "mean derivative of the prediction by each tree's output",
)
SYNC = Step("sync", Call.TREES, Tensors, Tensors, "nothing")
