"""The coordinator's SQL tables, and engines for SQLite and PostgreSQL that serve them."""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from hedgerow.boosting.errors import FOREIGN
from hedgerow.coordinator.server.artefacts import ANSWER_SECONDS, StorageFailed

CONNECT_SECONDS = 5
"""How long a connection to PostgreSQL may take."""
SCHEMA_VERSION = 3
"""Version of the tables; :mod:`hedgerow.coordinator.server.migrations` brings older ones to it."""

LONG_SECONDS = 600.0
"""How long a database may be silent where all of it is migrated, copied or restored."""

CHECKSUM = "hedgerow_checksum"
"""Name of the column of checksums, and of the function that SQLite calls for them."""
_TYPED = "typeof({0}), CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) ELSE {0} END"
"""A value as the function gets it: damaged text may be no UTF-8."""

META = sql.MetaData()
_text = sql.Text
_Real = sql.Double
VERSION = sql.Table("hedgerow_schema", META, sql.Column("version", sql.Integer, primary_key=True))
JOBS = sql.Table(
    "jobs",
    META,
    sql.Column("job_id", _text, primary_key=True),
    sql.Column("name", _text, nullable=False),
    sql.Column("operator", _text, nullable=False),
    sql.Column("signed", sql.LargeBinary, nullable=False),
    sql.Column("state", _text, nullable=False),
    sql.Column("detail", _text, nullable=False, default=""),
    sql.Column("attempt", sql.Integer, nullable=False, default=0),
    sql.Column("created", _Real, nullable=False),
    sql.Column("ended", _Real, nullable=False, default=0.0),
    sql.Column("best_round", sql.Integer, nullable=False, default=0),
    sql.Column("artefacts", sql.JSON, nullable=False, default=dict),
    sql.Column("model", _text, nullable=False, default=""),
    sql.Column("control_bytes_up", sql.BigInteger, nullable=False, default=0),
    sql.Column("control_bytes_down", sql.BigInteger, nullable=False, default=0),
)
sql.Index("jobs_state", JOBS.c.state)
for _of_whom in ((), (JOBS.c.operator,)):  # a page of all jobs, and of an operator's
    sql.Index(
        "_".join(("jobs", *(c.name for c in _of_whom), "newest")),
        *_of_whom, JOBS.c.created.desc(), JOBS.c.job_id,
    )  # fmt: skip


def _job_key() -> sql.Column[str]:
    return sql.Column("job_id", _text, sql.ForeignKey("jobs.job_id"), primary_key=True)


ATTEMPTS = sql.Table(
    "attempts",
    META,
    _job_key(),
    sql.Column("attempt", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("roster", sql.JSON, nullable=False),
    sql.Column("started", _Real, nullable=False),
)
JOB_SILOS = sql.Table(
    "job_silos",
    META,
    _job_key(),
    sql.Column("silo", _text, primary_key=True),
    sql.Column("n_samples", sql.BigInteger, nullable=False),
    sql.Column("state", _text, nullable=False),
    sql.Column("detail", _text, nullable=False),
)
ROUNDS = sql.Table(
    "rounds",
    META,
    _job_key(),
    sql.Column("round", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("attempt", sql.Integer, nullable=False),
    sql.Column("seconds", _Real, nullable=False),
    sql.Column("bytes_up", sql.BigInteger, nullable=False),
    sql.Column("bytes_down", sql.BigInteger, nullable=False),
    sql.Column("silos", sql.JSON, nullable=False),
)
SCORES = sql.Table(
    "scores",
    META,
    _job_key(),
    sql.Column("round", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("data", _text, primary_key=True),
    sql.Column("metric", _text, primary_key=True),
    sql.Column("value", _Real, nullable=True),  # null is NaN: SQLite has no other
)
STEP_BYTES = sql.Table(
    "step_bytes",
    META,
    _job_key(),
    sql.Column("silo", _text, primary_key=True),
    sql.Column("method", _text, primary_key=True),
    *(
        sql.Column(name, sql.BigInteger, nullable=False)
        for name in ("calls", "messages_up", "messages_down", "bytes_up", "bytes_down")
    ),
)
SENT = sql.Table(
    "sent_payloads",
    META,
    _job_key(),
    sql.Column("silo", _text, primary_key=True),
    sql.Column("method", _text, primary_key=True),
    sql.Column("payloads", sql.BigInteger, nullable=False),
    sql.Column("bytes", sql.BigInteger, nullable=False),
)
SILOS = sql.Table(
    "silos",
    META,
    sql.Column("name", _text, primary_key=True),
    sql.Column("instance_id", _text, nullable=False),
    sql.Column("version", _text, nullable=False),
    sql.Column("strategies", sql.JSON, nullable=False),
    sql.Column("row_count_class", sql.BigInteger, nullable=False),
    sql.Column("first_seen", _Real, nullable=False),
    sql.Column("last_seen", _Real, nullable=False),
)
DELETED = sql.Table("deleted_jobs", META, sql.Column("job_id", _text, primary_key=True))
LEASE = sql.Table(
    "active_coordinator",
    META,
    sql.Column("one", sql.Integer, sql.CheckConstraint("one = 1"), nullable=False, unique=True),
    # Part of the key: a writer holds it in share, which waits for no renewal.
    sql.Column("token", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("beats", sql.BigInteger, nullable=False),
    sql.Column("holder", _text, nullable=False),
)
OF_PLACE = (VERSION, LEASE)
"""Tables that say something of the database itself, and are in no backup."""


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Raise what the database refuses while ``doing`` something as :class:`StorageFailed`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _failure(doing, error) from error
    except FOREIGN as error:
        # Its text may hold the value.
        reason = f"a value is not what was stored ({type(error).__name__})"
        raise StorageFailed(f"{doing} failed: the database is damaged: {reason}") from error


def _failure(doing: str, error: SQLAlchemyError) -> StorageFailed:
    """Return the failure without the statement and its values, which the error's text holds."""
    lines = str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()
    reason = "; ".join(filter(None, (line.strip() for line in lines)))[:300]
    if "malformed" in reason or "not a database" in reason:
        return _damaged(reason)
    if "disk is full" in reason or "No space left" in reason or "disk I/O error" in reason:
        return StorageFailed(f"no room left while {doing}: the database's disk is full ({reason})")
    if isinstance(error, OperationalError):
        return StorageFailed(f"{doing} failed: {reason}")
    return StorageFailed(f"{doing} failed: {type(error).__name__}: {reason}")


def check_structure(connection: Connection) -> None:
    """Check the structure of a SQLite file; PostgreSQL checks its own.

    Raises
    ------
    StorageFailed
        It is damaged.
    """
    if connection.dialect.name == "sqlite":
        found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        if found != "ok":
            raise _damaged(found)


def check(connection: Connection, *, newest: bool) -> None:
    """Check every row of a SQLite file by its checksum, which triggers renew.

    Parameters
    ----------
    newest : bool
        Whether the tables should be those of this version.

    Raises
    ------
    StorageFailed
        A row is damaged; names it.
    """
    for table in META.sorted_tables:
        check_rows(connection, table, newest=newest)


def check_rows(connection: Connection, table: sql.Table, *, newest: bool) -> None:
    """Check the rows of a table that exists and has checksums, as :func:`check` does."""
    have = _columns(connection, table)
    if CHECKSUM not in have:
        return
    columns = [c.name for c in table.columns] if newest else [c for c in have if c != CHECKSUM]
    name, key = table.name, f"CAST({next(iter(table.primary_key)).name} AS BLOB)"
    wrong = f"SELECT rowid, {key} FROM {name} WHERE {CHECKSUM} IS NOT {_sum(columns)} LIMIT 1"  # noqa: S608
    for row in connection.exec_driver_sql(wrong):
        of = bytes(row[1] or b"").decode(errors="replace")[:100]
        raise _damaged(f"row {row[0]} of table {name} ({of}) is not what was stored")


def guard(connection: Connection, *, renew: bool) -> None:
    """Give the tables of a SQLite file checksums, where they have none, or ``renew`` them all."""
    for table in META.sorted_tables if connection.dialect.name == "sqlite" else ():
        name, columns = table.name, [column.name for column in table.columns]
        missing = CHECKSUM not in _columns(connection, table)
        if missing:
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {CHECKSUM} INTEGER")
        if not missing and not renew:
            continue
        for event in ("INSERT", f"UPDATE OF {', '.join(columns)}"):
            trigger = f"{name}_{event.split()[0]}"
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger}")
            connection.exec_driver_sql(
                f"CREATE TRIGGER {trigger} AFTER {event} ON {name} BEGIN "  # noqa: S608
                f"UPDATE {name} SET {CHECKSUM} = {_sum(columns)} WHERE rowid = NEW.rowid; END"
            )
        connection.exec_driver_sql(f"UPDATE {name} SET {CHECKSUM} = {_sum(columns)}")  # noqa: S608


def _columns(connection: Connection, table: sql.Table) -> list[str]:
    """Return the columns that a table of a SQLite file has; none elsewhere."""
    if connection.dialect.name != "sqlite":
        return []
    return [row.name for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")]


def _sum(columns: list[str]) -> str:
    return f"{CHECKSUM}({', '.join(_TYPED.format(column) for column in columns)})"


def _damaged(what: str) -> StorageFailed:
    what = " ".join(what.split())[:200]
    return StorageFailed(f"the database is damaged, restore a backup of it: {what}")


def checksum(*values: object) -> int:
    """Return the checksum of a row: its types and values."""
    return zlib.crc32(repr(values).encode())


def hold_token(connection: Connection, token: int | None, doing: str) -> None:
    """Keep all others from taking over until a transaction ends; for a ``token`` only.

    Raises
    ------
    StorageFailed
        Another coordinator has taken over.
    """
    mine = sql.select(LEASE.c.token).where(LEASE.c.token == token)
    held = mine.with_for_update(read=True, key_share=True)  # no renewal waits for it
    if token is not None and connection.execute(held).first() is None:
        raise StorageFailed(f"{doing} failed: another coordinator has taken over")


def files_of(url: str) -> tuple[Path, ...]:
    """Return the files of a SQLite database, and copies that upgrades have left beside it."""
    try:
        parsed = make_url(url if "://" in url else f"sqlite:///{url}")
    except ArgumentError:
        return ()
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return ()
    file = Path(parsed.database)
    return (file, *file.parent.glob(f"{file.name}[.-]*"))


def engine_of(url: str, answer_seconds: float = ANSWER_SECONDS) -> Engine:
    """Return an engine for a URL or a bare path; a transaction that writes locks at once.

    Parameters
    ----------
    answer_seconds : float
        How long a PostgreSQL server may be silent, wait for a lock, or leave a transaction open.

    Raises
    ------
    StorageFailed
        The URL cannot be used; a connection is not made yet.
    """
    if "://" not in url:
        url = f"sqlite:///{url}"
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "postgresql":
            return postgresql_engine(parsed, answer_seconds)
        if parsed.get_backend_name() != "sqlite":
            raise StorageFailed(
                f"the database is SQLite or PostgreSQL, not {parsed.get_backend_name()}"
            )
    except (ArgumentError, NoSuchModuleError) as error:
        raise StorageFailed(
            "the database URL cannot be read: sqlite:///PATH or "
            "postgresql://USER@HOST/DATABASE is expected"
        ) from error
    except ModuleNotFoundError as error:
        raise StorageFailed(
            "PostgreSQL needs the extra 'postgres': pip install 'hedgerow[postgres]'"
        ) from error
    if parsed.database:
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageFailed(
                f"the database's folder cannot be made: {error.strerror}"
            ) from error
    engine = sql.create_engine(parsed, connect_args={"timeout": min(answer_seconds, 30.0)})

    @sql.event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function(CHECKSUM, -1, checksum, deterministic=True)

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a read lock raised later fails instead of waiting.
        reads = connection.get_execution_options().get("hedgerow_reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


_OURS = secrets.token_hex(8)


def sessions() -> str:
    """Return the name of the sessions of this process at a PostgreSQL server."""
    return f"hedgerow {_OURS} {os.getpid()}"  # a fork has the same random part


def postgresql_engine(url: URL, answer_seconds: float) -> Engine:
    """Return an engine whose calls end, also when the server hangs."""
    import psycopg

    class Connection(psycopg.Connection[Any]):
        """Ends a statement on which the server is silent: TCP does not see that a server hangs."""

        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            return super().wait(self._answered(gen), *args, **options)

        def _answered(self, steps: Any) -> Any:
            try:
                wanted, heard = next(steps), time.monotonic()
                while True:
                    ready = yield wanted  # none after a tenth of a second of silence
                    now = time.monotonic()
                    heard = now if ready else heard
                    if now - heard > answer_seconds:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer within {answer_seconds:g} s")
                    wanted = steps.send(ready)
            except StopIteration as end:
                return end.value

    engine = sql.create_engine(
        url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS}
    )

    @sql.event.listens_for(engine, "do_connect")
    def _connect(dialect: object, record: object, args: Any, options: Any) -> Any:
        try:
            made = Connection.connect(*args, **options)
        except psycopg.errors.ConnectionTimeout as error:
            why = f"no answer within {CONNECT_SECONDS:g} s to a new connection"
            raise psycopg.OperationalError(why) from error
        # What we have given up, or left because this process is frozen, must hold up nobody else.
        most = round(900 * answer_seconds)
        for setting in ("lock_timeout", "idle_in_transaction_session_timeout"):
            made.execute(f"SET {setting} = {most}")
        made.execute(f"SET application_name = '{sessions()}'")
        made.commit()
        return made

    return engine
