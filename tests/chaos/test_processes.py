"""Jobs of all strategies under random faults of real processes: the same model, or who and why.

``make chaos SEEDS=200`` runs more seeds. A seed that has found something is run alone by
``SEED=17 pytest tests/chaos/test_processes.py``.
"""

from __future__ import annotations

import os
import random
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from hedgerow.services.process.ledgers import verify
from tests.chaos.arena import Arena, Size, arena
from tests.chaos.faults import KINDS, ON_DISKS, Disturbance, happening
from tests.chaos.oracle import check, check_logs, left_running
from tests.chaos.work import NAMES, SILOS, WITH_FEWER, job, replayed
from tests.federation.memory import Fault
from tests.federation.processes import wait_until

N_SEEDS = int(os.environ.get("SEEDS", "20"))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(N_SEEDS)
GROWTH = Size(threads=12, descriptors=16, resident_mb=120.0)
"""Most by which a process may be larger than after its first jobs."""


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("chaos")
    with arena(folder) as made:
        yield made
        check_size(made)
    for name in made.names:
        assert made.processes[name].returncode == 0, name
    assert left_running(folder) == []
    check_logs(made)


def check_size(fed: Arena) -> None:
    """Assert that no process has grown since it had done three jobs."""
    for name in fed.names:
        first = fed.sizes.get(fed.processes[name].pid)
        if first is not None and len(first) > 3:
            now = fed.size(name)
            for field, most in asdict(GROWTH).items():
                grown = getattr(now, field) - getattr(first[3], field)
                assert grown <= most, f"{name}: {field} {first} {now}"


def drawn(seed: int, exchanges: dict[str, int], disks: bool) -> list[Disturbance]:
    """Return the faults of a seed: one, or two of different processes."""
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if disks or kind not in ON_DISKS]
    rng.shuffle(kinds)
    found: list[Disturbance] = []
    for kind in kinds:
        watched = rng.choice(sorted(exchanges))
        after = rng.randrange(exchanges[watched])
        part = KINDS[kind][0]
        victim = part if part == "coordinator" else f"agent-{rng.choice(SILOS[: len(exchanges)])}"
        if victim not in {fault.victim for fault in found}:
            found.append(Disturbance(kind, victim, watched, after, rng.randrange(1 << 30)))
        if len(found) == 1 + (seed % 4 == 3):
            break
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disturbed_job_gives_the_same_model_or_says_who_and_why(fed: Arena, seed: int) -> None:
    name = NAMES[seed % len(NAMES)]
    faults = drawn(seed, fed.undisturbed(name).exchanges, fed.disks)
    job_id = fed.submit(job(name))
    known: list[str] = []
    first = faults[0]
    wait_until(
        lambda: fed.exchanges(first.watched, job_id) >= first.after or fed.client.get(job_id).ended,
        60,
        str(first),
    )
    with happening(fed, first) as about:
        known += about
        for second in faults[1:]:
            with happening(fed, second) as more:
                known += more
    view = fed.end(job_id)
    check(fed, name, view, faults, ", ".join(known))
    fed.mend()
    fed.measure()


@pytest.mark.parametrize("seed", range(max(N_SEEDS // 5, 1)))
def test_a_job_that_goes_on_without_a_silo_has_the_trees_of_those_that_were_there(
    fed: Arena, seed: int
) -> None:
    """The victim's ledger has its last offer; a replay in one process loses it there."""
    rng = random.Random(seed)
    name = WITH_FEWER[seed % len(WITH_FEWER)]
    text, victim = job(name, min_silos=2), rng.choice(SILOS)
    after = rng.randrange(1, fed.undisturbed(name).exchanges[victim])
    job_id = fed.submit(text)
    wait_until(
        lambda: fed.exchanges(victim, job_id) >= after or fed.client.get(job_id).ended,
        60,
        f"{victim} has offered {after} times",
    )
    fed.kill(f"agent-{victim}")
    view = fed.end(job_id)
    assert view.state == "SUCCEEDED", view.detail
    entries = verify(fed.disk(f"agent-{victim}") / "ledger.jsonl").entries
    last = [e for e in entries if e.job == job_id and not e.is_control][-1]
    fed.restart(f"agent-{victim}")
    expected = [fed.client.download(job_id, file)[1] for file in view.artefacts[:-1]]
    found = []
    for when in ("before", "after"):
        fault = Fault(victim, last.step, last.round, last.level, when)
        files = replayed(text, fed.folder, (fault,))
        found.append([files.get(file) for file in view.artefacts[:-1]])
    found.append([replayed(text, fed.folder, ()).get(file) for file in view.artefacts[:-1]])
    assert expected in found, (name, victim, last, view)


@pytest.mark.parametrize("trick", ["repeat", "swap", "half"])
def test_damaged_bytes_end_a_connection_and_no_agent(fed: Arena, trick: str) -> None:
    """Whoever is on the way can do this at any time."""
    fed.proxies["s1"].trick(trick)
    wait_until(lambda: fed.proxies["s1"].tricked, 60, "something passes")
    view = fed.end(fed.submit(job("bagging")))
    assert view.state == "SUCCEEDED", view.detail
    assert fed.alive("agent-s1")


def test_a_vertical_job_ends_when_each_party_has_its_part(fed: Arena) -> None:
    """The passive party dies after its last offer, when nobody waits for it any more."""
    undisturbed = fed.undisturbed("secureboost")
    job_id = fed.submit(job("secureboost"))
    last = undisturbed.exchanges["s1"]
    wait_until(lambda: fed.exchanges("s1", job_id) >= last, 60, "s1 has made its last offer")
    fed.kill("agent-s1")
    fed.restart("agent-s1")
    view = fed.end(job_id)
    assert view.state == "SUCCEEDED", view.detail
    assert fed.digests(view) == undisturbed.digests


def test_everybody_says_the_same_words_about_who_is_awaited(fed: Arena) -> None:
    fed.kill("agent-s1", signal.SIGSTOP)
    job_id = fed.submit(job("bagging"))

    def same() -> bool:
        told = fed.client.get(job_id).detail
        listed = next(view.detail for view in fed.client.list() if view.job_id == job_id)
        watched = next(iter(fed.client.watch(job_id))).detail
        logged = [entry["why"] for entry in fed.events("coordinator", job_id, "waiting")]
        return "for s1: answers to the job" in told and {listed, watched, *logged} == {told}

    try:
        wait_until(same, 60, "GetJob, ListJobs, WatchJob and the log agree")
        port = fed.ports["coordinator"]["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert 'hedgerow_waiting_seconds{what="answers to the job"}' in answer.read().decode()
    finally:
        fed.kill("agent-s1", signal.SIGCONT)
    assert fed.end(job_id).state == "SUCCEEDED"
