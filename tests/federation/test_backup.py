"""Backups of a coordinator that runs a job, by the commands, restored when it is lost."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from hedgerow.services.wire.job_view import JobView
from tests.coordinator.server.postgresql import running_postgresql
from tests.federation.processes import Federation, federation

BAGGING = """
name = "backup"
strategy = "bagging"
seed = 3
min_silos = 3
start_timeout_seconds = 60
metrics = ["logloss"]
[bagging]
rounds = 60
[booster]
max_depth = 3
"""
SUMS = """
name = "sums"
strategy = "histogram"
seed = 3
min_silos = 3
start_timeout_seconds = 60
[histogram]
rounds = 60
[booster]
max_depth = 3
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with federation(tmp_path_factory.mktemp("undisturbed")) as fed:
        job_id = fed.submit(BAGGING)
        assert fed.end(job_id).state == "SUCCEEDED"
        return fed.client.download(job_id)[1]


@pytest.fixture(params=["files", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "files":
        yield {}
    else:
        with running_postgresql() as url:
            yield {"database": url}


def hedgerow(*words: str | Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


def after(fed: Federation, job_id: str, n_rounds: int) -> JobView:
    return fed.wait(job_id, lambda view: view.ended or len(view.rounds) >= n_rounds)


def test_a_running_job_goes_on_from_a_backup_to_the_same_model(
    tmp_path: Path, undisturbed: bytes, database: dict[str, str]
) -> None:
    settings, file = tmp_path / "coordinator.toml", tmp_path / "backup.tar"
    with federation(tmp_path, **database) as fed:
        done = fed.submit(BAGGING.replace("rounds = 60", "rounds = 2"))
        assert fed.end(done).state == "SUCCEEDED"
        job_id = fed.submit(BAGGING)
        after(fed, job_id, 4)
        made = hedgerow("backup", "--config", settings, file)
        assert made["jobs"] == 2
        later = len(after(fed, job_id, len(fed.client.get(job_id).rounds) + 3).rounds)
        fed.kill("coordinator", signal.SIGKILL)
        refused = CliRunner().invoke(main, ["restore", "--config", str(settings), str(file)])
        assert refused.exit_code == 2
        assert "there are 2 jobs in the database and files of 2 jobs" in refused.output
        restored = hedgerow("restore", "--config", settings, file, "--replace")
        assert (restored["jobs"], restored["files"]) == (2, made["files"])
        assert 4 <= restored["open"][job_id] < later
        fed.start_coordinator()
        assert len(fed.client.get(job_id).rounds) >= restored["open"][job_id]
        view = fed.end(job_id)
        assert (view.state, len(view.rounds)) == ("SUCCEEDED", 60), view.detail
        assert [one.round for one in view.rounds] == list(range(60))
        assert fed.client.download(job_id)[1] == undisturbed
        assert len(fed.client.get(done).rounds) == 2
        assert fed.client.download(done)[1]


def test_a_backup_of_files_is_restored_to_postgresql(tmp_path: Path, undisturbed: bytes) -> None:
    settings, file = tmp_path / "coordinator.toml", tmp_path / "backup.tar"
    with running_postgresql() as url, federation(tmp_path) as fed:
        job_id = fed.submit(BAGGING)
        after(fed, job_id, 4)
        hedgerow("backup", "--config", settings, file)
        fed.kill("coordinator", signal.SIGKILL)
        fed.coordinator_settings |= {"database": url, "artefacts": str(tmp_path / "elsewhere")}
        fed.start_coordinator()
        fed.kill("coordinator", signal.SIGTERM)
        hedgerow("restore", "--config", settings, file)
        fed.start_coordinator()
        view = fed.end(job_id)
        assert view.state == "SUCCEEDED", view.detail
        assert fed.client.download(job_id)[1] == undisturbed


def test_a_database_that_is_older_than_the_checkpoints_ends_no_job(
    tmp_path: Path, undisturbed: bytes
) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(BAGGING)
        after(fed, job_id, 4)
        with (
            closing(sqlite3.connect(tmp_path / "state.db")) as source,
            closing(sqlite3.connect(tmp_path / "older.db")) as target,
        ):
            source.backup(target)
        after(fed, job_id, len(fed.client.get(job_id).rounds) + 4)
        fed.kill("coordinator", signal.SIGKILL)
        for end in ("-wal", "-shm"):
            (tmp_path / f"state.db{end}").unlink(missing_ok=True)
        shutil.move(tmp_path / "older.db", tmp_path / "state.db")
        fed.start_coordinator()
        view = fed.end(job_id)
        assert view.state == "SUCCEEDED", view.detail
        assert fed.client.download(job_id)[1] == undisturbed
        assert "rounds without a record" in fed.log("coordinator")


def test_secure_sums_are_not_opened_again_after_a_restore_and_the_job_says_why(
    tmp_path: Path,
) -> None:
    settings, file = tmp_path / "coordinator.toml", tmp_path / "backup.tar"
    with federation(tmp_path) as fed:
        job_id = fed.submit(SUMS)
        after(fed, job_id, 3)
        hedgerow("backup", "--config", settings, file)
        after(fed, job_id, len(fed.client.get(job_id).rounds) + 3)
        fed.kill("coordinator", signal.SIGKILL)
        hedgerow("restore", "--config", settings, file, "--replace")
        fed.start_coordinator()
        view = fed.end(job_id)
        assert view.state == "FAILED"
        assert "no silo has checked the trees" in view.detail
        assert "submit the job again" in view.detail


def of_a_newer_version(file: Path) -> bytes:
    """Return a backup whose database has a schema of a later version, with right digests."""
    out, folder = io.BytesIO(), file.with_suffix(".newer")
    with tarfile.open(file) as source, tarfile.open(fileobj=out, mode="w") as target:
        for entry in source:
            data = source.extractfile(entry).read()  # type: ignore[union-attr]
            if entry.name == "state.db":
                folder.write_bytes(data)
                with closing(sqlite3.connect(folder)) as database:
                    database.create_function("hedgerow_checksum", -1, lambda *_: b"")
                    database.execute("UPDATE hedgerow_schema SET version = version + 1")
                    database.commit()
                data = folder.read_bytes()
                entry.size = len(data)
            digest = next(key for key in entry.pax_headers if "size" not in key)
            entry.pax_headers = {digest: hashlib.sha256(data).hexdigest()}
            target.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("damage", ["bit", "end", "none of it", "newer"])
def test_a_damaged_backup_changes_nothing(tmp_path: Path, damage: str) -> None:
    settings, file = tmp_path / "coordinator.toml", tmp_path / "backup.tar"
    with federation(tmp_path) as fed:
        job_id = fed.submit(BAGGING.replace("rounds = 60", "rounds = 2"))
        assert fed.end(job_id).state == "SUCCEEDED"
        hedgerow("backup", "--config", settings, file)
        fed.kill("coordinator", signal.SIGTERM)
        data = bytearray(file.read_bytes())
        if damage == "bit":
            data[data.index(b"SQLite format 3") + 20] ^= 1
        file.write_bytes(
            b""
            if damage == "none of it"
            else data
            if damage == "bit"
            else of_a_newer_version(file)
            if damage == "newer"
            else data[: -(len(data) // 4)]
        )
        refused = CliRunner().invoke(
            main, ["restore", "--config", str(settings), str(file), "--replace"]
        )
        assert refused.exit_code == 2
        assert "the backup" in refused.output
        fed.start_coordinator()
        assert fed.client.get(job_id).state == "SUCCEEDED"
        assert fed.client.download(job_id)[1]
