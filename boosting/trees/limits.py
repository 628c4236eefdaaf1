"""Limits that received trees must meet before anything evaluates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import ModelRejected, OfferRejected
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.packing import unpack

ANY_CATEGORIES = -(1 << 24)
"""Of a feature that may be numeric or categorical: less its largest possible size."""
DEPTH_LIMIT = 1024
"""Deepest tree that is accepted where the job sets no limit."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of the trees of an upload."""

    groups: tuple[int, ...]
    """Class index of each tree that is expected, in order; see :func:`step_groups`."""
    n_categories: tuple[int, ...]
    """For each feature the size of its category list, 0 where it is numeric; :data:`ANY_CATEGORIES`
    where its type is not known."""
    max_depth: int = 0
    """0 for :data:`DEPTH_LIMIT`."""
    max_nodes: int = 0
    """Of one tree; 0 for no limit but the depth's."""
    leaf_bound: float = math.inf
    """Largest absolute leaf value."""


def step_groups(n_steps: int, n_outputs: int, num_parallel_tree: int) -> tuple[int, ...]:
    """Return the class index of each tree of ``n_steps`` steps, in XGBoost's order."""
    one = [group for group in range(n_outputs) for _ in range(num_parallel_tree)]
    return tuple(one * n_steps)


def read_upload(
    data: bytes, limits: TreeLimits, *, stats: bool = True, factor: float = 1.0, sender: str = ""
) -> list[Tree]:
    """Return the trees of a pack from another party.

    Parameters
    ----------
    stats : bool
        False leaves gain, cover and weight zero, in a fraction of the time.
    factor : float
        What leaf values are multiplied by, before they are checked.

    Raises
    ------
    OfferRejected
        Bytes that are no pack, or trees that exceed the limits.
    """
    try:
        with np.errstate(all="ignore"):
            trees = [tree.scaled(factor) for tree in unpack(data, stats=stats)]
        validate_upload(trees, limits)
    except OfferRejected as error:
        if not sender:
            raise
        raise ModelRejected(f"{sender}: {error}") from error
    return trees


def validate_upload(trees: Sequence[Tree], limits: TreeLimits) -> None:
    """Check trees of unknown origin before anything evaluates or loads them.

    Raises
    ------
    OfferRejected
        Wrong number of trees or class order, children that make no tree (cycle, shared or
        unreachable node), a feature or category out of range, a number that is not finite, a
        leaf above the bound, or a tree too deep. Names the tree and the rule, never a value.
    """
    if len(trees) != len(limits.groups):
        raise OfferRejected(f"expected {len(limits.groups)} trees, received {len(trees)}")
    for index, (tree, group) in enumerate(zip(trees, limits.groups, strict=True)):
        if tree.group != group:
            raise OfferRejected(f"tree {index}: expected class {group}, received {tree.group}")
        wrong = fault(tree, limits)
        if wrong:
            raise OfferRejected(f"tree {index}: {wrong}")


def fault(tree: Tree, limits: TreeLimits) -> str:
    """Return which rule a tree breaks, or an empty text."""
    n = tree.n_nodes
    columns = (tree.right, tree.feature, tree.threshold, tree.default_left)
    stats = (tree.gain, tree.cover, tree.weight)
    if n == 0 or any(column.shape != (n,) for column in (*columns, *stats)):
        return "columns of unequal length, or none"
    deepest = limits.max_depth or DEPTH_LIMIT
    if limits.max_nodes and n > limits.max_nodes:
        return f"expected at most {limits.max_nodes} nodes, received {n}"
    leaf = tree.left == -1
    if not np.array_equal(leaf, tree.right == -1):
        return "a node with one child"
    splits = np.flatnonzero(~leaf)
    children = np.concatenate([tree.left[splits], tree.right[splits]])
    if ((children < 0) | (children >= n)).any():
        return "a child that does not exist"
    if (children <= np.concatenate([splits, splits])).any():
        return "a child that does not come after its parent (a cycle)"
    if len(children) != n - 1 or (np.bincount(children, minlength=n)[1:] != 1).any():
        return "an unreachable node, or one with two parents"
    feature = tree.feature[splits]
    if ((feature < 0) | (feature >= len(limits.n_categories))).any():
        return f"a feature outside 0..{len(limits.n_categories) - 1}"
    if not np.isfinite(tree.threshold).all():
        return "a threshold or leaf value that is not finite"
    if not all(np.isfinite(column).all() for column in stats):
        return "a gain, cover or weight that is not finite"
    if (np.abs(tree.threshold[leaf]) > limits.leaf_bound).any():
        return "a leaf value above the bound"
    # Each split has two children: a tree of 2 d + 1 nodes is no deeper than d.
    if n // 2 > deepest and depth(tree, deepest) < 0:
        return f"deeper than {deepest}"
    return _category_fault(tree, limits, splits, feature)


def _category_fault(
    tree: Tree, limits: TreeLimits, splits: NDArray[np.intp], feature: NDArray[np.int32]
) -> str:
    sizes = np.asarray(limits.n_categories, np.int64)
    kind = sizes[feature] if len(splits) else sizes[:0]
    nodes = [node for node, _ in tree.categories]
    certain, possible = splits[kind > 0].tolist(), splits[kind != 0].tolist()
    if nodes != sorted(set(nodes) & set(possible)) or not set(certain) <= set(nodes):
        return "categories at other nodes than the splits of categorical features"
    for node, codes in tree.categories:
        if len(codes) == 0 or codes[0] < 0 or codes[-1] >= abs(sizes[tree.feature[node]]):
            return "a category out of range"
        if (np.diff(codes) <= 0).any():
            return "categories that are not in rising order"
    return ""


def depth(tree: Tree, limit: int = DEPTH_LIMIT) -> int:
    """Return the number of splits on the longest path, or -1 where it exceeds ``limit``."""
    frontier = np.zeros(1, np.int32)
    for level in range(limit + 1):
        frontier = frontier[tree.left[frontier] >= 0]
        if len(frontier) == 0:
            return level
        frontier = np.concatenate([tree.left[frontier], tree.right[frontier]])
    return -1
