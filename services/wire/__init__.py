"""Payloads as protobuf frames: one module a noun, both directions of a type adjacent.

A codec turns a payload into the frames of one field of the ``frame`` oneof of the exchange
messages, and back. ``decode`` validates everything that a hostile peer could have written and
raises :class:`~hedgerow.boosting.errors.OfferRejected` with what was expected and received.

A payload whose message has its name and the names of its fields needs no codec of its own. To add
one: define its frozen dataclass in ``boosting``, and in ``proto`` its message and its field of its
family's ``part`` oneof. What is coded by hand is in a module here that is named as its family.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from hedgerow.boosting.exchange import Receipt
from hedgerow.boosting.payloads import PayloadCodec
from hedgerow.services.wire.bulk import Part

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Payload]):
    """How one payload type travels."""

    payload: type[Payload]
    frame: str
    """Field of the ``frame`` oneof that its messages occupy."""
    encode: Callable[[Payload], Iterator[Part]]
    """Payload to its messages, each at most about 1 MiB serialised."""
    decode: Callable[[Iterable[Any]], Payload]
    """Messages, in order, to the payload."""


def _no_frames(payload: Receipt) -> Iterator[Part]:
    return iter(())


def _receipt(messages: Iterable[Any]) -> Receipt:
    for _ in messages:
        pass
    return Receipt()


RECEIPT = Codec(Receipt, "", _no_frames, _receipt)

FAMILIES: dict[str, str] = {
    # module of payloads -> field of the frame oneof
    "hedgerow.boosting.rounds.steps": "trees",
    "hedgerow.boosting.strategies.bagging.steps": "scores",
    "hedgerow.boosting.strategies.dp_tree.noisy_tree": "budget",
    "hedgerow.boosting.strategies.dp_tree.steps": "budget",
    "hedgerow.boosting.strategies.private_boost.steps": "budget",
    "hedgerow.boosting.strategies.fedga.steps": "structure",
    "hedgerow.boosting.strategies.fedxgbllr.steps": "stacking",
    "hedgerow.boosting.strategies.secureboost.steps": "vertical",
    "hedgerow.boosting.engine.summaries": "histogram",
    "hedgerow.boosting.strategies.histogram.steps": "histogram",
    "hedgerow.boosting.strategies.simfl.steps": "similarity",
    "hedgerow.boosting.sums.steps": "masking",
    "hedgerow.boosting.warm_start": "trees",
}
"""In which frames payloads travel."""
EXTENSION = "extension"
"""Frames of payloads of other packages' strategies."""
BY_HAND = frozenset({"masking", "scores", "trees", "vertical"})
"""Families with a module here, which has the ``CODECS`` of some of their payloads."""

_KNOWN: dict[type[Any], Codec[Any]] = {Receipt: RECEIPT}


def codec_of(payload: type[Payload]) -> Codec[Payload]:
    """Return the codec of a payload type; an unknown type is a programming error."""
    if payload not in _KNOWN:
        family = FAMILIES.get(payload.__module__, EXTENSION)
        if family in BY_HAND:
            _KNOWN.update((codec.payload, codec) for codec in _module(family).CODECS)
        if payload not in _KNOWN:
            _KNOWN[payload] = foreign(payload) if family == EXTENSION else derived(payload)
    return _KNOWN[payload]


def foreign(payload: type[Payload]) -> Codec[Payload]:
    """Return the codec of a payload of a strategy that is a package of its own."""
    from hedgerow.services.wire import extension

    if payload.__module__.partition(".")[0] == __name__.partition(".")[0]:
        raise KeyError(f"{payload.__module__} is in no family")
    kind: Any = payload
    extension.message_of(kind)
    return Codec(payload, EXTENSION, extension.encode, partial(extension.decode, payload))


def derived(payload: type[Payload]) -> Codec[Payload]:
    """Return the codec of a payload whose message has its name and the names of its fields.

    The message is in the ``part`` oneof of the payload's family, beside ``bytes more``.
    """
    from google.protobuf.message_factory import GetMessageClass

    from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeResponse
    from hedgerow.services.wire import records

    family = FAMILIES[payload.__module__]
    part: Any = ExchangeResponse.DESCRIPTOR.fields_by_name[family].message_type
    field, record = records.field_of(payload, part)
    return Codec(
        payload,
        family,
        partial(records.encode, GetMessageClass(part), field, record),
        partial(records.decode, field, record),
    )


def _module(family: str) -> Any:
    return importlib.import_module(f"{__name__}.{family}")


class BoxCodec:
    """Payloads as bytes, for what is sealed: the ``PayloadCodec`` that a silo half is given."""

    def dump(self, payload: object) -> bytes:
        """Return a payload as bytes."""
        boxes: PayloadCodec = _module(FAMILIES[type(payload).__module__]).BOXES
        return boxes.dump(payload)

    def load(self, kind: type[Payload], data: bytes) -> Payload:
        """Return the payload of :meth:`dump`; raises OfferRejected for anything else."""
        boxes: PayloadCodec = _module(FAMILIES[kind.__module__]).BOXES
        return boxes.load(kind, data)
