"""From float gradients to integers that are summed exactly, within proven bounds.

Two ways: *lossless*, fixed point with 24 fraction bits or as many as the range proof allows, and
*coarse*, stochastic rounding to a few bits for the search of splits, whose leaves are then renewed
from lossless sums (as quantised GBDT training does).

References
----------
Shi et al., Quantized training of gradient boosting decision trees, 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import Objective
from hedgerow.boosting.engine.sampling import Sample, Sampler
from hedgerow.boosting.engine.splitting import Scale
from hedgerow.crypto.compiled import compiled
from hedgerow.crypto.fixed_point import FixedPoint, OutOfRange, log2_ceil

Pair = tuple[float, float]


def static_bound(
    objective: Objective, sampler: Sampler, n_outputs: int, max_weight: float
) -> Pair | None:
    """Return bounds of a row's weighted ``|g|`` and ``h`` for every round.

    ``None`` where the loss has none, and for MVS without a hessian term, whose weights do not bound
    ``h``; the silos then agree on a bound each round.

    For MVS: ``Σ min(1, ĝ/μ) = max(1, f n)`` gives ``μ <= max ĝ / f``, and a kept row's weight is
    ``max(1, μ/ĝ)``, so weighted ``|g| <= max(|g|, μ)`` and weighted ``h <= max(h, μ/√λ)``.
    """
    if objective.bound is None:
        return None
    g, h = objective.bound[0] * max_weight, objective.bound[1] * max_weight
    if sampler.method == "uniform" and sampler.reweight:
        g, h = g / sampler.rate, h / sampler.rate
    elif sampler.method == "goss":
        factor = max(1.0, (1.0 - sampler.top_rate) / sampler.other_rate)
        g, h = g * factor, h * factor
    elif sampler.method == "mvs":
        if sampler.mvs_lambda <= 0:
            return None
        top = math.sqrt(n_outputs * (g * g + sampler.mvs_lambda * h * h)) / sampler.rate
        g, h = max(g, top), max(h, top / math.sqrt(sampler.mvs_lambda))
    # Room for the rounding of float32 products.
    return (g * (1 + 1e-6), h * (1 + 1e-6))


def exponents(g: NDArray[np.float32], h: NDArray[np.float32], sample: Sample) -> tuple[int, int]:
    """Return ``⌈log2⌉`` of the largest weighted ``|g|`` and ``h`` of the kept rows.

    A silo offers them where no static bound exists; :func:`bound_of_exponents` takes the largest
    of all silos.
    """
    if sample.rows.shape[0] == 0:
        return log2_ceil(0.0), log2_ceil(0.0)
    weight = np.ones(1, np.float32) if sample.weight is None else sample.weight
    top_g, top_h = _largest(g, h, sample.rows, weight)
    if not (math.isfinite(top_g) and math.isfinite(top_h)):
        raise OutOfRange("gradients are not finite")
    return log2_ceil(top_g), log2_ceil(top_h)


def bound_of_exponents(grad: int, hess: int) -> Pair:
    """Return bounds from the largest exponents of all silos."""
    return (2.0 ** max(grad, -100), 2.0 ** max(hess, -100))


@dataclass(frozen=True, slots=True)
class Quantiser:
    """How a round's gradients become integers; equal at all silos.

    Parameters
    ----------
    grad, hess : FixedPoint
        Lossless quantisation with its range proof.
    coarse_bits : int
        0, or the bits of a coarse gradient for the search of splits.
    """

    grad: FixedPoint
    hess: FixedPoint
    coarse_bits: int = 0

    @classmethod
    def fitting(
        cls,
        n_rows: int,
        bound: Pair,
        *,
        ring_bits: int = 64,
        coarse_bits: int = 0,
        fraction_bits: int = 0,
    ) -> Quantiser:
        """Return the lossless quantisation for ``n_rows`` rows of all silos.

        Parameters
        ----------
        fraction_bits : int
            At most so many, and more where the bound is below 1/4; 0 for the finest.
        """

        def fitting(most: float) -> FixedPoint:
            finest = FixedPoint.fitting(max(1, n_rows), most, ring_bits)
            wanted = fraction_bits + max(0, -2 - log2_ceil(most))
            if not fraction_bits or wanted >= finest.fraction_bits:
                return finest
            return replace(finest, fraction_bits=wanted)

        return cls(fitting(bound[0]), fitting(bound[1]), coarse_bits)

    @property
    def scale(self) -> Scale:
        """Unit of lossless sums."""
        return Scale(
            2.0**-self.grad.fraction_bits,
            2.0**-self.hess.fraction_bits,
            self.grad.largest_sum(),
            self.hess.largest_sum(),
        )

    @property
    def coarse_scale(self) -> Scale:
        """Unit of coarse sums: the bound divided by the number of levels."""
        grad, hess = (1 << (self.coarse_bits - 1)) - 1, (1 << self.coarse_bits) - 1
        n_rows = self.grad.n_rows
        return Scale(self.grad.bound / grad, self.hess.bound / hess, n_rows * grad, n_rows * hess)

    @property
    def units(self) -> Pair:
        """By what g and h are multiplied before they are rounded: powers of two."""
        return 1.0 / self.scale.grad, 1.0 / self.scale.hess

    def weigh(self, pairs: NDArray[np.float32], sample: Sample) -> None:
        """Multiply the kept rows' pairs by their weights; kernels round them as :meth:`lossless`.

        Parameters
        ----------
        pairs : ndarray of shape (n_samples, 2 * n_outputs), float32, C order
            g and h interleaved; overwritten.

        Raises
        ------
        OutOfRange
            A value is not finite or exceeds the bound of the range proof.
        """
        weight = np.empty(0, np.float32) if sample.weight is None else sample.weight
        if not _weigh_rows(pairs, sample.rows, weight, self.grad.bound, self.hess.bound):
            raise OutOfRange("gradients are not finite or exceed the bound")

    def lossless(
        self, g: NDArray[np.float32], h: NDArray[np.float32], sample: Sample
    ) -> NDArray[np.int64]:
        """Return ``rint(x 2**s)`` of the kept rows' weighted g and h, interleaved.

        Returns
        -------
        ndarray of shape (n_samples, 2 * n_outputs), int64
            Rows that are not in the sample are undefined.

        Raises
        ------
        OutOfRange
            A value is not finite or exceeds the bound of the range proof.
        """
        return self._rounded(g, h, sample, self.scale, np.empty((0, 0), np.float32))

    def coarse(
        self,
        g: NDArray[np.float32],
        h: NDArray[np.float32],
        sample: Sample,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Return stochastically rounded levels, laid out as in :meth:`lossless`."""
        draws = rng.random((sample.rows.shape[0], 2 * g.shape[1]), dtype=np.float32)
        return self._rounded(g, h, sample, self.coarse_scale, draws)

    def _rounded(
        self,
        g: NDArray[np.float32],
        h: NDArray[np.float32],
        sample: Sample,
        scale: Scale,
        draws: NDArray[np.float32],
    ) -> NDArray[np.int64]:
        out = np.empty((g.shape[0], 2 * g.shape[1]), dtype=np.int64)
        weight = np.empty(0, np.float32) if sample.weight is None else sample.weight
        limits = _Limits(1.0 / scale.grad, 1.0 / scale.hess, self.grad.bound, self.hess.bound)
        if not _round_rows(g, h, sample.rows, weight, limits, draws, out):
            raise OutOfRange("gradients are not finite or exceed the bound")
        return out


@compiled
def _largest(g, h, rows, weight):  # type: ignore[no-untyped-def]
    weighted = weight.shape[0] == rows.shape[0]
    top_g, top_h = 0.0, 0.0
    for i in range(rows.shape[0]):
        w = weight[i] if weighted else np.float32(1.0)
        for c in range(g.shape[1]):
            a, b = np.float64(abs(g[rows[i], c]) * w), np.float64(h[rows[i], c] * w)
            if not (a < np.inf and b < np.inf):
                return np.inf, np.inf
            top_g, top_h = max(top_g, a), max(top_h, b)
    return top_g, top_h


@compiled
def _weigh_rows(pairs, rows, weight, bound_g, bound_h):  # type: ignore[no-untyped-def]
    weighted = weight.shape[0] > 0
    good = True
    for i in range(rows.shape[0]):
        row = rows[i]
        for c in range(0, pairs.shape[1], 2):
            if weighted:
                pairs[row, c] *= weight[i]
                pairs[row, c + 1] *= weight[i]
            a, b = np.float64(pairs[row, c]), np.float64(pairs[row, c + 1])
            good &= abs(a) <= bound_g and abs(b) <= bound_h
    return good


class _Limits(NamedTuple):
    """Units in one, and the largest accepted magnitude, of g and h."""

    scale_g: float
    scale_h: float
    bound_g: float
    bound_h: float


@compiled
def _round_rows(g, h, rows, weight, limits, draws, out):  # type: ignore[no-untyped-def]
    scale_g, scale_h, bound_g, bound_h = limits
    weighted = weight.shape[0] > 0
    stochastic = draws.shape[0] > 0
    good = True
    for i in range(rows.shape[0]):
        row = rows[i]
        w = weight[i] if weighted else np.float32(1.0)
        for c in range(g.shape[1]):
            a, b = np.float64(g[row, c] * w), np.float64(h[row, c] * w)
            if not (abs(a) <= bound_g and abs(b) <= bound_h):
                good = False
                continue
            a *= scale_g
            b *= scale_h
            if stochastic:
                out[row, 2 * c] = np.int64(np.floor(a + draws[i, 2 * c]))
                out[row, 2 * c + 1] = np.int64(np.floor(b + draws[i, 2 * c + 1]))
            else:
                out[row, 2 * c] = np.int64(np.rint(a))
                out[row, 2 * c + 1] = np.int64(np.rint(b))
    return good
