"""Fuzz what parties of a federation read from each other: the frames of every exchange.

``python -m tests.fuzz.fuzz_wire -max_total_time=60`` (libFuzzer's options). The registry of codecs
names all payloads, so a new one is fuzzed by itself. An input that raises anything but
OfferRejected, that decodes to what does not encode again, or that takes over 2 GiB is a finding.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["hedgerow.services.wire", "hedgerow.boosting"]):
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

    from hedgerow.api.federation.v1 import exchange_pb2, masking_pb2, tensor_pb2
    from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeRequest, ExchangeResponse
    from hedgerow.boosting.errors import OfferRejected
    from hedgerow.boosting.exchange import Silo
    from hedgerow.boosting.strategies.secureboost import steps
    from hedgerow.boosting.trees import packing
    from hedgerow.boosting.trees.ensemble import Tree
    from hedgerow.boosting.trees.limits import TreeLimits, validate_upload
    from hedgerow.crypto.masking.fixed_point import RINGS
    from hedgerow.services.rpc.exchange import ExchangeServicer
    from hedgerow.services.wire.records import TYPES
    from hedgerow.services.wire.vertical import BOXES
    from tests.interop.bad_vectors import CODECS as KNOWN
from tests.fuzz.running import changed, finished, fuzz

CODECS = list(KNOWN.values())
SEALED = [getattr(steps, field.message_type.name) for field in BOXES._box.DESCRIPTOR.fields]
KINDS = sorted({codec.frame for codec in CODECS})
TEXTS = ["", "a", "b", "ash", "silo-0"]
WIDTHS = {number: int(name[2]) for name, number in TYPES.items()}


def number(provider: Any) -> int:
    """Return a number, mostly a small one."""
    most = (9, 9, 64, (1 << 31) - 1)[provider.ConsumeIntInRange(0, 3)]
    return int(provider.ConsumeIntInRange(0, most))


def value_of(field: FieldDescriptor, provider: Any) -> Any:
    """Return a value for a field that is no message."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_BOOL:
        return provider.ConsumeBool()
    if kind == field.CPPTYPE_ENUM:
        return number(provider)
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return provider.ConsumeFloat()
    if field.type == field.TYPE_BYTES:
        return bytes(32) if provider.ConsumeBool() else provider.ConsumeBytes(number(provider))
    if field.type == field.TYPE_STRING:
        return provider.PickValueInList(TEXTS)
    return number(provider)


def fill(message: Message, provider: Any, depth: int = 0) -> None:
    """Set fields of a message, whatever it is."""
    if isinstance(message, tensor_pb2.Tensor) and provider.ConsumeBool():
        message.type = provider.ConsumeIntInRange(1, len(WIDTHS))  # type: ignore[assignment]
        message.shape.extend(number(provider) % 9 for _ in range(1 + provider.ConsumeBool()))
        message.data = bytes(math.prod(message.shape) * WIDTHS[message.type])
        return
    if isinstance(message, masking_pb2.ResidueVector) and provider.ConsumeBool():
        message.ring_bits = provider.PickValueInList(list(RINGS))
        message.n_values = number(provider) % 9
        message.data = bytes(message.n_values * message.ring_bits // 8)
        return
    for field in message.DESCRIPTOR.fields:
        if not provider.ConsumeBool():
            continue
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            inner = nested.fields_by_name["value"]
            held, key = (
                getattr(message, field.name),
                value_of(nested.fields_by_name["key"], provider),
            )
            if inner.message_type is None:
                held[key] = value_of(inner, provider)
            else:
                fill(held[key], provider, depth + 1)
        elif nested is not None and depth < 4:
            for _ in range(provider.ConsumeIntInRange(1, 3) if field.is_repeated else 1):
                held = getattr(message, field.name)
                fill(held.add() if field.is_repeated else held, provider, depth + 1)
        elif nested is None and field.is_repeated:
            for _ in range(provider.ConsumeIntInRange(0, 3)):
                getattr(message, field.name).append(value_of(field, provider))
        elif nested is None:
            setattr(message, field.name, value_of(field, provider))


def fill_part(part: Message, provider: Any) -> None:
    """Set one field of a message that is a oneof, all fields of another."""
    if not part.DESCRIPTOR.oneofs:
        fill(part, provider)
        return
    fields = part.DESCRIPTOR.oneofs[0].fields
    field = fields[provider.ConsumeIntInRange(0, len(fields) - 1)]
    if field.message_type is None:
        setattr(part, field.name, value_of(field, provider))
    else:
        getattr(part, field.name).SetInParent()
        fill(getattr(part, field.name), provider)


def offered(provider: Any, kind: str) -> Iterator[bytes]:
    """Yield the frames of an offer: filled at random, some with bytes changed, or any bytes."""
    # Offers and replies have the same fields, but for one that only replies have.
    for _ in range(provider.ConsumeIntInRange(1, 3)):
        if provider.ConsumeIntInRange(0, 15) == 0:
            yield provider.ConsumeBytes(number(provider))
            continue
        request = ExchangeResponse()
        part = getattr(request, kind)
        part.SetInParent()
        fill_part(part, provider)
        frame = request.SerializeToString()
        yield changed(frame, provider) if provider.ConsumeIntInRange(0, 7) == 0 else frame


SERVICER = ExchangeServicer(lambda *_: None)  # type: ignore[arg-type,return-value]


async def received(kind: str, frames: list[bytes]) -> Any:
    """Take an offer in as the coordinator does; return what decodes it."""

    async def stream() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    key = exchange_pb2.StepKey(job_id="job", step="step", frames=len(frames))
    first = ExchangeRequest(key=key)
    return (await SERVICER._offer(Silo("ash"), first, stream(), first.ByteSize()))[0]


def decode_frames(provider: Any) -> None:
    """Decode an offer as every payload that travels in frames of its kind."""
    kind = KINDS[provider.ConsumeIntInRange(0, len(KINDS) - 1)]
    frames = list(offered(provider, kind))
    try:
        decode = finished(received(kind, frames))
    except OfferRejected:
        return
    for codec in CODECS:
        if codec.frame != kind:
            continue
        try:
            payload = decode(codec.payload)
        except OfferRejected:
            continue
        finally:
            decode = finished(received(kind, frames))  # it gives the parts once
        for part in codec.encode(payload):
            part.SerializeToString()


def open_box(provider: Any) -> None:
    """Read what a party sealed as every payload that travels sealed."""
    box = BOXES._box()
    fill_part(box, provider)
    data = changed(box.SerializeToString(), provider)
    for kind in SEALED:
        try:
            payload = BOXES.load(kind, data)
        except OfferRejected:
            continue
        BOXES.dump(payload)


def stump(n_categories: int) -> Tree:
    """Return a tree of three nodes that splits on feature 1."""
    index, value = np.array([1, -1, -1], np.int32), np.array([0.5, -1.0, 2.0], np.float32)
    known = ((0, np.arange(n_categories, dtype=np.int32)),) if n_categories else ()
    return Tree(index, index * 2, index * (index > 0), value, index > 0, *[value * 0] * 3, known)


PACKED = packing.pack([stump(0), stump(2)])
LIMITS = TreeLimits((0, 0), (0, 3), max_depth=4)


def unpack_trees(provider: Any) -> None:
    """Unpack trees of another party, and check them."""
    try:
        trees = packing.unpack(changed(PACKED, provider) + provider.ConsumeBytes(number(provider)))
        validate_upload(trees, LIMITS)
    except OfferRejected:
        return
    assert all(tree.n_nodes for tree in trees)


TARGETS = {"frames": decode_frames, "box": open_box, "pack": unpack_trees}

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
