"""``memory_limit``: what jobs take of the agent's memory, known before they are accepted.

What a half must hold is counted by its strategy's formula, and is declined where it is over the
limit. Bins take the room that is left; where two copies of them have none, labels and weights go
into files of the state's folder ``scratch``, and then bins. Those files have no name from the
moment they are made, so that nobody else opens them and nothing of them is left when the job ends,
however it ends.
"""

from __future__ import annotations

import gc
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import LimitReached
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.storage import IN_MEMORY, MemoryNeed, Storage
from hedgerow.client_agent.records import writing_state

if TYPE_CHECKING:
    from hedgerow.client_agent.dask_cluster import DaskCluster

PROCESS_BYTES = 400_000_000
"""What an agent's process takes beside its rows, with the kernels of a job compiled."""
_READ_COPIES = 3
"""A file that is read whole is in memory as bytes, as an Arrow table and as float32."""
_FILE_COPIES = 2
"""Bins are in files twice while they are turned from columns to rows."""
_TEST_VALUE_BYTES, _TEST_ROW_BYTES = 8, 32


class MappedFiles:
    """Arrays in files without a name, readable only by this process.

    Parameters
    ----------
    folder : Path
        Made when the first file is, mode 0700.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array whose file is gone with it.

        Raises
        ------
        StateUnwritable
            The disk has no room; it is asked for all of it now, for a write to a mapped page could
            only end the process.
        """
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not n_bytes:
            return np.empty(shape, dtype)
        with writing_state():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, n_bytes)
                else:
                    file.truncate(n_bytes)
                pages = mmap.mmap(file.fileno(), n_bytes)
        return np.frombuffer(pages, dtype).reshape(shape)

    @property
    def free_bytes(self) -> int:
        """Bytes that the disk has left."""
        there = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        return shutil.disk_usage(there).free


@dataclass(frozen=True, slots=True)
class _Part:
    """What a job takes: bytes, the room for bins among them, and whether labels are mapped."""

    n_bytes: int
    room: int
    maps_labels: bool


class MemoryLimit:
    """Divides the agent's memory among its jobs.

    Parameters
    ----------
    limit : int or None
        Bytes of the whole process; None for no limit.
    n_scored : callable
        From the training rows of a job to the silo's rows that only score models.
    cluster : DaskCluster or None
        Where bins live instead of in this process.
    """

    def __init__(
        self,
        limit: int | None,
        files: MappedFiles,
        n_scored: Callable[[int], int] = lambda _: 0,
        n_threads: int = 1,
        cluster: DaskCluster | None = None,
    ) -> None:
        self._cluster = cluster
        self._limit = limit
        self._files = files
        self._n_scored = n_scored
        self._n_threads = n_threads
        self._lock = threading.Lock()
        self._taken: dict[tuple[str, int], _Part] = {}

    @property
    def most_read(self) -> int | None:
        """Bytes of the largest file that may be read whole; None for any."""
        return None if self._limit is None else (self._limit - PROCESS_BYTES) // _READ_COPIES

    def check(self, job: JobParameters, dataset: Dataset) -> None:
        """Check that a job fits while no other runs.

        Raises
        ------
        LimitReached
            With the bytes that a table of its size class takes, and the limit.
        FederationError
            The cluster that is to have its bins cannot.
        """
        if self._limit is not None:
            self._part(job, dataset, 0)
        if self._cluster is not None:
            sums_ciphertexts = job.vertical and dataset.y is None
            if sums_ciphertexts or self._need(job, dataset, 1).bins:
                self._cluster.check()

    def take(self, job_id: str, attempt: int, job: JobParameters, dataset: Dataset) -> Storage:
        """Keep memory for an attempt until it is given back; return where its bins live.

        Earlier attempts at the same job do not count: they are about to end.

        Raises
        ------
        LimitReached
            It does not fit beside the jobs that run.
        """
        elsewhere = None
        if self._cluster is not None:
            from hedgerow.client_agent.dask_tables import DaskTable

            elsewhere = partial(DaskTable, self._cluster)
        if self._limit is None:
            return replace(IN_MEMORY, elsewhere=elsewhere) if elsewhere else IN_MEMORY
        with self._lock:
            others = sum(part.n_bytes for (of, _), part in self._taken.items() if of != job_id)
            part = self._taken[job_id, attempt] = self._part(job, dataset, others)
        return Storage(part.room, self._files.array, elsewhere, part.maps_labels)

    def give_back(self, job_id: str, attempt: int) -> None:
        """End what an attempt has taken, if anything."""
        with self._lock:
            self._taken.pop((job_id, attempt), None)

    def sweep(self) -> None:
        """Free what cycles of ended attempts hold: an agent without work would keep it for long."""
        if self._limit is not None:
            gc.collect()

    def _part(self, job: JobParameters, dataset: Dataset, others: int) -> _Part:
        assert self._limit is not None
        need = self._need(job, dataset, dataset.n_samples)
        left = self._limit - PROCESS_BYTES - others
        in_files = need.labels if left - need.held < 2 * need.bins else 0
        held = need.held - in_files
        room = min(left - held, 2 * _FILE_COPIES * need.bins)
        if room < 0:
            # As if its table were the largest of its size class: the figures tell nothing else.
            most = self._need(job, dataset, 1 << max(dataset.n_samples - 1, 0).bit_length())
            beside = f" beside {_gigabytes(others)} of other jobs" if others else ""
            least = _gigabytes(PROCESS_BYTES + most.held - most.labels)
            raise LimitReached(
                f"memory_limit: {job.strategy.name} takes up to {least} for a table of this silo's "
                f"size class{beside}, at most {_gigabytes(self._limit)} may be taken"
            )
        mapped = _FILE_COPIES * need.bins if room < 2 * need.bins else 0
        if mapped + in_files > self._files.free_bytes:
            most = self._need(job, dataset, 1 << max(dataset.n_samples - 1, 0).bit_length())
            raise LimitReached(
                "memory_limit: bins and labels need files of up to "
                f"{_gigabytes(_FILE_COPIES * most.bins + most.labels)} for a table of this silo's "
                "size class, and the disk of its state folder has less room"
            )
        return _Part(held + room, room, in_files > 0)

    def _need(self, job: JobParameters, dataset: Dataset, n_rows: int) -> MemoryNeed:
        schema, n_scored = dataset.schema, self._n_scored(n_rows)
        threads, stored = self._n_threads, dataset.stored
        need = job.strategy.memory(job.parameters, job, schema, n_rows, threads, stored)
        test = n_scored * (_TEST_VALUE_BYTES * schema.n_features + _TEST_ROW_BYTES)
        return replace(need, held=need.held + test)


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
