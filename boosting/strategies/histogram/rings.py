"""Which bins of a level's histograms travel, and in how many bits.

A root's numbers take the bits that the range proof allows. Further down the tree a level's reply
(:class:`~.steps.NodeRings`) has the widths of what is asked next, and all parties derive the same
fields from it:

* bins that the node's path excludes stay out;
* of a feature that is missing nowhere one bin stays out, the node's total less the others: the one
  that is greatest in the root where the path has it, so that the others are narrow, or the last.
  Each tree's first sum says where values are missing: a silo that has missing values of a feature
  adds a random residue to the feature's flag, so that the total tells only whether any silo has;
* where the job allows it and that pays, bins that are empty in the parent stay out;
* a hessian's bin is at most the parent's, so that the parent's greatest bin bounds the width;
* a gradient's width is a guess, since gradients of both signs cancel in the parent. A silo whose
  own part could overflow it, that has gradients in a bin taken for empty, or that has missing
  values of a feature said to be missing nowhere adds a random residue to one flag of the level, so
  that the total tells whether any silo does; no silo refuses because of its own rows. Then nobody
  uses the total, and the level is summed once more in a second pass, with all bins of the path but
  the derived ones and gradients as wide as the range proof says. Its flag is raised by missing
  values only; a third pass, after a coordinator that lied, has all bins in proven widths.

docs/strategies/histogram.md has the widths that this gives; docs/threat-model.md what it tells.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.histogram import Layout
from hedgerow.boosting.engine.splitting import Scale
from hedgerow.boosting.errors import OfferRejected, SumCorrupt
from hedgerow.boosting.strategies.histogram.mirror import Mask, TreeReplica
from hedgerow.boosting.strategies.histogram.steps import NodeRings
from hedgerow.crypto.masking.fields import BitFields
from hedgerow.crypto.masking.totals import N_LIMBS
from hedgerow.crypto.native.kernels import kernel

Integers = NDArray[np.int64]

FLAG_BITS = 64
MISSING_BITS = 40
"""Bits of a flag of missing values: that two silos' residues cancel has a chance of 2**-40."""

PASSES = 3
"""Sums of a level at most."""

NOT_DERIVED = (1 << 16) - 1
"""Of a feature all of whose bins are sent: more than the greatest bin."""

START_SPARE = 1.0
"""Bits that a gradient's width has to spare at first, above the parent's greatest bin."""
OVERFLOW_SPARE = 1.0
"""Bits more after each overflow, for the rest of the job."""


@dataclass(frozen=True, slots=True)
class Widest:
    """Bits of sums of g (with a sign) and h (without) by the range proof."""

    grad: int
    hess: int

    @classmethod
    def of(cls, scale: Scale) -> Widest:
        """Return the bits that the proven bounds of sums need.

        Raises
        ------
        SumCorrupt
            More than a sum of residues has.
        """
        found = cls(int(scale.most_grad).bit_length() + 1, int(scale.most_hess).bit_length())
        if max(found.grad, found.hess) > 64:
            raise SumCorrupt(
                "the silos' bounds of gradients are no bounds of rows: sums would need "
                f"{max(found.grad, found.hess)} bits, expected at most 64"
            )
        return found


class BitWidths:
    """The bins of one tree's requested nodes that travel, and their widths.

    Parameters
    ----------
    passing : int
        0, or 1 or 2 where the level is summed again.

    Attributes
    ----------
    kept : ndarray of shape (n_nodes, n_bins), bool
        Bins that travel.
    empty : ndarray of the same shape, bool
        Bins taken for empty.
    derived : ndarray of shape (n_nodes, n_used), int64
        The bin of each feature that follows from the others, -1 for none.
    widths : ndarray of shape (n_nodes, n_used, 2), uint8
        Of g and h.
    """

    def __init__(self, mirror: TreeReplica, layout: Layout, widest: Widest, passing: int) -> None:
        nodes, n_used = mirror.request, layout.features.shape[0]
        self.layout, self._widest = layout, widest
        self.kept = np.stack(
            [mirror.reach(node, layout) for node in nodes] or [np.empty((layout.n_bins,), bool)]
        )[: len(nodes)]
        self.derived = np.full((len(nodes), n_used), -1, np.int64)
        self.widths = np.empty((len(nodes), n_used, 2), np.uint8)
        self.widths[:] = widest.grad, widest.hess
        self.empty = np.zeros_like(self.kept)
        rings = mirror.rings
        if rings is None or not nodes:
            return
        if rings.derived.shape != (n_used,):
            raise OfferRejected(f"rings: expected the derived bins of {n_used} features")
        chosen = rings.derived.astype(np.int64)
        if np.any((chosen >= np.diff(layout.offsets)) & (chosen != NOT_DERIVED)):
            raise OfferRejected("rings: a bin that the feature does not have")
        spread = rings.grad.shape[0] // len(nodes)
        if spread not in (1, n_used) or not (
            rings.grad.shape[0] == rings.hess.shape[0] == len(nodes) * spread
        ):
            raise OfferRejected(f"rings: expected the widths of {len(nodes)} nodes")
        if rings.grad.max() > widest.grad or rings.hess.max() > widest.hess:
            raise OfferRejected("rings: expected no width above what the range proof needs")
        if passing > 1:
            return
        _derive(self.kept, layout.offsets, chosen, self.derived, NOT_DERIVED)
        self.widths[:, :, 1] = rings.hess.reshape(-1, spread)
        if passing:
            return
        self.widths[:, :, 0] = rings.grad.reshape(-1, spread)
        if rings.filled.shape[0]:
            filled = unpacked(rings.filled, int(self.kept.sum()), "bins that are not empty")
            self.empty[self.kept] = ~filled
            self.kept &= ~self.empty

    @property
    def guessed(self) -> bool:
        """Whether a gradient could overflow, or a bin be taken for what it is not."""
        narrow = (self.widths[:, :, 0] < self._widest.grad).any()
        return bool(narrow or self.empty.any() or (self.derived >= 0).any())

    def segments(self, n_outputs: int) -> tuple[NDArray[np.uint8], Integers]:
        """Return the widths and rows of the fields, feature by feature of each node."""
        counts = _kept_counts(self.kept, self.layout.offsets).reshape(-1)
        used = counts > 0
        return np.tile(self.widths.reshape(-1, 2)[used], n_outputs), counts[used]

    def overflow(self, histograms: Integers, missing: Mask, n_silos: int) -> bool:
        """Return whether `n_silos` such histograms could overflow, or a bin is misjudged.

        Parameters
        ----------
        histograms : ndarray of shape (n_nodes, n_bins, width), int64
        missing : ndarray of shape (n_used,), bool
            Features of which this silo has missing values.
        """
        if (self.derived[:, missing] >= 0).any():
            return True
        bits = self.widths[:, :, 0].astype(np.int64)
        limit = np.where(bits > 0, (1 << np.maximum(bits - 1, 0)) - 1, 0) // n_silos
        limit[bits >= self._widest.grad] = np.iinfo(np.int64).max
        return bool(_exceeds(histograms, self.kept, self.empty, self.layout.offsets, limit))


class PackedRings:
    """A level's vector as its fields: of all trees of a round.

    Parameters
    ----------
    width : int
        Numbers a bin.
    first : bool
        Whether the level has the trees' totals.
    passing : int
        0, or 1 or 2 where the level is summed again.
    checked : bool
        Whether the vector begins with the word by which silos check node totals.
    """

    def __init__(
        self,
        mirrors: Sequence[TreeReplica],
        layouts: Sequence[Layout],
        width: int,
        widest: Widest,
        *,
        first: bool,
        passing: int = 0,
        checked: bool = False,
    ) -> None:
        self._width, self._first = width, first
        self.trees = [
            BitWidths(mirror, layout, widest, passing)
            for mirror, layout in zip(mirrors, layouts, strict=True)
        ]
        self.guessed = any(tree.guessed for tree in self.trees)
        self._n_rows = sum(first + tree.kept.size for tree in self.trees)
        self._n_flags = int(self.guessed)
        self._signed = np.arange(width) % 2 == 0
        widths: list[NDArray[np.uint8]] = [np.empty((0, width), np.uint8)]
        counts: list[Integers] = [np.empty(0, np.int64)]
        index: list[Integers] = [np.empty(0, np.int64)]
        head = np.zeros((2, width), np.uint8)
        head[0, ::2], head[0, 1::2], head[1, 0] = widest.grad, widest.hess, MISSING_BITS
        at = 0
        for tree in self.trees:
            if first:
                n_used = tree.layout.features.shape[0]
                flags = self._n_rows + self._n_flags + np.arange(n_used)
                self._n_flags += n_used
                widths.append(head)
                counts.append(np.array([1, n_used]))
                index += [np.array([at]), flags]
                at += 1
            own = tree.segments(width // 2)
            widths.append(own[0])
            counts.append(own[1])
            index.append(np.flatnonzero(tree.kept) + at)
            at += tree.kept.size
        if self.guessed:
            flag = np.zeros((1, width), np.uint8)
            flag[0, 0] = FLAG_BITS
            widths.append(flag)
            counts.append(np.array([1]))
            index.append(np.array([self._n_rows]))
        if checked:
            word = np.zeros((1, width), np.uint8)
            word[0, 0] = FLAG_BITS
            widths.insert(1, word)
            counts.insert(1, np.array([N_LIMBS]))
            index.insert(1, self._n_rows + self._n_flags + np.arange(N_LIMBS))
            self._n_flags += N_LIMBS
        if not index:
            raise OfferRejected("histograms are asked for, and no tree is open")
        self._index = np.concatenate(index)
        self.fields = BitFields(np.concatenate(widths), np.concatenate(counts))

    def _histograms(self, rows: Integers) -> Iterator[tuple[BitWidths, Integers]]:
        """Yield each tree with its part of a vector's rows."""
        at = 0
        for tree in self.trees:
            at += self._first
            part = rows[at : at + tree.kept.size]
            at += tree.kept.size
            yield tree, part.reshape(*tree.kept.shape, self._width)

    def pack(self, own: Integers, missing: Mask, n_silos: int) -> NDArray[np.uint64]:
        """Return a silo's part of the level.

        Parameters
        ----------
        own : ndarray of shape (n_values,), int64
            Its totals and histograms, as :class:`~.round_trees.RoundTrees` reads them.
        missing : ndarray of shape (n_features,), bool
            Features of which it has missing values.
        n_silos : int
            That take part, at most.
        """
        rows = own.reshape(-1, self._width)
        flags = np.zeros((self._n_flags, self._width), np.int64)
        at = int(self.guessed)
        for tree, histograms in self._histograms(rows):
            here = missing[tree.layout.features]
            if self._first:
                raised = at + np.flatnonzero(here)
                flags[raised, 0] = [_residue(MISSING_BITS) for _ in raised]
                at += here.shape[0]
            if self.guessed and not flags[0, 0] and tree.overflow(histograms, here, n_silos):
                flags[0, 0] = _residue(FLAG_BITS)
        return self.fields.pack(rows, self._index, flags)

    def open(
        self, words: NDArray[np.uint64], totals: Sequence[Integers]
    ) -> tuple[Integers, list[NDArray[np.uint16]]] | None:
        """Return a level's sums, with all bins, from those of its fields; None on an overflow.

        Parameters
        ----------
        totals : sequence of ndarray of shape (n_nodes, width), int64
            Of each tree's requested nodes; not used at the first level.

        Returns
        -------
        tuple
            As :meth:`pack` takes them; and at the first level of each tree the bins that can be
            derived from now on, as in :class:`~.steps.NodeRings`.
        """
        rows = np.zeros((self._n_rows, self._width), np.int64)
        flags = np.zeros((self._n_flags, self._width), np.int64)
        self.fields.unpack(words, self._signed, rows, self._index, flags)
        if self.guessed and flags[0, 0]:
            return None
        chosen: list[NDArray[np.uint16]] = []
        at = int(self.guessed)
        for t, (tree, histograms) in enumerate(self._histograms(rows)):
            if self._first:
                n_used = tree.layout.features.shape[0]
                complete = flags[at : at + n_used, 0] == 0
                greatest = np.zeros(len(tree.layout.offsets) - 1, np.int64)
                _greatest_bins(histograms[0], tree.layout.offsets, greatest)
                chosen.append(np.where(complete, greatest, NOT_DERIVED).astype(np.uint16))
                at += n_used
            else:
                _complete(histograms, totals[t], tree.layout.offsets, tree.derived)
        return rows.reshape(-1), chosen


def node_rings(
    mirror: TreeReplica,
    layout: Layout,
    parents: Sequence[tuple[Integers, Integers]],
    derived: NDArray[np.uint16],
    widest: Widest,
    spare: float,
    *,
    filled_bins: bool,
) -> NodeRings:
    """Return the rings of the nodes requested next, from what the coordinator knows.

    Parameters
    ----------
    parents : sequence of (ndarray of shape (n_bins, width), ndarray of shape (width,))
        Of each node the parent's histogram, and the node's own sums.
    derived : ndarray of shape (n_used,), uint16
        As in :class:`~.steps.NodeRings`.
    spare : float
        Bits that a gradient's width has to spare.
    filled_bins : bool
        Whether bins that a parent has empty may stay out.
    """
    n_used = layout.features.shape[0]
    nothing = np.empty(0, np.uint8)
    wide = np.full(len(parents), widest.grad, np.uint8)
    bare = NodeRings(wide, np.full(len(parents), widest.hess, np.uint8), nothing, derived)
    if not parents:
        return bare
    mirror.rings = bare
    tree = BitWidths(mirror, layout, widest, 0)
    greatest = np.zeros((len(parents), n_used, 2), np.int64)
    filled = np.zeros_like(tree.kept)
    for n, (histogram, _) in enumerate(parents):
        _greatest(histogram, tree.kept[n], layout.offsets, greatest[n], filled[n])
    sums = np.stack([own[1::2].max() for _, own in parents])
    greatest[:, :, 1] = np.minimum(greatest[:, :, 1], sums[:, None])
    found = np.empty(greatest.shape, np.int64)
    top_g = 2.0**spare * _expected(*np.moveaxis(greatest.astype(float), 2, 0))
    found[:, :, 0] = np.where(top_g > 0, np.minimum(_bits(top_g) + 1, widest.grad), 0)
    found[:, :, 1] = np.minimum(_bits(greatest[:, :, 1].astype(float)), widest.hess)
    best: tuple[float, NodeRings] | None = None
    whole = np.broadcast_to(found.max(axis=1, keepdims=True), found.shape)
    for widths, per_node in ((found, n_used), (whole[:, :1], 1)):
        grad, hess = (widths[:, :, c].astype(np.uint8).reshape(-1) for c in (0, 1))
        each = np.broadcast_to(widths, found.shape).sum(axis=2)
        for some in (None, filled[tree.kept]) if filled_bins else (None,):
            kept = tree.kept if some is None else filled
            counts = _kept_counts(kept, layout.offsets)
            told = nothing if some is None else packed(some)
            outputs = parents[0][0].shape[1] // 2
            cost = outputs * float((counts * each).sum()) + 8 * (
                told.shape[0] + 2 * len(parents) * per_node
            )
            if best is None or cost < best[0]:
                best = cost, NodeRings(grad, hess, told, derived)
    assert best is not None
    return best[1]


def _expected(grad: NDArray[np.float64], hess: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how large a bin's gradient may be, before bits to spare.

    Where a parent's gradients cancel, its greatest bin says little of a child's. A sum of
    independent gradients grows as the root of its hessian: twice what is usual among the level's
    features is expected of each.
    """
    root = np.sqrt(hess)
    some = (grad > 0) & (hess > 0)
    usual = float(np.median(grad[some] / root[some])) if some.any() else 0.0
    expected: NDArray[np.float64] = np.maximum(grad, 2 * usual * root)
    return expected


def packed(mask: Mask) -> NDArray[np.uint8]:
    """Return bits as they travel: bit ``i % 8`` of byte ``i // 8``."""
    return np.packbits(mask, bitorder="little")


def unpacked(bits: NDArray[np.uint8], n: int, what: str) -> Mask:
    """Return ``n`` bits of :func:`packed`; raises OfferRejected for another number."""
    if bits.shape[0] != -(-n // 8):
        raise OfferRejected(f"rings: expected {n} bits of {what}, received {bits.shape[0]} bytes")
    return np.unpackbits(bits, count=n, bitorder="little").astype(np.bool_)


def _bits(values: NDArray[np.float64]) -> Integers:
    """Return the bits of integers up to ``values``: the least b with ``values < 2**b``."""
    return np.frexp(values)[1].astype(np.int64)


def _residue(bits: int) -> int:
    """Return a random residue of a ring that is not 0, as the signed integer nearest to 0."""
    drawn = 1 + secrets.randbelow((1 << bits) - 1)
    return drawn - (1 << bits) if drawn >> (bits - 1) else drawn


def _kept_counts(kept: Mask, offsets: Integers) -> Integers:
    """Return the number of kept bins of each feature, shape (n_nodes, n_used), int64."""
    out = np.zeros((kept.shape[0], offsets.shape[0] - 1), np.int64)
    _counts(kept, offsets, out)
    return out


@kernel("boosting/search", "count_kept")
def _counts(kept, offsets, out):
    """Add up the kept bins of each feature."""
    for k, (first, stop) in enumerate(pairwise(offsets)):
        out[:, k] += kept[:, first:stop].sum(axis=1)


@kernel("boosting/search", "derive")
def _derive(kept, offsets, chosen, derived, not_derived):
    """Leave out the chosen or the last kept bin of each feature that has one; note which."""
    for k in np.flatnonzero(chosen != not_derived):
        first, stop = offsets[k : k + 2]
        for own, found in zip(kept, derived, strict=True):
            if own[first:stop].any():
                at = first + chosen[k]
                found[k] = at if own[at] else stop - 1 - own[first:stop][::-1].argmax()
                own[found[k]] = False


@kernel("boosting/search", "greatest_bins")
def _greatest_bins(histogram, offsets, out):
    """Write each feature's bin with the greatest hessian over all outputs."""
    totals = histogram[:, 1::2].sum(axis=1)
    for k, (first, stop) in enumerate(pairwise(offsets)):
        if totals[first:stop].max(initial=-1) >= 0:
            out[k] = totals[first:stop].argmax()


@kernel("boosting/search", "complete")
def _complete(histograms, totals, offsets, derived):
    """Fill in the bins that follow from the others."""
    for n, k in zip(*np.nonzero(derived >= 0), strict=True):
        others = histograms[n, offsets[k] : offsets[k + 1]].sum(axis=0)
        histograms[n, derived[n, k]] = totals[n] - others


@kernel("boosting/search", "exceeds")
def _exceeds(histograms, kept, empty, offsets, limit):
    sizes = np.abs(histograms[:, :, ::2])
    above = sizes > np.repeat(limit, np.diff(offsets), axis=1)[:, :, None]
    return bool((kept[:, :, None] & above).any() or sizes[empty].any())


@kernel("boosting/search", "greatest")
def _greatest(histogram, kept, offsets, greatest, filled):
    """Write each feature's greatest ``|g|`` and h over the kept bins, and which are not empty."""
    sizes = np.where(kept[:, None], np.abs(histogram), 0)
    filled |= sizes.any(axis=1)
    for k, (first, stop) in enumerate(pairwise(offsets)):
        for c in range(2):
            greatest[k, c] = sizes[first:stop, c::2].max(initial=greatest[k, c])
