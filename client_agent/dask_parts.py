"""Parts of a silo's rows on the workers of its Dask cluster, sent again where a worker dies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent import dask_cluster
from hedgerow.client_agent.dask_cluster import DaskCluster

if TYPE_CHECKING:
    import distributed

MOST_TRIES = 5
"""How often rows are sent to workers for one request before the job fails."""


class RowParts(ABC):
    """Rows of which each worker has a part.

    Parameters
    ----------
    n_parts : int or None
        How many parts the rows are sent in; None for one a worker.

    Raises
    ------
    FederationError
        The cluster has no workers, or loses them again and again.
    """

    def __init__(self, cluster: DaskCluster, n_rows: int, n_parts: int | None = None) -> None:
        self._cluster = cluster
        n_parts = n_parts or len(cluster.workers())
        edges = np.linspace(0, n_rows, n_parts + 1).astype(np.int64)
        self.spans = [slice(int(a), int(b)) for a, b in pairwise(edges) if a < b]
        self._client: distributed.Client | None = None
        self._sent: dict[int, _Sent] = {}

    @abstractmethod
    def bound(
        self, client: distributed.Client, workers: Mapping[str, int], chosen: Mapping[int, str]
    ) -> dict[int, distributed.Future]:
        """Send parts of the rows to the workers chosen for them; return what they have made of it.

        Parameters
        ----------
        workers : Mapping
            Number of threads by address.
        chosen : Mapping
            Address of the worker by number of the part.
        """

    def each(
        self,
        operation: Callable[..., Any],
        given: Callable[[int], tuple[object, ...]] = lambda _: (),
        parts: Sequence[int] | dict[int, slice] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield what an operation returns of each part of the rows, in any order.

        Parameters
        ----------
        operation : callable
            Takes a worker's part and what is given; the same result for the same arguments.
        given : callable
            From a part's number to the other arguments, with what :meth:`send` has returned.
        parts : collection of int or None
            Numbers of the parts; None for all.
        """
        from distributed import CancelledError, KilledWorker

        left = sorted(range(len(self.spans)) if parts is None else parts)
        for _ in range(MOST_TRIES):
            asked: list[tuple[int, distributed.Future]] = []
            with suppress(OSError):  # a worker dies while something is sent to it
                client = self._place(left)
                for p in left:
                    worker, part = self._sent[p]
                    own = self._given(given, p)
                    asked.append((p, submit(client, worker, operation, part, *own)))
            for p, future in asked:
                try:
                    result = self._result(future)
                except (OSError, CancelledError, KilledWorker):
                    self._sent.pop(p, None)
                    continue
                left.remove(p)
                yield p, result
            if not left:
                return
        raise FederationError(
            f"the Dask cluster has lost workers {MOST_TRIES} times while they worked on one step"
        )

    def _given(self, given: Callable[[int], tuple[object, ...]], p: int) -> tuple[object, ...]:
        try:
            return given(p)
        except OSError:
            self._sent.pop(p, None)
            raise

    def send(self, p: int, value: object) -> distributed.Future:
        """Return a value on the worker that has a part of the rows."""
        assert self._client is not None
        return scatter(self._client, value, self._sent[p].worker)

    def home(self, p: int) -> object:
        """Return what is the same while a part of the rows is on the same worker."""
        return self._sent[p]

    def _place(self, parts: Sequence[int]) -> distributed.Client:
        """Send those of some parts that no worker has to the workers with the fewest rows."""
        client = self._cluster.client()
        if client is not self._client:
            self._client = client
            self._sent.clear()
        lacking = [p for p in parts if p not in self._sent]
        if not lacking:
            return client
        workers = self._cluster.workers()
        homes = [sent.worker for sent in self._sent.values()]
        chosen: dict[int, str] = {}
        for p in lacking:
            chosen[p] = min(workers, key=homes.count)
            homes.append(chosen[p])
        for p, part in self.bound(client, workers, chosen).items():
            self._sent[p] = _Sent(chosen[p], part)
        return client

    def _result(self, future: distributed.Future) -> Any:
        while True:
            try:
                return future.result(timeout=dask_cluster.CONNECT_SECONDS)
            except TimeoutError:
                self._cluster.workers()  # a task waits without end where there are none


class _Sent(NamedTuple):
    """A worker's address and the rows there."""

    worker: str
    part: distributed.Future


def submit(
    client: distributed.Client, worker: str, operation: Callable[..., Any], *given: object
) -> distributed.Future:
    """Have a worker do something; another one where that is gone, for a task would wait for it."""
    return client.submit(operation, *given, pure=False, workers=[worker], allow_other_workers=True)


def scatter(client: distributed.Client, value: object, worker: str) -> distributed.Future:
    """Return a value on a worker; raises OSError where that is gone."""
    try:
        (future,) = client.scatter([value], workers=[worker], hash=False)
    except KeyError:
        raise OSError("the worker is gone") from None
    return future
