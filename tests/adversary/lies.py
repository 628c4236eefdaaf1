"""Changes of one field of a message, found from its descriptor: a new field has its lies at once.

A payload is its parts, as its codec encodes them. :func:`targets` lists every field that can be
lied in, with its lies; :func:`told` returns parts in which one is told.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hedgerow.api.federation.v1.extension_pb2 import ExtensionPart
from hedgerow.services.wire import codec_of, extension
from hedgerow.services.wire.bulk import LongBytes, Serialised
from hedgerow.services.wire.records import TYPES

Path = tuple[tuple[str, Any], ...]
Parts = tuple[Message, ...]

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_DTYPES = {number: np.dtype(name) for name, number in TYPES.items()}

NUMBER = ("zero", "one", "minus one", "most", "least", "more by one", "less by one", "any")
FLOAT = ("zero", "one", "negated", "nan", "infinite", "largest", "smallest", "next", "doubled")
TRUTH = ("negated",)
BYTES = ("empty", "shorter", "longer", "first bit", "a bit", "zeros", "ones", "word", "another's")
TEXT = ("empty", "longer", "other", "huge", "another's")
CHOICE = ("next", "unknown", "zero")
LIST = ("dropped", "doubled", "reversed", "emptied", "extended", "another's")
TABLE = ("dropped", "renamed", "swapped", "emptied", "added", "another's")
PART = ("absent", "blank", "filled", "another's")
TENSOR = ("element", "element swapped", "element more", "element less", "turned")
FRAMES = ("part dropped", "part doubled", "parts reversed", "part blank", "bytes behind")


@dataclass(frozen=True, slots=True)
class Target:
    """A field of a part, and the lies that can be told in it.

    ``pair`` is its message and name: what coverage counts.
    """

    part: int
    path: Path
    pair: str
    lies: tuple[str, ...]


def parts_of(payload: Any) -> Parts:
    """Return the parts of a payload as messages of their own."""
    encoded = codec_of(of := type(payload)).encode(payload)
    parts: list[Any] = [one.message() if isinstance(one, Serialised) else one for one in encoded]
    kind = type(parts[0]) if parts else None
    whole = tuple(
        kind(**{part.kind: bytes(part.data)}) if isinstance(part, LongBytes) else part
        for part in parts
    )
    if kind is ExtensionPart:  # what a package's payload has, in place of its bytes
        return (extension.opened(of, whole[0].record), *whole[1:])
    return whole


def decoded(kind: type[Any], parts: Parts) -> Any:
    """Return a payload of parts that went over the wire."""
    codec = codec_of(kind)
    if codec.frame == "extension":
        own = extension.message_of(kind)
        parts = tuple(extension.closed(kind, p) if isinstance(p, own) else p for p in parts)
    serialised = [part.SerializeToString() for part in parts]
    kinds = [type(part) for part in parts]
    return codec.decode(of.FromString(data) for of, data in zip(kinds, serialised, strict=True))


def targets(parts: Parts) -> list[Target]:
    """Return every field of a payload, those that are not set too."""
    found = []
    for number, part in enumerate(parts):
        found += [Target(number, *rest) for rest in _targets(part, ())]
    if parts:
        name = type(parts[0]).__name__
        found.append(Target(0, (), f"{name}: frames", FRAMES))
    return found


def _targets(message: Message, path: Path) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    descriptor = message.DESCRIPTOR
    if descriptor.name == "Tensor":
        yield path, f"{descriptor.full_name}: elements", TENSOR
    for field in descriptor.fields:
        here = (*path, (field.name, None))
        pair = f"{descriptor.full_name}.{field.name}"
        value = getattr(message, field.name)
        if _is_map(field):
            yield here, pair, TABLE
            if field.message_type.fields_by_name["value"].message_type is not None and value:
                yield from _targets(value[min(value)], (*path, (field.name, min(value))))
            continue
        if field.is_repeated:
            yield here, pair, LIST
            if not value:
                continue
            if field.message_type is None:
                yield (*path, (field.name, 0)), pair, _scalar_lies(field)
                continue
            for k in {0, len(value) - 1}:
                yield from _targets(value[k], (*path, (field.name, k)))
            continue
        if field.message_type is None:
            yield here, pair, _scalar_lies(field)
        else:
            other = not path and field.containing_oneof and not message.HasField(field.name)
            # Another message in place of this one: one group, however many there are.
            yield here, f"{descriptor.full_name}: others" if other else pair, PART
            if message.HasField(field.name):
                yield from _targets(value, here)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar_lies(field: FieldDescriptor) -> tuple[str, ...]:
    if field.cpp_type in _INTEGERS:
        return NUMBER
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return FLOAT
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return TRUTH
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return CHOICE
    return BYTES if field.type == FieldDescriptor.TYPE_BYTES else TEXT


def told(parts: Parts, target: Target, lie: str, other: Parts, rng: Random) -> Parts:
    """Return parts with a lie in them.

    Parameters
    ----------
    other : parts
        Another payload of the same kind, from which the lie ``another's`` takes its value.
    """
    copies = []
    for part in parts:
        copy = type(part)()
        copy.CopyFrom(part)
        copies.append(copy)
    if lie in FRAMES:
        return _frames(copies, lie, rng)
    message: Any = copies[target.part]
    counterpart: Any = other[target.part] if target.part < len(other) else message
    if lie in TENSOR:
        _tensor(_at(message, target.path), lie, rng)
        return tuple(copies)
    *above, (name, key) = target.path
    holder = _at(message, above)
    twin = _at(counterpart, above)
    field = holder.DESCRIPTOR.fields_by_name[name]
    if _is_map(field):
        _table(holder, twin, field, lie, rng)
    elif field.is_repeated and key is None:
        _list(holder, twin, field, lie)
    elif field.message_type is not None:
        _part(holder, twin, field, lie)
    elif field.is_repeated:
        values = getattr(holder, name)
        index = rng.choice(range(len(values)))  # IndexError where a run has none
        theirs = getattr(twin, name) if twin is not None else ()
        values[index] = _scalar(field, values[index], lie, rng, theirs[0] if theirs else None)
    else:
        theirs = getattr(twin, name) if twin is not None else None
        setattr(holder, name, _scalar(field, getattr(holder, name), lie, rng, theirs))
    return tuple(copies)


def _at(message: Any, path: Sequence[tuple[str, Any]]) -> Any:
    """Return the message at a path; None where a counterpart does not have it."""
    for name, key in path:
        inner = getattr(message, name)
        if key is None:
            message = inner
        elif (isinstance(key, int) and key >= len(inner)) or (
            not isinstance(key, int) and key not in inner
        ):
            return None
        else:
            message = inner[key]
    return message


def _frames(parts: list[Any], lie: str, rng: Random) -> Parts:
    k = rng.randrange(len(parts))
    if lie == "part dropped":
        del parts[k]
    elif lie == "part doubled":
        parts.insert(k, parts[k])
    elif lie == "parts reversed":
        parts.reverse()
    elif lie == "part blank":
        parts[k] = type(parts[k])()
    else:
        behind = type(parts[-1])()
        if "more" in behind.DESCRIPTOR.fields_by_name:
            behind.more = rng.randbytes(8)
        parts.append(behind)
    return tuple(parts)


def _scalar(field: FieldDescriptor, value: Any, lie: str, rng: Random, theirs: Any) -> Any:
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        return min(max(_number(value, lie, rng, least, most), least), most)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return not value
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [known.number for known in field.enum_type.values]
        position = numbers.index(value) if value in numbers else 0
        following = numbers[(position + 1) % len(numbers)]
        return {"zero": 0, "unknown": max(numbers) + 3, "next": following}[lie]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, lie, rng, theirs or b"")
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text(value, lie, theirs or "")
    return _float(value, lie)


def _number(value: int, lie: str, rng: Random, least: int, most: int) -> int:
    if lie == "any":
        return rng.randint(least, most)
    return {
        "zero": 0,
        "one": 1,
        "minus one": -1,
        "most": most,
        "least": least,
        "more by one": value + 1,
        "less by one": value - 1,
    }[lie]


def _float(value: float, lie: str) -> float:
    return {
        "zero": 0.0,
        "one": 1.0,
        "negated": -value,
        "nan": math.nan,
        "infinite": math.inf,
        "largest": 1e300,
        "smallest": 5e-324,
        "next": math.nextafter(value, math.inf),
        "doubled": 2 * value + 1,
    }[lie]


def _bytes(value: bytes, lie: str, rng: Random, theirs: bytes) -> bytes:
    if lie == "another's":
        return theirs
    if lie == "longer":
        return value + rng.randbytes(1 + rng.randrange(8))
    if lie == "empty" or not value:
        return b""
    if lie == "shorter":
        return value[: rng.randrange(len(value))]
    if lie == "zeros":
        return bytes(len(value))
    if lie == "ones":
        return b"\xff" * len(value)
    changed = bytearray(value)
    if lie == "word":
        at = 8 * rng.randrange(max(len(value) // 8, 1))
        word = rng.choice([0, 1, (1 << 63) - 1, (1 << 64) - 1, rng.getrandbits(64)])
        changed[at : at + 8] = struct.pack("<Q", word)[: len(changed) - at]
    else:
        at = 0 if lie == "first bit" else rng.randrange(len(value))
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _text(value: str, lie: str, theirs: str) -> str:
    return {
        "empty": "",
        "longer": value + "x",
        "other": "=cmd|\x00\u202e",
        "huge": "silo" * 5000,
        "another's": theirs,
    }[lie]


def _list(holder: Any, twin: Any, field: FieldDescriptor, lie: str) -> None:
    values = getattr(holder, field.name)
    items = list(values)
    if lie == "another's":
        items = list(getattr(twin, field.name)) if twin is not None else []
    elif lie == "dropped":
        items = items[:-1]
    elif lie == "doubled":
        items = items[:1] + items
    elif lie == "reversed":
        items.reverse()
    elif lie == "emptied":
        items = []
    kept = [item if field.message_type is None else _copy(item) for item in items]
    holder.ClearField(field.name)
    values = getattr(holder, field.name)
    values.extend(kept)
    if lie == "extended":
        if field.message_type is not None:
            values.add()
        else:
            values.append(_blank(field))


def _table(holder: Any, twin: Any, field: FieldDescriptor, lie: str, rng: Random) -> None:
    nested = field.message_type.fields_by_name["value"].message_type is not None
    values = getattr(holder, field.name)
    items = {key: _copy(values[key]) if nested else values[key] for key in sorted(values)}
    if lie == "another's":
        theirs = getattr(twin, field.name) if twin is not None else {}
        items = {key: _copy(theirs[key]) if nested else theirs[key] for key in sorted(theirs)}
    elif lie == "emptied":
        items = {}
    elif lie == "added":
        extra = next(iter(items.values()), None)
        if extra is None:
            values.get_or_create("silo-9") if nested else values.update({"silo-9": _value(field)})
            return
        items["silo-9"] = extra
    elif items:
        key = rng.choice(sorted(items))
        if lie == "dropped":
            del items[key]
        elif lie == "renamed":
            items["silo-9"] = items.pop(key)
        else:
            names = sorted(items)
            items = dict(zip(names, [items[name] for name in (*names[1:], names[0])], strict=True))
    holder.ClearField(field.name)
    values = getattr(holder, field.name)
    for key, value in items.items():
        if nested:
            values[key].CopyFrom(value)
        else:
            values[key] = value


def _value(field: FieldDescriptor) -> Any:
    return _blank(field.message_type.fields_by_name["value"])


def _blank(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"\x01" * 32
    if field.type == FieldDescriptor.TYPE_STRING:
        return "silo-9"
    return 1


def _part(holder: Any, twin: Any, field: FieldDescriptor, lie: str) -> None:
    if lie == "another's":
        if twin is not None and twin.HasField(field.name):
            getattr(holder, field.name).CopyFrom(getattr(twin, field.name))
        return
    holder.ClearField(field.name)
    if lie == "absent":
        return
    inner = getattr(holder, field.name)
    inner.SetInParent()
    if lie == "filled":
        for part in inner.DESCRIPTOR.fields:
            if part.message_type is None and not part.is_repeated:
                setattr(inner, part.name, _blank(part))


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _tensor(tensor: Any, lie: str, rng: Random) -> None:
    """Change elements of a tensor that stays well formed."""
    dtype = _DTYPES.get(tensor.type)
    if dtype is None:
        return
    array = np.frombuffer(tensor.data, dtype).copy()
    if lie == "turned":
        array = array[::-1]
    elif lie == "element more":
        array = np.append(array, array[-1:] if array.size else np.zeros(1, dtype)).astype(dtype)
    elif lie == "element less":
        array = array[:-1]
    elif array.size:
        k = rng.choice(range(array.size))
        if lie == "element swapped":
            j = rng.choice(range(array.size))
            array[[k, j]] = array[[j, k]]
        else:
            array[k] = _element(array[k], dtype, rng)
    if lie.endswith(("more", "less")) and tensor.shape:
        rest = int(np.prod(tensor.shape[1:])) if len(tensor.shape) > 1 else 1
        array = array[: len(array) // max(rest, 1) * max(rest, 1)]
        tensor.shape[0] = len(array) // max(rest, 1)
    tensor.data = np.ascontiguousarray(array).tobytes()


def _element(value: Any, dtype: Any, rng: Random) -> Any:
    if dtype.kind == "b":
        return not value
    if dtype.kind == "f":
        lie = rng.choice(FLOAT)
        with np.errstate(over="ignore"):
            return dtype.type(_float(float(value), lie))
    info = np.iinfo(dtype)
    lie = rng.choice(NUMBER)
    return min(max(_number(int(value), lie, rng, info.min, info.max), info.min), info.max)
