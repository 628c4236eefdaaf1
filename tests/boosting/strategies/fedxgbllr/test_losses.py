"""Losses of rows: their derivatives are those of the loss."""

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.losses import loss_and_derivatives
from tests.boosting.strategies.fedxgbllr.test_training import TASKS, labels_for


def n_outputs_of(task):
    return 3 if task is Task.MULTICLASS else 1


@pytest.mark.parametrize("task", TASKS)
def test_derivatives_equal_finite_differences(task):
    y = labels_for(task, 12, 0)
    margins = np.random.default_rng(1).normal(size=(12, n_outputs_of(task)))
    _, first, second = loss_and_derivatives(y, margins, task)
    h = 1e-5
    for c in range(margins.shape[1]):
        shift = np.zeros_like(margins)
        shift[:, c] = h
        up = loss_and_derivatives(y, margins + shift, task)
        down = loss_and_derivatives(y, margins - shift, task)
        np.testing.assert_allclose(first[:, c], (up[0] - down[0]) / (2 * h), atol=1e-8)
        np.testing.assert_allclose(second[:, c], (up[1][:, c] - down[1][:, c]) / (2 * h), atol=1e-8)
