"""Jobs as operators see them: what the store has, with traffic that it has not yet."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.boosting import warm_start
from hedgerow.coordinator.server.store import JobRecord, Store
from hedgerow.coordinator.server.traffic import NewTraffic
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobView,
    SentPayloads,
    StepTotal,
)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job in the store."""

    record: JobRecord
    silos: tuple[JobSilo, ...]
    totals: tuple[StepTotal, ...] = ()
    rounds: tuple[FinishedRound, ...] = ()
    sent: tuple[SentPayloads, ...] = ()

    def after(self, earlier: StoredJob | None, since: int) -> StoredJob | None:
        """Return it with the rounds before ``since`` of an earlier look; None without any."""
        if since == 0 or earlier is None:
            return None if since else self
        return replace(
            self, rounds=tuple(one for one in earlier.rounds if one.round < since) + self.rounds
        )

    def part(self, *, brief: bool, since: int) -> StoredJob:
        """Return what :func:`stored_job` returns, of what was read before."""
        if brief:
            return StoredJob(self.record, self.silos)
        return replace(self, rounds=tuple(one for one in self.rounds if one.round >= since))

    def view(self, moved: NewTraffic) -> JobView:
        """Return the job as operators see it, with traffic that is not stored yet."""
        record = self.record
        steps: dict[tuple[str, str], StepTotal] = {}
        for total in (*self.totals, *moved.steps):
            key = (total.method, total.silo)
            steps[key] = steps[key] + total if key in steps else total
        return JobView(
            job_id=record.job_id,
            spec=record.spec,
            state=record.state,
            detail=record.detail,
            attempt=record.attempt,
            silos=self.silos,
            rounds=self.rounds,
            steps=tuple(steps.values()),
            create_time=record.created,
            end_time=record.ended or None,
            operator=record.operator,
            best_round=record.best_round,
            artefacts=tuple(record.artefacts),
            model=record.model,
            reveals=warm_start.reveals(job_wire.decode(record.spec)),
            control_bytes_up=record.control_bytes_up + moved.control_up,
            control_bytes_down=record.control_bytes_down + moved.control_down,
            job_digest=record.signed.digest.hex(),
            sent=self.sent,
            approved=record.signed.approved,
        )


def stored_job(store: Store, job_id: str, *, brief: bool, since: int) -> StoredJob | None:
    """Return a job as the store has it; None where it has none. Blocks.

    Parameters
    ----------
    brief : bool
        Whether without totals, rounds and reports.
    since : int
        Number of the first round to return.
    """
    record = store.job(job_id)
    if record is None:
        return None
    silos = store.job_silos(job_id)
    if brief:
        return StoredJob(record, silos)
    totals, rounds = store.byte_totals(job_id), store.rounds(job_id, since)
    return StoredJob(record, silos, totals, rounds, store.sent(job_id))
