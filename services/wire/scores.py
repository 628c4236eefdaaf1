"""Metrics in their additive form, and whether training goes on.

Most sums are counts, and most counts are zero. The format of a vector is in docs/wire.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hedgerow.api.federation.v1 import score_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.bagging.steps import ScoreSums
from hedgerow.boosting.trees.golomb import ColumnReader, ColumnWriter
from hedgerow.services.wire import Codec

MAX_VALUES = 1 << 20
"""Longest vector that a peer may send."""

_HEAD = struct.Struct("<II")
_LARGEST_WHOLE = float(1 << 40)
Floats = NDArray[np.float64]
Parts = Iterator[score_pb2.ScorePart]


def pack_sums(values: Floats) -> bytes:
    """Return a vector as bytes; :func:`unpack_sums` gives it back to the bit."""
    if len(values) == 0:
        return b""
    whole = (values >= 0) & (values < _LARGEST_WHOLE) & (values == np.floor(values))
    whole &= ~np.signbit(values)
    others = np.flatnonzero(~whole)
    head = _HEAD.pack(len(values), len(others)) + values[others].astype("<f8").tobytes()
    out = ColumnWriter(bytearray(head), np.zeros(0, np.bool_))
    out.golomb(np.diff(others, prepend=-1) - 1)
    out.golomb(values[whole])
    return out.done()


def unpack_sums(data: bytes) -> Floats:
    """Return the vector of :func:`pack_sums`; anything else is an :class:`OfferRejected`."""
    if not data:
        return np.zeros(0)
    if len(data) < _HEAD.size:
        raise OfferRejected("sums of scores end too early")
    n, n_others = _HEAD.unpack_from(data)
    end = _HEAD.size + 8 * n_others
    if n > MAX_VALUES or n_others > n or len(data) < end:
        raise OfferRejected("sums of scores with damaged lengths")
    read = ColumnReader(data, end, [(n_others, False), (n - n_others, False)], 0)
    places = np.cumsum(read.golomb() + 1) - 1
    if n_others and not 0 <= places.min() <= places.max() < n:
        raise OfferRejected("sums of scores with values out of place")
    whole = np.ones(n, np.bool_)
    whole[places] = False
    if np.count_nonzero(whole) != n - n_others:
        raise OfferRejected("sums of scores with values out of place")
    values = np.empty(n)
    values[whole] = read.golomb()
    values[places] = np.frombuffer(data, "<f8", n_others, _HEAD.size)
    return values


def _encode_sums(payload: ScoreSums) -> Parts:
    sums = score_pb2.ScoreSums(train=pack_sums(payload.train), valid=pack_sums(payload.valid))
    yield score_pb2.ScorePart(sums=sums)


def _decode_sums(messages: Iterable[score_pb2.ScorePart]) -> ScoreSums:
    parts = list(messages)
    if len(parts) != 1 or parts[0].WhichOneof("part") != "sums":
        raise OfferRejected(f"expected one part with sums, received {len(parts)} parts")
    sums = parts[0].sums
    return ScoreSums(unpack_sums(sums.train), unpack_sums(sums.valid))


CODECS = (Codec(ScoreSums, "scores", _encode_sums, _decode_sums),)
