"""Sums of float vectors over silos: in the clear, or as secure sums of fixed-point integers.

Secure sums need a bound on what is added before it is rounded to integers. Silos agree on one:
each offers the exponent of its largest value (one small exchange), the coordinator answers the
largest of them, and all round to the finest step whose sums are proven to stay in the ring. The
rounding error of an element is at most ``n_silos · 2**(exponent − 58)`` in a 64-bit ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Hub, Link, Place, Silo, Step
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumSteps, sum_steps
from hedgerow.boosting.tensors import Tensors
from hedgerow.crypto.fixed_point import FixedPoint, log2_ceil

Floats = NDArray[np.float64]

_EXPONENTS = (-1074, 1023)


@dataclass(frozen=True, slots=True)
class FloatSum:
    """The exchanges of one kind of sum, answered by :class:`~hedgerow.boosting.tensors.Tensors`.

    Parameters
    ----------
    plain : Step
        Vectors, in whatever form the strategy gives them.
    bound : Step
        Exponents, before a secure sum.
    secure : SumSteps
        Masked vectors.
    ring_bits : int
    """

    name: str
    plain: Step[Tensors, Tensors]
    bound: Step[Tensors, Tensors]
    secure: SumSteps[Tensors]
    ring_bits: int = 64


def float_sum(name: str, call: Call, what: str, ring_bits: int = 64) -> FloatSum:
    """Return the exchanges of a kind of sum; ``what`` says for the ledger what is added."""
    return FloatSum(
        name,
        Step(name, call, Tensors, Tensors, what),
        Step(
            f"{name}-bound",
            Call.SUMS,
            Tensors,
            Tensors,
            f"the power of two above the largest of: {what}",
        ),
        sum_steps(f"{name}-sum", call, call, Tensors, what),
        ring_bits,
    )


def exponent_of(vector: Floats) -> int:
    """Return the least ``e`` with ``|vector| <= 2**e``."""
    return log2_ceil(float(np.abs(vector).max(initial=0.0)))


def add_securely(link: Link, sums: SiloSums, kind: FloatSum, at: Place, vector: Floats) -> Tensors:
    """Add a silo's vector to a secure sum; return the strategy's reply (silo half)."""
    offer = Tensors({"exponent": np.array([exponent_of(vector)], np.int64)})
    bound = link.exchange(kind.bound, at, offer)
    exponent, n_silos = (int(v) for v in bound.get("exponent", "<i8", (2,)))
    fixed = _fixed(n_silos, exponent, kind.ring_bits)
    residues = fixed.residues(fixed.quantise(vector))
    return sums.sum(kind.secure, at, residues, ring_bits=kind.ring_bits)


@dataclass(frozen=True, slots=True)
class SecureTotal:
    """A secure sum as the coordinator half gets it; :meth:`answer` releases the silos."""

    total: Floats
    present: tuple[Silo, ...]
    answer: _Answer


class _Answer:
    """Answers the silos of one sum, once."""

    def __init__(self, sums: CoordinatorSums, kind: FloatSum, outcome: object) -> None:
        self._sums, self._kind, self._outcome = sums, kind, outcome

    def __call__(self, reply: Tensors | Mapping[Silo, Tensors]) -> None:
        self._sums.answer(self._kind.secure, self._outcome, reply)  # type: ignore[arg-type]


async def total_securely(
    hub: Hub, sums: CoordinatorSums, kind: FloatSum, at: Place, n_values: int, quorum: int
) -> SecureTotal:
    """Return the sum of the participants' vectors (coordinator half)."""
    members = sums.participants
    exponents = await hub.collect(
        kind.bound, at, read=_exponent, silos=members, quorum=max(quorum, 1)
    )
    largest = max(exponents.values())
    reply = Tensors({"exponent": np.array([largest, len(members)], np.int64)})
    hub.answer(kind.bound, at, dict.fromkeys(exponents, reply))
    outcome = await sums.sum(kind.secure, at, n_values, ring_bits=kind.ring_bits)
    assert outcome.total is not None, "only sums over a fixed set are abandoned"
    fixed = _fixed(len(members), largest, kind.ring_bits)
    return SecureTotal(fixed.decode(outcome.total), outcome.present, _Answer(sums, kind, outcome))


def _exponent(silo: Silo, offer: Tensors) -> int:
    exponent = int(offer.get("exponent", "<i8", (1,))[0])
    if not _EXPONENTS[0] <= exponent <= _EXPONENTS[1]:
        raise OfferRejected(f"exponent: expected {_EXPONENTS[0]} to {_EXPONENTS[1]}")
    return exponent


def _fixed(n_silos: int, exponent: int, ring_bits: int) -> FixedPoint:
    return FixedPoint.fitting(n_silos, float(np.ldexp(1.0, exponent)), ring_bits)
