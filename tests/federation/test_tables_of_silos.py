"""Agents held to a memory limit, and tables that change, as real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq

from hedgerow.boosting.tables import for_job
from hedgerow.client_agent.memory import PROCESS_BYTES
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.federation.processes import federation, wait_until, write_table
from tests.federation.test_faults import rounds_done, succeeded

ROWS = 400
JOB = """
strategy = "histogram"
seed = 7
min_silos = 3
[histogram]
rounds = 3
validation = 0.2
[booster]
max_depth = 4
"""


def test_bins_in_a_file_give_the_same_model_to_the_byte(tmp_path: Path) -> None:
    text = JOB
    with federation(tmp_path, n_rows=ROWS) as fed:
        job_id = fed.submit(text)
        succeeded(fed.end(job_id))
        free = fed.client.download(job_id)[1]

        known = job_wire.decode(job_file.parse(text))
        schema = for_job(pq.read_table(fed.silos["s0"]), known, "s0").schema
        need = known.strategy.memory(known.parameters, known, schema, ROWS, 1, 1.0)
        held = PROCESS_BYTES + need.held - need.labels
        for silo, limit in (("s0", held), ("s1", held + need.bins)):
            fed.kill(f"agent-{silo}", signal.SIGTERM)
            fed.start_agent(silo, memory_limit=limit)
        job_id = fed.submit(text)
        succeeded(fed.end(job_id))
        assert fed.client.download(job_id)[1] == free
        assert "room_for_bins=0" in fed.log("agent-s0")
        assert f"room_for_bins={need.bins}" in fed.log("agent-s1")
        scratch = tmp_path / "state-agent-s0/scratch"
        assert [*scratch.iterdir()] == []
        assert scratch.stat().st_mode & 0o777 == 0o700
        for silo in ("s0", "s1"):
            maps = Path(f"/proc/{fed.processes[f'agent-{silo}'].pid}/maps")
            wait_until(  # the silo's half ends a moment after the coordinator's
                lambda maps=maps: "/scratch/" not in maps.read_text(),  # type: ignore[misc]
                60,
                f"{silo} has nothing of the job's file left",
            )

        fed.kill("agent-s0", signal.SIGTERM)
        fed.start_agent("s0", memory_limit=held - 1)
        job_id = fed.submit("start_timeout_seconds = 10\n" + text)
        view = fed.end(job_id)
        assert "s0 declined (memory_limit: histogram takes up to 0.40 GB" in view.detail


def test_a_table_that_changes_under_a_job_is_declined_with_words(tmp_path: Path) -> None:
    with federation(tmp_path, n_rows=ROWS) as fed:
        job_id = fed.submit(JOB.replace("rounds = 3", "rounds = 3000"))
        fed.wait(job_id, rounds_done(2))
        fed.kill("agent-s1")
        write_table(fed.silos["s1"], ROWS, 9)
        fed.start_agent("s1")
        wait_until(lambda: "declined" in fed.log("agent-s1"), 60, "the table is refused")
        assert "its table has changed since it accepted the job" in fed.log("agent-s1")
        assert not fed.client.get(job_id).ended or "has changed" in fed.client.get(job_id).detail
        fed.client.cancel(job_id)
        short = fed.submit(JOB)
        succeeded(fed.end(short))


def test_validation_rows_that_change_under_a_job_end_its_attempt_with_words(tmp_path: Path) -> None:
    """Scores of a round that is played again would differ by the new rows of one silo."""
    with federation(tmp_path, n_rows=ROWS) as fed:
        for k, silo in enumerate(fed.silos):
            write_table(tmp_path / f"valid-{silo}.parquet", 60, 20 + k)
            fed.kill(f"agent-{silo}", signal.SIGTERM)
            fed.start_agent(silo, validation={"path": str(tmp_path / f"valid-{silo}.parquet")})
        job = JOB.replace("validation = 0.2", "validation_tables = true")
        job_id = fed.submit(job.replace("rounds = 3", "rounds = 3000"))
        fed.wait(job_id, rounds_done(2))
        fed.kill("agent-s1")
        write_table(tmp_path / "valid-s1.parquet", 60, 9)
        fed.start_agent("s1", validation={"path": str(tmp_path / "valid-s1.parquet")})
        changed = "its table has changed since it accepted the job"
        wait_until(lambda: changed in fed.log("agent-s1"), 60, "the table is refused")
        fed.client.cancel(job_id)
        succeeded(fed.end(fed.submit(job)))
