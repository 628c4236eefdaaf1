"""Jobs that are deleted: by an operator, an admin, or after days, and all that goes with them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import InvalidJob
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.records import Records
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import client_for, connect
from hedgerow.coordinator.server.database import DELETED, JOBS, META
from hedgerow.coordinator.server.store import OF_JOB
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.errors import JobUnderWay, NotFound
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import sign_job
from tests.adversary.people import People
from tests.adversary.test_owned_jobs import rewrite
from tests.federation.consoles import JOB
from tests.federation.processes import Federation, wait_until
from tests.federation.test_audit_trail import lines_of, told
from tests.federation.test_silos_that_left import three_silos


def rows(fed: Federation) -> dict[str, int]:
    """Rows of each table of a job's."""
    with sqlite3.connect(fed.folder / "state.db") as database:
        found = {
            table.name: database.execute(f"select count(*) from {table.name}").fetchone()[0]
            for table in (*OF_JOB, JOBS, DELETED)
        }
    database.close()
    return found


def open_jobs(fed: Federation, silo: str) -> frozenset[str]:
    """Jobs that have not ended as far as a silo knows."""
    state = fed.folder / f"state-agent-{silo}"
    key = (state / "records.key").read_bytes()
    return ReplayGuard(Records(state / "accepted", state / "turns/accepted", key)).open


def test_every_table_with_rows_of_a_job_is_known() -> None:
    named = {table for table in META.sorted_tables if "job_id" in table.c}
    assert named == {*OF_JOB, JOBS, DELETED}


def test_a_job_that_has_ended_is_deleted_with_all_that_the_coordinator_has_of_it(
    tmp_path: Path,
) -> None:
    people, trail = People(tmp_path / "pki"), tmp_path / "audit.jsonl"
    with three_silos(tmp_path, people, audit=str(trail)) as fed:
        identity = FileIdentity(IdentityPaths.of(tmp_path / "pki/operator"))
        signed = sign_job(job_file.parse(JOB.format(name="gone", rounds=3)), identity)
        job_id = fed.client.submit(signed)
        assert fed.end(job_id).state == "SUCCEEDED"
        wait_until(lambda: rows(fed)["sent_payloads"] > 0, 60, "silos have reported")
        assert all(rows(fed)[table.name] for table in (*OF_JOB, JOBS))
        people.make("other", Role.OPERATOR, "bob")
        with pytest.raises(NotFound, match="operator bob has no job"):
            client_for(fed.address, tmp_path / "pki/other", None).delete(job_id)
        long = fed.submit(JOB.format(name="long", rounds=100_000))
        words = ("--coordinator", fed.address, "--identity", str(tmp_path / "pki/operator"))
        done = CliRunner().invoke(main, ["jobs", "delete", long, job_id, *words])
        assert done.exit_code == 2
        assert f"job {long} is " in done.output
        assert "cancel it first" in done.output
        assert (tmp_path / "artefacts" / job_id).is_dir()
        done = CliRunner().invoke(main, ["jobs", "delete", job_id, "--json", *words])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"deleted": [job_id]}
        for gone in (fed.client.get, fed.client.download, fed.client.delete):
            with pytest.raises(NotFound):
                gone(job_id)
        assert not (tmp_path / "artefacts" / job_id).exists()
        with pytest.raises(InvalidJob, match=f"job {job_id} was deleted; sign it again"):
            fed.client.submit(signed)
        with pytest.raises(JobUnderWay):
            connect(fed.address, tmp_path / "pki/admin").delete(long)
        fed.wait(long, lambda view: bool(view.rounds))
        fed.kill("agent-s2")
        fed.client.cancel(long)
        connect(fed.address, tmp_path / "pki/admin").delete(long)
        assert {name for name, n in rows(fed).items() if n} == {"deleted_jobs"}
        assert [*fed.client.list()] == []
        assert "IntegrityError" not in fed.log("coordinator")
        # A silo that was away meanwhile learns the end all the same.
        assert long in open_jobs(fed, "s2")
        fed.start_agent("s2")
        wait_until(lambda: long not in open_jobs(fed, "s2"), 60, "s2 knows the end")
    assert told(trail, "job-delete") == [
        ("bob", "unknown", ""), ("bob", "failure", "NOT_FOUND"),
        ("ann", "unknown", ""), ("ann", "failure", "JOB_UNDER_WAY"),
        ("ann", "unknown", ""), ("ann", "success", ""),
        ("ann", "unknown", ""), ("ann", "failure", "NOT_FOUND"),
        ("root", "unknown", ""), ("root", "failure", "JOB_UNDER_WAY"),
        ("root", "unknown", ""), ("root", "success", ""),
    ]  # fmt: skip


def test_jobs_that_ended_long_ago_are_deleted(tmp_path: Path) -> None:
    trail = tmp_path / "audit.jsonl"
    with three_silos(tmp_path, audit=str(trail)) as fed:
        old, new = (fed.submit(JOB.format(name=name, rounds=2)) for name in ("old", "new"))
        for job_id in (old, new):
            assert fed.end(job_id).state == "SUCCEEDED"
        later = "update jobs set ended = ended - 31 * 86400 where job_id = ?"
        rewrite(fed, later, old)
        assert {view.job_id for view in fed.client.list()} == {old, new}, "off where it is not set"
        fed.kill("coordinator")
        fed.coordinator_settings["retention"] = {"days": 30}
        fed.start_coordinator()
        wait_until(lambda: [one.job_id for one in fed.client.list()] == [new], 60, "it is deleted")
        assert not (tmp_path / "artefacts" / old).exists()
        assert fed.client.download(new)[1]
        assert "job deleted" in fed.log("coordinator")
    lines = [line for line in lines_of(trail) if line["event.action"] == "job-delete"]
    assert [(line["event.outcome"], line["hedgerow.job"]) for line in lines] == [
        ("unknown", old), ("success", old),
    ]  # fmt: skip
    assert not any("user.name" in line for line in lines)
