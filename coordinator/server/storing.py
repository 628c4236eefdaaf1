"""Persist a run's progress: rounds, silos' states, traffic, its end; retry what fails."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from hedgerow.boosting import metrics, warm_start
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import CoordinatorStart, JobParameters, RoundResult
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.gathering import AGREED_SCHEMA, JobAttempt, agreed_schema
from hedgerow.coordinator.server.journal import JobJournal
from hedgerow.coordinator.server.results import keep_signatures, with_silo_scores
from hedgerow.coordinator.server.store import JobRecord
from hedgerow.coordinator.server.traffic import JobTraffic
from hedgerow.coordinator.server.waiting import StorePatience
from hedgerow.services.process import tracing
from hedgerow.services.process.logs import defect
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.job_view import FinishedRound, JobSilo, JobState
from hedgerow.services.wire.results import Outcome

T = TypeVar("T")
log = structlog.get_logger()

CLOSE_SECONDS = 1.0
"""How long a run that stops waits for what is being written."""


class JobStoring:
    """The store of one run.

    Attributes
    ----------
    patience : StorePatience
        Says what the run waits for while the store fails.
    has_result : bool
        Whether this process has stored the result.
    """

    def __init__(self, job_id: str, job: JobParameters, environment: JobEnvironment) -> None:
        self.traffic = JobTraffic(environment.store, job_id)
        self._job_id = job_id
        self._job = job
        self._environment = environment
        self.patience = StorePatience(job.step_timeout_seconds, environment.now)
        self._silos: dict[Silo, JobSilo] = {}
        self._writer: asyncio.Task[None] | None = None
        self._last_round: FinishedRound | None = None
        self._journal: JobJournal | None = None
        self.has_result = False

    async def stored(self, work: Callable[[], T], *, for_ever: bool = False) -> T:
        """Do what reads or writes the store, in a thread, until it works.

        Raises
        ------
        StorageFailed
            It has failed until the job's own deadline; never where it is tried ``for_ever``.
        """
        while True:
            try:
                result = await asyncio.to_thread(work)
            except StorageFailed as error:
                await asyncio.sleep(self.patience.failed(error, for_ever=for_ever))
                continue
            self.patience.worked()
            return result

    def rounds_done(self) -> int:
        """Return how many rounds need not be repeated; blocks.

        A database that was restored from an older backup lacks rounds whose checkpoint is there:
        the job goes on, without their records.
        """
        done = self._environment.artefacts.rounds_done(self._job_id)
        known = len(self._environment.store.rounds(self._job_id))
        if known < done:
            log.warning("rounds without a record", job=self._job_id, expected=done, found=known)
        return done

    def start(self, attempt: JobAttempt, record: JobRecord) -> CoordinatorStart:
        """Return what the strategy's half starts from; blocks."""
        environment, first, checkpoint, test = self._environment, attempt.first_round, None, None
        agreement = attempt.agreement
        assert agreement is not None
        self._journal = JobJournal(environment.artefacts, self._job_id, self.patience).load()
        if first:
            checkpoint = environment.artefacts.read_checkpoint(self._job_id, first - 1)
        if not self._job.vertical:
            name = job_wire.test_data(record.spec)
            test = environment.evaluation(self._job, agreement.schema, name)
        return CoordinatorStart(
            job=self._job,
            job_id=self._job_id,
            attempt=attempt.number,
            silos=agreement.silos,
            schema=agreement.schema,
            n_samples={silo: one.n_samples for silo, one in attempt.accepted.items()},
            checkpoint=checkpoint,
            test=test,
            journal=self._journal,
            job_digest=record.signed.digest,
            groups=attempt.groups,
            least_silos=attempt.least_silos,
            starting_model=environment.starting_model(self._job_id, self._job),
        )

    def end_attempt(self) -> None:
        """Let nothing of an attempt wait for the store any more."""
        if self._journal is not None:
            self._journal.close()

    def silo_changed(self, silo: JobSilo) -> None:
        """Store a silo's state soon; the newest one, where the store fails meanwhile."""
        self._silos[Silo(silo.name)] = silo
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_silos())

    async def _write_silos(self) -> None:
        set_job_silos = self._environment.store.set_job_silos
        while self._silos:
            batch = dict(self._silos)
            await self.stored(partial(set_job_silos, self._job_id, batch.values()), for_ever=True)
            for name, silo in batch.items():
                if self._silos.get(name) is silo:
                    del self._silos[name]

    async def _flush(self, *, for_ever: bool = False) -> None:
        while True:
            try:
                await self.traffic.flush()
                return
            except StorageFailed as error:
                pause = self.patience.failed(error, for_ever=for_ever)
            await asyncio.sleep(pause)

    async def save_round(self, done: FinishedRound, result: RoundResult) -> None:
        """Make a round durable: its record first, then its checkpoint.

        Raises
        ------
        DataError
            A score is not defined.
        """
        metrics.check_defined(result.metrics)
        self._last_round = done
        up, down = done.bytes_up, done.bytes_down
        tracing.record("round", done.seconds, round=done.round, bytes_up=up, bytes_down=down)
        store, artefacts = self._environment.store, self._environment.artefacts

        def save() -> None:
            artefacts.write_checkpoint(self._job_id, result.round, result.checkpoint)
            artefacts.prune_checkpoints(self._job_id, (result.round, result.round - 1))

        await self.stored(lambda: store.add_round(self._job_id, done, result.best_round))
        await self._flush()
        await self.stored(save)

    async def save_result(self, schema: Schema, checkpoint: bytes, best_round: int) -> None:
        """Store the files of the job's result."""
        job, artefacts = self._job, self._environment.artefacts

        def save() -> None:
            starting = self._environment.starting_model(self._job_id, job)
            result = warm_start.artefact(job, schema, checkpoint, starting)
            digests = {
                name: artefacts.write(self._job_id, name, data)
                for name, data in sorted(result.files.items())
            }
            agreed = agreed_schema(artefacts, self._job_id)
            if agreed is not None:  # users of the model need its category lists
                digests[AGREED_SCHEMA] = hashlib.sha256(agreed).hexdigest()
            self._environment.store.set_result(self._job_id, digests, result.model, best_round)

        await self.stored(save)
        self.has_result = True

    async def save_outcomes(self, outcomes: Mapping[Silo, Outcome]) -> None:
        """Store what silos have reported of the result: signatures, and scores of their own."""
        store, artefacts = self._environment.store, self._environment.artefacts
        if self._last_round is not None:
            self._last_round = with_silo_scores(self._job, self._last_round, outcomes)
        last = self._last_round

        def save() -> None:
            keep_signatures(artefacts, self._job_id, outcomes)
            if last is not None:
                store.add_round(self._job_id, last)

        await self.stored(save)

    async def end(self, state: JobState, detail: str, created: float) -> None:
        """Store the job's end, however long that takes: until then it has ended for nobody."""
        if self._writer is not None:
            await asyncio.wait({self._writer})
        up, down = self.traffic.take_round()
        store, last = self._environment.store, self._last_round

        def end() -> None:
            if last is not None and (up or down):
                whole = replace(
                    last, bytes_up=last.bytes_up + up, bytes_down=last.bytes_down + down
                )
                store.add_round(self._job_id, whole)
            store.set_state(self._job_id, state, detail, self._environment.now())

        while True:
            try:
                await self._flush(for_ever=True)
                await self.stored(end, for_ever=True)
                took = self._environment.now() - created
                name, ended = self._job.strategy.name, state.value.lower()
                tracing.record("job", took, job_id=self._job_id, strategy=name, state=ended)
                return
            except Exception as error:  # a defect of ours: the job waits, and says so
                log.error("end of job not stored", job=self._job_id, **defect(error))
                pause = self.patience.failed(error, for_ever=True)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Stop writing: a later process continues the job. What was moved is stored if it can."""
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=CLOSE_SECONDS)
            self._writer.cancel()
        try:
            await self.traffic.flush()
        except StorageFailed as error:
            log.warning("traffic not stored", job=self._job_id, why=str(error))
