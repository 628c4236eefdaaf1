"""Packed trees, the form in which trees travel: few bytes, and exact to the bit.

Numbers that follow from others are predicted, and only the error is stored. With
``G = -w (H + lambda)`` of both children, a split's cover, weight and gain are known up to the
rounding of float32, so that they cost about six bits instead of 96:

- cover of a split: the children's covers added up;
- weight of a split: ``-S(G_left + G_right) / (H + lambda)``;
- gain of a split: ``V(left) + V(right) - V(split)`` with ``V = S(G)^2 / (H + lambda)``;
- weight of a leaf: its value (XGBoost stores the shrunken one).

The predictions need the shrinkage, ``lambda`` and ``alpha`` of the training; wrong ones cost bytes,
never correctness. An error is the difference of two float32 bit patterns in numeric order.

Layout (docs/wire.md): a header; a few bytes a column; one bit a node (split or leaf); the columns.
Splits point into a table of the distinct pairs (feature, threshold).

References
----------
P. Lindstrom and M. Isenburg, "Fast and efficient compression of floating-point data", 2006, for
residuals of ordered bit patterns; :mod:`hedgerow.boosting.trees.golomb` for the codes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.trees import small_packs
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.golomb import (
    ColumnReader,
    ColumnWriter,
    float_bits,
    from_ordinal,
    ordinal,
    unzigzag,
    zigzag,
)

MAX_TREES = 1 << 16
"""Most trees of one pack."""

MAX_NODES = 1 << 24
"""Most nodes of one pack, all trees together."""
SMALL_BYTES = 512
"""Largest pack that is remembered: reading one costs the same at any size, and a coordinator
reads each when it arrives and again for the result."""

_FORMAT = 1
_STATS, _DEFAULTS, _CATEGORIES, _SCATTERED = 1, 2, 4, 8  # flags
_LOW32 = np.int64(0xFFFFFFFF)

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """The parameters that turn gradient sums into leaf values."""

    eta: float = 1.0
    """Leaf value over weight: the learning rate, divided by ``num_parallel_tree``."""
    lambda_: float = 1.0
    alpha: float = 0.0
    """``lambda_`` and ``alpha``: l2 and L1 terms."""

    def sums(self, weight: F64, cover: F64) -> F64:
        """Return the gradient sum behind a weight."""
        return -weight * (cover + self.lambda_) - self.alpha * np.sign(weight)

    def weight(self, g: F64, cover: F64) -> F64:
        """Return the weight of a gradient sum."""
        return -self._soft(g) / (cover + self.lambda_)

    def score(self, g: F64, cover: F64) -> F32:
        """Return ``V`` as float32, as XGBoost rounds it."""
        return (self._soft(g) ** 2 / (cover + self.lambda_)).astype(np.float32)

    def _soft(self, g: F64) -> F64:
        return np.sign(g) * np.maximum(np.abs(g) - self.alpha, 0.0)


class _Forest:
    """The nodes of all trees in one set of columns; children are positions in it."""

    def __init__(self, sizes: I64, left: I64, right: I64) -> None:
        self.starts = np.cumsum(sizes) - sizes
        self.left, self.right = left, right
        self.leaf = left < 0
        self.splits = np.flatnonzero(~self.leaf)
        self.leaves = np.flatnonzero(self.leaf)
        self.value = np.zeros(len(left), np.float32)
        self.cover = np.zeros(len(left), np.float32)
        self.weight = np.zeros(len(left), np.float32)

    def expected_left(self, n_splits: I64) -> I64:
        """Left child of each split where nodes are numbered in order of their parents."""
        before = np.repeat(np.cumsum(n_splits) - n_splits, n_splits)
        rank = np.arange(len(before)) - before
        return np.repeat(self.starts, n_splits) + 1 + 2 * rank

    def sums(self, nodes: I64, by: Shrinkage) -> tuple[F64, F64]:
        """Return gradient and hessian sums of nodes from their weights and covers."""
        weight = self.weight[nodes].astype(np.float64)
        cover = self.cover[nodes].astype(np.float64)
        shrunken = self.value[nodes].astype(np.float64) / by.eta
        return by.sums(np.where(self.leaf[nodes], shrunken, weight), cover), cover

    def predict_cover(self, nodes: I64) -> F32:
        """Return covers of splits from those of their children."""
        left = self.cover[self.left[nodes]].astype(np.float64)
        return _finite((left + self.cover[self.right[nodes]]).astype(np.float32))

    def predict_weight(self, nodes: I64, by: Shrinkage) -> F32:
        """Return weights of splits whose covers and children are known."""
        g_left, _ = self.sums(self.left[nodes], by)
        g_right, _ = self.sums(self.right[nodes], by)
        cover = self.cover[nodes].astype(np.float64)
        return _finite(by.weight(g_left + g_right, cover).astype(np.float32))

    def predict_gain(self, by: Shrinkage) -> F32:
        """Return gains of all splits once all else is known."""
        parts = [
            by.score(*self.sums(nodes, by))
            for nodes in (self.left[self.splits], self.right[self.splits], self.splits)
        ]
        return _finite(parts[0] + parts[1] - parts[2])

    def rising(self) -> Iterator[I64]:
        """Yield splits level by level, children always before their parents."""
        levels = []
        frontier = self.starts[~self.leaf[self.starts]]
        while len(frontier):
            levels.append(frontier)
            below = np.concatenate([self.left[frontier], self.right[frontier]])
            frontier = below[~self.leaf[below]]
        yield from reversed(levels)


def pack(trees: Sequence[Tree], shrinkage: Shrinkage | None = None) -> bytes:
    """Return the bytes of some trees; :func:`unpack` gives them back to the bit.

    Parameters
    ----------
    trees : sequence of Tree
        Children after their parents; leaves with feature 0, default False and gain 0, as
        :func:`hedgerow.boosting.trees.loading.trees_of` gives them.
    shrinkage : Shrinkage, optional
        Of the training; a good guess makes fewer bytes.

    Raises
    ------
    ValueError
        A tree that is not in this form.
    """
    if not trees:
        return b""
    by = shrinkage or Shrinkage()
    by = Shrinkage(*(float(np.float32(v)) for v in (by.eta, by.lambda_, by.alpha)))
    sizes = np.array([tree.n_nodes for tree in trees], np.int64)
    shift = np.repeat(np.cumsum(sizes) - sizes, sizes)
    left, right = (
        np.where(child < 0, -1, child + shift)
        for child in (_joined(trees, "left"), _joined(trees, "right"))
    )
    forest = _Forest(sizes, left, right)
    splits, leaves = forest.splits, forest.leaves
    feature, default = _joined(trees, "feature"), _joined(trees, "default_left")
    gain = _joined(trees, "gain")
    forest.value, forest.cover = _joined(trees, "threshold"), _joined(trees, "cover")
    forest.weight = _joined(trees, "weight")
    if feature[leaves].any() or default[leaves].any() or gain[leaves].any():
        raise ValueError("expected leaves without feature, default direction and gain")
    n_splits = (sizes - 1) // 2
    if len(splits) != n_splits.sum() or (right[splits] < 0).any():
        raise ValueError("expected nodes that form trees")

    lefts = left[splits] - forest.expected_left(n_splits)
    rights = right[splits] - left[splits] - 1
    codes = [codes for tree in trees for _, codes in tree.categories]
    stats = bool(
        float_bits(gain).any() or float_bits(forest.cover).any() or float_bits(forest.weight).any()
    )
    flags = (
        _STATS * stats
        | _DEFAULTS * bool(default.any())
        | _CATEGORIES * bool(codes)
        | _SCATTERED * bool(lefts.any() or rights.any())
    )
    pairs = feature[splits].astype(np.int64) << 32 | ordinal(forest.value[splits])
    table, index = np.unique(pairs, return_inverse=True)

    head = bytearray([_FORMAT, flags])
    _put(head, len(trees), len(table), len(codes), sum(len(c) for c in codes))
    for tree in trees:
        _put(head, tree.n_nodes, tree.group)
    if stats:
        head += struct.pack("<fff", by.eta, by.lambda_, by.alpha)
    out = ColumnWriter(head, forest.leaf)
    if flags & _SCATTERED:
        out.golomb(zigzag(lefts))
        out.golomb(zigzag(rights))
    if flags & _DEFAULTS:
        out.plain(default[splits], 1)
    out.golomb(np.diff(table >> 32, prepend=0))
    out.golomb(zigzag(np.diff(table & _LOW32, prepend=_ORIGIN)))
    out.plain(index, _index_width(len(table)))
    if codes:
        nodes = [
            start + node
            for start, tree in zip(forest.starts, trees, strict=True)
            for node, _ in tree.categories
        ]
        out.plain(np.isin(splits, nodes), 1)
        out.golomb(np.array([len(c) for c in codes]))
        gaps = np.concatenate([np.diff(c, prepend=0) for c in codes])
        if (gaps < 0).any():
            raise ValueError("expected categories in rising order")
        out.golomb(gaps)
    out.floats(forest.value[leaves])
    if stats:
        with np.errstate(all="ignore"):
            weights = forest.predict_weight(splits, by)
            gains = forest.predict_gain(by)
        out.floats(forest.cover[leaves])
        out.residual(forest.cover[splits], forest.predict_cover(splits))
        out.residual(forest.weight[leaves], forest.value[leaves])
        out.residual(forest.weight[splits], weights)
        out.residual(gain[splits], gains)
    return out.done()


def unpack(data: bytes, *, stats: bool = True, max_nodes: int = MAX_NODES) -> list[Tree]:
    """Return the trees that :func:`pack` wrote.

    Structure is not checked beyond what reading needs. Trees of another party are read by
    :func:`hedgerow.boosting.trees.limits.read_upload`.

    Parameters
    ----------
    data : bytes
        From any party, trusted or not.
    stats : bool
        False leaves gain, cover and weight zero, in a fraction of the time.
    max_nodes : int
        Most nodes of all trees.

    Raises
    ------
    OfferRejected
        Bytes that are no pack.
    """
    if not data:
        return []
    try:
        if len(data) > SMALL_BYTES:
            return _unpack(data, stats, max_nodes)
        return list(_unpack_small(data, stats, max_nodes))
    except (IndexError, struct.error, OverflowError) as error:
        raise OfferRejected("packed trees end too early or are damaged") from error


@lru_cache(maxsize=1 << 14)
def _unpack_small(data: bytes, stats: bool, max_nodes: int) -> tuple[Tree, ...]:
    return tuple(_unpack(data, stats, max_nodes))


def _unpack(data: bytes, stats: bool, max_nodes: int) -> list[Tree]:
    if len(data) < 2 or data[0] != _FORMAT:
        raise OfferRejected("packed trees of an unknown format")
    flags = data[1]
    at, (n_trees, n_pairs, n_sets, n_codes) = _get(data, 2, 4)
    if n_trees > MAX_TREES:
        raise OfferRejected(f"expected at most {MAX_TREES} packed trees, received {n_trees}")
    at, numbers = _get(data, at, 2 * n_trees)
    sizes = np.array(numbers[::2], np.int64)
    groups = numbers[1::2]
    n_nodes = sum(numbers[::2])
    if n_nodes > min(max_nodes, 8 * len(data)) or any(size % 2 == 0 for size in numbers[::2]):
        raise OfferRejected("packed trees have an impossible number of nodes")
    splits_of = (sizes - 1) // 2
    n_splits = int(splits_of.sum())
    n_leaves = n_nodes - n_splits
    if n_pairs > n_splits or n_sets > n_splits or n_codes > 8 * len(data):
        raise OfferRejected("packed trees with more splits than nodes")
    by = Shrinkage()
    if flags & _STATS:
        by = Shrinkage(*struct.unpack_from("<fff", data, at))
        at += 12
    plain = n_trees == 1 and len(data) <= SMALL_BYTES and not flags & (_CATEGORIES | _SCATTERED)
    if plain and flags < 2 * _SCATTERED:
        terms = small_packs.ShrinkageTerms(by.eta, by.lambda_, by.alpha) if flags & _STATS else None
        with suppress(*small_packs.UNUSUAL):
            tree = small_packs.read(
                data, at, n_nodes, n_pairs, terms, stats=stats, defaults=bool(flags & _DEFAULTS)
            )
            return [replace(tree, group=groups[0])]
    columns = [(n_splits, False)] * 2 if flags & _SCATTERED else []
    columns += [(n_pairs, False)] * 2
    columns += [(n_sets, False), (n_codes, False)] if flags & _CATEGORIES else []
    columns += [(n_leaves, True)]
    if flags & _STATS:
        columns += [(n_leaves, True), (n_splits, False), (n_leaves, False)]
        columns += [(n_splits, False)] * 2
    read = ColumnReader(data, at, columns, n_nodes)

    leaf = read.first
    if np.count_nonzero(leaf) != n_leaves:
        raise OfferRejected("packed trees with more splits than nodes")
    forest = _Forest(sizes, np.where(leaf, -1, 0).astype(np.int64), np.full(n_nodes, -1, np.int64))
    splits, leaves = forest.splits, forest.leaves
    lefts = forest.expected_left(splits_of)
    rights = lefts + 1
    if flags & _SCATTERED:
        lefts = lefts + unzigzag(read.golomb())
        rights = lefts + 1 + unzigzag(read.golomb())
    forest.left[splits], forest.right[splits] = lefts, rights
    default = np.zeros(n_nodes, np.bool_)
    if flags & _DEFAULTS:
        default[splits] = read.plain(n_splits, 1).astype(np.bool_)
    features = np.cumsum(read.golomb())
    thresholds = np.cumsum(np.concatenate([_ORIGIN[None], unzigzag(read.golomb())]))[1:]
    index = read.plain(n_splits, _index_width(n_pairs))
    if n_splits and int(index.max()) >= n_pairs:
        raise OfferRejected("packed trees with a split outside their table")
    feature = np.zeros(n_nodes, np.int32)
    feature[splits] = np.minimum(features, np.iinfo(np.int32).max)[index]
    forest.value[splits] = from_ordinal(thresholds)[index]
    categories: list[tuple[int, NDArray[np.int32]]] = []
    if flags & _CATEGORIES:
        categories = _read_categories(read, splits, n_sets, n_codes)
    forest.value[leaves] = read.floats()
    gain = np.zeros(n_nodes, np.float32)
    if flags & _STATS and stats:
        _check_children(forest, sizes)
        with np.errstate(all="ignore"):
            _read_stats(read, forest, gain, by)
    return _parted(forest, sizes, groups, feature, default, gain, categories)


def _read_categories(
    read: ColumnReader, splits: NDArray[np.intp], n_sets: int, n_codes: int
) -> list[tuple[int, NDArray[np.int32]]]:
    nodes = splits[read.plain(len(splits), 1).astype(np.bool_)]
    lengths, gaps = read.golomb(), read.golomb()
    if len(nodes) != n_sets or int(lengths.sum()) != n_codes or (gaps > 1 << 24).any():
        raise OfferRejected("packed trees with damaged categories")
    ends = np.cumsum(lengths)
    return [
        (int(node), np.cumsum(gaps[end - length : end]).astype(np.int32))
        for node, length, end in zip(nodes, lengths, ends, strict=True)
    ]


def _check_children(forest: _Forest, sizes: I64) -> None:
    """Refuse children outside their tree or not after their parent; levels need an end."""
    splits = forest.splits
    end = np.repeat(forest.starts + sizes, sizes)[splits]
    for child in (forest.left[splits], forest.right[splits]):
        if ((child <= splits) | (child >= end)).any():
            raise OfferRejected("packed trees with a child out of place")
    children = np.concatenate([forest.left[splits], forest.right[splits]])
    if (np.bincount(children, minlength=len(forest.left)) > 1).any():
        raise OfferRejected("packed trees with a node of two parents")


def _read_stats(read: ColumnReader, forest: _Forest, gain: F32, by: Shrinkage) -> None:
    splits, leaves = forest.splits, forest.leaves
    forest.cover[leaves] = read.floats()
    covers = np.zeros(len(forest.left), np.int64)
    weights = np.zeros(len(forest.left), np.int64)
    covers[splits] = unzigzag(read.golomb())
    forest.weight[leaves] = _amend(forest.value[leaves], unzigzag(read.golomb()))
    weights[splits] = unzigzag(read.golomb())
    for nodes in forest.rising():
        forest.cover[nodes] = _amend(forest.predict_cover(nodes), covers[nodes])
        forest.weight[nodes] = _amend(forest.predict_weight(nodes, by), weights[nodes])
    gain[splits] = _amend(forest.predict_gain(by), unzigzag(read.golomb()))


def _parted(
    forest: _Forest,
    sizes: I64,
    groups: Sequence[int],
    feature: NDArray[np.int32],
    default: NDArray[np.bool_],
    gain: F32,
    categories: Sequence[tuple[int, NDArray[np.int32]]],
) -> list[Tree]:
    """Cut the columns into trees; children that are out of range stay so."""
    shift = np.repeat(forest.starts, sizes)
    limit = np.iinfo(np.int32).max
    left, right = (
        np.where(forest.leaf, -1, np.clip(child - shift, -limit, limit)).astype(np.int32)
        for child in (forest.left, forest.right)
    )
    trees = []
    at = 0
    for start, size, group in zip(forest.starts.tolist(), sizes.tolist(), groups, strict=True):
        cut = slice(start, start + size)
        mine = []
        while at < len(categories) and categories[at][0] < start + size:
            mine.append((categories[at][0] - start, categories[at][1]))
            at += 1
        trees.append(
            Tree(
                left=left[cut],
                right=right[cut],
                feature=feature[cut],
                threshold=forest.value[cut],
                default_left=default[cut],
                gain=gain[cut],
                cover=forest.cover[cut],
                weight=forest.weight[cut],
                categories=tuple(mine),
                group=group,
            )
        )
    return trees


def _index_width(n_pairs: int) -> int:
    return max(n_pairs - 1, 0).bit_length()


def _joined(trees: Sequence[Tree], column: str) -> NDArray[Any]:
    return np.concatenate([getattr(tree, column) for tree in trees])


_ORIGIN = ordinal(np.ones(1, np.float32))[0]


def _finite(predicted: F32) -> F32:
    """Replace NaN, whose bits differ between machines, and infinities."""
    return np.where(np.isfinite(predicted), predicted, np.float32(0))


def _amend(predicted: F32, error: I64) -> F32:
    return from_ordinal(ordinal(predicted) + error)


def _put(out: bytearray, *numbers: int) -> None:
    """Append LEB128 integers."""
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)


def _get(data: bytes, at: int, n: int) -> tuple[int, list[int]]:
    """Read ``n`` LEB128 integers of at most 35 bits."""
    numbers = []
    for _ in range(n):
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise OfferRejected("packed trees with a number that is too long")
        numbers.append(number)
    return at, numbers
