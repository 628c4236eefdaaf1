"""Calibrated probabilities: an affine function of margins, fitted to rows that are not of training.

Of two classes the margin gets a scale and a shift (Platt scaling), of more classes all margins get
one scale (temperature scaling). Both are functions that leaf values and the base margin can take
up, so a calibrated model is scored, served and explained like any other.

References
----------
J. Platt, Probabilistic outputs for support vector machines, 1999, with the targets of section 2.
C. Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_MOST_STEPS = 100
_ENOUGH = 1e-12
"""Relative decrease of the loss at which Newton's method ends."""


def fit(
    margins: NDArray[np.float32], labels: Floats, weight: NDArray[np.float32] | None
) -> tuple[float, float]:
    """Return the scale and the shift that give margins the least log loss.

    Labels are smoothed as Platt does, so that rows of one class, or separated classes, have a
    solution. Where the best scale is not above 0 (the rows say that the model ranks no better than
    chance) it stays 1: calibration never turns an order round.

    Parameters
    ----------
    margins : ndarray of shape (n_rows, n_outputs), float32
    labels : ndarray of shape (n_rows,), float64
        Classes from 0.
    weight : ndarray of shape (n_rows,), float32, or None

    Returns
    -------
    scale, shift : float
        The shift is 0 for more than two classes.
    """
    z = margins.astype(np.float64)
    binary = z.shape[1] == 1
    if binary:
        z = np.pad(z, ((0, 0), (1, 0)))
    n_classes = z.shape[1]
    w = np.ones(len(z)) if weight is None else weight.astype(np.float64)
    if not w.sum() > 0:
        return 1.0, 0.0
    w = w * len(w) / w.sum()
    y = labels.astype(np.intp)
    n = np.bincount(y, w, n_classes)
    hit = ((n + 1) / (n + 2))[y]
    target = np.repeat((1 - hit)[:, None] / (n_classes - 1), n_classes, axis=1)
    target[np.arange(len(y)), y] = hit
    shifted = np.zeros_like(z)
    shifted[:, 1] = 1
    ways = np.stack([z, shifted] if binary else [z])
    found = _newton(ways, np.zeros_like(z), target, w)
    if not found[0] > 0:
        found[0] = 1.0
        found[1:] = _newton(ways[1:], z, target, w)
    return float(found[0]), float(found[1]) if binary else 0.0


def _newton(ways: Floats, fixed: Floats, target: Floats, w: Floats) -> Floats:
    """Return the factors of ``ways`` whose sum with ``fixed`` has the least loss (it is convex).

    Parameters
    ----------
    ways : ndarray of shape (n_factors, n_rows, n_classes), float64
    fixed, target : ndarray of shape (n_rows, n_classes), float64
    w : ndarray of shape (n_rows,), float64
    """
    factors = np.zeros(len(ways))
    loss, p = _loss(factors, ways, fixed, target, w)
    for _ in range(_MOST_STEPS):
        mean = np.einsum("fnk,nk->fn", ways, p)
        slope = np.einsum("fnk,nk,n->f", ways, p - target, w)
        curve = np.einsum("fnk,gnk,nk,n->fg", ways, ways, p, w, optimize=True)
        curve -= np.einsum("fn,gn,n->fg", mean, mean, w)
        step = np.linalg.lstsq(curve, slope, rcond=None)[0]
        before = loss
        while True:
            loss, p = _loss(factors - step, ways, fixed, target, w)
            if loss <= before or not np.abs(step).max(initial=0) > _ENOUGH:
                break
            step = step / 2
        if loss < before:
            factors = factors - step
        if not before - loss > _ENOUGH * before:
            break
    return factors


def _loss(
    factors: Floats, ways: Floats, fixed: Floats, target: Floats, w: Floats
) -> tuple[float, Floats]:
    """Return the log loss, and the probabilities of each class."""
    z = fixed + np.einsum("f,fnk->nk", factors, ways)
    z = z - z.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(z).sum(axis=1, keepdims=True))
    return float(-(w[:, None] * target * (z - log_sum)).sum()), np.exp(z - log_sum)
