"""Reconstruction of a silo's rows from its trees, after TimberStrike.

Di Gennaro, De Lucia, Longari, Zanero and Carminati, *TimberStrike: Dataset reconstruction attack
revealing privacy leakage in federated tree-based systems*, arXiv:2506.07605. The adversary reads
the shared model, knows the job, the silos' numbers of rows and some rows of its own.

1. The first tree: each row has the gradient p - y and the hessian p (1 - p) of the base score p, so
   that a leaf's cover and value are its number of rows and of positives. **Without covers** the
   value alone, w = -rate G / (H + lambda), is that of few pairs of whole numbers: they are listed,
   and a choice over all leaves is made that adds up to the silo's rows.
2. Each later tree: rows of the leaves are assigned to its leaves, where their intervals meet, so
   that hessians and gradients add up to cover and value (a linear program); without covers there is
   one equation a leaf instead of two. Intervals become narrower with each tree.
3. A row is guessed as the adversary's nearest own row of the label, moved into the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.special import expit, logit

from hedgerow.boosting.trees.ensemble import Tree

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Leaves:
    """The leaves of a tree.

    Parameters
    ----------
    low, high : ndarray of shape (n_leaves, n_features)
        ``low <= x < high``.
    value : ndarray of shape (n_leaves,)
    cover : ndarray of shape (n_leaves,) or None
        Sums of hessians, where the tree has them.
    tree : Tree
    """

    low: Floats
    high: Floats
    value: Floats
    cover: Floats | None
    tree: Tree
    nodes: Integers
    """Of each leaf in the tree."""

    @classmethod
    def read(cls, tree: Tree, n_features: int, *, covers: bool) -> Leaves:
        """Return the leaves of a tree; a split by categories narrows no interval."""
        found: list[tuple[Floats, Floats, int]] = []
        low, high = np.full(n_features, -np.inf), np.full(n_features, np.inf)
        by_category = {node for node, _ in tree.categories}
        open_nodes = [(0, low, high)]
        while open_nodes:
            node, low, high = open_nodes.pop()
            left, right = int(tree.left[node]), int(tree.right[node])
            if left < 0:
                found.append((low, high, node))
                continue
            below, above = high, low
            if node not in by_category:
                feature, cut = int(tree.feature[node]), float(tree.threshold[node])
                below, above = high.copy(), low.copy()
                below[feature], above[feature] = min(high[feature], cut), max(low[feature], cut)
            open_nodes += [(left, low, below), (right, above, high)]
        lows, highs, nodes = zip(*found, strict=True)
        at = np.array(nodes)
        cover = tree.cover[at].astype(np.float64) if covers else None
        values = tree.threshold[at].astype(np.float64)
        return cls(np.array(lows), np.array(highs), values, cover, tree, at)

    def of(self, X: Floats) -> Integers:
        """Return the leaf of each row."""
        reached = self.tree.reached(X)
        found = np.zeros(len(X), np.int64)
        for leaf, node in enumerate(self.nodes):
            found[reached[node]] = leaf
        return found

    def meeting(self, low: Floats, high: Floats) -> NDArray[np.bool_]:
        """Return which leaves the boxes of rows meet, shape (n_rows, n_leaves)."""
        meets = (np.maximum(self.low, low[:, None]) < np.minimum(self.high, high[:, None])).all(2)
        return np.asarray(meets)


def count(
    leaves: Leaves, p: float, rate: float, n_rows: int, penalty: float
) -> list[tuple[int, int]]:
    """Return rows and positives of each leaf of a first tree, as far as they can be told."""
    n, positive = (part.ravel() for part in np.mgrid[1 : n_rows + 1, 0 : n_rows + 1])
    n, positive = n[positive <= n], positive[positive <= n]
    value = (rate * (positive - n * p) / (n * p * (1 - p) + penalty)).astype(np.float32)
    close = np.abs(value[None] - leaves.value[:, None]) <= 2e-6 * np.abs(leaves.value[:, None])
    if leaves.cover is not None:
        close &= np.abs(n * p * (1 - p) - leaves.cover[:, None]) < 1e-3 * leaves.cover[:, None]
    options = [sorted({(int(n[k]), int(positive[k])) for k in np.flatnonzero(c)}) for c in close]
    # By numbers of rows that are reached: the choices that reach them.
    reached: dict[int, list[tuple[int, int]]] = {0: []}
    for pairs in options:
        further: dict[int, list[tuple[int, int]]] = {}
        for total, chosen in reached.items():
            for pair in pairs or [(0, 0)]:
                if total + pair[0] <= n_rows:
                    further.setdefault(total + pair[0], [*chosen, pair])
        reached = further
    nearest = min(reached, key=lambda total: abs(total - n_rows))
    return reached[nearest]


def assign(
    leaves: Leaves, meets: NDArray[np.bool_], g: Floats, h: Floats, rate: float, penalty: float
) -> Integers:
    """Return the leaf of each row that makes the leaves' sums right, as nearly as can be."""
    rows, cols = np.nonzero(meets)
    n_leaves, n_vars = leaves.value.shape[0], rows.shape[0]
    ratio = leaves.value / rate
    if leaves.cover is not None:
        weights = [h[rows], g[rows]]
        sums = [leaves.cover, -ratio * (leaves.cover + penalty)]
    else:
        weights, sums = [g[rows] + ratio[cols] * h[rows]], [-ratio * penalty]
    n_sums = len(sums) * n_leaves
    sides = np.zeros((n_sums, n_vars + 2 * n_sums))
    for k, weight in enumerate(weights):
        sides[k * n_leaves + cols, np.arange(n_vars)] = weight
    sides[:, n_vars : n_vars + n_sums] = np.eye(n_sums)
    sides[:, n_vars + n_sums :] = -np.eye(n_sums)
    once = np.zeros((meets.shape[0], n_vars + 2 * n_sums))
    once[rows, np.arange(n_vars)] = 1.0
    some = once.any(axis=1)
    cost = np.r_[np.zeros(n_vars), np.ones(2 * n_sums)]
    found = linprog(
        cost,
        A_eq=np.r_[sides, once[some]],
        b_eq=np.r_[np.concatenate(sums), np.ones(int(some.sum()))],
    )
    share = np.full(meets.shape, -1.0)
    if found.x is not None:
        share[rows, cols] = found.x[:n_vars]
    return np.where(some & (found.x is not None), share.argmax(axis=1), -1)


def guessed(low: Floats, high: Floats, label: Floats, own: Floats, own_label: Floats) -> Floats:
    """Return for each box a row of the adversary's, of the box's label, moved into the box.

    Each is the nearest one that is left; a feature outside its interval becomes the interval's
    middle, within the adversary's range.
    """
    scale = np.where(own.std(axis=0) > 0, own.std(axis=0), 1.0)
    out = np.empty_like(low)
    for y in (0.0, 1.0):
        boxes = np.flatnonzero(label == y)
        donors = np.flatnonzero(own_label == y)
        if not boxes.shape[0]:
            continue
        donors = np.resize(donors if donors.shape[0] else np.arange(own.shape[0]), boxes.shape[0])
        rows = own[donors][:, None]
        outside = np.maximum(low[boxes] - rows, 0) + np.maximum(rows - high[boxes], 0)
        chosen, box = linear_sum_assignment((outside / scale).sum(axis=2))
        out[boxes[box]] = own[donors[chosen]]
    least, most = np.maximum(low, own.min(axis=0)), np.minimum(high, own.max(axis=0))
    inside = (low <= out) & (out < high)
    beyond = np.where(np.isinf(low), most, least)
    both = np.isfinite(low) & np.isfinite(high)
    between = np.where(both, (np.where(both, low, 0.0) + np.where(both, high, 0.0)) / 2, beyond)
    return np.where(inside, out, between)


@dataclass(frozen=True, slots=True)
class Adversary:
    """What is known besides the trees: other rows and their labels, and the job.

    ``p`` is the base score, ``rate`` the silo's learning rate, ``n_rows`` its number of rows.
    """

    own: Floats
    label: Floats
    p: float
    rate: float
    n_rows: int
    penalty: float = 1.0
    """The job's ``lambda``."""


def reconstruct(
    trees: list[list[Leaves]], target: int, by: Adversary
) -> tuple[list[tuple[int, int]], Floats, Floats]:
    """Return the first tree's counts, and guessed rows and labels, from all silos' trees.

    Parameters
    ----------
    trees : list of lists
        By round, each silo's tree.
    target : int
        Position of the silo that is attacked.
    """
    mine = [each[target] for each in trees]
    counts = count(mine[0], by.p, by.rate, by.n_rows, by.penalty)
    leaf = np.repeat(np.arange(len(counts)), [n for n, _ in counts])
    y = np.concatenate([np.repeat([1.0, 0.0], [pos, n - pos]) for n, pos in counts])
    low, high = mine[0].low[leaf], mine[0].high[leaf]
    margin = np.full(y.shape[0], logit(by.p))
    for t in range(1, len(mine)):
        guess = guessed(low, high, y, by.own, by.label)
        margin += mine[t - 1].value[leaf]
        for k, other in enumerate(trees[t - 1]):
            if k != target:
                margin += other.value[other.of(guess)]
        q = expit(margin)
        meets = mine[t].meeting(low, high)
        leaf = assign(mine[t], meets, q - y, q * (1 - q), by.rate, by.penalty)
        placed = leaf >= 0
        low[placed] = np.maximum(low[placed], mine[t].low[leaf[placed]])
        high[placed] = np.minimum(high[placed], mine[t].high[leaf[placed]])
        leaf = np.where(placed, leaf, mine[t].of(guess))
    return counts, guessed(low, high, y, by.own, by.label), y


def best_case(mine: list[Leaves], X: Floats, y: Floats, own: Floats, own_label: Floats) -> Floats:
    """Return the rows that are guessed where each row's leaf in each tree is known."""
    low, high = np.full(X.shape, -np.inf), np.full(X.shape, np.inf)
    for tree in mine:
        leaf = tree.of(X)
        low, high = np.maximum(low, tree.low[leaf]), np.minimum(high, tree.high[leaf])
    return guessed(low, high, y, own, own_label)


def apart(guess: Floats, label: Floats, X: Floats, y: Floats) -> Floats:
    """Return how far each true row's features are from those guessed for it, in deviations.

    Rows are paired within a label so that they are as near as can be; infinity where none is left.
    """
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    far = np.abs(X[:, None] - guess) / scale
    rows, guesses = linear_sum_assignment(
        np.minimum(far, 1.0).mean(axis=2) + 2.0 * (y[:, None] != label)
    )
    found = np.full(X.shape, np.inf)
    found[rows] = far[rows, guesses]
    return found


def score(guess: Floats, label: Floats, X: Floats, y: Floats) -> dict[str, float]:
    """Return how near guessed rows are to the true ones of the same label, in pairs."""
    near = apart(guess, label, X, y)
    return {
        "features_0.1": float((near <= 0.1).mean()),
        "features_0.3": float((near <= 0.3).mean()),
        "rows_half": float(((near <= 0.1).mean(axis=1) >= 0.5).mean()),
    }
