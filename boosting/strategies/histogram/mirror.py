"""A party's copy of a growing tree, from the splits that were decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.histogram import Layout
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.histogram.steps import NodeRings, TreeSplits

Mask = NDArray[np.bool_]


def apply_level(mirrors: Sequence[TreeMirror], decided: Sequence[TreeSplits]) -> list[Splits]:
    """Add a level's splits to all trees of a round; raises OfferRejected where they do not fit."""
    if len(decided) != len(mirrors):
        raise OfferRejected(
            f"splits: expected those of {len(mirrors)} trees, received {len(decided)}"
        )
    return [mirror.apply(own) for mirror, own in zip(mirrors, decided, strict=True)]


@dataclass(slots=True)
class TreeMirror:
    """A silo's copy of a growing tree.

    Parameters
    ----------
    n_bins : ndarray of shape (n_features,), int64
    max_depth, max_leaves, most_nodes : int
        Of the job, 0 for any; ``most_nodes`` are requested at a time.
    """

    n_bins: NDArray[np.int64]
    max_depth: int = 0
    max_leaves: int = 0
    most_nodes: int = 0
    left: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])
    splits: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    categories: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    parent: list[int] = field(default_factory=lambda: [-1])
    request: tuple[int, ...] = (0,)
    waiting: set[int] = field(default_factory=set)
    rings: NodeRings | None = None
    reached: dict[int, Mask] = field(default_factory=dict)

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
        for position, (node, feature, bin_, missing_left) in enumerate(rows):
            if not 0 <= node < len(self.left) or self.left[node] >= 0:
                raise OfferRejected(f"splits: node {node} is no leaf")
            if not -1 <= bin_ < self.n_bins[feature]:
                raise OfferRejected(f"splits: feature {feature} has no bin {bin_}")
            if self.max_depth and self.depth[node] >= self.max_depth:
                raise OfferRejected(f"splits: expected at most {self.max_depth} levels")
            self.left[node] = int(lefts[position])
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
        n_pairs = len(self.left) // 2
        fresh = set(range(n_pairs - n + 1, n_pairs + 1))
        self.waiting = self.waiting | fresh if self.most_nodes else fresh
        pairs = {(node + 1) // 2 for node in self.request}
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

    def grown(self, values: NDArray[np.float32]) -> GrownTree:
        """Return the tree with leaf values of shape (n_leaves, n_outputs); no statistics."""
        n_nodes = len(self.left)
        value = np.zeros((n_nodes, values.shape[1]), np.float32)
        value[self.leaves] = values
        tree = GrownTree(
            left=np.array(self.left, np.int32),
            feature=np.zeros(n_nodes, np.int32),
            bin=np.zeros(n_nodes, np.int32),
            default_left=np.zeros(n_nodes, np.bool_),
            categories=tuple(sorted(self.categories.items(), key=lambda item: item[0])),
            gain=np.zeros(n_nodes, np.float32),
            cover=np.zeros(n_nodes, np.float32),
            value=value,
            weight=np.zeros_like(value),
        )
        for node, (feature, bin_, default_left) in self.splits.items():
            tree.feature[node], tree.bin[node] = feature, bin_
            tree.default_left[node] = default_left
        return tree
