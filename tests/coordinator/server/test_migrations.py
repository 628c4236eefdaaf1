"""Databases of other versions: migrated with a copy, or refused with words and left as they are."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from hedgerow.coordinator.server import migrations
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.database import SCHEMA_VERSION, checksum, engine_of
from hedgerow.coordinator.server.store import Store
from hedgerow.services.wire.job_view import JobState
from tests.coordinator.server.test_flipped_bits import JOBS, everything, fill

FILES = '["model.ubj"]'


def change(url: str, *statements: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def as_of_0_1(url: str) -> None:
    """Make of a database what Hedgerow 0.1 would have stored."""
    change(
        url,
        "UPDATE hedgerow_schema SET version = 2",
        f"UPDATE jobs SET artefacts = '{FILES}' WHERE job_id = '{JOBS[0]}'",
        f"UPDATE jobs SET artefacts = '[]' WHERE job_id = '{JOBS[1]}'",
    )


def version(url: str) -> object:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT version FROM hedgerow_schema").scalar()
    engine.dispose()
    return found


def test_the_newest_script_makes_the_version_of_the_tables() -> None:
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    numbers = [int(script.revision) for script in scripts.walk_revisions()]
    assert numbers == [*range(SCHEMA_VERSION, migrations.OLDEST_VERSION, -1)]


def test_a_database_of_0_1_is_migrated_and_keeps_all_that_it_has(url: str) -> None:
    fill(url)
    expected = everything(url)
    as_of_0_1(url)
    store = Store(url)
    first, second = (store.job(job_id) for job_id in JOBS)
    assert first is not None
    assert second is not None
    assert (first.artefacts, second.artefacts) == ({"model.ubj": ""}, {})
    store.set_result(JOBS[0], {"model.ubj": "ab" * 32}, "model.ubj", 2)
    store.close()
    assert everything(url) == expected
    assert version(url) == SCHEMA_VERSION


@pytest.mark.parametrize("gone", ["DELETE FROM hedgerow_schema", "DROP TABLE hedgerow_schema"])
def test_a_database_without_a_version_is_taken_for_the_oldest_one(url: str, gone: str) -> None:
    fill(url)
    as_of_0_1(url)
    change(url, gone)
    store = Store(url)
    job = store.job(JOBS[0])
    store.close()
    assert job is not None
    assert job.artefacts == {"model.ubj": ""}
    assert version(url) == SCHEMA_VERSION


def test_a_sqlite_file_is_copied_before_it_is_migrated(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    fill(file)
    as_of_0_1(str(file))
    before = everything_raw(file)
    Store(str(file)).close()
    copy = tmp_path / "state.db.schema-2"
    assert everything_raw(copy) == before
    assert sorted(p.name for p in tmp_path.glob("*.new")) == []
    # The copy is a database that can be used, as it is after a roll-back.
    Store(str(copy)).close()
    assert everything(copy) == everything(file)


def everything_raw(file: Path) -> list[str]:
    database = sqlite3.connect(file)
    database.create_function("hedgerow_checksum", -1, checksum, deterministic=True)
    try:
        return list(database.iterdump())
    finally:
        database.close()


def test_a_migrated_sqlite_file_still_notices_what_was_not_stored_by_the_coordinator(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.db"
    fill(file)
    as_of_0_1(str(file))
    store = Store(str(file))
    store.set_state(JOBS[1], JobState.CANCELLED, "", 300.0)
    store.close()
    Store(str(file)).close()
    database = sqlite3.connect(file)
    database.execute("DROP TRIGGER jobs_UPDATE")
    database.execute("UPDATE jobs SET attempt = 7")
    database.commit()
    database.close()
    with pytest.raises(StorageFailed, match="of table jobs"):
        Store(str(file))


def test_a_damaged_sqlite_file_is_not_migrated(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    fill(file)
    as_of_0_1(str(file))
    database = sqlite3.connect(file)
    database.execute("DROP TRIGGER rounds_UPDATE")
    database.execute("UPDATE rounds SET bytes_up = 57 WHERE round = 0")
    database.commit()
    database.close()
    with pytest.raises(StorageFailed, match="row 1 of table rounds"):
        Store(str(file))
    assert version(str(file)) == 2
    assert not (tmp_path / "state.db.schema-2").exists()


def test_without_room_for_the_copy_nothing_is_migrated(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    fill(file)
    as_of_0_1(str(file))
    (tmp_path / "state.db.schema-2.new").mkdir()
    with pytest.raises(StorageFailed, match=r"schema version 2 and is not migrated.*schema-2: "):
        Store(str(file))
    assert version(str(file)) == 2


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (99, f"of a newer Hedgerow: expected schema version {SCHEMA_VERSION}, found 99"),
        (1, f"of a Hedgerow before 0.1: expected schema version 2 to {SCHEMA_VERSION}, found 1"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_and_left_as_it_is(
    url: str, found: int, words: str
) -> None:
    fill(url)
    change(url, f"UPDATE hedgerow_schema SET version = {found}")
    with pytest.raises(StorageFailed, match=re.escape(words)):
        Store(url)
    assert version(url) == found


def test_what_a_failed_migration_has_changed_is_taken_back(url: str) -> None:
    fill(url)
    as_of_0_1(url)
    change(  # the second job's files cannot be stored, since they become those of the first
        url,
        f"""UPDATE jobs SET artefacts = '["model.ubj", "model.ubj"]' WHERE job_id = '{JOBS[1]}'""",
        "CREATE UNIQUE INDEX different ON jobs ((CAST(artefacts AS TEXT)))",
    )
    with pytest.raises(StorageFailed, match="opening the database failed"):
        Store(url)
    assert version(url) == 2
    engine = engine_of(url)
    with engine.connect() as connection:
        files = "SELECT CAST(artefacts AS TEXT) FROM jobs ORDER BY job_id"
        assert connection.exec_driver_sql(files).scalar() == FILES
    engine.dispose()
