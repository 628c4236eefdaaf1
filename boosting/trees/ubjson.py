"""The subset of Universal Binary JSON that XGBoost writes, read into and written from numpy.

Model files store their numbers as typed arrays, so reading one takes a few hundred copies of memory
and is exact to the bit; the JSON form of the same model is a hundred times slower to parse and
rounds twice. :func:`write` gives XGBoost's own bytes: ``write(read(raw)) == raw``.

References
----------
Universal Binary JSON specification, draft 12; lengths and key order as in XGBoost 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

Value = Any
"""None, bool, int, float, str, numpy array, or a list or string-keyed dict of values."""

_INTEGERS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q"}
_FLOATS = {"d": ">f", "D": ">d"}
_TYPED = {marker: np.dtype(code) for marker, code in {
    "d": ">f4", "D": ">f8", "U": "u1", "i": "i1", "I": ">i2", "l": ">i4", "L": ">i8"
}.items()}  # fmt: skip
_NATIVE = {dtype: dtype.newbyteorder("=") for dtype in _TYPED.values()}
_MARKER = {
    np.dtype(np.float32): "d",
    np.dtype(np.float64): "D",
    np.dtype(np.uint8): "U",
    np.dtype(np.int8): "i",
    np.dtype(np.int16): "I",
    np.dtype(np.int32): "l",
    np.dtype(np.int64): "L",
}
_MAX_DEPTH = 64
_length = struct.Struct(">q")


class MalformedUbjson(ValueError):
    """Bytes that are not Universal Binary JSON as XGBoost writes it."""


class _Reader:
    """A cursor over the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        piece = self.data[self.at : self.at + n]
        if n < 0 or len(piece) != n:
            raise MalformedUbjson(f"expected {n} bytes at offset {self.at}")
        self.at += n
        return piece

    def marker(self) -> str:
        return chr(self.take(1)[0])

    def length(self) -> int:
        at = self.at + 9
        if self.data[self.at : self.at + 1] == b"L" and at <= len(self.data):  # as XGBoost does
            length: int = _length.unpack_from(self.data, self.at + 1)[0]
            self.at = at
            return length
        marker = self.marker()
        code = _INTEGERS.get(marker)
        if code is None:
            raise MalformedUbjson(f"expected a length at offset {self.at - 1}")
        return int(struct.unpack(code, self.take(struct.calcsize(code)))[0])

    def text(self) -> str:
        try:
            return str(self.take(self.length()), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedUbjson(f"expected UTF-8 before offset {self.at}") from error

    def value(self, marker: str, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise MalformedUbjson(f"expected at most {_MAX_DEPTH} levels of nesting")
        if marker == "{":
            return self.object(depth)
        if marker == "[":
            return self.array(depth)
        if marker == "S":
            return self.text()
        if marker in "ZTF":
            return {"Z": None, "T": True, "F": False}[marker]
        code = _INTEGERS.get(marker) or _FLOATS.get(marker)
        if code is None:
            raise MalformedUbjson(f"unknown marker at offset {self.at - 1}")
        number: int | float = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return number

    def object(self, depth: int) -> dict[str, Value]:
        members: dict[str, Value] = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self.text()
            members[key] = self.value(self.marker(), depth + 1)
        self.at += 1
        return members

    def array(self, depth: int) -> Value:
        head = self.data[self.at : self.at + 1]
        if head == b"$":
            self.at += 1
            dtype = _TYPED.get(self.marker())
            if dtype is None or self.take(1) != b"#":
                raise MalformedUbjson(f"unknown element type before offset {self.at}")
            raw = self.take(self.length() * dtype.itemsize)
            return np.frombuffer(raw, dtype).astype(_NATIVE[dtype])
        items: list[Value] = []
        if head == b"#":
            self.at += 1
            for _ in range(self.length()):
                items.append(self.value(self.marker(), depth + 1))
            return items
        while self.data[self.at : self.at + 1] != b"]":
            items.append(self.value(self.marker(), depth + 1))
        self.at += 1
        return items


def read(data: bytes) -> dict[str, Value]:
    """Return the document in ``data``.

    Typed arrays become numpy arrays of native byte order, plain arrays lists.

    Raises
    ------
    MalformedUbjson
        Truncated, of an unknown type, or followed by more bytes.
    """
    reader = _Reader(bytes(data))
    if reader.marker() != "{":
        raise MalformedUbjson("expected a document that begins with an object")
    document = reader.object(0)
    if reader.at != len(reader.data):
        raise MalformedUbjson(f"{len(reader.data) - reader.at} bytes after the document")
    return document


def write(document: Mapping[str, Value]) -> bytes:
    """Return the bytes of a document, keys sorted as XGBoost sorts them."""
    out: list[bytes] = []
    _put(document, out)
    return b"".join(out)


def _put_text(text: str, out: list[bytes]) -> None:
    raw = text.encode()
    out += (b"L", _length.pack(len(raw)), raw)


def _put(value: Value, out: list[bytes]) -> None:
    if isinstance(value, str):
        out.append(b"S")
        _put_text(value, out)
    elif isinstance(value, np.ndarray):
        marker = _MARKER[value.dtype]
        big = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder(">"))
        out += (b"[$", marker.encode(), b"#L", _length.pack(value.size), big.tobytes())
    elif isinstance(value, Mapping):
        out.append(b"{")
        for key in sorted(value):
            _put_text(key, out)
            _put(value[key], out)
        out.append(b"}")
    elif isinstance(value, bool):
        out.append(b"T" if value else b"F")
    elif isinstance(value, int):
        out.append(_integer(value))
    elif isinstance(value, float):
        out += (b"d", struct.pack(">f", value))
    elif value is None:
        out.append(b"Z")
    else:
        out += (b"[#L", _length.pack(len(value)))
        for item in value:
            _put(item, out)


def _integer(value: int) -> bytes:
    for marker, bits in (("i", 8), ("I", 16), ("l", 32)):
        if -(1 << (bits - 1)) < value < (1 << (bits - 1)) - 1:  # XGBoost leaves out both ends
            return marker.encode() + struct.pack(_INTEGERS[marker], value)
    return b"L" + struct.pack(">q", value)
