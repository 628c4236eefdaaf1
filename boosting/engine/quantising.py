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
from hedgerow.crypto.masking.fixed_point import FixedPoint, log2_ceil
from hedgerow.crypto.native.kernels import Strided, kernel

Pair = tuple[float, float]

FLOAT32_BITS = 128
"""All finite float32 are below two to this power."""


def static_bound(
    objective: Objective, sampler: Sampler, n_outputs: int, max_weight: float
) -> Pair | None:
    """Return bounds of a row's weighted ``|g|`` and ``h`` for every round.

    ``None`` where the loss has none, and where sampling weights have none.
    """
    if objective.bound is None:
        return None
    g, h = objective.bound
    return sampled_bound(sampler, n_outputs, (g * max_weight, h * max_weight))


def row_bound(objective: Objective, max_weight: float) -> Pair | None:
    """Return bounds of ``|g|`` and ``h`` of a row of any round; ``None`` where the loss has none.

    That of ``h`` is the least one, where :func:`static_bound` has a round number.
    """
    if objective.bound is None:
        return None
    return objective.bound[0] * max_weight, objective.bound[1] * objective.steepest * max_weight


def sampled_bound(sampler: Sampler, n_outputs: int, bound: Pair) -> Pair | None:
    """Return bounds of ``|g|`` and ``h`` of a sampled row, times its sampling weight.

    ``None`` for MVS without a hessian term, whose weights do not bound ``h``.

    For MVS: ``Σ min(1, ĝ/μ) = max(1, f n)`` gives ``μ <= max ĝ / f``, and a kept row's weight is
    ``max(1, μ/ĝ)``, so weighted ``|g| <= max(|g|, μ)`` and weighted ``h <= max(h, μ/√λ)``.
    """
    g, h = bound
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

    Silos find the largest of them (:mod:`hedgerow.boosting.sums.maximum`) where no static bound
    exists, for :func:`bound_of_exponents`. What is not finite counts as the largest float32.
    """
    if sample.rows.shape[0] == 0:
        return log2_ceil(0.0), log2_ceil(0.0)
    weight = np.ones(1, np.float32) if sample.weight is None else sample.weight
    top = np.empty(2)
    _largest(Strided(g), Strided(h), sample.rows, weight, top)
    top_g, top_h = top.tolist()
    grad, hess = (log2_ceil(top) if math.isfinite(top) else FLOAT32_BITS for top in (top_g, top_h))
    return grad, hess


def bound_of_exponents(grad: int, hess: int) -> Pair:
    """Return bounds from the largest exponents of all silos."""
    return (2.0 ** max(grad, -100), 2.0 ** max(hess, -100))


@dataclass(frozen=True, slots=True)
class Quantiser:
    """How a round's gradients become integers; equal at all silos."""

    grad: FixedPoint
    hess: FixedPoint
    """``grad`` and ``hess``: lossless quantisation with its range proof."""
    coarse_bits: int = 0
    """0, or the bits of a coarse gradient for the search of splits."""

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
            At most this number, and more where the bound is below 1/4; 0 for the finest.
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

        A value outside the bounds becomes the bound, and one that is no number becomes 0, row by
        row: the bounds may be those of a coordinator that lies, and what a silo answers must not
        return whether its rows are within them.

        Parameters
        ----------
        pairs : ndarray of shape (n_samples, 2 * n_outputs), float32, C order
            g and h interleaved; overwritten.
        """
        weight = np.empty(0, np.float32) if sample.weight is None else sample.weight
        grad, hess = (_within(own.bound) for own in (self.grad, self.hess))
        _weigh_rows(pairs, sample.rows, weight, grad, hess)

    def lossless(
        self, g: NDArray[np.float32], h: NDArray[np.float32], sample: Sample
    ) -> NDArray[np.int64]:
        """Return ``rint(x 2**s)`` of the kept rows' weighted g and h, interleaved.

        Returns
        -------
        ndarray of shape (n_samples, 2 * n_outputs), int64
            Rows that are not in the sample are undefined. Values outside the bounds are clipped
            as in :meth:`weigh`.
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
        grad, hess = (_within(own.bound) for own in (self.grad, self.hess))
        limits = _Limits(1.0 / scale.grad, 1.0 / scale.hess, grad, hess)
        _round_rows(Strided(g), Strided(h), sample.rows, weight, limits, draws, out)
        return out


def _within(bound: float) -> np.float32:
    """Return the greatest float32 of at most ``bound``."""
    nearest = np.float32(min(bound, float(np.finfo(np.float32).max)))
    return nearest if float(nearest) <= bound else np.nextafter(nearest, np.float32(0))


def _clipped(value, most):
    """Return values within ``-most`` to ``most``, 0 for one that is no number."""
    return np.where(np.isnan(value), np.float32(0), np.clip(value, -most, most))


@kernel("boosting/tables", "largest")
def _largest(g, h, rows, weight, out):
    w = weight[:, None] if weight.shape == rows.shape else np.float32(1.0)
    a, b = np.abs(g[rows]) * w, h[rows] * w
    known = (a < np.inf).all() and (b < np.inf).all()
    out[:] = (a.max(initial=0), b.max(initial=0)) if known else np.inf


@kernel("boosting/tables", "weigh_rows")
def _weigh_rows(pairs, rows, weight, most_g, most_h):
    w = weight[:, None] if weight.shape[0] else np.float32(1.0)
    for c, most in enumerate((most_g, most_h)):
        pairs[rows, c::2] = _clipped(pairs[rows, c::2] * w, most)


class _Limits(NamedTuple):
    """Units in one, and the largest magnitude, of g and h."""

    scale_g: float
    scale_h: float
    most_g: np.float32
    most_h: np.float32


@kernel("boosting/tables", "round_rows")
def _round_rows(g, h, rows, weight, limits, draws, out):
    w = weight[:, None] if weight.shape[0] else np.float32(1.0)
    for c, values in enumerate((g, h)):
        own = _clipped(values[rows] * w, limits[2 + c]).astype(np.float64) * limits[c]
        out[rows, c::2] = np.floor(own + draws[:, c::2]) if draws.shape[0] else np.rint(own)
