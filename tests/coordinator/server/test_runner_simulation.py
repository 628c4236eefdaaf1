"""A job's run under random faults of its store, its silos and its process, with a mock clock.

Silo k adds ``8**(k + 3 * r)`` in round r, and the checkpoint carries the sum of all rounds: a digit
of the result that is not 1 is a round or a silo that was counted twice or not at all. The i-th call
moves ``2**i`` bytes, so the bytes that are stored say which calls were counted.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.boosting import registry
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo, Step
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Horizontal,
    JobParameters,
    RoundResult,
    Strategy,
)
from hedgerow.boosting.work import Forecast
from hedgerow.coordinator.server.arrived import ArrivedOffer
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.coordinator.server.runner import JobRun
from hedgerow.coordinator.server.store import Store
from hedgerow.coordinator.server.traffic import JobTraffic
from hedgerow.services.rpc.errors import LeaseLost
from hedgerow.services.rpc.federation import AttemptKey
from hedgerow.services.rpc.metering import CallCount
from hedgerow.services.wire.job_view import JobState
from hedgerow.services.wire.results import Outcome
from tests.adversary.arena import UrgentLoop
from tests.coordinator.server.bench import Bench, acceptance, job_of, opened

SILOS = tuple(map(Silo, "abc"))
N_ROUNDS = 3
WHOLE = sum(8**k for k in range(len(SILOS) * N_ROUNDS))
"""The sum where each silo is in each round once."""


@dataclass(frozen=True)
class Part:
    value: int


@dataclass(frozen=True)
class Digits:
    """Parameters of a strategy that adds numbers."""

    name: ClassVar[str] = "digits"


STEP = Step("digits", Call.SUMS, Part, Part, "a digit", Discloses.MASKED)


async def coordinate(
    parameters: Digits, hub: Barrier, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    total = int(start.checkpoint or b"0")
    first = next(k for k in range(N_ROUNDS + 1) if not total >> (9 * k))
    for round_ in range(first, N_ROUNDS):
        parts = await hub.collect(STEP, ExchangeKey(round_))
        total += sum(part.value for part in parts.values())
        hub.answer(STEP, ExchangeKey(round_), dict.fromkeys(parts, Part(total)))
        yield RoundResult(round_, b"%d" % total, {}, tuple(parts), round_ == N_ROUNDS - 1)


def artefact(parameters: Digits, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
    return Artefact({"total": checkpoint}, "total")


STRATEGY: Strategy[Any] = Strategy(
    parameters=Digits,
    layout=Horizontal(),
    reveals="",
    coordinate=coordinate,  # type: ignore[arg-type]
    participate=lambda *_: None,
    artefact=artefact,
    forecast=lambda *_: Forecast(N_ROUNDS, {}, ""),
    allowances=lambda *_: (),
)


class FaultyStore(Store):
    """Refuses some writes: before they are done, or when they are and nobody learns of it.

    ``plan`` has what happens at the n-th write, ``happen`` does what is not the store's own.
    """

    def __init__(self, url: str) -> None:
        self.plan: dict[int, str] = {}
        self.writes = 0
        self.happen: Callable[[str], None] = lambda kind: None
        super().__init__(url)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Any]:
        fault = self.plan.pop(self.writes, "")
        self.writes += 1
        if fault == "before":
            raise StorageFailed(f"{doing} failed: connection refused")
        with super()._writing(doing) as connection:
            yield connection
        if fault == "after":
            raise StorageFailed(f"{doing} failed: connection closed")
        if fault:
            self.happen(fault)


class Simulation:
    """A coordinator's run, and agents that take part in it."""

    def __init__(self, folder: Path, plan: dict[int, str]) -> None:
        self.store = FaultyStore(f"sqlite:///{folder}/state.db")
        self.bench = Bench(folder, self.store)
        self.bench.alive = set(SILOS)
        loop = asyncio.get_running_loop()
        self.bench.environment = replace(self.bench.environment, now=loop.time)
        spec = job_of(*SILOS, min_silos=3, patience=30.0)
        self.store.create_job(opened(spec=spec), "job", 1.0)
        self.job = JobParameters(
            "digits", Digits(), min_silos=3, silos=SILOS, start_timeout_seconds=30.0,
            step_timeout_seconds=60.0,
        )  # fmt: skip
        self.store.plan, self.store.writes, self.calls = dict(plan), 0, 0
        self.tasks: set[asyncio.Task[None]] = set()

        def happen(kind: str) -> None:
            loop.call_soon_threadsafe(
                lambda: self.tasks.add(loop.create_task(self.happen(*kind.split())))
            )

        self.store.happen = happen
        self.lost_bytes = False
        self.run = self.launch()
        self.agents = {silo: asyncio.create_task(self.agent(silo)) for silo in SILOS}

    def launch(self) -> JobRun:
        record = self.store.job("job-0001")
        assert record is not None
        run = JobRun(record, self.job, self.bench.environment, 100)
        if not record.state.ended:
            run.start()
        return run

    async def agent(self, silo: Silo) -> None:
        """Take part, as a silo's agent does, until the job has ended."""
        held: set[AttemptKey] = set()
        while True:
            await asyncio.sleep(0.3)
            run = self.run
            assignment = run.assignment(silo, frozenset(held))
            if assignment is None:
                continue
            held.add(assignment.key)
            with suppress(FederationError):
                await self.take_part(run, silo, assignment.key.attempt)

    async def take_part(self, run: JobRun, silo: Silo, number: int) -> None:
        agreement = None
        while agreement is None:
            try:
                agreement = await run.accept(silo, number, acceptance(run), 5.0)
            except LeaseLost:  # it registers, and answers again
                await asyncio.sleep(0.3)
        hub, k = None, SILOS.index(silo)
        while hub is None:
            with suppress(FederationError):
                hub = run.barrier(number, silo)
            await asyncio.sleep(0.01)
            if not run.is_current(number) or run.ended:
                return
        for round_ in range(agreement.first_round, N_ROUNDS):
            part = Part(8 ** (k + 3 * round_))
            parcel = ArrivedOffer(STEP.call, lambda _, part=part: part)
            reply = await asyncio.shield(hub.offer(silo, STEP.name, ExchangeKey(round_), parcel))
            assert reply.value >> (3 * (k + 3 * round_)) & 7 == 1
            count = CallCount(1, 1, 2**self.calls, 0, "digits", "job-0001", str(silo))
            run.traffic.account("/x.ExchangeService/Sums", count)
            self.calls += 1
        run.outcome(silo, number, Outcome())

    async def happen(self, kind: str, who: str = "a") -> None:
        silo = Silo(who)
        if kind == "lease":
            self.run.lost(silo)
        elif kind == "agent":  # its process is new, and has no memory of an attempt
            self.agents[silo].cancel()
            self.run.lost(silo)
            self.agents[silo] = asyncio.create_task(self.agent(silo))
        elif kind == "killed" and not self.run.ended:
            await self.run._end_task(at_once=True)
            self.lost_bytes = True  # what was not stored yet
            self.run = self.launch()
        elif kind == "shut down" and not self.run.ended:
            self.store.plan.clear()
            await self.run.shut_down()
            self.run = self.launch()

    async def end(self) -> None:
        while not self.run.ended:
            record = self.store.job("job-0001")
            assert record is not None
            if record.state.ended and self.run._task is None:
                break
            await asyncio.sleep(1.0)
        for agent in self.agents.values():
            agent.cancel()
        await asyncio.wait(self.agents.values())
        self.store.plan.clear()
        await self.run.shut_down()

    def check(self) -> None:
        record = self.store.job("job-0001")
        assert record is not None
        assert record.state is JobState.SUCCEEDED, record.detail
        digest = record.artefacts["total"]
        total = int(self.bench.environment.artefacts.read("job-0001", "total", digest))
        assert oct(total) == oct(WHOLE), "each silo is in each round once"
        rounds = self.store.rounds("job-0001")
        assert [one.round for one in rounds] == list(range(N_ROUNDS))
        stored = sum(step.bytes_up for step in self.store.byte_totals("job-0001"))
        assert stored < 2**self.calls, "no call is counted twice"
        assert self.lost_bytes or stored == 2**self.calls - 1, "nor is one missing"
        assert sum(one.bytes_up for one in rounds) <= stored or self.lost_bytes


HAPPENS = ["before", "after", "lease a", "lease b", "agent a", "agent c", "killed", "shut down"]
PLANS = st.dictionaries(st.integers(0, 30), st.sampled_from(HAPPENS), max_size=6)


def simulate(plan: dict[int, str]) -> None:
    """Run a job; at the n-th write of the store happens what the plan has for it."""

    async def main(folder: Path) -> None:
        simulation = Simulation(folder, plan)
        await simulation.end()
        simulation.check()

    loop = UrgentLoop()
    with tempfile.TemporaryDirectory() as folder:
        try:
            loop.run_until_complete(main(Path(folder)))
        finally:
            loop.close()


@pytest.fixture(autouse=True, scope="module")
def _strategy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.STRATEGIES.own, "digits", STRATEGY)  # type: ignore[arg-type]
        yield


@pytest.mark.slow
@settings(max_examples=40)
@given(plan=PLANS)
@example(plan=dict.fromkeys(range(0, 40, 2), "after"))
@example(plan=dict.fromkeys(range(0, 40, 2), "before"))
def test_each_silo_is_in_each_round_once_and_each_call_in_the_totals(plan: dict[int, str]) -> None:
    simulate(plan)


def test_the_simulation_fails_where_what_the_store_refuses_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JobTraffic, "put_back", lambda *_: None)

    def refuse_each_write() -> None:
        for write in range(30):
            simulate({write: "before"})

    with pytest.raises(AssertionError, match="nor is one missing"):
        refuse_each_write()
