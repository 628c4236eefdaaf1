"""The silo's ledger: an append-only, hash-chained record of every payload that left it.

One JSON object a line. ``chain`` is the SHA-256 of the previous line's chain and this line's other
fields, so that a deleted, changed or reordered line is found. A line is on disk before its bytes
are sent; when the disk is full, nothing is sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boosting.ports import FederationError, Place, Step

FIRST = "0" * 64
"""Chain value before the first line."""


class LedgerBroken(FederationError):
    """A line of the ledger is missing, changed or out of order; names the line."""


class LedgerFull(FederationError):
    """A line could not be made durable, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One payload that left the silo.

    Parameters
    ----------
    time : float
        Seconds since 1970.
    bytes : int
        Protobuf bytes of all its frames.
    sha256 : str
        Hex digest of the frames, concatenated.
    reveals : str
        What the payload tells whoever reads it, in the strategy's own words.
    peer : str
        Who received it.
    """

    time: float
    silo: str
    peer: str
    job: str
    round: int
    level: int
    passing: int
    step: str
    call: str
    kind: str
    bytes: int
    sha256: str
    reveals: str


def _chain(previous: str, fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


class SiloLedger:
    """The ledger file of a silo, open for appending.

    Parameters
    ----------
    path : Path
    silo, peer : str
        Names of this silo and of the coordinator.
    now : callable
        Seconds since 1970.

    Raises
    ------
    LedgerBroken
        The file's chain does not hold.
    """

    def __init__(self, path: Path, silo: str, peer: str, now: Callable[[], float]) -> None:
        self._silo, self._peer, self._now = silo, peer, now
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._last = FIRST
        if path.exists():
            _mend(path)
            for _, self._last in _lines(path):
                pass
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(
        self, *, job_id: str, step: Step[Any, Any], at: Place, kind: str, frames: list[bytes]
    ) -> None:
        """Make the line of one payload durable.

        Raises
        ------
        LedgerFull
            The line is not on disk; the payload must not be sent.
        """
        digest = hashlib.sha256()
        for frame in frames:
            digest.update(frame)
        fields: dict[str, Any] = {
            "time": round(self._now(), 3),
            "silo": self._silo,
            "peer": self._peer,
            "job": job_id,
            "round": at.round,
            "level": at.level,
            "passing": at.passing,
            "step": step.name,
            "call": step.call.value,
            "kind": kind,
            "bytes": sum(map(len, frames)),
            "sha256": digest.hexdigest(),
            "reveals": step.reveals,
        }
        with self._lock:
            chain = _chain(self._last, fields)
            line = json.dumps({**fields, "chain": chain}, separators=(",", ":")) + "\n"
            data = line.encode()
            size = os.lseek(self._file, 0, os.SEEK_END)
            try:
                if os.write(self._file, data) != len(data):
                    raise OSError("short write")
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, size)
                raise LedgerFull(
                    f"the ledger of {self._silo} cannot be written ({error.strerror or error}); "
                    "nothing was sent"
                ) from error
            self._last = chain

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _mend(path: Path) -> None:
    """Cut off a last line that a dying process left unfinished: its bytes were never sent."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def _lines(path: Path) -> Iterator[tuple[Entry, str]]:
    last = FIRST
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                fields = json.loads(line)
                chain = fields.pop("chain")
                entry = Entry(**fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LedgerBroken(f"{path} line {number}: not a line of a ledger") from error
            if chain != _chain(last, fields):
                raise LedgerBroken(
                    f"{path} line {number}: the chain does not hold; a line before or at this "
                    "place was changed, removed or moved"
                )
            last = chain
            yield entry, chain


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a ledger, verifying the chain on the way.

    Raises
    ------
    LedgerBroken
        At the first line that does not fit.
    """
    for entry, _ in _lines(path):
        yield entry


def totals(entries: Iterable[Entry]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (lines, bytes) by job and RPC."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for entry in entries:
        count, size = sums.get((entry.job, entry.call), (0, 0))
        sums[entry.job, entry.call] = (count + 1, size + entry.bytes)
    return sums
