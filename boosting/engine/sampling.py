"""Row sampling of a tree: none, uniform, GOSS and minimal-variance sampling (MVS).

A sample is a list of rows and their weights: rows left out cost nothing afterwards. MVS's threshold
is a silo's own or global. The global one is found from sums of the silos' histograms of scores,
which may be secure sums; every party runs the same :class:`ThresholdSearch` on them.

References
----------
Ibragimov and Gusev, Minimal variance sampling in stochastic gradient boosting, 2019. Ke et al.,
LightGBM, 2017 (GOSS).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob, SumCorrupt
from hedgerow.boosting.job import Booster
from hedgerow.crypto.masking.fixed_point import FixedPoint
from hedgerow.crypto.native.kernels import Strided, kernel

N_SCORE_BINS = 512
"""Bins of a histogram of scores for a global threshold."""
_FIRST_BITS = 49
"""Each bin of the first pass has two to this power of keys: an eighth of a binade."""
_BIN_BITS = 9
"""Two to this power are the bins, into which the second pass divides one of the first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows kept for a tree."""

    rows: NDArray[np.int32]
    """Of shape (n_kept,), int32. Ascending."""
    weight: NDArray[np.float32] | None = None
    """Of shape (n_kept,), float32, or None. Multiplies g and h; ``None`` for one."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """How a job samples rows."""

    method: str = "none"
    """``none``, ``uniform``, ``goss`` or ``mvs``."""
    rate: float = 1.0
    """Fraction kept by uniform and MVS."""
    reweight: bool = True
    """Uniform only: weight ``1 / rate`` (unbiased sums) instead of XGBoost's 1."""
    mvs_lambda: float = 0.1
    """Weight of the hessian in MVS's score; XGBoost fixes 0.1."""
    top_rate: float = 0.2
    other_rate: float = 0.1
    """``top_rate`` and ``other_rate``: GOSS: shares of all rows kept for their gradient, and drawn
    from the rest. Where either share of the rows is less than one row, all of them are kept."""

    def __post_init__(self) -> None:
        if self.method not in ("none", "uniform", "goss", "mvs"):
            raise InvalidJob(
                f"sampling: expected none, uniform, goss or mvs, received {self.method!r}"
            )
        if not 0 < self.rate <= 1:
            raise InvalidJob(f"sampling_rate: expected above 0, at most 1, received {self.rate}")
        if self.mvs_lambda < 0:
            raise InvalidJob(f"mvs_lambda: expected at least 0, received {self.mvs_lambda}")
        if not (self.top_rate > 0 and self.other_rate > 0 and self.top_rate + self.other_rate <= 1):
            raise InvalidJob(
                "top_rate, other_rate: expected positive shares with a sum of at most 1, "
                f"received {self.top_rate} and {self.other_rate}"
            )

    @classmethod
    def of(cls, booster: Booster) -> Sampler:
        """Return the sampler that XGBoost's own ``subsample`` parameters ask for."""
        if booster.subsample >= 1.0:
            return cls()
        if booster.sampling_method == "gradient_based":
            return cls("mvs", booster.subsample)
        return cls("uniform", booster.subsample, reweight=False)

    def fewest(self, n: int) -> int:
        """Return how many of ``n`` rows a sample has at least: six deviations below its mean."""
        if self.keeps_all(n):
            return n
        kept = n * (self.top_rate + self.other_rate if self.method == "goss" else self.rate)
        return max(1, math.floor(kept - 6 * math.sqrt(kept))) if n else 0

    def keeps_all(self, n: int) -> bool:
        """Return whether a sample of ``n`` rows is all of them, unweighted."""
        too_few = min(int(self.top_rate * n), int(self.other_rate * n)) < 1
        return self.method == "none" or n == 0 or (self.method == "goss" and too_few)

    def draw(
        self,
        g: NDArray[np.float32],
        h: NDArray[np.float32],
        rng: np.random.Generator,
        threshold: float | None = None,
    ) -> Sample:
        """Draw the rows of a tree.

        Parameters
        ----------
        g, h : ndarray of shape (n_samples, n_outputs), float32
        threshold : float or None
            Global MVS threshold; ``None`` uses these rows' own.
        """
        n = g.shape[0]
        if self.keeps_all(n):
            return Sample(np.arange(n, dtype=np.int32))
        if self.method == "uniform":
            return uniform(n, self.rate, self.reweight, rng)
        if self.method == "goss":
            return goss(np.abs(g).sum(axis=1), self.top_rate, self.other_rate, rng)
        scores = mvs_scores(g, h, self.mvs_lambda)
        mu = mvs_threshold(scores, self.rate) if threshold is None else threshold
        return mvs(scores, mu, rng)


def uniform(n: int, rate: float, reweight: bool, rng: np.random.Generator) -> Sample:
    """Keep each row with probability ``rate``."""
    rows = np.flatnonzero(rng.random(n) < rate).astype(np.int32)
    weight = np.full(rows.shape[0], 1.0 / rate, dtype=np.float32) if reweight else None
    return Sample(rows, weight)


def goss(
    scores: NDArray[np.float32], top_rate: float, other_rate: float, rng: np.random.Generator
) -> Sample:
    """Keep the rows of largest gradient and a uniform draw of the rest, weighted up.

    Both shares must be of one row at least (:meth:`Sampler.keeps_all`).
    """
    n = scores.shape[0]
    n_top, n_other = int(top_rate * n), int(other_rate * n)
    least = np.partition(scores, n - n_top)[n - n_top]
    above = scores > least
    level = np.flatnonzero(scores == least)[: n_top - int(above.sum())]
    above[level] = True
    weight = above.astype(np.float32)
    rest = np.flatnonzero(~above)
    weight[rng.choice(rest, n_other, replace=False, shuffle=False)] = (1.0 - top_rate) / other_rate
    rows = np.flatnonzero(weight).astype(np.int32)
    return Sample(rows, weight[rows])


def mvs_scores(
    g: NDArray[np.float32], h: NDArray[np.float32], mvs_lambda: float
) -> NDArray[np.float64]:
    """Return ``sqrt(Σ_c g_c² + λ h_c²)`` of each row, shape (n_samples,), float64."""
    out = np.empty(g.shape[0], dtype=np.float64)
    _scores(Strided(g), Strided(h), float(mvs_lambda), out)
    return out


@kernel("boosting/tables", "mvs_scores")
def _scores(g, h, lam, out):
    out[:] = 0.0
    for a, b in zip(g.T.astype(np.float64), h.T.astype(np.float64), strict=True):
        out += a * a + lam * b * b
    np.sqrt(out, out=out)


def mvs_threshold(scores: NDArray[np.float64], rate: float) -> float:
    """Return the exact root ``mu`` of ``Σ min(1, score / mu) = rate n``.

    0 when the target is at least the number of non-zero scores: all of them are then kept.
    """
    n = scores.shape[0]
    target = max(1.0, rate * n)
    if n == 0 or target >= np.count_nonzero(scores):
        return 0.0
    return float(_threshold(scores.copy(), target))


@kernel("boosting/tables", "mvs_root")
def _threshold(s, target):
    """Find the root by quickselect: O(n), no sort.

    Invariant: scores above the window are certain (``p = 1``), scores below it are not; ``below``
    is the sum of the latter and ``n_above`` the number of the former.
    """
    low, high = 0, s.shape[0]
    below, n_above = 0.0, 0
    while low < high:
        pivot = s[low + (high - low) // 2]
        # three-way partition of the window around the pivot
        i, j, k = low, low, high
        small = 0.0
        while j < k:
            v = s[j]
            if v < pivot:
                small += v
                s[j] = s[i]
                s[i] = v
                i += 1
                j += 1
            elif v > pivot:
                k -= 1
                s[j] = s[k]
                s[k] = v
            else:
                j += 1
        # expected number of rows kept at mu = pivot: pivots themselves count as certain
        kept = (below + small) / pivot + (high - i) + n_above if pivot > 0 else np.inf
        if kept > target:  # mu lies above the pivot: it and all below it are uncertain
            below += small + pivot * (k - i)
            low = k
        else:
            n_above += high - i
            high = i
    return below / (target - n_above)


def mvs(scores: NDArray[np.float64], mu: float, rng: np.random.Generator) -> Sample:
    """Keep each row with ``p = min(1, score / mu)`` and weight ``1 / p``; zero scores never.

    If no row is drawn, the row of the largest score is kept, with its weight.
    """
    if mu <= 0.0:
        return Sample(np.flatnonzero(scores > 0).astype(np.int32))
    rows = np.empty(scores.shape[0], dtype=np.int32)
    weight = np.empty(scores.shape[0], dtype=np.float32)
    n_kept = _keep(scores, mu, rng.random(scores.shape[0], dtype=np.float32), rows, weight)
    if n_kept == 0 and scores.shape[0] and scores.max() > 0:
        top = int(np.argmax(scores))
        p = min(1.0, float(scores[top]) / mu)
        return Sample(np.array([top], dtype=np.int32), np.array([1.0 / p], dtype=np.float32))
    return Sample(rows[:n_kept].copy(), weight[:n_kept].copy())


@kernel("boosting/tables", "keep_rows")
def _keep(scores, mu, draws, rows, weight):
    p = np.minimum(scores / mu, 1.0)
    kept = np.flatnonzero((p == 1.0) | (draws < p))
    rows[: kept.shape[0]], weight[: kept.shape[0]] = kept, 1.0 / p[kept]
    return kept.shape[0]


class ThresholdSearch:
    """The global MVS threshold from sums of the silos' histograms of scores, in two passes.

    Bins are of the bits of a float64, which grow with the number. All arithmetic on the sums is
    exact or rounded as IEEE 754 says, so that each party, on any machine, finds the same.

    Parameters
    ----------
    n_rows : int
        Rows of all silos.
    rate : float
        Share of rows to keep.
    largest : float
        No score of any silo is larger.

    Attributes
    ----------
    mu : float
        The threshold if its bin were uniform; 0 when every row with a score above 0 is kept.
    low : int
        Key of the first bin of the next pass.
    """

    N_PASSES = 2
    n_values = 2 * N_SCORE_BINS
    """Length of a pass's vector."""

    def __init__(self, n_rows: int, rate: float, largest: float) -> None:
        self._n_rows, self._target = n_rows, max(1.0, rate * n_rows)
        self._most = largest
        self._fixed = FixedPoint.fitting(max(n_rows, 1), largest)
        self._bits = _FIRST_BITS
        # sum(min(1, s / mu)) = rate n gives mu <= max s / rate
        end = int(np.float64(largest / rate).view(np.int64)) + 1
        self.low = max(1, end - (N_SCORE_BINS << self._bits))
        self.mu = 0.0

    def own(self, scores: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a silo's part of a pass: counts by bin, then fixed-point sums of scores.

        A score above the largest counts as that, one that is no number as 0. Each row's is rounded
        by itself, so that the sums say nothing of whose rows are whose. Scores of 0 are in no bin.
        """
        positive = np.minimum(scores[scores > 0], self._most)
        at = np.clip((positive.view(np.int64) - self.low) >> self._bits, 0, N_SCORE_BINS - 1)
        out = np.zeros(self.n_values, np.int64)
        out[:N_SCORE_BINS] = np.bincount(at, minlength=N_SCORE_BINS)
        np.add.at(out[N_SCORE_BINS:], at, self._fixed.quantise(positive))
        return out

    def take(self, sums: NDArray[np.int64]) -> None:
        """Take the sums of a pass: they narrow :attr:`mu` and the bins of the next pass.

        Raises
        ------
        SumCorrupt
            They are of no table with ``n_rows`` rows.
        """
        counts, totals = sums[:N_SCORE_BINS], sums[N_SCORE_BINS:]
        n_scored = int(counts.sum())
        if (sums < 0).any() or n_scored > self._n_rows:
            raise SumCorrupt(f"scores: expected at most {self._n_rows}, none of them below 0")
        if self._target >= n_scored:
            self.mu = 0.0
            return
        keys = self.low + (np.arange(N_SCORE_BINS + 1) << self._bits)
        edges = keys.view(np.float64)
        scores = np.ldexp(totals.astype(np.float64), -self._fixed.fraction_bits)
        below = np.concatenate([[0.0], np.cumsum(scores)])
        certain = n_scored - np.concatenate([[0], np.cumsum(counts)])
        kept = below / edges + certain  # expected rows at mu = edge, decreasing in mu
        at = int(np.clip(np.searchsorted(-kept, -self._target) - 1, 0, N_SCORE_BINS - 1))
        # Half of the bin's rows count as below mu. For either extreme the exact root lies in the
        # bin too, so that a finer pass over it narrows it down.
        expected = self._target - (certain[at] - counts[at] / 2)
        mu = (below[at] + scores[at] / 2) / max(expected, 1e-300)
        self.mu = float(np.clip(mu, edges[at], edges[at + 1]))
        self.low, self._bits = int(keys[at]), self._bits - _BIN_BITS
