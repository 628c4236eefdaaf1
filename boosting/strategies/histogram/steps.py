"""The exchanges of histogram boosting, what they carry, and what is decided from sums.

What is decided from a sum is decided here, by the coordinator or, where it is blind, by every silo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.bisection import Bisector
from hedgerow.boosting.engine.cuts import Cuts, cuts_from_thresholds
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.engine.sampling import ThresholdSearch
from hedgerow.boosting.engine.summaries import Summary
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Silo, Step
from hedgerow.boosting.strategies.histogram.growth import Growth, no_splits, write_splits
from hedgerow.boosting.strategies.histogram.state import Agreed, Plan, as_bytes
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import SumTotal, sum_steps
from hedgerow.boosting.tensors import Tensors
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.crypto.fixed_point import residue_dtype
from hedgerow.crypto.masking import Residues

Integers = NDArray[np.int64]
Decide = Callable[[Integers | None], dict[str, NDArray[Any]]]

NOT_SCORED, SCORED_ON_TRAIN, SCORED_ON_VALID = range(3)

SYNC = Step("sync", Call.SKETCHES, Tensors, Tensors, "nothing")
ENTER = Step("enter", Call.SKETCHES, Tensors, Tensors, "whether it has the trees so far")
OPENING = Step("opening", Call.SUMS, Tensors, Tensors, "the power of two above its weights")
CUTS = Step("cuts", Call.SKETCHES, Tensors, Tensors, "quantile summaries: values of its rows")
BOUNDS = Step("bounds", Call.SUMS, Tensors, Tensors, "powers of two above its gradients")
PROPOSALS = Step("proposals", Call.SKETCHES, Tensors, Tensors, "how many values it counts below")
COUNTS = sum_steps("counts", Call.SKETCHES, Call.SKETCHES, Tensors, "rows below proposed values")
MEDIAN = sum_steps("median", Call.SUMS, Call.SUMS, Tensors, "labels below proposed values")
THRESHOLDS = sum_steps(
    "thresholds", Call.SUMS, Call.SUMS, Tensors, "how many rows have which size of gradient"
)
HISTOGRAMS = sum_steps(
    "histograms", Call.HISTOGRAMS, Call.HISTOGRAMS, Tensors, "gradient sums by node, feature, bin"
)
LEAVES = sum_steps("leaves", Call.HISTOGRAMS, Call.HISTOGRAMS, Tensors, "gradient sums by leaf")
SCORES = float_sum("scores", Call.SUMS, Tensors, Tensors, "metric sums")


def decide_level(growth: Growth, sums: Integers | None, coarse: bool) -> dict[str, NDArray[Any]]:
    """Take a level's sums (or none: close the trees); return what silos are told."""
    if sums is None:
        arrays = write_splits([no_splits() for _ in growth.requests], [])
        return {**arrays, "done": np.ones(1, np.uint8), **leaf_values(growth, None, None)}
    splits = growth.take(sums)
    arrays = write_splits(splits, growth.requests)
    arrays["done"] = np.array([growth.done], np.uint8)
    if growth.done and not coarse:
        arrays |= leaf_values(growth, None, None)
    return arrays


def leaf_values(
    growth: Growth, sums: Integers | None, quantiser: Quantiser | None
) -> dict[str, NDArray[Any]]:
    """Finish the trees; return their leaf values, all trees' after each other."""
    trees = growth.finish(sums, None if quantiser is None else quantiser.scale)
    return {"values": np.concatenate([t.value[t.leaves].reshape(-1) for t in trees])}


def decide_counts(search: Bisector, sums: Integers | None) -> dict[str, NDArray[Any]]:
    """Take counts below the proposed values; return the next proposals."""
    assert sums is not None, "counts are summed over whoever is there"
    search.take(sums)
    return {"column": search.column, "key": search.key}


def decide_threshold(search: ThresholdSearch, sums: Integers | None) -> dict[str, NDArray[Any]]:
    """Take a pass's sums; return the threshold and the bracket of the next pass."""
    assert sums is not None, "thresholds are of whoever is there"
    search.take(sums)
    return {"threshold": np.array([search.mu, search.low, search.high])}


def blank_ensemble(plan: Plan, agreed: Agreed) -> Ensemble:
    """Return the ensemble that a job starts from."""
    return blank(plan.schema, plan.objective.model_name, plan.job.booster, agreed.base_score)


def trees_of_round(plan: Plan, growth: Growth, agreed: Agreed) -> list[Tree]:
    """Return a round's finished trees as the model has them."""
    trees: list[Tree] = []
    for t, grown in enumerate(growth.trees):
        trees.extend(grown.trees(agreed.cuts, plan.groups(t)))
    return trees


def round_alone(ensemble: Ensemble, trees: Sequence[Tree]) -> Ensemble:
    """Return an ensemble that has one round's trees only."""
    return replace(ensemble, trees=(), steps=(), round_ends=()).extend(trees, n_steps=1)


def matrix_of(data: Dataset) -> Any:
    """Return a table as XGBoost takes it."""
    import xgboost

    return xgboost.DMatrix(
        data.X, feature_types=data.schema.feature_types, enable_categorical=True, nthread=1
    )


def metric_names(plan: Plan) -> tuple[str, ...]:
    """Return the metrics that rounds are scored by."""
    return plan.job.metrics or metrics.defaults(plan.schema.task)


def cuts_of(plan: Plan, search: Bisector) -> Cuts:
    """Return the cut points that bisecting has found."""
    return cuts_from_thresholds(plan.schema, search.thresholds)


def write_summaries(summaries: list[Summary]) -> dict[str, NDArray[Any]]:
    """Return the summaries of all numeric features as arrays."""
    empty = Summary(np.empty(0, np.float32), np.empty(0))
    return {
        "sizes": np.array([s.values.shape[0] for s in summaries], np.int64),
        "values": np.concatenate([s.values for s in (*summaries, empty)]),
        "weights": np.concatenate([s.weights for s in (*summaries, empty)]),
    }


def read_summaries(offer: Tensors, n_columns: int) -> list[Summary]:
    """Read :func:`write_summaries` and check what a peer could have got wrong."""
    sizes = offer.get("sizes", "<i8", (n_columns,))
    if np.any(sizes < 0):
        raise OfferRejected("sizes: expected none below 0")
    total = int(sizes.sum())
    values = offer.get("values", "<f4", (total,))
    weights = offer.get("weights", "<f8", (total,))
    if np.any(weights <= 0):
        raise OfferRejected("weights: expected none at or below 0")
    at = np.cumsum(sizes)[:-1] if n_columns else np.empty(0, np.int64)
    pairs = zip(np.split(values, at), np.split(weights, at), strict=True)
    summaries = [Summary(v, w) for v, w in pairs][:n_columns]
    if any(np.any(np.diff(s.values) <= 0) for s in summaries):
        raise OfferRejected("values: expected them to increase within a feature")
    return summaries


def write_total(
    total: Residues | None, ring_bits: int, present: tuple[Silo, ...]
) -> dict[str, NDArray[Any]]:
    """Return a masked total for the silos to open; none for a sum that stays closed."""
    if total is None:
        return {"abandoned": np.ones(1, np.uint8)}
    return {"total": total, "present": as_bytes("\n".join(present).encode())}


def read_total(told: Tensors, ring_bits: int) -> SumTotal:
    """Read :func:`write_total`; an abandoned sum has nobody present."""
    if told.has("abandoned"):
        return SumTotal(np.empty(0, residue_dtype(ring_bits)), ring_bits, ())
    kind = "<u4" if ring_bits == 32 else "<u8"
    names = told.get("present", "|u1", (None,)).tobytes().decode().split("\n")
    return SumTotal(
        told.get("total", kind, (None,)), ring_bits, tuple(Silo(name) for name in names)
    )
