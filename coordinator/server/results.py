"""Results on their way to the silos that have taken part, and what these report of them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from weakref import WeakValueDictionary

import structlog

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.intervals import COVERAGE
from hedgerow.boosting.ports import JobParameters
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.store import JobRecord
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.job_view import OWN_TESTS, FinishedRound, Score, SiloState
from hedgerow.services.wire.provenance import MOST_BYTES, lines, stated_by
from hedgerow.services.wire.results import JobResult, Outcome, ResultSignature, packed

log = structlog.get_logger()

_SIGNED = "signed/"
MOST_SIGNED_BYTES = 65_536
"""Longest signature and certificate of a result that are kept."""


class Results:
    """Results for the silos that have taken part; those that ask at a time share one copy.

    One task reads and compresses it; those that wait for it hold no thread.
    """

    def __init__(self, environment: JobEnvironment) -> None:
        self._environment = environment
        self._shared: WeakValueDictionary[Hashable, JobResult] = WeakValueDictionary()
        self._making: dict[Hashable, asyncio.Task[JobResult]] = {}

    async def of(self, silo: Silo, job_id: str) -> JobResult | None:
        """Return a job's result for a silo; None where there is none yet.

        Raises
        ------
        NotFound
            There is no such job for this silo, or it has ended without a result.
        """
        record = await asyncio.to_thread(self._record, silo, job_id)
        if not record.artefacts:
            return None
        key = job_id, record.ended, tuple(record.artefacts.items())
        found = self._shared.get(key)
        if found is None:
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = asyncio.create_task(self._make(key, record))
            found = await asyncio.shield(making)
        return found

    def _record(self, silo: Silo, job_id: str) -> JobRecord:
        store = self._environment.store
        record, state = store.job(job_id), store.silo_state(job_id, silo)
        if record is None or state in (None, SiloState.DECLINED) or _vertical(record.spec):
            raise NotFound(f"silo {silo} has taken part in no horizontal job {job_id}")
        if record.ended and not record.artefacts:
            raise NotFound(f"job {job_id} has ended without a result")
        return record

    async def _make(self, key: Hashable, record: JobRecord) -> JobResult:
        try:
            found = self._shared[key] = await asyncio.to_thread(self._read, record)
            return found
        finally:
            del self._making[key]

    def _read(self, record: JobRecord) -> JobResult:
        artefacts, job_id = self._environment.artefacts, record.job_id
        files = {n: artefacts.read(job_id, n, d) for n, d in record.artefacts.items()}
        words = tuple(replace(one, provenance=b"") for one in _signed(artefacts, job_id))
        return JobResult(files, words, packed(files))


@lru_cache(maxsize=4)
def _vertical(spec: bytes) -> bool:
    return job_wire.decode(spec).vertical


def keep_signatures(artefacts: Artefacts, job_id: str, outcomes: Mapping[Silo, Outcome]) -> None:
    """Store what silos have signed of a result; each silo checks the others' words itself."""
    for silo, outcome in outcomes.items():
        own = outcome.result
        if own is not None and len(own.signature) + len(own.certificate) <= MOST_SIGNED_BYTES:
            parts = [silo, own.digest.hex(), own.signature.hex(), own.certificate.hex()]
            if _is_of(silo, own.provenance):
                parts.append(own.provenance.hex())
            artefacts.write_checked(job_id, f"{_SIGNED}{silo}", json.dumps(parts).encode())


def _is_of(silo: Silo, line: bytes) -> bool:
    """Whether a silo states something of itself; who verifies a run names who has not."""
    try:
        return len(line) <= MOST_BYTES and stated_by(line) == silo
    except DataError:
        if line:
            log.warning("statement of a run not kept", silo=silo, why="it is none of the silo's")
        return False


def _signed(artefacts: Artefacts, job_id: str) -> tuple[ResultSignature, ...]:
    found = []
    for name in artefacts.list(job_id):
        if name.startswith(_SIGNED):
            silo, *parts = json.loads(artefacts.read_checked(job_id, name))
            found.append(ResultSignature(silo, *map(bytes.fromhex, parts)))
    return tuple(found)


def provenance(artefacts: Artefacts, job_id: str) -> bytes:
    """Return what silos have stated of a job's result, an envelope a line."""
    return lines([one.provenance for one in _signed(artefacts, job_id) if one.provenance])


def with_silo_scores(
    job: JobParameters, last: FinishedRound, outcomes: Mapping[Silo, Outcome]
) -> FinishedRound:
    """Return the last round with the model's scores on the test rows of each silo that sent some.

    Their data set is ``test@SILO``; of a silo's numbers, those of the job's metrics are taken.
    """
    names = [*(job.metrics or metrics.defaults(job.task))]
    names += [COVERAGE] * bool(getattr(job.parameters, "interval", 0.0))
    own = tuple(
        Score(OWN_TESTS + silo, name, outcome.scores[name])
        for silo, outcome in sorted(outcomes.items())
        for name in sorted(names)
        if math.isfinite(outcome.scores.get(name, math.nan))
    )
    kept = tuple(score for score in last.scores if not score.data.startswith(OWN_TESTS))
    return replace(last, scores=kept + own)
