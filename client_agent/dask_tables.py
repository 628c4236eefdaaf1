"""A silo's rows on its Dask cluster: workers bin, divide and sum them, the agent adds integers.

A worker has the bins of some rows; labels, margins and whatever is drawn stay with the agent. Each
request carries all splits of the round so far, and a worker applies those that it has not applied
yet. So nothing follows from what a worker remembers: rows whose worker has died are sent to another
one, which divides them anew, and integers have the same sum in whatever parts they are added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Dataset
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.histogram import Layout
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.table import (
    DividedTable,
    Integers,
    Table,
    TreeIntegers,
    TreeValues,
)
from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent import dask_cluster
from hedgerow.client_agent.dask_cluster import DaskCluster

if TYPE_CHECKING:
    import distributed

MOST_TRIES = 5
"""How often rows are sent to workers for one request before the job fails."""
_BLOCK_BYTES = 1 << 26
"""Values that are read and sent at a time; one column where that is larger."""


class DaskTable:
    """The :class:`~hedgerow.boosting.engine.table.Rows` of a table on a cluster.

    Parameters
    ----------
    cluster : DaskCluster
    dataset : Dataset
        Its columns are read again where a worker dies.
    n_parts : int or None
        How many parts the rows are sent in; None for one a worker.

    Raises
    ------
    FederationError
        The cluster has no workers, or loses them again and again.
    """

    def __init__(
        self,
        cluster: DaskCluster,
        dataset: Dataset,
        cuts: Cuts,
        base_margin: float,
        n_parts: int | None = None,
    ) -> None:
        self.y, self.weight = dataset.labels, dataset.weight
        shape = dataset.n_samples, dataset.schema.n_outputs
        self.margins = np.full(shape, base_margin, np.float32)
        self._cluster = cluster
        self._columns = dataset.columns
        self._cuts = cuts
        n_parts = n_parts or len(cluster.workers())
        edges = np.linspace(0, dataset.n_samples, n_parts + 1).astype(np.int64)
        self.spans = [slice(int(a), int(b)) for a, b in pairwise(edges) if a < b]
        self._client: distributed.Client | None = None
        self._sent: dict[int, _Sent] = {}
        self.missing = np.any([own for _, own in self.each(_missing)], axis=0)

    def values(self, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
        """Return a number in the bin of each value."""
        out = np.empty((len(range(*rows.indices(self.margins.shape[0]))), cuts.n_features), "f4")
        first, stop = rows.start, rows.start + out.shape[0]
        inside = {
            p: slice(max(first, span.start), min(stop, span.stop))
            for p, span in enumerate(self.spans)
            if span.start < stop and first < span.stop
        }

        def given(p: int) -> tuple[object, ...]:
            at = self.spans[p].start
            return cuts, slice(inside[p].start - at, inside[p].stop - at)

        for p, own in self.each(_values, given, inside):
            out[inside[p].start - first : inside[p].stop - first] = own
        return out

    def divide(self, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]) -> DaskDivision:
        """Return the sampled rows in the roots of a round's trees."""
        return DaskDivision(self, sample, trees)

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add leaf values of grown trees to the margins of all rows."""
        for p, nodes in self.each(_nodes_reached, lambda _: ([tree for tree, _ in trees],)):
            margins = self.margins[self.spans[p]]
            for own, (tree, groups) in zip(nodes, trees, strict=True):
                for c, group in enumerate(groups):
                    margins[:, group] += tree.value[own, c]

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
            Takes a :class:`_Part` and what is given; the same result for the same arguments.
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
                    asked.append((p, _submit(client, worker, operation, part, *own)))
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
        return _scatter(self._client, value, self._sent[p].worker)

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
        blocks: dict[int, list[distributed.Future]] = {p: [] for p in lacking}
        for block in _blocks(self._columns):
            for p in lacking:
                own = np.ascontiguousarray(block[:, self.spans[p]])
                blocks[p].append(_scatter(client, own, chosen[p]))
        for p, worker in chosen.items():
            bound = _submit(client, worker, _bin, self._cuts, workers[worker], blocks[p])
            self._sent[p] = _Sent(worker, bound)
        return client

    def _result(self, future: distributed.Future) -> Any:
        while True:
            try:
                return future.result(timeout=dask_cluster.CONNECT_SECONDS)
            except TimeoutError:
                self._cluster.workers()  # a task waits for good where there are none


class _Sent(NamedTuple):
    """A worker's address and the rows there."""

    worker: str
    part: distributed.Future


class DaskDivision:
    """A :class:`~hedgerow.boosting.engine.table.Division` of the rows on a cluster."""

    def __init__(
        self, table: DaskTable, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]
    ) -> None:
        self._table = table
        self._sample = sample
        self._trees = trees
        self._splits: list[Sequence[Splits]] = []
        self._sent: dict[int, tuple[object, distributed.Future]] = {}

    def sums(self, requests: Sequence[Sequence[int]], *, totals: bool) -> Integers:
        """Return the histograms of the requested nodes."""
        return self._added(_sums, requests, totals)

    def leaf_sums(self, leaves: Sequence[Sequence[int]]) -> Integers:
        """Return the lossless sums of each tree's leaves."""
        return self._added(_leaf_sums, leaves)

    def split(self, splits: Sequence[Splits]) -> None:
        """Have workers move each tree's rows when they are next asked."""
        self._splits.append(splits)

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add the leaf values of the grown trees to all rows."""
        self._table.add(trees)

    def _added(self, operation: Callable[..., Integers], *given: object) -> Integers:
        total: Integers | None = None
        for _, own in self._table.each(operation, lambda p: (self._share(p), self._splits, *given)):
            total = own.copy() if total is None else np.add(total, own, out=total)
        assert total is not None
        return total

    def _share(self, p: int) -> distributed.Future:
        """Return a part's rows of the sample and their integers, where the part itself is."""
        home = self._table.home(p)
        if p not in self._sent or self._sent[p][0] is not home:
            span = self._table.spans[p]
            at = slice(*np.searchsorted(self._sample, [span.start, span.stop]).tolist())
            rows = self._sample[at]
            share = _Share(
                rows - np.int32(span.start),
                [
                    (tree.layout, _narrow(tree.searched, rows), _narrow(tree.exact, rows))
                    for tree in self._trees
                ],
            )
            self._sent[p] = home, self._table.send(p, share)
        return self._sent[p][1]


@dataclass(frozen=True, eq=False)
class _Share:
    """A part's sampled rows and, by tree, the layout and the rows' integers."""

    rows: NDArray[np.int32]
    trees: Sequence[tuple[Layout, NDArray[Any] | None, NDArray[Any] | None]]


def _narrow(integers: Integers | None, rows: NDArray[np.int32]) -> NDArray[Any] | None:
    """Return the integers of some rows, in four bytes each where they fit."""
    if integers is None:
        return None
    own = integers[rows]
    small = np.iinfo(np.int32)
    fits = own.min(initial=0) >= small.min and own.max(initial=0) <= small.max
    return own.astype(np.int32) if fits else own


def _submit(
    client: distributed.Client, worker: str, operation: Callable[..., Any], *given: object
) -> distributed.Future:
    """Have a worker do something; another one where that is gone, for a task would wait for it."""
    return client.submit(operation, *given, pure=False, workers=[worker], allow_other_workers=True)


def _scatter(client: distributed.Client, value: object, worker: str) -> distributed.Future:
    """Return a value on a worker; raises OSError where that is gone."""
    try:
        (future,) = client.scatter([value], workers=[worker], hash=False)
    except KeyError:
        raise OSError("the worker is gone") from None
    return future


def _blocks(columns: Columns) -> Iterator[NDArray[np.float32]]:
    """Yield some columns at a time, shape (n_columns, n_samples)."""
    width = max(1, _BLOCK_BYTES // max(4 * columns.n_samples, 1))
    for first in range(0, len(columns.readers), width):
        yield np.stack([read() for read in columns.readers[first : first + width]])


# --- on a worker ---


class _Part:
    """A worker's part of the rows: their bins, and how the trees of a round divide them."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._share: _Share | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Part, (self.table,)

    def divided(self, share: _Share, splits: Sequence[Sequence[Splits]]) -> DividedTable:
        """Return the rows as the splits divide them."""
        if self._share is not share:
            self._share, self._n_splits = share, 0
            n = self.table.binned.n_samples
            trees = [
                TreeIntegers(
                    layout, _widened(searched, share.rows, n), _widened(exact, share.rows, n)
                )
                for layout, searched, exact in share.trees
            ]
            self._division = self.table.divide(share.rows, trees)
        for own in splits[self._n_splits :]:
            self._division.split(own)
            self._n_splits += 1
        return self._division


def _widened(own: NDArray[Any] | None, rows: NDArray[np.int32], n: int) -> Any:
    if own is None:
        return None
    out = np.empty((n, own.shape[1]), np.int64)
    out[rows] = own
    return out


def _bin(cuts: Cuts, n_threads: int, blocks: Sequence[NDArray[np.float32]]) -> _Part:
    # Copies, since a received array is read-only, which would compile the kernels once more.
    readers = [partial(np.copy, column) for block in blocks for column in block]
    n = blocks[0].shape[1]
    binned = bin_features(Columns(n, tuple(readers)), copy.deepcopy(cuts), n_threads)
    return _Part(Table(binned, np.empty(0), None, np.empty((n, 0), np.float32), n_threads))


def _missing(part: _Part) -> NDArray[np.bool_]:
    return part.table.missing


def _values(part: _Part, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
    return part.table.values(cuts, rows)


def _nodes_reached(part: _Part, trees: Sequence[Any]) -> list[NDArray[Any]]:
    return [part.table.nodes_reached(tree) for tree in trees]


def _sums(
    part: _Part,
    share: _Share,
    splits: Sequence[Sequence[Splits]],
    requests: Sequence[Sequence[int]],
    totals: bool,
) -> Integers:
    return part.divided(share, splits).sums(requests, totals=totals)


def _leaf_sums(
    part: _Part,
    share: _Share,
    splits: Sequence[Sequence[Splits]],
    leaves: Sequence[Sequence[int]],
) -> Integers:
    return part.divided(share, splits).leaf_sums(leaves)
