"""Sums of float vectors over silos: in the clear, or as secure sums of fixed-point integers.

Secure sums need a bound on the values before these are rounded to integers. Silos agree on one:
each offers the exponent of its largest value (one small exchange), the coordinator answers with the
largest of them, and all round to the finest step whose sums are proven to stay in the ring. The
rounding error of an element is at most ``n_silos · 2**(exponent − 58)`` in a 64-bit ring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, SumCorrupt
from hedgerow.boosting.exchange import Call, Discloses, Hub, Link, Place, Silo, Step
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import ExponentBound, ExponentOffer, SumSteps, sum_steps
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.fixed_point import FixedPoint, OutOfRange, log2_ceil

Floats = NDArray[np.float64]
Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class FloatSum(Generic[Offer, Reply]):
    """The exchanges of one kind of sum.

    Parameters
    ----------
    name : str
    plain : Step
        Vectors in the clear, in the strategy's own payload.
    bound : Step
        Exponents, before a secure sum.
    secure : SumSteps
        Masked vectors.
    ring_bits : int
    """

    name: str
    plain: Step[Offer, Reply]
    bound: Step[ExponentOffer, ExponentBound]
    secure: SumSteps[Reply]
    ring_bits: int = 64


def float_sum(
    name: str,
    call: Call,
    offer: type[Offer],
    reply: type[Reply],
    what: str,
    plain: Discloses,
    ring_bits: int = 64,
) -> FloatSum[Offer, Reply]:
    """Return the exchanges of a kind of sum.

    Parameters
    ----------
    name : str
        Unique within the strategy.
    call : Call
    offer : type
        The strategy's payload of a vector in the clear.
    reply : type
        The strategy's reply, to either kind of sum.
    what : str
        What the sum is of, for the silo's ledger.
    plain : Discloses
        What a silo's vector discloses in the clear.
    ring_bits : int
    """
    return FloatSum(
        name,
        Step(name, call, offer, reply, what, plain),
        Step(
            f"{name}-bound",
            Call.SUMS,
            ExponentOffer,
            ExponentBound,
            f"the power of two above the largest of: {what}",
            Discloses.SCHEMA,
        ),
        sum_steps(f"{name}-sum", call, call, reply, what, plain),
        ring_bits,
    )


def exponent_of(vector: Floats) -> int:
    """Return the least ``e`` with ``|vector| <= 2**e``.

    Raises
    ------
    DataError
        A value is not finite.
    """
    largest = float(np.abs(vector).max(initial=0.0))
    if not math.isfinite(largest):
        raise DataError("expected finite values to add, received one that is not")
    return log2_ceil(largest)


def add_securely(
    link: Link,
    sums: SiloSums,
    kind: FloatSum[Offer, Reply],
    at: Place,
    vector: Floats,
    state: bytes,
) -> Reply:
    """Add a silo's vector to a secure sum; return the strategy's reply (silo half).

    ``state`` is as in :meth:`~.silo.SiloSums.sum`.
    """
    bound = link.exchange(kind.bound, at, ExponentOffer(exponent_of(vector)))
    fixed = _fixed(bound.n_silos, bound.exponent, kind.ring_bits)
    residues = fixed.residues(fixed.quantise(vector))
    rounded = state_digest(state, bound.exponent, bound.n_silos)
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
    hub: Hub,
    sums: CoordinatorSums,
    kind: FloatSum[Offer, Reply],
    at: Place,
    n_values: int,
    quorum: int,
) -> SecureTotal[Reply]:
    """Return the sum of the participants' vectors (coordinator half)."""
    members = sums.participants
    exponents = await hub.collect(
        kind.bound, at, silos=members, since=sums.left, quorum=max(quorum, 1)
    )
    largest = max(offer.exponent for offer in exponents.values())
    bound = ExponentBound(largest, len(members))
    hub.answer(kind.bound, at, dict.fromkeys(exponents, bound))
    outcome = await sums.sum(kind.secure, at, n_values, ring=kind.ring_bits)
    assert outcome.total is not None, "only sums over a fixed set are abandoned"
    fixed = _fixed(bound.n_silos, bound.exponent, kind.ring_bits)
    try:
        total = fixed.decode(outcome.total)
    except OutOfRange as error:
        raise SumCorrupt(f"sum {kind.name!r} of round {at.round}: {error}") from error
    return SecureTotal(total, outcome, sums, kind.secure)


def _fixed(n_silos: int, exponent: int, ring_bits: int) -> FixedPoint:
    return FixedPoint.fitting(n_silos, float(np.ldexp(1.0, exponent)), ring_bits)
