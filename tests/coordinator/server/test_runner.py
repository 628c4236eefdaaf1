"""Who takes part in a job, and how it ends, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import (
    JobStopped,
    SchemaMismatch,
    Unauthorised,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server import runner
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.runner import JobRun
from hedgerow.services.rpc.errors import LeaseLost
from hedgerow.services.rpc.federation import Agreement
from hedgerow.services.wire.acceptance import Declined
from hedgerow.services.wire.job_view import JobState, SiloState
from hedgerow.services.wire.results import Outcome
from tests.coordinator.server.bench import Bench, FlakyStore, acceptance, until

A, B, C = map(Silo, "abc")
MALLORY = Silo("mallory")


def asked(run: JobRun, silo: Silo) -> bool:
    return run.assignment(silo, frozenset()) is not None


def test_an_uninvited_silo_can_neither_accept_nor_decline_nor_exchange(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        foreign = Schema((Feature("x", ("planted",)),), "y", Task.BINARY, 2)
        for answer in (acceptance(run, schema=foreign), Declined("no")):
            with pytest.raises(Unauthorised, match="mallory is not asked"):
                await run.accept(MALLORY, 1, answer, 120.0)
        agreed = await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        assert all(isinstance(one, Agreement) for one in agreed)
        assert agreed[0] is not None
        assert agreed[0].silos == (A, B)
        assert agreed[0].schema.features == (Feature("x"),)
        with pytest.raises(Unauthorised):
            await run.accept(MALLORY, 1, acceptance(run), 120.0)
        with pytest.raises(Unauthorised):
            run.barrier(1, MALLORY)
        run.outcome(MALLORY, 1, Outcome("spoilt"))
        assert {s.name for s in bench.store.job_silos("job-0001")} == {"a", "b"}
        await run.shut_down()

    asyncio.run(main())


def test_a_silo_that_declined_stays_out_and_gets_no_agreement(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b", "c")
        run.start()
        await until(lambda: asked(run, A))
        first = asyncio.create_task(run.accept(C, 1, acceptance(run), 120.0))
        await asyncio.sleep(0)  # it has accepted, and waits for the others
        for _ in range(2):  # a reply that was lost is asked for again
            with pytest.raises(JobStopped, match="c declined: policy"):
                await run.accept(C, 1, Declined("policy"), 120.0)
        with pytest.raises(Unauthorised, match="c has declined"):
            await run.accept(C, 1, acceptance(run), 120.0)
        agreed = await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        assert agreed[0] is not None
        assert agreed[0].silos == (A, B)
        with pytest.raises(Unauthorised):
            await first
        with pytest.raises(Unauthorised):
            await run.accept(C, 1, acceptance(run), 120.0)
        with pytest.raises(Unauthorised):
            run.barrier(1, C)
        await run.shut_down()

    asyncio.run(main())


@pytest.mark.parametrize("error", ["", "its disk is full"])
def test_a_silo_is_not_lost_once_its_half_has_ended_well(tmp_path: Path, error: str) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        await until(lambda: run.waiting is not None)
        run.outcome(A, 1, Outcome(error))
        run.lost(A, "its agent was ended")
        await run.shut_down()
        states = {silo.name: silo.state for silo in bench.store.job_silos("job-0001")}
        assert states == {"a": SiloState.LOST if error else SiloState.PRESENT, "b": "present"}

    asyncio.run(main())


def test_a_silo_that_is_lost_after_a_jobs_end_was_there_at_its_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        await until(lambda: run.waiting is not None)
        await run.cancel("oscar")
        run.lost(A)
        await run.shut_down()
        states = {silo.name: silo.state for silo in bench.store.job_silos("job-0001")}
        assert states == {"a": SiloState.PRESENT, "b": SiloState.PRESENT}
        assert run._storing._writer is None, "nothing is to be written either"

    asyncio.run(main())


def test_a_job_that_is_cancelled_while_its_failure_is_stored_has_failed_and_ended(
    tmp_path: Path,
) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)

    async def main() -> None:
        run = bench.run("a", "b", patience=0.5)
        run.start()
        await until(lambda: asked(run, A))
        store.away = True
        await until(lambda: store.refused)  # no silo answers; the failure cannot be stored
        assert not run.ended
        cancelling = asyncio.create_task(run.cancel("oscar"))
        refused = store.refused
        await until(lambda: store.refused > refused)
        store.away = False
        await cancelling
        assert run.ended
        record = store.job("job-0001")
        assert record is not None
        assert record.state is JobState.FAILED
        assert "a has not answered since" in record.detail

    asyncio.run(main())


def test_a_shutdown_does_not_wait_for_a_database_that_is_away(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)

    async def main() -> None:
        run = bench.run("a", "b", patience=0.5)
        run.start()
        await until(lambda: asked(run, A))
        store.away = True
        await until(lambda: store.refused)
        await run.shut_down()
        assert not run.ended, "a later process goes on with it"

    asyncio.run(main())


def test_an_open_job_asks_the_silos_that_are_there_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run(min_silos=2)
        bench.alive = {"a", "b"}
        run.start()
        await until(lambda: asked(run, A))
        shown = run.assignment(A, frozenset())
        assert shown is not None
        assert shown.silos == (A, B)
        answers = [asyncio.create_task(run.accept(s, 1, acceptance(run), 120.0)) for s in (A, B)]
        agreed = await asyncio.gather(*answers)
        assert agreed[0] is not None
        assert agreed[0].silos == (A, B)
        await run.shut_down()

    asyncio.run(main())


def test_a_job_whose_silos_were_refused_says_so_and_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b", patience=1.0)
        run.start()
        await until(lambda: asked(run, A))
        with pytest.raises(SchemaMismatch, match="another job"):
            await run.accept(A, 1, acceptance(run, job_digest=b"another"), 120.0)
        await until(lambda: run.ended)
        record = bench.store.job("job-0001")
        assert record is not None
        assert "a was refused (a agreed to another job than job-0001)" in record.detail
        assert "b has not answered since" in record.detail

    asyncio.run(main())


def test_a_silo_that_comes_while_a_schema_is_made_has_its_categories_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    begun, go_on = threading.Event(), threading.Event()

    class SlowArtefacts(Artefacts):
        def write(self, job_id: str, name: str, data: bytes) -> str:
            begun.set()
            assert go_on.wait(120.0)
            return super().write(job_id, name, data)

    def of(category: str) -> Schema:
        return Schema((Feature("x", (category,)),), "y", Task.BINARY, 2)

    async def main() -> None:
        slow = SlowArtefacts(str(tmp_path / "artefacts"))
        bench.environment = replace(bench.environment, artefacts=slow)
        run = bench.run("a", "b", "c", patience=0.5)
        run.start()
        await until(lambda: asked(run, A))
        answers = [
            asyncio.create_task(run.accept(silo, 1, acceptance(run, schema=of(category)), 120.0))
            for silo, category in ((A, "red"), (B, "green"))
        ]
        await until(begun.is_set)
        answers.append(
            asyncio.create_task(run.accept(C, 1, acceptance(run, schema=of("blue")), 120.0))
        )
        await asyncio.sleep(0)
        go_on.set()
        for agreed in await asyncio.gather(*answers):
            assert agreed is not None
            assert agreed.schema.features == (Feature("x", ("blue", "green", "red")),)
        await run.shut_down()

    asyncio.run(main())


def test_a_silo_whose_lease_ends_while_silos_gather_is_asked_again_at_once(tmp_path: Path) -> None:
    """As after its process, or the coordinator's, was frozen for longer than a lease."""
    bench = Bench(tmp_path)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        first = asyncio.create_task(run.accept(A, 1, acceptance(run), 120.0))
        await until(lambda: run._attempt and A in run._attempt.accepted)
        run.lost(A)
        with pytest.raises(LeaseLost, match="answer again"):
            await first
        assert "a was lost (its lease ended: no sign of life) at" in str(run.waiting)
        agreed = await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        assert agreed[0] is not None
        assert agreed[0].silos == (A, B)
        await run.shut_down()

    asyncio.run(main())


def test_agents_have_seconds_to_come_after_a_start_before_they_are_missed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    clock = [3600.0]
    bench.environment = replace(bench.environment, now=lambda: clock[0], began=3600.0)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        assert run.situation() == ""
        clock[0] += 5.0
        assert "no agent of a, b is there" in run.situation()
        await run.shut_down()

    asyncio.run(main())


def test_who_is_awaited_for_what_and_since_when_is_said_in_one_wording(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    clock = [3600.0]
    bench.environment = replace(bench.environment, now=lambda: clock[0])

    async def main() -> None:
        run = bench.run("a", "b", "c", patience=1.0)
        run.start()
        await until(lambda: asked(run, A))
        clock[0] += 10.0
        assert run.situation() == (
            "waits since 01:00:00 UTC for a, b, c: answers to the job "
            "(no agent of a, b, c is there)"
        )
        agreed = await asyncio.gather(
            run.accept(A, 1, acceptance(run), 120.0), run.accept(B, 1, acceptance(run), 120.0)
        )
        assert agreed[0] is not None
        await until(lambda: "step" in str(run.waiting))
        clock[0] += 10.0
        awaited = run.situation()
        assert awaited.startswith("waits since 01:00:10 UTC for a, b: step 'trees' of round 0")
        run.lost(A)
        run.lost(B)
        await until(lambda: "attempt 1 ended" in run.situation())
        assert run.situation().endswith(
            "needs 2 silos, 0 offered; missing a, b, c; a, b: was lost (its lease ended: no sign "
            "of life) at 01:00:20 UTC; c has not answered since 01:00:00 UTC"
        )
        await until(lambda: run.ended)
        record = bench.store.job("job-0001")
        assert record is not None
        assert "none" not in record.detail
        assert all(f"{silo} has not answered since 01:00:20 UTC" in record.detail for silo in "abc")

    asyncio.run(main())


def test_a_job_waits_for_its_store_until_its_own_deadline_and_then_says_why(
    tmp_path: Path,
) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    clock = [3600.0]
    bench.environment = replace(bench.environment, now=lambda: clock[0])

    async def main() -> None:
        run = bench.run("a", "b")
        store.away = True
        run.start()
        await until(lambda: store.refused > 2)
        clock[0] += 599.0
        refused = store.refused
        await until(lambda: store.refused > refused)
        assert not run._ending
        why = "(starting an attempt failed: connection refused)"
        assert run.situation() == f"waits since 01:00:00 UTC for its store {why}"
        clock[0] += 2.0
        await until(lambda: run._ending)
        assert "it ends as FAILED" in run.situation()
        store.away = False
        await until(lambda: run.ended)
        record = store.job("job-0001")
        assert record is not None
        assert record.state is JobState.FAILED
        assert record.detail == "starting an attempt failed: connection refused"

    asyncio.run(main())


def test_a_cancellation_that_cannot_be_stored_says_so_and_holds_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CANCEL_SECONDS", 0.2)
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)

    async def main() -> None:
        run = bench.run("a", "b")
        run.start()
        await until(lambda: asked(run, A))
        store.away = True
        with pytest.raises(StorageFailed, match="job job-0001"):
            await run.cancel("oscar")
        assert not asked(run, B), "it is stopped"
        store.away = False
        await until(lambda: run.ended)
        record = store.job("job-0001")
        assert record is not None
        assert record.state is JobState.CANCELLED

    asyncio.run(main())
