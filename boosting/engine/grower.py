"""Growing one tree as a pure state machine: histograms in, splits out.

The machine has no rows. Its caller sums histograms of the nodes in ``request``, over one table or
over silos, and moves rows by the splits it returns::

    while grower.request:
        splits = grower.supply(histograms_of(grower.request))
        partition.split_by_bins(binned, splits)
    tree = grower.finish()

Only one child of each pair is requested, the one with the smaller hessian; its sibling is parent
minus child, exactly, since sums are integers. ``finish`` may be called at any time: open nodes
become leaves from sums already known.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.histogram import layout_of
from hedgerow.boosting.engine.kernels import possible
from hedgerow.boosting.engine.nodes import GrowingNode, TreeNodes
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import (
    MIN_GAIN,
    Candidates,
    Scale,
    TreeParameters,
    find_splits,
)
from hedgerow.boosting.errors import InvalidJob, SumCorrupt
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.crypto.native.kernels import PointerArray


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A finished tree in terms of bins, before it has thresholds and outputs."""

    left: NDArray[np.int32]
    """Of shape (n_nodes,), int32. Left child or -1; the right child is ``left + 1``."""
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    """Of shape (n_nodes,), int32. ``feature`` and ``bin``: as in
    :class:`hedgerow.boosting.engine.partition.Splits`; 0 at leaves."""
    default_left: NDArray[np.bool_]
    """Of shape (n_nodes,), bool."""
    categories: tuple[tuple[int, NDArray[np.int32]], ...]
    """Tuple of (node, codes). Codes that go right at each categorical split."""
    gain: NDArray[np.float32]
    """Of shape (n_nodes,), float32."""
    cover: NDArray[np.float32]
    """Of shape (n_nodes,), float32. Sum of hessians over outputs."""
    value: NDArray[np.float32]
    """Of shape (n_nodes, n_outputs), float32. Leaf values, shrinkage included; 0 at splits."""
    weight: NDArray[np.float32]
    """Of shape (n_nodes, n_outputs), float32. XGBoost's ``base_weights``: unshrunken at splits and
    at the root, shrunken at other leaves."""

    @property
    def n_nodes(self) -> int:
        """Number of nodes, splits and leaves."""
        return int(self.left.shape[0])

    @property
    def leaves(self) -> NDArray[np.int64]:
        """Leaf positions, ascending."""
        return np.flatnonzero(self.left < 0)

    def trees(self, cuts: Cuts, groups: Sequence[int]) -> tuple[Tree, ...]:
        """Return one scalar tree per output; a vector-leaf tree becomes trees of equal shape."""
        is_leaf = self.left < 0
        thresholds = np.zeros(self.left.shape[0], dtype=np.float32)
        categorical = {node for node, _ in self.categories}
        for node in np.flatnonzero(~is_leaf):
            if int(node) not in categorical:
                thresholds[node] = cuts.threshold(int(self.feature[node]), int(self.bin[node]))
        right = np.where(is_leaf, -1, self.left + 1).astype(np.int32)
        return tuple(
            Tree(
                left=self.left,
                right=right,
                feature=self.feature,
                threshold=np.where(is_leaf, self.value[:, c], thresholds).astype(np.float32),
                default_left=self.default_left,
                gain=self.gain,
                cover=self.cover,
                weight=self.weight[:, c].copy(),
                categories=self.categories,
                group=group,
            )
            for c, group in enumerate(groups)
        )


def check_sums(
    sums: Sequence[NDArray[np.int64]],
    scale: Scale,
    totals: NDArray[np.int64] | None = None,
    offsets: NDArray[np.int64] | None = None,
) -> None:
    """Raise :class:`SumCorrupt` for sums that no rows can have.

    No hessian is negative, those of a feature's bins are at most the node's (missing values are
    the rest), and no sum is beyond the range proof.

    Parameters
    ----------
    sums : ndarrays of shape (n, 2 * n_outputs), int64, one a node
        Of bins, or of leaves.
    totals : ndarray of shape (n_nodes, 2 * n_outputs), int64, or None
        The nodes'.
    offsets : ndarray of shape (n_features + 1,), int64, or None
        As in :class:`Layout`.
    """
    if not len(sums) or not sums[0].shape[0]:
        return
    limit = np.iinfo(np.int64).max
    if totals is None:
        totals = np.full((len(sums), sums[0].shape[1]), limit)
    if offsets is None:
        offsets = np.arange(sums[0].shape[0] + 1)
    most_grad, most_hess = (min(most, limit) for most in (scale.most_grad, scale.most_hess))
    if not possible(PointerArray(sums), totals, offsets, most_grad, most_hess):
        raise SumCorrupt(
            "the silos' sums are no sums of rows: a silo has added something else than its rows"
        )


class ColumnSampler:
    """Features that a tree, a level and a node may use, nested, from one generator.

    Parameters
    ----------
    rng : numpy Generator
        Consumed in the order in which levels and nodes are opened.
    weights : sequence of float
        How likely each feature is drawn; empty for all alike.
    """

    def __init__(
        self,
        n_features: int,
        parameters: TreeParameters,
        rng: np.random.Generator,
        weights: Sequence[float] = (),
    ):
        self._rng, self._weights = rng, np.array(weights)
        self._parameters = parameters
        self.of_tree = self._draw(np.arange(n_features), parameters.colsample_bytree)
        self._levels: dict[int, NDArray[np.int64]] = {}

    def _draw(self, features: NDArray[np.int64], rate: float) -> NDArray[np.int64]:
        if rate >= 1.0:
            return features
        size, chances = max(1, int(rate * features.shape[0])), None
        if self._weights.size:
            own = self._weights[features]
            if not own.any():
                return features[:0]
            chances, size = own / own.sum(), min(size, int(np.count_nonzero(own)))
        return np.sort(self._rng.choice(features, size, replace=False, p=chances))

    def of_node(self, depth: int) -> NDArray[np.int64]:
        """Draw the features of a node at ``depth``; ascending."""
        if depth not in self._levels:
            self._levels[depth] = self._draw(self.of_tree, self._parameters.colsample_bylevel)
        return self._draw(self._levels[depth], self._parameters.colsample_bynode)


class Grower:
    """Decides the splits of one tree from summed histograms.

    Parameters
    ----------
    totals : ndarray of shape (2 * n_outputs,), int64
        Sums over all rows in the tree: the root.
    columns : ColumnSampler or None
        ``None`` uses all features everywhere.
    most_nodes : int
        Nodes that :attr:`request` has at most, 0 for any; a level then takes several requests, and
        is divided after the last one, into the same tree.
    """

    def __init__(
        self,
        cuts: Cuts,
        parameters: TreeParameters,
        scale: Scale,
        totals: NDArray[np.int64],
        columns: ColumnSampler | None = None,
        n_threads: int = 1,
        most_nodes: int = 0,
    ) -> None:
        if parameters.monotone and totals.shape[0] > 2:
            raise InvalidJob(
                "[booster] monotone_constraints: not supported by trees with several outputs"
            )
        self._cuts = cuts
        self._parameters = parameters
        self._scale = scale
        self._columns = columns
        self._n_threads = n_threads
        self.layout = layout_of(cuts, None if columns is None else columns.of_tree)
        self._tree = TreeNodes(parameters, scale, totals)
        self._found: dict[int, tuple[Candidates, int]] = {}
        self._taken: dict[int, tuple[Candidates, int]] = {}
        self._histograms: dict[int, NDArray[np.int64]] = {}
        self._open: list[tuple[float, int]] = []
        self._n_leaves = 1
        self._paths = {0: frozenset[int]()}
        """By node, the features that divide the nodes above, under interaction constraints."""
        self._most_nodes = most_nodes
        self._waiting: list[int] = []
        self.request: tuple[int, ...] = (0,)

    @property
    def _nodes(self) -> list[GrowingNode]:
        return self._tree.nodes

    def supply(self, histograms: NDArray[np.int64]) -> Splits:
        """Take the histograms of :attr:`request` and return the splits they lead to.

        Parameters
        ----------
        histograms : ndarray of shape (n_requested, n_bins, 2 * n_outputs), int64
            In the order of the request; overwritten.

        Returns
        -------
        Splits
            To be applied to the rows before the next histograms are summed; may be empty.

        Raises
        ------
        SumCorrupt
            No rows can have such histograms.
        """
        if histograms.shape[0] != len(self.request):
            raise ValueError(
                f"expected {len(self.request)} histograms, received {histograms.shape[0]}"
            )
        self._evaluate(self._with_siblings(histograms))
        if self._waiting:
            self._ask()
            return self._splits([])
        chosen = self._choose()
        request = self._open_children(chosen)
        while not request and self._open and not self._full:
            # Loss-guided: children at the depth limit need no histogram, the rest goes on.
            more = self._choose()
            request = self._open_children(more)
            chosen += more
        self._waiting = request
        self._ask()
        return self._splits(chosen)

    def _ask(self) -> None:
        """Request as many of the waiting nodes as may be at a time."""
        most = self._most_nodes or len(self._waiting)
        self.request, self._waiting = tuple(self._waiting[:most]), self._waiting[most:]

    def parent_of(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the histogram of a requested node's parent, and the node's own sums."""
        left = node if node % 2 else node - 1
        return self._histograms[~left], self._nodes[node].sums

    def _with_siblings(self, histograms: NDArray[np.int64]) -> list[int]:
        """Keep the nodes' histograms and their siblings' if rows can have them."""
        fresh: dict[int, NDArray[np.int64]] = {}
        for node, histogram in zip(self.request, histograms, strict=True):
            fresh[node] = histogram
            if node:
                left = node if node % 2 else node - 1
                sibling = left + 1 if node == left else left
                parent = self._histograms.pop(~left)
                into = parent if parent.flags.writeable else None
                fresh[sibling] = np.subtract(parent, histogram, out=into)
        self._check(fresh)
        self._histograms |= fresh
        return sorted(fresh)

    def _check(self, histograms: dict[int, NDArray[np.int64]]) -> None:
        """Raise SumCorrupt if rows cannot have them; a child's are at most its parent's."""
        totals = np.stack([self._nodes[node].sums for node in histograms])
        check_sums(list(histograms.values()), self._scale, totals, self.layout.offsets)

    def _allowed(self, nodes: list[int]) -> NDArray[np.bool_] | None:
        """Return the features that may divide each node; None where all may."""
        if self._columns is None and not self._parameters.interactions:
            return None
        features = self.layout.features
        allowed = np.ones((len(nodes), features.shape[0]), np.bool_)
        for at, node in enumerate(nodes):
            if self._columns is not None:
                drawn = self._columns.of_node(self._nodes[node].depth)
                allowed[at] = np.isin(features, drawn, assume_unique=True)
            follow = self._parameters.may_follow(self._paths.get(node, frozenset()))
            if follow is not None:
                allowed[at] &= np.isin(features, list(follow))
        return allowed

    def _candidates(self, nodes: list[int]) -> Candidates:
        """Return the best division of each node by the features of the layout."""
        return find_splits(
            [self._histograms[node][: self.layout.n_bins] for node in nodes],
            np.stack([self._nodes[node].sums for node in nodes]),
            self.layout,
            self._cuts,
            self._parameters,
            self._scale,
            allowed=self._allowed(nodes),
            bounds=self._tree.bounds(nodes),
            n_threads=self._n_threads,
        )

    def _evaluate(self, nodes: list[int]) -> None:
        found = self._candidates(nodes)
        for position, node in enumerate(nodes):
            gain = np.float32(found.gain[position])
            if found.feature[position] < 0 or gain <= MIN_GAIN or gain < self._parameters.gamma:
                del self._histograms[node]
                continue
            self._found[node] = (found, position)
            key = -float(gain) if self._parameters.loss_guided else 0.0
            heapq.heappush(self._open, (key, node))

    def _choose(self) -> list[int]:
        """Pop the nodes to split now: the whole level, or the one with the greatest gain."""
        chosen: list[int] = []
        while self._open and not self._full:
            chosen.append(heapq.heappop(self._open)[1])
            self._n_leaves += 1
            if self._parameters.loss_guided:
                break
        return chosen

    @property
    def _full(self) -> bool:
        return bool(self._parameters.max_leaves) and self._n_leaves >= self._parameters.max_leaves

    def _open_children(self, chosen: list[int]) -> list[int]:
        """Divide the chosen nodes and return the children whose histograms are needed."""
        for node in chosen:
            self._taken[node] = self._found.pop(node)
        taken = [(node, *self._taken[node]) for node in chosen]
        directions = [
            self._direction(node, int(found.feature[at])) if self._parameters.monotone else 0
            for node, found, at in taken
        ]
        self._tree.divide(chosen, [found.left[at] for _, found, at in taken], directions)
        deepest = self._parameters.max_depth
        request: list[int] = []
        for node in chosen:
            histogram = self._histograms.pop(node)
            left = self._nodes[node].left
            if self._parameters.interactions:
                found, at = self._taken[node]
                path = self._paths[node] | {int(found.feature[at])}
                self._paths[left] = self._paths[left + 1] = path
            if self._full or (deepest and self._nodes[left].depth >= deepest):
                continue
            # The parent's histogram is kept under ~left until one child's is supplied.
            self._histograms[~left] = histogram
            hess_left = int(self._nodes[left].sums[1::2].sum())
            hess_right = int(self._nodes[left + 1].sums[1::2].sum())
            request.append(left + 1 if hess_right < hess_left else left)
        return request

    def _splits(self, chosen: list[int]) -> Splits:
        taken = [self._taken[node] for node in chosen]
        return Splits(
            node=np.array(chosen, dtype=np.int32),
            left=np.array([self._nodes[node].left for node in chosen], dtype=np.int32),
            feature=np.array([f.feature[p] for f, p in taken], dtype=np.int32),
            bin=np.array([f.bin[p] for f, p in taken], dtype=np.int32),
            default_left=np.array([f.default_left[p] for f, p in taken], dtype=np.bool_),
            categories=tuple(
                (i, codes)
                for i, (f, p) in enumerate(taken)
                if (codes := f.categories[p]) is not None
            ),
        )

    def _direction(self, node: int, feature: int) -> int:
        """Return the monotone constraint of a node's division."""
        return self._parameters.monotone[feature]

    @property
    def leaves(self) -> tuple[int, ...]:
        """Current leaves of the tree, ascending."""
        return self._tree.leaves

    def sums(self, node: int) -> NDArray[np.int64]:
        """Return a node's sums."""
        return self._nodes[node].sums

    def cut(self, pairs: Collection[int]) -> None:
        """Take back the divisions whose left children are ``pairs``, and end the tree."""
        number = self._tree.cut(pairs)
        taken = self._taken.items()
        self._taken = {
            int(number[node]): found
            for node, found in taken
            if number[node] >= 0 and self._nodes[int(number[node])].left >= 0
        }
        self.request, self._waiting, self._open = (), [], []

    def finish(
        self, leaf_sums: NDArray[np.int64] | None = None, leaf_scale: Scale | None = None
    ) -> GrownTree:
        """Return the tree; open nodes become leaves.

        Parameters
        ----------
        leaf_sums : ndarray of shape (n_leaves, 2 * n_outputs), int64, or None
            Sums of the leaves, ascending by node, that replace those of the histograms (leaf
            renewal after a search on quantised gradients).
        """
        left, cover, value, weight = self._tree.values(leaf_sums, leaf_scale)
        out = GrownTree(
            left=left,
            feature=np.zeros(left.shape[0], dtype=np.int32),
            bin=np.zeros(left.shape[0], dtype=np.int32),
            default_left=np.zeros(left.shape[0], dtype=np.bool_),
            categories=tuple(
                (node, codes)
                for node, (f, p) in sorted(self._taken.items())
                if (codes := f.categories[p]) is not None
            ),
            gain=np.zeros(left.shape[0], dtype=np.float32),
            cover=cover,
            value=value,
            weight=weight,
        )
        for node, (found, position) in self._taken.items():
            out.feature[node] = found.feature[position]
            out.bin[node] = found.bin[position]
            out.default_left[node] = found.default_left[position]
            out.gain[node] = found.gain[position]
        return out
