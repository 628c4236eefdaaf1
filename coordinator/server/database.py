"""The coordinator's SQL tables, and engines for SQLite and PostgreSQL that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError

from hedgerow.coordinator.server.artefacts import StorageFailed

SCHEMA_VERSION = 2
"""Version of the tables; a database of another version is refused."""

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
    sql.Column("artefacts", sql.JSON, nullable=False, default=list),
    sql.Column("model", _text, nullable=False, default=""),
    sql.Column("control_bytes_up", sql.BigInteger, nullable=False, default=0),
    sql.Column("control_bytes_down", sql.BigInteger, nullable=False, default=0),
)


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


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Raise what the database refuses while ``doing`` something as :class:`StorageFailed`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _failure(doing, error) from error


def _failure(doing: str, error: SQLAlchemyError) -> StorageFailed:
    """Return the failure without the statement and its values, which the error's text holds."""
    reason = str(getattr(error, "orig", None) or type(error).__name__).strip()
    if "disk is full" in reason or "No space left" in reason or "disk I/O error" in reason:
        return StorageFailed(f"no room left while {doing}: the database's disk is full ({reason})")
    if isinstance(error, OperationalError):
        return StorageFailed(f"{doing} failed: {reason}")
    return StorageFailed(f"{doing} failed: {type(error).__name__}: {reason.splitlines()[0]}")


def engine_of(url: str) -> Engine:
    """Return an engine for a URL or a bare path; a transaction that writes locks at once.

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
            return sql.create_engine(
                parsed, pool_pre_ping=True, connect_args={"connect_timeout": 5}
            )
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
    engine = sql.create_engine(parsed, connect_args={"timeout": 30.0})

    @sql.event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sql.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: a read lock raised later fails instead of waiting.
        reads = connection.get_execution_options().get("hedgerow_reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
