"""Of the coordinators on one database one is active: the one whose token the database has.

A thread renews the row of the token. Another process that finds it unchanged for
:data:`TAKE_SECONDS`, by a clock of its own, takes over with the next token. From then on the
database refuses all writes with the old one, and files are written within a lease's time only: a
process that is stopped meanwhile ends by a timer before it goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sql
import structlog
from sqlalchemy.engine import Engine

from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.database import LEASE, engine_of, failures, sessions
from hedgerow.services.rpc.channel import STANDS_BY

RENEW_SECONDS, HOLD_SECONDS, TAKE_SECONDS = 2.0, 6.0, 7.0
"""Between two renewals; how long files may be written after one; when another takes over."""
LOOK_SECONDS = 1.0
"""How often one that stands by looks."""
LEAST_PAUSE = 0.1
"""Between two looks of its."""

log = structlog.get_logger()


class LeaseRecord(NamedTuple):
    """The row: a token, how often it was renewed, and who holds it; nobody where that is empty."""

    token: int
    beats: int
    holder: str


class ActiveLease:
    """The claim of a process to be the active coordinator.

    Parameters
    ----------
    on_lost : callable
        Called in a thread, once, when another coordinator has taken over.

    Attributes
    ----------
    ready : bool
        Whether this process serves, once it is the active one: set when all is read.
    """

    def __init__(self, url: str, on_lost: Callable[[], None] = lambda: None) -> None:
        self._engine = engine_of(url, RENEW_SECONDS)
        self._on_lost = on_lost
        self._holder = _own_name()
        self._seen: tuple[LeaseRecord, float] | None = None
        self._until = 0.0
        self._files = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.token: int | None = None
        self.lost = self.ready = False

    @property
    def refusal(self) -> str:
        """Why this process serves nobody; empty where it is the active one."""
        if self.lost:
            return f"{STANDS_BY}: another one has taken over"
        if self.token is None:
            active = self._seen[0].holder.partition("|")[0] if self._seen else ""
            return f"{STANDS_BY}: {active or 'another one'} is active"
        return "" if self.ready else f"{STANDS_BY}: it is starting"

    @property
    def pause(self) -> float:
        """Seconds until the next look: fewer where the row will have been unchanged for long then.

        Once it has been, and this process could not take over, as of a database that is away, looks
        are as rare as before.
        """
        left = 0.0 if self._seen is None else self._seen[1] + TAKE_SECONDS - time.monotonic()
        return LOOK_SECONDS if left <= 0.0 else min(max(left, LEAST_PAUSE), LOOK_SECONDS)

    def take(self) -> bool:
        """Look once, and take over where nobody is active; blocks.

        Raises
        ------
        StorageFailed
            The database cannot be used.
        """
        began = time.monotonic()
        found = read_lease(self._engine, made=self._seen is not None)
        if self._seen is None or self._seen[0] != found:
            self._seen = found, time.monotonic()
        silent = time.monotonic() - self._seen[1]
        if found.holder and silent < TAKE_SECONDS and not _has_ended(found.holder):
            return False
        if found.holder:
            self._end_sessions(found.holder)
        after = LeaseRecord(found.token + 1, 0, self._holder)
        mine = (LEASE.c.token == found.token, LEASE.c.beats == found.beats)
        with failures("taking over"), self._engine.begin() as connection:
            taken = connection.execute(LEASE.update().where(*mine).values(**after._asdict()))
        if not taken.rowcount:
            return False
        self._until, self.token = began + HOLD_SECONDS, after.token
        self._thread = threading.Thread(target=self._renew, name="active", daemon=True)
        self._thread.start()
        return True

    def _end_sessions(self, holder: str) -> None:
        """End what a stopped process has open: within a batch of statements nothing else does."""
        activity = sql.table("pg_stat_activity", sql.column("pid"), sql.column("application_name"))
        theirs = activity.c.application_name == holder.split("|")[1]
        others = activity.c.pid != sql.func.pg_backend_pid()
        if self._engine.dialect.name == "postgresql":
            with failures("ending sessions"), self._engine.begin() as connection:
                ended = sql.select(sql.func.pg_terminate_backend(activity.c.pid)).where(
                    theirs, others
                )
                connection.execute(ended)

    def _renew(self) -> None:
        again = LEASE.update().where(LEASE.c.token == self.token).values(beats=LEASE.c.beats + 1)
        while not self._ended.wait(RENEW_SECONDS):
            began = time.monotonic()
            try:
                with failures("renewing the lease"), self._engine.begin() as connection:
                    held = bool(connection.execute(again).rowcount)
            except StorageFailed as error:
                if self._files:  # said now: the timer ends the process without a word
                    left = round(max(self._until - time.monotonic(), 0.0), 1)
                    log.error("ends with a file half written", in_seconds=left, why=str(error))
                else:
                    log.debug("lease not renewed", why=str(error))
                continue
            if not held:
                self.lost = True
                log.error("another coordinator is active", token=self.token)
                self._on_lost()
                return
            with self._lock:
                self._until = began + HOLD_SECONDS
                self._arm()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold while a file is written: else nobody knows who is active.

        Raises
        ------
        StorageFailed
            The lease could not be renewed in time, or another coordinator has it.
        """
        with self._lock:
            if self.lost or self._ended.is_set() or time.monotonic() >= self._until:
                raise StorageFailed("the lease of the active coordinator cannot be renewed")
            self._files += 1
            self._arm()
        try:
            yield
        finally:
            with self._lock:
                self._files -= 1
                self._arm()

    def _arm(self) -> None:
        """Let SIGALRM, which nobody handles, end this process if it still writes by then."""
        left = max(self._until - time.monotonic(), 1e-6) if self._files else 0.0
        signal.setitimer(signal.ITIMER_REAL, left)

    def release(self) -> None:
        """Let another coordinator take over: at once, or in its time if files are still written."""
        with self._lock:
            self._ended.set()  # no file is begun from here on
        if self._thread is not None:
            self._thread.join(RENEW_SECONDS)
        end = time.monotonic() + HOLD_SECONDS
        while self._files and time.monotonic() < end:
            time.sleep(0.02)
        if self._files:
            self._engine.dispose()
            return
        with suppress(StorageFailed), failures("releasing the lease"):
            mine = LEASE.update().where(LEASE.c.token == self.token).values(holder="")
            with self._engine.begin() as connection:
                connection.execute(mine)
        self._engine.dispose()


def read_lease(engine: Engine, *, made: bool = False) -> LeaseRecord:
    """Return the row, which is made where there is none, unless it is known to be ``made``."""
    row = sql.select(LEASE.c.token, LEASE.c.beats, LEASE.c.holder)
    with failures("looking for the active coordinator"):
        if not made and not sql.inspect(engine).has_table(LEASE.name):
            with suppress(sql.exc.DBAPIError):  # another process makes it
                LEASE.create(engine, checkfirst=True)
        with engine.connect() as reading:
            found = reading.execution_options(hedgerow_reads=True).execute(row).first()
        if found is None:
            with suppress(sql.exc.IntegrityError), engine.begin() as connection:
                connection.execute(LEASE.insert().values(one=1, token=0, beats=0, holder=""))
            return read_lease(engine, made=True)  # another process may have made it, and hold it
    return LeaseRecord(*found)


@contextmanager
def exclusive_lease(url: str) -> Iterator[ActiveLease]:
    """Become the active one of a database that no coordinator holds, for a task other than serving.

    Raises
    ------
    StorageFailed
        A coordinator is active; names its machine.
    """
    lease = ActiveLease(url)
    try:
        first, end = read_lease(lease._engine), time.monotonic() + TAKE_SECONDS + LOOK_SECONDS
        while not lease.take():
            now = read_lease(lease._engine)
            if now != first or time.monotonic() >= end:
                where = now.holder.partition("|")[0]
                raise StorageFailed(f"the coordinator on {where} is active: stop it first")
            time.sleep(LOOK_SECONDS / 2)
        yield lease
    finally:
        lease.release()


def _own_name() -> str:
    started = _started(os.getpid()) or ""
    return f"{socket.gethostname()}|{sessions()}|{_where()}:{os.getpid()}:{started}"


def _where() -> str:
    """Return what processes share whose numbers mean the same: a boot, and a namespace of it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    return "unknown"


def _started(pid: int) -> str | None:
    """Return when a process was started; nothing where it has ended, None if that is not shown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            return None
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(holder: str) -> bool:
    """Whether a process is known to have ended: one of this machine, and the numbers are its."""
    where, _, process = holder.rpartition("|")[2].rpartition(":")[0].rpartition(":")
    started = holder.rpartition(":")[2]
    if where == "unknown" or where != _where() or not process.isdecimal() or not started:
        return False
    return _started(int(process)) not in (None, started)
