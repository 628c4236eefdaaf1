"""Durable records in slots: a record replaces the one before it, and one of them is always whole.

A key has two files, written in turn and in place. So a record is durable by one flush of data that
mostly changes nothing else of the file system, which takes a quarter of the time of a new file,
its renaming and the flushes of both; secure sums wait for it at every sum. What a crash or a full
disk leaves half-written is the older slot, and its digest tells.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.durable import sync_folder

_MAGIC = b"hedgerow record1"
_HEAD = struct.Struct("<16sQQ32s")
_BLOCK = 1 << 14


class RecordDamaged(FederationError):
    """Neither slot of a record is whole, which is not what a crash leaves."""


def write_record(file: Path, value: bytes) -> None:
    """Store a record as the newest of ``file``; it is on disk when this returns."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    turns = [0 if record is None else record[0] for record in _records(file)]
    older = turns.index(min(turns))
    turn = max(turns) + 1
    data = _HEAD.pack(_MAGIC, turn, len(value), _digest(turn, value)) + value
    slot = _slots(file)[older]
    fresh = not slot.exists()
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
        sync_folder(file.parent)


def read_record(file: Path) -> bytes | None:
    """Return the newest whole record of ``file``, or None.

    Raises
    ------
    RecordDamaged
    """
    found = [record for record in _records(file) if record is not None]
    return max(found)[1] if found else None


def _slots(file: Path) -> list[Path]:
    return [file.with_name(f"{file.name}.{k}") for k in range(2)]


def _records(file: Path) -> list[tuple[int, bytes] | None]:
    """Return what the slots hold: which record, and its value; None for no whole one."""
    slots = _slots(file)
    records = [_read(slot) for slot in slots]
    # A crash tears the slot being written; the second is made after the first is whole on disk.
    if records == [None, None] and slots[1].exists():
        raise RecordDamaged(
            "a record of this job is damaged on this silo's disk: what it has let be unmasked is "
            "not known any more"
        )
    return records


def _read(slot: Path) -> tuple[int, bytes] | None:
    try:
        data = slot.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, turn, n_bytes, digest = _HEAD.unpack_from(data)
    value = data[_HEAD.size : _HEAD.size + n_bytes]
    if magic != _MAGIC or len(value) != n_bytes or digest != _digest(turn, value):
        return None
    return turn, value


def _digest(turn: int, value: bytes) -> bytes:
    return hashlib.sha256(turn.to_bytes(8, "little") + value).digest()
