"""Fixed-point integers in a ring: sums that are exact for any order and number of silos.

Each row's value is quantised before it is summed, ``q = rint(x * 2**s)``, so that sums are sums of
integers. A sum is sent as a residue modulo ``2**ring_bits``; negative sums wrap around (two's
complement). The number of fraction bits ``s`` comes from a bound on the values and the number of
rows of all silos together, which proves that no sum can leave the ring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.errors import InputRefused

RINGS = (32, 48, 64)
"""Supported ring widths in bits; a residue takes 4, 6 or 8 bytes on the wire."""

MAX_FRACTION_BITS = 52
"""More would quantise beyond the precision of a float64 between 1 and 2."""


class OutOfRange(InputRefused):
    """A value that is not finite or exceeds the bound that the range proof assumes."""


def check_ring(ring_bits: int) -> None:
    """Raise ``ValueError`` unless ``ring_bits`` is one of :data:`RINGS`."""
    if ring_bits not in RINGS:
        raise ValueError(f"ring_bits must be one of {RINGS}, not {ring_bits}")


def residue_dtype(ring_bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the dtype that residues of a ring are computed in: uint32 for 32 bits, else uint64."""
    check_ring(ring_bits)
    return np.dtype(np.uint32 if ring_bits == 32 else np.uint64)


def reduce_residues(values: NDArray[np.unsignedinteger], ring_bits: int) -> None:
    """Reduce ``values`` modulo ``2**ring_bits`` in place (only a 48-bit ring needs work)."""
    if ring_bits == 48:
        np.bitwise_and(values, np.uint64((1 << 48) - 1), out=values)


def fraction_bits(n_rows: int, bound: float, ring_bits: int = 64) -> int:
    """Return the largest safe number of fraction bits for sums of ``n_rows`` bounded values.

    ``s = min(52, ring_bits - 3 - ceil(log2(n_rows * bound)))``, so that every partial sum stays
    below ``2**(ring_bits - 2)``. Negative where the bound is large: values are then rounded to
    multiples of a power of two above one.

    Parameters
    ----------
    n_rows : int
        Rows of all silos together (each counted as often as its value may enter one sum).
    bound : float
        Largest magnitude of a value; finite, not negative.
    """
    check_ring(ring_bits)
    _check_bound(n_rows, bound)
    return min(MAX_FRACTION_BITS, ring_bits - 3 - log2_ceil(n_rows * Fraction(bound)))


def _check_bound(n_rows: int, bound: float) -> None:
    if n_rows < 0 or not math.isfinite(bound) or bound < 0:
        raise OutOfRange(
            f"expected a row count >= 0 and a finite bound >= 0, received {n_rows}, {bound}"
        )


def log2_ceil(value: Fraction | float) -> int:
    """Return the least integer ``k`` with ``value <= 2**k``, exactly; -1074 at least, also for 0.

    This is what silos offer of the largest gradient magnitude where a loss has no bound.
    """
    exact = Fraction(value)
    if exact <= 0:
        return -1074
    k = exact.numerator.bit_length() - exact.denominator.bit_length()
    while exact > Fraction(2) ** k:
        k += 1
    while exact <= Fraction(2) ** (k - 1):
        k -= 1
    return max(k, -1074)


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """One quantisation, with the proof that its sums fit the ring.

    Raises
    ------
    OutOfRange
        The range proof fails: some sum of ``n_rows`` values could leave the ring.
    """

    n_rows: int
    """Rows of all silos together."""
    bound: float
    """Largest magnitude of a row's value."""
    fraction_bits: int
    """``s``: a row's value becomes ``rint(x * 2**s)``."""
    ring_bits: int = 64
    """32, 48 or 64."""

    def __post_init__(self) -> None:
        check_ring(self.ring_bits)
        _check_bound(self.n_rows, self.bound)
        if self.largest_sum() >= 1 << (self.ring_bits - 1):
            raise OutOfRange(
                f"{self.n_rows} values up to {self.bound} with {self.fraction_bits} fraction bits "
                f"do not fit a {self.ring_bits}-bit ring"
            )

    @classmethod
    def fitting(cls, n_rows: int, bound: float, ring_bits: int = 64) -> FixedPoint:
        """Return the finest quantisation whose range proof holds (see :func:`fraction_bits`)."""
        return cls(n_rows, bound, fraction_bits(n_rows, bound, ring_bits), ring_bits)

    def largest_row(self) -> int:
        """Return the largest ``|q|`` of one row, under either rounding rule."""
        return math.ceil(Fraction(self.bound) * Fraction(2) ** self.fraction_bits)

    def largest_sum(self) -> int:
        """Return the proven bound on the magnitude of any sum of at most ``n_rows`` values."""
        return self.n_rows * self.largest_row()

    def quantise(
        self, values: NDArray[np.floating], rng: np.random.Generator | None = None
    ) -> NDArray[np.int64]:
        """Return ``rint(x * 2**s)`` of each value, half to even.

        With ``rng`` rounding is stochastic instead: up with the probability of the fraction cut
        off, so that the expectation is the value. It is meant for few fraction bits, where the
        bias of rounding would show; the generator need not be secret.

        Raises
        ------
        OutOfRange
            A value is NaN, infinite or larger than ``bound``. The message names no value.
        """
        x = np.asarray(values, dtype=np.float64)
        if x.size and not np.abs(x).max() <= self.bound:  # NaN fails the comparison too
            raise OutOfRange(f"some of {x.size} values are not finite or exceed the bound")
        scaled = np.ldexp(x, self.fraction_bits)
        if rng is None:
            np.rint(scaled, out=scaled)
        else:
            floor = np.floor(scaled)
            scaled -= floor  # the fraction cut off, exact
            np.add(floor, rng.random(scaled.shape) < scaled, out=scaled)
        return scaled.astype(np.int64)

    def residues(self, sums: NDArray[np.signedinteger]) -> NDArray[np.unsignedinteger]:
        """Return integer sums as residues of the ring (wrap-around, two's complement)."""
        out = np.asarray(sums, dtype=np.int64).astype(residue_dtype(self.ring_bits))
        reduce_residues(out, self.ring_bits)
        return out

    def integers(self, residues: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
        """Return the signed sums behind residues: the representative nearest to zero.

        Raises
        ------
        OutOfRange
            A sum exceeds the proven bound: some silo did not keep to the quantisation.
        """
        sums = signed(residues, self.ring_bits)
        limit = self.largest_sum()
        if sums.size and (int(sums.max()) > limit or int(sums.min()) < -limit):
            raise OutOfRange("a sum exceeds the bound that the range proof allows")
        return sums

    def decode(self, residues: NDArray[np.unsignedinteger]) -> NDArray[np.float64]:
        """Return the sums as float64: the exact integer rounded once, times ``2**-s``."""
        return np.ldexp(self.integers(residues).astype(np.float64), -self.fraction_bits)


def signed(residues: NDArray[np.unsignedinteger], ring_bits: int) -> NDArray[np.int64]:
    """Return residues as the signed integers nearest to zero, int64 of the same shape."""
    check_ring(ring_bits)
    if ring_bits == 32:
        return residues.astype(np.uint32).view(np.int32).astype(np.int64)
    wide = residues.astype(np.uint64).view(np.int64)
    if ring_bits == 48:
        wide = (wide << 16) >> 16
    return wide


def pack(residues: NDArray[np.unsignedinteger], ring_bits: int) -> memoryview:
    """Return residues as bytes: little-endian, ``ring_bits / 8`` bytes each, C order.

    A view where no bit has to be moved; it shows what is later done to ``residues``.
    """
    flat = np.ascontiguousarray(residues, dtype=residue_dtype(ring_bits)).reshape(-1)
    little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    if ring_bits == 48:
        pairs = little.view("<u2").reshape(-1, 4)
        packed = np.empty((len(pairs), 3), dtype="<u2")
        for column in range(3):  # whole columns: four times as fast as one copy of rows
            packed[:, column] = pairs[:, column]
        return packed.reshape(-1).view(np.uint8).data
    return little.view(np.uint8).data


def unpack(
    pieces: Iterable[bytes | memoryview], n_values: int, ring_bits: int
) -> NDArray[np.unsignedinteger]:
    """Return the residues that :func:`pack` wrote, shape (n_values,), writable.

    Parameters
    ----------
    pieces : iterable of bytes-like
        The bytes, cut anywhere.

    Raises
    ------
    ValueError
        They are not as many as ``n_values`` residues take.
    """
    dtype = residue_dtype(ring_bits)
    packed = np.empty(n_values * (ring_bits // 8), dtype=np.uint8)
    given = list(pieces)
    n_bytes = sum(len(piece) for piece in given)
    if n_bytes != packed.shape[0]:
        raise ValueError(f"expected {packed.shape[0]} bytes of residues, received {n_bytes}")
    at = 0
    for piece in given:
        packed[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        at += len(piece)
    if ring_bits == 48:
        pairs = packed.view("<u2").reshape(-1, 3)
        wide = np.zeros((len(pairs), 4), dtype="<u2")
        for column in range(3):
            wide[:, column] = pairs[:, column]
        out = wide.view(dtype.newbyteorder("<")).reshape(-1)
    else:
        out = packed.view(dtype.newbyteorder("<"))
    return out.astype(dtype, copy=False)
