"""The silo's ledger: an append-only, hash-chained record of every payload that left it.

Its format is in :mod:`services.ledgers`. A line is on disk before its bytes are sent; when the
disk is full, nothing is sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from boosting.ports import FederationError, Place, PolicyDeclined, Step
from services.ledgers import (
    FIRST,
    Entry,
    LedgerBroken,
    Total,
    Verified,
    chain_of,
    checked,
    head_of,
    read,
    read_head,
    totals,
    verify,
)

__all__ = [
    "Entry",
    "LedgerBroken",
    "LedgerFull",
    "SiloLedger",
    "Total",
    "Verified",
    "head_of",
    "read",
    "read_head",
    "totals",
    "verify",
]


class LedgerFull(FederationError):
    """A line could not be made durable, so nothing was sent."""


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
            for entry, self._last in checked(path):
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
        chain = chain_of(self._last, fields)
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
