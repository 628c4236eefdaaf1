"""Cut points: where a numeric feature is divided into bins, and how silos agree on them.

The convention is XGBoost's, stated here once: bin ``b`` of a numeric feature holds
``values[b - 1] <= x < values[b]``, so a split after bin ``b`` is ``x < values[b]``, exactly
the test that an exported model makes. The last value of a feature is a fence above every training
value, and ``lower`` is a fence below; both serve only splits of missing from present values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import DataError

FENCE = np.float32(np.finfo(np.float32).max)
"""Upper fence of our own cuts; no training value may reach it."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Bins of every feature; the same at every silo.

    Parameters
    ----------
    values : ndarray of shape (n_total_bins,), float32
        Strictly increasing within a feature. For a categorical feature the codes 0, 1, ….
    offsets : ndarray of shape (n_features + 1,), int64
        Feature ``j`` owns ``values[offsets[j]:offsets[j + 1]]``; it has as many bins.
    categorical : ndarray of shape (n_features,), bool
    lower : ndarray of shape (n_features,), float32
        Below every training value: the threshold that sends all present values right.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int64]
    categorical: NDArray[np.bool_]
    lower: NDArray[np.float32]

    def __post_init__(self) -> None:
        n_features = self.categorical.shape[0]
        if self.offsets.shape != (n_features + 1,) or self.lower.shape != (n_features,):
            raise DataError("cuts: offsets, lower and categorical disagree on the feature count")
        if self.offsets[0] != 0 or self.offsets[-1] != self.values.shape[0]:
            raise DataError("cuts: offsets do not span the values")
        if np.any(np.diff(self.offsets) < 1):
            raise DataError("cuts: every feature needs at least one bin")
        inside = np.ones(self.values.shape[0], dtype=bool)
        inside[self.offsets[:-1]] = False
        if not np.all(np.isfinite(self.values)) or np.any(
            np.diff(self.values, prepend=np.float32(-np.inf))[inside] <= 0
        ):
            raise DataError("cuts: values must be finite and strictly increasing in a feature")

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.categorical.shape[0])

    @property
    def n_bins(self) -> NDArray[np.int64]:
        """Bins of each feature, shape (n_features,); missing is not among them."""
        return np.diff(self.offsets)

    def of(self, feature: int) -> NDArray[np.float32]:
        """Return the values of one feature."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def threshold(self, feature: int, last_left_bin: int) -> np.float32:
        """Return ``t`` such that ``x < t`` holds exactly for bins up to ``last_left_bin``.

        ``last_left_bin`` is -1 where no present value goes left.
        """
        if last_left_bin < 0:
            return np.float32(self.lower[feature])
        return np.float32(self.values[self.offsets[feature] + last_left_bin])


def cuts_from_thresholds(schema: Schema, thresholds: Sequence[NDArray[np.float32]] | None) -> Cuts:
    """Build cuts from the inner thresholds of each feature; fences are added.

    Parameters
    ----------
    schema : Schema
    thresholds : sequence of n_features ndarrays, float32, or None
        Strictly increasing, may be empty; ignored for categorical features, whose bins are
        their codes. ``None`` is allowed when every feature is categorical.
    """
    blocks: list[NDArray[np.float32]] = []
    for j, feature in enumerate(schema.features):
        if feature.categories is not None:
            n_codes = max(1, len(feature.categories))
            blocks.append(np.arange(n_codes, dtype=np.float32))
            continue
        if thresholds is None:
            raise DataError(f"cuts: no thresholds for the numeric feature {feature.name!r}")
        inner = np.asarray(thresholds[j], dtype=np.float32)
        blocks.append(np.append(inner[inner < FENCE], FENCE))
    return Cuts(
        values=np.concatenate(blocks) if blocks else np.empty(0, np.float32),
        offsets=np.concatenate([[0], np.cumsum([b.shape[0] for b in blocks])]).astype(np.int64),
        categorical=np.array([f.is_categorical for f in schema.features], dtype=np.bool_),
        lower=np.full(schema.n_features, -FENCE, dtype=np.float32),
    )


def cuts_from_xgboost(
    schema: Schema, indptr: NDArray[np.uint64], values: NDArray[np.float32]
) -> Cuts:
    """Build cuts from ``DMatrix.get_quantile_cut()`` so that both engines see the same bins.

    XGBoost lists, for each feature, its lower fence and then its cuts, the last of which is its
    own upper fence.
    """
    blocks, lower = [], []
    for j, feature in enumerate(schema.features):
        block = np.asarray(values[int(indptr[j]) : int(indptr[j + 1])], dtype=np.float32)
        if feature.categories is not None:
            blocks.append(np.arange(max(1, len(feature.categories)), dtype=np.float32))
            lower.append(np.float32(-1.0))
        elif block.shape[0] < 2:
            blocks.append(np.array([FENCE], dtype=np.float32))
            lower.append(-FENCE)
        else:
            blocks.append(block[1:])
            lower.append(block[0])
    return Cuts(
        values=np.concatenate(blocks),
        offsets=np.concatenate([[0], np.cumsum([b.shape[0] for b in blocks])]).astype(np.int64),
        categorical=np.array([f.is_categorical for f in schema.features], dtype=np.bool_),
        lower=np.array(lower, dtype=np.float32),
    )


# --- binning = "summary": weighted quantile summaries ------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    """Weighted points of one feature of one silo.

    Point ``i`` stands for the rows in ``(values[i - 1], values[i]]``.

    Parameters
    ----------
    values : ndarray of shape (n_points,), float32
        Strictly increasing data values.
    weights : ndarray of shape (n_points,), float64
        Rows (or row weights) that each point stands for; positive.
    """

    values: NDArray[np.float32]
    weights: NDArray[np.float64]


def summarise(
    x: NDArray[np.float32], max_points: int, weight: NDArray[np.float64] | None = None
) -> Summary:
    """Return a summary of at most ``max_points`` points; exact where so many values exist.

    Missing values are left out. The rank error of a summary is at most
    ``total weight / max_points``.
    """
    present = ~np.isnan(x)
    values = x[present]
    weights = np.ones(values.shape[0]) if weight is None else weight[present]
    kept = weights > 0
    values, inverse = np.unique(values[kept] + np.float32(0.0), return_inverse=True)
    counts = np.bincount(inverse.reshape(-1), weights[kept], minlength=values.shape[0])
    sums = counts.astype(np.float64)
    if values.shape[0] <= max_points:
        return Summary(values, sums)
    cumulative = np.cumsum(sums)
    targets = cumulative[-1] * np.arange(1, max_points + 1) / max_points
    last = np.minimum(np.searchsorted(cumulative, targets), values.shape[0] - 1)
    last[-1] = values.shape[0] - 1
    last = np.unique(last)
    return Summary(values[last], np.diff(cumulative[last], prepend=0.0))


def merge_summaries(summaries: Sequence[Summary], max_bin: int) -> NDArray[np.float32]:
    """Return at most ``max_bin - 1`` inner thresholds from the silos' summaries of a feature.

    All points are sorted on value and their weights accumulated; thresholds lie half-way between
    neighbouring points, at ranks ``j N / max_bin``. When no more than ``max_bin`` distinct points
    exist each gets a bin of its own. Weights are essential: pooling the points unweighted was off
    by 0.40 of all rows for silos of unequal size.
    """
    if not summaries:
        return np.empty(0, dtype=np.float32)
    points = np.concatenate([s.values for s in summaries])
    if points.shape[0] == 0:
        return np.empty(0, dtype=np.float32)
    values, inverse = np.unique(points, return_inverse=True)
    weights = np.bincount(inverse.reshape(-1), np.concatenate([s.weights for s in summaries]))
    if values.shape[0] <= max_bin:
        at = np.arange(values.shape[0] - 1)
    else:
        cumulative = np.cumsum(weights)
        targets = cumulative[-1] * np.arange(1, max_bin) / max_bin
        at = np.unique(np.searchsorted(cumulative, targets * (1 - 1e-12)))
        at = at[at < values.shape[0] - 1]
    return np.unique(_between(values[at], values[at + 1]))


def _between(low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 numbers ``t`` with ``low < t <= high``, half-way where one exists."""
    middle = ((low.astype(np.float64) + high) / 2).astype(np.float32)
    return np.where(middle > low, middle, high).astype(np.float32)


def summary_points(
    policy: str, max_bin: int, n_samples: int, n_total: int, n_largest: int, n_silos: int
) -> int:
    """Return the size of a silo's summary under a bin budget (PAX).

    ``fixed``: 4 points a bin. ``pax_printed``: bins ``1 / (ε_A n_i / N)`` with ``ε_A`` such that
    equal silos together have ``max_bin`` bins each, so a *smaller* silo gets more.
    ``proportional``: ``max_bin n_i / max n`` between 8 and ``max_bin``. Only the summary varies;
    the cuts are global.

    References
    ----------
    Ong et al., Adaptive histogram-based gradient boosted trees for federated learning, 2020.
    """
    if policy == "fixed":
        bins = max_bin
    elif policy == "pax_printed":
        share = max(n_samples, 1) / max(n_total, 1)
        bins = round(max_bin / (n_silos * share))
        bins = min(max(bins, 8), 16 * max_bin)
    elif policy == "proportional":
        bins = round(max_bin * n_samples / max(n_largest, 1))
        bins = min(max(bins, min(8, max_bin)), max_bin)
    else:
        raise DataError(f"bins_policy: expected fixed, pax_printed or proportional, not {policy!r}")
    return 4 * bins


# --- binning = "recursive": bisecting on securely summed counts ---------------------------------


def _to_keys(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Map float32 to integers of the same order in [0, 2**32)."""
    bits = (values + np.float32(0.0)).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits + (1 << 31), -bits - 1)


def _from_keys(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Invert :func:`_to_keys`."""
    positive = keys >= (1 << 31)
    bits = np.where(positive, keys - (1 << 31), -(keys + 1))
    return bits.astype(np.int32).view(np.float32)


@dataclass(frozen=True, slots=True)
class Bisection:
    """Coordinator-side state of recursive binning: a bracket for every threshold sought.

    The silos only ever answer how many of their rows lie below proposed values, and only the sums
    over silos are seen; order statistics are found by bisecting the float32 number line.

    Parameters
    ----------
    low, high : ndarray of shape (n_features, max_bin - 1), int64
        Keys: fewer rows than the target lie below ``low``, at least as many below ``high``.
    best : ndarray of shape (n_features, max_bin - 1), int64
        Key with the rank nearest to the target so far.
    error : ndarray of shape (n_features, max_bin - 1), float64
        Rank error of ``best`` in rows.
    totals : ndarray of shape (n_features,), int64
        Present rows.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    best: NDArray[np.int64]
    error: NDArray[np.float64]
    totals: NDArray[np.int64]


_FIRST_KEY = int(_to_keys(np.array([-FENCE]))[0])
_LAST_KEY = int(_to_keys(np.array([FENCE]))[0])


def begin_bisection(totals: NDArray[np.int64], max_bin: int) -> Bisection:
    """Start from the securely summed counts of present rows of each numeric feature."""
    shape = (totals.shape[0], max_bin - 1)
    return Bisection(
        low=np.full(shape, _FIRST_KEY, dtype=np.int64),
        high=np.full(shape, _LAST_KEY, dtype=np.int64),
        best=np.full(shape, _LAST_KEY, dtype=np.int64),
        error=np.full(shape, np.inf),
        totals=totals.astype(np.int64),
    )


def propose(state: Bisection, tolerance: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys to count below, as (feature, key) pairs; none when all have converged.

    Parameters
    ----------
    tolerance : float
        Rank error allowed, relative to the present rows (``binning_error``).
    """
    open_ = (state.error > tolerance * state.totals[:, None]) & (state.high - state.low > 1)
    feature, slot = np.nonzero(open_)
    low, high = state.low[feature, slot], state.high[feature, slot]
    # Targets that share a bracket spread over it, so that one count serves many of them.
    same = np.zeros(feature.shape[0], dtype=np.int64)
    size = np.ones(feature.shape[0], dtype=np.int64)
    start = 0
    for i in range(1, feature.shape[0] + 1):
        if i == feature.shape[0] or (feature[i], low[i], high[i]) != (
            feature[start],
            low[start],
            high[start],
        ):
            same[start:i] = np.arange(i - start)
            size[start:i] = i - start
            start = i
    keys = low + np.maximum(1, ((high - low) * (same + 1)) // (size + 1))
    pairs = np.unique(np.stack([feature, keys], axis=1), axis=0)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def count_below(
    sorted_columns: Sequence[NDArray[np.float32]],
    feature: NDArray[np.int64],
    key: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return how many of a silo's present values lie below each proposed key (silo half).

    Parameters
    ----------
    sorted_columns : sequence of ndarray, float32
        Each numeric feature's present values in ascending order.
    """
    value = _from_keys(key)
    out = np.empty(feature.shape[0], dtype=np.int64)
    for j in np.unique(feature):
        at = feature == j
        out[at] = np.searchsorted(sorted_columns[int(j)], value[at], side="left")
    return out


def refine(
    state: Bisection,
    feature: NDArray[np.int64],
    key: NDArray[np.int64],
    below: NDArray[np.int64],
) -> Bisection:
    """Narrow every bracket by the summed counts (coordinator half)."""
    low, high = state.low.copy(), state.high.copy()
    best, error = state.best.copy(), state.error.copy()
    n_slots = low.shape[1]
    for j in np.unique(feature):
        at = feature == j
        keys, counts = key[at], below[at]
        target = state.totals[j] * np.arange(1, n_slots + 1) / (n_slots + 1)
        # counts grow with keys; the first count that reaches the target bounds it from above.
        reach = np.searchsorted(counts, target, side="left")
        has_high, has_low = reach < keys.shape[0], reach > 0
        above = keys[np.minimum(reach, keys.shape[0] - 1)]
        under = keys[np.maximum(reach - 1, 0)]
        high[j] = np.where(has_high, np.minimum(high[j], above), high[j])
        low[j] = np.where(has_low, np.maximum(low[j], under), low[j])
        for candidate, valid, index in (
            (above, has_high, np.minimum(reach, keys.shape[0] - 1)),
            (under, has_low, np.maximum(reach - 1, 0)),
        ):
            distance = np.abs(counts[index] - target)
            better = valid & (distance < error[j])
            best[j] = np.where(better, candidate, best[j])
            error[j] = np.where(better, distance, error[j])
    return Bisection(low, high, best, error, state.totals)


def bisected_thresholds(state: Bisection) -> list[NDArray[np.float32]]:
    """Return each feature's inner thresholds, de-duplicated, from a finished bisection."""
    out = []
    for j in range(state.best.shape[0]):
        found = np.isfinite(state.error[j])
        out.append(np.unique(_from_keys(state.best[j][found])))
    return out


class Bisector:
    """Thresholds of numeric columns from sums of counts, whoever sees the sums.

    The first counts are of all present values, at the upper fence.

    Parameters
    ----------
    tolerance : float
        Rank error allowed, relative to the present rows.
    """

    def __init__(self, n_columns: int, max_bin: int, tolerance: float) -> None:
        self._max_bin = max_bin
        self._tolerance = tolerance
        self._state: Bisection | None = None
        self.column = np.arange(n_columns, dtype=np.int64)
        self.key = np.full(n_columns, _LAST_KEY, dtype=np.int64)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to count."""
        return self.key.shape[0] == 0

    def take(self, below: NDArray[np.int64]) -> None:
        """Take the summed counts below :attr:`key` of :attr:`column`, and propose the next."""
        if self._state is None:
            self._state = begin_bisection(below, self._max_bin)
        else:
            self._state = refine(self._state, self.column, self.key, below)
        self.column, self.key = propose(self._state, self._tolerance)

    @property
    def thresholds(self) -> list[NDArray[np.float32]]:
        """Inner thresholds of each column."""
        return [] if self._state is None else bisected_thresholds(self._state)
