"""The agent's state folder: who it is, what it must not forget, what stays in the silo."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent.records import Records, writing_state
from hedgerow.crypto.durable import write_atomically

ROOM_BYTES = 1 << 17
"""How much room an agent must find after a full disk, before it takes part again."""
SESSIONS = "memory/sessions"
"""File of a job with the names under which the vault holds secrets of it; no part of its result."""


log = structlog.get_logger()


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
        self._key = self._records_key()

    @property
    def instance_id(self) -> str:
        """Random name of this agent, the same after a restart in the same folder."""
        file = self.path / "instance"
        if file.exists() and not re.fullmatch(rb"[0-9a-f]{32}", file.read_bytes()):
            self._set_aside(file, "a new name is made")
        if not file.exists():
            write_atomically(file, secrets.token_hex(16).encode())
        return file.read_text()

    def _set_aside(self, file: Path, then: str) -> None:
        """Take a damaged file out of use, and keep it for an inspection."""
        aside = file.with_name(f"{file.name}.damaged")
        file.replace(aside)
        log.warning("damaged file set aside", file=str(file), kept_as=aside.name, then=then)

    def records(self, *folder: str) -> Records:
        """Return the durable records of a folder of the state, which are refused where damaged."""
        return Records(self.path.joinpath(*folder), self.path.joinpath("turns", *folder), self._key)

    def _records_key(self) -> bytes:
        file = self.path / "records.key"
        if file.exists() and len(file.read_bytes()) != 32:
            self._set_aside(file, "records from before are refused")
        if not file.exists():
            write_atomically(file, secrets.token_bytes(32))
        return file.read_bytes()

    def has_room(self) -> bool:
        """Whether the folder can be written now."""
        probe = self.path / "room"
        try:
            write_atomically(probe, bytes(ROOM_BYTES))
            probe.unlink()
        except OSError:
            return False
        return True

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.path / "ledger.jsonl"

    @property
    def accepted(self) -> Records:
        """Where the jobs are kept that the silo has accepted."""
        return self.records("accepted")

    def job(self, job_id: str) -> Path:
        """Return the folder of a job."""
        if not job_id or "/" in job_id or job_id.startswith("."):
            raise FederationError("a job's identifier has letters, digits and dashes")
        return self.path / "jobs" / job_id

    def memory(self, job_id: str) -> JobMemory:
        """Return the durable records of a job."""
        self.job(job_id)  # checks the name
        return JobMemory(self.records("jobs", job_id, "memory"), self.kept)

    def kept(self, job_id: str, name: str) -> bytes | None:
        """Return a file of a job's result that stays in the silo, or None."""
        try:
            return self._file(job_id, name).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, job_id: str, name: str, data: bytes) -> None:
        """Store a file of a job's result that stays in the silo."""
        with writing_state():
            write_atomically(self._file(job_id, name), data)

    def _file(self, job_id: str, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise FederationError("a file's name has no path")
        return self.job(job_id) / name

    def note_session(self, job_id: str, session: str) -> None:
        """Note that the vault holds secrets of a job under this name, until it is let go."""
        with self._noting:
            noted = self._sessions(job_id)
            if session not in noted:
                self._note(job_id, [*noted, session])

    def sessions(self, job_id: str) -> tuple[str, ...]:
        """Return the names under which the vault holds secrets of a job.

        Where the note of them is damaged: the job's own name, below which all of them are.
        """
        with self._noting:
            return self._sessions(job_id)

    def _note(self, job_id: str, sessions: list[str]) -> None:
        with writing_state():
            write_atomically(self.job(job_id) / SESSIONS, "\n".join(sessions).encode())

    def _sessions(self, job_id: str) -> tuple[str, ...]:
        file = self.job(job_id) / SESSIONS
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return ()
        names = data.decode("ascii", "replace").splitlines()
        if names and all(name == job_id or name.startswith(f"{job_id}/") for name in names):
            return tuple(names)
        self._set_aside(file, "all keys of the job are erased when it has ended")
        self._note(job_id, [job_id])
        return (job_id,)

    def jobs_with_sessions(self) -> tuple[str, ...]:
        """Return the jobs of which the vault holds secrets, sorted."""
        return tuple(sorted(file.parents[1].name for file in self.path.glob(f"jobs/*/{SESSIONS}")))

    def let_go(self, job_id: str, sessions: Collection[str]) -> None:
        """Note that the vault has erased what it held under these names."""
        with self._noting:
            left = [name for name in self._sessions(job_id) if name not in sessions]
            if left:
                self._note(job_id, left)
            else:
                (self.job(job_id) / SESSIONS).unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder up."""
        os.close(self._lock)


class JobMemory:
    """Durable records by key; a key's file is named after its digest.

    A key ``kept:JOB/FILE`` gives what the silo keeps of another job, to be read only.
    """

    def __init__(self, records: Records, kept: Callable[[str, str], bytes | None]) -> None:
        self._records = records
        self._kept = kept

    def remember(self, key: str, value: bytes) -> None:
        """Store a record; it is on disk when this returns."""
        with writing_state():
            self._records.write(_named(key), value)

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        if key.startswith("kept:"):
            job_id, _, name = key.removeprefix("kept:").partition("/")
            return self._kept(job_id, name)
        return self._records.read(_named(key))


def _named(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]
