"""The trees of one round, grown level by level from summed vectors, and what is told of them.

Whoever sees the sums holds a :class:`Growth`: the coordinator, or every silo when the coordinator
is blind. What it decides travels as arrays (:func:`write_splits`), and a silo mirrors each tree in
a :class:`Mirror`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower, GrownTree
from hedgerow.boosting.engine.histogram import Layout, layout_of
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.tensors import Tensors

Arrays = Mapping[str, NDArray[Any]]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a round's trees have in common; equal at all parties.

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

    @property
    def n_first(self) -> int:
        """Length of the first vector: of each tree the totals, then the root's histogram."""
        return sum(self.width * (1 + layout.n_bins) for layout in self.layouts)


class Growth:
    """Grows the trees of a round from the sums of all silos.

    Parameters
    ----------
    scale : Scale
        Unit of the sums.
    """

    def __init__(self, shape: Shape, scale: Scale, n_threads: int = 1) -> None:
        self._shape = shape
        self._scale = scale
        self._n_threads = n_threads
        self._layouts = shape.layouts
        self._growers: list[Grower] = []
        self.trees: list[GrownTree] = []

    @property
    def requests(self) -> list[tuple[int, ...]]:
        """Nodes of each tree whose histograms are wanted next."""
        return [grower.request for grower in self._growers]

    @property
    def done(self) -> bool:
        """Whether no histogram is wanted any more."""
        return bool(self._growers) and not any(self.requests)

    @property
    def n_values(self) -> int:
        """Length of the next vector."""
        if not self._growers:
            return self._shape.n_first
        pairs = zip(self.requests, self._layouts, strict=True)
        return sum(len(r) * layout.n_bins * self._shape.width for r, layout in pairs)

    @property
    def leaves(self) -> list[tuple[int, ...]]:
        """Leaves of each tree as it stands."""
        return [grower.leaves for grower in self._growers]

    def take(self, sums: Integers) -> list[Splits]:
        """Take a level's sums, in the order of :attr:`requests`; return each tree's splits."""
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
                splits.append(no_splits())
                continue
            shape = (len(grower.request), layout.n_bins, width)
            size = shape[0] * shape[1] * shape[2]
            splits.append(grower.supply(sums[at : at + size].reshape(shape)))
            at += size
        return splits

    def finish(
        self, leaf_sums: Integers | None = None, scale: Scale | None = None
    ) -> list[GrownTree]:
        """Return the trees, open nodes as leaves; with leaf values renewed from sums if given.

        Parameters
        ----------
        leaf_sums : ndarray of shape (n_leaves of all trees * width,), int64
        """
        trees: list[GrownTree] = []
        at = 0
        for grower in self._growers:
            if leaf_sums is None:
                trees.append(grower.finish())
                continue
            size = len(grower.leaves) * self._shape.width
            part = leaf_sums[at : at + size].reshape(-1, self._shape.width)
            at += size
            trees.append(grower.finish(part, scale))
        self.trees = trees
        return trees


def no_splits() -> Splits:
    """Return splits of no node."""
    nothing = np.empty(0, np.int32)
    return Splits(nothing, nothing, nothing, nothing, np.empty(0, np.bool_))


def write_splits(splits: Sequence[Splits], requests: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Return arrays that tell silos a level's splits and the nodes wanted next.

    ``splits`` (n, 6) int32: tree, node, left child, feature, bin, default left; ``categories``
    (m, 2) int32: row of ``splits`` and bytes of its part of ``sets``; ``sets`` uint8: bits of the
    codes that go right, lowest first; ``request`` (k, 2) int32: tree, node.
    """
    rows: list[NDArray[np.int32]] = []
    categorical: list[tuple[int, int]] = []
    sets: list[NDArray[np.uint8]] = []
    n_rows = 0
    for t, s in enumerate(splits):
        n = s.node.shape[0]
        columns = (np.full(n, t), s.node, s.left, s.feature, s.bin, s.default_left)
        rows.append(np.stack(columns, axis=1).astype(np.int32))
        for position, codes in s.categories:
            bits = np.zeros(int(codes.max(initial=-1)) + 1, np.uint8)
            bits[codes] = 1
            sets.append(np.packbits(bits, bitorder="little"))
            categorical.append((n_rows + position, sets[-1].shape[0]))
        n_rows += n
    wanted = [(t, node) for t, nodes in enumerate(requests) for node in nodes]
    return {
        "splits": np.concatenate(rows) if rows else np.empty((0, 6), np.int32),
        "categories": np.array(categorical, np.int32).reshape(-1, 2),
        "sets": np.concatenate(sets) if sets else np.empty(0, np.uint8),
        "request": np.array(wanted, np.int32).reshape(-1, 2),
    }


@dataclass(slots=True)
class Mirror:
    """A silo's copy of a growing tree; ``n_bins`` are the bins of each feature."""

    n_bins: NDArray[np.int64]
    left: list[int] = field(default_factory=lambda: [-1])
    splits: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    categories: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    def apply(self, splits: Splits) -> None:
        """Add splits after checking that they fit the tree.

        Raises
        ------
        OfferRejected
            A node that is no leaf, children out of order, an unknown feature or category.
        """
        for i in range(splits.node.shape[0]):
            node, left = int(splits.node[i]), int(splits.left[i])
            fits = 0 <= node < len(self.left) and self.left[node] < 0 and left == len(self.left)
            if not fits or not 0 <= int(splits.feature[i]) < self.n_bins.shape[0]:
                raise OfferRejected("splits: they do not fit the tree")
            self.left[node] = left
            self.left += [-1, -1]
            self.splits[node] = (
                int(splits.feature[i]),
                int(splits.bin[i]),
                bool(splits.default_left[i]),
            )
        for position, codes in splits.categories:
            if np.any(codes < 0) or np.any(codes >= self.n_bins[splits.feature[position]]):
                raise OfferRejected("splits: a category that does not exist")
            self.categories[int(splits.node[position])] = codes

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


def read_splits(told: Tensors, n_trees: int) -> tuple[list[Splits], list[tuple[int, ...]]]:
    """Return each tree's splits and requested nodes from :func:`write_splits`'s arrays.

    Raises
    ------
    OfferRejected
        A tree or a category that does not exist.
    """
    rows = told.get("splits", "<i4", (None, 6))
    categorical = told.get("categories", "<i4", (None, 2))
    sets = told.get("sets", "|u1", (None,))
    wanted = told.get("request", "<i4", (None, 2))
    sizes = categorical[:, 1]
    if np.any(sizes < 0) or int(sizes.sum()) != sets.shape[0]:
        raise OfferRejected("splits: sets of categories of other sizes than announced")
    codes = dict(zip(categorical[:, 0].tolist(), _codes(sets, sizes), strict=True))
    for column, limit in (
        (rows[:, 0], n_trees),
        (wanted[:, 0], n_trees),
        (categorical[:, 0], len(rows)),
    ):
        if np.any(column < 0) or np.any(column >= limit):
            raise OfferRejected(f"splits: an index is not below {limit}")
    splits, requests = [], []
    for t in range(n_trees):
        mine = np.flatnonzero(rows[:, 0] == t)
        categories = tuple(
            (place, codes[row]) for place, row in enumerate(mine.tolist()) if row in codes
        )
        part = rows[mine]
        splits.append(
            Splits(
                part[:, 1].copy(),
                part[:, 2].copy(),
                part[:, 3].copy(),
                part[:, 4].copy(),
                part[:, 5] != 0,
                categories,
            )
        )
        requests.append(tuple(int(node) for node in wanted[wanted[:, 0] == t, 1]))
    return splits, requests


def _codes(sets: NDArray[np.uint8], sizes: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    parts = np.split(sets, np.cumsum(sizes)[:-1]) if sizes.shape[0] else []
    return [
        np.flatnonzero(np.unpackbits(part, bitorder="little")).astype(np.int32) for part in parts
    ]
