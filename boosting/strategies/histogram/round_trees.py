"""The trees of one round, grown level by level from summed vectors.

The reader of the sums has a :class:`RoundTrees`: the coordinator or, if it is blind, every silo.
All parties follow each tree in a :class:`~.mirror.TreeReplica`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower, GrownTree, check_sums
from hedgerow.boosting.engine.histogram import Layout, layout_of
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.histogram.mirror import TreeReplica
from hedgerow.boosting.strategies.histogram.rings import (
    OVERFLOW_SPARE,
    START_SPARE,
    PackedRings,
    Widest,
    node_rings,
)
from hedgerow.boosting.strategies.histogram.steps import (
    CategorySets,
    ClosedTrees,
    LevelDecision,
    NodeTotals,
    TreeSplits,
)
from hedgerow.crypto.masking.fixed_point import signed
from hedgerow.crypto.masking.masks import Residues
from hedgerow.crypto.masking.totals import N_LIMBS

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What the trees of a round have in common; equal at all parties."""

    cuts: Cuts
    parameters: TreeParameters
    width: int
    """Numbers a bin: ``2 * n_outputs`` of a tree."""
    columns: tuple[ColumnSampler | None, ...]
    """One a tree."""
    filled_bins: bool
    """Whether bins that a node's parent has empty stay out, which tells silos about each other."""
    most_nodes: int = 0
    """Nodes of a tree that are summed at a time, 0 for a whole level."""
    checked: bool = False
    """Whether silos check node totals and derive leaf values from these."""

    @property
    def layouts(self) -> list[Layout]:
        """Histogram layout of each tree."""
        return [layout_of(self.cuts, None if c is None else c.of_tree) for c in self.columns]

    def mirror(self) -> TreeReplica:
        """Return the copy of a tree that is about to grow."""
        p = self.parameters
        return TreeReplica(self.cuts.n_bins, p.max_depth, p.max_leaves, self.most_nodes)

    def rings(
        self, mirrors: Sequence[TreeReplica], scale: Scale, *, first: bool, passing: int = 0
    ) -> PackedRings:
        """Return how the vector of the nodes that the mirrors request travels.

        Raises
        ------
        OfferRejected
            Bins are left out for being empty, and the job says that no silo learns which are.
        """
        told = any(m.rings is not None and m.rings.filled.shape[0] for m in mirrors)
        if told and not self.filled_bins:
            raise OfferRejected("rings: expected no bits of filled bins in this job")
        widest = Widest.of(scale)
        return PackedRings(
            mirrors, self.layouts, self.width, widest,
            first=first, passing=passing, checked=self.checked,
        )  # fmt: skip


class RoundTrees:
    """Grows the trees of a round from the sums of all silos.

    Parameters
    ----------
    scale : Scale
        Unit of the histogram sums.
    leaf_scale : Scale or None
        Unit of the lossless leaf sums that leaf values are renewed from, after a search on coarse
        gradients; ``None`` where histograms are lossless.
    spare : float
        As in :func:`~.rings.node_rings`; of an earlier round's trees.

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
        self._mirrors = [shape.mirror() for _ in self._layouts]
        self._derived: list[NDArray[np.uint16]] = []
        self.spare = START_SPARE
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
        """Length of the vector of leaf sums; without a leaf scale it has only the word."""
        n_leaves = sum(len(grower.leaves) for grower in self._growers)
        word = N_LIMBS if self._shape.checked else 0
        return word + n_leaves * self._shape.width * (self._leaf_scale is not None)

    def decide(self, sums: Integers | None) -> LevelDecision:
        """Decide a level's splits from its sums; without sums close the trees.

        Parameters
        ----------
        sums : ndarray of shape (n_values,), int64, or None
            In the order of :attr:`requests`.
        """
        if sums is None:
            return LevelDecision((write_splits(_no_splits(), ()),) * len(self._growers), self.end())
        pairs = zip(self._take(sums), self.requests, strict=True)
        trees = tuple(write_splits(splits, request) for splits, request in pairs)
        ended = self.done and self._leaf_scale is None and not self._shape.checked
        return LevelDecision(trees, self.close() if ended else None)

    def rings(self, passing: int = 0) -> PackedRings:
        """Return how the next vector travels."""
        return self._shape.rings(
            self._mirrors, self._scale, first=not self._growers, passing=passing
        )

    def decide_packed(self, rings: PackedRings, words: Residues | None) -> LevelDecision:
        """Decide as :meth:`decide` does, from words that travelled as ``rings`` say."""
        if words is None:
            return self.decide(None)
        asked = [mirror.request for mirror in self._mirrors]
        totals = [
            np.stack([grower.parent_of(node)[1] for node in grower.request] or [np.empty(0, int)])
            for grower in self._growers
        ]
        opened = rings.open(words.astype(np.uint64, copy=False), totals)
        if opened is None:
            self.spare += OVERFLOW_SPARE
            return LevelDecision((), None, overflowed=True)
        sums, derived = opened
        self._derived = derived or self._derived
        decision = self.decide(sums)
        checked = self._totals(asked, words) if self._shape.checked else None
        followed = zip(self._mirrors, decision.trees, strict=True)
        trees = [self._follow(t, *pair) for t, pair in enumerate(followed)]
        return replace(decision, trees=tuple(trees), totals=checked)

    def _totals(
        self,
        nodes: Sequence[Sequence[int]],
        total: Residues,
        *others: Integers,
    ) -> NodeTotals:
        """Return the sums of some nodes of each tree and others, with the word of a total."""
        sums = [g.sums(node) for g, own in zip(self._growers, nodes, strict=True) for node in own]
        found = np.concatenate([np.empty(0, np.int64), *sums, *others])
        return NodeTotals(found, total[:N_LIMBS].astype(np.int64))

    def _follow(self, t: int, mirror: TreeReplica, decided: TreeSplits) -> TreeSplits:
        """Apply splits to the coordinator's own copy; add how the next histograms travel."""
        mirror.apply(decided)
        if mirror.request:
            parents = [self._growers[t].parent_of(node) for node in mirror.request]
            mirror.rings = node_rings(
                mirror,
                self._layouts[t],
                parents,
                self._derived[t],
                Widest.of(self._scale),
                self.spare,
                filled_bins=self._shape.filled_bins,
            )
        return replace(decided, rings=mirror.rings)

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
                    self._shape.most_nodes,
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

    @property
    def roots(self) -> list[GrownTree]:
        """The trees as if their roots were leaves."""
        found = []
        for grower in self._growers:
            root = self._shape.mirror()
            root.take([0], grower.sums(0)[None])
            found.append(root.derived(self._shape.parameters, self._scale))
        return found

    def close_summed(self, total: Residues | None, ring_bits: int) -> ClosedTrees:
        """Finish the trees by their last sum, which has a word and the leaves' lossless sums."""
        if total is None:
            return self.end()
        skipped = N_LIMBS if self._shape.checked else 0
        leaf_sums = signed(total[skipped:], ring_bits)
        pairs = [sorted(mirror.unsummed) for mirror in self._mirrors]
        closed = self.close(leaf_sums if self._leaf_scale is not None else None)
        if not self._shape.checked:
            return closed
        return replace(closed, totals=self._totals(pairs, total, leaf_sums))

    def end(self) -> ClosedTrees:
        """Finish the trees without a sum, since a silo was lost.

        Where silos check node totals, divisions are taken back whose children they cannot check.
        """
        if not self._shape.checked:
            return self.close()
        for grower, mirror in zip(self._growers, self._mirrors, strict=False):
            grower.cut(mirror.unsummed)
            mirror.cut()
        return replace(self.close(), cut=True)

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
            check_sums([part], self._leaf_scale or self._scale)
            at += size
            trees.append(grower.finish(part, self._leaf_scale))
        self.finished = trees
        if not trees:
            raise OfferRejected("expected the total of the trees' first sum, received none")
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
