"""Older databases are brought to the tables of this version: Alembic's scripts, one a version.

A script in ``versions`` has the number of the version that it makes as its ``revision``, and that
of the one before as ``down_revision``. It says what the tables are in words of its own
(``sql.table``): those of :mod:`hedgerow.coordinator.server.database` are the newest ones. There is
no way back but the backup.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import sqlalchemy as sql
import structlog
from sqlalchemy.engine import Connection, Engine

from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.database import (
    JOBS,
    META,
    SCHEMA_VERSION,
    VERSION,
    check,
    check_rows,
    check_structure,
    guard,
)

OLDEST_VERSION = 2
"""Version of the tables of Hedgerow 0.1; jobs of earlier ones have no operator's signature."""

log = structlog.get_logger()


def prepare(engine: Engine) -> None:
    """Check all that is stored, and give a database the tables of this version.

    All is read before anything is locked. A database is migrated in one transaction, and a SQLite
    file copied beside it before.

    Raises
    ------
    StorageFailed
        The database is damaged, of a newer version, or of one from before 0.1; or there is no room
        for the copy.
    """
    with engine.connect() as connection:
        connection.execution_options(hedgerow_reads=True)
        check_structure(connection)
        found = _version(connection)
        if found > SCHEMA_VERSION:
            raise StorageFailed(
                "the database is of a newer Hedgerow: expected schema version "
                f"{SCHEMA_VERSION}, found {found}; start that Hedgerow again, or restore the "
                "backup from before its first start"
            )
        if found < OLDEST_VERSION:
            raise StorageFailed(
                f"the database is of a Hedgerow before 0.1: expected schema version "
                f"{OLDEST_VERSION} to {SCHEMA_VERSION}, found {found}; its jobs have no signatures"
            )
        check(connection, newest=found == SCHEMA_VERSION)
    with engine.begin() as connection:
        if _version(connection) != found:
            raise StorageFailed("another process has migrated the database meanwhile: start again")
        if found < SCHEMA_VERSION:
            copy = _copied(engine, found)
            _migrate(connection, found)
        META.create_all(connection)
        for index in (index for table in META.tables.values() for index in table.indexes):
            index.create(connection, checkfirst=True)  # the tables may be older
        guard(connection, renew=found < SCHEMA_VERSION)
        connection.execute(VERSION.delete().where(VERSION.c.version != SCHEMA_VERSION))
        if connection.execute(sql.select(VERSION)).first() is None:
            connection.execute(VERSION.insert().values(version=SCHEMA_VERSION))
    if found < SCHEMA_VERSION:
        log.info("database migrated", schema=SCHEMA_VERSION, before=found, backup=copy)


def _version(connection: Connection) -> int:
    """Return the version of the tables: the newest where there are none yet."""
    tables = sql.inspect(connection)
    if tables.has_table(VERSION.name):
        check_rows(connection, VERSION, newest=True)
        found = connection.execute(sql.select(VERSION.c.version).with_for_update()).scalar()
        if found is not None:
            return int(found)
    return OLDEST_VERSION if tables.has_table(JOBS.name) else SCHEMA_VERSION


def _copied(engine: Engine, found: int) -> str:
    """Copy a SQLite file, while nobody else may write to it; return the copy's path, if any."""
    if engine.dialect.name != "sqlite" or not engine.url.database:
        return ""
    file = Path(engine.url.database)
    copy, partial = (file.with_name(f"{file.name}.schema-{found}{end}") for end in ("", ".new"))
    try:
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as target:
            source.backup(target)
        shutil.copymode(file, partial)
        os.replace(partial, copy)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageFailed(
            f"the database is of schema version {found} and is not migrated, because its backup "
            f"cannot be written to {copy}: {error}"
        ) from error
    return str(copy)


def _migrate(connection: Connection, found: int) -> None:
    # Needed for an older database only, and loaded slowly.
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).parent))
    context = MigrationContext.configure(connection)
    with Operations.context(context):
        for script in reversed([*scripts.walk_revisions()]):
            if int(script.revision) > found:
                script.module.upgrade()
