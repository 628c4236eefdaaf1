"""Backups of databases that this release has not opened."""

from __future__ import annotations

import io
from pathlib import Path

from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.backup import back_up, restore
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
