"""Training of heads: hand-written steps against torch's modules and against plain numpy."""

import sys
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.training import RoundSchedule, fit_head
from tests.boosting.strategies.fedxgbllr.test_heads import (
    random_leaves,
    some_weights,
    torch_network,
)
from tests.late import Late
from tests.oracles import PLAIN_TASKS

torch: Any = Late("torch")
TASKS = PLAIN_TASKS


def labels_for(task, n_rows, seed):
    rng = np.random.default_rng(seed)
    if task is Task.REGRESSION:
        return rng.normal(size=n_rows)
    return rng.integers(0, 3 if task is Task.MULTICLASS else 2, n_rows).astype(float)


def trained(head, weights, rows, task, schedule, seed=0, **given):
    """Return the weights after the last epoch."""
    rng = np.random.default_rng(seed)
    return fit_head(head, weights, rows, task, schedule, rng, **given)


def trained_by_torch(head, weights, leaves, y, task, schedule, rng, row_weights=None):
    """Train the plain modules with torch's own losses and optimiser on the same batches."""
    network = torch_network(head, weights)
    adam = torch.optim.Adam(
        network.parameters(), lr=schedule.learning_rate, betas=schedule.betas, eps=1e-8
    )
    outputs = torch.from_numpy(leaves.outputs(np.arange(leaves.n_samples)))
    scale = torch.ones(len(y))
    if row_weights is not None:
        scale = torch.from_numpy((row_weights / row_weights.mean()).astype(np.float32))
    for _ in range(schedule.epochs):
        order = rng.permutation(leaves.n_samples)
        for first in range(0, len(order), schedule.batch_size):
            batch = order[first : first + schedule.batch_size]
            margins = network(outputs[batch])
            if task is Task.MULTICLASS:
                loss = torch.nn.functional.cross_entropy(
                    margins, torch.from_numpy(y[batch]).long(), reduction="none"
                )
            else:
                kind = "binary_cross_entropy_with_logits"
                measure = getattr(torch.nn.functional, kind if task is Task.BINARY else "mse_loss")
                target = torch.from_numpy(y[batch].astype(np.float32))
                loss = measure(margins[:, 0], target, reduction="none")
            loss = (loss * scale[batch]).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    arrays = [p.detach().numpy() for p in network.parameters()]
    return head.flat(dict(zip(head.shapes, arrays, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", tuple(HeadKind))
@pytest.mark.parametrize("task", TASKS)
def test_training_equals_torchs_modules_losses_and_adam(kind, task):
    n_outputs = 3 if task is Task.MULTICLASS else 1
    head = Head(kind, 3, 4, n_outputs, channels=6)
    leaves = random_leaves(50, 12, seed=1)
    y = labels_for(task, 50, seed=2)
    weights = some_weights(head, 3)
    schedule = RoundSchedule(epochs=3, batch_size=16, learning_rate=1e-2)
    scale = np.random.default_rng(4).random(50) + 0.5
    found = trained(head, weights, TrainingRows(leaves, y, scale), task, schedule, seed=5)
    expected = trained_by_torch(
        head, weights, leaves, y, task, schedule, np.random.default_rng(5), scale
    )
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - weights).max() > 1e-2


def test_cnn_gradient_equals_a_numpy_loop():
    head = Head(HeadKind.CNN, 2, 3, channels=4)
    leaves = random_leaves(8, 6, seed=1)
    y = labels_for(Task.BINARY, 8, seed=2)
    weights = some_weights(head, 3)
    outputs = leaves.outputs(np.arange(8)).astype(np.float64)

    def loss(w):
        arrays = {k: v.astype(np.float64) for k, v in head.arrays(w).items()}
        total = 0.0
        for row, label in zip(outputs, y, strict=True):
            margin = arrays["outer.bias"][0]
            for block in range(2):
                for channel in range(4):
                    unit = arrays["inner.bias"][channel]
                    for tree in range(3):
                        unit += arrays["inner.weight"][channel, tree] * row[3 * block + tree]
                    margin += arrays["outer.weight"][0, 4 * block + channel] * max(unit, 0.0)
            total += np.logaddexp(0, margin) - label * margin
        return total / len(y)

    h = 1e-5
    slopes = np.empty(len(weights))
    for i in range(len(weights)):
        up, down = weights.astype(np.float64), weights.astype(np.float64)
        up[i] += h
        down[i] -= h
        slopes[i] = (loss(up) - loss(down)) / (2 * h)
    schedule = RoundSchedule(epochs=1, batch_size=8, learning_rate=1e-3)
    found = trained(head, weights, TrainingRows(leaves, y), Task.BINARY, schedule)
    moved = found.astype(np.float64) - weights
    # Adam's first step is -rate·g/(|g| + eps)
    expected = -1e-3 * slopes / (np.abs(slopes) + 1e-8)
    clear = np.abs(slopes) > 1e-5
    assert clear.sum() > 10
    np.testing.assert_allclose(moved[clear], expected[clear], rtol=1e-2)


def test_training_lowers_the_loss_and_leaves_its_input_alone():
    head = Head(HeadKind.CNN, 2, 10, channels=8)
    leaves = random_leaves(300, 20, seed=1)
    y = leaves.margins(leaves.table.values.astype(float), 1)[:, 0]
    weights = some_weights(head, 3)
    before = weights.copy()
    schedule = RoundSchedule(epochs=60, batch_size=32, learning_rate=3e-3)
    found = trained(head, weights, TrainingRows(leaves, y), Task.REGRESSION, schedule)
    assert np.array_equal(weights, before)
    outputs = leaves.outputs(np.arange(300))
    error = ((head.margins(found, outputs)[:, 0] - y) ** 2).mean()
    assert error < 0.1 * y.var()


def test_torchs_thread_count_is_one_during_training_and_restored_after():
    head = Head(HeadKind.CNN, 2, 2, channels=2)
    rows = TrainingRows(random_leaves(5, 4, seed=1), np.zeros(5))
    weights = some_weights(head, 0)
    seen = []
    torch.set_num_threads(2)
    try:
        trained(
            head,
            weights,
            rows,
            Task.BINARY,
            RoundSchedule(1, 4),
            check=lambda: seen.append(torch.get_num_threads()),
        )
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_without_torch_the_job_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    head = Head(HeadKind.CNN, 2, 2, channels=2)
    rows = TrainingRows(random_leaves(5, 4, seed=1), np.zeros(5))
    with pytest.raises(InvalidJob, match="hedgerow\\[torch\\]"):
        trained(
            head, np.zeros(head.n_parameters, np.float32), rows, Task.BINARY, RoundSchedule(1, 4)
        )
