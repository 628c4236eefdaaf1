"""The nodes of a growing tree: what follows from their sums alone.

Weights, bounds of monotone constraints, covers and leaf values follow from the sums of the nodes
and the structure, not from histograms. Who grows a tree and who only knows its sums derive them
here, so that they are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.splitting import Scale, TreeParameters, node_weights

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Number = TypeVar("Number", np.int64, np.float32)


class GrowingNode:
    """A node of a growing tree; sums are integers over all rows of it."""

    __slots__ = ("bounds", "depth", "left", "outer", "sums")

    def __init__(self, depth: int, sums: Integers, outer: tuple[float, float]) -> None:
        self.depth = depth
        self.sums = sums
        self.outer = outer
        self.bounds = outer
        self.left = -1


class NodeValues(NamedTuple):
    """Statistics of a tree's nodes, as :class:`~.grower.GrownTree` has them."""

    left: NDArray[np.int32]
    cover: Floats
    value: Floats
    weight: Floats


class TreeNodes:
    """The nodes of one tree, from its root's sums on.

    Parameters
    ----------
    totals : ndarray of shape (2 * n_outputs,), int64
        Sums of the root.
    """

    def __init__(self, parameters: TreeParameters, scale: Scale, totals: Integers) -> None:
        self._parameters = parameters
        self._scale = scale
        self.nodes = [GrowingNode(0, totals, (-np.inf, np.inf))]
        self.weights = [self._weigh([0])[0]]

    def divide(
        self, chosen: Sequence[int], left_sums: Sequence[Integers], directions: Sequence[int]
    ) -> None:
        """Append the children of some nodes.

        Parameters
        ----------
        directions : sequence of int
            Monotone constraint of the feature that divides each node; not used without any.
        """
        if not chosen:
            return
        first = len(self.nodes)
        for node, sums in zip(chosen, left_sums, strict=True):
            parent = self.nodes[node]
            parent.left = len(self.nodes)
            for own in (sums, parent.sums - sums):
                self.nodes.append(GrowingNode(parent.depth + 1, own, parent.bounds))
        # As in XGBoost, children are weighed under their parent's bounds; their own bounds apply
        # when they are split in turn.
        self.weights.extend(self._weigh(range(first, len(self.nodes))))
        if self._parameters.monotone:
            for node, direction in zip(chosen, directions, strict=True):
                self._bound_children(node, direction)

    def _bound_children(self, node: int, direction: int) -> None:
        """Keep the weights below two children on their sides of the middle of the children's."""
        parent = self.nodes[node]
        left, right = self.nodes[parent.left : parent.left + 2]
        weights = self.weights[parent.left][0] + self.weights[parent.left + 1][0]
        middle = float(np.float32(weights) / np.float32(2))
        low, high = parent.bounds
        if direction > 0:
            left.bounds, right.bounds = (low, middle), (middle, high)
        elif direction < 0:
            left.bounds, right.bounds = (middle, high), (low, middle)

    @property
    def leaves(self) -> tuple[int, ...]:
        """Current leaves of the tree, ascending."""
        return tuple(i for i, node in enumerate(self.nodes) if node.left < 0)

    def cut(self, pairs: Collection[int]) -> NDArray[np.int64]:
        """Take back the divisions whose left children are ``pairs``, all leaves.

        Returns
        -------
        ndarray of shape (n_nodes,), int64
            The new number of each node, -1 for those that are gone.
        """
        gone = {child for left in pairs for child in (left, left + 1)}
        number = renumbered(len(self.nodes), gone)
        for node in self.nodes:
            node.left = -1 if node.left < 0 else int(number[node.left])
        self.nodes = [node for i, node in enumerate(self.nodes) if i not in gone]
        self.weights = [weight for i, weight in enumerate(self.weights) if i not in gone]
        return number

    def values(self, leaf_sums: Integers | None, leaf_scale: Scale | None) -> NodeValues:
        """Return the tree's statistics; open nodes are leaves.

        Parameters
        ----------
        leaf_sums : ndarray of shape (n_leaves, 2 * n_outputs), int64, or None
            Sums of the leaves, ascending by node, that replace those of the nodes.
        """
        left = np.array([n.left for n in self.nodes], dtype=np.int32)
        bounds = self.bounds(range(len(self.nodes)))
        rules = self._parameters, self._scale
        sums = joined([n.sums for n in self.nodes])
        return node_values(left, sums, joined(self.weights), bounds, *rules, leaf_sums, leaf_scale)

    def bounds(self, nodes: Sequence[int]) -> Floats | None:
        """Return what :func:`~.splitting.find_splits` needs; None without constraints."""
        if not self._parameters.monotone:
            return None
        return np.array(
            [self.nodes[node].bounds + self.nodes[node].outer for node in nodes],
            dtype=np.float32,
        )

    def _weigh(self, nodes: Sequence[int]) -> list[Floats]:
        sums = joined([self.nodes[node].sums for node in nodes])
        return list(node_weights(sums, self._parameters, self._scale, self.bounds(nodes)))


def joined(rows: Sequence[NDArray[Number]]) -> NDArray[Number]:
    """Return rows of the same length as one array, as ``np.stack`` does, for many short ones."""
    return np.concatenate(rows).reshape(len(rows), -1)


def node_values(
    left: NDArray[np.int32],
    sums: Integers,
    weight: Floats,
    bounds: Floats | None,
    parameters: TreeParameters,
    scale: Scale,
    leaf_sums: Integers | None,
    leaf_scale: Scale | None,
) -> NodeValues:
    """Return a tree's statistics.

    Parameters
    ----------
    left : ndarray of shape (n_nodes,), int32
        Left children, -1 for leaves.
    sums : ndarray of shape (n_nodes, 2 * n_outputs), int64
    weight : ndarray of shape (n_nodes, n_outputs), float32
        Unshrunken, children under their parents' bounds; overwritten.
    bounds : ndarray of shape (n_nodes, 4), float32, or None
        As :meth:`TreeNodes.bounds` returns them.
    leaf_sums, leaf_scale
        As in :meth:`TreeNodes.values`.
    """
    leaves = np.flatnonzero(left < 0)
    cover = (sums[:, 1::2].sum(axis=1) * scale.hess).astype(np.float32)
    if leaf_sums is not None:
        exact = scale if leaf_scale is None else leaf_scale
        inside = None if bounds is None else bounds[leaves]
        weight[leaves] = node_weights(leaf_sums, parameters, exact, inside)
        cover[leaves] = leaf_sums[:, 1::2].sum(axis=1) * exact.hess
    value = np.zeros_like(weight)
    value[leaves] = weight[leaves] * np.float32(parameters.eta)
    weight[leaves[leaves > 0]] = value[leaves[leaves > 0]]
    splits = np.flatnonzero(left >= 0)
    if bounds is not None and splits.size:  # weighed again, under their own bounds
        weight[splits] = node_weights(sums[splits], parameters, scale, bounds[splits])
    return NodeValues(left, cover, value, weight)


def renumbered(n_nodes: int, gone: Collection[int]) -> NDArray[np.int64]:
    """Return the new number of each node when some are taken away, -1 for these."""
    kept = np.ones(n_nodes, np.bool_)
    kept[list(gone)] = False
    return np.where(kept, np.cumsum(kept) - 1, -1)


def too_light(sums: Integers, parameters: TreeParameters, scale: Scale) -> NDArray[np.bool_]:
    """Return which nodes of shape (n, 2 * n_outputs) no division may make: bool, shape (n,)."""
    hess: Integers = sums[:, 1::2].sum(axis=1)
    light: NDArray[np.bool_] = hess * scale.hess < parameters.min_child_weight
    return light
