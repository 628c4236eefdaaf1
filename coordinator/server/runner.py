"""One job from its first assignment to its model: gather silos, agree, run attempts, keep results.

The runner holds everything that strategies do not: waiting for silos, the schema that they agree
on, checkpoints, byte totals, the record in the store, attempts and their fencing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from hedgerow.boosting.dataset import Dataset, Schema, unnamed
from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    QuorumLost,
    SchemaMismatch,
    StaleAttempt,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import CoordinatorStart, JobParameters, RoundResult, Vertical
from hedgerow.coordinator.server.artefacts import Artefacts, JobJournal
from hedgerow.coordinator.server.database import DatabaseAway
from hedgerow.coordinator.server.rendezvous import Rendezvous
from hedgerow.coordinator.server.store import JobRecord, JobState, RoundRecord, StepTotal, Store
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.errors import Unauthorised
from hedgerow.services.rpc.federation import (
    Acceptance,
    Agreement,
    Assignment,
    AttemptKey,
    accept_message,
)
from hedgerow.services.rpc.metering import CallCount, Metrics

SETTLE_SECONDS = 1.5
"""A job without a list of silos starts when no new silo has come for so long."""
FAREWELL_SECONDS = 20.0
"""How long the coordinator waits for the silos' halves to end after the last round."""
AWAY_SECONDS = 300.0
"""How long a job waits for a database that cannot be reached."""
RETURN_SECONDS = 30.0
"""How long a later attempt waits for silos of an earlier one."""
AGREED_SCHEMA = "schema.json"
"""File of a job that keeps the schema on which its silos agreed."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every job run is given.

    Parameters
    ----------
    alive : callable
        Silos that hold a lease, with the strategies they allow.
    columns : callable
        Silos that hold a lease, with how many columns they say that their tables have.
    evaluation : callable
        Loads evaluation rows of the coordinator: (job, schema, table name) to a dataset or None.
    test_data : callable
        Serialised JobSpec to the name of its evaluation table, or nothing.
    fits : callable
        (silo, its schema, agreed schema); raises SchemaMismatch.
    merge : callable
        Schemas by silo to the one all agree on; raises SchemaMismatch.
    now : callable
        Seconds since 1970.
    verify : callable
        (silo, certificate, message, signature); raises SignatureInvalid.
    """

    store: Store
    artefacts: Artefacts
    metrics: Metrics
    alive: Callable[[], dict[Silo, tuple[str, ...]]]
    columns: Callable[[], dict[Silo, int]]
    evaluation: Callable[[JobParameters, Schema, str], Dataset | None]
    test_data: Callable[[bytes], str]
    merge: Callable[[Mapping[str, Schema]], Schema]
    fits: Callable[[str, Schema, Schema], None]
    dump_schema: Callable[[Schema], bytes]
    load_schema: Callable[[bytes], Schema]
    now: Callable[[], float]
    verify: Callable[[Silo, bytes, bytes, bytes], None]


@dataclass(slots=True)
class _Attempt:
    """An attempt while silos accept it, and while it runs."""

    number: int
    candidates: set[Silo]
    first_round: int
    accepted: dict[Silo, Acceptance] = field(default_factory=dict)
    declined: dict[Silo, str] = field(default_factory=dict)
    refused: dict[Silo, str] = field(default_factory=dict)
    agreement: Agreement | None = None
    failure: FederationError | None = None
    hub: Rendezvous | None = None
    exchanging: set[Silo] = field(default_factory=set)
    outcomes: dict[Silo, str] = field(default_factory=dict)
    ended: bool = False


Moved = tuple[tuple[StepTotal, ...], tuple[int, int]]
"""Data-plane totals by step and silo, and control-plane bytes (up, down)."""


class JobRun:
    """A job that has not ended.

    Parameters
    ----------
    record : JobRecord
        As stored; an attempt number above zero means that an earlier process had started it.
    job : JobParameters
    max_attempts : int
        Attempts in a row that may fail without finishing a round.
    """

    def __init__(
        self,
        record: JobRecord,
        job: JobParameters,
        surroundings: Surroundings,
        max_attempts: int = 3,
    ) -> None:
        self.job_id = record.job_id
        self.job = job
        self._record = record
        self._around = surroundings
        self._max_attempts = max_attempts
        self._attempt: _Attempt | None = None
        self._changed = asyncio.Event()
        self._totals: dict[tuple[str, Silo], CallCount] = {}
        self._calls: dict[tuple[str, Silo], int] = {}
        self._control = [0, 0]
        self._round_bytes = (0, 0)
        self._planned = (0.0, 0.0)
        self._last_round: RoundRecord | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled_by: str | None = None
        self._ending = False
        self._ended_at: float | None = None
        self.storing = asyncio.Lock()
        """Held while what calls moved is on its way to the store, and counted nowhere else."""

    @property
    def ended(self) -> bool:
        """Whether the job has reached its last state."""
        return self._ended_at is not None

    def ended_for(self, seconds: float) -> bool:
        """Whether the job ended at least ``seconds`` ago."""
        return self._ended_at is not None and self._around.now() - self._ended_at >= seconds

    async def settle(self) -> None:
        """Store what the last calls of an ended job moved."""
        async with self.storing:
            steps, control = self._take()
            parts: list[Moved] = [(steps, (0, 0)), ((), control)]
            try:
                while parts:
                    await asyncio.to_thread(self._flush, parts[0])
                    del parts[0]
            finally:  # what could not be stored is for the next time
                for part in parts:
                    self._put_back(part)

    # --- what servicers ask ---

    def start(self) -> None:
        """Begin in the background."""
        self._task = asyncio.create_task(self._run(), name=f"job {self.job_id}")

    async def cancel(self, operator: str) -> None:
        """Stop the job; returns when it is stopped."""
        if not self._ending:  # an end that is being stored stays what it is
            self._cancelled_by = operator
        await self._end_task()

    async def _end_task(self, *, at_once: bool = False) -> None:
        """Cancel the job's task until it has ended.

        Python 3.11's ``wait_for`` loses a cancellation that meets the end of what it waits for, as
        a barrier's last offer is; the job would go on.
        """
        while self._task is not None and not self._task.done():
            if at_once or not self._ending:
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)

    async def shut_down(self) -> None:
        """Stop without ending the job: a later process goes on with it."""
        await self._end_task(at_once=True)
        await asyncio.to_thread(self._flush, self._take())

    def assignment(self, silo: Silo, held: frozenset[AttemptKey]) -> Assignment | None:
        """Return the silo's part in the attempt under way, unless it holds it or has none."""
        attempt = self._attempt
        if attempt is None or attempt.ended or silo in attempt.declined:
            return None
        key = AttemptKey(self.job_id, attempt.number)
        if key in held or not self._may_take_part(silo, attempt):
            return None
        return Assignment(
            key,
            self._record.spec,
            self._role(silo),
            tuple(sorted(attempt.candidates)),
            "",
            self._record.operator,
        )

    def _role(self, silo: Silo) -> str:
        if self.job.active is None:
            return "unspecified"
        return "active" if silo == self.job.active else "passive"

    def _may_take_part(self, silo: Silo, attempt: _Attempt) -> bool:
        if attempt.agreement is not None:
            return silo in attempt.agreement.silos
        return silo in attempt.candidates

    async def accept(
        self, silo: Silo, acceptance: Acceptance, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer in; returns the agreement once there is one."""
        attempt = self._current(acceptance.key.attempt)
        if not self._may_take_part(silo, attempt) and silo not in attempt.declined:
            raise Unauthorised(f"{silo} is not asked to take part in job {self.job_id}")
        if acceptance.declined:
            # Stored first: the last answer may end the job, and its record has to say why.
            await self._note_silo(silo, "declined", 0, acceptance.declined)
            attempt.declined[silo] = acceptance.declined
            if attempt.agreement is None:
                attempt.accepted.pop(silo, None)
            elif attempt.hub is not None:
                attempt.hub.drop(silo, "it has declined")
            await self._notify()
            raise JobStopped(f"{silo} declined: {acceptance.declined}")
        if silo in attempt.declined:
            raise Unauthorised(f"{silo} has declined job {self.job_id}")
        if silo not in attempt.accepted:
            try:
                self._check(silo, acceptance)
            except FederationError as error:
                attempt.refused[silo] = str(error)
                raise
            attempt.refused.pop(silo, None)
            if self.job.vertical and acceptance.schema is not None:
                acceptance = replace(acceptance, schema=_nameless(acceptance.schema))
            if attempt.agreement is not None:
                self._rejoin(silo, acceptance, attempt.agreement)
            attempt.accepted[silo] = acceptance
            await self._notify()
        elif silo in attempt.exchanging and attempt.hub is not None:
            # Its agent has started anew, and knows nothing of what a barrier waits for.
            attempt.exchanging.discard(silo)
            attempt.hub.drop(silo, "its agent has started anew")
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_seconds
        while not (attempt.agreement or attempt.failure or attempt.ended):
            if clock() >= deadline:
                return None
            await self.changed(deadline - clock())
        if silo in attempt.declined:  # its agent has started anew meanwhile
            raise Unauthorised(f"{silo} has declined job {self.job_id}")
        if attempt.failure is not None:
            raise attempt.failure
        if attempt.agreement is None:
            raise StaleAttempt("this attempt has ended")
        schema = attempt.agreement.schema
        if self.job.vertical and silo != self.job.active:
            schema = Schema((), "", schema.task, 0)
        return Agreement(schema, attempt.agreement.silos, attempt.first_round)

    def _check(self, silo: Silo, acceptance: Acceptance) -> None:
        digest = hashlib.sha256(self._record.spec).digest()
        if acceptance.spec_digest != digest:
            raise SchemaMismatch(f"{silo} agreed to another job than {self.job_id}")
        self._around.verify(
            silo,
            acceptance.certificate,
            accept_message(self.job_id, digest),
            acceptance.signature,
        )
        if acceptance.schema is None:
            raise SchemaMismatch(f"{silo} accepted without its schema")

    def _rejoin(self, silo: Silo, acceptance: Acceptance, agreement: Agreement) -> None:
        assert acceptance.schema is not None
        if not self.job.vertical:
            self._around.fits(silo, acceptance.schema, agreement.schema)

    def desk(self, number: int, silo: Silo) -> Rendezvous:
        """Return the rendezvous of an attempt for one of its silos."""
        attempt = self._current(number)
        if attempt.hub is None:
            raise StaleAttempt("this attempt has not started")
        if silo not in attempt.accepted or silo in attempt.declined:
            raise Unauthorised(f"{silo} has not accepted job {self.job_id}")
        attempt.exchanging.add(silo)
        return attempt.hub

    def is_current(self, number: int) -> bool:
        """Whether an attempt is the one under way."""
        return self._attempt is not None and self._attempt.number == number

    def outcome(self, silo: Silo, number: int, error: str) -> None:
        """Note how a silo's half ended; a failure takes the silo out."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or not self._may_take_part(silo, attempt):
            return
        attempt.outcomes[silo] = error
        if error and attempt.hub is not None:
            attempt.hub.drop(silo, error)
        self._poke()

    def lost(self, silo: Silo) -> None:
        """Take a silo out whose lease has ended."""
        attempt = self._attempt
        if attempt is None:
            return
        attempt.accepted.pop(silo, None) if attempt.agreement is None else None
        if attempt.hub is not None:
            attempt.hub.drop(silo, "its lease ended: no sign of life")
        self._poke()

    def poke(self) -> None:
        """Look again: a silo has registered."""
        self._poke()

    def account(self, path: str, count: CallCount) -> None:
        """Add what a finished call moved."""
        service, _, method = path.strip("/").rpartition("/")
        if not service.endswith("ExchangeService"):
            self._control[0] += count.bytes_in
            self._control[1] += count.bytes_out
            return
        key = (method, Silo(count.silo))
        total = self._totals.setdefault(key, CallCount())
        total.messages_in += count.messages_in
        total.messages_out += count.messages_out
        total.bytes_in += count.bytes_in
        total.bytes_out += count.bytes_out
        self._calls[key] = self._calls.get(key, 0) + 1
        up, down = self._round_bytes
        self._round_bytes = (up + count.bytes_in, down + count.bytes_out)

    def unstored(self) -> Moved:
        """Return what has moved since the last flush: by step and silo, and on control calls."""
        steps = tuple(
            StepTotal(
                silo,
                method,
                self._calls[method, silo],
                count.messages_in,
                count.messages_out,
                count.bytes_in,
                count.bytes_out,
            )
            for (method, silo), count in self._totals.items()
        )
        return steps, (self._control[0], self._control[1])

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until something about the job has changed."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_seconds)
        except TimeoutError:
            return

    # --- the run ---

    async def _run(self) -> None:
        failures = 0
        away_until: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                done = self._rounds_done()
                try:
                    await self._one_attempt()
                    return
                except DatabaseAway as error:
                    # A round is stored before its checkpoint, so the next attempt repeats it.
                    if away_until is None or self._rounds_done() > done:
                        away_until = clock() + AWAY_SECONDS
                    if clock() > away_until:
                        raise
                    log.warning("database away", job=self.job_id, why=str(error))
                    await asyncio.sleep(1.0)
                except QuorumLost as error:
                    failures = 1 if self._rounds_done() > done else failures + 1
                    log.warning("quorum lost", job=self.job_id, why=str(error))
                    if failures >= self._max_attempts:
                        await self._finish(JobState.FAILED, str(error))
                        return
        except FederationError as error:
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
            log.exception("failed", job=self.job_id)
            await self._finish(
                JobState.FAILED, f"internal error of the coordinator: {type(error).__name__}"
            )

    def _rounds_done(self) -> int:
        done = self._around.artefacts.checkpoints(self.job_id)
        return done[-1] + 1 if done else 0

    async def _one_attempt(self) -> None:
        attempt = await self._open_attempt()
        try:
            await self._gather(attempt)
            await self._rounds(attempt)
        except FederationError as error:
            attempt.failure = error
            raise
        finally:
            reason: FederationError = StaleAttempt("this attempt has ended")
            if self._cancelled_by is not None:
                reason = JobStopped(f"cancelled by {self._cancelled_by}")
            self._end_attempt(reason)
            await self._notify()

    def _end_attempt(self, error: FederationError) -> None:
        attempt = self._attempt
        if attempt is not None and not attempt.ended:
            attempt.ended = True
            if attempt.hub is not None:
                attempt.hub.end(error)

    async def _open_attempt(self) -> _Attempt:
        previous = self._record.attempt or (self._attempt.number if self._attempt else 0)

        def begin() -> tuple[_Attempt, JobRecord | None]:
            store = self._around.store
            known = store.roster(self.job_id, previous) if previous else self.job.silos
            attempt = _Attempt(previous + 1, {Silo(s) for s in known}, self._rounds_done())
            attempt.number = store.start_attempt(
                self.job_id, attempt.candidates, self._around.now()
            )
            return attempt, store.job(self.job_id)

        attempt, record = await asyncio.to_thread(begin)
        self._attempt = attempt
        self._record = record or self._record
        await self._notify()
        return attempt

    async def _gather(self, attempt: _Attempt) -> None:
        """Wait until the silos have accepted, then agree on the schema."""
        loop = asyncio.get_running_loop()
        patience = self.job.start_timeout_seconds
        if attempt.number > 1:
            patience = min(patience, RETURN_SECONDS)
        deadline = loop.time() + patience
        named = bool(attempt.candidates)
        known: set[Silo] = set()
        settled = loop.time() + SETTLE_SECONDS
        while True:
            if not named:
                alive = {
                    silo
                    for silo, strategies in self._around.alive().items()
                    if not strategies or self.job.strategy.name in strategies
                }
                if alive - known:
                    known |= alive
                    settled = loop.time() + SETTLE_SECONDS
                # Whom a silo is in company with is part of what it agrees to: none is asked
                # before the first ones are together.
                together = len(alive) >= self.job.min_silos and loop.time() > settled
                if alive - attempt.candidates and (attempt.candidates or together):
                    attempt.candidates |= alive
                    await self._notify()
            answered = attempt.accepted.keys() | attempt.declined.keys()
            if attempt.declined and not attempt.accepted and answered >= attempt.candidates:
                break
            enough = len(attempt.accepted) >= self.job.min_silos
            if named and answered >= attempt.candidates:
                break
            if not named and enough and answered >= attempt.candidates and loop.time() > settled:
                break
            if loop.time() > deadline:
                break
            await self.changed(0.25)
        artefacts = self._around.artefacts
        settled_before = await asyncio.to_thread(artefacts.exists, self.job_id, AGREED_SCHEMA)
        while True:
            agreed = dict(sorted(attempt.accepted.items()))
            self._check_enough(attempt, known - attempt.candidates)
            schema = await asyncio.to_thread(self._agree, agreed, settled_before)
            if agreed.keys() == attempt.accepted.keys():  # else somebody came meanwhile
                break
        # Silos that are away may come back; those that declined do not.
        roster = tuple(sorted(attempt.candidates - attempt.declined.keys()))
        attempt.agreement = Agreement(schema, roster, attempt.first_round)
        await self._notify()

    def _check_enough(self, attempt: _Attempt, waiting: set[Silo]) -> None:
        accepted = attempt.accepted
        if len(accepted) < max(self.job.min_silos, 1):
            absent = sorted(attempt.candidates - accepted.keys() - attempt.declined.keys())
            reasons = [f"{silo} declined ({why})" for silo, why in attempt.declined.items()]
            reasons += [
                f"{silo} was refused ({attempt.refused[silo]})"
                if silo in attempt.refused
                else f"{silo} did not come"
                for silo in absent
            ]
            reasons += [f"{silo} waited for others" for silo in sorted(waiting)]
            raise SchemaMismatch(
                f"the job needs {max(self.job.min_silos, 1)} silos, {len(accepted)} accepted; "
                + ("; ".join(reasons) or "none is registered")
            )

    def _agree(self, accepted: dict[Silo, Acceptance], settled_before: bool) -> Schema:
        """Check and store what the silos that have accepted agree on; return their schema.

        One that an earlier attempt settled stays as it is.
        """
        schemas = {s: a.schema for s, a in accepted.items() if a.schema is not None}
        if self.job.vertical:
            active = self.job.active
            if active not in schemas:
                raise SchemaMismatch(f"the active party {active!r} did not accept")
            schema = schemas[active]
        elif settled_before:
            schema = self._around.load_schema(
                self._around.artefacts.read(self.job_id, AGREED_SCHEMA)
            )
            for silo, own in schemas.items():
                self._around.fits(silo, own, schema)
        else:
            schema = self._around.merge({str(silo): own for silo, own in schemas.items()})
            self._around.artefacts.write(
                self.job_id, AGREED_SCHEMA, self._around.dump_schema(schema)
            )
        for silo, acceptance in accepted.items():
            note = "" if acceptance.n_samples else "has no rows"
            self._around.store.set_job_silo(
                self.job_id, silo, "present", acceptance.n_samples, note
            )
        return schema

    async def _rounds(self, attempt: _Attempt) -> None:
        assert attempt.agreement is not None
        schema = attempt.agreement.schema
        present = tuple(sorted(attempt.accepted))
        attempt.hub = Rendezvous(
            attempt.agreement.silos,
            present,
            self.job.step_timeout_seconds,
            self._silo_changed,
        )
        await self._notify()
        checkpoint = None
        if attempt.first_round:
            checkpoint = self._around.artefacts.read_checkpoint(
                self.job_id, attempt.first_round - 1
            )
        start = CoordinatorStart(
            job=self.job,
            job_id=self.job_id,
            attempt=attempt.number,
            silos=attempt.agreement.silos,
            schema=schema,
            n_samples={s: a.n_samples for s, a in attempt.accepted.items()},
            checkpoint=checkpoint,
            test=None
            if self.job.vertical
            else await asyncio.to_thread(
                self._around.evaluation,
                self.job,
                schema,
                self._around.test_data(self._record.spec),
            ),
            journal=JobJournal(self._around.artefacts, self.job_id),
        )
        self._planned = self._plan(schema, start.n_samples)
        clock = asyncio.get_running_loop().time
        began = clock()
        last = checkpoint
        best = self._record.best_round
        stream = self.job.strategy.coordinate(self.job.parameters, attempt.hub, start)
        try:
            async for result in stream:
                seconds, began = clock() - began, clock()
                await self._save(attempt, result, seconds)
                attempt.first_round = result.round + 1
                last, best = result.checkpoint, result.best_round
                if result.final:
                    break
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
        await self._farewell(attempt)
        if last is None:
            raise JobStopped("the strategy ended without a round")
        await self._keep(schema, last, best)

    def _plan(self, schema: Schema, n_samples: Mapping[Silo, int]) -> tuple[float, float]:
        """Return bytes up and down of a silo in a round, by forecast; the mean of the silos'."""
        job, layout = self.job, self.job.strategy.layout
        if isinstance(layout, Vertical):
            columns = self._around.columns()
            schemas = {
                silo: replace(schema, features=unnamed(columns.get(silo, 0) - 1))
                for silo in n_samples
                if silo in columns or silo == job.active
            }
            plans = list(layout.forecasts(job.parameters, job, schemas, n_samples).values())
        else:
            plans = [job.strategy.forecast(job.parameters, job, schema, n_samples)]
        shares = [1 / max(plan.rounds, 1) / len(plans) for plan in plans]
        return (
            sum(
                s * up for s, p in zip(shares, plans, strict=True) for _, up, _ in p.steps.values()
            ),
            sum(s * dn for s, p in zip(shares, plans, strict=True) for *_, dn in p.steps.values()),
        )

    def _silo_changed(self, silo: Silo, state: str, detail: str) -> None:
        attempt = self._attempt
        n_samples = 0
        if attempt is not None and silo in attempt.accepted:
            n_samples = attempt.accepted[silo].n_samples
        log.info("silo changed", job=self.job_id, silo=silo, state=state, why=detail)
        try:
            self._around.store.set_job_silo(self.job_id, silo, state, n_samples, detail)
        except DatabaseAway as error:
            log.warning("standing not stored", job=self.job_id, silo=silo, why=str(error))
        self._poke()

    async def _note_silo(self, silo: Silo, state: str, n_samples: int, detail: str) -> None:
        await asyncio.to_thread(
            self._around.store.set_job_silo, self.job_id, silo, state, n_samples, detail
        )

    async def _save(self, attempt: _Attempt, result: RoundResult, seconds: float) -> None:
        """Make a round durable: its record first, then its checkpoint."""
        # The last replies of the round are being sent: let their calls end, to be counted here.
        if attempt.hub is not None:
            await attempt.hub.all_delivered(0.25)
        (up, down), self._round_bytes = self._round_bytes, (0, 0)
        record = RoundRecord(
            result.round, attempt.number, seconds, result.metrics, up, down, result.silos
        )
        self._last_round = record
        async with self.storing:
            await asyncio.to_thread(self._store_round, record, result, self._take())
        strategy = self.job.strategy.name
        metrics = self._around.metrics
        metrics.rounds.labels(strategy).inc()
        metrics.round_seconds.labels(strategy).observe(seconds)
        for direction, moved, planned in zip(
            ("up", "down"), (up, down), self._planned, strict=True
        ):
            metrics.round_bytes.labels(strategy, direction).observe(moved)
            metrics.planned_bytes.labels(strategy, direction).inc(planned * len(result.silos))
        await self._notify()

    def _store_round(self, record: RoundRecord, result: RoundResult, moved: Moved) -> None:
        self._put_round(record, result.best_round)
        self._flush(moved)
        self._around.artefacts.write_checkpoint(self.job_id, result.round, result.checkpoint)
        self._around.artefacts.prune_checkpoints(self.job_id, (result.round, result.round - 1))

    def _put_round(self, record: RoundRecord, best_round: int | None) -> None:
        self._around.store.add_round(
            self.job_id,
            record.round,
            record.attempt,
            record.seconds,
            record.metrics,
            record.bytes_up,
            record.bytes_down,
            record.silos,
            best_round,
        )

    async def _farewell(self, attempt: _Attempt) -> None:
        """Give the silos' halves time to take their last replies and end."""
        assert attempt.hub is not None
        hub = attempt.hub
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FAREWELL_SECONDS
        while loop.time() < deadline:
            if attempt.outcomes.keys() >= set(hub.silos):
                break
            await self.changed(0.25)

    async def _keep(self, schema: Schema, checkpoint: bytes, best_round: int) -> None:
        def keep() -> None:
            result = self.job.strategy.artefact(self.job.parameters, self.job, schema, checkpoint)
            for name, data in result.files.items():
                self._around.artefacts.write(self.job_id, name, data)
            names = sorted(result.files)
            if self._around.artefacts.exists(self.job_id, AGREED_SCHEMA):
                names.append(AGREED_SCHEMA)  # whoever uses the model needs its category lists
            self._around.store.set_result(self.job_id, tuple(names), result.model, best_round)

        await asyncio.to_thread(keep)
        self._end_attempt(JobStopped("the job has ended"))
        await self._finish(JobState.SUCCEEDED, "")

    async def _finish(self, state: JobState, detail: str) -> None:
        self._ending = True
        moved: Moved = ((), (0, 0))
        taken = False
        (up, down), self._round_bytes = self._round_bytes, (0, 0)

        def finish() -> None:
            nonlocal moved
            self._flush(moved)
            moved = ((), (0, 0))
            last = self._last_round
            if last is not None and (up or down):
                self._put_round(
                    RoundRecord(
                        last.round,
                        last.attempt,
                        last.seconds,
                        last.metrics,
                        last.bytes_up + up,
                        last.bytes_down + down,
                        last.silos,
                    ),
                    None,
                )
            self._around.store.set_state(self.job_id, state, detail, self._around.now())

        while True:
            try:
                async with self.storing:
                    if not taken:
                        moved, taken = self._take(), True
                    await asyncio.to_thread(finish)
                break
            except DatabaseAway as error:
                # The job has not ended for anyone until its end is stored.
                log.warning("end of job not stored yet", job=self.job_id, why=str(error))
                await asyncio.sleep(1.0)
            except Exception as error:
                log.error(
                    "end of job not stored",
                    job=self.job_id,
                    kind=type(error).__name__,
                    where=where(error),
                )
                break
        self._ended_at = self._around.now()
        log.info("job ended", job=self.job_id, state=state.value, why=detail)
        await self._notify()

    def _take(self) -> Moved:
        """Return what has moved and is not stored yet, and start counting anew."""
        moved = self.unstored()
        self._totals, self._calls, self._control = {}, {}, [0, 0]
        return moved

    def _put_back(self, moved: Moved) -> None:
        """Count what :meth:`_take` took once more: it could not be stored."""
        steps, (up, down) = moved
        for step in steps:
            key = (step.method, Silo(step.silo))
            total = self._totals.setdefault(key, CallCount())
            total.messages_in += step.messages_up
            total.messages_out += step.messages_down
            total.bytes_in += step.bytes_up
            total.bytes_out += step.bytes_down
            self._calls[key] = self._calls.get(key, 0) + step.calls
        self._control[0] += up
        self._control[1] += down

    def _flush(self, moved: Moved) -> None:
        steps, control = moved
        if steps:
            self._around.store.add_bytes(self.job_id, steps)
        if any(control):
            self._around.store.add_control_bytes(self.job_id, *control)

    def _current(self, number: int) -> _Attempt:
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.ended:
            raise StaleAttempt(f"attempt {number} of job {self.job_id} is not under way")
        return attempt

    async def _notify(self) -> None:
        # Not a condition: a call that is cancelled twice while it waits would keep its lock.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _poke(self) -> None:
        task = asyncio.ensure_future(self._notify())
        _pokes.add(task)
        task.add_done_callback(_pokes.discard)


def _nameless(schema: Schema) -> Schema:
    """Return what the coordinator may know of a party's table: the task and how many classes."""
    return Schema((), "", schema.task, schema.n_classes)


_pokes: set[Any] = set()
"""Keeps references of notifications under way, as asyncio asks for."""
