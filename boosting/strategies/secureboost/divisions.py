"""What a party asks of rows: its own divisions, and where its rows go at them.

Of a tree that is one passive party's alone (mode mix) the active party may keep the leaves only.
Both number its leaves by the first row that reaches each, which says nothing of where a leaf hangs.
The passive party knows which leaf a row reaches; to all others the tree is a binary search for the
leaf's number, whose form follows from how many leaves there are. So an answer shows which leaf a
row reaches, and not where it would go at nodes that are not on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.secureboost.model import (
    WHOLE,
    ActivePart,
    PassivePart,
    TreeStructure,
    node_of,
    search,
)
from hedgerow.crypto.native.kernels import kernel

Bits = NDArray[np.bool_]
Node = tuple[int, int]
"""Tree and node."""

_BLOCK = 1 << 24
"""Most answers that are held at once."""


class NodeSplit(NamedTuple):
    """A node's division."""

    left: int
    """The left child; the right one is the next."""
    feature: int
    threshold: float
    default_left: bool
    codes: tuple[int, ...] | None
    """Of a set of categories: those that go right."""

    def goes_left(self, values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which values of the feature go left."""
        if self.codes is None:
            found = values < np.float32(self.threshold)
        else:
            found = ~np.isin(values, np.array(self.codes, np.float32)) & ~np.isnan(values)
        return found | np.isnan(values) if self.default_left else found


def divisions_of(part: ActivePart | PassivePart, n_trees: int) -> dict[Node, NodeSplit]:
    """Return a party's own divisions in the first trees of its part."""
    if isinstance(part, PassivePart):
        return {
            node: NodeSplit(
                int(left), int(feature), float(threshold), bool(default_left),
                tuple(part.sets[key]) if key in part.sets else None,
            )
            for key, (left, feature, threshold, default_left) in part.nodes.items()
            if (node := node_of(key))[0] < n_trees
        }  # fmt: skip
    return {
        (t, node): NodeSplit(
            tree.left[node], tree.feature[node], tree.threshold[node], tree.default_left[node],
            tuple(codes) if (codes := tree.sets.get(str(node))) else None,
        )
        for t, tree in enumerate(part.trees[:n_trees])
        for node, owner in enumerate(tree.owner)
        if owner == 0
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Divisions:
    """A party's divisions, in the order of its directions."""

    nodes: tuple[Node, ...]
    """Tree and node."""
    feature: NDArray[np.int32]
    """Of shape (n_divisions,), int32."""
    threshold: NDArray[np.float32]
    """Of shape (n_divisions,), float32."""
    default_left: Bits
    """Of shape (n_divisions,), bool."""
    sets: tuple[tuple[int, NodeSplit], ...]
    """Those that divide categories into sets, by place."""
    leaves: LeafNumbers | None = None
    """Columns that follow a party's own."""

    @classmethod
    def of(cls, part: ActivePart | PassivePart) -> Divisions:
        """Return a party's divisions in the trees that score."""
        if isinstance(part, ActivePart):
            return cls.flat(divisions_of(part, len(part.used_trees)))
        asked, leaves = asked_of(part, part.n_used)
        return replace(cls.flat(asked), leaves=leaves)

    @classmethod
    def flat(cls, divisions: Mapping[Node, NodeSplit]) -> Divisions:
        """Return divisions in the order of trees and nodes."""
        found = sorted(divisions.items())
        return cls(
            tuple(node for node, _ in found),
            np.array([own.feature for _, own in found], np.int32),
            np.array([own.threshold for _, own in found], np.float32),
            np.array([own.default_left for _, own in found], np.bool_),
            tuple((k, own) for k, (_, own) in enumerate(found) if own.codes is not None),
        )

    def directions(self, X: NDArray[np.float32]) -> Bits:
        """Return whether rows go left.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features), float32
            Columns in the order of the part.

        Returns
        -------
        ndarray of shape (n_rows, n_divisions), bool
        """
        if self.leaves is not None:
            X = self.leaves.appended(X)
        values = X[:, self.feature]
        out = np.asarray((values < self.threshold) | (np.isnan(values) & self.default_left))
        for k, own in self.sets:
            out[:, k] = own.goes_left(values[:, k])
        return out


@dataclass(frozen=True, slots=True)
class LeafNumbers:
    """Which leaves rows reach in trees that are a passive party's alone, as further columns."""

    trees: tuple[int, ...]
    """A column each."""
    n_leaves: tuple[int, ...]
    first: int
    """The first column: how many features the party has."""
    own: Divisions
    """In these trees."""
    roots: NDArray[np.int32]
    """Of shape (n_trees,), int32."""
    left: NDArray[np.int32]
    """Of shape (n_nodes,), int32. The left child, the right one is the next; at leaves -1 less the
    leaf's number."""
    place: NDArray[np.int32]
    """Of shape (n_nodes,), int32. Of the node's division; 0 at leaves."""

    @classmethod
    def of(cls, part: PassivePart, divisions: Mapping[Node, NodeSplit]) -> LeafNumbers:
        """Return those of a part's trees, as far as anything divides them."""
        order = {int(tree): leaves for tree, leaves in part.whole.items()}
        found = {k: own for k, own in divisions.items() if k[0] in order}
        own = Divisions.flat(found)
        counts = Counter(tree for tree, _ in found)
        trees = tuple(sorted(counts))
        n_divisions = [counts[tree] for tree in trees]
        roots = np.cumsum([0, *(2 * n + 1 for n in n_divisions)]).astype(np.int32)
        left, place = np.full(roots[-1], -1, np.int32), np.zeros(roots[-1], np.int32)
        start = dict(zip(trees, roots.tolist(), strict=False))
        for k, (tree, node) in enumerate(own.nodes):
            left[start[tree] + node] = start[tree] + found[tree, node].left
            place[start[tree] + node] = k
        for tree in trees:
            left[start[tree] + np.array(order[tree])] = -1 - np.arange(len(order[tree]))
        n_leaves = tuple(n + 1 for n in n_divisions)
        return cls(trees, n_leaves, len(part.features), own, roots[:-1], left, place)

    def searches(self) -> dict[Node, NodeSplit]:
        """Return what the search for each tree's number asks."""
        found = {}
        for k, (tree, n_leaves) in enumerate(zip(self.trees, self.n_leaves, strict=True)):
            for node, (left, middle) in enumerate(search(n_leaves)):
                if left >= 0:
                    found[tree, node] = NodeSplit(left, self.first + k, float(middle), False, None)
        return found

    @overload
    def appended(self, X: NDArray[np.float32]) -> NDArray[np.float32]: ...
    @overload
    def appended(self, X: Columns) -> Columns: ...
    def appended(self, X: NDArray[np.float32] | Columns) -> NDArray[np.float32] | Columns:
        """Return rows with the numbers of their leaves.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features), float32, or Columns

        Returns
        -------
        ndarray of shape (n_rows, n_features + n_trees), float32, or Columns
        """
        if not self.trees:
            return X
        if not isinstance(X, Columns):
            return np.concatenate([X, self._numbers(X, self.own)], axis=1)
        used, place = np.unique(self.own.feature, return_inverse=True)
        own = replace(self.own, feature=place.astype(np.int32))
        dense = np.stack([X.readers[feature]() for feature in used.tolist()], axis=1)
        numbers = self._numbers(dense, own)
        more = (partial(np.ascontiguousarray, column) for column in numbers.T)
        return Columns(X.n_samples, (*X.readers, *more))

    def _numbers(self, X: NDArray[np.float32], own: Divisions) -> NDArray[np.float32]:
        out = np.empty((len(X), len(self.trees)), np.float32)
        step = max(_BLOCK // len(own.nodes), 1)
        for k in range(0, len(X), step):
            answers = np.ascontiguousarray(own.directions(X[k : k + step]))
            _reach(answers, self.roots, self.left, self.place, out[k:])
        return out


@kernel("boosting/trees", "reach")
def _reach(answers, roots, left, place, out):
    for row in range(answers.shape[0]):
        for tree in range(roots.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                node = left[node] + (0 if answers[row, place[node]] else 1)
            out[row, tree] = -1 - left[node]


def asked_of(part: PassivePart, n_trees: int) -> tuple[dict[Node, NodeSplit], LeafNumbers]:
    """Return what others know a passive party's trees by, and the columns that this needs."""
    own = divisions_of(part, n_trees)
    leaves = LeafNumbers.of(part, own)
    rest = {k: division for k, division in own.items() if k[0] not in leaves.trees}
    return rest | leaves.searches(), leaves


def leaf_order(partition: RowPartition) -> list[int]:
    """Return the leaves of a finished tree by number: those of earlier rows first."""
    first = {node: int(partition.rows(node)[:1].sum()) for node in partition.nodes}
    return sorted(first, key=lambda node: (first[node], node))


def leaves_only(tree: TreeStructure, order: Sequence[int]) -> TreeStructure:
    """Return a passive party's tree without its structure and gains; others as they are.

    Parameters
    ----------
    order : sequence of int
        The tree's leaves by number.
    """
    owners = {owner for owner in tree.owner if owner >= 0}
    if len(owners) != 1 or owners == {0}:
        return tree
    (owner,) = owners
    nodes, none = search(len(order)), [0.0] * len(tree.groups)
    return TreeStructure(
        round=tree.round,
        groups=tree.groups,
        left=[left for left, _ in nodes],
        owner=[owner if left >= 0 else -1 for left, _ in nodes],
        feature=[WHOLE if left >= 0 else 0 for left, _ in nodes],
        threshold=[0.0] * len(nodes),
        default_left=[False] * len(nodes),
        value=[none if left >= 0 else tree.value[order[number]] for left, number in nodes],
        gain=[0.0] * len(nodes),
        cover=[0.0 if left >= 0 else tree.cover[order[number]] for left, number in nodes],
        leaves_only=True,
    )


def restored(
    trees: Sequence[TreeStructure], parts: Mapping[int, PassivePart]
) -> list[TreeStructure]:
    """Return trees with the structure that their parties have; gains are not known any more.

    Parameters
    ----------
    trees : sequence of TreeStructure
        The first ones of the model.
    parts : Mapping of int to PassivePart
        By owner. Trees of others remain as they are.

    Raises
    ------
    DataError
        A part is of other trees.
    """
    own: dict[int, dict[int, dict[int, NodeSplit]]] = {}
    for owner, part in parts.items():
        for (number, node), division in divisions_of(part, len(trees)).items():
            own.setdefault(owner, {}).setdefault(number, {})[node] = division
    out = list(trees)
    for number, tree in enumerate(trees):
        owner = max(tree.owner)
        if tree.leaves_only and owner in parts:
            inner = own.get(owner, {}).get(number, {})
            out[number] = _restored(tree, number, inner, parts[owner])
    return out


def _restored(
    tree: TreeStructure, number: int, inner: Mapping[int, NodeSplit], part: PassivePart
) -> TreeStructure:
    nodes, order = range(2 * len(inner) + 1), part.whole.get(str(number), [])
    if len(tree.left) != len(nodes) or sorted([*inner, *order]) != list(nodes):
        raise DataError(f"tree {number} of {part.party}: its part has other leaves")
    kept = {order[n]: k for k, (left, n) in enumerate(search(len(order))) if left < 0}
    none = [0.0] * len(tree.groups)
    cover = [tree.cover[kept[node]] if node in kept else 0.0 for node in nodes]
    for node in sorted(inner, reverse=True):
        cover[node] = cover[inner[node].left] + cover[inner[node].left + 1]
    return replace(
        tree,
        left=[inner[node].left if node in inner else -1 for node in nodes],
        owner=[max(tree.owner) if node in inner else -1 for node in nodes],
        feature=[part.anonymous[inner[node].feature] if node in inner else 0 for node in nodes],
        value=[tree.value[kept[node]] if node in kept else none for node in nodes],
        cover=cover,
        leaves_only=False,
    )
