"""EC-ElGamal over ristretto255 for quantised gradient pairs: additive, small, and fast.

A row's ciphertext is ``(r·G, g·G + r·P1, h·G + r·P2)`` with one fresh r for both values: three
ristretto255 encodings, 96 bytes. Adding ciphertexts adds plaintexts; decryption multiplies once
for each value and looks the discrete logarithm up, which is why plaintexts *and their sums* have
to lie in a stated range, at most ±2^40. :class:`ValueRange` proves that before anything is
encrypted, and refuses where it cannot.

Assumption: decisional Diffie-Hellman in ristretto255, about 128 bits; two values may share their
randomness because each has a key of its own (Kurosawa 2002). Re-randomisation is perfect: the sum
with a fresh encryption of zero is distributed as a fresh encryption. Every element is validated
when it is decoded, and the group has prime order, so there are no small subgroups to leak into.

Not constant-time: additions from tables read addresses that depend on r, and the logarithm's time
depends on its value; keep the process on a machine of the silo.

References
----------
ElGamal 1985; Kurosawa 2002 (multi-recipient encryption with shared randomness); RFC 9496
(ristretto255); Shanks 1971 (baby steps, giant steps).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic import curve25519
from hedgerow.crypto.arithmetic.curve_kernels import (
    MOST_VALUE_BITS,
    NOT_FOUND,
    ROW_BYTES,
    SCALAR_BYTES,
    CurveKernel,
    CurveRows,
    CurveSums,
)
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.bin_sums import Bins, BinSumPlan, plan_bin_sums
from hedgerow.crypto.errors import InvalidPoint, KeyRejected, RangeRefused

Entropy = Callable[[int], bytes]
"""Gives that many secret uniform bytes, as ``os.urandom`` does."""

ENCODING_BYTES = 32
PUBLIC_MAGIC = b"HGE1"
"""Before a public key where keys of other schemes may come, too."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The range proof: every value within ±2^value_bits, at most n_rows of them in a sum.

    Raises
    ------
    RangeRefused
        If ``value_bits + log2(n_rows)`` exceeds 40.
    """

    value_bits: int
    """Precision of a quantised value, sign apart."""
    n_rows: int
    """CurveRows that one sum can hold."""

    def __post_init__(self) -> None:
        if self.value_bits < 0 or self.n_rows < 1:
            raise RangeRefused("a precision of at least 0 bits and at least one row expected")
        if self.sum_limit > 1 << MOST_VALUE_BITS:
            raise RangeRefused(
                f"sums of {self.n_rows} values of {self.value_bits} bits need "
                f"{(self.sum_limit - 1).bit_length()} bits; EC-ElGamal decrypts "
                f"{MOST_VALUE_BITS}: lower the precision, or use Paillier"
            )

    @property
    def value_limit(self) -> int:
        """Largest absolute value of a row."""
        return 1 << self.value_bits

    @property
    def sum_limit(self) -> int:
        """Largest absolute value of a sum."""
        return self.n_rows << self.value_bits


@dataclass(frozen=True, slots=True)
class ElGamalPublicKey:
    """P1 = x1·G for the first value of a row and P2 = x2·G for the second, encoded."""

    p1: bytes
    p2: bytes

    def __post_init__(self) -> None:
        for encoding in (self.p1, self.p2):
            try:
                curve25519.ristretto_decode(encoding)
            except InvalidPoint as error:
                raise KeyRejected(f"public key: {error}") from error
            if encoding == bytes(ENCODING_BYTES):
                raise KeyRejected("public key: it is the identity, which hides nothing")
        if self.p1 == self.p2:
            raise KeyRejected("public key: both halves are equal, so values would cancel")

    def to_bytes(self) -> bytes:
        """Give the 64 bytes that travel."""
        return self.p1 + self.p2

    @classmethod
    def from_bytes(cls, data: bytes) -> ElGamalPublicKey:
        """Read 64 bytes; :class:`KeyRejected` for anything but two usable elements."""
        if len(data) != 2 * ENCODING_BYTES:
            raise KeyRejected(
                f"public key: {2 * ENCODING_BYTES} bytes expected, received {len(data)}"
            )
        return cls(data[:ENCODING_BYTES], data[ENCODING_BYTES:])


@dataclass(frozen=True, slots=True, repr=False)
class ElGamalPrivateKey:
    """The logarithms x1 and x2 of the public key, each in 1 .. order - 1."""

    x1: int
    x2: int

    def __post_init__(self) -> None:
        if not all(0 < x < curve25519.ORDER for x in (self.x1, self.x2)) or self.x1 == self.x2:
            raise KeyRejected("private key: two different scalars below the order expected")

    def public_key(self) -> ElGamalPublicKey:
        """Give the public half."""
        p1, p2 = (curve25519.multiply(x, curve25519.BASE) for x in (self.x1, self.x2))
        return ElGamalPublicKey(curve25519.ristretto_encode(p1), curve25519.ristretto_encode(p2))

    def to_bytes(self) -> bytes:
        """Give 64 secret bytes."""
        return self.x1.to_bytes(32, "little") + self.x2.to_bytes(32, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> ElGamalPrivateKey:
        """Read 64 secret bytes."""
        if len(data) != 64:
            raise KeyRejected(f"private key: 64 bytes expected, received {len(data)}")
        return cls(int.from_bytes(data[:32], "little"), int.from_bytes(data[32:], "little"))


def generate_private_key() -> ElGamalPrivateKey:
    """Draw a key from the operating system's randomness."""
    order = int(curve25519.ORDER)
    while True:
        x1, x2 = (1 + secrets.randbelow(order - 1) for _ in range(2))
        if x1 != x2:
            return ElGamalPrivateKey(x1, x2)


class ElGamalOperations:
    """What anybody can do with a public key: encrypt, add up, re-randomise.

    Parameters
    ----------
    value_range : ValueRange
        What the key's holder can decrypt; agreed on beforehand.
    entropy : callable
        Source of every ciphertext's randomness; never give the same bytes twice.
    """

    def __init__(
        self,
        public_key: ElGamalPublicKey,
        value_range: ValueRange,
        kernel: CurveKernel | None = None,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.public_key, self.value_range = public_key, value_range
        self.kernel = kernel or Engine().curve()
        self._entropy = entropy
        self._masker = self.kernel.masker(public_key.p1, public_key.p2)

    def encrypt(self, g: NDArray[np.int64], h: NDArray[np.int64]) -> bytes:
        """Encrypt rows.

        Parameters
        ----------
        g, h : ndarray of shape (n,), int64
            Quantised values within ``value_range``.

        Returns
        -------
        bytes
            96 bytes a row.

        Raises
        ------
        RangeRefused
            If a value lies outside of the range, or there are more rows than it was proved for.
        """
        g, h = _as_values(g), _as_values(h)
        if g.shape != h.shape:
            raise ValueError(f"as many g as h expected, received {len(g)} and {len(h)}")
        if len(g) > self.value_range.n_rows:
            raise RangeRefused(
                f"the range was proved for {self.value_range.n_rows} rows, received {len(g)}"
            )
        limit = self.value_range.value_limit
        for values in (g, h):
            if len(values) and not (values.min() >= -limit and values.max() <= limit):
                raise RangeRefused(f"values within ±2^{self.value_range.value_bits} expected")
        return self._masker.encrypt(self._entropy(SCALAR_BYTES * len(g)), g, h)

    def load(self, ciphertexts: bytes) -> CurveRows:
        """Decode and validate rows for adding up.

        Raises
        ------
        InvalidPoint
            If the bytes are no whole rows, or an element is invalid; names the row.
        RangeRefused
            If there are more rows than the range was proved for.
        """
        if len(ciphertexts) > ROW_BYTES * self.value_range.n_rows:
            raise RangeRefused(
                f"the range was proved for {self.value_range.n_rows} rows, "
                f"received {len(ciphertexts) // ROW_BYTES}"
            )
        return self.kernel.load(ciphertexts)

    def histogram(
        self,
        rows: CurveRows,
        bins: Bins,
        n_bins: int,
        members: NDArray[np.int64] | None = None,
    ) -> bytes:
        """Sum rows by bin for every feature, and re-randomise every sum.

        Parameters
        ----------
        rows : CurveRows
            From :meth:`load`.
        bins : ndarray of shape (n_rows, n_features), uint8 or uint16
            Bin of every row and feature.
        members : ndarray of shape (n_members,), int64, optional
            CurveRows of the node, each once; all by default.

        Returns
        -------
        bytes
            n_features · n_bins ciphertexts, feature by feature; empty bins are encryptions of 0.
        """
        if len(bins) != len(rows):
            raise ValueError(f"bins of {len(rows)} rows expected, received {len(bins)}")
        if members is not None and len(np.unique(members)) != len(members):
            raise ValueError("members: every row at most once expected")
        return self.rerandomise(sum_bins(rows, plan_bin_sums(bins, n_bins, members)))

    def rerandomise(self, sums: CurveSums) -> bytes:
        """Encode sums with fresh randomness, as everything that leaves a party has to have."""
        return self._masker.rerandomise(sums, self._entropy(SCALAR_BYTES * len(sums)))


def sum_bins(rows: CurveRows, plan: BinSumPlan) -> CurveSums:
    """Carry a plan's additions out; the sums are neither encoded nor re-randomised."""
    points = rows.sum_segments(plan.rows.index.astype(np.uint32), plan.rows.starts)
    if len(plan.derived):
        points = points.append(points.combine(plan.total.index, plan.total.starts))
        points = points.append(points.combine(plan.derived.index, plan.derived.starts))
    return points.combine(plan.bins.index, plan.bins.starts)


class ElGamalDecryption:
    """What the private key is for.

    Parameters
    ----------
    value_range : ValueRange
        CurveSums of this range are found; its table of logarithms has 17 MB up to 2^32, else 67 MB.
    """

    def __init__(
        self,
        private_key: ElGamalPrivateKey,
        value_range: ValueRange,
        kernel: CurveKernel | None = None,
    ) -> None:
        kernel = kernel or Engine().curve()
        self._opener = kernel.opener(private_key.x1, private_key.x2, value_range.sum_limit)

    def decrypt(self, ciphertexts: bytes) -> NDArray[np.int64]:
        """Decrypt rows or sums.

        Returns
        -------
        ndarray of shape (n, 2), int64
            (g, h) of every ciphertext.

        Raises
        ------
        InvalidPoint
            If the bytes are no whole ciphertexts, or an element is invalid; names the ciphertext.
        RangeRefused
            If a sum lies outside of the range, as those of a foreign key do.
        """
        values = self._opener.decrypt(ciphertexts)
        lost = np.flatnonzero((values == NOT_FOUND).any(axis=1))
        if len(lost):
            raise RangeRefused(
                f"ciphertext {lost[0]} and {len(lost) - 1} others decrypt to no value in range: "
                "encrypted for another key, or sums of more rows than stated"
            )
        return values


def _as_values(values: NDArray[np.int64]) -> NDArray[np.int64]:
    if values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"int64 vectors expected, received {values.dtype} of shape {values.shape}")
    return np.ascontiguousarray(values)
