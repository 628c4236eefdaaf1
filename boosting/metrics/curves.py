"""The area under the ROC curve, and its greatest height over chance (Kolmogorov-Smirnov).

Exact from rows, or from histograms of scores that silos add up.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

N_SCORE_BINS = 1024
"""Bins of the score histogram behind a pooled AUC (a class of a multi-class job has fewer)."""

_MANY = 1 << 14
_SCORE_SCALE = 1e-3
_SCORE_LIMIT = 32.0


def exact_auc(
    positive: NDArray[np.bool_], score: NDArray[np.floating], weight: Floats | None = None
) -> float:
    """Return the area under the ROC curve, ties counted half; NaN unless both classes are there.

    Parameters
    ----------
    positive : ndarray of shape (n_samples,), bool
    score : ndarray of shape (n_samples,)
    weight : ndarray of shape (n_samples,), float64, optional
    """
    if weight is None and len(score) >= _MANY:
        # Ranks of margins, which are float32: loads compiled kernels, which pays for many rows.
        from hedgerow.boosting.engine.sorting import count_pairs, sorted_keys

        single = np.asarray(score, np.float32)
        if np.array_equal(single, score):
            hits, others = (sorted_keys(single[side]) for side in (positive, ~positive))
            pairs = 2.0 * len(hits) * len(others)
            return count_pairs(hits, others) / pairs if pairs else math.nan
    return area(*weights_by_score(positive, score, weight))


def exact_ks(
    positive: NDArray[np.bool_], score: NDArray[np.floating], weight: Floats | None = None
) -> float:
    """Return :func:`distance` of rows; see :func:`exact_auc`."""
    return distance(*weights_by_score(positive, score, weight))


def weights_by_score(
    positive: NDArray[np.bool_], score: NDArray[np.floating], weight: Floats | None
) -> tuple[Floats, Floats]:
    """Return the weights of both classes at each value of the score, rising."""
    order = np.argsort(score, kind="stable")
    ranked = score[order]
    w = np.ones(len(order)) if weight is None else weight[order]
    hit = positive[order]
    if not len(order):
        return np.zeros(0), np.zeros(0)
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    up = np.add.reduceat(np.where(hit, w, 0.0), starts)
    return up, np.add.reduceat(np.where(hit, 0.0, w), starts)


def distance(positive: Floats, negative: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance between both classes' scores, see :func:`area`."""
    if positive.sum() <= 0.0 or negative.sum() <= 0.0:
        return math.nan
    gap = np.cumsum(positive) / positive.sum() - np.cumsum(negative) / negative.sum()
    return float(np.abs(gap).max())


def area(positive: Floats, negative: Floats) -> float:
    """Return the area under the ROC curve from weights of both classes in bins of rising score."""
    below = np.cumsum(negative) - negative
    pairs = positive.sum() * negative.sum()
    if pairs <= 0.0:
        return math.nan
    return float((positive * (below + 0.5 * negative)).sum() / pairs)


def _from_the_top(positive: Floats, negative: Floats) -> tuple[Floats, Floats]:
    """Return weights of both classes at or above each score, falling; scores without rows apart."""
    some = (positive + negative) > 0.0
    return np.cumsum(positive[some][::-1]), np.cumsum(negative[some][::-1])


def average_precision(positive: Floats, negative: Floats) -> float:
    """Return scikit-learn's average precision from weights as :func:`area` takes; see there."""
    if positive.sum() <= 0.0 or negative.sum() <= 0.0:
        return math.nan
    hits, alarms = _from_the_top(positive, negative)
    return float((np.diff(hits, prepend=0.0) * hits / (hits + alarms)).sum() / hits[-1])


def precision_recall_area(positive: Floats, negative: Floats) -> float:
    """Return XGBoost's ``aucpr`` from weights as :func:`area` takes.

    Between two scores the curve is interpolated as if both classes' rows came evenly.

    References
    ----------
    Keilwagen, Grosse, Grau, "Area under precision-recall curves for weighted and unweighted data",
    PLoS ONE 9(3), 2014, equation 6.
    """
    if positive.sum() <= 0.0 or negative.sum() <= 0.0:
        return math.nan
    hits, alarms = _from_the_top(positive, negative)
    gained, added = np.diff(hits, prepend=0.0), np.diff(alarms, prepend=0.0)
    rises = gained > 0.0
    before = (hits - gained)[rises] / hits[-1]
    after, slope = hits[rises] / hits[-1], added[rises] / gained[rises]
    a = 1.0 + slope
    b = ((alarms - added)[rises] - slope * (hits - gained)[rises]) / hits[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        bent = b / a * (np.log(a * after + b) - np.log(a * before + b))
    return float(((after - before - np.where(b == 0.0, 0.0, bent)) / a).sum())


def n_bins_of(n_outputs: int) -> int:
    """Return the number of score bins of each class."""
    return N_SCORE_BINS if n_outputs == 1 else max(64, N_SCORE_BINS // n_outputs)


def score_bins(score: Floats, center: float, n_bins: int) -> NDArray[np.intp]:
    """Return the bin of each score: even in relative distance from ``center``, on both sides."""
    top = math.asinh(_SCORE_LIMIT / _SCORE_SCALE)
    place = np.arcsinh((score - center) / _SCORE_SCALE) / top
    bins = np.floor((place + 1.0) * (n_bins / 2)).astype(np.int64)
    return np.clip(bins, 0, n_bins - 1).astype(np.intp)
