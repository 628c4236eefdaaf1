"""Binned rows: every value replaced by the index of its bin, once, before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.errors import DataError

Bins = NDArray[np.uint8 | np.uint16]


@dataclass(frozen=True, slots=True)
class BinnedFeatures:
    """Bin indices of a party's rows; a missing value has the index after the last bin.

    Parameters
    ----------
    by_row : ndarray of shape (n_samples, n_features), uint8 or uint16, C order
        For histograms and for routing rows through whole trees.
    by_feature : ndarray of shape (n_features, n_samples), same dtype, C order
        For partitioning by one feature.
    n_bins : ndarray of shape (n_features,), int64
    any_missing : bool
    """

    by_row: Bins
    by_feature: Bins
    n_bins: NDArray[np.int64]
    any_missing: bool

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.by_row.shape[0])


def bin_features(X: NDArray[np.float32], cuts: Cuts, n_threads: int = 1) -> BinnedFeatures:
    """Bin every value of ``X`` (n_samples, n_features).

    Raises
    ------
    DataError
        A value at or above its feature's upper fence, below the lower one, or a categorical
        value that is no code of the feature. The message names the feature, not the value.
    """
    n_samples, n_features = X.shape
    if n_features != cuts.n_features:
        raise DataError(f"table: expected {cuts.n_features} features, received {n_features}")
    n_bins = cuts.n_bins
    missing = np.isnan(X).any(axis=0) if n_samples else np.zeros(n_features, dtype=bool)
    highest = int((n_bins - 1 + missing).max(initial=0))
    dtype: type[np.uint8] | type[np.uint16] = np.uint8 if highest <= 0xFF else np.uint16
    if highest > 0xFFFF:
        raise DataError("more than 65535 bins in a feature")
    by_feature = np.empty((n_features, n_samples), dtype=dtype)
    bad = np.zeros(n_features, dtype=np.bool_)

    def one(j: int) -> None:
        column = np.ascontiguousarray(X[:, j])
        bad[j] = _bin_column(
            column, cuts.of(j), cuts.lower[j], bool(cuts.categorical[j]), by_feature[j]
        )

    run_all([lambda j=j: one(j) for j in range(n_features)], n_threads)  # type: ignore[misc]
    if bad.any():
        raise DataError(f"feature {int(np.flatnonzero(bad)[0])} has values outside its bins")
    return BinnedFeatures(
        np.ascontiguousarray(by_feature.T), by_feature, n_bins, bool(missing.any())
    )


@njit(cache=True, nogil=True)
def _bin_column(x, values, lower, categorical, out):  # type: ignore[no-untyped-def]
    n_bins = values.shape[0]
    bad = False
    for i in range(x.shape[0]):
        v = x[i]
        if np.isnan(v):
            out[i] = n_bins
        elif categorical:
            code = np.int64(v)
            if code != v or code < 0 or code >= n_bins:
                bad = True
            else:
                out[i] = code
        elif v < lower or v >= values[n_bins - 1]:
            bad = True
        else:
            # Branch-free: count the inner cuts that are not above v.
            low, length = 0, n_bins - 1
            while length > 0:
                half = (length + 1) >> 1
                low += half if v >= values[low + half - 1] else 0
                length -= half
            out[i] = low
    return bad


@lru_cache(maxsize=8)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="kernels")


def run_all(tasks: Sequence[Callable[[], None]], n_threads: int) -> None:
    """Run tasks that release the interpreter lock, in this thread or in a pool."""
    if n_threads <= 1 or len(tasks) <= 1:
        for task in tasks:
            task()
        return
    for future in [_pool(n_threads).submit(task) for task in tasks]:
        future.result()
