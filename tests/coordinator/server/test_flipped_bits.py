"""One bit of the coordinator's SQLite file flips: it is noticed at the start, or nothing differs.

``FLIPS=100000`` flips a bit of every byte that is not zero.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobState,
    SiloState,
    StepTotal,
    scores_of,
)
from tests.coordinator.server.bench import opened

JOBS = ("job-0001", "job-0002")
FLIPS = int(os.environ.get("FLIPS", "150"))


def fill(file: Path | str) -> None:
    store = Store(str(file))
    store.register_silos({"a": Registration("i" * 32, "0.1", ("bagging",), 512, 3, ())}, 5.0)
    for job_id in JOBS:
        store.create_job(opened(job_id, spec=b"\x00\xffspec", operator="x"), "adult", 100.25)
        store.start_attempt(job_id, ["b", "a"], 101.5)
        store.set_job_silos(job_id, [JobSilo("a", 1234, SiloState.PRESENT, "since 10:00")])
        for k in range(3):
            scores = scores_of({"test": {"auc": 0.5 + k / 7}})
            store.add_round(job_id, FinishedRound(k, 1, 1.5 + k, scores, 56 + k, 78, ("a", "b")), k)
        store.set_traffic(job_id, [StepTotal("a", "Trees", 1, 2, 3, 4, 500_000)], 7, 8)
    store.set_result(JOBS[0], {"model.ubj": "ab" * 32}, "model.ubj", 2)
    store.set_state(JOBS[0], JobState.SUCCEEDED, "", 200.125)
    store.close()


def everything(file: Path | str) -> dict[str, Any]:
    store = Store(str(file))
    try:
        found: dict[str, Any] = {"jobs": store.jobs(), "silos": store.silos()}
        for job_id in JOBS:
            found[job_id] = (
                store.job(job_id), store.roster(job_id, 1), store.job_silos(job_id),
                store.rounds(job_id), store.byte_totals(job_id),
            )  # fmt: skip
        return found
    finally:
        store.close()


@pytest.mark.slow
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    file, trial = tmp_path / "whole.db", tmp_path / "trial.db"
    fill(file)
    whole, expected = file.read_bytes(), everything(file)
    used = [at for at, byte in enumerate(whole) if byte]
    rng = random.Random(7)
    noticed = 0
    for at in rng.sample(used, min(FLIPS, len(used))):
        for old in tmp_path.glob("trial.db*"):
            old.unlink()
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        trial.write_bytes(data)
        try:
            found, refusal = everything(trial), ""
        except FederationError as error:
            found, refusal = {}, str(error)
        assert found == expected or re.search("damaged|failed|schema version", refusal), at
        assert len(refusal) < 600
        noticed += bool(refusal)
    assert noticed > min(FLIPS, len(used)) // 3


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ("UPDATE rounds SET bytes_up = 57 WHERE round = 0", "row 1 of table rounds (job-0001)"),
        ("UPDATE scores SET value = value + 1e-9", "table scores (job-0001)"),
        ("UPDATE jobs SET attempt = 3", "table jobs (job-0001)"),
        ("UPDATE jobs SET signed = signed || x'00'", "table jobs (job-0001)"),
        ("UPDATE job_silos SET detail = CAST(x'ff' AS TEXT)", "table job_silos (job-0001)"),
        ("UPDATE silos SET version = '0.2'", "table silos (a)"),
        ("UPDATE step_bytes SET hedgerow_checksum = NULL", "table step_bytes (job-0001)"),
    ],
)
def test_a_value_that_was_not_stored_by_the_coordinator_is_named(
    tmp_path: Path, change: str, row: str
) -> None:
    file = tmp_path / "state.db"
    fill(file)
    database = sqlite3.connect(file)
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        database.execute(f"DROP TRIGGER {name}")
    database.execute(change)
    database.commit()
    database.close()
    with pytest.raises(StorageFailed, match=re.escape(row)):
        Store(str(file))


def test_a_database_without_checksums_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    fill(file)
    expected = everything(file)
    database = sqlite3.connect(file)
    found = database.execute("SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'")
    for name, table in found.fetchall():
        database.execute(f"DROP TRIGGER {name}")
        if name.endswith("INSERT"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN hedgerow_checksum")
    database.close()
    assert everything(file) == expected
    database = sqlite3.connect(file)
    assert None not in database.execute("SELECT hedgerow_checksum FROM rounds").fetchall()
    (triggers,) = database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'")
    assert triggers[0] >= 2 * 8
