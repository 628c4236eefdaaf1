"""The audit trail of a process: who did what, from where, and how it ended.

One JSON object a line, with the field names of the Elastic Common Schema (ECS), chained by hashes
as a silo's ledger is (:mod:`hedgerow.services.process.ledgers`). The line of an action is written
before the action, with the outcome ``unknown``, and again when it has ended, with the same
``event.id``: an action whose first line cannot be written is refused. Nothing of a table, a model
or a key is in any line.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import structlog

from hedgerow.boosting.errors import StateUnwritable
from hedgerow.services.process import ledgers
from hedgerow.services.process.ledgers import FIRST, PREVIOUS, LedgerBroken
from hedgerow.services.process.logs import Repeats
from hedgerow.services.process.texts import one_line

log = structlog.get_logger()

ECS = "8.11.0"
LONGEST = 200
"""Characters of a text that somebody else has chosen."""
MOST = 100
"""Entries of a list: a line is far shorter than what is looked at after a crash."""
TAIL_BYTES = 1 << 16
SYSLOG = "/dev/log"
PRIORITY = 13 * 8 + 6
"""Of a message for syslog: facility ``log audit``, severity ``informational``."""
SYSLOG_SECONDS = 5.0
"""How long a logger may leave a line unread."""

ACTIONS = {
    "trail-opened": ("configuration", "info"),
    "job-submit": ("api", "creation"),
    "job-approve": ("api", "allowed"),
    "job-cancel": ("api", "change"),
    "job-delete": ("api", "deletion"),
    "job-decline": ("api", "denied"),
    "model-download": ("file", "access"),
    "model-release": ("api", "allowed"),
    "silo-join": ("session", "start"),
    "silo-leave": ("session", "end"),
    "silo-forget": ("iam", "deletion"),
    "roster-change": ("iam", "change"),
    "revocation-list": ("iam", "change"),
    "call-refused": ("authentication", "denied"),
    "certificate-sign": ("iam", "creation"),
    "certificate-revoke": ("iam", "deletion"),
    "invitation-open": ("iam", "creation"),
    "invitation-refused": ("authentication", "denied"),
    "invitation-complete": ("iam", "creation"),
    "model-serve": ("configuration", "change"),
}
"""Every ``event.action``, with its ``event.category`` and ``event.type``."""


class TrailUnwritable(StateUnwritable):
    """The audit trail cannot be written, so that what it would say is not done."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts."""

    name: str = ""
    role: str = ""
    """``name`` and ``role``: by the certificate; of a person without one, the system's or the
    sign-on's name."""
    address: str = ""
    """Where from, without the port; empty on the machine itself."""
    effective: str = ""
    """Of which operator the certificate is, by which a person behind a sign-on acts."""

    @property
    def fields(self) -> dict[str, Any]:
        """As ECS names them."""
        found: dict[str, Any] = {
            "user.name": self.name,
            "user.roles": [self.role] if self.role else "",
            "user.effective.name": self.effective,
            "source.ip": self.address,
        }
        return {name: value for name, value in found.items() if value}


class _Sink(Protocol):
    def append(self, opened: dict[str, Any], fields: dict[str, Any]) -> None:
        """Write a line, after one of ``opened`` where a chain begins; raises OSError."""


class _Stream:
    """A chain that begins with the process."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send, self._last = send, ""

    def append(self, opened: dict[str, Any], fields: dict[str, Any]) -> None:
        if not self._last:
            self._line({**opened, PREVIOUS: FIRST}, FIRST)
        self._line(fields, self._last)

    def _line(self, fields: dict[str, Any], before: str) -> None:
        chain, line = ledgers.line_of(before, fields)
        self._send(line)
        self._last = chain


def _to_stdout(line: bytes) -> None:
    sys.stdout.flush()
    view = memoryview(line)
    while view:
        view = view[os.write(1, view) :]


def _to_syslog(path: str) -> Callable[[bytes], None]:
    head = f"<{PRIORITY}>hedgerow[{os.getpid()}]: ".encode()

    def send(line: bytes) -> None:
        # Connected again: a logger that was started again has another socket.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(SYSLOG_SECONDS)
            to.connect(path)
            to.send(head + line.rstrip())

    return send


class _File:
    """A file of several processes, each line of which is on the disk before the next thing.

    It may be renamed at any time: the next line then begins a file that goes on with its chain.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, (0, 0)
        self._last, self._count = FIRST, 0
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._open() as file:
            self._look(file)  # at all of it, once

    @contextmanager
    def _open(self) -> Iterator[int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_DSYNC
        while True:
            file = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):  # renamed meanwhile
                    if os.path.samestat(os.stat(self._path), os.fstat(file)):
                        yield file
                        return
            finally:
                os.close(file)

    def append(self, opened: dict[str, Any], fields: dict[str, Any]) -> None:
        with self._open() as file:
            self._look(file)
            if not self._known[1]:
                self._line(file, {**opened, PREVIOUS: self._last})
            self._line(file, fields)

    def _line(self, file: int, fields: dict[str, Any]) -> None:
        chain, line = ledgers.line_of(self._last, fields)
        inode, size = self._known
        written = 0
        try:
            written = os.write(file, line)
            if written < len(line):
                raise OSError("no room for the line")
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
        self._last, self._count = chain, self._count + 1
        self._known = inode, size + written
        with suppress(OSError):  # after a power cut it may be behind, never ahead
            head = os.open(ledgers.head_of(self._path), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(head, ledgers.head_line(self._count, chain), 0)
            finally:
                os.close(head)

    def _look(self, file: int) -> None:
        """Find the chain's end, where another process has written since, or the file is new."""
        status = os.fstat(file)
        known = status.st_ino, status.st_size
        if known == self._known:
            return
        size = known[1]
        head = ledgers.read_head(self._path)
        if not size:
            self._last, self._count = head[1] if head else self._last, 0
        else:
            start = max(size - TAIL_BYTES, 0)
            tail = os.pread(file, size - start, start)
            whole = tail.rfind(b"\n") + 1
            fits = head is not None and _ends_with(tail[:whole], head[1])
            if fits and whole < len(tail):  # a crash's: what it would have said was not done
                size -= len(tail) - whole
                os.ftruncate(file, size)
            if head is None or not fits or self._known == (0, 0):
                head = self._walked()
            self._count, self._last = head
        self._known = known[0], size

    def _walked(self) -> tuple[int, str]:
        count, last = 0, FIRST
        for _, chain in ledgers.linked(self._path):
            count, last = count + 1, chain
        return count, last


def _ends_with(lines: bytes, chain: str) -> bool:
    try:
        return bool(json.loads(lines.splitlines()[-1])["chain"] == chain)
    except (ValueError, LookupError, TypeError):
        return False


def _sink(target: str) -> _Sink:
    if target == "stdout":
        return _Stream(_to_stdout)
    kind, _, path = target.partition(":")
    if kind == "syslog":
        return _Stream(_to_syslog(path or SYSLOG))
    return _File(Path(target))


class Trail:
    """A process' audit trail; safe in any thread.

    Parameters
    ----------
    target : str
        A file, ``stdout``, ``syslog`` or ``syslog:PATH`` of a socket; empty: nothing is kept.
    service : str
        What the process is: ``coordinator``, ``console``, ``serve``, ``ca``.
    now, clock : callable
        Seconds since 1970, and seconds that never go back.

    Raises
    ------
    TrailUnwritable
        The file cannot be opened.
    LedgerBroken
        Its chain does not hold.
    """

    def __init__(
        self,
        target: str = "",
        service: str = "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self._service, self._now = target, service, now
        self._lock = threading.Lock()
        self._repeats = Repeats(clock)
        self._behind: ThreadPoolExecutor | None = None
        self._version = version("hedgerow") if target else ""
        try:
            self._sink = _sink(target) if target else None
        except OSError as error:
            raise self._unwritable(error) from error

    def write(
        self, action: str, actor: Actor, outcome: str, about: dict[str, Any] | None = None
    ) -> None:
        """Write a line; it is where it should be when this returns.

        Parameters
        ----------
        action : str
            Of :data:`ACTIONS`.
        outcome : str
            ``success``, ``failure`` or ``unknown``: not known yet.
        about : dict, optional
            Further fields; empty ones are left out.

        Raises
        ------
        TrailUnwritable
        """
        if self._sink is None:
            return
        fields = self._fields(action, outcome) | actor.fields
        fields |= {name: _bounded(value) for name, value in (about or {}).items() if value}
        with self._lock:
            try:
                self._sink.append(self._fields("trail-opened", "success"), fields)
            except OSError as error:
                raise self._unwritable(error) from error

    def _fields(self, action: str, outcome: str) -> dict[str, Any]:
        at, (category, kind) = self._now(), ACTIONS[action]
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
        return {
            "@timestamp": f"{seconds}.{int(at % 1 * 1000):03d}Z",
            "ecs.version": ECS,
            "event.kind": "event",
            "event.category": [category],
            "event.type": [kind],
            "event.action": action,
            "event.outcome": outcome,
            "service.type": "hedgerow",
            "service.name": self._service,
            "service.version": self._version,
            "process.pid": os.getpid(),
        }

    def _unwritable(self, error: OSError) -> TrailUnwritable:
        why = error.strerror or str(error) or type(error).__name__
        return TrailUnwritable(
            f"the audit trail {self._target} of the {self._service} cannot be written ({why}); "
            "nothing was done"
        )

    @contextmanager
    def action(self, action: str, actor: Actor, **about: Any) -> Iterator[dict[str, Any]]:
        """Write that an action begins, and how it has ended; what is yielded gets more fields.

        Raises
        ------
        TrailUnwritable
            It must not begin. Of one that has ended, the log says that its line is missing.
        """
        fields = {f"hedgerow.{name}": value for name, value in about.items()}
        fields["event.id"] = secrets.token_hex(8)
        self.write(action, actor, "unknown", fields)
        outcome = "failure"
        try:
            yield fields
            outcome = "success"
        except BaseException as error:
            fields["error.type"] = type(error).__name__
            raise
        finally:
            self._kept(action, actor, outcome, fields)

    def enqueue(
        self, action: str, actor: Actor, outcome: str = "success", about: Any = None
    ) -> None:
        """Write a line of what has happened, in the background; the log has it where that fails."""
        if self._sink is None:
            return
        if self._behind is None:
            self._behind = ThreadPoolExecutor(1, thread_name_prefix="audit trail")
        self._behind.submit(self._kept, action, actor, outcome, about)

    def enqueue_limited(
        self, action: str, actor: Actor, outcome: str, about: dict[str, Any]
    ) -> None:
        """Do :meth:`enqueue`, of what others may bring about at will once a minute with its count.

        All else that they say of it makes no further line: they could fill a disk by that.
        """
        more = self._repeats.since((action, outcome, str(actor)))
        if more is not None:
            self.enqueue(action, actor, outcome, {**about, "hedgerow.repeats": more})

    def _kept(self, action: str, actor: Actor, outcome: str, about: Any) -> None:
        try:
            self.write(action, actor, outcome, about)
        except (TrailUnwritable, LedgerBroken) as error:
            said = {"action": action, "outcome": outcome, "user": actor.name}
            log.error("audit trail not written", why=str(error), **said)

    def close(self) -> None:
        """Wait for the lines that are written in the background."""
        if self._behind is not None:
            self._behind.shutdown()


NOWHERE = Trail()
"""Keeps nothing."""


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)[:LONGEST]
    if isinstance(value, list | tuple):
        return [_bounded(one) for one in value[:MOST]]
    return value


@dataclass(frozen=True, slots=True)
class VerifiedTrail:
    """An audit trail that holds."""

    lines: int
    head: str
    """Chain value of the last line; note it elsewhere to prove later that nothing was cut."""
    begins: tuple[str, ...]
    """Lines with which another chain begins, as that of a process that writes no file does."""
    continues: bool


def verify(paths: Iterable[Path], head: str = "") -> VerifiedTrail:
    """Return a trail if it holds: one file, or several of which each goes on with the one before.

    Parameters
    ----------
    head : str
        Chain value that must be in it, if any.

    Raises
    ------
    LedgerBroken
        Names the line that was changed, or before which one was removed or moved.
    """
    count, last, before = 0, FIRST, ""
    begins: list[str] = []
    met, continues = not head, False
    for path in paths:
        for number, (fields, chain) in enumerate(ledgers.linked(path), 1):
            started = fields.get(PREVIOUS)
            if number == 1 and before and started != last:
                raise LedgerBroken(f"{path} line 1: does not go on with {before}")
            if started == FIRST:
                begins.append(f"{path} line {number}")
            elif number == 1 and not before:
                continues = True
            count, last = count + 1, chain
            met = met or chain == head
        before = str(path)
    if not met:
        raise LedgerBroken(f"no line has the chain value {head[:16]}… that was noted")
    return VerifiedTrail(count, last, tuple(begins), continues)
