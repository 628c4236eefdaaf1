"""A party's copy of a growing tree, from the splits that were decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.histogram import Layout
from hedgerow.boosting.engine.nodes import TreeNodes, joined, node_values, renumbered
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import Scale, TreeParameters, node_weights
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.histogram.steps import NodeRings, TreeSplits

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Kept = TypeVar("Kept")


def pair_of(node: int) -> int:
    """Return the left child of a node's pair."""
    return node if node % 2 else node - 1


def apply_level(mirrors: Sequence[TreeReplica], decided: Sequence[TreeSplits]) -> list[Splits]:
    """Add a level's splits to all trees of a round; raises OfferRejected where they do not fit."""
    if len(decided) != len(mirrors):
        raise OfferRejected(
            f"splits: expected those of {len(mirrors)} trees, received {len(decided)}"
        )
    return [mirror.apply(own) for mirror, own in zip(mirrors, decided, strict=True)]


@dataclass(slots=True)
class TreeReplica:
    """A silo's copy of a growing tree.

    Attributes
    ----------
    sums : dict
        Of nodes over all silos, where this party has checked them.
    unsummed : set of int
        Left children of the pairs of which no sum has had a node yet.
    """

    n_bins: NDArray[np.int64]
    """Of shape (n_features,), int64."""
    max_depth: int = 0
    max_leaves: int = 0
    most_nodes: int = 0
    """``max_depth``, ``max_leaves`` and ``most_nodes``: of the job, 0 for any; ``most_nodes`` are
    requested at a time."""
    left: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])
    splits: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    categories: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    parent: list[int] = field(default_factory=lambda: [-1])
    request: tuple[int, ...] = (0,)
    waiting: set[int] = field(default_factory=set)
    rings: NodeRings | None = None
    reached: dict[int, Mask] = field(default_factory=dict)
    sums: dict[int, Integers] = field(default_factory=dict)
    unsummed: set[int] = field(default_factory=set)

    def apply(self, decided: TreeSplits) -> Splits:
        """Add a level's splits to the tree; return them for its rows.

        Raises
        ------
        OfferRejected
            Splits that do not fit the tree: a node that is no leaf, an unknown feature, bin or
            category.
        """
        n = decided.node.shape[0]
        if {decided.feature.shape[0], decided.bin.shape[0], decided.default_left.shape[0]} != {n}:
            raise OfferRejected("splits: expected as many nodes, features, bins and defaults")
        categories = self._read_categories(decided)
        lefts = np.arange(n, dtype=np.int32) * 2 + np.int32(len(self.left))
        rows = zip(
            decided.node.tolist(),
            decided.feature.tolist(),
            decided.bin.tolist(),
            decided.default_left.tolist(),
            strict=True,
        )
        self.unsummed -= {pair_of(node) for node in self.request}
        fresh: set[int] = set()
        for position, (node, feature, bin_, missing_left) in enumerate(rows):
            if not 0 <= node < len(self.left) or self.left[node] >= 0:
                raise OfferRejected(f"splits: node {node} is no leaf")
            if pair_of(node) in self.unsummed or pair_of(node) in fresh:
                raise OfferRejected(f"splits: node {node} was in no sum, and neither was its pair")
            if not -1 <= bin_ < self.n_bins[feature]:
                raise OfferRejected(f"splits: feature {feature} has no bin {bin_}")
            if self.max_depth and self.depth[node] >= self.max_depth:
                raise OfferRejected(f"splits: expected at most {self.max_depth} levels")
            self.left[node] = int(lefts[position])
            fresh.add(int(lefts[position]))
            self.left += [-1, -1]
            self.depth += [self.depth[node] + 1] * 2
            self.parent += [node, node]
            self.splits[node] = (feature, bin_, missing_left)
        for position, codes in categories:
            self.categories[int(decided.node[position])] = codes
        self.request = tuple(decided.request.tolist())
        self.rings = decided.rings
        if self.max_leaves and len(self.left) // 2 >= self.max_leaves:
            raise OfferRejected(f"splits: expected at most {self.max_leaves} leaves")
        # One child of each new pair, since the other follows: never a node's histogram again.
        self.unsummed |= fresh
        self.waiting = self.waiting | fresh if self.most_nodes else fresh
        pairs = {pair_of(node) for node in self.request}
        if (
            not pairs <= self.waiting
            or len(pairs) != len(self.request)
            or any(not 0 < node < len(self.left) or self.left[node] >= 0 for node in self.request)
        ):
            raise OfferRejected("splits: expected new leaves, one of a pair, as requested next")
        if self.most_nodes and len(pairs) > self.most_nodes:
            raise OfferRejected(f"splits: expected a request of at most {self.most_nodes} nodes")
        self.waiting -= pairs
        # A received array is read-only, which would compile the kernels once more.
        default_left = decided.default_left.copy()
        return Splits(decided.node, lefts, decided.feature, decided.bin, default_left, categories)

    def _read_categories(self, decided: TreeSplits) -> tuple[tuple[int, NDArray[np.int32]], ...]:
        if np.any(decided.feature < 0) or np.any(decided.feature >= self.n_bins.shape[0]):
            raise OfferRejected(f"splits: expected features below {self.n_bins.shape[0]}")
        own = decided.categories
        if own is None:
            return ()
        ends = np.cumsum(own.size, dtype=np.int64)
        if (
            own.split.shape != own.size.shape
            or np.any(own.size < 0)
            or int(ends[-1] if ends.shape[0] else 0) != own.sets.shape[0]
            or np.any(np.diff(own.split, prepend=-1) <= 0)
            or np.any(own.split >= decided.node.shape[0])
        ):
            raise OfferRejected("categories: expected a set for each of some splits, ascending")
        found = []
        for position, end, size in zip(own.split.tolist(), ends, own.size, strict=True):
            bits = np.unpackbits(own.sets[end - size : end], bitorder="little")
            codes = np.flatnonzero(bits).astype(np.int32)
            if np.any(codes >= self.n_bins[decided.feature[position]]):
                raise OfferRejected("categories: a code that the feature does not have")
            found.append((position, codes))
        return tuple(found)

    @property
    def state(self) -> tuple[object, ...]:
        """All of the tree, and the nodes requested next: what the silo's next sums follow from."""
        splits = [number for node in sorted(self.splits) for number in (node, *self.splits[node])]
        return (
            np.array(self.left, np.int32),
            np.array(splits, np.int32),
            self.categories,
            np.array(self.request, np.int32),
            self.rings,
        )

    def reach(self, node: int, layout: Layout) -> Mask:
        """Return the bins of the layout that rows of a node can have: bool, shape (n_bins,)."""
        above = self.parent[node]
        if above < 0:
            return np.ones(layout.n_bins, np.bool_)
        if above not in self.reached:
            self.reached[above] = self.reach(above, layout)
        inside = self.reached[above].copy()
        feature, bin_, _ = self.splits[above]
        k = int(np.searchsorted(layout.features, feature))
        bins = inside[layout.offsets[k] : layout.offsets[k + 1]]
        goes_left = node == self.left[above]
        if above in self.categories:
            right = np.zeros(bins.shape[0], np.bool_)
            right[self.categories[above]] = True
            bins &= right != goes_left
        else:
            bins[bin_ + 1 :] &= not goes_left
            bins[: bin_ + 1] &= goes_left
        return inside

    @property
    def leaves(self) -> list[int]:
        """Leaves, ascending."""
        return [node for node, left in enumerate(self.left) if left < 0]

    def take(self, nodes: Sequence[int], sums: Integers) -> Integers:
        """Keep the sums of nodes, and of their siblings; return those of both, shape (n, width)."""
        self.sums.update(zip(nodes, sums, strict=True))
        inner = [node for node in nodes if node]
        if not inner:
            return sums
        others = joined([self.sums[self.parent[node]] for node in inner]) - sums
        self.sums.update(
            (2 * pair_of(node) + 1 - node, own) for node, own in zip(inner, others, strict=True)
        )
        return np.concatenate([sums, others])

    def cut(self) -> None:
        """Take back the divisions of whose children no sum has had one, and end the tree."""
        gone = {child for left in self.unsummed for child in (left, left + 1)}
        number = renumbered(len(self.left), gone)
        kept = [node for node in range(len(self.left)) if node not in gone]
        self.left = [-1 if self.left[n] < 0 else int(number[self.left[n]]) for n in kept]
        self.parent = [-1 if self.parent[n] < 0 else int(number[self.parent[n]]) for n in kept]
        self.depth = [self.depth[n] for n in kept]

        def renamed(own: dict[int, Kept], *, inner: bool) -> dict[int, Kept]:
            moved = {int(number[n]): value for n, value in own.items() if n not in gone}
            return {n: v for n, v in moved.items() if not inner or self.left[n] >= 0}

        self.splits = renamed(self.splits, inner=True)
        self.categories = renamed(self.categories, inner=True)
        self.sums = renamed(self.sums, inner=False)
        self.unsummed, self.waiting, self.reached = set(), set(), {}
        self.request, self.rings = (), None

    def derived(
        self,
        parameters: TreeParameters,
        scale: Scale,
        leaf_sums: Integers | None = None,
        leaf_scale: Scale | None = None,
    ) -> GrownTree:
        """Return the tree with what follows from the sums of its nodes.

        Parameters
        ----------
        leaf_sums, leaf_scale
            As in :meth:`~hedgerow.boosting.engine.grower.Grower.finish`.

        Raises
        ------
        OfferRejected
            A division that monotone or interaction constraints do not allow.
        """
        for node, (feature, *_) in self.splits.items() if parameters.interactions else ():
            above, path = self.parent[node], set[int]()
            while above >= 0:
                path.add(self.splits[above][0])
                above = self.parent[above]
            follow = parameters.may_follow(frozenset(path))
            if follow is not None and feature not in follow:
                raise OfferRejected(
                    f"splits: the coordinator divides node {node} against the interaction "
                    "constraints of the job"
                )
        if not parameters.monotone:  # all nodes are weighed alike, in any order
            sums = joined([self.sums[node] for node in range(len(self.left))])
            weight = node_weights(sums, parameters, scale)
            lefts, rules = np.array(self.left, np.int32), (parameters, scale)
            found = node_values(lefts, sums, weight, None, *rules, leaf_sums, leaf_scale)
            return self._grown(*found)
        tree = TreeNodes(parameters, scale, self.sums[0])
        left = sorted((self.left[node], node) for node in self.splits)
        while left:  # as many at a time as have parents already
            n_known, size = len(tree.nodes), 0
            while size < len(left) and left[size][1] < n_known:
                size += 1
            batch = [node for _, node in left[:size]]
            del left[:size]
            features = [self.splits[node][0] for node in batch]
            directions = [parameters.monotone[j] for j in features]
            tree.divide(batch, [self.sums[self.left[node]] for node in batch], directions)
            for node, direction in zip(batch, directions, strict=True):
                low, high = (tree.weights[self.left[node] + side][0] for side in (0, 1))
                if direction * (low - high) > 0:
                    raise OfferRejected(
                        f"splits: the coordinator divides node {node} against the monotone "
                        "constraint of its feature"
                    )
        return self._grown(*tree.values(leaf_sums, leaf_scale))

    def grown(self, values: NDArray[np.float32]) -> GrownTree:
        """Return the tree with leaf values of shape (n_leaves, n_outputs); no statistics."""
        n_nodes = len(self.left)
        value = np.zeros((n_nodes, values.shape[1]), np.float32)
        value[self.leaves] = values
        nothing = np.zeros(n_nodes, np.float32)
        return self._grown(np.array(self.left, np.int32), nothing, value, np.zeros_like(value))

    def _grown(
        self,
        left: NDArray[np.int32],
        cover: NDArray[np.float32],
        value: NDArray[np.float32],
        weight: NDArray[np.float32],
    ) -> GrownTree:
        n_nodes = left.shape[0]
        tree = GrownTree(
            left=left,
            feature=np.zeros(n_nodes, np.int32),
            bin=np.zeros(n_nodes, np.int32),
            default_left=np.zeros(n_nodes, np.bool_),
            categories=tuple(sorted(self.categories.items(), key=lambda item: item[0])),
            gain=np.zeros(n_nodes, np.float32),
            cover=cover,
            value=value,
            weight=weight,
        )
        if self.splits:
            nodes, splits = list(self.splits), np.array(list(self.splits.values()), np.int32)
            tree.feature[nodes], tree.bin[nodes], tree.default_left[nodes] = splits.T
        return tree
