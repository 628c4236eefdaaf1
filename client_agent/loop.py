"""The agent's outer loop: take the lease, wait for assignments, run each in a thread of its own."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    JobStopped,
    PolicyDeclined,
    SchemaMismatch,
    StaleAttempt,
    Unreachable,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Identity, JobParameters, LocalTrainer, SiloStart
from hedgerow.client_agent.lease import LeaseKeeper
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.state import StateFolder
from hedgerow.client_agent.timing import TimedVault, summary
from hedgerow.crypto.vault import Vault
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.errors import LeaseLost
from hedgerow.services.rpc.exchange import GrpcLink
from hedgerow.services.rpc.federation import (
    Acceptance,
    Agreement,
    Assignment,
    AttemptKey,
    FederationClient,
    Registration,
)
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.wire import BoxCodec
from hedgerow.services.wire import schema as schema_wire

log = structlog.get_logger()

Loader = Callable[[JobParameters, bool], Dataset]
"""(job, evaluation rows?) to the silo's table under its own schema; raises DataError."""
Recode = Callable[[Dataset, Schema], Dataset]
"""A table under the schema that all silos agreed on."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the loop is given.

    Parameters
    ----------
    channel : callable
        Returns the channel to the coordinator, a fresh one after certificates were renewed.
    decode : callable
        Serialised JobSpec to job parameters; raises InvalidJob.
    identity : callable
        Returns the silo's identity, the new one after certificates were renewed.
    vault : callable
        Job identifier to the holder of the silo's private keys for it.
    accept_message : callable
        (job, digest of its spec) to what the silo signs when it accepts.
    """

    silo: Silo
    address: str
    channel: Callable[[], MeteredChannel]
    identity: Callable[[], Identity]
    state: StateFolder
    ledger: SiloLedger
    policy: Policy
    load: Loader
    recode: Recode
    decode: Callable[[bytes], JobParameters]
    vault: Callable[[str], Vault | None]
    accept_message: Callable[[str, bytes], bytes]
    registration: Registration
    n_threads: int = 1
    has_test: bool = False
    trainer: LocalTrainer | None = None


@dataclass
class Agent:
    """A running agent.

    Parameters
    ----------
    once : bool
        Whether to end after the first job.
    """

    around: Surroundings
    once: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _links: dict[AttemptKey, GrpcLink] = field(default_factory=dict)
    _threads: dict[AttemptKey, threading.Thread] = field(default_factory=dict)
    _held: dict[AttemptKey, None] = field(default_factory=dict)
    _forgetting: set[str] = field(default_factory=set)
    _failure: FederationError | None = None
    _keeper: LeaseKeeper | None = None

    @property
    def leased(self) -> bool:
        """Whether the agent holds its lease, at a coordinator that answers."""
        return self._keeper is not None and self._keeper.held

    def run(self) -> None:
        """Work until :meth:`stop`.

        Raises
        ------
        FederationError
            The coordinator refused this agent for good, with its reason.
        """
        keeper = LeaseKeeper(
            self._client,
            self.around.registration,
            self._stop_attempts,
            self._working,
            self._kept_jobs,
            self._jobs_ended,
        )
        self._keeper = keeper
        keeper.start()
        try:
            while not self._stop.is_set():
                lease_id = keeper.wait_for_lease(1.0)
                if keeper.refused is not None:
                    raise keeper.refused
                if lease_id is None:
                    continue
                try:
                    self._poll(lease_id, keeper)
                except LeaseLost:
                    keeper.lost(lease_id)
                except Unreachable as error:
                    log.debug("coordinator away", why=str(error))
                    self._stop.wait(random.uniform(0.1, 0.5))  # noqa: S311
                if self.once and self._held and not self._working():
                    return
        finally:
            self._stop_all("the agent is stopping")
            keeper.stop()

    def stop(self) -> None:
        """Make :meth:`run` return soon; safe in a signal handler."""
        self._stop.set()

    def _client(self) -> FederationClient:
        around = self.around
        return FederationClient(around.channel(), around.address, around.ledger.record_call)

    def _poll(self, lease_id: str, keeper: LeaseKeeper) -> None:
        client = self._client()
        assignment = client.await_assignment(lease_id, tuple(self._held), self._stop.is_set)
        if assignment is None or self._stop.is_set():
            return
        self._held[assignment.key] = None
        for key in list(self._links):
            if key.job_id == assignment.key.job_id:
                self._links[key].stop("a newer attempt has started")
        thread = threading.Thread(
            target=self._work,
            args=(assignment, keeper),
            name=f"job {assignment.key.job_id}",
            daemon=True,
        )
        self._threads[assignment.key] = thread
        thread.start()
        while len(self._held) > 64:
            del self._held[next(iter(self._held))]

    def _working(self) -> tuple[AttemptKey, ...]:
        return tuple(key for key, t in list(self._threads.items()) if t.is_alive())

    def _kept_jobs(self) -> tuple[str, ...]:
        busy = {key.job_id for key in self._working()} | self._forgetting
        return tuple(j for j in self.around.state.jobs_with_sessions() if j not in busy)

    def _jobs_ended(self, job_ids: tuple[str, ...]) -> None:
        """Erase the keys of jobs that have ended for good, beside the renewing of the lease."""
        for job_id in set(job_ids) & set(self._kept_jobs()):
            self._forgetting.add(job_id)
            threading.Thread(
                target=self._forget_job, args=(job_id,), name=f"forget {job_id}", daemon=True
            ).start()

    def _forget_job(self, job_id: str) -> None:
        try:
            vault = self.around.vault(job_id)
            self._try_to_forget(job_id, vault, frozenset(self.around.state.sessions(job_id)))
        except FederationError as error:  # the crypto process is away: asked again later
            log.warning("keys not erased yet", job=job_id, why=str(error))
        finally:
            self._forgetting.discard(job_id)

    def _try_to_forget(self, job_id: str, vault: Vault | None, sessions: frozenset[str]) -> None:
        try:
            for session in sorted(sessions):
                if vault is not None:
                    vault.forget_session(session)
            self.around.state.let_go(job_id, sessions)
        except Exception as error:  # they stay noted, and are erased when the job has ended
            log.warning("keys not erased yet", job=job_id, why=type(error).__name__)

    def _stop_attempts(self, keys: tuple[AttemptKey, ...]) -> None:
        for key in keys:
            link = self._links.get(key)
            if link is not None:
                link.stop("the coordinator has ended this attempt")

    def _stop_all(self, reason: str) -> None:
        self._stop.set()
        for link in list(self._links.values()):
            link.stop(reason)
        deadline = time.monotonic() + 5.0
        for thread in list(self._threads.values()):
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self, assignment: Assignment, keeper: LeaseKeeper) -> None:
        key = assignment.key
        error = ""
        try:
            self._take_part(assignment, keeper)
        except (JobStopped, StaleAttempt) as stopped:
            log.info("stopped", job=key.job_id, attempt=key.attempt, why=str(stopped))
        except FederationError as failure:
            error = str(failure)
            # A cause of our own may name columns: it is for this silo's log alone.
            mine = failure.__cause__ if isinstance(failure.__cause__, FederationError) else failure
            log.error("failed", job=key.job_id, attempt=key.attempt, why=str(mine))
        except MemoryError:
            error = "out of memory"
            log.error("failed", job=key.job_id, attempt=key.attempt, why=error)
        except Exception as failure:
            # The text of a foreign exception may hold values: only its type leaves the silo.
            error = f"internal error of the agent: {type(failure).__name__}"
            # Nor are logs for the silo's eyes only: they often go to a collector.
            log.error(
                "failed", job=key.job_id, attempt=key.attempt, why=error, where=where(failure)
            )
        finally:
            self._links.pop(key, None)
        try:
            client = self._client()
            lease_id = keeper.lease_id
            if lease_id is not None:
                client.report(lease_id, key, error)
        except FederationError as failure:
            log.debug("outcome not reported", job=key.job_id, why=str(failure))
        finally:
            self.around.ledger.settle(key.job_id)
            self._threads.pop(key, None)

    def _take_part(self, assignment: Assignment, keeper: LeaseKeeper) -> None:
        around = self.around
        job_id = assignment.key.job_id
        digest = hashlib.sha256(assignment.spec).digest()
        job: JobParameters | None = None
        try:
            job = self._agreed_job(assignment, digest)
            dataset = around.load(job, False)
            self._check_policy(job, assignment, dataset)
        except (DataError, PolicyDeclined, SchemaMismatch, FederationError) as refusal:
            log.warning("declined", job=job_id, attempt=assignment.key.attempt, why=str(refusal))
            told = _told(job, refusal)
            self._answer(keeper, Acceptance(assignment.key, declined=told[:500]))
            return
        around.state.memory(job_id).remember("spec", digest)
        identity = around.identity()
        agreement = self._answer(
            keeper,
            Acceptance(
                assignment.key,
                schema=_shown_schema(job, around.silo, dataset.schema),
                n_samples=_shown_rows(job, dataset.n_samples),
                spec_digest=digest,
                signature=identity.sign(around.accept_message(job_id, digest)),
                certificate=identity.certificate,
            ),
        )
        around.policy.check_cohort(agreement.silos)
        schema = dataset.schema if job.vertical else agreement.schema
        try:
            test = around.load(job, True) if around.has_test else None
        except (DataError, SchemaMismatch) as unfit:
            raise DataError(_told(job, unfit)) from unfit
        if not job.vertical:
            dataset = around.recode(dataset, schema)
            test = None if test is None else around.recode(test, schema)
        link = GrpcLink(
            channel=lambda: around.channel().on_account_of(job.strategy.name),
            address=around.address,
            job_id=job_id,
            attempt=assignment.key.attempt,
            ledger=around.ledger,
            memory=around.state.memory(job_id),
            timeout_seconds=2.0 * job.step_timeout_seconds + 30.0,
        )
        self._links[assignment.key] = link
        if self._stop.is_set():
            raise JobStopped("the agent is stopping")
        log.info("taking part", job=job_id, attempt=assignment.key.attempt)
        vault = around.vault(job_id)
        timed = (
            None
            if vault is None
            else TimedVault(vault, lambda session: around.state.note_session(job_id, session))
        )
        began = time.monotonic()
        try:
            kept = job.strategy.participate(
                job.parameters,
                link,
                None if timed is None else timed.as_vault(),
                SiloStart(
                    job=job,
                    job_id=job_id,
                    attempt=assignment.key.attempt,
                    silo=around.silo,
                    silos=agreement.silos,
                    schema=schema,
                    dataset=dataset,
                    first_round=agreement.first_round,
                    test=test,
                    n_threads=around.n_threads,
                    identity=identity,
                    trainer=around.trainer,
                    ids=(around.policy.min_ids, around.policy.max_ids),
                    codec=BoxCodec(),
                ),
            )
        finally:
            if timed is not None:
                # Another attempt goes on with the job's own key, never with these.
                self._try_to_forget(job_id, vault, timed.sessions - {job_id})
        total = time.monotonic() - began
        crypto = 0.0 if timed is None else timed.seconds
        around.state.keep(
            job_id, "times.json", summary(assignment.key.attempt, total, link.times, crypto)
        )
        if kept is not None:
            for name, data in kept.files.items():
                around.state.keep(job_id, name, data)
            if not job.vertical:  # whoever uses the silo's model needs its category lists
                around.state.keep(job_id, "schema.json", schema_wire.dump(schema))
        log.info("done", job=job_id, attempt=assignment.key.attempt)

    def _agreed_job(self, assignment: Assignment, digest: bytes) -> JobParameters:
        """Decode the job; one that changed since the silo agreed to it is refused."""
        earlier = self.around.state.memory(assignment.key.job_id).recall("spec")
        if earlier is not None and earlier != digest:
            raise PolicyDeclined(
                f"job {assignment.key.job_id} is not the one that this silo agreed to: "
                "the coordinator has changed it"
            )
        job = self.around.decode(assignment.spec)
        job.parameters.validate(job)
        return job

    def _check_policy(self, job: JobParameters, assignment: Assignment, dataset: Dataset) -> None:
        rows = dict.fromkeys(assignment.silos, dataset.n_samples)
        self.around.policy.check(
            job,
            operator=assignment.operator,
            silos=assignment.silos,
            schema=dataset.schema,
            n_samples=dataset.n_samples,
            forecast=job.strategy.forecast(job.parameters, job, dataset.schema, rows),
        )

    def _answer(self, keeper: LeaseKeeper, acceptance: Acceptance) -> Agreement:
        """Send the answer until there is an agreement, across restarts of the coordinator."""
        while not self._stop.is_set():
            lease_id = keeper.wait_for_lease(1.0)
            if lease_id is None:
                continue
            client = self._client()
            try:
                agreement = client.accept(lease_id, acceptance)
            except (Unreachable, LeaseLost) as error:
                log.debug("not accepted yet", job=acceptance.key.job_id, why=str(error))
                self._stop.wait(0.3)
                continue
            if agreement is not None:
                return agreement
        raise JobStopped("the agent is stopping")


def _shown_schema(job: JobParameters, silo: Silo, schema: Schema) -> Schema:
    """Return the schema that the coordinator is told: of a vertical job none of its names.

    Nobody agrees on columns there; only the active party's task and number of classes are told.
    """
    if not job.vertical:
        return schema
    active = job.active == silo
    return Schema((), "", schema.task, schema.n_classes if active else 0)


def _told(job: JobParameters | None, refusal: FederationError) -> str:
    """Return what the coordinator is told of a refusal: of a vertical job no column's name."""
    if job is None or not job.vertical:
        return str(refusal)
    if isinstance(refusal, DataError | SchemaMismatch):
        return "its table cannot be used for this job; the log of its agent says why"
    if str(refusal).startswith("policy rule features:"):
        return "policy rule features: a column of its table may not be used"
    return str(refusal)


def _shown_rows(job: JobParameters, n_samples: int) -> int:
    """Return the row count that the coordinator is told: its size class, if that does."""
    if job.exact_rows:
        return n_samples
    return 1 << max(n_samples - 1, 0).bit_length() if n_samples else 0
