"""Payloads of the secure sums: keys, boxes, residue vectors, sets, and what is revealed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hedgerow.api.federation.v1 import masking_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import (
    KeyOffer,
    KeyRoster,
    MaskedVector,
    PairSeeds,
    PlainVector,
    PresentSet,
    SealedShares,
    SetSignature,
    Total,
    Unmasking,
)
from hedgerow.crypto.fixed_point import RINGS, pack, unpack
from hedgerow.crypto.masking import Residues
from hedgerow.services.wire import Codec
from hedgerow.services.wire.bulk import LongBytes

PIECE_BYTES = 1 << 20
"""Most bytes of values in one frame."""

MAX_VECTOR_BYTES = 1 << 31
"""Longest packed vector that a peer may announce."""

MAX_SILOS = 1 << 16
"""Most silos that a payload may name."""

HEAD_BYTES = 1 << 14
"""Longest packed vector that travels within its head; longer ones are cheaper in pieces."""

MORE: int = masking_pb2.MaskingPart.DESCRIPTOR.fields_by_name["more"].number

Parts = Iterator[masking_pb2.MaskingPart | LongBytes]
Received = Iterable[masking_pb2.MaskingPart]


def _encode_key(payload: KeyOffer) -> Parts:
    yield _key_part("", payload)


def _key_part(silo: str, offer: KeyOffer) -> masking_pb2.MaskingPart:
    return masking_pb2.MaskingPart(
        key=masking_pb2.MaskingKey(
            silo=silo,
            public_key=offer.public_key,
            certificate=offer.certificate,
            signature=offer.signature,
        )
    )


def _key_offer(key: masking_pb2.MaskingKey) -> KeyOffer:
    if len(key.public_key) != 32:
        raise OfferRejected(f"expected a public key of 32 bytes, {len(key.public_key)} came")
    return KeyOffer(key.public_key, key.certificate, key.signature)


def _decode_key(messages: Received) -> KeyOffer:
    (part,) = _parts(messages, "key", most=1)
    return _key_offer(part.key)


def _encode_roster(payload: KeyRoster) -> Parts:
    for silo, offer in payload.offers.items():
        yield _key_part(silo, offer)


def _decode_roster(messages: Received) -> KeyRoster:
    offers: dict[Silo, KeyOffer] = {}
    for part in _parts(messages, "key"):
        if not part.key.silo or part.key.silo in offers:
            raise OfferRejected("a key without its silo, or of a silo that came before")
        offers[Silo(part.key.silo)] = _key_offer(part.key)
    return KeyRoster(offers)


def _encode_values(values: Mapping[Silo, bytes]) -> Parts:
    message = masking_pb2.SiloValues()
    size = 0
    for silo, value in values.items():
        if size and size + len(value) > PIECE_BYTES:
            yield masking_pb2.MaskingPart(values=message)
            message, size = masking_pb2.SiloValues(), 0
        message.values.add(silo=silo, value=value)
        size += len(value) + len(silo)
    yield masking_pb2.MaskingPart(values=message)


def _values(messages: Iterable[masking_pb2.SiloValues]) -> dict[Silo, bytes]:
    values: dict[Silo, bytes] = {}
    for message in messages:
        for item in message.values:
            if not item.silo or item.silo in values:
                raise OfferRejected("a value without its silo, or of a silo that came before")
            values[Silo(item.silo)] = item.value
        if len(values) > MAX_SILOS:
            raise OfferRejected(f"values of more than {MAX_SILOS} silos")
    return values


def _decode_values(messages: Received) -> dict[Silo, bytes]:
    return _values(part.values for part in _parts(messages, "values"))


def _encode_vector(
    values: Residues,
    ring_bits: int,
    commitment: bytes = b"",
    signature: bytes = b"",
    present: tuple[Silo, ...] = (),
) -> Parts:
    packed = pack(values, ring_bits)
    whole = packed.tobytes() if len(packed) <= HEAD_BYTES else b""
    head = masking_pb2.ResidueVector(
        ring_bits=ring_bits,
        n_values=len(values),
        data=whole,
        commitment=commitment,
        signature=signature,
        present=present,
    )
    yield masking_pb2.MaskingPart(vector=head)
    for start in range(len(whole), len(packed), PIECE_BYTES):
        yield LongBytes("more", MORE, packed[start : start + PIECE_BYTES])


def _decode_vector(messages: Received) -> tuple[Residues, masking_pb2.ResidueVector]:
    """Return a vector and its head, whose own data is not used further."""
    head: masking_pb2.ResidueVector | None = None
    pieces: list[bytes | memoryview] = []
    expected = received = 0
    for part in messages:
        kind = part.WhichOneof("part")
        if head is None and kind == "vector":
            head = part.vector
            if head.ring_bits not in RINGS:
                raise OfferRejected(f"a ring of {head.ring_bits} bits; known are {RINGS}")
            expected = head.n_values * (head.ring_bits // 8)
            if expected > MAX_VECTOR_BYTES:
                raise OfferRejected(f"a vector of {head.n_values} residues is too long")
            pieces.append(head.data)
        elif head is not None and kind == "more":
            pieces.append(part.more)
        else:
            raise OfferRejected(f"expected a vector and its pieces, {kind} came")
        received += len(pieces[-1])
        if received > expected:
            raise OfferRejected(f"expected {expected} bytes of residues, more came")
    if head is None or received != expected:
        raise OfferRejected(f"expected {expected} bytes of residues, {received} came")
    return unpack(pieces, head.n_values, head.ring_bits), head


def _encode_plain(payload: PlainVector) -> Parts:
    return _encode_vector(payload.values, payload.ring_bits)


def _decode_plain(messages: Received) -> PlainVector:
    values, head = _decode_vector(messages)
    return PlainVector(values, head.ring_bits)


def _encode_masked(payload: MaskedVector) -> Parts:
    return _encode_vector(
        payload.values, payload.ring_bits, payload.commitment, payload.signature, payload.bound
    )


def _decode_masked(messages: Received) -> MaskedVector:
    values, head = _decode_vector(messages)
    bound = tuple(Silo(name) for name in head.present)
    return MaskedVector(values, head.ring_bits, head.commitment, head.signature, bound)


def _encode_total(payload: Total) -> Parts:
    return _encode_vector(payload.values, payload.ring_bits, present=payload.present)


def _decode_total(messages: Received) -> Total:
    values, head = _decode_vector(messages)
    return Total(values, head.ring_bits, tuple(Silo(name) for name in head.present))


def _encode_set(payload: PresentSet) -> Parts:
    message = masking_pb2.SumSet(present=payload.present, abandoned=payload.abandoned)
    for silo, signature in payload.signatures.items():
        message.signatures.values.add(silo=silo, value=signature)
    yield masking_pb2.MaskingPart(set=message)


def _decode_set(messages: Received) -> PresentSet:
    (part,) = _parts(messages, "set", most=1)
    present = tuple(Silo(name) for name in part.set.present)
    if list(present) != sorted(set(present)):
        raise OfferRejected("expected a sorted set of silos")
    return PresentSet(present, _values([part.set.signatures]), part.set.abandoned)


def _encode_signature(payload: SetSignature) -> Parts:
    yield masking_pb2.MaskingPart(signature=payload.signature)


def _decode_signature(messages: Received) -> SetSignature:
    (part,) = _parts(messages, "signature", most=1)
    return SetSignature(part.signature)


def _parts(messages: Received, kind: str, most: int = MAX_SILOS) -> list[masking_pb2.MaskingPart]:
    """Return the parts of a payload that has parts of one kind only, at least one."""
    parts: list[masking_pb2.MaskingPart] = []
    for part in messages:
        if part.WhichOneof("part") != kind or len(parts) == most:
            raise OfferRejected(
                f"expected at most {most} parts, each {kind}; {part.WhichOneof('part')} came"
            )
        parts.append(part)
    if not parts:
        raise OfferRejected(f"expected {kind}, nothing came")
    return parts


CODECS: tuple[Codec[Any], ...] = (
    Codec(KeyOffer, "masking", _encode_key, _decode_key),
    Codec(KeyRoster, "masking", _encode_roster, _decode_roster),
    Codec(
        SealedShares,
        "masking",
        lambda payload: _encode_values(payload.boxes),
        lambda messages: SealedShares(_decode_values(messages)),
    ),
    Codec(PlainVector, "masking", _encode_plain, _decode_plain),
    Codec(MaskedVector, "masking", _encode_masked, _decode_masked),
    Codec(PresentSet, "masking", _encode_set, _decode_set),
    Codec(SetSignature, "masking", _encode_signature, _decode_signature),
    Codec(
        PairSeeds,
        "masking",
        lambda payload: _encode_values(payload.seeds),
        lambda messages: PairSeeds(_decode_values(messages)),
    ),
    Codec(
        Unmasking,
        "masking",
        lambda payload: _encode_values(payload.shares),
        lambda messages: Unmasking(_decode_values(messages)),
    ),
    Codec(Total, "masking", _encode_total, _decode_total),
)
