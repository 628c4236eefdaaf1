"""The jobs of a coordinator together, and the watch over their silos' leases."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from structlog.testing import capture_logs

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.jobs import Jobs
from hedgerow.coordinator.server.roster import Roster
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import CallCount
from hedgerow.services.wire.job_view import JobState
from tests.coordinator.server.bench import Bench, FlakyStore, until


def test_leases_are_watched_and_bytes_kept_while_the_database_is_away(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    roster = Roster(frozenset(), 1.0, time.monotonic, "0.1.0")
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


def test_no_lease_ends_while_the_coordinator_itself_is_silent(tmp_path: Path) -> None:
    now = [0.0]
    roster = Roster(frozenset(), 8.0, lambda: now[0], "0.1.0")
    roster.register(Silo("a"), Registration("i", "0.1.0", (), 0))
    now[0] = 20.0  # frozen for 19.5 s of them
    roster.prolong(19.5)
    assert roster.sweep() == ()
    now[0] = 28.0
    assert roster.sweep() == (Silo("a"),)


def test_an_agent_registers_while_the_store_fails_and_is_stored_later(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, Roster(frozenset(), 60.0, time.monotonic, "0.1.0"))

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


def test_a_store_that_fails_is_logged_once_a_minute(tmp_path: Path) -> None:
    store = FlakyStore(f"sqlite:///{tmp_path}/state.db")
    bench = Bench(tmp_path, store)
    jobs = Jobs(bench.environment, Roster(frozenset(), 60.0, time.monotonic, "0.1.0"))

    async def main() -> None:
        jobs.start()
        store.away = True
        await jobs.register(Silo("a"), Registration("i", "0.1.0", (), 0))
        await until(lambda: store.refused > 3)
        await jobs.shut_down()

    with capture_logs() as logs:
        asyncio.run(main())
    assert [line["event"] for line in logs if "store" in line["event"]] == ["store failed"]
