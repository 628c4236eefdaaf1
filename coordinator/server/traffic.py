"""The traffic of a job: counted as its calls end, added to the store by the runner."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import structlog

from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.metering import CallCount
from hedgerow.services.wire.job_view import SentPayloads, StepTotal

log = structlog.get_logger()

DATA_PLANE = "ExchangeService"
"""Service whose calls carry a job's payloads; the others are the control plane."""


@dataclass(frozen=True, slots=True)
class NewTraffic:
    """Traffic that is not stored yet: of the data plane, and bytes of the control plane."""

    steps: tuple[StepTotal, ...] = ()
    control_up: int = 0
    control_down: int = 0


class JobTraffic:
    """Counts what the calls of a job move."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._job_id = job_id
        self._steps: dict[tuple[str, str], StepTotal] = {}
        self._control = (0, 0)
        self._round = (0, 0)
        self._stored: NewTraffic | None = None
        self._writing = threading.Lock()
        self.storing = asyncio.Lock()
        """Held while traffic is on its way to the store, and counted nowhere else."""

    def account(self, path: str, count: CallCount) -> None:
        """Add what a finished call moved.

        Parameters
        ----------
        path : str
            ``/package.Service/Method``.
        """
        service, _, method = path.strip("/").rpartition("/")
        up, down = count.bytes_in, count.bytes_out
        if not service.endswith(DATA_PLANE):
            self._control = (self._control[0] + up, self._control[1] + down)
            return
        self._add(StepTotal(count.silo, method, 1, count.messages_in, count.messages_out, up, down))
        self._round = (self._round[0] + up, self._round[1] + down)

    def _add(self, moved: StepTotal) -> None:
        key = (moved.method, moved.silo)
        known = self._steps.get(key)
        self._steps[key] = moved if known is None else known + moved

    def take_round(self) -> tuple[int, int]:
        """Return data-plane bytes (up, down) since the last call of this method."""
        moved, self._round = self._round, (0, 0)
        return moved

    def new(self) -> NewTraffic:
        """Return what is not stored yet."""
        return NewTraffic(tuple(self._steps.values()), *self._control)

    def take(self) -> NewTraffic:
        """Return what is not stored yet, and start counting from 0."""
        moved = self.new()
        self._steps, self._control = {}, (0, 0)
        return moved

    def put_back(self, moved: NewTraffic) -> None:
        """Count again what :meth:`take` returned: it could not be stored."""
        for step in moved.steps:
            self._add(step)
        up, down = self._control
        self._control = (up + moved.control_up, down + moved.control_down)

    def _store_with(self, moved: NewTraffic) -> None:
        """Store totals with ``moved``; a second time adds nothing. Blocks."""
        with self._writing:  # a thread goes on when its call is cancelled
            if self._stored is None:
                job = self._store.job(self._job_id)
                up, down = (job.control_bytes_up, job.control_bytes_down) if job else (0, 0)
                self._stored = NewTraffic(self._store.byte_totals(self._job_id), up, down)
            totals = {(one.method, one.silo): one for one in self._stored.steps}
            for one in moved.steps:
                known = totals.get((one.method, one.silo))
                totals[one.method, one.silo] = one if known is None else known + one
            changed = [totals[one.method, one.silo] for one in moved.steps]
            up = self._stored.control_up + moved.control_up
            down = self._stored.control_down + moved.control_down
            self._store.set_traffic(self._job_id, changed, up, down)
            self._stored = NewTraffic(tuple(totals.values()), up, down)

    async def flush(self) -> None:
        """Store what is not stored yet; what the store refuses stays counted."""
        async with self.storing:
            moved = self.take()
            if moved == NewTraffic():
                return
            try:
                await asyncio.to_thread(self._store_with, moved)
            except StorageFailed:  # a call that is cancelled goes on in its thread
                self.put_back(moved)
                raise


class SentReports:
    """What silos say that they sent: a job's reports that wait together share a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: dict[str, tuple[list[SentPayloads], asyncio.Task[None]]] = {}
        self._writing = asyncio.Lock()

    async def add(self, job_id: str, sent: tuple[SentPayloads, ...]) -> None:
        """Store a report; returns once that was tried, and a call that is cancelled loses none."""
        if not sent:
            return
        if job_id not in self._new:
            self._new[job_id] = [], asyncio.create_task(self._write(job_id))
        reported, written = self._new[job_id]
        reported.extend(sent)
        await asyncio.shield(written)

    async def _write(self, job_id: str) -> None:
        async with self._writing:
            reported, _ = self._new.pop(job_id)
            try:
                await asyncio.to_thread(self._store.set_sent, job_id, reported)
            except StorageFailed as error:  # operators see that the silos have not reported
                silos = sorted({one.silo for one in reported})
                log.warning("what silos sent not stored", job=job_id, silos=silos, why=str(error))
