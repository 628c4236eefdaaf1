"""One codec for every payload that is a frozen dataclass: its message has the same field names.

Fields are matched by name when a payload is first met, so that a payload and a message that differ
are an error at once. Arrays travel as ``Tensor`` messages. Those of a payload under 1 MiB are in
its head; the elements of others follow in ``more`` frames, tensors in the order of their fields.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import Elements
from hedgerow.services.wire import schema
from hedgerow.services.wire.bulk import LongBytes, Part

HEAD_BYTES = 1 << 20
"""Most bytes of arrays in a payload's head, and of a ``more`` frame."""
MAX_BYTES = 1 << 30
"""Most bytes of all arrays of a payload."""

Filled = TypeVar("Filled", bound=Message)
Value = TypeVar("Value")

TYPES = {
    "<f4": tensor_pb2.ELEMENT_TYPE_FLOAT32,
    "<f8": tensor_pb2.ELEMENT_TYPE_FLOAT64,
    "<i2": tensor_pb2.ELEMENT_TYPE_INT16,
    "<i4": tensor_pb2.ELEMENT_TYPE_INT32,
    "<i8": tensor_pb2.ELEMENT_TYPE_INT64,
    "|u1": tensor_pb2.ELEMENT_TYPE_UINT8,
    "<u2": tensor_pb2.ELEMENT_TYPE_UINT16,
    "<u4": tensor_pb2.ELEMENT_TYPE_UINT32,
    "<u8": tensor_pb2.ELEMENT_TYPE_UINT64,
    "|b1": tensor_pb2.ELEMENT_TYPE_BOOL,
}


class _Field(NamedTuple):
    """How a field goes into its message (``put``) and comes out of it (``take``)."""

    name: str
    put: Callable[[Message, Any, _Tail], None]
    take: Callable[[Any, _Tail], Any]


class _Tail:
    """The arrays of one payload: what follows the head."""

    def __init__(self, pieces: list[bytes | memoryview] | None = None) -> None:
        self.inline = 0
        self.total = 0
        self.deferred: list[memoryview] = []
        self.rest = b"".join(pieces or ())
        self.at = 0

    def put(self, tensor: Any, array: NDArray[Any], elements: Elements) -> None:
        """Write an array into a tensor, or its elements behind the head."""
        dtype = array.dtype.str if array.dtype.str in elements.also else elements.dtype
        flat = np.ascontiguousarray(array, np.dtype(dtype))
        assert flat.ndim == elements.ndim, f"{flat.ndim} dimensions, {elements.ndim} declared"
        tensor.type = TYPES[dtype]
        tensor.shape.extend(flat.shape)
        if not flat.size:
            return
        data = flat.reshape(-1).view(np.uint8).data
        if self.inline + len(data) > HEAD_BYTES:
            self.deferred.append(data)
        else:
            self.inline += len(data)
            tensor.data = bytes(data)

    def take(self, tensor: Any, elements: Elements, name: str) -> NDArray[Any]:
        """Return a tensor's array."""
        shape = tuple(tensor.shape)
        known = {TYPES[dtype]: dtype for dtype in (elements.dtype, *elements.also)}
        if tensor.type not in known or len(shape) != elements.ndim:
            raise OfferRejected(
                f"{name}: expected {elements.ndim}-dimensional {elements.dtype}, received "
                f"{len(shape)}-dimensional {tensor_pb2.ElementType.Name(tensor.type)}"
                if tensor.type in tensor_pb2.ElementType.values()
                else f"{name}: element type {tensor.type} is not known"
            )
        dtype = np.dtype(known[tensor.type])
        spanned = math.prod(max(length, 1) for length in shape) * dtype.itemsize
        n_bytes = 0 if 0 in shape else spanned
        self.total += n_bytes
        if spanned > MAX_BYTES or self.total > MAX_BYTES:
            raise OfferRejected(f"{name}: {spanned} bytes, at most {MAX_BYTES} are accepted")
        data: bytes | memoryview = tensor.data
        if n_bytes and not data:
            data = memoryview(self.rest)[self.at : self.at + n_bytes]
            self.at += n_bytes
        if len(data) != n_bytes:
            raise OfferRejected(f"{name}: expected {n_bytes} bytes, received {len(data)}")
        if elements.dtype == "|b1" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
            raise OfferRejected(f"{name}: expected truth values of 0 and 1")
        return np.frombuffer(data, dtype).reshape(shape)

    def check(self) -> None:
        """Raise unless all that followed the head has been taken."""
        if self.at != len(self.rest):
            raise OfferRejected(f"{len(self.rest) - self.at} bytes more than the tensors need")


# --- one field ---


def _identity(value: Any, tail: _Tail) -> Any:
    return value


def _value(kind: Any, descriptor: FieldDescriptor) -> tuple[Any, Any]:
    """Return how one value goes to what protobuf takes, and comes back; (None, f) for messages."""
    if isinstance(kind, typing.NewType):
        return _value(kind.__supertype__, descriptor)
    if typing.get_origin(kind) is typing.Annotated:
        (elements,) = (m for m in kind.__metadata__ if isinstance(m, Elements))
        name = descriptor.name
        return (
            lambda tensor, array, tail: tail.put(tensor, array, elements),
            lambda tensor, tail: tail.take(tensor, elements, name),
        )
    if descriptor.message_type is not None and kind in _MESSAGES:
        return _MESSAGES[kind]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        assert descriptor.message_type is not None, f"{descriptor.full_name} is no message"
        record = record_of(kind, descriptor.message_type)
        return record.put, record.take
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, descriptor)
    assert kind in (int, float, bool, str, bytes), f"{descriptor.full_name}: {kind} does not travel"
    return _identity, _identity


def _put_time(message: Any, seconds: float, tail: _Tail) -> None:
    message.FromNanoseconds(int(seconds) * 10**9 + round(seconds % 1 * 1e9))


def _put_serialised(message: Message, data: bytes, tail: _Tail) -> None:
    message.ParseFromString(data)


_MESSAGES: dict[Any, tuple[Any, Any]] = {
    float: (_put_time, lambda message, tail: message.ToNanoseconds() / 10**9),
    bytes: (_put_serialised, lambda message, tail: message.SerializeToString(deterministic=True)),
    Schema: (
        lambda message, value, tail: message.CopyFrom(schema.encode(value)),
        lambda message, tail: schema.decode(message),
    ),
}
"""Values that are messages on the wire: seconds since 1970 a Timestamp, serialised bytes theirs."""


def _enum(kind: type[Enum], descriptor: FieldDescriptor) -> tuple[Any, Any]:
    known = descriptor.enum_type
    assert known is not None, f"{descriptor.full_name} is no enum"
    prefix = known.values[0].name.removesuffix("UNSPECIFIED")
    numbers = {m: known.values_by_name[prefix + m.name].number for m in kind}
    members = {number: member for member, number in numbers.items()}

    def take(value: int, tail: _Tail) -> Enum:
        if value not in members:
            raise OfferRejected(f"{descriptor.name}: value {value} is not known")
        return members[value]

    return (lambda member, tail: numbers[member]), take


def _field(name: str, kind: Any, message: Descriptor) -> _Field:
    descriptor = message.fields_by_name.get(name)
    assert descriptor is not None, f"{message.full_name} has no field {name}"
    optional = False
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [k for k in typing.get_args(kind) if k is not type(None)]
        (kind,), optional = kinds, True
    nested = descriptor.message_type is not None
    if typing.get_origin(kind) is tuple:
        return _repeated(name, descriptor, typing.get_args(kind)[0], nested)
    if typing.get_origin(kind) is not None and typing.get_origin(kind) is not typing.Annotated:
        return _mapping(name, descriptor, typing.get_args(kind)[1])
    put_one, take_one = _value(kind, descriptor)

    def put(message: Message, value: Any, tail: _Tail) -> None:
        if value is None:
            return
        if nested:
            part = getattr(message, name)
            part.SetInParent()
            put_one(part, value, tail)
        else:
            setattr(message, name, put_one(value, tail))

    def take(message: Any, tail: _Tail) -> Any:
        if (nested or optional) and not message.HasField(name):
            if optional:
                return None
            raise OfferRejected(f"{name}: expected a value, received none")
        return take_one(getattr(message, name), tail)

    return _Field(name, put, take)


def _repeated(name: str, descriptor: FieldDescriptor, kind: Any, nested: bool) -> _Field:
    put_one, take_one = _value(kind, descriptor)
    as_it_is = put_one is _identity  # lists of thousands of names are most of a large job's view

    def put(message: Message, values: Any, tail: _Tail) -> None:
        field = getattr(message, name)
        if as_it_is:
            field.extend(values)
        elif nested:
            for value in values:
                put_one(field.add(), value, tail)
        else:
            field.extend(put_one(value, tail) for value in values)

    def take(message: Any, tail: _Tail) -> Any:
        found = getattr(message, name)
        return tuple(found) if as_it_is else tuple(take_one(value, tail) for value in found)

    return _Field(name, put, take)


def _mapping(name: str, descriptor: FieldDescriptor, kind: Any) -> _Field:
    assert descriptor.message_type is not None, f"{descriptor.full_name} is no map"
    inner = descriptor.message_type.fields_by_name["value"]
    put_one, take_one = _value(kind, inner)
    nested = inner.message_type is not None

    def put(message: Message, values: Mapping[Any, Any], tail: _Tail) -> None:
        field = getattr(message, name)
        for key in sorted(values):
            if nested:
                field[key].SetInParent()
                put_one(field[key], values[key], tail)
            else:
                field[key] = put_one(values[key], tail)

    def take(message: Any, tail: _Tail) -> Any:
        field = getattr(message, name)
        return {key: take_one(field[key], tail) for key in sorted(field)}

    return _Field(name, put, take)


# --- a payload ---


class Record:
    """A dataclass and the message that carries it."""

    def __init__(self, kind: type[Any], message: Descriptor) -> None:
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [field.name for field in dataclasses.fields(kind)]
        unknown = {field.name for field in message.fields} - set(names)
        assert not unknown, f"{kind.__name__} has no fields {', '.join(sorted(unknown))}"
        self._kind = kind
        self._fields = [_field(name, hints[name], message) for name in names]
        # Of a large job's view most are records of numbers and names only: in one go.
        plain = len(names) > 1 and all(
            hints[name] in (int, float, bool, str)
            and message.fields_by_name[name].message_type is None
            for name in names
        )
        self._plain = operator.attrgetter(*names) if plain else None

    def put(self, message: Message, payload: Any, tail: _Tail) -> None:
        """Write a payload into its message."""
        for field in self._fields:
            field.put(message, getattr(payload, field.name), tail)

    def write(self, message: Message, payload: Any) -> None:
        """Write a payload whose arrays have less than 1 MiB into its message."""
        self.put(message, payload, _Tail())

    def write_all(self, message: Message, payload: Any) -> list[memoryview]:
        """Write a payload into its message; return what its arrays have over 1 MiB."""
        tail = _Tail()
        self.put(message, payload, tail)
        return tail.deferred

    def read(self, message: Any) -> Any:
        """Return the payload of a message that contains all of it."""
        return self.take(message, _Tail())

    def take(self, message: Any, tail: _Tail) -> Any:
        """Return the payload of a message."""
        try:
            if self._plain:
                return self._kind(*self._plain(message))
            values = {field.name: field.take(message, tail) for field in self._fields}
            return self._kind(**values)
        except (TypeError, ValueError) as error:
            raise OfferRejected(f"{self._kind.__name__}: {error}") from error


_RECORDS: dict[tuple[type[Any], str], Record] = {}


def record_of(kind: type[Any], message: Descriptor) -> Record:
    """Return the record of a dataclass and a message; they have the same field names."""
    key = (kind, message.full_name)
    found = _RECORDS.get(key)
    if found is None:
        found = _RECORDS[key] = Record(kind, message)
    return found


def field_of(kind: type[Any], message: Descriptor) -> tuple[str, Record]:
    """Return the field of a message whose own message has a payload's name, and their record."""
    named = (f for f in message.fields if f.message_type and f.message_type.name == kind.__name__)
    own = next(named, None)
    assert own is not None, f"{message.full_name} has no message {kind.__name__}"
    assert own.message_type is not None
    return own.name, record_of(kind, own.message_type)


def encode(part: type[Any], field: str, record: Record, payload: Any) -> Iterator[Part]:
    """Yield the parts of a payload: its head in ``field``, then what its arrays have over 1 MiB."""
    message = part()
    head = getattr(message, field)
    head.SetInParent()
    deferred = record.write_all(head, payload)
    yield message
    yield from rest(part, deferred)


def rest(part: type[Any], deferred: Iterable[memoryview]) -> Iterator[LongBytes]:
    """Yield the ``more`` frames of what a payload's arrays have over 1 MiB."""
    for data in deferred:
        number = part.DESCRIPTOR.fields_by_name["more"].number
        for start in range(0, len(data), HEAD_BYTES):
            yield LongBytes("more", number, data[start : start + HEAD_BYTES])


def decode(
    field: str,
    record: Record,
    messages: Iterable[Any],
    opened: Callable[[Any], Any] = lambda head: head,
) -> Any:
    """Return the payload of the parts of :func:`encode`.

    Parameters
    ----------
    opened : callable
        Returns the record's message of what ``field`` has.

    Raises
    ------
    OfferRejected
        Another kind of part, an array of another type, number of dimensions or size, an enum's
        value that is not known, or a payload that its dataclass refuses.
    """
    head = None
    pieces: list[bytes | memoryview] = []
    received = 0
    for message in messages:
        kind = message.WhichOneof("part")
        if kind != (field if head is None else "more"):
            raise OfferRejected(f"expected {field if head is None else 'more'}, received {kind}")
        if head is None:
            head = opened(getattr(message, field))
            continue
        received += len(message.more)
        if received > MAX_BYTES:
            raise OfferRejected(f"{field}: more than {MAX_BYTES} bytes")
        pieces.append(message.more)
    if head is None:
        raise OfferRejected(f"expected {field}, received nothing")
    tail = _Tail(pieces)
    payload = record.take(head, tail)
    tail.check()
    return payload


def message_of(value: object, message: Filled) -> Filled:
    """Write a value without large arrays into its empty message, and return the message."""
    descriptor: Any = message.DESCRIPTOR
    record_of(type(value), descriptor).put(message, value, _Tail())
    return message


def value_of(kind: type[Value], message: Message) -> Value:
    """Return the value of :func:`message_of`; raises OfferRejected as :func:`decode` does."""
    descriptor: Any = message.DESCRIPTOR
    value: Value = record_of(kind, descriptor).take(message, _Tail())
    return value


class Boxes:
    """Payloads as bytes, for what is sealed before it travels; see ``PayloadCodec``.

    Parameters
    ----------
    box : type
        Message with one oneof, of the payloads' messages, which have their names.
    """

    def __init__(self, box: type[Any]) -> None:
        self._box = box
        self._oneof = box.DESCRIPTOR.oneofs[0].name

    def dump(self, payload: object) -> bytes:
        """Return a payload as bytes: a box message that contains it, arrays and all."""
        field, record = field_of(type(payload), self._box.DESCRIPTOR)
        message = self._box()
        content = getattr(message, field)
        content.SetInParent()
        tail = _Tail()
        tail.inline = -MAX_BYTES  # a sealed box is cut into frames as it is
        record.put(content, payload, tail)
        return bytes(message.SerializeToString(deterministic=True))

    def load(self, kind: type[Any], data: bytes) -> Any:
        """Return the payload of :meth:`dump`; raises OfferRejected for anything else."""
        field, record = field_of(kind, self._box.DESCRIPTOR)
        message = self._box()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise OfferRejected(f"expected {field}, received other bytes") from error
        received = message.WhichOneof(self._oneof)
        if received != field:
            raise OfferRejected(f"expected {field}, received {received}")
        return record.take(getattr(message, field), _Tail())
