"""Small packs of one tree, read number by number: for them whole-array operations cost most.

A coordinator reads a pack a silo and round, and that of a stump has forty bytes. What is read here
equals what :mod:`hedgerow.boosting.trees.packing` reads, to the bit; all that is out of the
ordinary (categories, scattered nodes, numbers that are not finite, damage) is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.golomb import EXPONENTIAL, ZEROS

_MOST = 40
"""Most bits of a number that is read here."""
_LOW32 = 0xFFFFFFFF
_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<I")


class ShrinkageTerms(NamedTuple):
    """The numbers of :class:`hedgerow.boosting.trees.packing.Shrinkage`."""

    eta: float
    lambda_: float
    alpha: float


class Unusual(Exception):
    """The pack is for the general reader, which also says what is wrong with it."""


UNUSUAL = (Unusual, IndexError, ValueError, OverflowError, ZeroDivisionError)
"""What :func:`read` raises."""


def read(
    data: bytes,
    at: int,
    n_nodes: int,
    n_pairs: int,
    by: ShrinkageTerms | None,
    *,
    stats: bool,
    defaults: bool,
) -> Tree:
    """Return the tree of a pack, whose header has been read.

    Parameters
    ----------
    at : int
        Where the parameters of columns begin.
    n_nodes, n_pairs : int
        Nodes, and distinct pairs (feature, threshold).
    by : Terms, optional
        Of a pack with gains, covers and weights.
    stats : bool
        Whether to read these; else they are zero.
    defaults : bool
        Whether the pack has default directions.
    """
    n_splits, n_leaves = (n_nodes - 1) // 2, (n_nodes + 1) // 2
    columns = [(n_pairs, 1), (n_pairs, 1), (n_leaves, 3)]
    if by is not None:
        columns += [(n_leaves, 3), *((n, 1) for n in (n_splits, n_leaves, n_splits, n_splits))]
    bits = _Columns(data, at, columns, n_nodes)
    splits = [node for node, bit in enumerate(bits.first) if bit == "0"]
    leaves = [node for node, bit in enumerate(bits.first) if bit == "1"]
    lefts = [1 + 2 * rank for rank in range(n_splits)]
    if len(splits) != n_splits or any(a <= b for a, b in zip(lefts, splits, strict=True)):
        raise Unusual
    directions = bits.plain(n_splits, 1) if defaults else [0] * n_splits
    features, error = bits.golomb(), bits.golomb()
    places = _running(map(_unzigzag, error), _ordinal(1.0))
    pairs = list(zip(_running(features, 0), map(_from_ordinal, places), strict=True))
    index = bits.plain(n_splits, max(n_pairs - 1, 0).bit_length())
    left, right, feature = [-1] * n_nodes, [-1] * n_nodes, [0] * n_nodes
    value, default_left = [0.0] * n_nodes, [False] * n_nodes
    for rank, node in enumerate(splits):
        left[node], right[node] = lefts[rank], lefts[rank] + 1
        feature[node], value[node] = pairs[index[rank]]
        default_left[node] = directions[rank] == 1
    _put(value, leaves, bits.floats())
    gain, cover, weight = ([0.0] * n_nodes for _ in range(3))
    if by is not None and stats:
        _put(cover, leaves, bits.floats())
        covers, own = bits.golomb(), bits.golomb()
        _put(weight, leaves, [_amended(value[n], e) for n, e in zip(leaves, own, strict=True)])
        weights, gains = bits.golomb(), bits.golomb()
        for rank in reversed(range(n_splits)):  # children come before their parents then
            node, below = splits[rank], (lefts[rank], lefts[rank] + 1)
            cover[node] = _amended(_rounded(cover[below[0]] + cover[below[1]]), covers[rank])
            g = [_sums(by, weight[n], value[n], cover[n], left[n] < 0) for n in below]
            predicted = -_soft(g[0] + g[1], by) / (cover[node] + by.lambda_)
            weight[node] = _amended(_rounded(predicted), weights[rank])
            g.append(_sums(by, weight[node], 0.0, cover[node], False))
            score = [_score(by, s, cover[n]) for s, n in zip(g, (*below, node), strict=True)]
            gain[node] = _amended(_rounded(_rounded(score[0] + score[1]) - score[2]), gains[rank])
    whole = np.array([left, right, feature], np.int32)
    real = np.array([value, gain, cover, weight], np.float32)
    default = np.array(default_left, np.bool_)
    return Tree(whole[0], whole[1], whole[2], real[0], default, real[1], real[2], real[3])


class _Columns:
    """Columns as :class:`hedgerow.boosting.trees.golomb.ColumnReader` reads them."""

    def __init__(
        self, data: bytes, at: int, columns: Iterable[tuple[int, int]], n_first: int
    ) -> None:
        heads = []
        for count, size in columns:
            heads.append((count, data[at : at + size]))
            at += size
        self.bits = f"{int.from_bytes(data[at:], 'big'):0{8 * (len(data) - at)}b}"
        self.first, self.at = self.bits[:n_first], n_first
        self.columns = iter([(head, self._unary(count, head[-1])) for count, head in heads])

    def plain(self, n: int, width: int) -> list[int]:
        """Return the next ``n`` integers of ``width`` bits."""
        return [self._binary(width) for _ in range(n)]

    def golomb(self) -> list[int]:
        """Return the next column of integers."""
        head, counts = next(self.columns)
        return self._values(head[-1], counts)

    def floats(self) -> list[float]:
        """Return the next column of float32."""
        (top, zeros, parameter), counts = next(self.columns)
        if zeros > 23:
            raise Unusual
        return [_float(top, code << zeros) for code in self._values(parameter, counts)]

    def _unary(self, count: int, parameter: int) -> list[int]:
        if parameter == ZEROS:
            return [-1] * count
        found = []
        for _ in range(count):
            end = self.bits.index("1", self.at)
            found.append(end - self.at)
            self.at = end + 1
        return found

    def _values(self, parameter: int, counts: Sequence[int]) -> list[int]:
        if parameter == ZEROS:
            return [0] * len(counts)
        exponential, k = divmod(parameter, EXPONENTIAL)
        if exponential > 1 or k > _MOST or any(count > _MOST - k for count in counts):
            raise Unusual
        if exponential:
            return [(((1 << n) - 1) << k) + self._binary(n + k) for n in counts]
        return [(n << k) + self._binary(k) for n in counts]

    def _binary(self, width: int) -> int:
        if width == 0:
            return 0
        end = self.at + width
        if end > len(self.bits):
            raise Unusual
        found, self.at = int(self.bits[self.at : end], 2), end
        return found


def _put(column: list[float], nodes: Sequence[int], values: Sequence[float]) -> None:
    for node, value in zip(nodes, values, strict=True):
        column[node] = value


def _running(steps: Iterable[int], total: int) -> list[int]:
    found = []
    for step in steps:
        total += step
        found.append(total)
    return found


def _unzigzag(v: int) -> int:
    return v >> 1 ^ -(v & 1)


def _float(top: int, code: int) -> float:
    exponent = top - (code >> 24)
    if not 0 <= exponent < 255:
        raise Unusual
    return _of_bits((code >> 23 & 1) << 31 | exponent << 23 | code & 0x7FFFFF)


def _of_bits(bits: int) -> float:
    """Return a float32 by its bits; those that are not finite are for others."""
    if bits >> 23 & 0xFF == 0xFF:
        raise Unusual
    found: float = _FLOAT.unpack(_BITS.pack(bits))[0]
    return found


def _ordinal(value: float) -> int:
    bits: int = _BITS.unpack(_FLOAT.pack(value))[0]
    return _LOW32 - bits if bits >> 31 else bits + (1 << 31)


def _from_ordinal(position: int) -> float:
    place = position & _LOW32
    return _of_bits(place - (1 << 31) if place >> 31 else _LOW32 - place)


def _amended(predicted: float, error: int) -> float:
    return _from_ordinal(_ordinal(predicted) + _unzigzag(error))


def _rounded(value: float) -> float:
    """Return the nearest float32; raises OverflowError beyond them."""
    found: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    if found - found != 0.0:
        raise Unusual
    return found


def _sums(by: ShrinkageTerms, weight: float, value: float, cover: float, is_leaf: bool) -> float:
    own = value / by.eta if is_leaf else weight
    return -own * (cover + by.lambda_) - by.alpha * ((own > 0) - (own < 0))


def _soft(g: float, by: ShrinkageTerms) -> float:
    return ((g > 0) - (g < 0)) * max(abs(g) - by.alpha, 0.0)


def _score(by: ShrinkageTerms, g: float, cover: float) -> float:
    soft = _soft(g, by)
    return _rounded(soft * soft / (cover + by.lambda_))
