"""All that a coordinator keeps, in one tar file: made while it runs, and restored.

The file has the artefacts as they are stored, and the database, SQLite or PostgreSQL, as a SQLite
file. Each entry has its SHA-256, and the last one says that nothing is missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import sqlalchemy as sql
from sqlalchemy.engine import Connection, Engine

from hedgerow.boosting.errors import FOREIGN, FederationError
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.database import (
    DELETED,
    JOBS,
    LONG_SECONDS,
    META,
    OF_PLACE,
    ROUNDS,
    SCHEMA_VERSION,
    SCORES,
    VERSION,
    check,
    check_structure,
    engine_of,
    failures,
    hold_token,
)
from hedgerow.coordinator.server.migrations import prepare
from hedgerow.coordinator.server.standby import exclusive_lease
from hedgerow.coordinator.server.store import delete_rows
from hedgerow.services.wire.job_view import ENDED

_DATABASE, _FILES, _END = "state.db", "artefacts/", "end.json"
_DIGEST = "HEDGEROW.sha256"
_NEWEST = ("checkpoints/", "journal/")
"""Files of a job that runs, which must be older than its record in the database."""
_ROWS = 1000
_TRIES = 100


class BackupUnusable(FederationError):
    """A backup is damaged or incomplete, or there is something where it should be restored."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored; ``open`` has how many rounds each job has that has not ended."""

    jobs: int
    files: int
    open: Mapping[str, int]


def back_up(database: str, artefacts: Artefacts, out: IO[bytes], now: float) -> tuple[int, int]:
    """Write a backup of a coordinator that may be running; return its jobs and files.

    A round is recorded in the database before its checkpoint is stored, and a result after its
    files. So checkpoints are copied before the database, and what else is new by then after it.

    Raises
    ------
    StorageFailed
        The database or a file cannot be read, or is damaged.
    """
    engine = engine_of(database, LONG_SECONDS)
    try:
        with (
            TemporaryDirectory(prefix="hedgerow-backup-") as folder,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            copied: set[tuple[str, str]] = set()
            _copy_files(artefacts, archive, copied, lambda name: True, now)
            copy = Path(folder) / _DATABASE
            n_jobs = _copy_database(engine, copy)
            _add(archive, _DATABASE, copy.read_bytes(), now)
            _copy_files(artefacts, archive, copied, lambda name: not name.startswith(_NEWEST), now)
            end = {"files": len(copied), "jobs": n_jobs, "version": version("hedgerow")}
            _add(archive, _END, json.dumps(end).encode(), now)
            return n_jobs, len(copied)
    finally:
        engine.dispose()


def restore(source: IO[bytes], database: str, artefacts: Artefacts, *, replace: bool) -> Restored:
    """Restore a backup, when all of it has been checked.

    Records of rounds whose checkpoint is not in it are left out: these rounds are repeated. So
    are jobs that were deleted at this coordinator.

    Parameters
    ----------
    source : file
        Is read twice.
    replace : bool
        Whether to delete the jobs that are there, else they are a reason to refuse.

    Raises
    ------
    BackupUnusable
        Nothing has been changed.
    StorageFailed
        The database or the artefact store cannot be written, or a coordinator is active: at the
        start, when nothing has been changed, or one that stood by and has taken over since.
    """
    start = source.tell()
    n_files = _look(source)
    engine, guard = engine_of(database, LONG_SECONDS), artefacts.guard
    try:
        with exclusive_lease(database) as lease:
            artefacts.guard = lease.writing
            token = lease.token
            return _replaced(source, start, n_files, engine, artefacts, token, replace=replace)
    finally:
        artefacts.guard = guard
        engine.dispose()


def _replaced(
    source: IO[bytes],
    start: int,
    n_files: int,
    engine: Engine,
    artefacts: Artefacts,
    token: int | None,
    *,
    replace: bool,
) -> Restored:
    with failures("restoring the database"):
        prepare(engine)
        with engine.connect() as connection:
            n_jobs = connection.execute(sql.select(sql.func.count()).select_from(JOBS)).scalar()
            deleted = {*connection.scalars(sql.select(DELETED.c.job_id))}
    found = artefacts.jobs()
    if (n_jobs or found) and not replace:
        raise BackupUnusable(
            f"there are {n_jobs} jobs in the database and files of {len(found)} jobs: to "
            "delete them and restore the backup, stop the coordinator and say --replace"
        )
    for job_id in found:
        for name in artefacts.list(job_id):
            artefacts.delete(job_id, name)
    source.seek(start)
    with TemporaryDirectory(prefix="hedgerow-restore-") as folder:
        copy = Path(folder) / _DATABASE
        for name, data in _checked(source):
            if name == _DATABASE:
                copy.write_bytes(data)
            elif name.startswith(_FILES):
                job_id, _, file = name.removeprefix(_FILES).partition("/")
                if job_id in deleted:
                    n_files -= 1
                else:
                    artefacts.write(job_id, file, data)
        # Last: a coordinator that is started on a part of this has no jobs.
        return _load_database(copy, engine, artefacts, n_files, token, deleted)


def _look(source: IO[bytes]) -> int:
    """Return how many files a backup has, when all of it can be restored by this version."""
    names: list[str] = []
    with TemporaryDirectory(prefix="hedgerow-restore-") as folder:
        copy = Path(folder) / _DATABASE
        for name, data in _checked(source):
            names.append(name)
            if name == _DATABASE:
                copy.write_bytes(data)
        files = [name for name in names if name.startswith(_FILES)]
        if sorted(names) != sorted({*files, _DATABASE, _END}):
            raise BackupUnusable(
                f"the backup has {names.count(_DATABASE)} databases and {len(names)} entries: "
                "expected one database, each file once and nothing else"
            )
        engine = engine_of(f"sqlite:///{copy}")
        try:
            prepare(engine)
        except StorageFailed as error:
            raise BackupUnusable(f"the backup's database: {error}") from error
        finally:
            engine.dispose()
    return len(files)


def _copy_files(
    artefacts: Artefacts,
    archive: tarfile.TarFile,
    copied: set[tuple[str, str]],
    wanted: Callable[[str], bool],
    now: float,
) -> None:
    """Add the files that are not ``copied`` yet; none is missing that was there at the end."""
    for job_id in sorted(artefacts.jobs()):
        for _ in range(_TRIES):
            gone = False
            for name in artefacts.list(job_id):
                if (job_id, name) in copied or not wanted(name):
                    continue
                try:
                    data = artefacts.read(job_id, name)
                except StorageFailed:
                    if artefacts.exists(job_id, name):
                        raise
                    gone = True  # the checkpoint of a round two rounds ago
                    continue
                _add(archive, f"{_FILES}{job_id}/{name}", data, now)
                copied.add((job_id, name))
            if not gone:
                break
        else:
            raise StorageFailed(f"files of job {job_id} are deleted faster than they can be read")


def _add(archive: tarfile.TarFile, name: str, data: bytes, now: float) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, now
    entry.pax_headers = {_DIGEST: hashlib.sha256(data).hexdigest()}
    archive.addfile(entry, io.BytesIO(data))


def _checked(source: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of a backup; raises BackupUnusable where one is damaged or missing."""
    n_files, end = 0, b""
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                data = b"" if file is None else file.read()
                if hashlib.sha256(data).hexdigest() != entry.pax_headers.get(_DIGEST):
                    raise BackupUnusable(f"the backup is damaged: {entry.name}")
                n_files += entry.name.startswith(_FILES)
                end = data if entry.name == _END else b""
                yield entry.name, data
        complete = bool(end) and json.loads(end)["files"] == n_files
    except (tarfile.TarError, OSError, EOFError, *FOREIGN) as error:
        raise BackupUnusable(f"the backup cannot be read: {error}") from error
    if not complete:
        raise BackupUnusable("the backup is incomplete: its end is missing")


def _copy_database(engine: Engine, copy: Path) -> int:
    """Write all rows, as they are at one moment, to a new SQLite file; return the jobs."""
    target = engine_of(f"sqlite:///{copy}")
    try:
        with failures("backing up the database"):
            prepare(target)
            with engine.connect() as source:
                _as_of_now(source)
                found = source.execute(sql.select(VERSION.c.version)).scalar()
                if found != SCHEMA_VERSION:
                    raise StorageFailed(
                        f"the database is of schema version {found}, expected {SCHEMA_VERSION}: "
                        "back it up with the version of its coordinator"
                    )
                check_structure(source)
                check(source, newest=True)
                with target.begin() as into:
                    return _copy_rows(source, into)
    finally:
        target.dispose()


def _as_of_now(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.execution_options(hedgerow_reads=True)
    else:
        connection.execution_options(isolation_level="REPEATABLE READ")


def _load_database(
    copy: Path,
    engine: Engine,
    artefacts: Artefacts,
    n_files: int,
    token: int | None,
    deleted: Set[str],
) -> Restored:
    source = engine_of(f"sqlite:///{copy}")
    try:
        with failures("restoring the database"):
            prepare(source)  # checks it, and brings an older one to the newest tables
            with source.connect() as rows, engine.begin() as into:
                hold_token(into, token, "restoring the database")
                _as_of_now(rows)
                for table in reversed(META.sorted_tables):
                    if table not in OF_PLACE:
                        into.execute(table.delete())
                n_jobs = _copy_rows(rows, into)
                known = {*into.scalars(sql.select(DELETED.c.job_id))}
                for job_id in sorted(deleted - known):
                    n_jobs -= delete_rows(into, job_id)
                unfinished = sql.select(JOBS.c.job_id).where(JOBS.c.state.not_in(sorted(ENDED)))
                done = {job: artefacts.rounds_done(job) for job in into.scalars(unfinished)}
                for job_id, n_rounds in done.items():
                    for table in (ROUNDS, SCORES):
                        later = (table.c.job_id == job_id, table.c.round >= n_rounds)
                        into.execute(table.delete().where(*later))
    finally:
        source.dispose()
    return Restored(n_jobs, n_files, done)


def _copy_rows(source: Connection, into: Connection) -> int:
    """Copy all tables but those of the database itself; return how many jobs there are."""
    n_jobs, have = 0, sql.inspect(source).get_table_names()
    for table in META.sorted_tables:
        if table in OF_PLACE or table.name not in have:  # the database may be older
            continue
        for rows in source.execute(sql.select(table)).mappings().partitions(_ROWS):
            into.execute(table.insert(), [dict(row) for row in rows])
            n_jobs += len(rows) if table is JOBS else 0
    return n_jobs
