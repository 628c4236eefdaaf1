"""The files of simulated processes: what a loss of power leaves of them, and a full disk.

Files are real ones below a folder. The calls by which the product makes them durable are noted
(``os.open``, ``write``, ``pwrite``, ``ftruncate``, ``fsync``, ``rename``, ``replace``, ``unlink``):
of a file the content at its last sync, of a folder the names since its last sync. When the power of
a process' machine fails, some of the names that were not synced are lost, in order; of a file that
was not synced, blocks are those of before or those of after. SQLite's files are its own: of them a
loss of power leaves what was written.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.scheduler import Process, World, world

BLOCK = 512
DATABASE = "state.db"

_open, _close, _write, _pwrite = os.open, os.close, os.write, os.pwrite
_fsync, _fdatasync, _ftruncate = os.fsync, os.fdatasync, os.ftruncate
_rename, _unlink = os.replace, os.unlink


class Disk:
    """The disk of one machine: a folder, in which one process at a time works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.full = False
        self.n_calls = 0
        self.lost: list[str] = []
        """What losses of power have undone."""
        self._synced: dict[int, bytes] = {}
        self._touched: dict[int, str] = {}
        self._names: dict[str, list[Callable[[], str]]] = {}

    def opened(self, path: str, status: os.stat_result, *, new: bool) -> None:
        """Note that a file was opened to be written."""
        self._touched[status.st_ino] = path
        if new:
            self._synced[status.st_ino] = b""
            self._named(path, lambda: self._gone(path))
        elif status.st_ino not in self._synced:
            self._synced[status.st_ino] = Path(path).read_bytes()

    def synced(self, path: str, number: int) -> None:
        """Note that a file's content, or a folder's names, are on the disk."""
        if os.path.isdir(path):
            self._names.pop(path, None)
        else:
            with open(path, "rb") as file:
                self._synced[number] = file.read()

    def renamed(self, source: str, target: str, before: bytes | None) -> None:
        """Note a file's new name, and what had it before."""

        def back() -> str:
            if os.path.exists(target):
                _rename(target, source)
                self._touched[os.stat(source).st_ino] = source
            if before is not None:
                self._made(target, before)
            return f"the name {os.path.basename(target)}"

        self._touched[os.stat(target).st_ino] = target
        self._named(target, back)

    def removed(self, path: str, content: bytes) -> None:
        """Note that a file has no name any more."""

        def back() -> str:
            self._made(path, content)
            return f"the removal of {os.path.basename(path)}"

        self._named(path, back)

    def durable(self, path: str) -> bytes:
        """Return what a loss of power leaves of a file in any case, as far as it is noted."""
        with open(path, "rb") as file:
            now = file.read()
        return self._synced.get(os.stat(path).st_ino, now)

    def lose_power(self, draw: Any) -> None:
        """Lose some of what was not synced."""
        for _, names in sorted(self._names.items()):
            kept = draw.randint(0, len(names))
            for undo in reversed(names[kept:]):
                self.lost.append(undo())
        self._names.clear()
        for number, path in sorted(self._touched.items(), key=lambda item: item[1]):
            try:
                if os.stat(path).st_ino != number:
                    continue
            except FileNotFoundError:
                continue
            with open(path, "rb") as file:
                now = file.read()
            before = self._synced.get(number, now)
            if now != before:
                found = _torn(draw, before, now)
                with open(path, "r+b") as file:
                    file.write(found)
                    file.truncate(len(found))
                self.lost.append(f"blocks of {os.path.basename(path)}")
        self._touched.clear()
        self._synced.clear()

    def _named(self, path: str, undo: Callable[[], str]) -> None:
        self._names.setdefault(os.path.dirname(path), []).append(undo)

    def _gone(self, path: str) -> str:
        if os.path.exists(path):
            _unlink(path)
        return f"the new file {os.path.basename(path)}"

    def _made(self, path: str, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content)


def _torn(draw: Any, before: bytes, now: bytes) -> bytes:
    """Return a file of which some blocks were written and some were not."""
    kind = draw.randrange(6)
    if kind < 2:
        return (before, now)[kind]
    size = draw.choice((len(before), len(now)))
    blocks = []
    for at in range(0, size, BLOCK):
        whose = draw.choice((before, now))[at : at + BLOCK]
        blocks.append(whose.ljust(min(BLOCK, size - at), b"\0"))
    return b"".join(blocks)[:size]


class Disks:
    """All disks of a simulation, by the process that works on each."""

    def __init__(self, here: World) -> None:
        self.world = here
        self.by_name: dict[str, Disk] = {}
        self.descriptors: dict[int, tuple[Process, Disk, int, bool]] = {}
        """What each is of: owner, disk, file's number, and whether it writes durably."""

    def of(self, path: Any) -> tuple[Process, Disk] | None:
        """Return the running process and its disk, where a path is on it."""
        process = self.world.process
        if process is None or isinstance(path, int):
            return None
        disk = self.by_name.get(process.name)
        if disk is None or not os.fspath(path).startswith(str(disk.folder)):
            return None
        return process, disk

    def step(self, process: Process, disk: Disk, path: str) -> None:
        """Come to a call that changes a file: here a process may be killed, or wait."""
        if not process.alive:
            raise OSError(errno.EIO, "of a process that was killed")
        disk.n_calls += 1
        if process.armed is not None and process.armed_at in path:
            process.armed -= 1
            if process.armed <= 0:
                self.world.kill(process)
                self.world.hub.switch()  # never to return
        self.world.point()

    def close_all(self, process: Process) -> None:
        """Close what a process has open."""
        for descriptor, (owner, *_) in list(self.descriptors.items()):
            if owner is process and self.known(descriptor) is not None:
                _close(descriptor)
            if owner is process:
                self.descriptors.pop(descriptor, None)

    def known(self, descriptor: int) -> tuple[Process, Disk, int, bool] | None:
        """Return what a descriptor is of, if it is still the one that was noted."""
        found = self.descriptors.get(descriptor)
        if found is None:
            return None
        try:
            same = os.fstat(descriptor).st_ino == found[2]
        except OSError:
            same = False
        return found if same else self.descriptors.pop(descriptor) and None

    def fails(self, disk: Disk) -> None:
        """Refuse to write where the disk is full."""
        if disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_disks: Disks | None = None


def use(made: Disks) -> None:
    """Let all files be on these disks."""
    global _disks
    _disks = made


def install() -> None:
    """Put noted calls in place of those of ``os``."""

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        of = _disks.of(path) if _disks is not None and dir_fd is None else None
        if of is None or _disks is None:
            return _open(path, flags, mode, dir_fd=dir_fd)
        process, disk = of
        name, writes = os.fspath(path), bool(flags & (os.O_WRONLY | os.O_RDWR))
        new = bool(flags & os.O_CREAT) and not os.path.exists(name)
        if new:
            _disks.step(process, disk, name)
            _disks.fails(disk)
        descriptor = _open(path, flags, mode)
        status = os.fstat(descriptor)
        _disks.descriptors[descriptor] = (process, disk, status.st_ino, bool(flags & os.O_DSYNC))
        if writes:
            disk.opened(name, status, new=new)
        return descriptor

    def close(descriptor: int) -> None:
        if _disks is not None:
            _disks.descriptors.pop(descriptor, None)
        _close(descriptor)

    def written(descriptor: int, do: Callable[[], int]) -> int:
        of = None if _disks is None else _disks.known(descriptor)
        if of is None or _disks is None:
            return do()
        process, disk, number, at_once = of
        path = _where(descriptor)
        _disks.step(process, disk, path)
        _disks.fails(disk)
        done = do()
        if at_once:
            _disks.step(process, disk, path)  # in the middle: blocks may be written
            disk.synced(path, number)
        return done

    def sync(descriptor: int) -> None:
        of = None if _disks is None else _disks.known(descriptor)
        if of is None or _disks is None:
            return
        process, disk, number, _ = of
        path = _where(descriptor)
        _disks.step(process, disk, path)
        disk.synced(path, number)
        _disks.step(process, disk, path)

    def truncate(descriptor: int, length: int) -> None:
        written(descriptor, lambda: _ftruncate(descriptor, length) or 0)

    def rename(source: Any, target: Any, **options: Any) -> None:
        of = _disks.of(target) if _disks is not None else None
        if of is None or _disks is None or options:
            return _rename(source, target, **options)
        process, disk = of
        name, before = os.fspath(target), None
        _disks.step(process, disk, name)
        if os.path.exists(name):
            before = disk.durable(name)
        _rename(source, target)
        disk.renamed(os.fspath(source), name, before)
        _disks.step(process, disk, name)
        return None

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        of = _disks.of(path) if _disks is not None and dir_fd is None else None
        if of is None or _disks is None or not os.path.exists(path):
            return _unlink(path, dir_fd=dir_fd)
        process, disk = of
        _disks.step(process, disk, os.fspath(path))
        content = disk.durable(os.fspath(path))
        _unlink(path)
        disk.removed(os.fspath(path), content)
        return None

    os.open, os.close = open_, close  # type: ignore[assignment]
    os.write = lambda fd, data: written(fd, lambda: _write(fd, data))  # type: ignore
    os.pwrite = lambda fd, data, at: written(fd, lambda: _pwrite(fd, data, at))  # type: ignore
    os.fsync = os.fdatasync = sync  # type: ignore[assignment]
    os.ftruncate = truncate  # type: ignore[assignment]
    os.rename = os.replace = rename  # type: ignore[assignment]
    os.unlink = os.remove = unlink  # type: ignore[assignment]
    _install_sqlite()


def _where(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _install_sqlite() -> None:
    """Let only one simulated thread at a time write to a database, and a kill leave it.

    SQLite waits for its lock in C, where nothing else of the simulation can run meanwhile.
    """
    import sqlalchemy as sql
    from sqlalchemy.engine import Engine

    held: dict[str, Any] = {}

    @sql.event.listens_for(Engine, "connect")
    def _connected(connection: Any, record: object) -> None:
        process = world().process
        if process is not None:
            process.ended.append(connection.close)

    @sql.event.listens_for(Engine, "before_cursor_execute")
    def _executing(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        process = world().process
        if process is None or _disks is None:
            return
        disk = _disks.by_name.get(process.name)
        if disk is None:
            return
        if statement.startswith("BEGIN IMMEDIATE"):
            file = str(connection.engine.url)
            while (owner := held.get(file)) is not None and owner[0].alive:
                world().park(0.001)
            held[file] = (process, connection)
        elif disk.full and not statement.startswith(("BEGIN", "SELECT", "PRAGMA")):
            raise sqlite3.OperationalError("database or disk is full")
        _disks.step(process, disk, DATABASE)

    def _ended(connection: Any) -> None:
        file = str(connection.engine.url)
        owner = held.get(file)
        if owner is not None and owner[1] is connection:
            del held[file]

    @sql.event.listens_for(Engine, "commit")
    def _committing(connection: Any) -> None:
        process = world().process
        if process is not None and _disks is not None and process.name in _disks.by_name:
            _disks.step(process, _disks.by_name[process.name], DATABASE)
        # What comes before the commit itself does not give way to others.
        _ended(connection)

    @sql.event.listens_for(Engine, "rollback")
    def _rolled_back(connection: Any) -> None:
        _ended(connection)


assert builtins.open is io.open
