"""Cases that a decoder must refuse, for every message family; see :mod:`tests.interop.vectors`.

Each is a sound payload of nothing, changed in one place, or frames that are no payload at all.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeResponse
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import Elements
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.limits import TreeLimits
from hedgerow.boosting.trees.packing import pack
from hedgerow.services import wire

PARTS = {"TreeRound", "SealedPiece", "CiphertextPiece", "PassNote", "PartyKeys"}
"""Messages of a family that are parts of a payload which is coded by hand."""


def part_of(frame: str) -> type[Any]:
    """Return the message that travels in a field of the exchange messages."""
    field = ExchangeResponse.DESCRIPTOR.fields_by_name[frame]
    return GetMessageClass(field.message_type)


def payloads() -> Iterator[type[Any]]:
    """Yield every payload: those coded by hand, and those whose message has their name."""
    for family in wire.BY_HAND:
        for codec in import_module(f"{wire.__name__}.{family}").CODECS:
            yield codec.payload
    for module, family in wire.FAMILIES.items():
        for field in part_of(family).DESCRIPTOR.fields:
            name = field.message_type.name if field.message_type else ""
            found = getattr(import_module(module), name, None)
            if found is not None and found.__module__ == module and name not in PARTS:
                yield found


CODECS = {payload.__name__: wire.codec_of(payload) for payload in payloads()}
LIMITS = TreeLimits((0,), (0, 0, 6), max_depth=3)
"""One tree over three features, the last with six categories."""


def nothing_of(kind: Any) -> Any:
    """Return a value of a payload's field with as little in it as can be."""
    if isinstance(kind, typing.NewType):
        return nothing_of(kind.__supertype__)
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        (elements,) = (m for m in kind.__metadata__ if isinstance(m, Elements))
        return np.zeros((0,) * elements.ndim, elements.dtype)
    if origin in (typing.Union, types.UnionType):
        return None
    if origin is tuple:
        return ()
    if origin is not None:
        return {}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return kind(**{f.name: nothing_of(hints[f.name]) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    return kind()


def wrong(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield copies of a message with one field that no decoder may accept."""
    for field in message.DESCRIPTOR.fields:
        for why, value in wrong_values(field):
            copy = type(message)()
            copy.CopyFrom(message)
            if field.is_repeated:
                copy.ClearField(field.name)
                getattr(copy, field.name).append(value)
            elif field.message_type is not None:
                getattr(copy, field.name).CopyFrom(value)
            else:
                setattr(copy, field.name, value)
            yield f"{field.name}: {why}", copy


def wrong_values(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    """Yield values of a field that are never sound."""
    if field.enum_type is not None:
        yield "a number that is not known", 99
    elif field.message_type is tensor_pb2.Tensor.DESCRIPTOR:
        tensor = tensor_pb2.Tensor
        yield "an element type that is not known", tensor(type=99, shape=[0])  # type: ignore[arg-type]
        yield (
            "more dimensions than any",
            tensor(type=1, shape=[0] * 9),
        )
        for element in tensor_pb2.ElementType.values()[1:]:
            name = tensor_pb2.ElementType.Name(element)
            yield f"{name} with too few bytes", tensor(type=element, shape=[2], data=b"\1")
            yield f"{name} of 2^40 elements", tensor(type=element, shape=[1 << 40])


def refused(name: str, parts: list[bytes]) -> bool:
    """Return whether the decoder of a payload refuses these parts."""
    codec = CODECS[name]
    part = part_of(codec.frame)
    try:
        codec.decode(part.FromString(data) for data in parts)
    except OfferRejected:
        return True
    return False


def bad_payloads() -> list[dict[str, Any]]:
    """Return the cases of every payload: frame, payload, what is wrong, and its parts."""
    cases = []
    for name, codec in sorted(CODECS.items()):
        part = part_of(codec.frame)
        found = [("no parts", []), ("a part that is empty", [part()])]
        if "more" in part.DESCRIPTOR.fields_by_name:
            found.append(("bytes that continue nothing", [part(more=b"\0")]))
        try:
            sound = [
                part.FromString(p.SerializeToString())
                for p in codec.encode(nothing_of(codec.payload))
            ]
            field = sound[0].WhichOneof("part")
            content = getattr(sound[0], field)
        except (OfferRejected, ValueError, TypeError, AttributeError):
            sound = []
        if sound and isinstance(content, Message):
            found += [(why, [part(**{field: bad}), *sound[1:]]) for why, bad in wrong(content)]
        for why, messages in found:
            parts = [message.SerializeToString() for message in messages]
            cases.append(
                {
                    "frame": codec.frame,
                    "payload": name,
                    "wrong": why,
                    "parts": [data.hex() for data in parts],
                }
            )
    return cases


def bad_packs() -> list[dict[str, str]]:
    """Return packed trees that a reader with :data:`LIMITS` must refuse."""

    def tree(**given: Any) -> Tree:
        columns: dict[str, Any] = {
            "left": [1, -1, -1], "right": [2, -1, -1], "feature": [0, 0, 0],
            "threshold": [0.5, 0.1, -0.1], **given,
        }  # fmt: skip
        n = len(columns["left"])
        zeros = np.zeros(n, np.float32)
        indices = (np.array(columns[k], np.int32) for k in ("left", "right", "feature"))
        codes = np.array(columns.get("codes", ()), np.int32)
        return Tree(
            *indices, np.array(columns["threshold"], np.float32), np.zeros(n, np.bool_),
            zeros, zeros, zeros, ((0, codes),) if len(codes) else (), columns.get("group", 0),
        )  # fmt: skip

    sound = pack([tree()])
    cases = {
        "a feature that is not there": pack([tree(feature=[3, 0, 0])]),
        "a feature of 10^9": pack([tree(feature=[10**9, 0, 0])]),
        "a node that is its own child": pack([tree(left=[0, -1, -1])]),
        "a child of another tree's": pack([tree(right=[7, -1, -1])]),
        "one child twice": pack([tree(right=[1, -1, -1])]),
        "an infinite threshold": pack([tree(threshold=[np.inf, 0.1, -0.1])]),
        "a leaf that is no number": pack([tree(threshold=[0.5, np.nan, -0.1])]),
        "categories of a numeric feature": pack([tree(codes=[1])]),
        "a category that is not there": pack([tree(feature=[2, 0, 0], codes=[1, 6])]),
        "a categorical feature without categories": pack([tree(feature=[2, 0, 0])]),
        "another class": pack([tree(group=1)]),
        "two trees for one": pack([tree(), tree()]),
        "no tree": b"",
        "another format": b"\2" + sound[1:],
        "cut off": sound[: len(sound) // 2],
        "a number that does not end": sound[:2] + b"\xff" * 12,
        "more nodes than bytes": bytes([1, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F, 0]),
    }
    return [{"wrong": why, "bytes": data.hex()} for why, data in cases.items()]
