"""Every fault in every phase: the job ends with the undisturbed model, or fails naming the silo."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hedgerow.services.wire.job_view import JobView
from tests.containers.compose import Project, docker, eventually, run
from tests.containers.matrix import Cell, Matrix

pytestmark = pytest.mark.timeout(900)
quick = pytest.mark.quick

ROUNDS = 60
JOB = f"""
name = "disturbed"
strategy = "histogram"
label = "label"
task = "binary"
seed = 7
min_silos = 3
silos = ["silo-0", "silo-1", "silo-2"]
test_data = "test"
metrics = ["auc"]
step_timeout_seconds = 60
start_timeout_seconds = 60
[histogram]
rounds = {ROUNDS}
secure = true
[booster]
max_depth = 4
max_bin = 64
"""
LONG = JOB.replace(f"rounds = {ROUNDS}", "rounds = 5000")
PHASES = {"gathering": 0, "training": 4, "last rounds": ROUNDS - 8}
"""Phases of a job, by the rounds that are done when the fault comes."""
RECOVERS_WITHIN_SECONDS = 120.0
LIFETIME_DAYS = 30.0
"""How long the one-shot ``pki`` issues certificates for."""


@pytest.fixture(autouse=True)
def healthy_before_and_after(disturbed: Project) -> Iterator[None]:
    eventually(disturbed.healthy, 90, "healthy before")
    yield
    for view in disturbed.client.list():
        if not view.ended:
            disturbed.client.cancel(view.job_id)
    eventually(disturbed.healthy, 90, "healthy after")


def digest(project: Project, view: JobView) -> str:
    assert view.state == "SUCCEEDED", (view.state, view.detail)
    assert [r.round for r in view.rounds] == list(range(ROUNDS)), "a round was lost"
    return hashlib.sha256(project.client.download(view.job_id)[1]).hexdigest()


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The job when nothing happens."""

    digest: str
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(disturbed: Project, matrix: Matrix) -> Undisturbed:
    eventually(disturbed.healthy, 90, "healthy before")
    disturbed.end(disturbed.submit(JOB), 200)  # nothing is cold any more
    started = time.monotonic()
    view = disturbed.end(disturbed.submit(JOB), 200)
    seconds = time.monotonic() - started
    found = digest(disturbed, view)
    matrix.add(Cell("none", "", "", "same model", view.attempt, len(view.rounds), seconds))
    return Undisturbed(found, seconds)


def reach(project: Project, phase: str, job: str = JOB) -> str:
    """Submit the job and wait for a phase of it."""
    job_id = project.submit(job)
    if PHASES[phase]:
        project.wait(job_id, lambda v: v.ended or len(v.rounds) >= PHASES[phase], 120)
    return job_id


def freeze(container: str) -> None:
    """Pause a container; an engine of a busy machine may fail to freeze it at the first attempt."""
    for _ in range(5):
        docker("pause", container, check=False)
        if docker("inspect", "--format", "{{.State.Paused}}", container) == "true":
            return
    docker("pause", container)


def recover(
    project: Project, job_id: str, done: int, started: float | None = None
) -> tuple[float, JobView]:
    """Wait for the next round after ``done``, then for the end; seconds from ``started`` or now."""
    started = time.monotonic() if started is None else started
    within = RECOVERS_WITHIN_SECONDS
    project.wait(job_id, lambda v: v.ended or len(v.rounds) > done, within)
    seconds = time.monotonic() - started
    return seconds, project.end(job_id, within)


def rounds_of(project: Project, job_id: str) -> int:
    view = project.view(job_id)
    return 0 if view is None else len(view.rounds)


@pytest.mark.parametrize(
    ("service", "phase"),
    [
        pytest.param(s, p, marks=[quick] if p == "training" else [])
        for s in ("coordinator", "agent-1", "crypto-1", "database")
        for p in PHASES
    ],
)
def test_a_service_killed_and_started_again_changes_nothing(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix, service: str, phase: str
) -> None:
    container, other = disturbed.container(service), disturbed.container("agent-2")
    # A frozen silo keeps the job in its phase until the service is dead.
    if phase == "gathering":
        freeze(other)
    try:
        job_id = reach(disturbed, phase)
        if phase != "gathering":
            freeze(other)
        found = disturbed.view(job_id)
        assert found is not None
        assert not found.ended, "the job was over before the fault"
        docker("kill", "--signal", "KILL", container)
    finally:
        docker("unpause", other, check=False)
    started = time.monotonic()
    docker("start", container)
    seconds, view = recover(disturbed, job_id, len(found.rounds), started)
    assert digest(disturbed, view) == undisturbed.digest
    matrix.add(
        Cell("killed", service, phase, "same model", view.attempt, len(view.rounds), seconds)
    )


def test_prometheus_killed_is_no_part_of_a_job(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix
) -> None:
    job_id = reach(disturbed, "training")
    done = rounds_of(disturbed, job_id)
    docker("kill", disturbed.container("prometheus"))
    docker("start", disturbed.container("prometheus"))
    seconds, view = recover(disturbed, job_id, done)
    assert digest(disturbed, view) == undisturbed.digest
    assert view.attempt == 1
    matrix.add(Cell("killed", "prometheus", "training", "same model", 1, len(view.rounds), seconds))


@pytest.mark.parametrize(
    ("service", "network", "seconds", "cut"),
    [
        pytest.param("agent-1", "federation", 5, "agent from coordinator", marks=quick),
        ("agent-1", "federation", 20, "agent from coordinator"),  # longer than a lease
        ("agent-1", "silo-1", 5, "agent from crypto process"),
        ("coordinator", "database", 5, "coordinator from database"),
    ],
)
def test_a_partition_heals_and_changes_nothing(
    disturbed: Project,
    undisturbed: Undisturbed,
    matrix: Matrix,
    service: str,
    network: str,
    seconds: int,
    cut: str,
) -> None:
    job_id = reach(disturbed, "training")
    done = rounds_of(disturbed, job_id)
    place, container = disturbed.network(network), disturbed.container(service)
    docker("network", "disconnect", place, container)
    time.sleep(seconds)
    alias = ("--alias", "agent-1.silo") if network == "silo-1" else ()
    docker("network", "connect", *alias, place, container)
    started = time.monotonic()
    done = max(done, rounds_of(disturbed, job_id))
    recovery, view = recover(disturbed, job_id, done, started)
    assert digest(disturbed, view) == undisturbed.digest
    matrix.add(
        Cell(
            f"cut off {seconds} s", cut, "training", "same model",
            view.attempt, len(view.rounds), recovery,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "service", [pytest.param("agent-1", marks=quick), "crypto-1", "coordinator", "database"]
)
def test_a_frozen_peer_thaws_and_changes_nothing(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix, service: str
) -> None:
    job_id = reach(disturbed, "training")
    done = rounds_of(disturbed, job_id)
    freeze(disturbed.container(service))
    time.sleep(12.0)  # longer than a lease
    docker("unpause", disturbed.container(service))
    seconds, view = recover(disturbed, job_id, done + 1)
    assert digest(disturbed, view) == undisturbed.digest
    matrix.add(
        Cell(
            "frozen 12 s",
            service,
            "training",
            "same model",
            view.attempt,
            len(view.rounds),
            seconds,
        )
    )


def inside(project: Project, service: str, *command: str) -> bytes:
    """Run a program of this machine in the network of a container."""
    pid = str(project.state(service)["State"]["Pid"])
    return run("nsenter", "-t", pid, "-n", *command)


def interface(project: Project, service: str, network: str) -> str:
    """Return the container's network device on a network."""
    found = project.state(service)["NetworkSettings"]["Networks"][project.network(network)]
    for line in inside(project, service, "ip", "-o", "-4", "addr").decode().splitlines():
        if f" {found['IPAddress']}/" in line:
            return line.split()[1]
    raise AssertionError(f"{service} is not on {network}")


def lossy(project: Project, action: str, percent: int) -> None:
    """Lose packets between agent-1 and the coordinator, both ways (iptables' statistic match)."""
    networks = project.state("agent-1")["NetworkSettings"]["Networks"]
    agent = networks[project.network("federation")]["IPAddress"]
    loss = (
        "-m",
        "statistic",
        "--mode",
        "random",
        "--probability",
        str(percent / 100),
        "-j",
        "DROP",
    )
    inside(project, "agent-1", "iptables", action, "INPUT", "-p", "tcp", "--sport", "7443", *loss)
    inside(project, "coordinator", "iptables", action, "INPUT", "-s", agent, "-p", "tcp", *loss)


@pytest.mark.timeout(1600)
def test_thirty_percent_of_packets_lost_slow_a_job_and_change_nothing(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix
) -> None:
    lossy(disturbed, "-A", 30)
    try:
        started = time.monotonic()
        view = disturbed.end(disturbed.submit(JOB), 700)
        seconds = time.monotonic() - started
    finally:
        lossy(disturbed, "-D", 30)
    assert digest(disturbed, view) == undisturbed.digest
    matrix.add(
        Cell(
            "30 % of packets lost", "agent-1", "whole job", "same model",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip


def test_a_link_of_two_megabits_slows_a_job_and_changes_nothing(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix
) -> None:
    slow = {s: interface(disturbed, s, "federation") for s in ("agent-1", "coordinator")}
    shape = ("tbf", "rate", "2mbit", "burst", "32kbit", "latency", "400ms")
    for service, device in slow.items():
        inside(disturbed, service, "tc", "qdisc", "add", "dev", device, "root", *shape)
    try:
        started = time.monotonic()
        view = disturbed.end(disturbed.submit(JOB), 300)
        seconds = time.monotonic() - started
    finally:
        for service, device in slow.items():
            inside(disturbed, service, "tc", "qdisc", "del", "dev", device, "root")
    assert digest(disturbed, view) == undisturbed.digest
    matrix.add(
        Cell(
            "2 Mbit/s", "agent-1 and coordinator", "whole job", "same model",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip


@pytest.mark.parametrize("service", ["agent-1", "crypto-1"])
def test_too_little_memory_fails_the_job_and_names_the_silo(
    disturbed: Project, matrix: Matrix, service: str
) -> None:
    container = disturbed.container(service)
    job_id = reach(disturbed, "training")
    docker("kill", container)
    docker("update", "--memory", "24m", "--memory-swap", "24m", container)
    docker("start", container, check=False)
    started = time.monotonic()
    try:
        view = disturbed.end(job_id, 240)
        seconds = time.monotonic() - started
    finally:
        docker("update", "--memory", "2g", "--memory-swap", "2g", container)
        docker("restart", "--time", "1", container)
    assert view.state == "FAILED"
    assert "silo-1" in view.detail
    matrix.add(
        Cell(
            "24 MB of memory", service, "training", "fails, silo named",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("volume", "service"),
    [
        pytest.param("silo-1-state", "agent-1", marks=quick),
        ("coordinator-state", "coordinator"),
    ],
)
def test_a_full_volume_ends_the_job_in_bounded_time_and_says_why(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix, volume: str, service: str
) -> None:
    job_id = reach(disturbed, "training", LONG)
    disturbed.fill(volume)
    started = time.monotonic()
    try:
        view = disturbed.end(job_id, 240)
        seconds = time.monotonic() - started
    finally:
        disturbed.empty(volume)
    assert view.state == "FAILED"
    assert ("silo-1" if service == "agent-1" else "the disk is full") in view.detail
    assert digest(disturbed, disturbed.end(disturbed.submit(JOB), 200)) == undisturbed.digest
    named = "silo" if service == "agent-1" else "the full disk"
    matrix.add(
        Cell(
            "full volume", service, "training", f"fails, {named} named",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        pytest.param((), "all certificates renewed"),
        pytest.param(("--new-keys",), "all certificates and keys renewed", marks=quick),
    ],
)
def test_renewed_certificates_are_taken_up_while_a_job_runs(
    disturbed: Project,
    undisturbed: Undisturbed,
    matrix: Matrix,
    arguments: tuple[str, ...],
    what: str,
) -> None:
    job_id = reach(disturbed, "training")
    disturbed.issue("--renew", *arguments)
    seconds, view = recover(disturbed, job_id, rounds_of(disturbed, job_id))
    assert digest(disturbed, view) == undisturbed.digest
    after = disturbed.end(disturbed.submit(JOB), 200)
    assert digest(disturbed, after) == undisturbed.digest
    matrix.add(Cell(what, "all", "training", "same model", view.attempt, len(view.rounds), seconds))


@pytest.mark.parametrize("phase", ["gathering", "training"])
def test_a_silo_whose_certificate_has_ended_is_refused_and_named_until_it_has_a_new_one(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix, phase: str
) -> None:
    container = disturbed.container("agent-1")
    job_id = reach(disturbed, phase) if phase == "training" else ""
    disturbed.issue("--renew", "--only", "silo-1", "--age-days", "40")
    docker("restart", "--time", "5", container)
    started = time.monotonic()
    try:
        view = disturbed.end(job_id or disturbed.submit(JOB), 240)
        seconds = time.monotonic() - started
        assert "expired" in disturbed.log("agent-1", time.time() - 60)
    finally:
        disturbed.issue("--renew", "--only", "silo-1")
    assert view.state == "FAILED"
    assert "silo-1" in view.detail
    assert digest(disturbed, disturbed.end(disturbed.submit(JOB), 200)) == undisturbed.digest
    matrix.add(
        Cell(
            "restarted with an ended certificate", "agent-1", phase, "fails, silo named",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip


def test_a_certificate_that_ends_while_a_job_runs_fails_it_and_names_the_silo(
    disturbed: Project, undisturbed: Undisturbed, matrix: Matrix
) -> None:
    job_id = reach(disturbed, "training", LONG)
    left = 25.0
    age = LIFETIME_DAYS - left / 86400
    ends = time.monotonic() + left
    disturbed.issue("--renew", "--only", "silo-1", "--age-days", f"{age:.6f}")
    issued = rounds_of(disturbed, job_id)
    try:
        view = disturbed.end(job_id, 240)
        seconds = time.monotonic() - ends
    finally:
        disturbed.issue("--renew", "--only", "silo-1")
    assert view.state == "FAILED"
    assert "silo-1" in view.detail
    assert len(view.rounds) > issued, "the job did not run until the certificate ended"
    assert 0.0 <= seconds < RECOVERS_WITHIN_SECONDS
    assert digest(disturbed, disturbed.end(disturbed.submit(JOB), 200)) == undisturbed.digest
    matrix.add(
        Cell(
            "certificate ends", "agent-1", "training", "fails, silo named",
            view.attempt, len(view.rounds), seconds,
        )
    )  # fmt: skip
