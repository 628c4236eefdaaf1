"""One attempt at a job in a silo: accept or decline the assignment, take part, store the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from hedgerow.boosting import warm_start
from hedgerow.boosting.allowances import QuotaChannel
from hedgerow.boosting.budget import Accountant
from hedgerow.boosting.dataset import Dataset, Schema, fits, recode, weighed
from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    InvalidJob,
    JobStopped,
    ModelRejected,
    SchemaMismatch,
    StateUnwritable,
)
from hedgerow.boosting.own_scores import OWN_SCORES, kept_scores
from hedgerow.boosting.ports import Artefact, JobParameters, ModelCheck, SiloStart
from hedgerow.boosting.storage import Storage
from hedgerow.boosting.streams import own_draws
from hedgerow.boosting.sums.allowances import has_sums
from hedgerow.boosting.sums.groups import Groups, check_groups, encode_sets
from hedgerow.boosting.sums.steps import SUMS_VERSION
from hedgerow.boosting.tables.digests import check_known
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.client_agent import results
from hedgerow.client_agent.accepted import check_silos
from hedgerow.client_agent.admission import (
    admit,
    check_operator,
    check_start,
    shown_refusal,
    shown_rows,
    shown_schema,
)
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.seen_tables import counts_rows
from hedgerow.client_agent.timing import Stopwatch, summary
from hedgerow.services.process import tracing
from hedgerow.services.rpc.federation import Agreement, Assignment
from hedgerow.services.rpc.link import GrpcChannel
from hedgerow.services.wire import BoxCodec
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.acceptance import Acceptance, Answer, Declined, accept_message
from hedgerow.services.wire.results import JobResult, Outcome
from hedgerow.services.wire.signed_job import ITS_SILOS, OpenedJob, check_approvals, open_job

T = TypeVar("T")

log = structlog.get_logger()

ROOM_SECONDS = 0.5
"""How often an agent whose disk was full looks whether there is room."""


class Attempt:
    """One attempt at a job.

    Parameters
    ----------
    answer : callable
        Sends an answer until the silos agree; raises JobStopped where they do not.
    fetch : callable
        Waits for the job's result, also one of a later attempt; None where there will be none.

    Attributes
    ----------
    outcome : Outcome
        What to report of an attempt that has ended well.
    abandoned : str
        Why it is reported as failed once it is stopped; empty where that needs no report.
    """

    def __init__(
        self,
        parts: AgentParts,
        assignment: Assignment,
        answer: Callable[[Answer], Agreement],
        fetch: Callable[[Attempt], JobResult | None] = lambda _: None,
    ) -> None:
        self.key = assignment.key
        self._parts = parts
        self._assignment = assignment
        self._answer = answer
        self._fetch = fetch
        self.outcome = Outcome()
        self._link: GrpcChannel | None = None
        self._stopped = ""
        self.abandoned = ""

    @property
    def stopped(self) -> bool:
        """Whether the attempt is to end."""
        return bool(self._stopped)

    def stop(self, reason: str) -> None:
        """End the attempt soon; safe from any thread."""
        self._stopped = reason
        if self._link is not None:
            self._link.stop(reason)

    def run(self) -> None:
        """Answer the assignment; where it is accepted, take part until the job ends.

        Raises
        ------
        FederationError
            The attempt failed, or was stopped.
        """
        try:
            job_id, attempt = self.key.job_id, self.key.attempt
            with (
                structlog.contextvars.bound_contextvars(job=job_id, attempt=attempt),
                tracing.span("take part", job_id, attempt=attempt, silo=self._parts.silo),
            ):
                self._run()
        finally:
            self._parts.memory.give_back(self.key.job_id, self.key.attempt)

    def _run(self) -> None:
        parts = self._parts
        job: JobParameters | None = None
        try:
            opened = open_job(self._assignment.job, parts.identity())
            parts.accepted.check(self.key.job_id, opened)
            check_operator(parts, opened)
            if opened.operator == ITS_SILOS:
                parts = self._parts = self._of_script(opened)
            job = job_wire.decode_known(opened.statement.spec, parts.policy.check_packages)
            check_approvals(opened, job.approvals, parts.identity())
            dataset, _ = admit(parts, job, self.key.job_id, opened.operator, self._assignment.silos)
            storage = parts.memory.take(self.key.job_id, self.key.attempt, job, dataset)
            dataset = storage.placed(dataset)
            self._known_table(dataset)
            self._count_attempt()
            accountant = self._accountant(job)
        except (StateUnwritable, JobStopped):
            raise  # it can take part once there is room
        except FederationError as refusal:
            log.warning("declined", why=str(refusal))
            self._answer(Declined(shown_refusal(job, refusal)[:500]))
            return
        self._take_part(job, dataset, opened, accountant, storage)

    def _of_script(self, opened: OpenedJob) -> AgentParts:
        """Return the parts with the tables with which this silo's script has signed a job.

        A script that died, and was started again, may not have signed it yet.
        """
        script = self._parts.script
        if script is None:
            raise InvalidJob(f"job {self.key.job_id} is of scripts, and none is joined here")
        while (tables := script(opened)) is None:
            if self._stopped:
                raise JobStopped(self._stopped)
            time.sleep(0.1)
        return replace(
            self._parts,
            load=tables.train,
            load_test=tables.tested,
            load_validation=tables.validated,
        )

    def _accountant(self, job: JobParameters) -> Accountant | None:
        """Return the account of a job that has a privacy budget; refuse one over what is left."""
        kept = job.parameters.safeguards(job)
        if kept.epsilon is None:
            return None
        return self._parts.account.admit(self.key.job_id, kept.epsilon, kept.delta)

    def _known_table(self, dataset: Dataset, name: str = "table") -> None:
        """Check that the job goes on with the table with which the silo accepted it."""
        memory = self._parts.state.memory(self.key.job_id)
        earlier = memory.recall(name)
        if earlier is None:
            memory.remember(name, dataset.digest.encode())
        else:
            check_known(earlier.decode(), dataset.digest)

    def _count_attempt(self) -> None:
        """Count what this silo accepts: each attempt may ask all that the job needs once more."""
        memory = self._parts.state.memory(self.key.job_id)
        times = int(memory.recall("attempts") or 0) + 1
        self._parts.policy.check_attempts(times)
        memory.remember("attempts", str(times).encode())

    def _take_part(
        self,
        job: JobParameters,
        dataset: Dataset,
        opened: OpenedJob,
        accountant: Accountant | None,
        storage: Storage,
    ) -> None:
        parts, job_id, digest = self._parts, self.key.job_id, opened.signed.digest
        known, unlabelled = dataset.digest, dataset.unlabelled
        identity = parts.identity()
        parts.accepted.accept(opened, identity.now())
        agreement = self._answer(
            Acceptance(
                schema=shown_schema(job, parts.silo, dataset.schema),
                n_samples=shown_rows(job, dataset.n_samples),
                job_digest=digest,
                signature=identity.sign(accept_message(job_id, digest)),
                certificate=identity.certificate,
                min_silos=parts.policy.min_silos,
                sums_version=SUMS_VERSION,
            )
        )
        check_silos(job, agreement.silos, parts.silo)
        parts.policy.check_cohort(agreement.silos)
        parts.policy.check_noise(job, len(agreement.silos))
        if counts_rows(job):
            parts.seen.note(job, job_id, dataset)
        dataset = replace(dataset, table=None)
        schema = dataset.schema if job.vertical else self._settled(job, agreement.schema, dataset)
        try:
            test, validation = parts.load_test(job, known), parts.load_validation(job)
            if test is not None:
                if results.scores_may_leave(parts.policy, job):
                    parts.seen.note(job, job_id, test)
                test = replace(test, table=None)
            if validation is not None and not job.vertical:
                self._known_table(validation, "validation table")
                if counts_rows(job):
                    parts.seen.note(job, job_id, validation)
                validation = replace(validation, table=None)
                validation = weighed(recode(validation, schema), job.columns.class_weight)
        except (DataError, SchemaMismatch) as unfit:
            raise DataError(shown_refusal(job, unfit)) from unfit
        if not job.vertical:
            y, dataset = dataset.y, recode(dataset, schema)
            dataset = dataset if dataset.y is y else storage.placed(dataset)
            dataset = weighed(dataset, job.columns.class_weight)
            test = None if test is None else recode(test, schema)
        groups = self._groups(job, agreement, schema)
        if groups:
            check_start(parts, job, schema, dataset)
        start = SiloStart(
            job=job,
            job_id=job_id,
            attempt=self.key.attempt,
            silo=parts.silo,
            silos=agreement.silos,
            schema=schema,
            dataset=replace(dataset, unlabelled=unlabelled),
            first_round=agreement.first_round,
            test=test,
            validation=validation,
            n_threads=parts.n_threads,
            identity=identity,
            trainer=parts.trainer,
            device=parts.device,
            limits=parts.policy.limits,
            codec=BoxCodec(),
            job_digest=digest,
            accountant=accountant,
            asked_ids=partial(parts.asked_ids, job_id),
            telling=lambda *found: parts.opened.note_told(
                job,
                job_id,
                agreement.silos,
                *((f"{what}, of table {known[:16]}", how) for what, how in found),
            ),
            storage=storage,
            require_hybrid=parts.policy.require_hybrid,
            groups=groups,
            opened=parts.opened.of_job(job, job_id, groups),
            least_silos=parts.policy.min_silos,
        )
        results.expect(parts, start, opened.statement.spec)
        self._keep(start, self._participate(start, known), opened)
        parts.accepted.done(job_id)
        log.info("done")

    def _settled(self, job: JobParameters, agreed: Schema, dataset: Dataset) -> Schema:
        """Return the job's schema, which neither reorders this table nor ever changes.

        Columns or categories in another order would give other counts under the same noise.
        """
        fits(self._parts.silo, dataset.schema, agreed)
        positive = job.columns.positive
        if positive and agreed.classes[-1:] != (positive,):
            raise SchemaMismatch(
                f"job {self.key.job_id}: the job's positive class is not the last one of the schema"
            )
        memory = self._parts.state.memory(self.key.job_id)
        earlier, digest = memory.recall("schema"), bytes.fromhex(agreed.digest)
        if earlier is None:
            memory.remember("schema", digest)
        elif earlier != digest:
            raise SchemaMismatch(
                f"job {self.key.job_id}: the coordinator has changed the schema on which the silos "
                "agreed"
            )
        return agreed

    def _groups(self, job: JobParameters, agreement: Agreement, schema: Schema) -> Groups:
        """Return the groups of the job's sums, which never change; none where it has no sums.

        Over other groups in another attempt, sums could be told apart that are finer than a group.
        """
        groups = tuple(group.silos for group in agreement.groups)
        n_silos = len(agreement.silos)
        if job.vertical or not has_sums(warm_start.allowances(job, schema, n_silos)):
            return ()
        if not groups:
            raise InvalidJob(
                "the coordinator named no groups of silos, over whose unions the job's secure sums "
                "are: it is of an older release than this silo's agent"
            )
        memory = self._parts.state.memory(self.key.job_id)
        earlier, now = memory.recall("groups"), encode_sets(groups)
        if earlier is None:
            check_groups(job, groups, agreement.silos, self._parts.silo)
            memory.remember("groups", now)
        elif earlier != now:
            raise InvalidJob(
                f"job {self.key.job_id}: the coordinator has changed the groups of silos over "
                "whose unions its sums are"
            )
        return groups

    def _participate(self, start: SiloStart, table: str) -> Artefact | ModelCheck | None:
        """Run the silo's half; store where its time went."""
        parts, job = self._parts, start.job
        self._link = link = GrpcChannel(
            channel=lambda: parts.channel().on_account_of(job.strategy.name),
            address=parts.address,
            job_id=start.job_id,
            attempt=start.attempt,
            ledger=parts.ledger,
            memory=parts.state.memory(start.job_id),
            timeout_seconds=2.0 * job.step_timeout_seconds + 30.0,
        )
        guarded = QuotaChannel(
            link, warm_start.allowances(job, start.schema, len(start.silos)), parts.policy.classes
        )
        if self._stopped:
            raise JobStopped(self._stopped)
        log.info("taking part", room_for_bins=start.storage.room)

        def pause() -> None:
            link.check()
            time.sleep(0.2)

        total, crypto = Stopwatch(), Stopwatch()
        with (
            closing(link),
            parts.secrets.attempt(start.job_id, pause, crypto) as vault,
            total.running(),
        ):
            start = replace(start, draws=own_draws(vault, job, table))
            kept = warm_start.participate(guarded, vault, start)
        times = summary(start.attempt, total.seconds, link.times, crypto.seconds)
        self._store("times.json", times)
        return kept

    def _keep(self, start: SiloStart, own: Artefact | ModelCheck | None, opened: OpenedJob) -> None:
        """Store what stays in the silo: its own files, or the common model once it is checked."""
        job, signed = start.job, None
        if own is None or not (isinstance(own, Artefact) or job.keep_model or start.test):
            return
        if isinstance(own, Artefact):
            files = dict(own.files)
            if not job.vertical:  # users of the silo's model need this
                files[results.SCHEMA] = schema_wire.dump(start.schema)
            keeps, found = True, own
        else:
            result = self._fetch(self)
            if result is None:
                return
            try:
                own(result.files)
                results.check_schema(start.job_id, result, start.schema.digest)
            except ModelRejected as error:
                if self._stopped:  # a later attempt has gone on to another model
                    raise JobStopped(self._stopped) from error
                raise
            signed = results.sign(self._parts, opened, start, result)
            files, keeps = dict(result.files), job.keep_model
            if keeps and MODEL_FILE in files:
                raw, name = files[MODEL_FILE], job.strategy.name
                self._written(partial(results.mark, self._parts.state, start.job_id, raw, name))
            found = Artefact(files, MODEL_FILE)
        scores = results.test_scores(self._parts, job, found, start.test)
        n_test = 0 if start.test is None else start.test.n_samples
        told = results.leaving(self._parts.policy, scores, n_test)
        if told and not self._written(
            partial(results.told_once, self._parts.state, start.job_id, found)
        ):
            log.warning("scores of test rows kept", why="those of another model have left")
            told = {}
        self.outcome = Outcome("", told, signed)
        if scores:
            self._store(OWN_SCORES, kept_scores([{"test": scores}]))
        if not job.vertical:
            files = results.kept_files(files, opened.statement.spec)
        for name, data in files.items() if keeps else ():
            self._store(name, data)

    def _store(self, name: str, data: bytes) -> None:
        self._written(partial(self._parts.state.keep, self.key.job_id, name, data))

    def _written(self, write: Callable[[], T]) -> T:
        """Write of the result, once there is room: no other attempt would make it again."""
        told = False
        while True:
            try:
                return write()
            except StateUnwritable as error:
                if not told:
                    log.error("result waits for room", why=str(error))
                told = True
                time.sleep(ROOM_SECONDS)
