"""Integer noise for differential privacy, exact, and divisible among silos.

The discrete Laplace distribution with ratio ``q = exp(-epsilon / sensitivity)`` is the difference
of two geometric variables, ``P(k) = (1 - q) / (1 + q) * q**|k|``. It is infinitely divisible: the
difference of two negative binomial (Polya) variables of shape ``1 / t`` added over ``t`` silos is
one discrete Laplace variable. So each of ``t`` honest silos adds its part, and the sum that a
secure sum opens carries the whole noise although nobody knows it. Who knows some parts subtracts
them: what the rest still gives is :func:`discrete_laplace_epsilon`. Skellam noise, for sums of many
values that one row changes each a little, divides by its variance: its parts are Skellam, too.

Exactness. Floating-point Laplace noise leaks through the gaps between floats. Here a variable is
found by comparing a uniform number from a cryptographic generator with cumulative probabilities
that are known to as many bits; where these bits do not decide, more are drawn and the
probabilities are computed to as many. The outcome has the stated distribution with no rounding
error at all, given an ideal generator. The time taken depends on the outcome (a table look-up):
somebody who can time the sampler within a silo could learn of the noise.

References
----------
Ghosh, Roughgarden, Sundararajan, Universally utility-maximizing privacy mechanisms, STOC 2009.
Agarwal, Kairouz, Liu, The Skellam mechanism for differentially private federated learning, 2021.
Goryczka, Xiong, A comprehensive comparison of multiparty secure additions with differential
privacy, IEEE TDSC 14 (2017): discrete Laplace noise from Polya variables.
Mironov, On significance of the least significant bits for differential privacy, CCS 2012.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache

import gmpy2
import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.masking.key_agreement import Entropy

_WORD_BITS = 64
_GUARD_BITS = 64  # more than the rounding of a table of 2**22 entries can use up
_MAX_TABLE = 1 << 22


class _Tabled(ABC):
    """Integers drawn by a table of their cumulative probabilities.

    Parameters
    ----------
    word_bits : int
        Bits compared before more are drawn; lower only to test that path.
    """

    def __init__(self, word_bits: int) -> None:
        self._word_bits = word_bits
        self._cumulative: dict[int, tuple[int, list[int]]] = {}
        _, bounds = self._table(word_bits)
        top = (1 << word_bits) - 1
        self._words = np.array([min(c, top) for c in bounds], dtype=np.uint64)

    def sample(self, size: int, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """Return ``size`` independent variables, int64 of shape (size,)."""
        draws = np.frombuffer(entropy(8 * size), dtype="<u8").astype(np.uint64)
        draws >>= np.uint64(64 - self._word_bits)
        at = np.searchsorted(self._words, draws, side="right")
        above = self._words[np.minimum(at, len(self._words) - 1)]
        below = self._words[np.maximum(at - 1, 0)]
        # Table entries are within one unit of the truth, and a draw is an interval.
        first, _ = self._table(self._word_bits)
        undecided = (at == len(self._words)) | (above - draws < 2)
        undecided |= (at > 0) & (draws - below < 2)
        undecided |= draws < 2 if first else False  # what is below the table has a unit at most
        out = first + at.astype(np.int64)
        for i in np.flatnonzero(undecided):
            out[i] = self._decide(int(draws[i]), self._word_bits, entropy)
        return out

    def _decide(self, draw: int, n_bits: int, entropy: Entropy) -> int:
        """Return the variable for a uniform number of which ``n_bits`` bits are known so far."""
        while True:
            n_bits += 64
            draw = draw << 64 | int.from_bytes(entropy(8), "little")
            first, bounds = self._table(n_bits)
            k = bisect_right(bounds, draw)
            clear = k < len(bounds) and bounds[k] - draw >= 2
            if clear and (draw - bounds[k - 1] if k else draw if first else 2) >= 2:
                return first + k

    def _table(self, n_bits: int) -> tuple[int, list[int]]:
        """Return the least number, and cumulative probabilities from it on.

        They are times ``2**n_bits``, each within one unit, up to the tail.
        """
        if n_bits not in self._cumulative:
            self._cumulative[n_bits] = self._computed(n_bits)
        return self._cumulative[n_bits]

    @abstractmethod
    def _computed(self, n_bits: int) -> tuple[int, list[int]]:
        """Compute what :meth:`_table` keeps."""


class Polya(_Tabled):
    """Negative binomial variables of shape ``1 / parts`` and ratio ``exp(-exponent)``.

    ``P(k) = C(k + r - 1, k) (1 - q)^r q^k`` with ``r = 1 / parts``: the sum of ``parts`` of them is
    geometric, ``P(k) = (1 - q) q^k``.

    Parameters
    ----------
    exponent : Fraction
        ``-ln q``, positive. Tables have about ``45 / exponent`` entries.
    parts : int
        At least 1.
    word_bits : int
        Bits compared before more are drawn; lower only to test that path.

    Raises
    ------
    ValueError
        Exponent or parts out of range; the exponent must be at least about 1e-5.
    """

    def __init__(self, exponent: Fraction, parts: int = 1, *, word_bits: int = _WORD_BITS) -> None:
        if exponent <= 0 or parts < 1:
            raise ValueError(f"expected exponent > 0 and parts >= 1, received {exponent}, {parts}")
        if 45 / exponent > _MAX_TABLE:
            raise ValueError(
                f"noise of scale {float(1 / exponent):.3g} needs too large a table; "
                f"the largest scale is {_MAX_TABLE // 45}"
            )
        self._exponent = exponent
        self._parts = parts
        super().__init__(word_bits)

    def _computed(self, n_bits: int) -> tuple[int, list[int]]:
        return 0, _cumulative(self._exponent, self._parts, n_bits)


class Poisson(_Tabled):
    """Poisson variables of a rational mean, whose tables have about 20 standard deviations.

    Parameters
    ----------
    mean : Fraction
        Positive, at most about 4e10.
    word_bits : int
        Bits compared before more are drawn; lower only to test that path.
    """

    def __init__(self, mean: Fraction, *, word_bits: int = _WORD_BITS) -> None:
        if mean <= 0 or 20 * math.sqrt(mean) > _MAX_TABLE:
            raise ValueError(
                f"expected a mean above 0 and at most {_MAX_TABLE**2 // 400}, "
                f"received {float(mean):.3g}"
            )
        self._mean = mean
        super().__init__(word_bits)

    def _computed(self, n_bits: int) -> tuple[int, list[int]]:
        # P(k < mean - x) < exp(-x^2 / 2 mean): below the table is less than 2**-8 of a unit.
        below = math.sqrt(2 * self._mean * (n_bits + 8) * math.log(2))
        k = first = max(0, math.floor(self._mean - Fraction(below)))
        table = []
        with gmpy2.context(gmpy2.get_context(), precision=n_bits + _GUARD_BITS):
            mean = gmpy2.mpfr(gmpy2.mpq(self._mean.numerator, self._mean.denominator))
            log_probability = k * gmpy2.log(mean) - mean - gmpy2.lgamma(gmpy2.mpfr(k + 1))[0]
            unit = gmpy2.exp2(gmpy2.mpfr(n_bits))
            probability = gmpy2.exp(log_probability) * unit
            total, one = gmpy2.mpfr(0), 1 << n_bits
            while True:
                total += probability
                table.append(int(gmpy2.rint_round(total)))
                if k > self._mean and one - table[-1] <= 1:
                    return first, table
                k += 1
                probability = probability * mean / k


def _cumulative(exponent: Fraction, parts: int, n_bits: int) -> list[int]:
    table = []
    with gmpy2.context(gmpy2.get_context(), precision=n_bits + _GUARD_BITS):
        ratio = gmpy2.exp(-gmpy2.mpfr(gmpy2.mpq(exponent.numerator, exponent.denominator)))
        shape = gmpy2.mpq(1, parts)
        probability = gmpy2.exp(gmpy2.log1p(-ratio) * gmpy2.mpfr(shape))
        unit = gmpy2.exp2(gmpy2.mpfr(n_bits))
        total = gmpy2.mpfr(0)
        one = 1 << n_bits
        k = 0
        while True:
            total += probability
            table.append(int(gmpy2.floor(total * unit)))
            if one - table[-1] <= 1:
                break
            probability = probability * ratio * (k * parts + 1) / ((k + 1) * parts)
            k += 1
    return table


@lru_cache(maxsize=64)
def _polya(exponent: Fraction, parts: int) -> Polya:
    return Polya(exponent, parts)


def discrete_laplace_part(
    size: int,
    epsilon: float,
    *,
    sensitivity: int = 1,
    honest: int = 1,
    entropy: Entropy = os.urandom,
) -> NDArray[np.int64]:
    """Return one silo's part of discrete Laplace noise; ``honest`` parts make up the whole.

    With ``honest=1`` the part is the whole noise, as is needed without secure sums. The number of
    honest silos is fixed in advance: were it counted after silos dropped out, noise would be
    missing.

    Parameters
    ----------
    size : int
        Number of independent values.
    epsilon : float
        Privacy budget of each value's query, positive; taken as the exact rational it is.
    sensitivity : int
        Largest change of the queried integer by one row.
    honest : int
        ``t``: at least `t` silos of those that add a part keep theirs secret.

    Returns
    -------
    ndarray of shape (size,), int64
    """
    if sensitivity < 1:
        raise ValueError(f"expected a sensitivity >= 1, received {sensitivity}")
    polya = _polya(Fraction(epsilon) / sensitivity, honest)
    return polya.sample(size, entropy) - polya.sample(size, entropy)


def discrete_laplace_variance(
    epsilon: float, *, sensitivity: int = 1, parts: int = 1, honest: int = 1
) -> float:
    """Return the variance of a sum of parts: ``2q / (1 - q)^2 * parts / honest``."""
    step = epsilon / sensitivity
    return float(2 * np.exp(-step) / np.expm1(-step) ** 2 * parts / honest)


@lru_cache(maxsize=16)
def _poisson(mean: Fraction) -> Poisson:
    return Poisson(mean)


def skellam_part(
    size: int, variance: int, *, honest: int = 1, entropy: Entropy = os.urandom
) -> NDArray[np.int64]:
    """Return one silo's part of Skellam noise; ``honest`` parts have ``variance`` together.

    A Skellam variable is the difference of two Poisson variables of the same mean; sums of such are
    Skellam again, so that more parts than ``honest`` are just more noise.

    Parameters
    ----------
    size, honest, entropy
        As of :func:`discrete_laplace_part`.
    variance : int
        Of the whole noise, positive.

    Returns
    -------
    ndarray of shape (size,), int64
    """
    poisson = _poisson(Fraction(variance, 2 * honest))
    return poisson.sample(size, entropy) - poisson.sample(size, entropy)


def skellam_rho(variance: float, *, square: int, absolute: int) -> float:
    """Return ``rho`` with which Skellam noise keeps the Renyi divergences of integers.

    The divergence of each integer order ``a`` from 2 on is at most ``rho a``: theorem 3.5 of
    Agarwal et al. has ``a D2 / 2m + ((2a - 1) D2 + 6 D1) / 4m^2`` for variance ``m``.

    Parameters
    ----------
    variance : float
        Of the noise on each value.
    square : int
        ``D2``: largest square of the change of all values by one row, in the L2 norm.
    absolute : int
        ``D1``: largest change in the L1 norm.
    """
    more = square / (2 * variance**2) + max(0, 6 * absolute - square) / (8 * variance**2)
    return square / (2 * variance) + more


@lru_cache(maxsize=256)
def discrete_laplace_epsilon(
    epsilon: float, *, sensitivity: int = 1, parts: int = 1, honest: int = 1
) -> float:
    """Return the epsilon of a query against someone who knows all but ``parts`` parts of its noise.

    The rest is the difference of two negative binomial variables of shape ``r = parts / honest``.
    With ``r >= 1`` it is a discrete Laplace variable with more noise on it: ``epsilon`` holds. With
    ``r < 1`` its probabilities are mixtures of geometric ones, ``C(k + r - 1, k)`` being moments of
    a beta distribution, so ``P(k) / P(k + 1)`` falls with ``k`` and a row tells most where it is
    missing from the very count: ``sensitivity * ln(P(0) / P(1))``. As ``epsilon`` falls this falls
    like ``epsilon ** (2 r - 1)``; with ``r <= 1 / 2`` not below ``ln((1 - r) / r)``.

    Parameters
    ----------
    epsilon, sensitivity, honest
        As of :func:`discrete_laplace_part`.
    parts : int
        Parts of the sum that stay secret.

    Returns
    -------
    float
        Infinite where no part stays secret.
    """
    if not parts:
        return math.inf
    if parts >= honest:
        return epsilon
    step, shape = epsilon / sensitivity, parts / honest
    # P(0) is the sum of p(k) ** 2, and P(1) that of p(k) p(k + 1), where p is one variable's:
    # ln(P(0) / P(1)) = step - ln(1 - (1 - r) E[1 / (k + 1)]), k drawn by p(k) ** 2 < q ** (2 k).
    k = np.arange(1, int(23 / step) + 64)
    p = np.cumprod(np.concatenate([[1.0], math.exp(-step) * (k - 1 + shape) / k]))
    weights = p**2
    mean = float(weights @ (1.0 / np.arange(1, len(p) + 1))) / float(weights.sum())
    return sensitivity * (step - math.log1p(-(1.0 - shape) * mean))
