"""Jobs of all strategies under random faults of real processes: the same model, or who and why.

``make chaos SEEDS=200`` runs more seeds. A seed that has found something is run alone by
``SEEDS=17:18 pytest tests/chaos/test_processes.py``; ``FAULT="full disk"`` draws such faults only.
"""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from hedgerow.services.process.ledgers import verify
from tests.chaos.arena import Arena, Size, arena
from tests.chaos.conftest import RECOVERIES
from tests.chaos.faults import KINDS, ON_DISKS, drawn, happening
from tests.chaos.oracle import check, check_logs, left_running
from tests.chaos.work import NAMES, SEEDS, SILOS, WITH_FEWER, job, replayed
from tests.federation.memory import Fault
from tests.federation.processes import wait_until

ONLY = os.environ.get("FAULT", "")
"""Kinds of fault that have this in their name are drawn."""
RESULTS = ("ensemble.ubj", "model.ubj", "statistics.json", "structures.json", "vertical.json")
"""Files of results, of which each strategy has one at least."""
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


@pytest.fixture(autouse=True)
def _whole_again(fed: Arena) -> None:
    """Start what an earlier test that failed has left ended."""
    for name in fed.names:
        if not fed.alive(name):
            fed.restart(name)


def check_size(fed: Arena) -> None:
    """Assert that no process has grown since it had done three jobs."""
    for name in fed.names:
        first = fed.sizes.get(fed.processes[name].pid)
        if first is not None and len(first) > 3:
            now = fed.size(name)
            for field, most in asdict(GROWTH).items():
                grown = getattr(now, field) - getattr(first[3], field)
                assert grown <= most, f"{name}: {field} {first} {now}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disturbed_job_gives_the_same_model_or_says_who_and_why(
    fed: Arena, seed: int, request: pytest.FixtureRequest
) -> None:
    name = NAMES[seed % len(NAMES)]
    kinds = [kind for kind in KINDS if ONLY in kind and (fed.disks or kind not in ON_DISKS)]
    faults = drawn(seed, fed.undisturbed(name).exchanges, kinds)
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
        began = time.monotonic()
    over = time.monotonic()
    n_rounds = len(fed.client.get(job_id).rounds)
    fed.wait(job_id, lambda view: view.ended or len(view.rounds) > n_rounds)
    recoveries = request.config.stash[RECOVERIES].setdefault(faults[-1].kind, [])
    recoveries.append((over - began, time.monotonic() - over))
    view = fed.end(job_id)
    check(fed, name, view, faults, ", ".join(known))
    fed.mend()
    fed.measure()


@pytest.mark.parametrize("seed", SEEDS[::5])
def test_a_job_that_goes_on_without_a_silo_has_the_trees_of_those_that_were_there(
    fed: Arena, seed: int
) -> None:
    """The victim's ledger has its last offer; a replay in one process loses it there."""
    rng = random.Random(seed)
    name = WITH_FEWER[seed // 5 % len(WITH_FEWER)]
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
    states = {silo: fed.disk(f"agent-{silo}") for silo in SILOS}
    found = []
    for when in ("before", "after"):
        fault = Fault(victim, last.step, last.round, last.level, when, last.passing)
        files = replayed(text, fed.folder, states, (fault,))
        found.append([files.get(file) for file in view.artefacts[:-1]])
    found.append([replayed(text, fed.folder, states, ()).get(file) for file in view.artefacts[:-1]])
    assert expected in found, (name, victim, last, view)


@pytest.mark.parametrize("name", NAMES)
def test_a_coordinator_killed_before_it_has_stored_the_result_gives_it_when_it_is_back(
    fed: Arena, name: str, request: pytest.FixtureRequest
) -> None:
    undisturbed = fed.undisturbed(name)
    job_id = fed.submit(job(name))
    folder = fed.disk("coordinator") / "artefacts" / job_id
    for file in RESULTS:  # a folder in a file's place: it cannot be written
        (folder / file).mkdir(parents=True, exist_ok=True)
    view = fed.wait(job_id, lambda view: view.ended or "for its store" in view.detail)
    assert not view.ended, view.detail
    fed.kill("coordinator")
    for file in RESULTS:
        (folder / file).rmdir()
    began = time.monotonic()
    fed.restart("coordinator")
    over = time.monotonic()
    view = fed.end(job_id)
    recoveries = request.config.stash[RECOVERIES].setdefault("killed before the result", [])
    recoveries.append((over - began, time.monotonic() - over))
    assert view.state == "SUCCEEDED", view.detail
    # Silos whose half had ended before keep the result a moment after the job's end.
    wait_until(lambda: fed.digests(view) == undisturbed.digests, 60, "all is as undisturbed")
    assert all(not silo.detail for silo in view.silos), view.silos


@pytest.mark.parametrize("trick", ["repeat", "swap", "half"])
def test_damaged_bytes_end_a_connection_and_no_agent(fed: Arena, trick: str) -> None:
    """Whoever is on the way can do this at any time."""
    fed.proxies["s1"].trick(trick)
    wait_until(lambda: fed.proxies["s1"].tricked, 60, "something passes")
    view = fed.end(fed.submit(job("bagging")))
    assert view.state == "SUCCEEDED", view.detail
    assert fed.alive("agent-s1")


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_a_vertical_job_ends_when_each_party_has_its_part(fed: Arena, ended: int) -> None:
    """The passive party dies after its last offer, when nobody waits for it any more."""
    undisturbed = fed.undisturbed("secureboost")
    job_id = fed.submit(job("secureboost"))
    last = undisturbed.exchanges["s1"]
    wait_until(lambda: fed.exchanges("s1", job_id) >= last, 60, "s1 has made its last offer")
    fed.kill("agent-s1", ended)
    fed.restart("agent-s1")
    view = fed.end(job_id)
    assert view.state == "SUCCEEDED", view.detail
    assert fed.digests(view) == undisturbed.digests


def test_a_silo_whose_memory_of_a_job_is_damaged_says_once_that_it_keeps_no_model(
    fed: Arena,
) -> None:
    job_id = fed.submit(job("bagging", min_silos=2))
    wait_until(lambda: fed.exchanges("s1", job_id) > 2, 60, "s1 takes part")
    fed.kill("agent-s1")
    for file in (fed.disk("agent-s1") / "jobs" / job_id / "memory").iterdir():
        file.write_bytes(b"junk")
    view = fed.end(job_id)
    assert view.state == "SUCCEEDED", view.detail
    fed.restart("agent-s1")
    wait_until(
        lambda: bool(fed.events("agent-s1", job_id, "model not kept")), 60, "s1 has given it up"
    )
    assert fed.end(fed.submit(job("bagging"))).state == "SUCCEEDED"
    assert len(fed.events("agent-s1", job_id, "model not kept")) == 1
    assert not fed.events("agent-s1", job_id, "model not kept yet")


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
