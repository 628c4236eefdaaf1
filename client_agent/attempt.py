"""One attempt at a job in a silo: accept or decline the assignment, take part, store the result."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import structlog

from hedgerow.boosting.allowances import GuardedLink
from hedgerow.boosting.budget import Accountant
from hedgerow.boosting.dataset import Dataset, Schema, fits, recode
from hedgerow.boosting.errors import (
    UNFIT,
    DataError,
    FederationError,
    JobStopped,
    SchemaMismatch,
    StateUnwritable,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact, JobParameters, LocalTrainer, SiloStart
from hedgerow.client_agent.accepted import AcceptedJobs, check_silos
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.keeper import SecretKeeper
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.state import StateFolder
from hedgerow.client_agent.timing import Stopwatch, summary
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.federation import (
    Acceptance,
    Agreement,
    Answer,
    Assignment,
    Declined,
    Registration,
    accept_message,
)
from hedgerow.services.rpc.link import GrpcLink
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.wire import BoxCodec
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.signed_job import OpenedJob, open_job

log = structlog.get_logger()

ROOM_SECONDS = 0.5
"""How often an agent whose disk was full looks whether there is room."""


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of an agent.

    Parameters
    ----------
    channel : callable
        Returns the channel to the coordinator, a fresh one after certificates were renewed.
    identity : callable
        Returns the silo's identity, the new one after certificates were renewed.
    load : callable
        (job, evaluation rows?) to the silo's table under its own schema; raises DataError.
    accepted : AcceptedJobs
        Knows the jobs that the silo has accepted.
    account : TableAccount
        What jobs have spent on the silo's table.
    secrets : SecretKeeper
        Owns what jobs hold in the silo's vault.
    revoked : RevokedCertificates
        Whose signatures do not count any more.
    has_test : bool
        Whether the silo has evaluation rows of its own.
    """

    silo: Silo
    address: str
    channel: Callable[[], MeteredChannel]
    identity: Callable[[], FileIdentity]
    state: StateFolder
    ledger: SiloLedger
    accepted: AcceptedJobs
    policy: Policy
    account: TableAccount
    load: Callable[[JobParameters, bool], Dataset]
    secrets: SecretKeeper
    registration: Registration
    revoked: RevokedCertificates
    n_threads: int = 1
    has_test: bool = False
    trainer: LocalTrainer | None = None


class Attempt:
    """One attempt at a job.

    Parameters
    ----------
    parts : AgentParts
    assignment : Assignment
    answer : callable
        Sends an answer until the silos agree; raises JobStopped where they do not.
    """

    def __init__(
        self, parts: AgentParts, assignment: Assignment, answer: Callable[[Answer], Agreement]
    ) -> None:
        self.key = assignment.key
        self._parts = parts
        self._assignment = assignment
        self._answer = answer
        self._link: GrpcLink | None = None
        self._stopped = ""

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
        job: JobParameters | None = None
        try:
            opened = open_job(self._assignment.job, self._parts.identity())
            self._parts.accepted.check(self.key.job_id, opened)
            job = job_wire.decode_known(opened.statement.spec)
            job.parameters.validate(job)
            check_silos(job, self._assignment.silos, self._parts.silo)
            dataset = self._parts.load(job, False)
            self._check_policy(job, opened.operator, dataset)
            self._count_attempt()
            accountant = self._accountant(job)
        except StateUnwritable:
            raise  # it can take part once there is room
        except FederationError as refusal:
            log.warning("declined", job=self.key.job_id, attempt=self.key.attempt, why=str(refusal))
            self._answer(Declined(_shown_refusal(job, refusal)[:500]))
            return
        self._take_part(job, dataset, opened, accountant)

    def _check_policy(self, job: JobParameters, operator: str, dataset: Dataset) -> None:
        self._parts.policy.check_revoked(self._parts.revoked.age)
        rows = dict.fromkeys(self._assignment.silos, dataset.n_samples)
        self._parts.policy.check(
            job,
            operator=operator,
            silos=self._assignment.silos,
            schema=dataset.schema,
            n_samples=dataset.n_samples,
            forecast=job.strategy.forecast(job.parameters, job, dataset.schema, rows),
            allowances=job.strategy.allowances(
                job.parameters, job, dataset.schema, len(self._assignment.silos)
            ),
        )

    def _accountant(self, job: JobParameters) -> Accountant | None:
        """Return the account of a job that has a privacy budget; refuse one over what is left."""
        epsilon = job.parameters.safeguards(job).epsilon
        return None if epsilon is None else self._parts.account.admit(self.key.job_id, epsilon)

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
    ) -> None:
        parts, job_id, digest = self._parts, self.key.job_id, opened.signed.digest
        identity = parts.identity()
        parts.accepted.accept(opened, identity.now())
        agreement = self._answer(
            Acceptance(
                schema=_shown_schema(job, parts.silo, dataset.schema),
                n_samples=_shown_rows(job, dataset.n_samples),
                job_digest=digest,
                signature=identity.sign(accept_message(job_id, digest)),
                certificate=identity.certificate,
            )
        )
        check_silos(job, agreement.silos, parts.silo)
        parts.policy.check_cohort(agreement.silos)
        schema = dataset.schema if job.vertical else self._settled(agreement.schema, dataset)
        try:
            test = parts.load(job, True) if parts.has_test else None
        except (DataError, SchemaMismatch) as unfit:
            raise DataError(_shown_refusal(job, unfit)) from unfit
        if not job.vertical:
            dataset = recode(dataset, schema)
            test = None if test is None else recode(test, schema)
        start = SiloStart(
            job=job,
            job_id=job_id,
            attempt=self.key.attempt,
            silo=parts.silo,
            silos=agreement.silos,
            schema=schema,
            dataset=dataset,
            first_round=agreement.first_round,
            test=test,
            n_threads=parts.n_threads,
            identity=identity,
            trainer=parts.trainer,
            limits=parts.policy.limits,
            codec=BoxCodec(),
            job_digest=digest,
            accountant=accountant,
        )
        self._keep(start, self._participate(start))
        parts.accepted.done(job_id)
        log.info("done", job=job_id, attempt=self.key.attempt)

    def _settled(self, agreed: Schema, dataset: Dataset) -> Schema:
        """Return the job's schema, which neither reorders this table nor ever changes.

        Columns or categories in another order would give other counts under the same noise.
        """
        fits(self._parts.silo, dataset.schema, agreed)
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

    def _participate(self, start: SiloStart) -> Artefact | None:
        """Run the silo's half; store where its time went."""
        parts, job = self._parts, start.job
        self._link = link = GrpcLink(
            channel=lambda: parts.channel().on_account_of(job.strategy.name),
            address=parts.address,
            job_id=start.job_id,
            attempt=start.attempt,
            ledger=parts.ledger,
            memory=parts.state.memory(start.job_id),
            timeout_seconds=2.0 * job.step_timeout_seconds + 30.0,
        )
        guarded = GuardedLink(
            link,
            job.strategy.allowances(job.parameters, job, start.schema, len(start.silos)),
            parts.policy.classes,
        )
        if self._stopped:
            raise JobStopped(self._stopped)
        log.info("taking part", job=start.job_id, attempt=start.attempt)

        def pause() -> None:
            link.check()
            time.sleep(0.2)

        total, crypto = Stopwatch(), Stopwatch()
        with (
            closing(link),
            parts.secrets.attempt(start.job_id, pause, crypto) as vault,
            total.running(),
        ):
            kept = job.strategy.participate(job.parameters, guarded, vault, start)
        times = summary(start.attempt, total.seconds, link.times, crypto.seconds)
        self._store("times.json", times)
        return kept

    def _keep(self, start: SiloStart, kept: Artefact | None) -> None:
        """Store what stays in the silo."""
        if kept is None:
            return
        for name, data in kept.files.items():
            self._store(name, data)
        if not start.job.vertical:  # whoever uses the silo's model needs its category lists
            self._store("schema.json", schema_wire.dump(start.schema))

    def _store(self, name: str, data: bytes) -> None:
        """Store a file of the result, once there is room: no other attempt would make it again."""
        for failures in itertools.count():
            try:
                self._parts.state.keep(self.key.job_id, name, data)
                return
            except StateUnwritable as error:
                if not failures:
                    log.error("result waits for room", job=self.key.job_id, why=str(error))
                time.sleep(ROOM_SECONDS)


def _shown_schema(job: JobParameters, silo: Silo, schema: Schema) -> Schema:
    """Return the schema that the coordinator may read: of a vertical job none of its names.

    Silos agree on no columns there; the coordinator needs the active party's task and classes.
    """
    if not job.vertical:
        return schema
    return Schema((), "", schema.task, schema.n_classes if job.active == silo else 0)


def _shown_refusal(job: JobParameters | None, refusal: FederationError) -> str:
    """Return what the coordinator may read of a refusal: of a vertical job no column's name."""
    if job is None or not job.vertical:
        return str(refusal)
    if isinstance(refusal, DataError | SchemaMismatch):
        return UNFIT
    if str(refusal).startswith("policy rule features:"):
        return "policy rule features: a column of its table may not be used"
    return str(refusal)


def _shown_rows(job: JobParameters, n_samples: int) -> int:
    """Return the row count that the coordinator may read: its size class where that suffices."""
    if job.exact_rows:
        return n_samples
    return 1 << max(n_samples - 1, 0).bit_length() if n_samples else 0
