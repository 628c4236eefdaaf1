"""All jobs of a coordinator: what the servicers of operators and silos talk to."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog

from hedgerow.boosting.errors import JobStopped
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Forecast, JobParameters
from hedgerow.coordinator.server.database import DatabaseAway
from hedgerow.coordinator.server.roster import Roster
from hedgerow.coordinator.server.runner import JobRun, Moved, Surroundings
from hedgerow.coordinator.server.store import (
    JobRecord,
    JobSiloRecord,
    JobState,
    RoundRecord,
    StepTotal,
)
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.rpc.exchange import Account
from hedgerow.services.rpc.federation import (
    Acceptance,
    Agreement,
    Assignment,
    AttemptKey,
    LeaseGrant,
    Registration,
)
from hedgerow.services.rpc.jobs import JobView, RoundView, SiloView, StepView
from hedgerow.services.rpc.metering import CallCount

SWEEP_SECONDS = 0.5
MOST_KEPT_JOBS = 16
"""Ended jobs that an agent may ask about with one renewal."""

log = structlog.get_logger()


def _log_failure(what: str, error: Exception, **about: str) -> None:
    log.error(what, kind=type(error).__name__, where=where(error), **about)


_NOTHING: Moved = ((), (0, 0))


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the store has of a job."""

    record: JobRecord
    silos: tuple[JobSiloRecord, ...]
    totals: tuple[StepTotal, ...]
    rounds: tuple[RoundRecord, ...]


class Jobs:
    """The coordinator's jobs, running and ended.

    Parameters
    ----------
    surroundings : Surroundings
    roster : Roster
    decode : callable
        Serialised JobSpec to job parameters; raises InvalidJob.
    max_attempts : callable
        Serialised JobSpec to the attempts that may fail in a row.
    forecast : callable
        (job, rows by silo, columns by silo) to the forecast of each silo; zeros are unknown.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        roster: Roster,
        decode: Callable[[bytes], JobParameters],
        max_attempts: Callable[[bytes], int],
        forecast: Callable[[JobParameters, dict[Silo, int], dict[Silo, int]], dict[str, Forecast]],
    ) -> None:
        self._around = surroundings
        self._roster = roster
        self._decode = decode
        self._max_attempts = max_attempts
        self._forecast = forecast
        self._runs: dict[str, JobRun] = {}
        self._strategies: dict[str, str] = {}
        self._arrived = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with the jobs that an earlier process left, and watch the leases."""
        for record in reversed(self._around.store.unfinished_jobs()):
            self._launch(record)
        self._sweeper = asyncio.create_task(self._sweep(), name="lease sweeper")

    async def shut_down(self) -> None:
        """Stop all jobs without ending them."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(run.shut_down() for run in self._runs.values()))

    def _launch(self, record: JobRecord) -> None:
        job = self._decode(record.spec)
        run = JobRun(record, job, self._around, self._max_attempts(record.spec))
        self._runs[record.job_id] = run
        self._strategies[record.job_id] = job.strategy.name
        run.start()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for silo in self._roster.sweep():
                for job_id, run in self._runs.items():
                    try:
                        run.lost(silo)
                    except Exception as error:  # one job's defect is not the others'
                        _log_failure("lost silo not noted", error, job=job_id, silo=silo)
            # Leases have to be watched whatever becomes of the store.
            try:
                await self._settle()
                await self._gauge()
            except DatabaseAway as error:
                log.warning("database away", why=str(error))
            except Exception as error:  # nor may a defect of ours end the watch
                _log_failure("sweep failed", error)
            await self._wake()

    async def _settle(self) -> None:
        """Let go of jobs that have ended, once all that they moved is stored."""
        for job_id, run in list(self._runs.items()):
            # The last calls of its silos may still be ending: keep it for a moment.
            if run.ended_for(5.0):
                await run.settle()
                del self._runs[job_id]

    async def _gauge(self) -> None:
        def read() -> tuple[dict[JobState, int], int]:
            states = dict.fromkeys(JobState, 0)
            for record in self._around.store.jobs(limit=1000):
                states[record.state] += 1
            return states, len(self._around.store.silos())

        states, known = await asyncio.to_thread(read)
        for state, number in states.items():
            self._around.metrics.jobs.labels(state.value.lower()).set(number)
        alive = len(self._roster.alive)
        self._around.metrics.silos.labels("alive").set(alive)
        self._around.metrics.silos.labels("away").set(max(known - alive, 0))

    async def _wake(self) -> None:
        # Not a condition: a call that is cancelled twice while it waits would keep its lock.
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    # --- hedgerow.services.rpc.federation.Federation ---

    async def register(self, silo: Silo, registration: Registration) -> LeaseGrant:
        """Grant a lease."""
        grant = self._roster.register(silo, registration)
        await asyncio.to_thread(
            self._around.store.register_silo,
            silo,
            registration.instance_id,
            registration.version,
            registration.strategies,
            registration.row_count_class,
            self._around.now(),
        )
        for run in self._runs.values():
            run.poke()
        return grant

    async def assignment(
        self, silo: Silo, lease_id: str, held: frozenset[AttemptKey], timeout_seconds: float
    ) -> Assignment | None:
        """Wait for an assignment that the agent does not hold yet."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._roster.touch(silo, lease_id)
            for run in list(self._runs.values()):
                found = run.assignment(silo, held)
                if found is not None:
                    return found
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return None
            try:
                await asyncio.wait_for(self._arrived.wait(), min(remaining, SWEEP_SECONDS))
            except TimeoutError:
                continue

    async def accept(
        self, silo: Silo, lease_id: str, acceptance: Acceptance, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer to an assignment in."""
        self._roster.touch(silo, lease_id)
        return await self._run(acceptance.key.job_id).accept(silo, acceptance, timeout_seconds)

    def renew(
        self, silo: Silo, lease_id: str, working: tuple[AttemptKey, ...]
    ) -> tuple[AttemptKey, ...]:
        """Keep a lease; returns what to stop."""
        self._roster.touch(silo, lease_id)
        return tuple(key for key in working if not self._is_current(key))

    async def ended(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the jobs that have ended for good, as the store has it."""

        def read() -> list[JobRecord | None]:
            return [self._around.store.job(job_id) for job_id in job_ids[:MOST_KEPT_JOBS]]

        if not job_ids:
            return ()
        try:
            records = await asyncio.to_thread(read)
        except DatabaseAway:
            return ()
        return tuple(r.job_id for r in records if r is not None and r.ended)

    def _is_current(self, key: AttemptKey) -> bool:
        run = self._runs.get(key.job_id)
        return run is not None and not run.ended and run.is_current(key.attempt)

    def outcome(self, silo: Silo, lease_id: str, key: AttemptKey, error: str) -> None:
        """Note how a silo's half ended."""
        self._roster.touch(silo, lease_id)
        run = self._runs.get(key.job_id)
        if run is not None:
            run.outcome(silo, key.attempt, error)

    def release(self, silo: Silo, lease_id: str) -> None:
        """End a lease; its silo is lost to all jobs."""
        self._roster.release(silo, lease_id)
        for run in self._runs.values():
            run.lost(silo)

    # --- hedgerow.services.rpc.exchange.FindDesk, hedgerow.services.rpc.metering.Sink ---

    def find(self, job_id: str, attempt: int, silo: Silo) -> Account:
        """Return the desk of an attempt."""
        self._roster.admit(silo)
        run = self._run(job_id)
        return Account(run.desk(attempt, silo), self._strategies[job_id])

    def account(self, path: str, count: CallCount) -> None:
        """Credit a finished call to its job."""
        run = self._runs.get(count.job_id)
        if run is not None:
            run.account(path, count)

    # --- hedgerow.services.rpc.jobs.Jobs ---

    async def create(self, spec: bytes, operator: str, request_id: str) -> str:
        """Validate, store and start a job."""
        job = self._decode(spec)
        job.parameters.validate(job)
        # A caller that goes away must not leave a job stored and not started.
        return await asyncio.shield(self._store_new(job.name, spec, operator, request_id))

    async def _store_new(self, name: str, spec: bytes, operator: str, request_id: str) -> str:
        created = self._around.now()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created))
        new_id = f"{stamp}-{secrets.token_hex(3)}"

        def store() -> tuple[str, JobRecord | None]:
            job_id = self._around.store.create_job(
                new_id, name, operator, spec, created, request_id or None
            )
            return job_id, self._around.store.job(job_id)

        job_id, record = await asyncio.to_thread(store)
        if job_id == new_id:
            assert record is not None
            self._launch(record)
            await self._wake()
        return job_id

    async def view(self, job_id: str, *, brief: bool = False) -> JobView:
        """Return a job as operators see it."""
        run = self._runs.get(job_id)
        if run is None or brief:
            stored, moved = await asyncio.to_thread(self._stored, job_id, brief), _NOTHING
        else:
            async with run.storing:  # or bytes on their way to the store would be missed
                stored = await asyncio.to_thread(self._stored, job_id, brief)
                moved = run.unstored()
        if stored is None:
            raise NotFound(f"no job {job_id}")
        return self._view(stored, moved)

    def _stored(self, job_id: str, brief: bool) -> _Stored | None:
        record = self._around.store.job(job_id)
        return None if record is None else self._whole(record, brief)

    def _whole(self, record: JobRecord, brief: bool) -> _Stored:
        store, job_id = self._around.store, record.job_id
        silos = store.job_silos(job_id)
        if brief:
            return _Stored(record, silos, (), ())
        return _Stored(record, silos, store.byte_totals(job_id), store.rounds(job_id))

    def _view(self, stored: _Stored, moved: Moved = _NOTHING) -> JobView:
        record = stored.record
        job_id = record.job_id
        steps: dict[tuple[str, str], StepView] = {}
        fresh, control = moved
        for t in (*stored.totals, *fresh):
            old = steps.get((t.method, t.silo), StepView(t.method, t.silo, 0, 0, 0, 0, 0))
            steps[t.method, t.silo] = StepView(
                t.method,
                t.silo,
                old.calls + t.calls,
                old.messages_up + t.messages_up,
                old.messages_down + t.messages_down,
                old.bytes_up + t.bytes_up,
                old.bytes_down + t.bytes_down,
            )
        up: dict[str, int] = {}
        down: dict[str, int] = {}
        for step in steps.values():
            up[step.silo] = up.get(step.silo, 0) + step.bytes_up
            down[step.silo] = down.get(step.silo, 0) + step.bytes_down
        silos = tuple(
            SiloView(s.silo, s.n_samples, s.state, s.detail, up.get(s.silo, 0), down.get(s.silo, 0))
            for s in stored.silos
        )
        return JobView(
            job_id=job_id,
            spec=record.spec,
            state=record.state.value,
            detail=record.detail,
            attempt=record.attempt,
            silos=silos,
            rounds=tuple(
                RoundView(
                    r.round, r.attempt, r.seconds, r.metrics, r.bytes_up, r.bytes_down, r.silos
                )
                for r in stored.rounds
            ),
            steps=tuple(steps.values()),
            created_seconds=record.created,
            ended_seconds=record.ended,
            operator=record.operator,
            best_round=record.best_round,
            artefacts=record.artefacts,
            model=record.model,
            reveals=self._decode(record.spec).strategy.reveals,
            control_bytes_up=record.control_bytes_up + control[0],
            control_bytes_down=record.control_bytes_down + control[1],
            spec_digest=hashlib.sha256(record.spec).hexdigest(),
        )

    async def list(self, page_size: int, page_token: str) -> tuple[tuple[JobView, ...], str]:
        """Return a page of jobs, newest first, and the next page's token."""
        offset = int(page_token) if page_token.isdigit() else 0
        size = min(page_size, 1000)

        def read() -> tuple[_Stored, ...]:
            return tuple(self._whole(r, True) for r in self._around.store.jobs(size, offset))

        found = await asyncio.to_thread(read)
        token = str(offset + size) if len(found) == size else ""
        return tuple(self._view(stored) for stored in found), token

    async def cancel(self, job_id: str) -> str:
        """Cancel a job."""
        run = self._runs.get(job_id)
        if run is not None and not run.ended:
            await run.cancel("an operator")
        return (await self.view(job_id, brief=True)).state

    async def watch(self, job_id: str) -> AsyncIterator[JobView]:
        """Yield a job each time it changes, until it has ended."""
        while True:
            view = await self.view(job_id)
            run = self._runs.get(job_id)
            yield view
            if view.ended or run is None:
                return
            await run.changed(2.0)

    async def artefact(self, job_id: str, name: str) -> tuple[str, bytes]:
        """Return a file of the result."""
        record = await asyncio.to_thread(self._around.store.job, job_id)
        if record is None:
            raise NotFound(f"no job {job_id}")
        name = name or record.model
        if name not in record.artefacts:
            have = ", ".join(record.artefacts) or f"none: the job is {record.state.value}"
            raise NotFound(f"job {job_id} has no file {name!r}; it has {have}")
        return name, await asyncio.to_thread(self._around.artefacts.read, job_id, name)

    def plan(self, spec: bytes) -> dict[str, Forecast]:
        """Return the forecast of each silo that the job would be for."""
        job = self._decode(spec)
        job.parameters.validate(job)
        alive = self._roster.alive
        names = tuple(job.silos) or tuple(alive)
        known = {Silo(n): alive.get(Silo(n)) for n in names}
        rows = {silo: told.row_count_class if told else 0 for silo, told in known.items()}
        columns = {silo: told.n_columns if told else 0 for silo, told in known.items()}
        return self._forecast(job, rows, columns)

    def _run(self, job_id: str) -> JobRun:
        run = self._runs.get(job_id)
        if run is None or run.ended:
            raise JobStopped(f"job {job_id} is not under way")
        return run
