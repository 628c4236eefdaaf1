"""Disks that are full for a while, under real processes; a limit on their files is the disk."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_faults import job, rounds_done, succeeded
from tests.federation.test_histogram_processes import JOB as SECURE_JOB


@contextmanager
def disk_full(fed: Federation, name: str) -> Iterator[None]:
    """Let a process write nothing any more: neither its state nor its log."""
    pid = fed.processes[name].pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, -1))
    try:
        yield
    finally:
        if fed.alive(name):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the job when nothing happens."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as fed:
        job_id = fed.submit(job(rounds=30))
        succeeded(fed.end(job_id))
        return fed.client.download(job_id)[1]


def test_a_job_waits_for_its_database_and_says_so(tmp_path: Path, undisturbed: bytes) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=30, timeout=600))
        fed.wait(job_id, rounds_done(2))
        with disk_full(fed, "coordinator"):
            view = fed.wait(job_id, lambda v: v.ended or "for its store" in v.detail)
            assert view.state == "RUNNING"
            assert "no room left" in view.detail or "the disk is full" in view.detail
        view = succeeded(fed.end(job_id))
        assert view.attempt == 1
        assert fed.client.download(job_id)[1] == undisturbed
        assert "Traceback" not in fed.log("coordinator")


def test_a_job_waits_for_its_journal_in_the_same_attempt(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        whole = fed.submit(SECURE_JOB)
        succeeded(fed.end(whole))
        job_id = fed.submit(SECURE_JOB)
        fed.wait(job_id, rounds_done(2))
        journal = tmp_path / "artefacts" / job_id / "journal"
        journal.rename(journal.with_name("aside"))
        journal.write_bytes(b"")  # root may write to any folder, but not into a file
        said = "for its store (writing journal/histogram/begun"
        view = fed.wait(job_id, lambda v: v.ended or said in v.detail)
        assert view.state == "RUNNING"
        time.sleep(10.0)
        journal.unlink()
        journal.with_name("aside").rename(journal)
        view = succeeded(fed.end(job_id, 180))
        assert view.attempt == 1
        assert fed.client.download(job_id)[1] == fed.client.download(whole)[1]


def test_a_job_is_cancelled_while_the_database_is_full(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=3000, timeout=600))
        fed.wait(job_id, rounds_done(2))
        answers: list[str] = []
        with disk_full(fed, "coordinator"):
            calling = threading.Thread(
                target=lambda: answers.append(fed.client.cancel(job_id)), daemon=True
            )
            calling.start()
            view = fed.wait(job_id, lambda v: "it ends as CANCELLED" in v.detail)
            assert view.state == "RUNNING", "the state is what was last stored"
            for k in range(3):
                wait_until(lambda k=k: "stopped" in fed.log(f"agent-s{k}"), 60, "silos stop")  # type: ignore[misc]
        assert fed.end(job_id).state == "CANCELLED"
        calling.join()
        assert answers == ["CANCELLED"]


def test_a_coordinator_ends_without_a_traceback_while_the_database_is_full(
    tmp_path: Path, undisturbed: bytes
) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=30, timeout=600))
        fed.wait(job_id, rounds_done(2))
        with disk_full(fed, "coordinator"):
            fed.wait(job_id, lambda v: "for its store" in v.detail)
            fed.processes["coordinator"].send_signal(signal.SIGTERM)
            wait_until(lambda: not fed.alive("coordinator"), 60, "the coordinator ends")
        assert fed.processes["coordinator"].returncode == 0
        assert "Traceback" not in fed.log("coordinator")
        fed.start_coordinator()
        succeeded(fed.end(job_id))
        assert fed.client.download(job_id)[1] == undisturbed


@pytest.mark.parametrize("phase", ["gathering", "training"])
def test_an_agent_whose_disk_was_full_declines_with_the_reason_and_takes_part_again(
    tmp_path: Path, undisturbed: bytes, phase: str
) -> None:
    with federation(tmp_path) as fed:
        job_id = ""
        if phase == "training":
            job_id = fed.submit(job(rounds=30))
            fed.wait(job_id, rounds_done(2))
        with disk_full(fed, "agent-s1"):
            job_id = job_id or fed.submit(job(rounds=30))
            view = fed.wait(job_id, lambda v: v.ended or "s1 failed" in v.detail)
            assert not view.ended
            assert "(the disk of this silo's state folder is full)" in view.detail or (
                "the ledger of s1 cannot be written" in view.detail
            )
        succeeded(fed.end(job_id))
        assert fed.client.download(job_id)[1] == undisturbed
        assert "Traceback" not in fed.log("agent-s1")
