"""The silo's ledger: an append-only, hash-chained record of every payload that left it.

Its format is in :mod:`hedgerow.services.process.ledgers`. A payload's line is on disk before its
bytes are sent; when the disk is full, nothing is sent. So is the line of a control call that
reveals something of the silo's data. Calls that only keep the connection up, as a lease renewal
every other second does, are counted and share a line: at a job's end, every hour, and when the
agent ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import FOREIGN, PolicyDeclined, StateUnwritable
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Step
from hedgerow.services.process import ledgers
from hedgerow.services.process.ledgers import FIRST, ROOM, Entry, LedgerBroken, head_of
from hedgerow.services.rpc.control_calls import REVEALS
from hedgerow.services.wire.job_view import SentPayloads

ROOM_BYTES = 1 << 16
"""How much room is made at a time for the next lines."""
RELAY = "Relay"
"""Call of lines about scores: their count is of rows."""
DAY_SECONDS = 86_400.0
SETTLE_SECONDS = 3600.0
"""Longest time that counted control calls wait for their line while more of them come."""


class LedgerFull(StateUnwritable):
    """A line could not be made durable, so nothing was sent."""


class DurableLines:
    """A file that grows by lines, each of which is on the disk when :meth:`append` returns.

    A line is written into room that is already on the disk. The wait is then for the line alone:
    where a file grows, the file system has to write its journal too, and with it what other files
    have changed.

    Parameters
    ----------
    path : Path
        Its last line, if any, is whole.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC, 0o600)
        self._end = self._room = os.fstat(self._file).st_size
        self._make_room()

    def append(self, line: bytes) -> None:
        """Write a line durably.

        Raises
        ------
        OSError
            The file holds what it held before.
        """
        if self._end + len(line) > self._room:
            self._make_room()
        try:
            self._write(line, self._end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, max(self._room, self._end))
                self._write(ROOM[:1] * min(len(line), self._room - self._end), self._end)
            raise
        self._end += len(line)
        self._room = max(self._room, self._end)

    def close(self) -> None:
        """Give the room back and close the file; later lines are refused."""
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1

    def _make_room(self) -> None:
        try:
            self._write(ROOM[:1] * ROOM_BYTES, self._room)
            self._room += ROOM_BYTES
        except OSError:  # a single line may fit nevertheless
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._room)

    def _write(self, data: bytes, at: int) -> None:
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError("short write")


@dataclass(slots=True)
class Sent:
    """Payloads that wait for their line."""

    count: int = 0
    n_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, request: bytes) -> None:
        """Take one more."""
        self.count += 1
        self.n_bytes += len(request)
        self.digest.update(request)


class SiloLedger:
    """The ledger file of a silo, open for appending.

    Parameters
    ----------
    silo, peer : str
        Names of this silo and of the coordinator.
    max_bytes : int or None
        Most data-plane bytes that may leave for one job, over all its attempts.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silo, self._peer, self._now, self._max_bytes = silo, peer, now, max_bytes
        self._clock, self._settled = clock, clock()
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._last, self._count = FIRST, 0
        self._sent: dict[str, dict[str, tuple[int, int]]] = {}
        self._counted: dict[tuple[str, str], Sent] = {}
        self._rows: dict[tuple[str, str, int], int] = {}
        if path.exists():
            _mend(path)
            for entry, self._last in ledgers.checked(path):
                self._count += 1
                if entry.call == RELAY:
                    self._grant(entry.peer, entry.kind, entry.time, entry.count)
                elif not entry.is_control:
                    self._add(entry.job, entry.call, entry.count, entry.bytes)
                if entry.silo != silo:
                    raise LedgerBroken(f"{path} is the ledger of {entry.silo}, not of {silo}")
        elif head_of(path).exists():
            raise LedgerBroken(f"{path} is missing, but its head is there")
        self._file = DurableLines(path)
        self._head = os.open(head_of(path), os.O_WRONLY | os.O_CREAT, 0o600)
        self._write_head()
        os.fsync(self._head)

    def record(
        self, *, job_id: str, step: Step[Any, Any], at: ExchangeKey, kind: str, frames: list[bytes]
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
        with self._lock:
            sent = sum(moved for _, moved in self._sent.get(job_id, {}).values()) + n_bytes
            if self._max_bytes is not None and sent > self._max_bytes:
                raise PolicyDeclined(
                    f"policy rule max_bytes: {sent} bytes would have left for this job, "
                    f"at most {self._max_bytes}"
                )
            self._append(
                job_id, at, step.name, step.call.value, kind, n_bytes, digest, step.reveals,
                step.discloses,
            )  # fmt: skip
            self._add(job_id, step.call.value, 1, n_bytes)

    def _add(self, job_id: str, call: str, payloads: int, n_bytes: int) -> None:
        calls = self._sent.setdefault(job_id, {})
        times, moved = calls.get(call, (0, 0))
        calls[call] = times + payloads, moved + n_bytes

    @property
    def chain(self) -> str:
        """Chain value of the last line, by which the ledger is known again."""
        with self._lock:
            return self._last

    def sent(self, job_id: str) -> tuple[SentPayloads, ...]:
        """Return what left for a job in exchanges, by kind; the silo is left empty."""
        with self._lock:
            calls = dict(self._sent.get(job_id, {}))
        return tuple(SentPayloads("", call, *moved) for call, moved in sorted(calls.items()))

    def record_call(self, method: str, request: bytes, job_id: str, tells: bool) -> None:
        """Take a control call into account, just before it is sent.

        Parameters
        ----------
        job_id : str
            Empty for a call that is of no job.
        tells : bool
            Whether the call tells something of the silo's data. Why a half has failed must be
            sayable on a full disk, so a report without scores does not.

        Raises
        ------
        LedgerFull
            The call tells something of the silo's data and its line is not on disk: it must not
            be sent. Other calls are counted until there is room for their line.
        """
        with self._lock:
            if tells:
                digest = hashlib.sha256(request)
                self._append_call(job_id, method, 1, len(request), digest, tells)
                return
            self._counted.setdefault((job_id, method), Sent()).add(request)
            if self._clock() - self._settled >= SETTLE_SECONDS:
                self._settle(None)

    def record_rows(
        self, *, peer: str, model: str, kind: str, n_rows: int, sent: Sent, reveals: str
    ) -> None:
        """Make durable that ``n_rows`` more rows may be scored with or for a party or caller.

        The line is written before the first of these rows is sent; ``sent`` is what was sent
        since the line before it.

        Parameters
        ----------
        model : str
            Job that trained it, or its name.

        Raises
        ------
        LedgerFull
            The line is not on disk; the rows must not be sent.
        """
        with self._lock:
            now = self._now()
            self._append(
                model, ExchangeKey(-1, -1, -1), "scores", RELAY, kind, sent.n_bytes, sent.digest,
                reveals, Discloses.COUNTS, n_rows, peer,
            )  # fmt: skip
            self._grant(peer, kind, now, n_rows)

    def rows_of_day(self, peer: str, kind: str, now: float) -> int:
        """Return how many rows lines of this day (UTC) are for; ``now``: seconds since 1970."""
        with self._lock:
            return self._rows.get((peer, kind, int(now // DAY_SECONDS)), 0)

    def _grant(self, peer: str, kind: str, at: float, n_rows: int) -> None:
        key = (peer, kind, int(at // DAY_SECONDS))
        self._rows[key] = self._rows.get(key, 0) + n_rows

    def settle(self, job_id: str | None = None) -> None:
        """Write lines for the control calls counted so far: of a job, or of all."""
        with self._lock:
            self._settle(job_id)

    def _settle(self, job_id: str | None) -> None:
        if job_id is None:
            self._settled = self._clock()
        for key, counted in list(self._counted.items()):
            if job_id in (None, key[0]):
                try:
                    self._append_call(*key, counted.count, counted.n_bytes, counted.digest)
                except LedgerFull:  # counted on, until there is room
                    return
                del self._counted[key]

    def _append_call(
        self, job_id: str, method: str, count: int, n_bytes: int, digest: Any, tells: bool = False
    ) -> None:
        nowhere = ExchangeKey(-1, -1, -1)
        kind, reveals = f"{method}Request", REVEALS[method]
        discloses = Discloses.SCHEMA if tells else Discloses.NOTHING
        self._append(
            job_id, nowhere, method, method, kind, n_bytes, digest, reveals, discloses, count
        )

    def _append(
        self, job: str, at: ExchangeKey, step: str, call: str, kind: str, n_bytes: int, digest: Any,
        reveals: str, discloses: Discloses, count: int = 1, peer: str = "",
    ) -> None:  # fmt: skip
        fields: dict[str, Any] = {
            "time": round(self._now(), 3),
            "silo": self._silo,
            "peer": peer or self._peer,
            "job": job,
            "round": at.round,
            "level": at.level,
            "passing": at.passing,
            "step": step,
            "call": call,
            "kind": kind,
            "bytes": n_bytes,
            "sha256": digest.hexdigest(),
            "reveals": reveals,
            "discloses": discloses.value,
        }
        if count != 1:
            fields["count"] = count
        chain, line = ledgers.line_of(self._last, fields)
        try:
            self._file.append(line)
        except OSError as error:
            raise LedgerFull(
                f"the ledger of {self._silo} cannot be written ({error.strerror or error}); "
                "nothing was sent"
            ) from error
        self._last, self._count = chain, self._count + 1
        with contextlib.suppress(OSError):
            self._write_head()

    def _write_head(self) -> None:
        # Written in place and not synced: after a power cut it may be behind, never ahead.
        os.pwrite(self._head, ledgers.head_line(self._count, self._last), 0)

    def close(self) -> None:
        """Write what was counted, and close the files; later lines raise :class:`LedgerFull`."""
        with self._lock:
            self._settle(None)
            os.fsync(self._head)
            os.close(self._head)
            self._head = -1
            self._file.close()


def _mend(path: Path) -> None:
    """Cut off room, and a last line that a crash left unfinished: its bytes were never sent.

    After a power cut any part of that line may be on disk. A line that the head counts was whole
    once, so it is left to be found damaged.
    """
    data = path.read_bytes()
    lines = data.rstrip(ROOM)
    end = lines.rfind(b"\n") + 1
    start = lines.rfind(b"\n", 0, max(end - 1, 0)) + 1
    before = lines.rfind(b"\n", 0, max(start - 1, 0)) + 1
    if end == len(lines) and not _is_whole(lines[start:end], lines[before:start]):
        head = ledgers.read_head(path)
        if lines.count(b"\n") > (head[0] if head else 0):
            end = start
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)


def _is_whole(line: bytes, before: bytes) -> bool:
    """Return whether a line is complete; one that was edited is complete, and is found."""
    try:
        fields = json.loads(line)
        chain = fields.pop("chain")
        Entry(**fields)
    except FOREIGN:
        return False
    if ROOM[:1] * 2 not in line:
        return True
    # Room may be where a part of a string was to be: then the chain does not hold.
    with contextlib.suppress(*FOREIGN):
        previous = json.loads(before)["chain"] if before else FIRST
        return bool(chain == ledgers.chain_of(previous, fields))
    return True
