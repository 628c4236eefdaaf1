"""Integer histograms: exact sums of fixed-point gradients per node and bin.

Gradients are rounded to integers per row before they are summed (``crypto.masking.fixed_point``),
so sums are exact and do not depend on the order of rows, threads or silos. A kernel rounds as it
reads a row: float32 pairs take half the memory of their integers. Missing values have no bin: their
sum is the node's total minus the sum of the feature's bins.

The kernels work row by row on row-major bins with software prefetch: a row's bins share a cache
line, which beats a column-wise pass at every node size (see ``benchmarks/histogram_engine.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures, run_all
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.sparse import SparseFeatures
from hedgerow.crypto.native.kernels import kernel

_CHUNK_ROWS = 32768


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the bins of a tree's features in a histogram."""

    features: NDArray[np.int64]
    """Of shape (n_used,), int64. Ascending feature indices of the tree's column sample."""
    offsets: NDArray[np.int64]
    """Of shape (n_used + 1,), int64. The bins of ``features[k]`` are ``offsets[k]:offsets[k +
    1]``."""

    @property
    def n_bins(self) -> int:
        """Bins of all used features."""
        return int(self.offsets[-1])


def layout_of(cuts: Cuts, features: NDArray[np.int64] | None = None) -> Layout:
    """Return the layout of ``features`` (default: all)."""
    used = np.arange(cuts.n_features) if features is None else np.sort(features)
    offsets = np.concatenate([[0], np.cumsum(cuts.n_bins[used])])
    return Layout(used.astype(np.int64), offsets.astype(np.int64))


def _rounded(values: Gradients, units: Units) -> NDArray[np.int64]:
    if values.dtype == np.float32:
        values = np.rint(values * np.resize(units, values.shape[1]))
    return values.astype(np.int64, copy=False)


Gradients = NDArray[np.int64] | NDArray[np.float32]
Units = tuple[float, float]
"""By what float32 gradients and hessians are multiplied before they are rounded."""
_ONE: Units = (1.0, 1.0)


def build_histograms(
    binned: BinnedFeatures | SparseFeatures,
    partition: RowPartition,
    nodes: Sequence[int],
    gradients: Gradients,
    layout: Layout,
    n_threads: int = 1,
    units: Units = _ONE,
) -> NDArray[np.int64]:
    """Sum fixed-point gradients over the rows of each node, per bin.

    Parameters
    ----------
    gradients : ndarray of shape (n_samples, 2 * n_outputs), int64 or float32
        Per row g and h of each output, interleaved: ``g_0, h_0, g_1, h_1, …``. Rows that are not
        in the partition are never read. Of float32 the sums are of ``rint(g units[0])`` and
        ``rint(h units[1])``.

    Returns
    -------
    ndarray of shape (n_nodes, n_bins, 2 * n_outputs), int64
        Exact sums; the caller guarantees by the choice of scale that they fit.
    """
    n_values = gradients.shape[1]
    if isinstance(binned, SparseFeatures):
        own = [partition.rows(node) for node in nodes]
        integers = cast("NDArray[np.int64]", gradients)  # vertical parties have no others
        return binned.histograms(own, integers, layout.features, n_threads)
    starts, stops = partition.spans(nodes)
    out = np.empty((starts.shape[0], layout.n_bins, n_values), dtype=np.int64)
    if out.size == 0:
        return out
    rows = _Rows(
        binned.by_row.reshape(-1),
        np.uint64(binned.by_row.shape[1]),
        partition.order,
        gradients.reshape(-1),
        layout.features.astype(np.uint64),
        layout.offsets.astype(np.uint64),
        np.uint64(n_values),
        np.uint64(binned.any_missing),
        units,
    )
    total = int((stops - starts).sum())
    flat = out.reshape(out.shape[0], -1)
    if n_threads <= 1 or total < 2 * _CHUNK_ROWS:
        _accumulate(rows, starts, stops, flat)
    else:
        _accumulate_in_chunks(rows, starts, stops, flat, n_threads)
    return out


def _accumulate_in_chunks(
    rows: _Rows,
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
        into = out[i : i + 1]
        for begin in range(int(starts[i]), max(int(stops[i]), int(starts[i]) + 1), size):
            if begin > starts[i]:
                into = np.empty_like(into)
                parts.append((i, into))
            end = min(begin + size, int(stops[i]))
            tasks.append(partial(_accumulate, rows, np.array([begin]), np.array([end]), into))
    run_all(tasks, n_threads)
    for i, part in parts:
        out[i] += part[0]


class _Rows(NamedTuple):
    """What the kernel reads: bins of all rows, gradients, and where a tree's features have bins.

    ``bins`` and ``gradients`` are flat; a row has ``stride`` bins and ``n_values`` gradients. With
    ``missing`` a feature's bins may be followed by that of missing values, which is left out.
    """

    bins: NDArray[Any]
    stride: np.uint64
    order: NDArray[np.int32]
    gradients: Gradients
    used: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    n_values: np.uint64
    missing: np.uint64
    units: Units


@kernel("boosting/tables", "accumulate")
def _accumulate(rows, starts, stops, out):
    """Write the sums of each node."""
    bins, stride, order, gradients, used, offsets, n_values, _, units = rows
    values = gradients.reshape(-1, int(n_values))
    for s in range(starts.shape[0]):
        own = order[starts[s] : stops[s]].astype(np.uint64)
        added, target = _rounded(values[own], units), out[s].reshape(-1, int(n_values))
        target[:] = 0
        for feature, first, stop in zip(used, offsets[:-1], offsets[1:], strict=True):
            at = first + bins[own * stride + feature]
            np.add.at(target, at[at < stop], added[at < stop])


def node_sums(
    partition: RowPartition, nodes: Sequence[int], gradients: Gradients, units: Units = _ONE
) -> NDArray[np.int64]:
    """Sum gradients over the rows of each node: shape (n_nodes, 2 * n_outputs), int64."""
    starts, stops = partition.spans(nodes)
    out = np.zeros((starts.shape[0], gradients.shape[1]), dtype=np.int64)
    flat = np.ascontiguousarray(gradients).reshape(-1)
    _sum_rows(partition.order, starts, stops, flat, units, out)
    return out


@kernel("boosting/tables", "sum_rows")
def _sum_rows(order, starts, stops, gradients, units, out):
    values = gradients.reshape(-1, out.shape[1])
    for s in range(starts.shape[0]):
        out[s] += _rounded(values[order[starts[s] : stops[s]]], units).sum(axis=0)
