"""Parts that are one long bytes field, written and read without a message object.

protobuf's objects copy a field when it is set, when its message becomes part of another, and when
that is serialised. Here the bytes are copied once, into the frame, and once out of it. What is
written is what protobuf would write; anything of another form is left to protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

_BYTES = 2
"""Wire type of bytes and messages."""


def head(number: int, n_bytes: int) -> bytes:
    """Return what precedes a field of bytes: its tag and its length."""
    out = bytearray()
    for value in (number << 3 | _BYTES, n_bytes):
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


class LongBytes:
    """A part with one field of bytes; to a decoder it looks like the message.

    Parameters
    ----------
    kind : str
        Name of the field, in the message's ``oneof``.
    """

    __slots__ = ("data", "kind", "number")

    def __init__(self, kind: str, number: int, data: bytes | memoryview) -> None:
        self.kind = kind
        self.number = number
        self.data = data

    def WhichOneof(self, group: str) -> str:  # noqa: N802 - as a message's
        """Return the field's name."""
        return self.kind

    def __getattr__(self, name: str) -> bytes | memoryview:
        if name == self.kind:
            return self.data
        raise AttributeError(name)

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the part as protobuf writes it."""
        return b"".join((head(self.number, len(self.data)), self.data))

    def ByteSize(self) -> int:  # noqa: N802
        """Return its length."""
        return len(head(self.number, len(self.data))) + len(self.data)


class Serialised:
    """A part that is written already.

    Parameters
    ----------
    data : bytes
        As protobuf writes it.
    """

    __slots__ = ("_data", "_message")

    def __init__(self, message: type[Message], data: bytes) -> None:
        self._message = message
        self._data = data

    def message(self) -> Message:
        """Return the part as a decoder gets it."""
        return self._message.FromString(self._data)

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the part as protobuf writes it."""
        return self._data

    def ByteSize(self) -> int:  # noqa: N802
        """Return its length."""
        return len(self._data)


Part = Message | LongBytes | Serialised
"""What an encoder yields."""


def frame(number: int, part: Part) -> bytes:
    """Return a serialised message that has nothing but field ``number``, which is ``part``."""
    pieces: Sequence[bytes | memoryview]
    if isinstance(part, LongBytes):
        pieces = (head(part.number, len(part.data)), part.data)
    else:
        pieces = (part.SerializeToString(),)
    return b"".join((head(number, sum(len(piece) for piece in pieces)), *pieces))


def opened(data: bytes, number: int, kind: str, inner: int) -> LongBytes | None:
    """Return the part of a frame that has field ``number`` with field ``inner`` and no more.

    ``None`` for everything else, which protobuf is to parse.
    """
    at = 0
    for field in (number, inner):
        tag = head(field, 0)[:-1]
        if not data.startswith(tag, at):
            return None
        n_bytes, at = _varint(data, at + len(tag))
        if n_bytes != len(data) - at:
            return None
    return LongBytes(kind, inner, memoryview(data)[at:])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 35 bits and where it ends; -1 for anything else."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return -1, at
