"""All jobs of a coordinator: what the servicers of operators and silos talk to."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import structlog

from hedgerow.boosting.errors import FederationError, JobStopped, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.work import Rates
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.changes import Changes, Shared
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.plans import plan_of
from hedgerow.coordinator.server.preflights import Preflights
from hedgerow.coordinator.server.releases import (
    Releases,
    approvers_of,
    check_released,
    released,
    statements,
)
from hedgerow.coordinator.server.results import Results, provenance
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.coordinator.server.runner import JobRun
from hedgerow.coordinator.server.sites import Sites
from hedgerow.coordinator.server.store import JobRecord, RegisteredSilo
from hedgerow.coordinator.server.traffic import NewTraffic, SentReports
from hedgerow.coordinator.server.views import StoredJob, stored_job
from hedgerow.services.process.logs import defect
from hedgerow.services.process.trail import NOWHERE, Actor, Trail
from hedgerow.services.rpc.errors import JobUnderWay, LeaseHeld, NotFound
from hedgerow.services.rpc.exchange import OpenAttempt
from hedgerow.services.rpc.federation import (
    Agreement,
    Arrival,
    Assignment,
    AttemptKey,
    Gathered,
    LeaseGrant,
    Preflight,
    Proposed,
    Registration,
)
from hedgerow.services.rpc.metering import CallCount
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.acceptance import Answer, PreflightAnswer
from hedgerow.services.wire.job_view import (
    JobState,
    JobView,
    PlanView,
    PreflightView,
    SiloView,
)
from hedgerow.services.wire.provenance import FILE
from hedgerow.services.wire.release import FILE as RELEASE
from hedgerow.services.wire.results import JobResult, Outcome
from hedgerow.services.wire.signed_job import FILE as SIGNED
from hedgerow.services.wire.signed_job import (
    ITS_SILOS,
    LABEL,
    JobApproval,
    JobStatement,
    OpenedJob,
    SignedJob,
    SiteSignature,
    read_statement,
    site_message,
)

SWEEP_SECONDS = 0.5
STORE_SECONDS = 1.0
"""How long a silo that registers waits for the store to have it, at most."""
LOOK_SECONDS = 5.0
"""How often, and three times a lease, an agent's wait for an assignment prolongs its lease."""
WATCH_PAUSES = 10.0
"""How long a watch pauses at least, in times that a view takes."""
LOG_SECONDS = 60.0
"""How often the log repeats what a job, or the watch over all of them, waits for."""
SIGN_SECONDS = 60.0
"""Between two times at which signs of life are stored; a coordinator that is killed loses these."""
RETAIN_SECONDS = 600.0
"""Between two looks for jobs that are to be deleted."""
MOST_NAMED = 8
"""Jobs that one line of the log names."""
MOST_KEPT_JOBS = 16
"""Ended jobs that an agent may ask about with one renewal."""

log = structlog.get_logger()


@contextmanager
def _logged_if_kept(job_id: str) -> Iterator[None]:
    """Log why a job could not be deleted, and go on."""
    try:
        yield
    except FederationError as error:
        log.error("job not deleted", job=job_id, why=str(error))
    except Exception as error:  # a defect in one job must not stop the others
        log.error("job not deleted", job=job_id, **defect(error))


class Jobs:
    """The coordinator's jobs, running and ended.

    Parameters
    ----------
    keep_days : float
        After how many days an ended job is deleted; 0: never.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        roster: SiloRegistry,
        keep_days: float = 0.0,
        trail: Trail = NOWHERE,
    ) -> None:
        self._keep_days, self._trail = keep_days, trail
        self._environment = environment
        self._roster = roster
        self._runs: dict[str, JobRun] = {}
        self._seen: tuple[RegisteredSilo, ...] = ()
        self._arrived = Changes()
        self._sites = Sites(
            lambda: roster.alive,
            lambda: len(roster.allowed),
            partial(self.create, operator=ITS_SILOS),
            environment.now,
        )
        self._followed: dict[str, Shared[int, JobView]] = {}
        self._preflights = Preflights(environment, roster, time.monotonic, self._arrived.notify)
        self._watches: tuple[asyncio.Task[None], ...] = ()
        self._ended: dict[Silo, str] = {}
        self._unstored: dict[Silo, Registration] = {}
        self._storing, self._creating = asyncio.Lock(), asyncio.Lock()
        self._signs_due = 0.0
        self._answered = time.monotonic()
        silence = environment.metrics.store_silence
        # One that stands by asks it nothing.
        silence.set_function(lambda: time.monotonic() - self._answered if self._watches else 0.0)
        self._sent, self._results = SentReports(environment.store), Results(environment)
        self._releases = Releases(environment.store, environment.artefacts, environment.approver)
        self._logged: dict[str, tuple[str, float]] = {}

    def start(self) -> None:
        """Continue the jobs that an earlier process left, and watch the leases."""
        store = self._environment.store
        for record in reversed(store.unfinished_jobs()):
            self._launch(record)
        unknown = sorted(job for job in self._environment.artefacts.jobs() if not store.job(job))
        if unknown:  # the database is older, or another one
            log.warning("jobs have files and are not in the database", jobs=unknown[:MOST_NAMED])
        self._answered = time.monotonic()
        self._watches = (
            asyncio.create_task(self._sweep(), name="lease sweeper"),
            asyncio.create_task(self._keep(), name="store keeper"),
            asyncio.create_task(self._retain(), name="retention"),
        )

    async def shut_down(self) -> None:
        """Stop all jobs without ending them."""
        for watch in self._watches:
            watch.cancel()
        self._signs_due = 0.0
        with suppress(StorageFailed):
            await self._store_signs()
        await asyncio.gather(*(run.shut_down() for run in self._runs.values()))

    def _launch(self, record: JobRecord) -> None:
        job, attempts = job_wire.decode(record.spec), job_wire.max_attempts(record.spec)
        run = JobRun(record, job, self._environment, attempts, self._arrived.notify)
        self._runs[record.job_id] = run
        for silo in job.silos or self._environment.registered():
            self._environment.metrics.expect_silo(silo, [job.strategy.name])
        run.start()

    async def _sweep(self) -> None:
        clock = time.monotonic
        while True:
            began = clock()
            await asyncio.sleep(SWEEP_SECONDS)
            # While this process was frozen or busy it heard nobody: that ends no lease.
            self._roster.prolong(clock() - began - SWEEP_SECONDS)
            ended = self._roster.sweep()
            if ended:
                self._arrived.notify()
                self._signs_due = 0.0
            for silo in ended:
                why = self._ended.get(silo, "no sign of life")
                for job_id, run in self._runs.items():
                    try:
                        run.lost(silo, f"its lease ended: {why}")
                    except Exception as error:  # a defect in one job must not stop the others
                        log.error("lost silo not noted", job=job_id, silo=silo, **defect(error))
            self._report()

    async def _keep(self) -> None:
        """Store what changes; beside the watch over leases, for a store may hang."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._settle()
                await self._store_silos()
                await self._store_signs()
                await self._gauge()
                self._answered = time.monotonic()
                self._logged.pop("", None)
            except StorageFailed as error:
                self._log_once("", "store failed", "store failed", level="error", why=str(error))
            except Exception as error:  # nor may a defect end the watch
                self._log_once("", "sweep failed", "sweep failed", level="error", **defect(error))

    async def _retain(self) -> None:
        """Delete jobs that ended long ago; what fails is retried, and keeps no other job."""
        while self._keep_days:
            before = self._environment.now() - self._keep_days * 86_400.0
            jobs = tuple[str, ...]()
            with _logged_if_kept(""):
                jobs = await asyncio.to_thread(self._environment.store.ended_before, before)
            for job_id in jobs:
                with _logged_if_kept(job_id):
                    with self._trail.action("job-delete", Actor(), job=job_id):
                        await self.delete(job_id)
                    log.info("job deleted", job=job_id, why="[retention] days")
            await asyncio.sleep(RETAIN_SECONDS)

    def _report(self) -> None:
        """Log what jobs wait for, and show it in the metrics."""
        longest: dict[str, float] = {}
        silos = dict.fromkeys(map(str, self._environment.registered()), 0.0)
        for job_id, run in self._runs.items():
            situation, waiting = run.situation(), run.waiting
            if run.ended or not situation:
                self._logged.pop(job_id, None)
            else:
                about = situation
                if waiting is not None and str(waiting) in situation:  # else it is too new to say
                    about = f"{waiting.what} {waiting.since}"
                level = "error" if waiting is not None and waiting.of_store else "info"
                self._log_once(job_id, about, "waiting", level=level, job=job_id, why=situation)
            if waiting is not None and not run.ended:
                seconds = self._environment.now() - waiting.since
                what = waiting.what.partition(" of round ")[0]
                longest[what] = max(seconds, longest.get(what, 0.0))
                for silo in waiting.silos:
                    silos[silo] = max(seconds, silos.get(silo, 0.0))
        self._environment.metrics.waits(longest, silos)

    def _log_once(
        self, job_id: str, about: str, event: str, *, level: str = "info", **fields: object
    ) -> None:
        """Log what is new about a job at once, and the same again after a while."""
        now = time.monotonic()
        last, at = self._logged.get(job_id, ("", 0.0))
        if about != last or now - at >= LOG_SECONDS:
            self._logged[job_id] = (about, now)
            getattr(log, level)(event, **fields)

    async def _settle(self) -> None:
        """Forget jobs that have ended, once all that they moved is stored."""
        # The last calls of its silos may still be ending.
        ended = [(job_id, run) for job_id, run in self._runs.items() if run.ended_for(5.0)]
        for job_id, run in ended:
            await run.traffic.flush()
            self._runs.pop(job_id, None)
            self._logged.pop(job_id, None)
            self._followed.pop(job_id, None)
        if ended:
            gc.collect()  # attempts refer to themselves, and are seldom looked for otherwise

    async def _store_silos(self) -> None:
        """Store who has registered; what the store refuses is stored at a later sweep."""
        # One at a time, and all that wait at once: many silos may register together.
        async with self._storing:
            batch, now = dict(self._unstored), self._environment.now()
            if batch:
                await asyncio.to_thread(self._environment.store.register_silos, batch, now)
            for silo, registration in batch.items():
                if self._unstored.get(silo) is registration:
                    del self._unstored[silo]

    async def _store_signs(self) -> None:
        """Store when silos were last heard: at times, and at once where one has gone."""
        if time.monotonic() < self._signs_due:
            return
        self._signs_due = time.monotonic() + SIGN_SECONDS
        signs = self._roster.signs(self._environment.now())
        if not signs:
            return
        try:
            await asyncio.to_thread(self._environment.store.seen, signs)
        except StorageFailed:
            self._signs_due = 0.0
            raise
        self._roster.stored(signs)

    async def _gauge(self) -> None:
        def read() -> tuple[dict[JobState, int], frozenset[str]]:
            return self._environment.store.states(), self._environment.store.silo_names()

        states, known = await asyncio.to_thread(read)
        for state, number in states.items():
            self._environment.metrics.jobs.labels(state.value.lower()).set(number)
        alive, known = self._roster.alive.keys(), self._roster.of_roster(known)
        self._environment.metrics.silos.labels("alive").set(len(alive))
        self._environment.metrics.silos.labels("away").set(len(known - alive))

    # --- hedgerow.services.rpc.federation.FederationBackend ---

    async def register(
        self, silo: Silo, registration: Registration, certificate_end: float = 0.0
    ) -> LeaseGrant:
        """Grant a lease."""
        grant = self._roster.register(silo, registration, certificate_end)
        self._ended.pop(silo, None)
        self._unstored[silo] = registration
        self._environment.metrics.expect_silo(
            silo, {run.job.strategy.name for run in self._runs.values()}
        )
        with suppress(StorageFailed, TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):  # an agent does not wait for a store
                await self._store_silos()
        for run in self._runs.values():
            run.notify()
        return grant

    async def assignment(
        self, silo: Silo, lease_id: str, held: frozenset[AttemptKey], timeout_seconds: float
    ) -> Assignment | Preflight | None:
        """Wait for an assignment that the agent does not hold yet, or for a question."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._roster.touch(silo, lease_id)
            for run in list(self._runs.values()):
                found = run.assignment(silo, held)
                if found is not None:
                    return found
            question = self._preflights.question(silo)
            if question is not None:
                return question
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return None
            await self._arrived.wait(min(remaining, LOOK_SECONDS, self._roster.lease_seconds / 3.0))

    def preflight_answer(self, silo: Silo, lease_id: str, answer: PreflightAnswer) -> None:
        """Take a silo's answer to a preflight."""
        self._roster.touch(silo, lease_id)
        self._preflights.answer(silo, answer)

    async def accept(
        self, silo: Silo, lease_id: str, key: AttemptKey, answer: Answer, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer to an assignment."""
        self._roster.touch(silo, lease_id)
        return await self._run(key.job_id).accept(silo, key.attempt, answer, timeout_seconds)

    def renew(
        self,
        silo: Silo,
        lease_id: str,
        working: tuple[AttemptKey, ...],
        crypto_answers: bool | None = None,
        rates: Rates | None = None,
    ) -> tuple[tuple[AttemptKey, ...], float]:
        """Keep a lease; returns what to stop, and after how many seconds to renew next."""
        lease = self._roster.touch(silo, lease_id)
        lease.crypto_answers, lease.rates = crypto_answers, rates or {}
        stop = tuple(key for key in working if not self._is_current(key))
        return stop, self._roster.renew_seconds

    async def ended(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the jobs that have ended and are not continued, as the store has it."""
        if not job_ids:
            return ()
        try:
            return await asyncio.to_thread(self._environment.store.ended, job_ids[:MOST_KEPT_JOBS])
        except StorageFailed:
            return ()

    def _is_current(self, key: AttemptKey) -> bool:
        run = self._runs.get(key.job_id)
        return run is not None and not run.ended and run.is_current(key.attempt)

    async def outcome(self, silo: Silo, lease_id: str, key: AttemptKey, outcome: Outcome) -> None:
        """Note how a silo's half ended, and what it says that it sent."""
        self._roster.touch(silo, lease_id)
        run = self._runs.get(key.job_id)
        if run is not None:
            run.outcome(silo, key.attempt, outcome)
        await self._sent.add(key.job_id, outcome.sent)

    async def result(
        self, silo: Silo, lease_id: str, job_id: str, timeout_seconds: float
    ) -> JobResult | None:
        """Wait for a job's result; None where there is none yet."""
        self._roster.touch(silo, lease_id)
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = await self._results.of(silo, job_id)
            run = self._runs.get(job_id)
            if found is not None or run is None:
                return found
            while not (run.has_result or run.ended):
                remaining = deadline - time.monotonic()
                if remaining <= 0.0:
                    return None
                await run.changed(remaining)

    async def gather(
        self, silo: Silo, lease_id: str, arrival: Arrival, timeout_seconds: float
    ) -> Gathered:
        """Wait for the scripts of other silos."""
        self._roster.touch(silo, lease_id)
        self._environment.check_scripts()
        return await self._sites.gather(silo, arrival, timeout_seconds)

    async def propose(
        self,
        silo: Silo,
        lease_id: str,
        statement: bytes,
        signed: SiteSignature,
        timeout_seconds: float,
    ) -> Proposed:
        """Start a job when all sites have signed the same statement; it stays one job."""
        self._roster.touch(silo, lease_id)

        def checked() -> tuple[JobStatement, bool]:
            read, of = read_statement(statement, f"the statement of {silo}"), self._environment
            of.verify(silo, signed.certificate, site_message(statement, silo), signed.signature)
            known = of.store.job(read.job_id)
            same = known is not None and known.signed.statement == statement
            return read, same and silo in read.silos

        read, same = await asyncio.to_thread(checked)
        if same:
            return Proposed(read.job_id)
        self._environment.check_scripts()
        return await self._sites.propose(silo, read, (statement, signed), timeout_seconds)

    async def follow(
        self,
        silo: Silo,
        lease_id: str,
        job_id: str,
        n_rounds: int,
        timeout_seconds: float,
        *,
        stop: bool,
    ) -> JobView:
        """Return a job that the silo has signed, once it has changed; end it if all want that."""
        self._roster.touch(silo, lease_id)
        run, deadline = self._runs.get(job_id), time.monotonic() + timeout_seconds
        if run is not None:  # its record has a certificate of each site, and is read by each
            sites = run.job.silos if run.operator == ITS_SILOS else ()
        else:
            record = await asyncio.to_thread(self._environment.store.job, job_id)
            sites = () if record is None else tuple(map(Silo, record.signed.silos))
        if silo not in sites:
            raise NotFound(f"{silo} has signed no job {job_id}")
        if run is not None and stop and not run.ended:
            last = run.unwanted | {silo} == set(sites) != run.unwanted
            run.unwanted.add(silo)
            if last:
                self._of_its_silos("job-cancel", job_id, sites)
            if run.unwanted >= set(sites):
                await run.cancel(ITS_SILOS)
        shared = self._followed.get(job_id)
        if shared is None:
            shared = Shared(lambda since: self.view(job_id, since=since), WATCH_PAUSES)
            if run is not None:
                self._followed[job_id] = shared
        while True:
            view = await shared.look(n_rounds, min)
            rounds = tuple(done for done in view.rounds if done.round >= n_rounds)
            remaining = deadline - time.monotonic()
            if run is None or rounds or view.ended or remaining <= 0.0:
                own = (one if one.name == silo else replace(one, n_samples=0) for one in view.silos)
                return replace(view, silos=tuple(own), rounds=rounds)
            await run.changed(min(remaining, 2.0))

    def _of_its_silos(self, action: str, job_id: str, silos: Iterable[str]) -> None:
        """Put on record what all silos of a job want; what operators do is by their calls."""
        about = {"hedgerow.job": job_id, "hedgerow.silos": sorted(silos)}
        self._trail.enqueue(action, Actor(ITS_SILOS), about=about)

    def release(self, silo: Silo, lease_id: str) -> None:
        """End a lease; its silo is lost to all jobs."""
        self._roster.release(silo, lease_id)
        self._signs_due = 0.0
        for run in self._runs.values():
            run.lost(silo, "its agent was ended")

    # --- hedgerow.services.rpc.exchange.FindAttempt, hedgerow.services.rpc.metering.Sink ---

    def find(self, job_id: str, attempt: int, silo: Silo) -> OpenAttempt:
        """Return an attempt, for one of its silos."""
        self._roster.admit(silo)
        run = self._run(job_id)
        return OpenAttempt(run.barrier(attempt, silo), run.job.strategy.name)

    def account(self, path: str, count: CallCount) -> None:
        """Credit a finished call to its job."""
        run = self._runs.get(count.job_id)
        if run is not None:
            run.traffic.account(path, count)

    # --- hedgerow.services.rpc.jobs.JobBackend ---

    async def create(self, signed: SignedJob, operator: str) -> str:
        """Check, store and start a job of the operator's own."""
        signed = replace(signed, approvals=())  # each is checked as it comes
        opened = await asyncio.to_thread(self._environment.open_job, signed, LABEL)
        if opened.operator != operator:
            raise SignatureInvalid(f"operator {opened.operator} signed the job, not {operator}")
        job = job_wire.decode(opened.statement.spec)
        job.parameters.validate(job)
        if opened.operator != ITS_SILOS:
            job.check_tables()
        job.approvals.check_operator(operator)
        if job.audit is not None:
            job.audit.approvals.check_operator(operator, "audit")
        if allowed := job.silos or tuple(self._roster.allowed):
            job.check_cohort(len(allowed))
        await asyncio.to_thread(self._environment.keep_start, opened, job)
        # A caller that disconnects must not leave a job stored and not started.
        return await asyncio.shield(self._store_new(opened, job.name))

    async def _store_new(self, opened: OpenedJob, name: str) -> str:
        job_id = opened.statement.job_id

        def store() -> JobRecord | None:
            of = self._environment
            new = of.store.create_job(opened, name, of.now(), of.max_unfinished_jobs)
            return of.store.job(job_id) if new else None

        async with self._creating:  # two at a time could both be the last that is allowed
            record = await asyncio.to_thread(store)
        if record is not None:
            self._launch(record)
            self._arrived.notify()
            if opened.operator == ITS_SILOS:
                self._of_its_silos("job-submit", job_id, opened.statement.silos)
        return job_id

    async def operator_of(self, job_id: str) -> str | None:
        """Return the operator who signed a job; None where there is none."""
        if (run := self._runs.get(job_id)) is not None:
            return run.operator
        record = await asyncio.to_thread(self._environment.store.job, job_id)
        return None if record is None else record.operator

    async def approvers_of(self, job_id: str, *, release: bool) -> frozenset[str]:
        """Return who is asked to approve a job or its release, or the release alone."""
        record = await asyncio.to_thread(self._environment.store.job, job_id)
        return frozenset() if record is None else approvers_of(record, release=release)

    async def signed(self, job_id: str) -> SignedJob:
        """Return a job as it was signed, with its approvals."""
        record = await asyncio.to_thread(self._environment.store.job, job_id)
        if record is None:
            raise NotFound(f"no job {job_id}")
        return record.signed

    async def approve(self, job_id: str, approval: JobApproval, caller: str) -> tuple[str, ...]:
        """Add an approval to a job; return who has approved it."""
        signed = await asyncio.to_thread(self._releases.approve, job_id, approval, caller)
        if (run := self._runs.get(job_id)) is not None:
            run.approve(signed)
        return signed.approved

    async def release_model(self, job_id: str, line: bytes, caller: str) -> tuple[str, ...]:
        """Keep an approver's statement about a job's files; return who has signed one."""
        return await asyncio.to_thread(self._releases.release, job_id, line, caller)

    async def view(self, job_id: str, *, brief: bool = False, since: int = 0) -> JobView:
        """Return a job as operators see it, with its rounds from number ``since`` on."""
        run, moved = self._runs.get(job_id), NewTraffic()
        read = partial(stored_job, self._environment.store, job_id, brief=brief, since=since)
        try:
            if run is None or brief:
                stored = await asyncio.to_thread(read)
            else:
                async with run.traffic.storing:  # else bytes on their way to the store are missed
                    stored = await asyncio.to_thread(read)
                    moved = run.traffic.new()
                run.seen = None if stored is None else stored.after(run.seen, since)
        except StorageFailed:
            if run is None or run.ended or run.seen is None:
                raise
            # As it was: that it waits for its store is to be told.
            stored = run.seen.part(brief=brief, since=since)
        if stored is None:
            raise NotFound(f"no job {job_id}")
        by = await asyncio.to_thread(released, self._environment.artefacts, stored.record)
        return replace(self._shown(stored, moved), released=by)

    def _shown(self, stored: StoredJob, moved: NewTraffic) -> JobView:
        view, run = stored.view(moved), self._runs.get(stored.record.job_id)
        return view if run is None or view.ended else replace(view, detail=run.situation())

    async def list(
        self,
        page_size: int,
        page_token: str,
        operator: str | None,
        states: tuple[JobState, ...] = (),
    ) -> tuple[tuple[JobView, ...], str]:
        """Return a page of an operator's jobs, or of all, newest first; and the next token."""
        size, store = min(page_size, 1000), self._environment.store

        def read() -> tuple[StoredJob, ...] | None:
            records = store.jobs(size, page_token, operator, states)
            if records is None:
                return None
            silos = store.silos_of([record.job_id for record in records])
            return tuple(StoredJob(record, silos[record.job_id]) for record in records)

        found = await asyncio.to_thread(read)
        if found is None:
            raise NotFound("the page token is of no page of these jobs: begin with the first page")
        token = found[-1].record.job_id if len(found) == size else ""
        return tuple(self._shown(stored, NewTraffic()) for stored in found), token

    async def cancel(self, job_id: str, operator: str) -> JobState:
        """Cancel a job for an operator."""
        run = self._runs.get(job_id)
        if run is not None and not run.ended:
            await run.cancel(operator)
        return (await self.view(job_id, brief=True)).state

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with all that is stored of it but its identifier.

        Its record goes last: a call that failed may be repeated.
        """
        store, artefacts = self._environment.store, self._environment.artefacts
        record, run = await asyncio.to_thread(store.job, job_id), self._runs.get(job_id)
        if record is None:
            raise NotFound(f"no job {job_id}")
        if not record.state.ended or (run is not None and not run.ended):
            raise JobUnderWay(f"job {job_id} is {record.state.lower()}: cancel it first")
        if run is not None:
            await run.shut_down()
            await run.traffic.flush()  # nothing of it is stored any more once it is forgotten
            self._runs.pop(job_id, None)
            self._logged.pop(job_id, None)
            self._followed.pop(job_id, None)
        await asyncio.to_thread(artefacts.delete_all, job_id)
        await asyncio.to_thread(store.delete_job, job_id)

    async def watch(self, job_id: str) -> AsyncIterator[JobView]:
        """Yield a job each time it changes, with its new rounds alone, until it has ended."""
        clock, since = time.monotonic, 0
        while True:
            began = clock()
            view = await self.view(job_id, since=since)
            since = max((done.round + 1 for done in view.rounds), default=since)
            took, run = clock() - began, self._runs.get(job_id)
            yield view
            if view.ended or run is None:
                return
            await run.changed(2.0)
            # A thousand silos answer one after another, and each view shows all of them.
            await asyncio.sleep(min(WATCH_PAUSES * took, 2.0))

    async def artefact(self, job_id: str, name: str, caller: str) -> tuple[str, bytes]:
        """Return a file of the result, where the caller may have it."""
        record = await asyncio.to_thread(self._environment.store.job, job_id)
        if record is None:
            raise NotFound(f"no job {job_id}")
        name = name or record.model
        if name == FILE and record.artefacts:  # silos sign once the result is there
            return name, await asyncio.to_thread(provenance, self._environment.artefacts, job_id)
        if name == SIGNED and record.artefacts:
            return name, record.signed.serialise()
        if name == RELEASE and record.artefacts:
            return name, await asyncio.to_thread(statements, self._environment.artefacts, job_id)
        if name not in record.artefacts:
            have = ", ".join(record.artefacts) or f"none: the job is {record.state.value}"
            raise NotFound(f"job {job_id} has no file {name!r}; it has {have}")
        await asyncio.to_thread(check_released, self._environment.artefacts, record, caller)
        read, digest = self._environment.artefacts.read, record.artefacts[name]
        return name, await asyncio.to_thread(read, job_id, name, digest)

    async def preflight(self, signed: SignedJob, operator: str) -> PreflightView:
        """Ask the silos of a job whether they would take part."""
        known = await asyncio.to_thread(self._environment.store.silo_names)
        names = self._roster.of_roster(known) | self._roster.allowed
        return await self._preflights.ask(signed, operator, names)

    async def silos(self, operator: str | None, *, columns: bool = False) -> tuple[SiloView, ...]:
        """Return the silos of the federation; what an operator's jobs, or all, await of them."""
        try:
            self._seen = await asyncio.to_thread(self._environment.store.silos)
        except StorageFailed:
            if not self._seen:
                raise  # who is connected is known without the database, and so is who is awaited
        awaited: dict[str, tuple[str, ...]] = {}
        for job_id, run in self._runs.items():
            waiting = run.waiting
            if waiting is not None and not run.ended and operator in (None, run.operator):
                what = f"{run.job.name} ({job_id}): {waiting.what}"
                for silo in waiting.silos:
                    awaited[silo] = (*awaited.get(silo, ()), what)
        return self._roster.views(self._seen, awaited, self._environment.now(), columns=columns)

    def silo_ended(self, silo: str, why: str) -> None:
        """Note why a silo is not heard: its certificate has ended, and its calls are refused."""
        if self._ended.get(Silo(silo)) != why:
            log.warning("silo refused", silo=silo, why=why)
        self._ended[Silo(silo)] = why

    async def forget_silo(self, name: str) -> None:
        """Forget that a silo has registered, which has left."""
        if Silo(name) in self._roster.alive:
            raise LeaseHeld(f"{name} is connected: stop its agent, or take it out of the roster")
        async with self._storing:
            self._unstored.pop(Silo(name), None)
            known = await asyncio.to_thread(self._environment.store.forget_silo, name)
        if not known:
            raise NotFound(f"no silo {name} has registered")

    async def plan(self, spec: bytes, operator: str) -> PlanView:
        """Return what a job is expected to cost with the silos that are registered."""
        job = job_wire.decode(spec)
        job.parameters.validate(job)
        job.check_tables()
        start = await self._environment.known_start(job, operator)
        return plan_of(job, self._roster.alive, self._roster.rates, start)

    def _run(self, job_id: str) -> JobRun:
        run = self._runs.get(job_id)
        if run is None or run.ended:
            raise JobStopped(f"job {job_id} is not under way")
        return run
