"""The trees of one round, grown level by level from summed vectors.

The reader of the sums has a :class:`RoundTrees`: the coordinator or, if it is blind, every silo. A
silo follows each tree in a :class:`TreeMirror`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower, GrownTree, check_sums
from hedgerow.boosting.engine.histogram import Layout, layout_of
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.histogram.steps import (
    CategorySets,
    ClosedTrees,
    LevelDecision,
    TreeSplits,
)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What the trees of a round have in common; equal at all parties.

    Parameters
    ----------
    cuts : Cuts
    parameters : TreeParameters
    width : int
        Numbers a bin: ``2 * n_outputs`` of a tree.
    columns : tuple of (ColumnSampler or None)
        One a tree.
    """

    cuts: Cuts
    parameters: TreeParameters
    width: int
    columns: tuple[ColumnSampler | None, ...]

    @property
    def layouts(self) -> list[Layout]:
        """Histogram layout of each tree."""
        return [layout_of(self.cuts, None if c is None else c.of_tree) for c in self.columns]


class RoundTrees:
    """Grows the trees of a round from the sums of all silos.

    Parameters
    ----------
    shape : RoundShape
    scale : Scale
        Unit of the histogram sums.
    leaf_scale : Scale or None
        Unit of the lossless leaf sums that leaf values are renewed from, after a search on coarse
        gradients; ``None`` where histograms are lossless.

    Attributes
    ----------
    finished : list of GrownTree
        The trees, once they are closed.
    """

    def __init__(
        self, shape: RoundShape, scale: Scale, leaf_scale: Scale | None = None, n_threads: int = 1
    ) -> None:
        self._shape = shape
        self._scale = scale
        self._leaf_scale = leaf_scale
        self._n_threads = n_threads
        self._layouts = shape.layouts
        self._growers: list[Grower] = []
        self.finished: list[GrownTree] = []

    @property
    def requests(self) -> list[tuple[int, ...]]:
        """Nodes of each tree whose histograms are needed next."""
        return [grower.request for grower in self._growers]

    @property
    def done(self) -> bool:
        """Whether no further histogram is needed."""
        return bool(self._growers) and not any(self.requests)

    @property
    def n_values(self) -> int:
        """Length of the next vector; the first has of each tree the totals and the root."""
        width = self._shape.width
        if not self._growers:
            return sum(width * (1 + layout.n_bins) for layout in self._layouts)
        pairs = zip(self.requests, self._layouts, strict=True)
        return sum(len(r) * layout.n_bins * width for r, layout in pairs)

    @property
    def n_leaf_values(self) -> int:
        """Length of the vector of leaf sums."""
        return sum(len(grower.leaves) for grower in self._growers) * self._shape.width

    def decide(self, sums: Integers | None) -> LevelDecision:
        """Decide a level's splits from its sums; without sums close the trees.

        Parameters
        ----------
        sums : ndarray of shape (n_values,), int64, or None
            In the order of :attr:`requests`.
        """
        if sums is None:
            return LevelDecision(
                (write_splits(_no_splits(), ()),) * len(self._growers), self.close()
            )
        pairs = zip(self._take(sums), self.requests, strict=True)
        trees = tuple(write_splits(splits, request) for splits, request in pairs)
        closed = self.close() if self.done and self._leaf_scale is None else None
        return LevelDecision(trees, closed)

    def _take(self, sums: Integers) -> list[Splits]:
        width, at = self._shape.width, 0
        splits: list[Splits] = []
        first = not self._growers
        for t, layout in enumerate(self._layouts):
            if first:
                totals = sums[at : at + width].copy()
                at += width
                grower = Grower(
                    self._shape.cuts,
                    self._shape.parameters,
                    self._scale,
                    totals,
                    self._shape.columns[t],
                    self._n_threads,
                )
                self._growers.append(grower)
            grower = self._growers[t]
            if not grower.request:
                splits.append(_no_splits())
                continue
            shape = (len(grower.request), layout.n_bins, width)
            size = shape[0] * shape[1] * shape[2]
            splits.append(grower.supply(sums[at : at + size].reshape(shape)))
            at += size
        return splits

    def close(self, leaf_sums: Integers | None = None) -> ClosedTrees:
        """Finish the trees, open nodes as leaves; return their leaf values.

        Parameters
        ----------
        leaf_sums : ndarray of shape (n_leaf_values,), int64, or None
            Lossless sums of the leaves, that leaf values are renewed from.
        """
        trees: list[GrownTree] = []
        at = 0
        for grower in self._growers:
            if leaf_sums is None:
                trees.append(grower.finish())
                continue
            size = len(grower.leaves) * self._shape.width
            part = leaf_sums[at : at + size].reshape(-1, self._shape.width)
            check_sums(part, self._leaf_scale or self._scale)
            at += size
            trees.append(grower.finish(part, self._leaf_scale))
        self.finished = trees
        return ClosedTrees(np.concatenate([t.value[t.leaves].reshape(-1) for t in trees]))


def _no_splits() -> Splits:
    nothing = np.empty(0, np.int32)
    return Splits(nothing, nothing, nothing, nothing, np.empty(0, np.bool_))


def write_splits(splits: Splits, request: Sequence[int]) -> TreeSplits:
    """Return a tree's splits and the nodes requested next as they travel."""
    packed = []
    for _, codes in splits.categories:
        bits = np.zeros(int(codes.max(initial=-1)) + 1, np.uint8)
        bits[codes] = 1
        packed.append(np.packbits(bits, bitorder="little"))
    categories = None
    if packed:
        categories = CategorySets(
            np.array([position for position, _ in splits.categories], np.int32),
            np.array([part.shape[0] for part in packed], np.int32),
            np.concatenate(packed),
        )
    return TreeSplits(
        splits.node,
        splits.feature,
        splits.bin,
        splits.default_left,
        categories,
        np.array(request, np.int32),
    )


@dataclass(slots=True)
class TreeMirror:
    """A silo's copy of a growing tree.

    Parameters
    ----------
    n_bins : ndarray of shape (n_features,), int64
    max_depth, max_leaves : int
        Of the job, 0 for any.
    """

    n_bins: NDArray[np.int64]
    max_depth: int = 0
    max_leaves: int = 0
    left: list[int] = field(default_factory=lambda: [-1])
    depth: list[int] = field(default_factory=lambda: [0])
    splits: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    categories: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    request: tuple[int, ...] = (0,)

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
            self.splits[node] = (feature, bin_, missing_left)
        for position, codes in categories:
            self.categories[int(decided.node[position])] = codes
        self.request = tuple(decided.request.tolist())
        if self.max_leaves and len(self.left) // 2 >= self.max_leaves:
            raise OfferRejected(f"splits: expected at most {self.max_leaves} leaves")
        # One child of each new pair, since the other follows: never a node's histogram again.
        fresh = set(range(len(self.left) - 2 * n, len(self.left)))
        pairs = {(node + 1) // 2 for node in self.request}
        if (
            not set(self.request) <= fresh
            or len(pairs) != len(self.request)
            or any(self.left[node] >= 0 for node in self.request)
        ):
            raise OfferRejected("splits: expected new leaves, one of a pair, as requested next")
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
        )

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
