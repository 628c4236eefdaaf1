"""The agent's state folder: who it is, what it must not forget, what stays in the silo."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent.records import read_record, write_record
from hedgerow.crypto.durable import write_atomically

SESSIONS = "memory/sessions"
"""File of a job with the names under which the vault holds secrets of it; no part of its result."""


class StateHeld(FederationError):
    """Another agent works in this state folder."""


class StateFolder:
    """A folder of one agent, locked while the agent lives.

    Parameters
    ----------
    path : Path
        Made when it is not there, mode 0700.

    Raises
    ------
    StateHeld
        Another process holds the folder's lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._noting = threading.Lock()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateHeld(f"another agent works in {path}") from error

    @property
    def instance_id(self) -> str:
        """Random name of this agent, the same after a restart in the same folder."""
        file = self.path / "instance"
        if not file.exists():
            write_atomically(file, secrets.token_hex(16).encode())
        return file.read_text()

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.path / "ledger.jsonl"

    def job(self, job_id: str) -> Path:
        """Return the folder of a job."""
        if not job_id or "/" in job_id or job_id.startswith("."):
            raise FederationError("a job's identifier has letters, digits and dashes")
        return self.path / "jobs" / job_id

    def memory(self, job_id: str) -> JobMemory:
        """Return the durable records of a job."""
        return JobMemory(self.job(job_id) / "memory", self.kept)

    def kept(self, job_id: str, name: str) -> bytes | None:
        """Return a file of a job's result that stays in the silo, or None."""
        if "/" in name or name.startswith("."):
            raise FederationError("a file's name has no path")
        try:
            return (self.job(job_id) / name).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, job_id: str, name: str, data: bytes) -> None:
        """Store a file of a job's result that stays in the silo."""
        write_atomically(self.job(job_id) / name, data)

    def note_session(self, job_id: str, session: str) -> None:
        """Note that the vault holds secrets of a job under this name, until it is let go."""
        with self._noting:
            noted = self.sessions(job_id)
            if session not in noted:
                write_atomically(self.job(job_id) / SESSIONS, "\n".join([*noted, session]).encode())

    def sessions(self, job_id: str) -> tuple[str, ...]:
        """Return the names under which the vault holds secrets of a job."""
        try:
            return tuple((self.job(job_id) / SESSIONS).read_text().splitlines())
        except FileNotFoundError:
            return ()

    def jobs_with_sessions(self) -> tuple[str, ...]:
        """Return the jobs of which the vault holds secrets, sorted."""
        return tuple(sorted(file.parents[1].name for file in self.path.glob(f"jobs/*/{SESSIONS}")))

    def let_go(self, job_id: str, sessions: Collection[str]) -> None:
        """Note that the vault has erased what it held under these names."""
        with self._noting:
            left = [name for name in self.sessions(job_id) if name not in sessions]
            if left:
                write_atomically(self.job(job_id) / SESSIONS, "\n".join(left).encode())
            else:
                (self.job(job_id) / SESSIONS).unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder up."""
        os.close(self._lock)


class JobMemory:
    """Durable records by key; a key's file is named after its digest.

    A key ``kept:JOB/FILE`` gives what the silo keeps of another job, to be read only.
    """

    def __init__(self, folder: Path, kept: Callable[[str, str], bytes | None]) -> None:
        self._folder = folder
        self._kept = kept

    def remember(self, key: str, value: bytes) -> None:
        """Store a record; it is on disk when this returns."""
        write_record(self._file(key), value)

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        if key.startswith("kept:"):
            job_id, _, name = key.removeprefix("kept:").partition("/")
            return self._kept(job_id, name)
        return read_record(self._file(key))

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:40]
