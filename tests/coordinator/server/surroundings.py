"""A coordinator's parts as they are, with a database file and no network."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.boosting.dataset import Feature, Schema, Task, fits, merge
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.database import DatabaseAway
from hedgerow.coordinator.server.runner import JobRun, Surroundings
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Acceptance, AttemptKey
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire import schema as schema_wire

SPEC = b"spec"
SCHEMA = Schema((Feature("x"),), "y", Task.BINARY, 2)


class FlakyStore(Store):
    """A store whose database can be away."""

    away = False

    def _writing(self, doing: str) -> Any:
        if self.away:
            raise DatabaseAway(f"{doing} failed: connection refused")
        return super()._writing(doing)


class Bench:
    """What runs of one coordinator need; ``alive`` are the silos that hold a lease."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.store = store or Store(f"sqlite:///{folder}/state.db")
        self.alive: set[str] = set()
        self.around = Surroundings(
            store=self.store,
            artefacts=Artefacts(str(folder / "artefacts")),
            metrics=Metrics(),
            alive=lambda: {Silo(silo): () for silo in sorted(self.alive)},
            columns=lambda: {},
            evaluation=lambda job, schema, name: None,
            test_data=lambda spec: "",
            merge=merge,
            fits=fits,
            dump_schema=schema_wire.dump,
            load_schema=schema_wire.load,
            now=time.time,
            verify=lambda silo, certificate, message, signature: None,
        )

    def run(self, *silos: str, min_silos: int = 2, patience: float = 20.0) -> JobRun:
        """Return a job that waits for ``silos``, or for whoever is there."""
        job = JobParameters(
            name="job",
            parameters=Bagging(rounds=1),
            task=Task.BINARY,
            seed=1,
            min_silos=min_silos,
            silos=silos,
            start_timeout_seconds=patience,
            booster=Booster(max_depth=2),
        )
        self.store.create_job("job-1", "job", "oscar", SPEC, 1.0, None)
        record = self.store.job("job-1")
        assert record is not None
        return JobRun(record, job, self.around)


def acceptance(attempt: int = 1, **changes: Any) -> Acceptance:
    """Return a silo's answer to the job of :class:`Bench`."""
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "n_samples": 5,
        "spec_digest": hashlib.sha256(SPEC).digest(),
        **changes,
    }
    return Acceptance(AttemptKey("job-1", attempt), **values)


async def until(reached: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
