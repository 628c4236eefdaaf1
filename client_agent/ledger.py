"""The silo's ledger: an append-only, hash-chained record of every payload that left it.

One JSON object a line. ``chain`` is the SHA-256 of the previous line's chain and this line's other
fields, so that a deleted, changed or reordered line is found. The head, a small file beside the
ledger, has the number of lines and the last chain value, so that lines cut off the end are found
too. A line is on disk before its bytes are sent; when the disk is full, nothing is sent.

The chain has no key: who can rewrite both files can make up a whole new ledger. What such a
ledger cannot do is to agree with the byte counts of the coordinator's record, or with a head that
was noted elsewhere; ``hedgerow ledger verify`` checks both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boosting.ports import FederationError, Place, PolicyDeclined, Step

FIRST = "0" * 64
"""Chain value before the first line."""
_HEAD_BYTES = 20 + 1 + 64 + 1
"""Size of the head: a count of 20 digits, a space, a chain value, a newline."""


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


def head_of(path: Path) -> Path:
    """Return the path of a ledger's head."""
    return path.with_suffix(".head")


class SiloLedger:
    """The ledger file of a silo, open for appending.

    Parameters
    ----------
    path : Path
    silo, peer : str
        Names of this silo and of the coordinator.
    now : callable
        Seconds since 1970.
    max_bytes : int or None
        Most bytes that may leave for one job, over all its attempts.

    Raises
    ------
    LedgerBroken
        The file's chain does not hold, lines are missing at its end, or it is another silo's.
    """

    def __init__(
        self,
        path: Path,
        silo: str,
        peer: str,
        now: Callable[[], float],
        max_bytes: int | None = None,
    ) -> None:
        self._silo, self._peer, self._now, self._max_bytes = silo, peer, now, max_bytes
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._last, self._count = FIRST, 0
        self._sent: dict[str, int] = {}
        if path.exists():
            _mend(path)
            for entry, self._last in _checked(path):
                self._count += 1
                self._sent[entry.job] = self._sent.get(entry.job, 0) + entry.bytes
                if entry.silo != silo:
                    raise LedgerBroken(f"{path} is the ledger of {entry.silo}, not of {silo}")
        elif head_of(path).exists():
            raise LedgerBroken(f"{path} is missing, but its head is there")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._head = os.open(head_of(path), os.O_WRONLY | os.O_CREAT, 0o600)
        self._write_head(self._count, self._last)
        os.fsync(self._head)

    def record(
        self, *, job_id: str, step: Step[Any, Any], at: Place, kind: str, frames: list[bytes]
    ) -> None:
        """Make the line of one payload durable.

        Raises
        ------
        PolicyDeclined
            More bytes would leave for this job than the silo's policy allows.
        LedgerFull
            The line is not on disk; the payload must not be sent.
        """
        digest = hashlib.sha256()
        for frame in frames:
            digest.update(frame)
        n_bytes = sum(map(len, frames))
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
            "bytes": n_bytes,
            "sha256": digest.hexdigest(),
            "reveals": step.reveals,
        }
        with self._lock:
            sent = self._sent.get(job_id, 0) + n_bytes
            if self._max_bytes is not None and sent > self._max_bytes:
                raise PolicyDeclined(
                    f"policy rule max_bytes: {sent} bytes would have left for this job, "
                    f"at most {self._max_bytes}"
                )
            self._append(fields)
            self._sent[job_id] = sent

    def _append(self, fields: dict[str, Any]) -> None:
        chain = _chain(self._last, fields)
        line = json.dumps({**fields, "chain": chain}, separators=(",", ":")) + "\n"
        data = line.encode()
        size = os.lseek(self._file, 0, os.SEEK_END)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("short write")
            os.fsync(self._file)
            self._write_head(self._count + 1, chain)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise LedgerFull(
                f"the ledger of {self._silo} cannot be written ({error.strerror or error}); "
                "nothing was sent"
            ) from error
        self._last, self._count = chain, self._count + 1

    def _write_head(self, count: int, chain: str) -> None:
        # Written in place and not synced: after a power cut it may be behind, never ahead.
        os.pwrite(self._head, f"{count:020d} {chain}\n".encode(), 0)

    def close(self) -> None:
        """Close the files."""
        os.fsync(self._head)
        os.close(self._head)
        os.close(self._file)


def _mend(path: Path) -> None:
    """Cut off a last line that a dying process left unfinished: its bytes were never sent."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def _checked(path: Path) -> Iterator[tuple[Entry, str]]:
    """Yield entries and chain values; at the end the head must have been met."""
    count, chain = read_head(path) or (0, FIRST)
    number, last = 0, FIRST
    for number, (entry, last) in enumerate(_lines(path), 1):
        if number == count and last != chain:
            raise LedgerBroken(f"{path} line {number}: not the line that the head names")
        yield entry, last
    if number < count:
        raise LedgerBroken(
            f"{path}: lines are missing at the end: the head counts {count}, there are {number}"
        )


def read_head(path: Path) -> tuple[int, str] | None:
    """Return the number of lines and the chain value in a ledger's head, if it has one.

    Raises
    ------
    LedgerBroken
        The head is no head.
    """
    try:
        data = head_of(path).read_bytes()
    except FileNotFoundError:
        return None
    if not data.strip(b"\0"):  # a power cut came before anything of it was on disk
        return None
    try:
        count, chain = data.decode("ascii").split()
        if len(data) != _HEAD_BYTES or len(chain) != len(FIRST):
            raise ValueError(len(data))
        return int(count), chain
    except ValueError as error:
        raise LedgerBroken(f"{head_of(path)} is no head of a ledger") from error


def _lines(path: Path) -> Iterator[tuple[Entry, str]]:
    last = FIRST
    with path.open("rb") as file:
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
    """Yield the entries of a ledger, verifying the chain and the head on the way.

    Raises
    ------
    LedgerBroken
        At the first line that does not fit, or at the end when lines are missing there.
    """
    for entry, _ in _checked(path):
        yield entry


@dataclass(frozen=True, slots=True)
class Verified:
    """A ledger that holds.

    Parameters
    ----------
    entries : tuple of Entry
    head : str
        Chain value of the last line; note it elsewhere to prove later that nothing was cut.
    """

    path: Path
    entries: tuple[Entry, ...]
    head: str

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos in its lines."""
        return tuple(sorted({entry.silo for entry in self.entries}))

    def sent(self, job: str) -> int:
        """Return the bytes that left for a job."""
        return sum(entry.bytes for entry in self.entries if entry.job == job)


def verify(path: Path, *, silo: str = "", head: str = "") -> Verified:
    """Read a whole ledger and return it if it holds.

    Parameters
    ----------
    silo : str
        Whose ledger it should be; empty for anybody's.
    head : str
        Chain value that must be in it: one that was noted earlier; empty for none.

    Raises
    ------
    LedgerBroken
        A line was changed, removed or moved, or it is another silo's ledger.
    """
    entries: list[Entry] = []
    last, met = FIRST, not head or head == FIRST
    for entry, last in _checked(path):
        if silo and entry.silo != silo:
            raise LedgerBroken(
                f"{path} line {len(entries) + 1}: of silo {entry.silo}, not of {silo}"
            )
        entries.append(entry)
        met = met or last == head
    if not met:
        raise LedgerBroken(f"{path}: no line has the chain value {head[:16]}… that was noted")
    return Verified(path, tuple(entries), last)


@dataclass(frozen=True, slots=True)
class Total:
    """Payloads of one kind that left for one job."""

    job: str
    step: str
    call: str
    kind: str
    peer: str
    payloads: int
    bytes: int
    first_time: float
    last_time: float
    reveals: str


def totals(entries: Iterable[Entry]) -> tuple[Total, ...]:
    """Return what left by job and kind of payload, in the order of the first of each."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        key = (entry.job, entry.step, entry.call, entry.kind, entry.peer, entry.reveals)
        groups.setdefault(key, []).append(entry)
    return tuple(
        Total(
            job=group[0].job,
            step=group[0].step,
            call=group[0].call,
            kind=group[0].kind,
            peer=group[0].peer,
            payloads=len(group),
            bytes=sum(entry.bytes for entry in group),
            first_time=min(entry.time for entry in group),
            last_time=max(entry.time for entry in group),
            reveals=group[0].reveals,
        )
        for group in groups.values()
    )
