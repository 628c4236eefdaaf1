"""The jobs that a silo has accepted: one nonce is one job, regardless of the coordinator.

Each is kept, over restarts, until its operator's statement expires: from then on it is refused by
that. A job that has ended is not begun again. The silo learns of the end from the coordinator, or
from its own half, which a coordinator that lost the last round may ask for again: not more often
than the job's own ``max_attempts``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.client_agent.records import Records, writing_state
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.signed_job import OpenedJob


@dataclass(frozen=True, slots=True)
class _Accepted:
    """What is kept of a job; ``done`` counts how often this silo's half has ended well."""

    digest: str
    not_after: float
    done: int = 0
    ended: bool = False


_RECORD, _NAME = TypeAdapter(dict[str, _Accepted]), "jobs"


class ReplayGuard:
    """The accepted jobs of a silo, in a durable record.

    Raises
    ------
    RecordDamaged
        What is there may be older than what was stored last: a job could be repeated unseen.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._jobs = _RECORD.validate_json(records.read(_NAME) or b"{}", strict=True)

    def check(self, job_id: str, job: OpenedJob) -> None:
        """Check that an assignment is a new job, or another attempt of one that has not ended.

        Parameters
        ----------
        job_id : str
            As the coordinator names it.

        Raises
        ------
        InvalidJob
        """
        if job_id != job.statement.job_id:
            raise InvalidJob(
                f"operator {job.operator} signed job {job.statement.job_id}; the coordinator "
                f"assigned it as {job_id}"
            )
        kept = self._jobs.get(job_id)
        if kept is None:
            return
        if kept.digest != job.signed.digest.hex():
            raise InvalidJob(
                f"job {job_id} is not the one that this silo accepted under this nonce: it has "
                "been changed"
            )
        if kept.ended or kept.done > job_wire.max_attempts(job.statement.spec):
            raise InvalidJob(f"job {job_id} has ended; it is not repeated")

    def accept(self, job: OpenedJob, now: float) -> None:
        """Keep a job durably, and forget those that have expired (``now``: seconds since 1970)."""
        statement = job.statement
        with self._lock:
            self._jobs = {k: kept for k, kept in self._jobs.items() if kept.not_after >= now}
            new = _Accepted(job.signed.digest.hex(), statement.not_after)
            self._jobs.setdefault(statement.job_id, new)
            self._store()

    def done(self, job_id: str) -> None:
        """Note that this silo's half of a job has ended well."""
        with self._lock:
            if job_id in self._jobs:
                kept = self._jobs[job_id]
                self._jobs[job_id] = replace(kept, done=kept.done + 1)
                self._store()

    def end(self, job_ids: Collection[str]) -> None:
        """Note that jobs have ended."""
        with self._lock:
            known = [job_id for job_id in job_ids if job_id in self._jobs]
            for job_id in known:
                self._jobs[job_id] = replace(self._jobs[job_id], ended=True)
            if known:
                self._store()

    @property
    def open(self) -> frozenset[str]:
        """Jobs that have not ended as far as the silo knows."""
        return frozenset(job_id for job_id, kept in self._jobs.items() if not kept.ended)

    def _store(self) -> None:
        with writing_state():
            self._records.write(_NAME, _RECORD.dump_json(self._jobs))


def check_silos(job: JobParameters, silos: tuple[Silo, ...], own: Silo) -> None:
    """Check the silos of an attempt against the job that the operator signed.

    Raises
    ------
    InvalidJob
        This silo is not among them, they are too few, or the job does not allow one of them.
    """
    strangers = sorted(set(silos) - set(job.silos)) if job.silos else []
    if strangers:
        raise InvalidJob(f"the coordinator added silo {strangers[0]}, which the job does not allow")
    if own not in silos:
        raise InvalidJob(f"silo {own} is not among the silos that the coordinator named")
    if len(set(silos)) < job.min_silos:
        raise InvalidJob(
            f"the coordinator named {len(set(silos))} silos, the job needs {job.min_silos}"
        )
