"""The jobs of a coordinator together, and the watch over their silos' leases."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sql
from structlog.testing import capture_logs

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.jobs import Jobs
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.coordinator.server.store import Store
from hedgerow.coordinator.server.traffic import SentReports
from hedgerow.services.rpc.errors import LeaseLost
from hedgerow.services.rpc.federation import AttemptKey, Registration
from hedgerow.services.rpc.metering import CallCount
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobState,
    SentPayloads,
    SiloState,
)
from hedgerow.services.wire.results import Outcome, packed
from tests.coordinator.server.bench import Bench, FlakyStore, opened, until


def test_leases_are_watched_and_bytes_kept_while_the_database_is_away(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    roster = SiloRegistry(frozenset(), 1.0, time.monotonic, "0.1.0")
    jobs = Jobs(bench.environment, roster)
    run = bench.run("a", "b", patience=0.1)

    async def main() -> None:
        run.start()
        await until(lambda: run.ended)
        method = "/hedgerow.api.federation.v1.ExchangeService/ExchangeTrees"
        run.traffic.account(method, CallCount(1, 2, 30, 40, silo="a"))
        run.traffic.account(
            "/hedgerow.api.federation.v1.FederationService/RenewLease", CallCount(1, 1, 5, 6)
        )
        before = store.job("job-0001")
        assert before is not None
        assert before.state is JobState.FAILED
        store.away = True
        jobs._runs["job-0001"] = run
        jobs.start()
        run._ended_at = time.time() - 10.0
        roster.register(Silo("a"), Registration("i", "0.1.0", (), 0))
        await until(lambda: not roster.alive)
        assert "job-0001" in jobs._runs, "an ended job is kept until its bytes are stored"
        assert store.byte_totals("job-0001") == ()
        store.away = False
        await until(lambda: not jobs._runs)
        (total,) = store.byte_totals("job-0001")
        assert (total.bytes_up, total.bytes_down, total.calls) == (30, 40, 1)
        after = store.job("job-0001")
        assert after is not None
        assert after.control_bytes_up == before.control_bytes_up + 5
        await jobs.shut_down()

    asyncio.run(main())


class HeldArtefacts(Artefacts):
    """Files that are read when ``free``; ``reads`` are their names."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.free, self.reads = threading.Event(), list[str]()

    def read(self, job_id: str, name: str, digest: str = "") -> bytes:
        self.reads.append(name)
        assert self.free.wait(120)
        return super().read(job_id, name, digest)


def test_a_result_is_read_and_packed_once_for_all_silos_that_wait_without_a_thread(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    artefacts = HeldArtefacts(str(tmp_path / "artefacts"))
    roster = SiloRegistry(frozenset(), 600.0, time.monotonic, "0.1.0")
    jobs = Jobs(replace(bench.environment, artefacts=artefacts), roster)
    bench.run("a", "b")
    bench.store.set_job_silos("job-0001", [JobSilo("a", 5, SiloState.PRESENT, "")])
    files = {"model.ubj": b"tree" * 9}
    told = {name: artefacts.write("job-0001", name, data) for name, data in files.items()}
    bench.store.set_result("job-0001", told, "model.ubj", 1)
    lease = roster.register(Silo("a"), Registration("i", "0.1.0", (), 0)).lease_id

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        asked = [
            asyncio.create_task(jobs.result(Silo("a"), lease, "job-0001", 0.0)) for _ in range(8)
        ]
        await until(lambda: artefacts.reads)
        asked.pop(0).cancel()  # whoever asked first may go away
        try:
            for _ in range(16):
                await asyncio.wait_for(asyncio.to_thread(tuple), 60)
        finally:
            artefacts.free.set()
        first, *others = await asyncio.gather(*asked)
        assert first is not None
        assert (first.files, first.packed) == (files, packed(files))
        assert all(other is first for other in others)
        assert artefacts.reads == ["model.ubj"]

    asyncio.run(main())


def test_no_lease_ends_while_the_coordinator_itself_is_silent(tmp_path: Path) -> None:
    now = [0.0]
    roster = SiloRegistry(frozenset(), 8.0, lambda: now[0], "0.1.0")
    roster.register(Silo("a"), Registration("i", "0.1.0", (), 0))
    now[0] = 20.0  # frozen for 19.5 s of them
    roster.prolong(19.5)
    assert roster.sweep() == ()
    now[0] = 28.0
    assert roster.sweep() == (Silo("a"),)


def test_an_agent_registers_while_the_store_fails_and_is_stored_later(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0"))

    async def main() -> None:
        store.away = True
        jobs.start()
        grant = await jobs.register(Silo("a"), Registration("i", "0.1.0", (), 0))
        assert grant.lease_id
        assert store.silos() == ()
        store.away = False
        await until(store.silos)
        await jobs.shut_down()

    asyncio.run(main())


def test_silos_that_register_together_are_stored_together(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0"))
    transactions: list[object] = []
    sql.event.listen(store._engine, "commit", transactions.append)

    async def main() -> None:
        silos = [Silo(f"s{k:03d}") for k in range(100)]
        await asyncio.gather(
            *(jobs.register(silo, Registration("i", "0.1.0", (), 0)) for silo in silos)
        )
        assert [one.name for one in store.silos()] == silos

    asyncio.run(main())
    assert len(transactions) < 10, "each writes all that wait, and the others nothing"


def test_a_store_that_fails_is_logged_once_a_minute(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0"))

    async def main() -> None:
        jobs.start()
        store.away = True
        await jobs.register(Silo("a"), Registration("i", "0.1.0", (), 0))
        await until(lambda: store.refused > 3)
        await jobs.shut_down()

    with capture_logs() as logs:
        asyncio.run(main())
    (line,) = (line for line in logs if "store" in line["event"])
    assert (line["event"], line["log_level"]) == ("store failed", "error")


def test_a_job_that_cannot_be_deleted_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hedgerow.coordinator.server.jobs.RETAIN_SECONDS", 0.01)
    bench, errors = Bench(tmp_path), [StorageFailed("no disk"), ValueError("secret")]
    for number in range(3):
        bench.store.create_job(opened(f"job-000{number}"), "adult", 1.0)
        bench.store.set_state(f"job-000{number}", JobState.FAILED, "", 2.0 + number)
    roster = SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0")
    jobs = Jobs(bench.environment, roster, keep_days=1.0)
    stored = bench.store.delete_job

    def delete(job_id: str) -> None:
        if errors:
            raise errors.pop(0)
        stored(job_id)

    monkeypatch.setattr(bench.store, "delete_job", delete)

    async def main() -> None:
        jobs.start()
        # A deletion is logged after it is done.
        await until(lambda: sum("deleted" in line["event"] for line in logs) >= 5)
        await jobs.shut_down()

    with capture_logs() as logs:
        asyncio.run(main())
    assert not bench.store.jobs()
    told = [line for line in logs if "deleted" in line["event"]]
    assert [(line["event"], line["job"]) for line in told] == [
        ("job not deleted", "job-0000"), ("job not deleted", "job-0001"),
        ("job deleted", "job-0002"), ("job deleted", "job-0000"), ("job deleted", "job-0001"),
    ]  # fmt: skip
    assert (told[0]["why"], told[1]["kind"]) == ("no disk", "ValueError")
    assert "secret" not in str(logs)


def test_an_outcome_counts_while_the_store_fails_and_what_was_sent_is_shown_once_stored(
    tmp_path: Path,
) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    roster = SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0")
    jobs = Jobs(bench.environment, roster)
    bench.run("a", "b")
    store.set_job_silos("job-0001", [JobSilo("a", 5, SiloState.PRESENT, "")])
    silo, key = Silo("a"), AttemptKey("job-0001", 1)
    outcome = Outcome(sent=(SentPayloads("a", "ExchangeTrees", 1, 30),))

    async def main() -> None:
        lease = roster.register(silo, Registration("i", "0.1.0", (), 0)).lease_id
        store.away = True
        await jobs.outcome(silo, lease, key, outcome)
        store.away = False
        assert (await jobs.view("job-0001")).sent == ()
        await jobs.outcome(silo, lease, key, outcome)
        assert (await jobs.view("job-0001")).sent == outcome.sent
        with pytest.raises(LeaseLost):
            await jobs.outcome(silo, "of another", key, outcome)

    asyncio.run(main())


def test_a_job_is_seen_as_it_was_last_read_while_the_database_is_away(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0"))
    jobs._runs["job-0001"] = bench.run("a", "b")

    async def main() -> None:
        for k in range(3):  # as who watches it, with new rounds alone
            store.add_round("job-0001", FinishedRound(k, 1, 0.5, (), 10, 20, ("a", "b")))
            store.set_job_silos("job-0001", [JobSilo("a", k, SiloState.PRESENT, "")])
            watched = await jobs.view("job-0001", since=k)
            assert [one.round for one in watched.rounds] == [k]
        store.away = True
        for since in (0, 2):
            view = await jobs.view("job-0001", since=since)
            assert [one.round for one in view.rounds] == [*range(since, 3)]
            assert view.silos[0].n_samples == 2
        assert (await jobs.view("job-0001", brief=True)).rounds == ()

    asyncio.run(main())


def test_a_wait_for_an_assignment_prolongs_the_shortest_lease_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hedgerow.coordinator.server.jobs.LOOK_SECONDS", 3600.0)
    now, silo = [0.0], Silo("a")
    roster = SiloRegistry(frozenset(), 1.0, lambda: now[0], "0.1.0")
    jobs = Jobs(Bench(tmp_path).environment, roster)

    async def main() -> None:
        lease = roster.register(silo, Registration("i", "0.1.0", (), 0)).lease_id
        waiting = asyncio.create_task(jobs.assignment(silo, lease, frozenset(), 3600.0))
        await asyncio.sleep(0)
        now[0] = 0.9
        await until(lambda: roster._leases[silo].expires > 1.0, 30.0)
        waiting.cancel()

    asyncio.run(main())


class SlowStore(Store):
    """A store that stores a report each time that ``turns`` is released."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.began, self.turns = 0, threading.Semaphore(0)

    def set_sent(self, job_id: str, sent: Iterable[SentPayloads]) -> None:
        self.began += 1
        assert self.turns.acquire(timeout=20.0)
        if job_id == "job-0002":
            raise RuntimeError("a defect")
        super().set_sent(job_id, sent)


def test_a_report_that_is_given_up_or_fails_takes_none_of_another_with_it(tmp_path: Path) -> None:
    store = SlowStore(f"sqlite:///{tmp_path}/state.db")
    jobs = ["job-0001", "job-0002", "job-0003"]
    sent = tuple(SentPayloads(silo, "ExchangeTrees", 1, 30) for silo in "ab")
    for job_id in jobs:
        store.create_job(opened(job_id), "job", 1.0)
        store.set_job_silos(job_id, [JobSilo(s, 5, SiloState.PRESENT, "") for s in "ab"])

    async def main() -> None:
        reports = SentReports(store)
        calls = [asyncio.create_task(reports.add(job, (one,))) for job in jobs for one in sent]
        for k in (1, 2):  # who stores for the others is given up meanwhile
            await until(lambda k=k: store.began >= k)  # type: ignore[misc]
            assert not any(call.done() for call in calls[2:])
            calls[k - 1].cancel()
            store.turns.release()
        await until(lambda: store.began > 2 or all(call.done() for call in calls))
        assert not any(call.done() for call in calls[4:]), "not stored yet"
        store.turns.release(10)
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert list(map(type, done[2:4])) == 2 * [RuntimeError], "each hears that it is not stored"
        assert done[4:] == 2 * [None]

    asyncio.run(main())
    assert [store.sent(job_id) for job_id in jobs] == [sent, (), sent]
