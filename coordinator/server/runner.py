"""One job from its first assignment to its model: attempts, rounds, results.

It gathers silos, keeps checkpoints and the record, counts bytes, and begins again without a quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from hedgerow.boosting import warm_start
from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    QuorumLost,
    StaleAttempt,
    Unauthorised,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, RoundResult
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.coordinator.server.changes import Changes
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.gathering import (
    AgreedJob,
    CohortFormation,
    JobAttempt,
    agreed_groups,
    agreed_schema,
)
from hedgerow.coordinator.server.plans import BytesByExchange, bytes_of_rounds
from hedgerow.coordinator.server.store import JobRecord
from hedgerow.coordinator.server.storing import JobStoring
from hedgerow.coordinator.server.views import StoredJob
from hedgerow.coordinator.server.waiting import (
    APPROVALS,
    StorePatience,
    Waiting,
    explained,
    situation,
)
from hedgerow.crypto.errors import Refusal
from hedgerow.services.process import tracing
from hedgerow.services.process.logs import defect
from hedgerow.services.rpc.errors import LeaseLost
from hedgerow.services.rpc.federation import Agreement, Assignment, AttemptKey, SiloGroup
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.acceptance import Acceptance, Answer, Declined
from hedgerow.services.wire.job_view import FinishedRound, JobSilo, JobState, SiloState, scores_of
from hedgerow.services.wire.results import Outcome
from hedgerow.services.wire.signed_job import SignedJob, read_statement

FAREWELL_SECONDS = 20.0
"""How long the coordinator waits for the silos' halves to end after the last round."""
CANCEL_SECONDS = 10.0
"""How long a cancellation waits for the job's end to be stored."""
SHOWN_SECONDS = 5.0
"""What a job waits for is shown once it has waited for this long."""
POLL_SECONDS = 0.25
"""How often a run that waits for silos looks at the clock."""

log = structlog.get_logger()


class JobRun:
    """A job that has not ended.

    Parameters
    ----------
    record : JobRecord
        As stored; an attempt number above zero means that an earlier process had started it.
    max_attempts : int
        Attempts in a row that may fail without finishing a round.
    on_asked : callable
        Called when silos are asked that were not before.
    """

    def __init__(
        self,
        record: JobRecord,
        job: JobParameters,
        environment: JobEnvironment,
        max_attempts: int = job_wire.DEFAULT_MAX_ATTEMPTS,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        self.job_id, self.job = record.job_id, job
        self.operator = record.operator
        self._storing = JobStoring(record.job_id, job, environment)
        self.traffic = self._storing.traffic
        self.seen: StoredJob | None = None
        """The job as an operator last read it."""
        self._record = record
        self._environment = environment
        self._agreed_job = AgreedJob(record, job, environment)
        self._max_attempts = max_attempts
        self._attempt: JobAttempt | None = None
        self._changes, self._settled = Changes(), Changes()
        self._on_asked = on_asked
        self._planned: tuple[BytesByExchange, BytesByExchange] = {}, {}
        self._approval: Waiting | None = None
        self._last_end = ""
        self._end_as: JobState | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled_by: str | None = None
        self._ending = False
        self._ended_at: float | None = None
        self.unwanted: set[Silo] = set()
        """Those of the silos that have signed the job whose scripts want it to end."""

    @property
    def ended(self) -> bool:
        """Whether the job has reached its last state."""
        return self._ended_at is not None

    @property
    def has_result(self) -> bool:
        """Whether the result is stored."""
        return self._storing.has_result

    def ended_for(self, seconds: float) -> bool:
        """Whether the job ended at least ``seconds`` ago."""
        return self._ended_at is not None and self._environment.now() - self._ended_at >= seconds

    @property
    def waiting(self) -> Waiting | None:
        """What the job waits for now: its store, approvals or silos; None where for nothing."""
        first = self._storing.patience.waiting or self._approval
        if first is not None or self._attempt is None or self._attempt.ended:
            return first
        waiting, environment = self._attempt.waiting, self._environment
        if waiting is None:
            return None
        there, without = environment.registered(), environment.without_crypto()
        return explained(waiting, there, without, self.job.least_silos)

    def situation(self) -> str:
        """Return what the job waits for, and why its last attempt ended; "" where all is well."""
        waiting = self.waiting
        now, began = self._environment.now(), self._environment.began
        new = waiting is not None and now - waiting.since < SHOWN_SECONDS
        started = now - began >= SHOWN_SECONDS  # before, agents are still coming
        told = self._approval is not None or (waiting is not None and waiting.urgent and started)
        if waiting is not None and new and not told:
            waiting = None
        end = self._last_end
        if self._end_as is not None and waiting is not None:
            end = f"it ends as {self._end_as.value}" + (f"; {end}" if end else "")
        return situation([waiting], end)

    def approve(self, signed: SignedJob) -> None:
        """Go on with the job as it is with one more approval; of two at once, with both."""
        if len(signed.approvals) >= len(self._record.signed.approvals):
            self._record = replace(self._record, signed=signed)
        self.notify()

    def start(self) -> None:
        """Begin in the background."""
        self._task = asyncio.create_task(self._run(), name=f"job {self.job_id}")

    async def cancel(self, operator: str) -> None:
        """Stop the job; returns when it is stopped.

        Raises
        ------
        StorageFailed
            It is stopped, and its end cannot be stored yet.
        """
        if not self._ending:  # an end that is being stored does not change
            self._cancelled_by = operator
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._end_task()
        except TimeoutError:
            why = self.situation() or "it has not stopped yet"
            raise StorageFailed(f"job {self.job_id}: {why}") from None

    async def _end_task(self, *, at_once: bool = False) -> None:
        """Cancel the job's task until it has ended.

        Python 3.11's ``wait_for`` loses a cancellation that arrives together with the end of what
        it waits for, as a barrier's last offer is; the job would continue.
        """
        while self._task is not None and not self._task.done():
            if at_once or not self._ending:
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)

    async def shut_down(self) -> None:
        """Stop without ending the job: a later process continues it."""
        await self._end_task(at_once=True)
        await self._storing.close()

    def assignment(self, silo: Silo, held: frozenset[AttemptKey]) -> Assignment | None:
        """Return a silo's work in the current attempt, unless it has it already or has none."""
        attempt = self._attempt
        if attempt is None or attempt.ended or silo in attempt.declined:
            return None
        key = AttemptKey(self.job_id, attempt.number)
        if not attempt.asks(silo):
            return None
        attempt.held_before(silo, (one.attempt for one in held if one.job_id == self.job_id))
        if key in held:
            return None
        attempt.assigned.add(silo)
        silos = tuple(sorted(attempt.candidates))
        return Assignment(key, silos, self._record.signed)

    async def accept(
        self, silo: Silo, number: int, answer: Answer, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer; returns the agreement, or None where there is none in time."""
        attempt = self._current(number)
        if not attempt.asks(silo) and silo not in attempt.declined:
            raise Unauthorised(f"{silo} is not asked to take part in job {self.job_id}")
        if isinstance(answer, Declined):
            # Stored first: the last answer may end the job, and its record must say why.
            declined = JobSilo(silo, 0, SiloState.DECLINED, answer.reason)
            store = self._environment.store
            await self._storing.stored(lambda: store.set_job_silos(self.job_id, [declined]))
            attempt.decline(silo, answer.reason)
            self.notify(settled=True)
            raise JobStopped(f"{silo} declined: {answer.reason}")
        if silo in attempt.declined:
            raise Unauthorised(f"{silo} has declined job {self.job_id}")
        if silo not in attempt.accepted:
            self._admit(attempt, silo, answer)
        elif silo in attempt.exchanging:
            # Its agent has restarted and does not know for what a barrier waits.
            attempt.exchanging.discard(silo)
            attempt.drop(silo, "its agent has restarted")
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_seconds
        while not attempt.settled:
            if clock() >= deadline:
                return None
            if silo not in attempt.accepted and silo not in attempt.declined:
                # Its lease has ended meanwhile: it answers again with the next one.
                raise LeaseLost(f"the lease of {silo} has ended; register and answer again")
            await self._settled.wait(deadline - clock())
        return self._agreed_job.shown_to(silo, attempt.agreed(silo))

    def _admit(self, attempt: JobAttempt, silo: Silo, acceptance: Acceptance) -> None:
        try:
            checked = self._agreed_job.check(silo, acceptance, attempt.agreement)
        except FederationError as error:
            attempt.bar(silo, f"was refused ({error})")
            raise
        attempt.admit(silo, checked)
        self.notify()

    def barrier(self, number: int, silo: Silo) -> Barrier:
        """Return the barrier of an attempt, for one of its silos."""
        attempt = self._current(number)
        if attempt.hub is None:
            raise StaleAttempt("this attempt has not started")
        if silo not in attempt.accepted or silo in attempt.declined:
            raise Unauthorised(f"{silo} has not accepted job {self.job_id}")
        attempt.exchanging.add(silo)
        return attempt.hub

    def is_current(self, number: int) -> bool:
        """Whether an attempt is the job's last one."""
        return self._attempt is not None and self._attempt.number == number

    def outcome(self, silo: Silo, number: int, outcome: Outcome) -> None:
        """Note how a silo's half ended; a failure takes the silo out."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or not attempt.asks(silo):
            return
        attempt.outcomes[silo] = outcome
        if outcome.error:
            attempt.fail(silo, outcome.error)
        self.notify(settled=bool(outcome.error))

    def lost(self, silo: Silo, reason: str = "its lease ended: no sign of life") -> None:
        """Take a silo out whose lease has ended."""
        if self._attempt is not None:
            self._attempt.lose(silo, reason)
            self.notify(settled=True)

    def notify(self, *, settled: bool = False) -> None:
        """Wake what waits for a change of the job or of its silos.

        Silos that have accepted wait for what is ``settled``: the agreement, its end, their loss.
        """
        self._changes.notify()
        if settled:
            self._settled.notify()

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until something about the job has changed, or until the time is over."""
        await self._changes.wait(timeout_seconds)

    # --- attempts ---

    async def _run(self) -> None:
        try:
            await self._approved()
            await self._attempts()
        except (FederationError, Refusal) as error:
            await self._finish(JobState.FAILED, str(error))
        except asyncio.CancelledError:
            self._ending = True
            if self._cancelled_by is not None:
                self._end_attempt(JobStopped(f"cancelled by {self._cancelled_by}"))
                await self._finish(JobState.CANCELLED, f"cancelled by {self._cancelled_by}")
            else:
                self._end_attempt(StaleAttempt("the coordinator is shutting down"))
        except Exception as error:
            # A defect of ours must end the job in the record too, not only in the log.
            log.error("failed", job=self.job_id, **defect(error))
            await self._finish(
                JobState.FAILED, f"internal error of the coordinator: {type(error).__name__}"
            )

    async def _approved(self) -> None:
        """Wait until enough of the job's approvers have signed it.

        Raises
        ------
        JobStopped
            They have not in time: no silo would take the job any more.
        """
        asked = self.job.approvals.without(self.operator)  # as silos count them
        began = self._environment.now()
        while asked.missing(signed := self._record.signed.approved):
            statement = read_statement(self._record.signed.statement, "the job")
            if self._environment.now() > statement.not_after:
                raise JobStopped(f"it has expired without its approvals: {asked.described(signed)}")
            why = asked.described(signed)
            self._approval = Waiting(APPROVALS, began, why=why)
            await self.changed(POLL_SECONDS)
        self._approval = None

    async def _attempts(self) -> None:
        """Run attempts until one ends the job, or too many fail."""
        failures, done = 0, -1
        patience = StorePatience(self.job.step_timeout_seconds, self._environment.now)
        while True:
            before, done = done, await self._storing.stored(self._storing.rounds_done)
            if done > before:
                failures = 0
                patience.worked()
            try:
                with tracing.span("attempt", self.job_id):
                    await self._one_attempt()
                return
            except (QuorumLost, StorageFailed) as error:
                number = self._attempt.number if self._attempt is not None else 0
                self._last_end = f"attempt {number} ended: {error}"
                if self._storing.patience.over:
                    raise
                if isinstance(error, StorageFailed):
                    # A round is stored before its checkpoint, so the next attempt repeats it.
                    await asyncio.sleep(patience.failed(error))
                    continue
                log.warning("attempt ended", job=self.job_id, attempt=number, why=str(error))
                done_now = await self._storing.stored(self._storing.rounds_done)
                failures = 1 if done_now > done else failures + 1
                if failures >= self._max_attempts:
                    raise

    async def _one_attempt(self) -> None:
        attempt = await self._open_attempt()
        try:
            await self._gather(attempt)
            await self._train(attempt)
        except QuorumLost as error:
            attempt.failure = QuorumLost("; ".join([str(error), *attempt.unnamed(str(error))]))
            raise attempt.failure from error
        except FederationError as error:
            attempt.failure = error
            raise
        finally:
            reason: FederationError = StaleAttempt("this attempt has ended")
            if self._cancelled_by is not None:
                reason = JobStopped(f"cancelled by {self._cancelled_by}")
            self._end_attempt(reason)

    def _end_attempt(self, error: FederationError) -> None:
        if self._attempt is not None:
            self._attempt.end(error)
        self._storing.end_attempt()
        self.notify(settled=True)

    async def _open_attempt(self) -> JobAttempt:
        previous = self._record.attempt or (self._attempt.number if self._attempt else 0)
        after = 0 if self._attempt is None else self._attempt.lost_number

        def begin() -> tuple[JobAttempt, JobRecord | None]:
            store = self._environment.store
            known = store.roster(self.job_id, previous) if previous else self.job.silos
            silos = {Silo(silo) for silo in known}
            number = store.start_attempt(self.job_id, silos, self._environment.now(), after)
            groups = agreed_groups(self._environment.artefacts, self.job_id)
            attempt = JobAttempt(
                number, silos, self._storing.rounds_done(), now=self._environment.now, groups=groups
            )
            return attempt, store.job(self.job_id)

        attempt, record = await self._storing.stored(begin)
        self._attempt, self._record = attempt, record or self._record
        self.notify()
        self._on_asked()
        return attempt

    async def _gather(self, attempt: JobAttempt) -> None:
        """Wait until the silos have accepted, then agree on the schema."""
        clock = asyncio.get_running_loop().time
        gathering = CohortFormation(self.job, attempt, clock())
        environment, artefacts = self._environment, self._environment.artefacts
        settled_before: bool | None = None
        while True:
            if gathering.look(environment.registered(), clock(), environment.allowed()):
                self.notify()
                self._on_asked()
            if attempt.lost_number:
                raise QuorumLost(f"the database has lost attempt {attempt.lost_number}")
            if not gathering.over(clock()):
                await self.changed(POLL_SECONDS)
                continue
            agreed = dict(sorted(attempt.accepted.items()))
            gathering.check_quorum()
            if settled_before is None:
                settled_before = await self._storing.stored(
                    lambda: agreed_schema(artefacts, self.job_id) is not None
                )
            schema = await self._storing.stored(
                lambda agreed=agreed, before=settled_before: self._agreed_job.schema(agreed, before)  # type: ignore[misc]
            )
            if agreed.keys() == attempt.accepted.keys():  # else one was lost or came meanwhile
                break
        # Silos that are away may return; those that declined do not.
        roster = tuple(sorted(attempt.candidates - attempt.declined.keys()))
        attempt.groups = await self._storing.stored(
            lambda: self._agreed_job.groups(attempt, schema, roster)
        )
        groups = tuple(map(SiloGroup, attempt.groups))
        attempt.agree(Agreement(schema, roster, attempt.first_round, groups))
        self.notify(settled=True)

    # --- rounds ---

    async def _train(self, attempt: JobAttempt) -> None:
        """Run the strategy's coordinator half and keep its result."""
        assert attempt.agreement is not None
        schema = attempt.agreement.schema
        attempt.hub = hub = Barrier(
            attempt.agreement.silos,
            tuple(sorted(attempt.accepted)),
            self.job.step_timeout_seconds,
            self._silo_changed,
            self._environment.now,
        )
        self.notify()
        start = await self._storing.stored(lambda: self._storing.start(attempt, self._record))
        self._planned = bytes_of_rounds(
            self.job, schema, start.n_samples, self._environment.registered()
        )
        clock = asyncio.get_running_loop().time
        began = clock()
        last, best = start.checkpoint, self._record.best_round
        stream = warm_start.coordinate(hub, start)
        try:
            async for result in stream:
                seconds, began = clock() - began, clock()
                if result.final and self.job.vertical:  # parties without a part repeat the round
                    await self._farewell(attempt, hub, parts=True)
                await self._save(attempt, hub, result, seconds)
                attempt.first_round = result.round + 1
                last, best = result.checkpoint, result.best_round
                if result.final:
                    break
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        if last is None:
            raise JobStopped("the strategy ended without a round")
        await self._storing.save_result(schema, last, best)
        self.notify()
        await self._farewell(attempt, hub)
        await self._storing.save_outcomes(attempt.outcomes)
        self._end_attempt(JobStopped("the job has ended"))
        await self._finish(JobState.SUCCEEDED, "")

    def _silo_changed(self, silo: Silo, present: bool, detail: str) -> None:
        attempt = self._attempt
        n_samples = 0
        if attempt is not None and silo in attempt.accepted:
            n_samples = attempt.accepted[silo].n_samples
        state = SiloState.PRESENT if present else SiloState.LOST
        if attempt is not None and present:
            attempt.notes.pop(silo, None)
        elif attempt is not None:
            attempt.note(silo, f"was lost ({detail})")
        log.info("silo changed", job=self.job_id, silo=silo, state=state.value, why=detail)
        self._storing.silo_changed(JobSilo(silo, n_samples, state, detail))
        self.notify()

    async def _save(
        self, attempt: JobAttempt, hub: Barrier, result: RoundResult, seconds: float
    ) -> None:
        # The last replies of the round are being sent: let their calls end, to be counted here.
        await hub.all_delivered(0.25)
        up, down = self.traffic.take_round()
        scores = scores_of(result.metrics)
        done = FinishedRound(result.round, attempt.number, seconds, scores, up, down, result.silos)
        await self._storing.save_round(done, result)
        self._last_end = ""
        once, each = self._planned
        planned = [once, each] if result.round == 0 else [each]
        self._environment.metrics.round_ended(
            self.job.strategy.name, seconds, (up, down), planned, len(result.silos)
        )
        self.notify()

    async def _farewell(self, attempt: JobAttempt, hub: Barrier, *, parts: bool = False) -> None:
        """Wait until the silos' halves have ended, or offer for steps that are no more."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + FAREWELL_SECONDS
        while clock() < deadline and not attempt.outcomes.keys() | hub.unclaimed >= set(hub.silos):
            await self.changed(POLL_SECONDS)
        gone = hub.away - {silo for silo, own in attempt.outcomes.items() if not own.error}
        if parts and gone:
            raise QuorumLost(f"parties keep parts of the model; missing {', '.join(sorted(gone))}")

    # --- the end ---

    async def _finish(self, state: JobState, detail: str) -> None:
        self._ending = True
        self._end_as = state
        await self._storing.end(state, detail, self._record.created)
        self._ended_at = self._environment.now()
        say = log.error if state is JobState.FAILED else log.info
        say("job ended", job=self.job_id, state=state.value, why=detail)
        self.notify()

    def _current(self, number: int) -> JobAttempt:
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.ended:
            raise StaleAttempt(f"attempt {number} of job {self.job_id} is not under way")
        return attempt
