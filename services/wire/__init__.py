"""Payloads as protobuf frames: one module a noun, both directions of a type adjacent.

A codec turns a payload into the frames of one field of the ``frame`` oneof of the exchange
messages, and back. ``decode`` validates everything that a hostile peer could have written and
raises :class:`~hedgerow.boosting.errors.OfferRejected` with what was expected and received.

To add a payload: define its frozen dataclass in ``boosting``, its message with the same field
names in ``proto``, its field in ``ExchangeRequest`` and ``ExchangeResponse``, and its line in the
:func:`family` of a module here that is named in ``MODULES``. Modules are imported when their
payload is first met, so that a process loads only what its strategy needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from hedgerow.boosting.exchange import Receipt
from hedgerow.boosting.payloads import PayloadCodec
from hedgerow.services.wire.bulk import Part

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Payload]):
    """How one payload type travels.

    Parameters
    ----------
    frame : str
        Field of the ``frame`` oneof that its messages occupy.
    encode : callable
        Payload to its messages, each at most about 1 MiB serialised.
    decode : callable
        Messages, in order, to the payload.
    """

    payload: type[Payload]
    frame: str
    encode: Callable[[Payload], Iterator[Part]]
    decode: Callable[[Iterable[Any]], Payload]


def _no_frames(payload: Receipt) -> Iterator[Part]:
    return iter(())


def _receipt(messages: Iterable[Any]) -> Receipt:
    for _ in messages:
        pass
    return Receipt()


RECEIPT = Codec(Receipt, "", _no_frames, _receipt)

MODULES: dict[str, str] = {
    # module of payloads -> module of services.wire that has their CODECS
    "hedgerow.boosting.rounds.steps": "trees",
    "hedgerow.boosting.strategies.bagging.steps": "scores",
    "hedgerow.boosting.strategies.dp_tree.noisy_tree": "budget",
    "hedgerow.boosting.strategies.dp_tree.steps": "budget",
    "hedgerow.boosting.strategies.fedga.steps": "structure",
    "hedgerow.boosting.strategies.fedxgbllr.steps": "stacking",
    "hedgerow.boosting.strategies.secureboost.steps": "vertical",
    "hedgerow.boosting.engine.summaries": "histogram",
    "hedgerow.boosting.strategies.histogram.steps": "histogram",
    "hedgerow.boosting.strategies.simfl.steps": "similarity",
    "hedgerow.boosting.sums.steps": "masking",
    "hedgerow.boosting.warm_start": "trees",
}
"""Where the codecs of payloads are."""


_KNOWN: dict[type[Any], Codec[Any]] = {Receipt: RECEIPT}


def codec_of(payload: type[Payload]) -> Codec[Payload]:
    """Return the codec of a payload type; an unknown type is a programming error."""
    if payload not in _KNOWN:
        _KNOWN.update((codec.payload, codec) for codec in _module_of(payload).CODECS)
    return _KNOWN[payload]


def _module_of(payload: type[Any]) -> Any:
    return importlib.import_module(f"{__name__}.{MODULES[payload.__module__]}")


def family(
    frame: str, part: type[Any], payloads: Mapping[str, type[Any]]
) -> tuple[Codec[Any], ...]:
    """Return the codecs of payloads whose messages have their field names.

    Parameters
    ----------
    frame : str
        Field of the ``frame`` oneof.
    part : type
        Message of that field: a oneof ``part`` of the payloads' messages, and ``bytes more``.
    payloads : Mapping
        Field of ``part`` to the payload's dataclass.
    """
    from hedgerow.services.wire import records

    codecs = []
    for field, payload in payloads.items():
        message = part.DESCRIPTOR.fields_by_name[field].message_type
        record = records.record_of(payload, message)
        codecs.append(
            Codec(
                payload,
                frame,
                partial(records.encode, part, field, record),
                partial(records.decode, field, record),
            )
        )
    return tuple(codecs)


class BoxCodec:
    """Payloads as bytes, for what is sealed: the ``PayloadCodec`` that a silo half is given."""

    def dump(self, payload: object) -> bytes:
        """Return a payload as bytes."""
        boxes: PayloadCodec = _module_of(type(payload)).BOXES
        return boxes.dump(payload)

    def load(self, kind: type[Payload], data: bytes) -> Payload:
        """Return the payload of :meth:`dump`; raises OfferRejected for anything else."""
        boxes: PayloadCodec = _module_of(kind).BOXES
        return boxes.load(kind, data)
