"""Durable records in slots: a new one replaces the old, which never passes for it afterwards.

A key has two files, written in turn and in place. So a record is durable by one flush of data that
mostly changes nothing else of the file system, which takes a quarter of the time of a new file,
its renaming and the flushes of both; secure sums wait for it at every sum. What a crash or a full
disk leaves half-written is the older slot.

Whether the newest slot was torn while it was written, and so was never relied on, or damaged later
is recognised by a counter in another folder: it has the number of the last record that was on disk,
it is set after that record's flush, and it needs none of its own. After a power cut it may be
behind, never ahead. Slots and counter carry a keyed checksum. A record that is older than the
counter, or whose counter is lost while not both slots are whole, is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.boosting.errors import FederationError, StateUnwritable
from hedgerow.crypto.durable import sync_folder, write_atomically

_MAGIC = b"hedgerow record2"
_HEAD = struct.Struct("<16sQQ32s")
_COUNTER = struct.Struct("<Q32s")
_BLOCK = 1 << 14
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RecordDamaged(FederationError):
    """A record that cannot be proven to be the newest one that was written."""


@contextlib.contextmanager
def writing_state() -> Iterator[None]:
    """Raise what the disk refuses as :class:`StateUnwritable`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StateUnwritable("the disk of this silo's state folder is full") from error
        why = error.strerror or type(error).__name__
        raise StateUnwritable(f"this silo's state folder cannot be written: {why}") from error


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a folder."""

    folder: Path
    """Of the slots."""
    counters: Path
    """Another folder, of the counters."""
    key: bytes
    """Of the checksums, 32 bytes."""
    _written: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def write(self, name: str, value: bytes) -> None:
        """Store a record as the newest of its name; it is on disk when this returns.

        Raises
        ------
        RecordDamaged
            The one before cannot be proven to be the newest.
        OSError
            It is not stored; the one before is.
        """
        turn = self._turn(name) + 1
        if turn == 1:
            self._begin(name)
        data = _HEAD.pack(_MAGIC, turn, len(value), self._checksum(name, turn, value)) + value
        slot = self._slot(name, turn)
        fresh = turn <= 2 or not os.path.exists(slot)
        descriptor = os.open(slot, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < len(data):
                # Room to grow, so that the next records change the file's data only.
                data += bytes(-len(data) % _BLOCK)
            rest = memoryview(data)
            at = 0
            while at < len(data):
                at += os.pwrite(descriptor, rest[at:], at)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if fresh:
            sync_folder(self.folder)
        with contextlib.suppress(OSError):  # it is behind then, which is no harm
            self._count(name, turn)
            self._written[name] = turn

    def _turn(self, name: str) -> int:
        """Return the number of the newest record, 0 where there is none.

        What this object has written itself and the counter confirms is not read again.
        """
        turn = self._written.pop(name, None)
        if turn is None or self._counted(name) != turn:
            turn, _ = self._newest(name) or (0, b"")
        return turn

    def read(self, name: str) -> bytes | None:
        """Return the newest record of a name, or None where there was none.

        Raises
        ------
        RecordDamaged
            What is there may be older than what was written last.
        """
        newest = self._newest(name)
        return None if newest is None else newest[1]

    def _newest(self, name: str) -> tuple[int, bytes] | None:
        slots = [self._read(name, turn) for turn in (1, 2)]
        whole = [slot for slot in slots if slot is not None]
        newest = max(whole, default=None)
        count = self._counted(name)
        if newest is None and (count == 0 or not self._exists(name)):
            return None  # the first one was torn, if there was any
        if newest is not None and count is not None and newest[0] >= count:
            return newest
        in_turn = len(whole) == 2 and abs(whole[0][0] - whole[1][0]) == 1
        if newest is not None and count is None and in_turn:
            return newest
        raise RecordDamaged(
            f"the record {self.folder.name}/{name} is damaged on this silo's disk, or older than "
            "the last one written: what the silo has revealed or spent is not known any more"
        )

    def _exists(self, name: str) -> bool:
        files = (self._slot(name, 1), self._slot(name, 2), self.counters / name)
        return any(os.path.exists(file) for file in files)

    def _slot(self, name: str, turn: int) -> str:
        return os.path.join(self.folder, f"{name}.{(turn - 1) % 2}")

    def _read(self, name: str, turn: int) -> tuple[int, bytes] | None:
        """Return what the slot of a turn holds, or None where it is not whole."""
        slot = self._slot(name, turn)
        try:
            data = Path(slot).read_bytes()
        except OSError:
            return None
        if len(data) < _HEAD.size:
            return None
        magic, found, n_bytes, checksum = _HEAD.unpack_from(data)
        value = data[_HEAD.size : _HEAD.size + n_bytes]
        if magic != _MAGIC or len(value) != n_bytes or self._slot(name, found) != slot:
            return None
        if not hmac.compare_digest(checksum, self._checksum(name, found, value)):
            return None
        return found, value

    def _begin(self, name: str) -> None:
        """Make the counter durable before the first record, so that it is never missing."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.counters / name, self._counter(name, 0))

    def _count(self, name: str, turn: int) -> None:
        path = os.path.join(self.counters, name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, self._counter(name, turn), 0)
        finally:
            os.close(descriptor)

    def _counter(self, name: str, turn: int) -> bytes:
        return _COUNTER.pack(turn, self._checksum(name, turn, None))

    def _counted(self, name: str) -> int | None:
        """Return the number of the last record that was on disk; None where that is lost."""
        try:
            with open(os.path.join(self.counters, name), "rb", buffering=0) as file:
                turn, checksum = _COUNTER.unpack(file.read())
        except (OSError, struct.error):
            return None
        whole = hmac.compare_digest(checksum, self._checksum(name, turn, None))
        return int(turn) if whole else None

    def _checksum(self, name: str, turn: int, value: bytes | None) -> bytes:
        kind = b"counter" if value is None else b"record"
        head = b"\0".join((kind, name.encode(), turn.to_bytes(8, "little")))
        return hmac.digest(self.key, head + (value or b""), "sha256")
