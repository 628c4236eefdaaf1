"""What the runs of a coordinator's jobs share."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.errors import InvalidJob, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import WarmStart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.warm_start import KnownStart, n_rounds
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.releases import check_released
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.signed_job import OpenedJob, SignedJob

STARTING = "starting.ubj"
"""File of a job: the model that it starts from, as it was when the job was created."""


def _nobody(*signed: object) -> str:
    raise SignatureInvalid("this coordinator knows no approvers")


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What every job run uses."""

    store: Store
    artefacts: Artefacts
    metrics: Metrics
    registered: Callable[[], Mapping[Silo, Registration]]
    """Silos that hold a lease, as their agents describe them."""
    allowed: Callable[[], frozenset[Silo]]
    """Silos that may register; empty where every silo of the federation may."""
    evaluation: Callable[[JobParameters, Schema, str], Dataset | None]
    """Loads a table of the coordinator, by (job, schema, name of the table); None for no name."""
    now: Callable[[], float]
    """Seconds since 1970."""
    verify: Callable[[Silo, bytes, bytes, bytes], None]
    """(silo, certificate, message, signature); raises SignatureInvalid."""
    open_job: Callable[[SignedJob, bytes], OpenedJob]
    """Checks a job that an operator has signed, by what the signature is for."""
    approver: Callable[[bytes, bytes, bytes, str], str] = _nobody
    """(certificate, message, signature, whose it should be), to the name of the person who signed;
    raises SignatureInvalid."""
    without_crypto: Callable[[], frozenset[Silo]] = frozenset
    """Silos that hold a lease and whose crypto process does not answer, as they say."""
    began: float = 0.0
    """When this coordinator started, seconds since 1970; agents need seconds to come."""
    max_unfinished_jobs: int = 0
    """Of one operator, or silo whose scripts sign them; 0 for any number."""
    scripts: bool = True
    """Whether jobs run that their silos have signed."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Files of other coordinators' models, by name."""
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def check_scripts(self) -> None:
        """Raise InvalidJob where only operators' jobs run."""
        if not self.scripts:
            raise InvalidJob("this coordinator runs no jobs of scripts: its scripts setting is off")

    def keep_start(self, new: OpenedJob, job: JobParameters) -> None:
        """Keep a new job's own copy of the model that it starts from, if any; blocks.

        Of the coordinator's jobs, only the operator's own will do.

        Raises
        ------
        InvalidJob
            There is no such model here, or it is another one than the job names.
        NotReleased
            It is held back until its audit is signed.
        StorageFailed
            It cannot be read or kept now.
        """
        job_id = new.statement.job_id
        if job.warm_start is not None and self.store.job(job_id) is None:
            self.artefacts.write(job_id, STARTING, self._chosen(job, job.warm_start, new.operator))

    def starting_model(self, job_id: str, job: JobParameters) -> bytes:
        """Return a job's own copy of the model that it starts from, empty without one; blocks.

        Raises
        ------
        Damaged
            It is not the model that the job names.
        StorageFailed
            It cannot be read now.
        """
        if job.warm_start is None:
            return b""
        return self.artefacts.read(job_id, STARTING, job.warm_start.model)

    async def known_start(self, job: JobParameters, operator: str) -> KnownStart | None:
        """Return what is known of the model that an operator's job would start from.

        Silos that were in the run are taken to have kept it. Only one model is read at a time,
        of calls that are cancelled, too: many plans hold one thread and the memory of one model.

        Raises
        ------
        InvalidJob, StorageFailed
            As for :meth:`keep_start`.
        """
        if job.warm_start is None:
            return None
        await self._reading.acquire()
        read = asyncio.to_thread(self._known_start, job, job.warm_start, operator)
        reading = asyncio.create_task(read)  # its thread holds it, and reads on without a caller
        reading.add_done_callback(self._has_read)
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Task[KnownStart]) -> None:
        self._reading.release()
        if not reading.cancelled():
            reading.exception()  # its caller may be gone and never ask for it

    def _known_start(self, job: JobParameters, told: WarmStart, operator: str) -> KnownStart:
        raw = self._chosen(job, told, operator)
        record = None if told.run in self.models else self.store.job(told.run)
        kept = record is not None and job_wire.decode(record.spec).keep_model
        silos = self.store.job_silos(told.run) if kept else ()
        return KnownStart(len(raw), frozenset(silo.name for silo in silos))

    def _chosen(self, job: JobParameters, told: WarmStart, operator: str) -> bytes:
        file = job.strategy.starts_with
        record = None if told.run in self.models else self.store.job(told.run)
        if told.run in self.models:
            try:
                raw = Path(self.models[told.run]).read_bytes()
            except OSError as error:
                why = error.strerror or type(error).__name__
                raise InvalidJob(f"[warm_start] run: {told.run} cannot be read: {why}") from error
        elif record is None or file not in record.artefacts or operator != record.operator:
            raise InvalidJob(
                f"[warm_start] run: expected a job of yours with a {file}, or one of the "
                f"coordinator's [models], received {told.run}"
            )
        else:
            check_released(self.artefacts, record, operator)
            raw = self.artefacts.read(told.run, file, record.artefacts[file])
        found = hashlib.sha256(raw).hexdigest()
        if found != told.model:
            raise InvalidJob(
                f"[warm_start] model: {file} of {told.run} has SHA-256 {found[:12]}… here, "
                f"the job names {told.model[:12]}…"
            )
        if told.rounds_before:
            had = n_rounds(load(raw, sender=f"[warm_start] run: {told.run}"))
            if told.rounds_before > had:
                raise InvalidJob(
                    f"[warm_start] rounds_before: expected at most {had}, which the model of "
                    f"{told.run} has, received {told.rounds_before}"
                )
        return raw
