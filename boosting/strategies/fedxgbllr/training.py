"""Training of a network by mini-batches on one silo's rows; the only module that imports torch.

The network is small (at most some 16,000 weights in the paper's setting), so a step is a few calls
of some microseconds each. The convolution with kernel and stride of a block is one matrix product,
its gradient is written into one flat vector, and Adam updates that vector in five calls: about
0.2 ms of CPU a step of 64 rows and 500 trees (``python -m benchmarks.fedxgbllr`` prints it beside
torch's own modules). It runs in one thread: so small a product is slower in several.

References
----------
Ma et al. 2023, algorithm 1, ``ClientUpdate``. Kingma and Ba, "Adam", 2015, with the reordering of
its section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind

Tensor = Any  # torch is optional: without it its types do not exist

_ROWS_PER_GATHER = 4096  # rows looked up at once; 8 MB for 500 trees


@dataclass(frozen=True, slots=True)
class RoundSchedule:
    """How a silo trains the network in one round."""

    epochs: int
    batch_size: int
    """``epochs`` and ``batch_size``: the last batch of an epoch may be smaller; rows are shuffled
    in each epoch."""
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.5, 0.999)
    """Of Adam, whose state is reset in each round."""


def torch_module() -> Any:
    """Return the torch module.

    Raises
    ------
    InvalidJob
        torch is not installed in this process's environment.
    """
    try:
        import torch
    except ImportError as absent:
        raise InvalidJob(
            "combiners 'cnn', 'conv3' and 'dense' train a network and need torch: install "
            "hedgerow[torch], or choose combiner 'leaves', 'ridge', 'logit_ridge' or 'mean'"
        ) from absent
    return torch


def fit_head(
    head: Head,
    weights: NDArray[np.float32],
    rows: TrainingRows,
    task: Task,
    schedule: RoundSchedule,
    rng: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Return the weights after training by Adam from ``weights``.

    Parameters
    ----------
    weights : ndarray of shape (head.n_parameters,), float32
        Start; not changed.
    rows : TrainingRows
        Their weights are scaled to mean one.
    task : Task
        Loss: binary cross-entropy, softmax cross-entropy or mean squared error.
    rng : numpy.random.Generator
        Shuffles the rows.
    check : callable
        Called every few thousand rows; raises when the silo must stop.

    Returns
    -------
    ndarray of shape (head.n_parameters,), float32
    """
    torch = torch_module()
    with _one_thread(torch), torch.no_grad():
        point = torch.from_numpy(weights.astype(np.float32))
        gradient = torch.zeros_like(point)
        network = _Layers(torch, head, point, gradient, schedule.batch_size)
        adam = _Adam(torch, point, gradient, schedule)
        leaves, n = rows.leaves, rows.leaves.n_samples
        buffer = torch.empty((min(_ROWS_PER_GATHER, max(1, n)), head.n_inputs))
        labels = torch.from_numpy(_label_matrix(rows.y, task, head.n_outputs))
        scale = None
        if rows.weight is not None:
            scale = torch.from_numpy((rows.weight / rows.weight.mean()).astype(np.float32))
        error = _ERRORS[task]
        for _ in range(schedule.epochs):
            shuffled = rng.permutation(n)
            for first in range(0, n, len(buffer)):
                check()
                some = shuffled[first : first + len(buffer)]
                leaves.outputs(some, buffer.numpy())
                index = torch.from_numpy(some)
                of_some = labels[index]
                scale_of_some = None if scale is None else scale[index, None]
                for start in range(0, len(some), schedule.batch_size):
                    batch = slice(start, min(start + schedule.batch_size, len(some)))
                    margins = network.forward(buffer[batch])
                    residual = error(torch, margins, of_some[batch])
                    if scale_of_some is not None:
                        residual.mul_(scale_of_some[batch])
                    network.backward(residual.div_(batch.stop - batch.start))
                    adam.step()
        return np.asarray(point.numpy())


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _label_matrix(targets: NDArray[np.float64], task: Task, n_outputs: int) -> NDArray[np.float32]:
    """Return labels in the shape of the margins: (n_samples, n_outputs), float32."""
    if task is not Task.MULTICLASS:
        return targets.astype(np.float32)[:, None]
    return np.eye(n_outputs, dtype=np.float32)[targets.astype(np.int64)]


_ERRORS: dict[Task, Callable[[Any, Tensor, Tensor], Tensor]] = {
    # derivative of each row's loss by its margins
    Task.BINARY: lambda torch, margins, labels: torch.sigmoid(margins).sub_(labels),
    Task.MULTICLASS: lambda torch, margins, labels: torch.softmax(margins, 1).sub_(labels),
    Task.REGRESSION: lambda torch, margins, labels: (margins - labels).mul_(2),
}


def _views(head: Head, flat: Tensor) -> list[Tensor]:
    views, first = [], 0
    for shape in head.shapes.values():
        views.append(flat[first : first + prod(shape)].view(shape))
        first += prod(shape)
    return views


class _Layers:
    """Two linear layers with a ReLU between; the inner one is shared by the blocks of a row.

    The dense ablation is the case of one block; in the one with kernel 3 the blocks of a row
    overlap, and its outer weights are by channel first.
    """

    def __init__(
        self, torch: Any, head: Head, point: Tensor, gradient: Tensor, batch_size: int
    ) -> None:
        self._torch = torch
        self._inner, self._bias, self._outer, self._outer_bias = _views(head, point)
        self._gradients = _views(head, gradient)
        self._overlaps = head.kind is HeadKind.CONV3
        of_kind = {HeadKind.CNN: head.n_blocks, HeadKind.CONV3: head.n_inputs}
        self._blocks = of_kind.get(head.kind, 1)
        units = self._inner.shape[0]
        self._hidden = torch.empty((batch_size * self._blocks, units))
        self._flow = torch.empty((batch_size, self._blocks * units))
        self._batch: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, outputs: Tensor) -> Tensor:
        """Return margins (batch, n_outputs) of tree outputs (batch, n_inputs)."""
        torch, n, outer = self._torch, outputs.shape[0], self._outer
        if self._overlaps:
            outputs = torch.nn.functional.pad(outputs, (1, 1)).unfold(1, 3, 1)
            by_channel = outer.view(len(outer), -1, self._blocks)
            outer = by_channel.transpose(1, 2).reshape(len(outer), -1)
        blocks = outputs.reshape(n * self._blocks, -1)
        hidden = self._hidden[: n * self._blocks]
        torch.addmm(self._bias, blocks, self._inner.T, out=hidden)
        hidden.relu_()
        self._batch = blocks, hidden.view(n, -1), outer
        return torch.addmm(self._outer_bias, hidden.view(n, -1), outer.T)

    def backward(self, residual: Tensor) -> None:
        """Write the gradient, given the loss's derivative by the last margins."""
        assert self._batch is not None, "a gradient follows a forward pass"
        torch = self._torch
        blocks, hidden, by_block = self._batch
        inner, bias, outer, outer_bias = self._gradients
        if self._overlaps:
            found = torch.mm(residual.T, hidden).view(len(outer), self._blocks, -1)
            outer.view(len(outer), -1, self._blocks).copy_(found.transpose(1, 2))
        else:
            torch.mm(residual.T, hidden, out=outer)
        torch.sum(residual, 0, out=outer_bias)
        flow = torch.mm(residual, by_block, out=self._flow[: len(residual)])
        flow.mul_(hidden.sign_())  # a unit's sign after the ReLU is its gate
        flow = flow.view(len(blocks), -1)
        torch.mm(flow.T, blocks, out=inner)
        torch.sum(flow, 0, out=bias)


class _Adam:
    """Adam on one flat vector, with fresh state."""

    def __init__(
        self, torch: Any, point: Tensor, gradient: Tensor, schedule: RoundSchedule
    ) -> None:
        self._torch, self._point, self._gradient = torch, point, gradient
        self._mean, self._square = torch.zeros_like(point), torch.zeros_like(point)
        self._root = torch.empty_like(point)
        self._betas, self._rate = schedule.betas, schedule.learning_rate
        self._steps = 0

    def step(self) -> None:
        """Move the point once along the gradient."""
        (first, second), gradient = self._betas, self._gradient
        self._steps += 1
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        correction = sqrt(1 - second**self._steps)
        self._torch.sqrt(self._square, out=self._root).add_(1e-8 * correction)
        rate = self._rate * correction / (1 - first**self._steps)
        self._point.addcdiv_(self._mean, self._root, value=-rate)
