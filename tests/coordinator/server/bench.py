"""A coordinator's own parts with a database file and no network."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import SUMS_VERSION
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.runner import JobRun
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.acceptance import Acceptance
from hedgerow.services.wire.signed_job import JobStatement, OpenedJob, SignedJob

REGISTRATION = Registration("i", "0.1.0", (), 0)
SCHEMA = Schema((Feature("x"),), "y", Task.BINARY, 2)


class FlakyStore(Store):
    """A store whose database can be away; ``refused`` counts what it could not write."""

    away = False
    refused = 0

    def _writing(self, doing: str) -> Any:
        if self.away:
            self.refused += 1
            raise StorageFailed(f"{doing} failed: connection refused")
        return super()._writing(doing)


class Bench:
    """What runs of one coordinator need; ``alive`` are the silos that hold a lease."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.store = store or Store(f"sqlite:///{folder}/state.db")
        self.alive: set[str] = set()
        self.allowed: set[str] = set()
        self.environment = JobEnvironment(
            store=self.store,
            artefacts=Artefacts(str(folder / "artefacts")),
            metrics=Metrics(),
            registered=lambda: {Silo(silo): REGISTRATION for silo in sorted(self.alive)},
            allowed=lambda: frozenset(map(Silo, self.allowed)),
            evaluation=lambda job, schema, name: None,
            now=time.time,
            verify=lambda silo, certificate, message, signature: None,
            open_job=lambda signed, label: opened(),
        )

    def run(self, *silos: str, min_silos: int = 2, patience: float = 120.0) -> JobRun:
        """Return a job that waits for ``silos``, or for whoever is there."""
        spec = job_of(*silos, min_silos=min_silos, patience=patience)
        self.store.create_job(opened(spec=spec), "job", 1.0)
        record = self.store.job("job-0001")
        assert record is not None
        return JobRun(record, job_wire.decode(spec), self.environment)


def opened(
    job_id: str = "job-0001", *, spec: bytes = b"", operator: str = "oscar", not_after: float = 2e9
) -> OpenedJob:
    """Return a job as if its operator's signature had been checked; eight letters name it."""
    statement = JobStatement("test", base64.urlsafe_b64decode(job_id), spec, not_after, 1)
    return OpenedJob(SignedJob(statement.serialise(), b"", b""), statement, operator)


def job_of(*silos: str, min_silos: int = 2, patience: float = 120.0) -> bytes:
    """Return a serialised bagging job of one round."""
    return job_file.parse(
        f"""
        strategy = "bagging"
        seed = 1
        label = "y"
        min_silos = {min_silos}
        silos = {list(silos)}
        start_timeout_seconds = {patience}
        [bagging]
        rounds = 1
        [booster]
        max_depth = 2
        """
    )


def acceptance(run: JobRun, **changes: Any) -> Acceptance:
    """Return a silo's answer to a job."""
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "n_samples": 5,
        "job_digest": run._record.signed.digest,
        "signature": b"",
        "certificate": b"",
        "sums_version": SUMS_VERSION,
        **changes,
    }
    return Acceptance(**values)


async def until(reached: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
