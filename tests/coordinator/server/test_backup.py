"""Backups of databases that this release has not opened."""

from __future__ import annotations

import io
from pathlib import Path

from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.backup import back_up, restore
from hedgerow.coordinator.server.store import Store
from hedgerow.services.wire.job_view import JobState
from tests.coordinator.server.bench import opened
from tests.coordinator.server.test_flipped_bits import JOBS, everything, fill
from tests.coordinator.server.test_migrations import change


def test_a_database_of_an_older_release_without_the_newest_table_is_backed_up(
    url: str, tmp_path: Path
) -> None:
    fill(url)
    change(url, "DROP TABLE deleted_jobs")
    file = io.BytesIO()
    assert back_up(url, Artefacts(str(tmp_path / "artefacts")), file, 0.0) == (len(JOBS), 0)
    file.seek(0)
    copy = str(tmp_path / "restored.db")
    restored = restore(file, copy, Artefacts(str(tmp_path / "elsewhere")), replace=False)
    assert restored.jobs == len(JOBS)
    found, expected = everything(copy), everything(url)
    assert found["jobs"] == expected["jobs"]
    assert found[JOBS[0]] == expected[JOBS[0]], "the other one has no checkpoints"


def test_a_job_that_was_deleted_after_the_backup_stays_so(url: str, tmp_path: Path) -> None:
    fill(url)
    artefacts, file, (deleted, kept) = Artefacts(str(tmp_path / "artefacts")), io.BytesIO(), JOBS
    for job_id in JOBS:
        artefacts.write(job_id, "model.ubj", b"tree")
    back_up(url, artefacts, file, 0.0)
    store = Store(url)
    store.create_job(opened("job-0003", spec=b"\x00", operator="x"), "later", 300.0)
    for job_id in (deleted, "job-0003"):
        store.set_state(job_id, JobState.FAILED, "", 400.0)
        artefacts.delete_all(job_id)
        store.delete_job(job_id)
    for _ in range(2):
        file.seek(0)
        restored = restore(file, url, artefacts, replace=True)
        assert (restored.jobs, restored.files, {*restored.open}) == (1, 1, {kept})
        assert artefacts.jobs() == {kept}
        assert [job.job_id for job in store.jobs() or ()] == [kept]
        assert {*store.ended([*JOBS, "job-0003"])} == {deleted, "job-0003"}
        assert store.job_silos(kept)
        assert not store.job_silos(deleted)
    store.close()
