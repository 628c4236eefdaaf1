"""The small networks that turn per-tree outputs into a prediction: shape, start and forward pass.

They need no deep-learning library; :mod:`.training` does. Weights travel as one flat float32
vector.

References
----------
Ma et al., "Gradient-less federated gradient boosting trees with learnable learning rates",
2023, section 3.3, figure 4 and table 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.parameters import DENSE_WIDTH

_UNITS_PER_PASS = 1 << 22  # 16 MiB of float32 hidden units


class HeadKind(Enum):
    """The paper's network and its two ablations."""

    CNN = "cnn"
    """Convolution with kernel and stride of one silo's block, ReLU, linear."""
    CONV3 = "conv3"
    """Convolution with kernel 3, stride 1, padding 1, ReLU, linear."""
    DENSE = "dense"
    """Two linear layers, the hidden one 256 wide."""


@dataclass(frozen=True, slots=True)
class Head:
    """Shape of a network over ``n_blocks`` blocks (silos) of ``block_width`` tree outputs each."""

    kind: HeadKind
    n_blocks: int
    """Ensembles, K."""
    block_width: int
    """Trees of an ensemble: boosting rounds times classes times parallel trees."""
    n_outputs: int = 1
    """Margins a row."""
    channels: int = 64
    """Learning-rate strategies, C; the dense network has none."""

    @property
    def n_inputs(self) -> int:
        """Trees of all blocks."""
        return self.n_blocks * self.block_width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each array of the flat vector, in its order.

        The inner layer maps inputs to hidden units. For ``CNN`` the outer layer's columns run
        over blocks first, channels second; for ``CONV3`` over channels first.
        """
        if self.kind is HeadKind.DENSE:
            inner, hidden = (DENSE_WIDTH, self.n_inputs), DENSE_WIDTH
        elif self.kind is HeadKind.CONV3:
            inner, hidden = (self.channels, 3), self.channels * self.n_inputs
        else:
            inner, hidden = (self.channels, self.block_width), self.channels * self.n_blocks
        return {
            "inner.weight": inner,
            "inner.bias": (inner[0],),
            "outer.weight": (self.n_outputs, hidden),
            "outer.bias": (self.n_outputs,),
        }

    @property
    def n_parameters(self) -> int:
        """Number of weights: 16193, 6785 and 3905 for 500 trees of 2, 5 and 10 silos."""
        return sum(prod(shape) for shape in self.shapes.values())

    def random(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return the paper's start: all layers Kaiming-uniform, within √(6/fan_in); no biases."""
        arrays = [np.zeros(shape) for shape in self.shapes.values()]
        for weights in arrays[::2]:
            weights[:] = (2 * rng.random(weights.shape) - 1) * sqrt(6 / weights.shape[1])
        return np.concatenate([a.reshape(-1) for a in arrays]).astype(np.float32)

    def initial(self, rng: np.random.Generator, groups: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return start weights at which the network is the mean of the blocks' sums.

        The inner layer is Kaiming-uniform, within √(6/fan_in), with zero biases, but for a pair of
        units for each output: these have the constants ±√(6/fan_in) for the trees of the output,
        since relu(s) − relu(−s) = s. The outer layer is zero but for these pairs.

        Parameters
        ----------
        groups : ndarray of shape (n_inputs,), int64
            Output that each tree adds to.

        Returns
        -------
        ndarray of shape (n_parameters,), float32

        References
        ----------
        He et al., "Delving deep into rectifiers", 2015. The pairs are ours: the paper starts as
        :meth:`random`, far from the mean.
        """
        arrays = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        inner, outer = arrays["inner.weight"], arrays["outer.weight"]
        bound = sqrt(6 / inner.shape[1])
        inner[:] = (2 * rng.random(inner.shape) - 1) * bound
        rate = 1 / (self.n_blocks * bound)
        if self.kind is HeadKind.CONV3:  # one pair shows every tree's output to all outer units
            inner[:2] = [[0, bound, 0], [0, -bound, 0]]
            of_unit = outer.reshape(self.n_outputs, self.channels, self.n_inputs)
            for output in range(self.n_outputs):
                of_unit[output, :2, groups == output] = [rate, -rate]
            return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)
        of_unit = outer.reshape(self.n_outputs, -1, len(inner))
        for output in range(self.n_outputs):
            own = bound * (groups[: inner.shape[1]] == output)
            inner[2 * output], inner[2 * output + 1] = own, -own
            of_unit[output, :, 2 * output], of_unit[output, :, 2 * output + 1] = rate, -rate
        return np.concatenate([a.reshape(-1) for a in arrays.values()]).astype(np.float32)

    def arrays(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return views of the flat vector by layer name."""
        if weights.shape != (self.n_parameters,):
            raise ValueError(f"expected {self.n_parameters} weights, received {weights.shape}")
        views, first = {}, 0
        for name, shape in self.shapes.items():
            views[name] = weights[first : first + prod(shape)].reshape(shape)
            first += prod(shape)
        return views

    def state(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return the weights by the names, and in the order, of a plain torch network.

        ``CNN`` and ``CONV3`` give the state of ``Sequential(Conv1d, ReLU, Flatten, Linear)``,
        ``DENSE`` of ``Sequential(Linear, ReLU, Linear)``, with ``inner`` and ``outer`` as names.
        """
        arrays = {name: array.copy() for name, array in self.arrays(weights).items()}
        if self.kind is HeadKind.DENSE:
            return arrays
        arrays["inner.weight"] = arrays["inner.weight"][:, None, :]
        if self.kind is HeadKind.CNN:
            outer = arrays["outer.weight"].reshape(self.n_outputs, self.n_blocks, self.channels)
            arrays["outer.weight"] = np.ascontiguousarray(outer.transpose(0, 2, 1)).reshape(
                self.n_outputs, -1
            )
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def flat(self, state: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the flat vector of a :meth:`state`."""
        parts = []
        for name, shape in self.shapes.items():
            array = np.asarray(state[name], np.float32)
            if self.kind is HeadKind.CNN and name == "outer.weight":
                outer = array.reshape(self.n_outputs, self.channels, self.n_blocks)
                array = outer.transpose(0, 2, 1)
            if array.size != prod(shape):
                raise ValueError(f"{name}: expected {prod(shape)} values, received {array.size}")
            parts.append(array.reshape(-1))
        return np.concatenate(parts)

    def margins(
        self, weights: NDArray[np.float32], outputs: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the network's outputs.

        Parameters
        ----------
        outputs : ndarray of shape (n_samples, n_inputs), float32
            Per-tree outputs.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs), float32
        """
        arrays = self.arrays(weights)
        hidden = self._hidden(arrays, outputs)
        np.maximum(hidden, 0, out=hidden)
        return hidden @ arrays["outer.weight"].T + arrays["outer.bias"]

    def _hidden(
        self, arrays: Mapping[str, NDArray[np.float32]], outputs: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the hidden units before the ReLU, shape (n_samples, n_hidden)."""
        n, inner, bias = len(outputs), arrays["inner.weight"], arrays["inner.bias"]
        if self.kind is HeadKind.CNN:
            blocks = outputs.reshape(n * self.n_blocks, self.block_width)
            return (blocks @ inner.T + bias).reshape(n, -1)
        if self.kind is HeadKind.DENSE:
            return outputs @ inner.T + bias
        padded = np.pad(outputs, ((0, 0), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)
        hidden = windows @ inner.T + bias
        return hidden.transpose(0, 2, 1).reshape(n, -1)

    @property
    def n_units(self) -> int:
        """Hidden units of a row."""
        return self.shapes["outer.weight"][1]

    def active(
        self, weights: NDArray[np.float32], outputs: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Return how many rows each hidden unit's ReLU lets through, shape (n_units,).

        Parameters
        ----------
        outputs : ndarray of shape (n_samples, n_inputs), float32
        """
        hidden = self._hidden(self.arrays(weights), outputs)
        return np.asarray((hidden > 0).sum(axis=0), np.int64)

    def rates(
        self, weights: NDArray[np.float32], share: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return each tree's learnt rate: the derivative of the prediction by its output.

        Parameters
        ----------
        share : ndarray of shape (n_units,), float64
            Of the rows, which each hidden unit's ReLU lets through; see :meth:`active`.

        Returns
        -------
        ndarray of shape (n_outputs, n_inputs), float64
            Mean over the rows.
        """
        arrays = self.arrays(weights)
        inner, outer = arrays["inner.weight"].astype(np.float64), arrays["outer.weight"] * share
        if self.kind is HeadKind.DENSE:
            return np.asarray(outer @ inner)
        if self.kind is HeadKind.CNN:
            per_block = outer.reshape(self.n_outputs, self.n_blocks, self.channels) @ inner
            return np.asarray(per_block.reshape(self.n_outputs, -1))
        paths = np.einsum(
            "ocp,cj->ojp", outer.reshape(self.n_outputs, self.channels, self.n_inputs), inner
        )
        padded = np.zeros((self.n_outputs, self.n_inputs + 2))
        for tap in range(3):
            padded[:, tap : tap + self.n_inputs] += paths[:, tap]
        return padded[:, 1:-1]


def head_margins(
    head: Head, weights: NDArray[np.float32], leaves: LeafOrdinals
) -> NDArray[np.float64]:
    """Return the head's margins (n_samples, n_outputs), float64, a few thousand rows at a time."""
    out = np.empty((leaves.n_samples, head.n_outputs))
    for rows, outputs in _passes(head, leaves):
        out[rows] = head.margins(weights, outputs)
    return out


def active_units(
    head: Head, weights: NDArray[np.float32], leaves: LeafOrdinals
) -> NDArray[np.int64]:
    """Return how many rows each hidden unit lets through, shape (n_units,)."""
    total = np.zeros(head.n_units, np.int64)
    for _, outputs in _passes(head, leaves):
        total += head.active(weights, outputs)
    return total


def _passes(
    head: Head, leaves: LeafOrdinals
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Yield some rows after others, and their trees' outputs."""
    n_rows = max(1, _UNITS_PER_PASS // (head.n_inputs + head.n_units))
    buffer = np.empty((n_rows, head.n_inputs), np.float32)
    for first in range(0, leaves.n_samples, n_rows):
        rows = np.arange(first, min(first + n_rows, leaves.n_samples))
        yield rows, leaves.outputs(rows, buffer)
