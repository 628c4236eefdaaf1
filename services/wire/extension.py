"""Payloads and parameters of strategies that are packages of their own.

Nothing of them is in a ``.proto``: the message of a dataclass is made of its fields, numbered from
1 in their order, and coded as the payloads here are, by :mod:`.records`. Nothing on the wire names
what is made of it: the receiver's own half of the strategy says which payload a step has.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache, partial
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from hedgerow.api.federation.v1 import extension_pb2, tensor_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import Elements
from hedgerow.services.wire import records
from hedgerow.services.wire.bounds import n_elements
from hedgerow.services.wire.bulk import Part

_PACKAGE = "hedgerow.extension"
_SCALARS = {
    int: FieldDescriptorProto.TYPE_SINT64,
    float: FieldDescriptorProto.TYPE_DOUBLE,
    bool: FieldDescriptorProto.TYPE_BOOL,
    str: FieldDescriptorProto.TYPE_STRING,
    bytes: FieldDescriptorProto.TYPE_BYTES,
}


def encode(payload: Any) -> Iterator[Part]:
    """Yield the parts of a payload: its record, then what its arrays have over 1 MiB."""
    kind: Any = type(payload)
    message = message_of(kind)()
    deferred = _record(kind).write_all(message, payload)
    yield closed(kind, message)
    yield from records.rest(extension_pb2.ExtensionPart, deferred)


def closed(kind: Any, message: Any) -> extension_pb2.ExtensionPart:
    """Return the part that carries the message of a payload."""
    content = message.SerializeToString(deterministic=True)
    return extension_pb2.ExtensionPart(
        record=extension_pb2.ExtensionRecord(name=_wire_name(kind), content=content)
    )


def opened(kind: Any, record: extension_pb2.ExtensionRecord) -> Any:
    """Return the message of a payload; raises OfferRejected for another's, or other bytes."""
    if record.name != _wire_name(kind):
        raise OfferRejected(f"expected a {_wire_name(kind)}, received {record.name[:80]!r}")
    try:
        content = message_of(kind).FromString(record.content)
    except DecodeError as error:
        raise OfferRejected(f"{_wire_name(kind)}: the content is no such message") from error
    n_elements(content)
    return content


def decode(kind: Any, messages: Iterable[Any]) -> Any:
    """Return the payload of :func:`encode`; raises as :func:`.records.decode` does."""
    return records.decode("record", _record(kind), messages, partial(opened, kind))


def _wire_name(kind: Any) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


@cache
def _record(kind: Any) -> records.Record:
    return records.Record(kind, message_of(kind).DESCRIPTOR)


def parameters_message(kind: Any) -> type[Any]:
    """Return the type of the message of a strategy's parameters.

    Raises
    ------
    TypeError
        A parameter that is no number, text, truth value or tuple of these.
    """
    message = message_of(kind)
    for field in message.DESCRIPTOR.fields:
        if field.type not in set(_SCALARS.values()) - {_SCALARS[bytes]}:
            raise TypeError(f"{kind.__name__}.{field.name}: a job file has no such values")
    return message


@cache
def message_of(kind: Any) -> type[Any]:
    """Return the type of the message that is made of a dataclass.

    Raises
    ------
    TypeError
        A field whose type does not travel, or a dataclass that contains itself.
    """
    file = FileDescriptorProto(
        name=f"{_wire_name(kind)}.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[tensor_pb2.DESCRIPTOR.name],
        message_type=[_message(kind, f".{_PACKAGE}", ())],
    )
    pool = descriptor_pool.DescriptorPool()  # of its own: names of two packages may be the same
    pool.AddSerializedFile(tensor_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{kind.__name__}"))


def _message(kind: type[Any], scope: str, around: tuple[type[Any], ...]) -> DescriptorProto:
    if not dataclasses.is_dataclass(kind) or kind in around:
        raise TypeError(f"{kind.__name__}: expected a dataclass that does not contain itself")
    message = DescriptorProto(name=kind.__name__)
    hints = typing.get_type_hints(kind, include_extras=True)
    for number, own in enumerate(dataclasses.fields(kind), 1):
        if own.name.endswith("_"):
            raise TypeError(f"{kind.__name__}.{own.name}: expected a name that ends in no _")
        field = message.field.add(name=own.name, number=number)
        _type(field, hints[own.name], message, f"{scope}.{kind.__name__}", (*around, kind))
        if field.label != FieldDescriptorProto.LABEL_REPEATED:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
            if not field.type_name or field.type == FieldDescriptorProto.TYPE_ENUM:
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{own.name}")
    return message


def _type(
    field: FieldDescriptorProto,
    kind: Any,
    message: DescriptorProto,
    scope: str,
    around: tuple[type[Any], ...],
) -> None:
    """Give a field its type; what the type needs becomes a part of the field's message."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        if any(isinstance(one, Elements) for one in kind.__metadata__):
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{tensor_pb2.Tensor.DESCRIPTOR.full_name}"
        else:
            _type(field, kind.__origin__, message, scope, around)
    elif origin in (typing.Union, types.UnionType):
        kinds = [one for one in arguments if one is not type(None)]
        if len(kinds) != 1 or typing.get_origin(kinds[0]) is tuple:
            raise TypeError(f"{field.name}: {kind} does not travel")
        _type(field, kinds[0], message, scope, around)
    elif origin is tuple and arguments[1:] == (...,) and not field.HasField("label"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
        _type(field, arguments[0], message, scope, around)
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif isinstance(kind, type) and issubclass(kind, Enum):
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f"{scope}.{kind.__name__}"
        if all(known.name != kind.__name__ for known in message.enum_type):
            message.enum_type.append(_enum(kind))
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f"{scope}.{kind.__name__}"
        if all(known.name != kind.__name__ for known in message.nested_type):
            message.nested_type.append(_message(kind, scope, around))
    else:
        raise TypeError(f"{field.name}: {kind} does not travel")


def _enum(kind: type[Enum]) -> EnumDescriptorProto:
    prefix = f"{kind.__name__.upper()}_"
    found = EnumDescriptorProto(name=kind.__name__)
    for number, name in enumerate(("UNSPECIFIED", *(member.name for member in kind))):
        found.value.add(name=prefix + name, number=number)
    return found
