"""Losses of rows and their derivatives by margins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task

Floats = NDArray[np.float64]


def loss_and_derivatives(y: Floats, margins: Floats, task: Task) -> tuple[Floats, Floats, Floats]:
    """Return each row's loss and its derivatives by the margins.

    Parameters
    ----------
    y : ndarray of shape (n_samples,), float64
    margins : ndarray of shape (n_samples, n_outputs), float64

    Returns
    -------
    loss : ndarray of shape (n_samples,)
        Cross-entropy, or half the squared error.
    first, second : ndarray of shape (n_samples, n_outputs)
        The second one is the diagonal of the Hessian.
    """
    if task is Task.REGRESSION:
        residual = margins - y[:, None]
        return 0.5 * residual[:, 0] ** 2, residual, np.ones_like(residual)
    if task is Task.BINARY:
        s = margins[:, 0]
        loss = np.logaddexp(0.0, s) - y * s
        p = np.exp(-np.logaddexp(0.0, -margins))
        return loss, p - y[:, None], p * (1 - p)
    top = margins.max(axis=1, keepdims=True)
    exponentials = np.exp(margins - top)
    total = exponentials.sum(axis=1, keepdims=True)
    rows, classes = np.arange(len(y)), y.astype(np.int64)
    loss = np.log(total[:, 0]) + top[:, 0] - margins[rows, classes]
    p = exponentials / total
    first = p.copy()
    first[rows, classes] -= 1.0
    return loss, first, p * (1 - p)
