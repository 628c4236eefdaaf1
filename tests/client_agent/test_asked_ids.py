"""What other parties have asked of a table's ids, over jobs and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.client_agent.asked_ids import FOLDER, AskedIds, read
from hedgerow.client_agent.records import RecordDamaged
from hedgerow.client_agent.state import StateFolder
from hedgerow.coordinator.cli import main
from hedgerow.crypto.errors import PsiRefused


def account(folder: Path, most: float = 10.0, table: str = "people") -> AskedIds:
    state = StateFolder(folder)
    state.close()
    return AskedIds(state.records(FOLDER), table, most)


def test_other_guesses_in_every_job_meet_a_limit(tmp_path: Path) -> None:
    for k in range(5):  # as an agent does that starts again
        account(tmp_path).charge(f"job-{k}", 2_000, 1_000)
    with pytest.raises(PsiRefused, match=r"more than 10 times .* max_ids_asked"):
        account(tmp_path).charge("job-5", 1, 1_000)
    account(tmp_path, table="other").charge("job-5", 1, 1_000)
    account(tmp_path, most=11.0).charge("job-6", 1_000, 1_000)
    done = CliRunner().invoke(main, ["privacy", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    told = {of["table"]: of["ids"] for of in json.loads(done.stdout)}
    assert told["people"]["answered"] == 11_000
    assert told["people"]["limit"] == 11_000
    assert told["people"]["jobs"]["job-6"] == 1_000
    shown = CliRunner().invoke(main, ["privacy", str(tmp_path)]).stdout
    assert all(word in shown for word in ("ids asked", "job-6", "11000"))


def test_a_damaged_count_is_no_new_one(tmp_path: Path) -> None:
    account(tmp_path).charge("job", 1, 10)
    for slot in (tmp_path / FOLDER).iterdir():
        slot.write_bytes(b"")
    with pytest.raises(RecordDamaged):
        account(tmp_path).charge("job", 1, 10)
    with pytest.raises(RecordDamaged):
        read(tmp_path)
