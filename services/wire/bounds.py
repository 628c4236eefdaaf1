"""How large what a peer sends may be once it is read: one walk over a message by its descriptors.

A new field is bounded on the day it is added. Lengths on the wire say little: an empty message in
a list is two bytes there and some hundred in memory.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hedgerow.boosting.errors import OfferRejected
from hedgerow.services.process.texts import one_line

MAX_REQUEST_BYTES = 2 << 20
"""Longest request of the control plane: what it echoes then fits a reply of 4 MiB."""
MAX_TEXT = 4096
"""Longest text in a request of the control plane, characters."""
MAX_BLOB = 1 << 16
"""Longest field of bytes in a request of the control plane: a chain of certificates."""
MAX_REASON = 2000
"""Longest reason that is kept, characters: a longer one is cut."""
MAX_OBJECTS = 1 << 17
"""Most messages, texts and bytes in all lists and maps of one message."""
MAX_NUMBERS = 1 << 21
"""Most numbers in them."""
OBJECT_BYTES = 512
"""What a message, text or number of bytes in a list takes in memory, at least."""
NUMBER_BYTES = 32
"""What a number in a list takes in memory."""

_REASONS = frozenset(
    {
        "hedgerow.api.federation.v1.AcceptAssignmentRequest.declined",
        "hedgerow.api.federation.v1.ReportOutcomeRequest.error",
    }
)
"""Texts for people, which are cut and not refused: what happened must reach the record."""
_LONGER = {
    "hedgerow.api.federation.v1.SignedJob.statement": 15 << 17,
    "hedgerow.api.federation.v1.ProposeJobRequest.statement": 15 << 17,
    "hedgerow.api.federation.v1.ReleaseModelRequest.statement": 1 << 20,
}
"""Bytes that may be longer: a job with all its features, which is bounded again when it is read."""
_LONG = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def cut(text: str, longest: int = MAX_REASON) -> str:
    """Return a text of at most ``longest`` characters; an ellipsis ends one that was cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def check_request(message: Message, n_bytes: int) -> None:
    """Bound what a request of the control plane makes its reader keep; cuts reasons in place.

    Raises
    ------
    OfferRejected
        The request, a text, bytes or a list is too long; names the field.
    """
    if n_bytes > MAX_REQUEST_BYTES:
        raise OfferRejected(
            f"{message.DESCRIPTOR.name}: {n_bytes} bytes, at most {MAX_REQUEST_BYTES} are accepted"
        )
    n_elements(message, texts=True)


def n_elements(message: Message, *, texts: bool = False) -> tuple[int, int]:
    """Return how many objects and numbers the lists and maps of a message have, at any depth.

    Parameters
    ----------
    texts : bool
        Whether to bound texts and bytes as well.

    Raises
    ------
    OfferRejected
        More than :data:`MAX_OBJECTS` or :data:`MAX_NUMBERS`, or too long a text; names the field.
    """
    objects = numbers = 0
    for field, value in message.ListFields():
        values: Any = (value,)
        whole = field.full_name
        if field.is_repeated:
            if field.message_type is None and field.type not in _LONG:
                numbers += len(value)
            else:
                objects += len(value)
            _check_number(whole, objects, numbers)
            values = value
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                if texts:
                    for key in value:
                        _check_text(whole, key)
                field, values = field.message_type.fields_by_name["value"], value.values()
        if field.message_type is not None:
            for inner in values:
                more = n_elements(inner, texts=texts)
                objects, numbers = objects + more[0], numbers + more[1]
        elif texts and field.type in _LONG:
            for text in values:
                if whole in _REASONS:
                    setattr(message, field.name, cut(one_line(text)))
                else:
                    _check_text(whole, text)
    _check_number(message.DESCRIPTOR.full_name, objects, numbers)
    return objects, numbers


def held_bytes(message: Message, n_bytes: int) -> int:
    """Return about how much memory a message takes once it is read.

    Parameters
    ----------
    n_bytes : int
        Its length on the wire.

    Raises
    ------
    OfferRejected
        It has too many elements.
    """
    objects, numbers = n_elements(message)
    return n_bytes + (objects + 1) * OBJECT_BYTES + numbers * NUMBER_BYTES


def _check_number(name: str, objects: int, numbers: int) -> None:
    if objects > MAX_OBJECTS or numbers > MAX_NUMBERS:
        raise OfferRejected(
            f"{name}: more than {MAX_OBJECTS} elements, or {MAX_NUMBERS} numbers, in a message"
        )


def _check_text(name: str, value: str | bytes) -> None:
    longest = MAX_TEXT if isinstance(value, str) else _LONGER.get(name, MAX_BLOB)
    if len(value) > longest:
        raise OfferRejected(f"{name}: {len(value)} long, at most {longest} is accepted")
