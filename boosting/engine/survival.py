"""Gradients of the accelerated failure time loss, by XGBoost's own formulas and limits."""

from __future__ import annotations

import math

import numpy as np

from hedgerow.boosting.checks import one_of, within
from hedgerow.boosting.failure_times import (
    DISTRIBUTIONS,
    LEAST_SCALE,
    MOST_SCALE,
    FailureTimes,
)
from hedgerow.boosting.job import Booster
from hedgerow.crypto.native.kernels import kernel

MOST = 15.0
"""Largest ``|g|`` and ``h`` of a row of weight one: XGBoost clips both there."""
NORMAL, LOGISTIC, EXTREME = range(len(DISTRIBUTIONS))


def check_failure_times(booster: Booster) -> FailureTimes:
    """Return the distribution of a job's failure times; raises :class:`InvalidJob` for no such."""
    name, scale = booster.aft_loss_distribution, booster.aft_loss_distribution_scale
    one_of("booster", "aft_loss_distribution", name, DISTRIBUTIONS)
    within("booster", "aft_loss_distribution_scale", scale, LEAST_SCALE, MOST_SCALE)
    return booster.failure_times


@kernel("boosting/tables", "failure_times")
def failure_times(kind, scale, margins, bounds, weight, g, h):
    """Write g and h of each row; see :mod:`hedgerow.boosting.failure_times`.

    Parameters
    ----------
    kind : int
        Number of the distribution.
    scale : float
        Float32 exactly.
    margins : ndarray of shape (n_samples,), float32
    bounds : ndarray of shape (n_samples, 2), float32
        Earliest and latest time.
    weight : ndarray of shape (n_samples,) or (0,), float32
    g, h : ndarray of shape (n_samples,), float32
    """
    weighted = weight.shape[0] > 0
    for i in range(margins.shape[0]):
        grad, hess = _pair(kind, scale, float(margins[i]), float(bounds[i, 0]), float(bounds[i, 1]))
        w = weight[i] if weighted else np.float32(1.0)
        g[i] = np.float32(grad) * w
        h[i] = np.float32(hess) * w


def _pair(
    kind: int, scale: float, margin: float, lower: float, upper: float
) -> tuple[float, float]:
    seen, left = lower == upper, lower <= 0.0
    last = 0.0 if math.isinf(upper) else (math.log(upper) - margin) / scale
    first = 0.0 if left else (math.log(lower) - margin) / scale
    above = last > 0 or first > 0
    if seen:
        density, _, slope, curve = _distribution(kind, first)
        part, whole = slope, scale * density
        bent = -(density * curve - slope * slope)
        square = scale * scale * density * density
    else:
        d_last, p_last, s_last, _ = (
            (0.0, 1.0, 0.0, 0.0) if math.isinf(upper) else _distribution(kind, last)
        )
        d_first, p_first, s_first, _ = (0.0, 0.0, 0.0, 0.0) if left else _distribution(kind, first)
        likely, part = p_last - p_first, d_last - d_first
        whole = scale * likely
        bent, square = -(likely * (s_last - s_first) - part * part), whole * whole
    grad, hess = _ratio(part, whole), _ratio(bent, square)
    # Beyond what float64 tells of a tail XGBoost takes the limit that a row goes towards.
    if not math.isfinite(grad):
        grad = MOST if kind == NORMAL else 1.0 / scale
        if above:
            grad = -1.0 / scale if kind == LOGISTIC else -MOST
    if not math.isfinite(hess):
        hess = MOST if kind == EXTREME and above else 0.0
        hess = 1.0 / (scale * scale) if kind == NORMAL else hess
    return min(max(grad, -MOST), MOST), min(max(hess, 1e-16), MOST)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


def _distribution(kind: int, z: float) -> tuple[float, float, float, float]:
    """Return density, probability below, and the density's first two derivatives."""
    if kind == NORMAL:
        density = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        below = 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
        return density, below, -z * density, (z * z - 1.0) * density
    w = math.exp(z) if z < 709.0 else math.inf
    if math.isinf(w):
        return 0.0, 1.0, 0.0, 0.0
    far = math.isinf(w * w)
    if kind == LOGISTIC:
        density = 0.0 if far else w / ((1.0 + w) * (1.0 + w))
        curve = 0.0 if far else density * (w * w - 4.0 * w + 1.0) / ((1.0 + w) * (1.0 + w))
        return density, w / (1.0 + w), density * (1.0 - w) / (1.0 + w), curve
    density = w * math.exp(-w)
    return (
        density,
        1.0 - math.exp(-w),
        (1.0 - w) * density,
        0.0 if far else (w * w - 3.0 * w + 1.0) * density,
    )
