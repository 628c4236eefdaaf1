"""Secure sums of float vectors, as fixed-point integers.

Before these are rounded to integers, silos find the power of two above the largest value of all of
them by a secure sum that tells nothing else (:mod:`~.maximum`), and all round to the finest step
whose sums are proven to stay in the ring. The rounding error of an element is at most
``n_silos · 2**(exponent − 58)`` in a 64-bit ring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo, Step
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.maximum import HIGHEST, add_maximum, total_maximum
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumSteps, SumTotal, sum_steps
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.masking.fixed_point import FixedPoint, OutOfRange, log2_ceil

Floats = NDArray[np.float64]
Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class FloatSum(Generic[Offer, Reply]):
    """The exchanges of one kind of sum."""

    name: str
    plain: Step[Offer, Reply]
    """Vectors in the clear, in the strategy's own payload."""
    bound: SumSteps[SumTotal]
    """The largest exponents, before a secure sum."""
    secure: SumSteps[Reply]
    """Masked vectors."""
    ring_bits: int = 64


def float_sum(
    name: str,
    call: Call,
    offer: type[Offer],
    reply: type[Reply],
    what: str,
    plain: Discloses,
    ring_bits: int = 64,
    largest: str = "",
) -> FloatSum[Offer, Reply]:
    """Return the exchanges of a kind of sum.

    Parameters
    ----------
    name : str
        Unique within the strategy.
    offer : type
        The strategy's payload of a vector in the clear.
    reply : type
        The strategy's reply, to either kind of sum.
    what : str
        What the sum is of, for the silo's ledger.
    plain : Discloses
        What a silo's vector discloses in the clear.
    largest : str
        What silos find the largest of before the sum, for the silo's ledger.
    """
    return FloatSum(
        name,
        Step(name, call, offer, reply, what, plain),
        sum_steps(
            f"{name}-bound",
            Call.SUMS,
            Call.SUMS,
            SumTotal,
            f"the power of two above the largest of: {largest or what}",
            plain,
        ),
        sum_steps(f"{name}-sum", call, call, reply, what, plain),
        ring_bits,
    )


@dataclass(frozen=True, slots=True)
class FloatBound:
    """What silos found before a sum."""

    exponent: int
    """No value of any silo is above two to this power."""
    n_silos: int
    """That the sum may have."""

    def fixed(self, ring_bits: int) -> FixedPoint:
        """Return how values become integers."""
        return FixedPoint.fitting(self.n_silos, math.ldexp(1.0, self.exponent), ring_bits)


def exponent_of(vector: Floats) -> int:
    """Return the least ``e`` with ``|vector| <= 2**e``; for values that are not finite the most."""
    largest = float(np.abs(vector).max(initial=0.0))
    return log2_ceil(largest) if math.isfinite(largest) else HIGHEST


def within(values: Floats, bound: float) -> Floats:
    """Return numbers within a bound; one that is none counts as 0."""
    return np.clip(np.where(np.isnan(values), 0.0, values), -bound, bound)


def add_securely(
    sums: SiloSums, kind: FloatSum[Offer, Reply], at: ExchangeKey, vector: Floats, state: bytes
) -> Reply:
    """Add a silo's vector to a secure sum; return the strategy's reply (silo half).

    A value that is no number counts as 0, one outside the bound as the bound. ``state`` is as in
    :meth:`~.silo.SiloSums.sum`.
    """
    (largest,) = add_maximum(sums, at, (exponent_of(vector),), state=state, steps=kind.bound)
    bound = FloatBound(largest, len(sums.participants))
    fixed = bound.fixed(kind.ring_bits)
    residues = fixed.residues(fixed.quantise(within(vector, fixed.bound)))
    rounded = state_digest(state, bound)
    return sums.sum(kind.secure, at, residues, state=rounded, ring=kind.ring_bits)


@dataclass(frozen=True, slots=True)
class SecureTotal(Generic[Reply]):
    """A secure sum as the coordinator half receives it; :meth:`answer` releases the silos."""

    total: Floats
    outcome: SumOutcome
    sums: CoordinatorSums
    steps: SumSteps[Reply]

    @property
    def present(self) -> tuple[Silo, ...]:
        """Silos whose vectors are in the total."""
        return self.outcome.present

    def answer(self, reply: Reply | Mapping[Silo, Reply]) -> None:
        """Reply to the silos, with one reply for all or one for each."""
        self.sums.answer(self.steps, self.outcome, reply)


async def total_securely(
    sums: CoordinatorSums,
    kind: FloatSum[Offer, Reply],
    at: ExchangeKey,
    n_values: int,
) -> SecureTotal[Reply]:
    """Return the sum of the participants' vectors (coordinator half)."""
    (exponent,), present = await total_maximum(sums, at, 1, kind.bound)
    bound = FloatBound(exponent, len(present))
    outcome = await sums.sum(kind.secure, at, n_values, ring=kind.ring_bits)
    assert outcome.total is not None, "only sums over a fixed set are abandoned"
    try:
        total = bound.fixed(kind.ring_bits).decode(outcome.total)
    except OutOfRange as error:
        raise SumCorrupt(f"sum {kind.name!r} of round {at.round}: {error}") from error
    return SecureTotal(total, outcome, sums, kind.secure)
