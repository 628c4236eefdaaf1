"""Payloads of the secure sums; vectors travel packed, without a message object in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

from hedgerow.api.federation.v1 import masking_pb2 as pb
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import (
    KeyRoster,
    MaskedVector,
    PlainVector,
    SealedShares,
    SumTotal,
)
from hedgerow.crypto.masking.fixed_point import RINGS, pack, unpack
from hedgerow.crypto.masking.masks import Residues
from hedgerow.services.wire import Codec, derived
from hedgerow.services.wire.bulk import LongBytes

PIECE_BYTES = 1 << 20
"""Most bytes of values in one part."""

MAX_VECTOR_BYTES = 1 << 31
"""Longest packed vector that a peer may announce."""

HEAD_BYTES = 1 << 14
"""Longest packed vector that travels within its head; longer ones are cheaper in pieces."""

MORE: int = pb.MaskingPart.DESCRIPTOR.fields_by_name["more"].number

Received = Iterable[Any]


def _vector(field: str, payload: type[Any]) -> Codec[Any]:
    """Return the codec of a payload with a vector, whose message has its other fields' names."""
    message = getattr(pb, payload.__name__)
    names = [each.name for each in fields(payload) if each.name not in ("values", "ring_bits")]

    def encode(given: Any) -> Iterator[pb.MaskingPart | LongBytes]:
        packed = pack(given.values, given.ring_bits)
        whole = packed.tobytes() if len(packed) <= HEAD_BYTES else b""
        vector = pb.ResidueVector(ring_bits=given.ring_bits, n_values=len(given.values), data=whole)
        others = {name: getattr(given, name) for name in names}
        yield pb.MaskingPart(**{field: message(vector=vector, **others)})
        for start in range(len(whole), len(packed), PIECE_BYTES):
            yield LongBytes("more", MORE, packed[start : start + PIECE_BYTES])

    def decode(messages: Received) -> Any:
        values, ring_bits, head = _decode_vector(field, messages)
        others = (getattr(head, name) for name in names)
        return payload(
            values, ring_bits, *(one if isinstance(one, bytes) else tuple(one) for one in others)
        )

    return Codec(payload, "masking", encode, decode)


def _decode_vector(field: str, messages: Received) -> tuple[Residues, int, Any]:
    """Return a vector, its ring and its head, whose own data is not used further."""
    head: Any = None
    pieces: list[bytes | memoryview] = []
    expected = received = 0
    for part in messages:
        kind = part.WhichOneof("part")
        if kind != (field if head is None else "more"):
            raise OfferRejected(f"expected a {field} vector and its pieces, received {kind}")
        if head is None:
            head = getattr(part, field)
            vector = head.vector
            if vector.ring_bits not in RINGS:
                raise OfferRejected(f"expected a ring of {RINGS} bits, received {vector.ring_bits}")
            expected = vector.n_values * (vector.ring_bits // 8)
            if expected > MAX_VECTOR_BYTES:
                raise OfferRejected(f"a vector of {vector.n_values} residues is too long")
            pieces.append(vector.data)
        else:
            pieces.append(part.more)
        received += len(pieces[-1])
        if received > expected:
            raise OfferRejected(f"expected {expected} bytes of residues, received more")
    if head is None or received != expected:
        raise OfferRejected(f"expected {expected} bytes of residues, received {received}")
    ring_bits = head.vector.ring_bits
    return unpack(pieces, head.vector.n_values, ring_bits), ring_bits, head


# --- values by silo, of which a large federation has more than a frame takes ---


def _by_silo(codec: Codec[Any], name: str, size: Callable[[Any], int]) -> Codec[Any]:
    """Return a codec that cuts the mapping ``name`` into payloads of at most about 1 MiB."""

    def encode(payload: Any) -> Iterator[Any]:
        piece: dict[Silo, Any] = {}
        n_bytes = 0
        for silo, value in getattr(payload, name).items():
            if n_bytes and n_bytes + size(value) > PIECE_BYTES:
                yield from codec.encode(codec.payload(piece))
                piece, n_bytes = {}, 0
            piece[silo] = value
            n_bytes += size(value) + len(silo)
        yield from codec.encode(codec.payload(piece))

    def decode(messages: Received) -> Any:
        joined: dict[Silo, Any] = {}
        empty = True
        for message in messages:
            piece = getattr(codec.decode([message]), name)
            if joined.keys() & piece.keys():
                raise OfferRejected(f"{name}: received two values of one silo")
            joined.update(piece)
            empty = False
        if empty:
            raise OfferRejected(f"expected {name}, received nothing")
        return codec.payload(joined)

    return Codec(codec.payload, codec.frame, encode, decode)


CODECS: tuple[Codec[Any], ...] = (
    _by_silo(
        derived(KeyRoster),
        "offers",
        lambda key: len(key.certificate) + 2 * len(key.signature) + len(key.kem_key),
    ),
    _by_silo(
        derived(SealedShares),
        "boxes",
        lambda dealt: len(dealt.box) + len(dealt.commitments) + len(dealt.ciphertext),
    ),
    _vector("plain", PlainVector),
    _vector("masked", MaskedVector),
    _vector("total", SumTotal),
)
