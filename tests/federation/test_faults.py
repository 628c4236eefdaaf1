"""Real processes that die, freeze, lie or are strangers."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hedgerow.boosting.errors import FederationError
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.process import ledgers
from hedgerow.services.wire.job_view import JobView
from tests.federation.processes import Federation, federation, wait_until, write_table

JOB = """
name = "faults"
strategy = "bagging"
seed = 3
min_silos = {min_silos}
step_timeout_seconds = {timeout}
start_timeout_seconds = 20
silos = ["s0", "s1", "s2"]
metrics = ["logloss"]
[bagging]
rounds = {rounds}
[booster]
max_depth = 3
"""


def job(rounds: int = 12, min_silos: int = 3, timeout: float = 30) -> str:
    return JOB.format(rounds=rounds, min_silos=min_silos, timeout=timeout)


def rounds_done(n: int):  # type: ignore[no-untyped-def]
    return lambda view: view.ended or len(view.rounds) >= n


def succeeded(view: JobView) -> JobView:
    assert view.state == "SUCCEEDED", (view.state, view.detail)
    return view


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the job when nothing happens."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as fed:
        job_id = fed.submit(job())
        succeeded(fed.end(job_id))
        return fed.client.download(job_id)[1]


def offers_wait(fed: Federation, job_id: str, silo: str) -> bool:
    """Whether a silo has offered in the round that is not finished yet."""
    with suppress(ledgers.LedgerBroken):  # read while it is written
        entries = ledgers.read(fed.folder / f"state-agent-{silo}" / "ledger.jsonl")
        last = max((e.round for e in entries if not e.is_control), default=-1)
        return last == len(fed.client.get(job_id).rounds)
    return False


def test_a_coordinator_killed_in_mid_round_goes_on_to_the_identical_model(
    tmp_path: Path, undisturbed: bytes
) -> None:
    with federation(tmp_path, lease_seconds=20.0) as fed:
        # A frozen silo keeps the barrier of the third round open while the coordinator dies.
        job_id = fed.submit(job())
        fed.wait(job_id, rounds_done(2))
        fed.kill("agent-s1", signal.SIGSTOP)
        wait_until(lambda: offers_wait(fed, job_id, "s0"), 60, "s0 waits for s1")
        fed.kill("coordinator")
        fed.kill("agent-s1", signal.SIGCONT)
        fed.start_coordinator()
        view = succeeded(fed.end(job_id))
        assert view.attempt == 2
        assert [r.round for r in view.rounds] == list(range(12))
        assert fed.client.download(job_id)[1] == undisturbed


def test_a_killed_agent_comes_back_and_the_model_is_the_same(
    tmp_path: Path, undisturbed: bytes
) -> None:
    with federation(tmp_path, lease_seconds=20.0) as fed:
        job_id = fed.submit(job())
        fed.wait(job_id, rounds_done(1))
        fed.kill("agent-s2")
        fed.start_agent("s2")
        succeeded(fed.end(job_id))
        assert fed.client.download(job_id)[1] == undisturbed


def test_a_silo_that_stays_away_is_left_out_and_comes_back_with_all_trees(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=400, min_silos=2))
        fed.wait(job_id, rounds_done(2))
        fed.kill("agent-s0")
        view = fed.wait(job_id, lambda v: v.rounds and "s0" not in v.rounds[-1].silos)
        assert next(s for s in view.silos if s.name == "s0").state == "lost"
        fed.start_agent("s0")
        back = fed.wait(
            job_id, lambda v: v.ended or (len(v.rounds) > 0 and "s0" in v.rounds[-1].silos)
        )
        assert "s0" in back.rounds[-1].silos, (back.state, back.detail)
        fed.client.cancel(job_id)


def test_cancellation_reaches_training_silos(tmp_path: Path) -> None:
    with federation(tmp_path, n_rows=20000) as fed:
        job_id = fed.submit(job(rounds=5000))
        fed.wait(job_id, rounds_done(1))
        assert fed.client.cancel(job_id) == "CANCELLED"
        wait_until(
            lambda: all("stopped" in fed.log(f"agent-s{k}") for k in range(3)),
            60,
            "all silos stop",
        )
        assert fed.end(job_id).state == "CANCELLED"


def test_a_frozen_silo_is_lost_with_its_lease_not_at_the_deadline_of_a_step(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=2000, min_silos=2, timeout=3600))
        fed.wait(job_id, rounds_done(1))
        fed.kill("agent-s1", signal.SIGSTOP)
        view = fed.wait(
            job_id, lambda v: any(s.name == "s1" and s.state == "lost" for s in v.silos)
        )
        assert "its lease ended" in next(s.detail for s in view.silos if s.name == "s1")
        fed.client.cancel(job_id)


def test_a_second_agent_of_the_same_name_is_refused_with_the_reason(tmp_path: Path) -> None:
    with federation(tmp_path, n_silos=1) as fed:
        name = fed.start_agent("s0", name="twin")
        wait_until(lambda: not fed.alive(name), 30, "the twin gives up")
        assert fed.processes[name].returncode == 2
        assert "another agent named s0 holds the lease" in fed.log(name)
        assert fed.alive("agent-s0")


def test_a_silo_that_is_not_on_the_roster_is_told_so(tmp_path: Path) -> None:
    silos = {"s0": write_table(tmp_path / "s0.parquet", 50, 0)}
    fed = Federation(tmp_path, silos, silos=["someone-else"])
    try:
        fed.start_coordinator()
        name = fed.start_agent("s0")
        wait_until(lambda: not fed.alive(name), 20, "the agent ends")
        assert "s0 is not on the roster of this federation" in fed.log(name)
        assert "Traceback" not in fed.log(name)
    finally:
        fed.stop()


def test_an_operator_certificate_is_no_silo(tmp_path: Path) -> None:
    with federation(tmp_path, n_silos=1) as fed:
        name = fed.start_agent("s0", name="wrong-role", identity="operator")
        wait_until(lambda: not fed.alive(name), 20, "the agent ends")
        assert "an agent needs a certificate of the role silo" in fed.log(name)


def test_a_foreign_certificate_is_refused_and_the_agent_keeps_trying(tmp_path: Path) -> None:
    with federation(tmp_path, n_silos=1) as fed:
        throwaway(tmp_path / "pki/foreign", ["s0"], time.time())
        name = fed.start_agent("s0", name="foreign", identity="foreign/silo/s0")
        wait_until(lambda: "coordinator away" in fed.log(name), 20, "the agent says why")
        assert "certificate" in fed.log(name)
        assert "Traceback" not in fed.log(name)


def test_an_unreachable_coordinator_is_named_and_waited_for(tmp_path: Path) -> None:
    silos = {"s0": write_table(tmp_path / "s0.parquet", 50, 0)}
    fed = Federation(tmp_path, silos)
    try:
        fed.ports["coordinator"] = {"port": 9}
        name = fed.start_agent("s0")
        wait_until(lambda: "no server listens there" in fed.log(name), 20, "the agent says so")
        assert "127.0.0.1:9" in fed.log(name)
        assert fed.alive(name)
    finally:
        fed.stop()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"x4": list(range(50))}, "column 'x4'"),
        ({}, "no label 'label'|no label column|there is no"),
    ],
)
def test_a_table_that_does_not_fit_is_named_with_its_first_difference(
    tmp_path: Path, extra: dict[str, list[int]], message: str
) -> None:
    import pyarrow.parquet as pq

    good = write_table(tmp_path / "good.parquet", 50, 0)
    bad = write_table(tmp_path / "bad.parquet", 50, 1, **extra)
    if not extra:
        pq.write_table(pq.read_table(bad).drop_columns(["label"]), bad)
    fed = Federation(tmp_path, {"s0": good, "s1": good, "s2": bad})
    try:
        fed.start()
        view = fed.end(fed.submit(job()))
        assert view.state == "FAILED"
        assert "s2" in view.detail
        import re

        assert re.search(message, view.detail), view.detail
    finally:
        fed.stop()


def test_a_full_disk_under_the_checkpoints_fails_the_job_and_keeps_earlier_rounds(
    tmp_path: Path,
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    # A file system of its own, in a namespace of the coordinator's: nothing outlives it.
    with federation(tmp_path, start=False, artefacts=str(small / "a")) as fed:
        fed.start_coordinator(
            prefix=[
                "unshare",
                "-rm",
                "sh",
                "-c",
                f'mount -t tmpfs -o size=48k none {small} && exec "$@"',
                "-",
            ]
        )
        for silo in fed.silos:
            fed.start_agent(silo)
        job_id = fed.submit(job(rounds=4000))
        view = fed.end(job_id, 120)
        assert view.state == "FAILED"
        assert "no room left" in view.detail
        assert "checkpoint" in view.detail
        done = [r.round for r in view.rounds]
        assert done == list(range(len(done)))
        assert len(done) > 1
        kept = list(
            (Path("/proc") / str(fed.processes["coordinator"].pid) / "root").glob(
                str(small / "a" / job_id / "checkpoints" / "*").lstrip("/")
            )
        )
        assert kept
        assert "Traceback" not in fed.log("coordinator")
        # The next job is not harmed by the failed one, but for the lack of room.
        assert fed.alive("coordinator")


def test_who_was_frozen_while_silos_gather_is_asked_again(
    tmp_path: Path, undisturbed: bytes
) -> None:
    with federation(tmp_path, start=False, lease_seconds=2.0) as fed:
        fed.start_coordinator()
        for silo in ("s0", "s1"):
            fed.start_agent(silo)
        job_id = fed.submit(job().replace("start_timeout_seconds = 20", ""))
        fed.wait(job_id, lambda v: "for s2: answers to the job" in v.detail)
        fed.kill("agent-s0", signal.SIGSTOP)
        fed.wait(job_id, lambda v: "s0 was lost (its lease ended: no sign of life)" in v.detail)
        fed.kill("agent-s0", signal.SIGCONT)
        fed.wait(job_id, lambda v: "for s2: answers to the job" in v.detail)
        fed.kill("coordinator", signal.SIGSTOP)
        wait_until(lambda: "coordinator away" in fed.log("agent-s1"), 60, "it is missed")
        fed.kill("coordinator", signal.SIGCONT)
        fed.start_agent("s2")
        view = succeeded(fed.end(job_id))
        assert view.attempt == 1
        assert fed.client.download(job_id)[1] == undisturbed
        names = ["coordinator", *(f"agent-{silo}" for silo in fed.silos)]
        job_id = fed.submit(job(rounds=3000))
        fed.wait(job_id, rounds_done(2))
        for name in names:
            fed.kill(name, signal.SIGTERM)
            assert fed.processes[name].returncode == 0
        for name in names:
            assert "Traceback" not in fed.log(name)
            assert "CancelledError" not in fed.log(name)


def test_the_last_sign_of_a_silo_outlives_the_coordinator(tmp_path: Path) -> None:
    with federation(tmp_path, lease_seconds=3.0) as fed:

        def seen(silo: str) -> tuple[bool, float]:
            (one,) = (view for view in fed.client.silos() if view.name == silo)
            return one.alive, one.last_seen or 0.0

        registered = seen("s1")[1]
        wait_until(lambda: seen("s1")[1] > registered + 2.0, 30, "s1 has renewed its lease")
        heard = seen("s1")[1]
        fed.kill("agent-s1")
        wait_until(lambda: not seen("s1")[0], 30, "s1 is away")
        wait_until(lambda: seen("s1")[1] >= heard - 0.1, 30, "its last sign is shown")
        fed.kill("coordinator", signal.SIGTERM)
        fed.start_coordinator()
        alive, last = seen("s1")
        assert not alive
        assert last >= heard - 0.1


def test_a_coordinator_on_an_empty_database_names_the_jobs_that_have_files(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(job(rounds=1))
        succeeded(fed.end(job_id))
        fed.kill("coordinator", signal.SIGTERM)
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        fed.start_coordinator()
        said = [line for line in fed.log("coordinator").splitlines() if "jobs have files" in line]
        assert len(said) == 1
        assert job_id in said[0]
        with pytest.raises(FederationError, match="no job"):
            fed.client.get(job_id)
