"""Integer histograms: exact sums of fixed-point gradients per node and bin.

Gradients are rounded to integers per row before they are summed (``crypto.fixed_point``), so sums
are exact and do not depend on the order of rows, threads or silos. Missing values have no bin:
their sum is the node's total minus the sum of the feature's bins.

The kernels work row by row on row-major bins with software prefetch: a row's bins share a cache
line, which beats a column-wise pass at every node size (see ``benchmarks/histogram_engine.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures, run_all
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.partition import RowPartition

_PREFETCH_ROWS = 16
_CHUNK_ROWS = 32768


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the bins of a tree's features in a histogram.

    Parameters
    ----------
    features : ndarray of shape (n_used,), int64
        Ascending feature indices of the tree's column sample.
    offsets : ndarray of shape (n_used + 1,), int64
        The bins of ``features[k]`` are ``offsets[k]:offsets[k + 1]``.
    """

    features: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def n_bins(self) -> int:
        """Bins of all used features."""
        return int(self.offsets[-1])


def layout_of(cuts: Cuts, features: NDArray[np.int64] | None = None) -> Layout:
    """Return the layout of ``features`` (default: all)."""
    used = np.arange(cuts.n_features) if features is None else np.sort(features)
    offsets = np.concatenate([[0], np.cumsum(cuts.n_bins[used])])
    return Layout(used.astype(np.int64), offsets.astype(np.int64))


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of a flat array's element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8",
        )
        builder.call(function, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


def build_histograms(
    binned: BinnedFeatures,
    partition: RowPartition,
    nodes: Sequence[int],
    gradients: NDArray[np.int64],
    layout: Layout,
    n_threads: int = 1,
) -> NDArray[np.int64]:
    """Sum fixed-point gradients over the rows of each node, per bin.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of ``partition``.
    gradients : ndarray of shape (n_samples, 2 * n_outputs), int64
        Per row g and h of each output, interleaved: ``g_0, h_0, g_1, h_1, …``. Rows that are not
        in the partition are never read.
    layout : Layout
        The tree's features.

    Returns
    -------
    ndarray of shape (n_nodes, n_bins, 2 * n_outputs), int64
        Exact sums; the caller guarantees by the choice of scale that they fit.
    """
    n_values = gradients.shape[1]
    starts, stops = partition.spans(nodes)
    n_nodes = starts.shape[0]
    out = np.zeros((n_nodes, layout.n_bins, n_values), dtype=np.int64)
    if n_nodes == 0 or layout.n_bins == 0:
        return out
    used = layout.features
    missing_slots = 1 if binned.any_missing else 0
    slots = layout.offsets[:-1] + missing_slots * np.arange(used.shape[0])
    wide = out
    if missing_slots:
        wide = np.zeros((n_nodes, layout.n_bins + used.shape[0], n_values), dtype=np.int64)
    rows = _Rows(
        binned.by_row.reshape(-1),
        np.uint64(binned.by_row.shape[1]),
        partition.order,
        gradients.reshape(-1),
        used.astype(np.uint64),
        slots.astype(np.uint64),
        np.uint64(n_values),
    )
    kernel = _accumulate_pair if n_values == 2 else _accumulate_vector

    def accumulate(begin: NDArray[np.int64], end: NDArray[np.int64], into: Any) -> None:
        kernel(rows, begin, end, into.reshape(into.shape[0], -1))

    total = int((stops - starts).sum())
    if n_threads <= 1 or total < 2 * _CHUNK_ROWS:
        accumulate(starts, stops, wide)
    else:
        _accumulate_in_chunks(accumulate, starts, stops, wide, n_threads)
    if missing_slots:
        keep = np.ones(wide.shape[1], dtype=bool)
        keep[slots + np.diff(layout.offsets)] = False
        out[:] = wide[:, keep]
    return out


def _accumulate_in_chunks(
    accumulate: Callable[[NDArray[np.int64], NDArray[np.int64], Any], None],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    out: NDArray[np.int64],
    n_threads: int,
) -> None:
    """Divide the rows of all nodes into chunks; a node of several chunks sums private parts."""
    total = int((stops - starts).sum())
    size = max(_CHUNK_ROWS, -(-total // (2 * n_threads)))
    tasks: list[Callable[[], None]] = []
    parts: list[tuple[int, NDArray[np.int64]]] = []
    for i in range(starts.shape[0]):
        bounds = list(range(int(starts[i]), int(stops[i]), size))
        for k, begin in enumerate(bounds):
            end = min(begin + size, int(stops[i]))
            into = out[i : i + 1]
            if k:
                into = np.zeros_like(into)
                parts.append((i, into))
            tasks.append(partial(accumulate, np.array([begin]), np.array([end]), into))
    run_all(tasks, n_threads)
    for i, part in parts:
        out[i] += part[0]


class _Rows(NamedTuple):
    """What the kernels read: bins of all rows, gradients, and where a tree's features have bins.

    ``bins`` and ``gradients`` are flat; a row has ``stride`` bins and ``n_values`` gradients.
    """

    bins: NDArray[Any]
    stride: np.uint64
    order: NDArray[np.int32]
    gradients: NDArray[np.int64]
    used: NDArray[np.uint64]
    slots: NDArray[np.uint64]
    n_values: np.uint64


@njit(cache=True, nogil=True)
def _accumulate_pair(rows, starts, stops, out):  # type: ignore[no-untyped-def]
    bins, stride, order, gradients, used, slots, _ = rows
    n_used = used.shape[0]
    whole = np.uint64(n_used) == stride
    two, one = np.uint64(2), np.uint64(1)
    last = stride - one
    for s in range(starts.shape[0]):
        target = out[s]
        stop = stops[s]
        for i in range(starts[s], stop):
            if i + _PREFETCH_ROWS < stop:
                ahead = np.uint64(np.uint32(order[i + _PREFETCH_ROWS]))
                _prefetch(bins, ahead * stride)
                _prefetch(bins, ahead * stride + last)
                _prefetch(gradients, ahead * two)
            row = np.uint64(np.uint32(order[i]))
            g, h = gradients[row * two], gradients[row * two + one]
            base = row * stride
            if whole:
                for k in range(n_used):
                    at = two * (slots[k] + np.uint64(bins[base + np.uint64(k)]))
                    target[at] += g
                    target[at + one] += h
            else:
                for k in range(n_used):
                    at = two * (slots[k] + np.uint64(bins[base + used[k]]))
                    target[at] += g
                    target[at + one] += h


@njit(cache=True, nogil=True)
def _accumulate_vector(rows, starts, stops, out):  # type: ignore[no-untyped-def]
    bins, stride, order, gradients, used, slots, n_values = rows
    for s in range(starts.shape[0]):
        target = out[s]
        for i in range(starts[s], stops[s]):
            row = np.uint64(np.uint32(order[i]))
            base = row * stride
            first = row * n_values
            for k in range(used.shape[0]):
                at = n_values * (slots[k] + np.uint64(bins[base + used[k]]))
                for c in range(n_values):
                    target[at + np.uint64(c)] += gradients[first + np.uint64(c)]


def node_sums(
    partition: RowPartition, nodes: Sequence[int], gradients: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sum gradients over the rows of each node: shape (n_nodes, 2 * n_outputs), int64."""
    starts, stops = partition.spans(nodes)
    out = np.zeros((starts.shape[0], gradients.shape[1]), dtype=np.int64)
    _sum_rows(partition.order, starts, stops, gradients, out)
    return out


@njit(cache=True, nogil=True)
def _sum_rows(order, starts, stops, gradients, out):  # type: ignore[no-untyped-def]
    for s in range(starts.shape[0]):
        for i in range(starts[s], stops[s]):
            for c in range(gradients.shape[1]):
                out[s, c] += gradients[order[i], c]
