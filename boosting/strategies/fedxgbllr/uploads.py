"""A silo's trees on the wire: exact, or smaller by options that round them.

Exact is a pack (:mod:`hedgerow.boosting.trees.packing`) of scrubbed trees. ``leaf_bits = 16`` sends
leaf values as float16 beside the structure. Shared cuts make every numeric threshold an index into
cut points that all silos have. The pack has the index in place of the threshold, as the float32
with that bit pattern, because a pack stores differences of bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import with_leaf_values
from hedgerow.boosting.strategies.fedxgbllr.steps import PackedEnsemble
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.limits import TreeLimits, validate_upload
from hedgerow.boosting.trees.packing import Shrinkage, pack, unpack

Thresholds = Sequence[NDArray[np.float32]]
"""Of each feature the shared cut points, rising, between two fences; see :func:`with_fences`."""

_FENCE = np.float32(np.finfo(np.float32).max)


def with_fences(thresholds: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Return cut points with one below and one above all values.

    They serve splits between missing and present values.
    """
    return [np.concatenate([[-_FENCE], inner, [_FENCE]]).astype(np.float32) for inner in thresholds]


@dataclass(frozen=True, slots=True)
class UploadForm:
    """How trees are sent."""

    shrinkage: Shrinkage
    """Of the training; the pack predicts statistics from it."""
    scrub: bool = True
    """Remove gains, covers and weights."""
    leaf_bits: int = 32
    """32 or 16."""
    cuts: Thresholds | None = None
    """Shared cut points; every numeric threshold is one of them."""


def encode_trees(trees: Sequence[Tree], form: UploadForm) -> PackedEnsemble:
    """Return trees as they travel."""
    given = [tree.scrubbed() if form.scrub else tree for tree in trees]
    leaves = None
    if form.cuts is not None:
        given = [_indexed(tree, form.cuts) for tree in given]
    if form.leaf_bits == 16:
        values = np.concatenate([tree.threshold[tree.is_leaf] for tree in given])
        leaves = values.astype(np.float16).view(np.uint16)
        given = list(with_leaf_values(given, np.zeros(len(leaves))))
    return PackedEnsemble(np.frombuffer(pack(given, form.shrinkage), np.uint8), leaves)


def decode_trees(
    ensemble: PackedEnsemble, form: UploadForm, schema: Schema, limits: TreeLimits
) -> list[Tree]:
    """Return the trees of :func:`encode_trees`.

    Raises
    ------
    OfferRejected
        Bytes that are no pack, trees outside the limits, cut indices out of range, or leaf values
        that are too few, too many or not finite.
    """
    trees = unpack(ensemble.trees.tobytes(), stats=not form.scrub)
    validate_upload(trees, limits)
    if form.cuts is not None:
        trees = [_restored(tree, form.cuts, schema) for tree in trees]
    if form.leaf_bits == 16:
        if ensemble.leaves is None:
            raise OfferRejected("leaves: expected leaf values in 16 bits, received none")
        n_leaves = sum(int(tree.is_leaf.sum()) for tree in trees)
        leaves = checked("leaves", ensemble.leaves.view(np.float16), (n_leaves,))
        trees = list(with_leaf_values(trees, leaves.astype(np.float64)))
    return trees


def cut_columns(X: NDArray[np.float32], cuts: Thresholds, schema: Schema) -> NDArray[np.float32]:
    """Return the rows with every numeric value replaced by the number of cuts at or below it.

    ``x < cuts[i]`` holds exactly where the replaced value is below ``i + 1``, so that a tree grown
    on these columns is one on the values with thresholds among the cuts.
    """
    out = X.copy()
    for j, feature in enumerate(schema.features):
        if not feature.is_categorical:
            column = X[:, j]
            bins = np.searchsorted(cuts[j], column, side="right").astype(np.float32)
            out[:, j] = np.where(np.isnan(column), np.float32(np.nan), bins)
    return out


def uncut(trees: Sequence[Tree], cuts: Thresholds, schema: Schema) -> list[Tree]:
    """Return trees grown on :func:`cut_columns` as trees on the values themselves."""
    found = []
    for tree in trees:
        threshold = tree.threshold.copy()
        for node in _numeric_splits(tree):
            of_feature = cuts[int(tree.feature[node])]
            place = int(np.ceil(tree.threshold[node])) - 1
            threshold[node] = of_feature[min(max(place, 0), len(of_feature) - 1)]
        found.append(replace(tree, threshold=threshold))
    return found


def _numeric_splits(tree: Tree) -> NDArray[np.intp]:
    numeric = ~tree.is_leaf
    numeric[[node for node, _ in tree.categories]] = False
    return np.flatnonzero(numeric)


def _indexed(tree: Tree, cuts: Thresholds) -> Tree:
    threshold = tree.threshold.copy()
    for node in _numeric_splits(tree):
        of_feature = cuts[int(tree.feature[node])]
        index = np.searchsorted(of_feature, tree.threshold[node])
        assert of_feature[index] == tree.threshold[node], "a threshold that is no shared cut"
        threshold[node] = np.uint32(index).view(np.float32)
    return replace(tree, threshold=threshold)


def _restored(tree: Tree, cuts: Thresholds, schema: Schema) -> Tree:
    threshold = tree.threshold.copy()
    for node in _numeric_splits(tree):
        of_feature = cuts[int(tree.feature[node])]
        index = int(tree.threshold[node].view(np.uint32))
        if index >= len(of_feature):
            name = schema.features[int(tree.feature[node])].name
            raise OfferRejected(f"a cut index of feature {name!r} is out of range")
        threshold[node] = of_feature[index]
    return replace(tree, threshold=threshold)
