"""Growing one tree from noisy counts: what is asked at each level, and what is decided.

Rows are *bins*: a numeric feature has the bins between its edges, a categorical one its codes, and
both one more for missing values. Everything here is a function of public parameters and of noisy
sums, so it costs no privacy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checks import MOST_ROWS
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.payloads import Elements, Float32s, Int32s
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.node_cuts import Cut
from hedgerow.crypto.masking.key_agreement import encode_fields

OPEN = -2
"""Feature of a node that is not decided yet."""

LEAF = -1

QUERIES = ("histogram", "candidates")


@dataclass(frozen=True, slots=True, eq=False)
class BinnedTree:
    """A tree while it grows, by levels, in the terms of bins."""

    level: int
    """Of the open nodes, whose counts are due; 0 is the root's."""
    edges: tuple[Float32s, ...]
    """Tuple of ndarray, float32. Ascending, one array for each feature; empty for a categorical
    feature."""
    feature: Int32s
    """Of shape (n_nodes,), int32. The feature of a split, :data:`LEAF` or :data:`OPEN`."""
    left: Int32s
    right: Int32s
    """Of shape (n_nodes,), int32. ``left`` and ``right``: children; -1 for none."""
    goes_left: Annotated[NDArray[np.bool_], Elements("|b1", 2)]
    """Of shape (n_nodes, most_bins), bool. Bins that go left."""

    def __post_init__(self) -> None:
        n_nodes = len(self.feature)
        if not n_nodes or any(len(x) != n_nodes for x in (self.left, self.right, self.goes_left)):
            raise ValueError("expected features, children and bins of the same nodes")
        if self.level < 0:
            raise ValueError(f"expected a level of at least 0, received {self.level}")

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything above: identifies the query of these open nodes."""
        sizes = [self.level, *map(len, self.edges), len(self.feature)]
        arrays = (*self.edges, self.feature, self.left, self.right, self.goes_left)
        body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        return hashlib.sha256(encode_fields("tree", *sizes, body)).digest()

    @property
    def open_nodes(self) -> NDArray[np.int64]:
        """Nodes whose counts are due."""
        return np.flatnonzero(self.feature == OPEN)


def open_root(schema: Schema, edges: tuple[Float32s, ...]) -> BinnedTree:
    """Return a tree of an open root."""
    none = np.array([-1], dtype=np.int32)
    most = max(bin_counts(schema, edges), default=1)
    return BinnedTree(
        0,
        edges,
        np.array([OPEN], dtype=np.int32),
        none,
        none.copy(),
        np.zeros((1, most), dtype=np.bool_),
    )


def bin_counts(schema: Schema, edges: tuple[Float32s, ...]) -> list[int]:
    """Return the number of bins of each feature, the one of missing values included."""
    return [
        len(feature.categories) + 1 if feature.categories is not None else len(own) + 2
        for feature, own in zip(schema.features, edges, strict=True)
    ]


def to_bins(
    schema: Schema, edges: tuple[Float32s, ...], X: NDArray[np.float32]
) -> NDArray[np.int32]:
    """Return each value's bin, shape (n_samples, n_features), int32; missing is the last one."""
    counts = bin_counts(schema, edges)
    bins = np.empty(X.shape, dtype=np.int32)
    for feature, own in enumerate(edges):
        column = X[:, feature]
        missing = np.isnan(column)
        if schema.features[feature].is_categorical:
            found = np.where(missing, 0, column).astype(np.int32)
        else:
            found = np.searchsorted(own, column, side="right").astype(np.int32)
        bins[:, feature] = np.where(missing, counts[feature] - 1, found)
    return bins


def cuts_of(schema: Schema, n_bins: list[int]) -> list[int]:
    """Return the number of cuts between known values of each feature."""
    return [max(0, count - 2) for count in n_bins]


def nodes_of(tree: BinnedTree, bins: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the node that each row has reached, shape (n_samples,), int64."""
    node = np.zeros(bins.shape[0], dtype=np.int64)
    for current in np.flatnonzero(tree.feature >= 0):
        rows = np.flatnonzero(node == current)
        left = tree.goes_left[current, bins[rows, tree.feature[current]]]
        node[rows] = np.where(left, tree.left[current], tree.right[current])
    return node


def count_classes(
    nodes: NDArray[np.int64], open_nodes: NDArray[np.int64], labels: NDArray[np.int64], Q: int
) -> NDArray[np.int64]:
    """Return class counts of the open nodes, shape (n_open, n_classes), int64."""
    rank = np.full(int(max(nodes.max(initial=0), open_nodes.max(initial=0))) + 1, -1)
    rank[open_nodes] = np.arange(len(open_nodes))
    place = rank[nodes]
    here = place >= 0
    flat = place[here] * Q + labels[here]
    return np.bincount(flat, minlength=len(open_nodes) * Q).reshape(-1, Q).astype(np.int64)


def count_bins(
    nodes: NDArray[np.int64],
    open_nodes: NDArray[np.int64],
    bins: NDArray[np.int32],
    n_bins: list[int],
    labels: NDArray[np.int64],
    Q: int,
) -> NDArray[np.int64]:
    """Return class counts by bin, shape (n_open, sum of bins, n_classes), int64.

    A row counts once in every feature.
    """
    starts = np.cumsum([0, *n_bins])
    out = np.zeros((len(open_nodes), int(starts[-1]), Q), dtype=np.int64)
    for at, node in enumerate(open_nodes):
        rows = np.flatnonzero(nodes == node)
        for feature, count in enumerate(n_bins):
            flat = bins[rows, feature] * Q + labels[rows]
            found = np.bincount(flat, minlength=count * Q).reshape(count, Q)
            out[at, starts[feature] : starts[feature + 1]] = found
    return out


def count_candidates(by_bin: NDArray[np.int64], n_bins: list[int]) -> NDArray[np.int64]:
    """Return class counts left and right of every cut, shape (n_open, n_cuts, 2, n_classes).

    Missing values are on the right. A row counts once in every cut.
    """
    starts = np.cumsum([0, *n_bins])
    parts = []
    for feature, count in enumerate(n_bins):
        own = by_bin[:, starts[feature] : starts[feature + 1]]
        left = np.cumsum(own, axis=1)[:, : max(0, count - 2)]
        total = own.sum(axis=1, keepdims=True)
        parts.append(np.stack([left, total - left], axis=2))
    return np.concatenate(parts, axis=1)


def _purity(
    counts: NDArray[np.float64], noise_squares: NDArray[np.float64] | float = 0.0
) -> NDArray[np.float64]:
    """Return ``sum(c**2) / sum(c)`` of noisy counts, less what noise adds to the squares."""
    counts = np.maximum(counts, 0.0)
    size = counts.sum(axis=-1)
    square = np.maximum((counts**2).sum(axis=-1) - noise_squares, 0.0)
    found: NDArray[np.float64] = np.zeros_like(size)
    np.divide(square, size, out=found, where=size > 0.0)
    return found


def _gini_gains(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return decreases of weighted Gini impurity; counts below 0 count as 0."""
    gain = _purity(left) + _purity(right) - _purity(left + right)
    gain[(left.sum(axis=-1) <= 0.0) | (right.sum(axis=-1) <= 0.0)] = -np.inf
    return gain


def best_by_histogram(
    by_bin: NDArray[np.int64], n_bins: list[int], noise: float
) -> tuple[int, NDArray[np.bool_]] | None:
    """Return the best split of one node: feature, and which of its bins go left.

    Cuts of all features are read from one noisy histogram. A side of many bins adds up much noise:
    what noise is expected to add to squares is subtracted, and a side must have more rows than
    twice its noise. Otherwise features of many bins would win by noise alone. ``None`` when no cut
    has a gain.

    Parameters
    ----------
    by_bin : ndarray of shape (sum of bins, n_classes), int64
    noise : float
        Standard deviation of a count.
    """
    starts = np.cumsum([0, *n_bins])
    Q = by_bin.shape[1]
    best_gain, best = 1e-10, None
    for feature, count in enumerate(n_bins):
        own = by_bin[starts[feature] : starts[feature + 1]].astype(np.float64)
        left = np.cumsum(own, axis=0)[:-1]
        right = own.sum(axis=0) - left
        squares_left = Q * noise**2 * np.arange(1, count)
        squares_right = Q * noise**2 * np.arange(count - 1, 0, -1)
        gains = _purity(left, squares_left) + _purity(right, squares_right)
        gains -= _purity(own.sum(axis=0), Q * noise**2 * count)
        for side, squares in ((left, squares_left), (right, squares_right)):
            gains[side.sum(axis=1) <= 2.0 * np.sqrt(squares)] = -np.inf
        if gains.size and gains.max() > best_gain * (1.0 + 1e-10):
            cut = int(np.argmax(gains))
            best_gain, best = float(gains[cut]), (feature, np.arange(count) <= cut)
    return best


def best_by_candidates(
    counts: NDArray[np.int64], n_bins: list[int]
) -> tuple[int, NDArray[np.bool_]] | None:
    """Return the best split of one node from noisy counts on both sides of every cut.

    Parameters
    ----------
    counts : ndarray of shape (n_cuts, 2, n_classes), int64
    """
    gains = _gini_gains(counts[:, 0].astype(np.float64), counts[:, 1].astype(np.float64))
    if not gains.size or gains.max() <= 1e-10:
        return None
    at = int(np.argmax(gains))
    for feature, count in enumerate(n_bins):
        n_cuts = max(0, count - 2)
        if at < n_cuts:
            return feature, np.arange(count) <= at
        at -= n_cuts
    raise AssertionError("a cut has a feature")


def extend(tree: BinnedTree, splits: dict[int, tuple[int, NDArray[np.bool_]]]) -> BinnedTree:
    """Return the tree with its open nodes split; those that ``splits`` has not are leaves."""
    feature, left, right = tree.feature.copy(), tree.left.copy(), tree.right.copy()
    goes_left = tree.goes_left.copy()
    n_nodes = len(feature)
    for node in tree.open_nodes.tolist():
        if node not in splits:
            feature[node] = LEAF
            continue
        feature[node], mask = splits[node]
        goes_left[node, : len(mask)] = mask
        left[node], right[node] = n_nodes, n_nodes + 1
        n_nodes += 2
    grown = n_nodes - len(feature)
    none = np.full(grown, -1, dtype=np.int32)
    return replace(
        tree,
        level=tree.level + 1,
        feature=np.concatenate([feature, np.full(grown, OPEN, dtype=np.int32)]),
        left=np.concatenate([left, none]),
        right=np.concatenate([right, none]),
        goes_left=np.concatenate(
            [goes_left, np.zeros((grown, goes_left.shape[1]), dtype=np.bool_)]
        ),
    )


def close(tree: BinnedTree, schema: Schema, content: NDArray[np.float64]) -> DecisionTree:
    """Return the tree with thresholds and votes; open nodes are leaves.

    Parameters
    ----------
    content : ndarray of shape (n_nodes, n_classes), float64
        Noisy class counts; a node without any positive one votes as its parent.
    """
    n_nodes = len(tree.feature)
    votes = np.zeros((n_nodes, content.shape[1]))
    votes[: len(content)] = np.maximum(content, 0.0)
    level = np.zeros(n_nodes, dtype=np.int32)
    cuts: list[Cut | None] = []
    n_bins = bin_counts(schema, tree.edges)
    for node in range(n_nodes):
        feature = int(tree.feature[node])
        if feature < 0:
            cuts.append(None)
            continue
        cuts.append(_cut(tree, schema, node, feature, n_bins[feature]))
        for child in (int(tree.left[node]), int(tree.right[node])):
            level[child] = level[node] + 1
            if votes[child].sum() <= 0.0:
                votes[child] = votes[node]
    rows = np.rint(np.minimum(votes.sum(axis=1), MOST_ROWS)).astype(np.int64)
    return DecisionTree(schema, tuple(cuts), tree.left, tree.right, level, votes, rows)


def _cut(tree: BinnedTree, schema: Schema, node: int, feature: int, n_bins: int) -> Cut:
    mask = tree.goes_left[node, :n_bins]
    missing_left = bool(mask[-1])
    if schema.features[feature].is_categorical:
        codes = frozenset(np.flatnonzero(mask[:-1]).tolist())
        return Cut(feature, 0.0, codes, missing_left, False, 0.0)
    edges = tree.edges[feature]
    last = int(np.flatnonzero(mask[:-1])[-1])
    largest = float(np.finfo(np.float32).max)
    threshold = float(edges[last]) if last < len(edges) else largest
    return Cut(feature, threshold, None, missing_left, False, 0.0)
