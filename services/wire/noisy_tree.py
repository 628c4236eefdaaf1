"""A tree under differential privacy while it grows, as named arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.dp_tree.parameters import GrowthState, pack_growth, unpack_growth
from hedgerow.services.wire import Codec
from hedgerow.services.wire.arrays import decode_arrays, encode_arrays, require

_TYPES = {
    "state": ("<i8", 1),
    "interval_counts": ("<i4", 1),
    "intervals": ("<i8", 1),
    "edge_counts": ("<i4", 1),
    "edges": ("<f4", 1),
    "feature": ("<i4", 1),
    "left": ("<i4", 1),
    "right": ("<i4", 1),
    "goes_left": ("|b1", 2),
}


def _encode(payload: GrowthState) -> Iterator[tensor_pb2.TensorBlock]:
    return encode_arrays(pack_growth(payload))


def _decode(blocks: Iterable[tensor_pb2.TensorBlock]) -> GrowthState:
    arrays = decode_arrays(blocks)
    found = {name: require(arrays, name, *kind) for name, kind in _TYPES.items()}
    for counts, values in (("interval_counts", "intervals"), ("edge_counts", "edges")):
        fits = len(found[counts]) and (found[counts] >= 0).all()
        if not fits or found[counts].sum(dtype=int) != len(found[values]):
            raise OfferRejected(f"array {values!r}: its length is not the sum of {counts!r}")
    n_nodes = len(found["feature"])
    if len(found["state"]) != 2 or (found["state"] < 0).any():
        raise OfferRejected("array 'state': expected stage and level")
    if any(len(found[name]) != n_nodes for name in ("left", "right", "goes_left")):
        raise OfferRejected("arrays of nodes: expected equal lengths")
    return unpack_growth(found)


CODECS: tuple[Codec[Any], ...] = (Codec(GrowthState, "tensor", _encode, _decode),)
