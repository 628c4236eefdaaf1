"""Vectors of residues of one odd modulus: the arithmetic under Paillier.

Residues stay in a kernel's own form between operations (an opaque array, one residue an item of
its first axis, so slicing and concatenating work) and cross a boundary as little-endian bytes.
:mod:`hedgerow.crypto.arithmetic.engine` chooses the kernel.

Nothing here is constant-time: table look-ups and window digits depend on secrets, and someone who
runs code on the same core could observe them. Keep the crypto process on a machine of the silo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

Residues: TypeAlias = "NDArray[np.generic]"
"""Opaque residues of shape (n, ...): uint64 words in C kernels, mpz objects with gmpy2."""

LEAST_SHARED_WORK = 20_000
"""Multiplications below which a batch stays on the calling core."""


class FixedBases:
    """Bases of a fixed-base product, with the table that each kernel builds from them.

    Parameters
    ----------
    modulus
        The arithmetic of the table.
    bases
        One base a row. Row i of the table holds powers 0 to 255 of ``bases[i]``, so that the
        product over a string of bytes d is the product of ``bases[i] ** d[i]``.
    """

    def __init__(self, modulus: Modulus, bases: Sequence[int]) -> None:
        if not bases:
            raise ValueError("expected at least one base")
        self.modulus = modulus
        self.bases = tuple(mpz(base) for base in bases)
        self._table: Residues | None = None

    @property
    def table(self) -> Residues:
        """The kernel's table, built where it is used: gmpy2's worker processes have their own."""
        # No cached_property: its lock, one for all tables, would stay locked in a forked process.
        if self._table is None:
            self._table = self.modulus.base_table(self.bases)
        return self._table

    def products(self, digits: NDArray[np.uint8]) -> Residues:
        """Return one product for every row of ``digits`` of shape (n, n_bases)."""
        if digits.ndim != 2 or digits.shape[1] != len(self.bases):
            raise ValueError(
                f"expected {len(self.bases)} digits a product, received {digits.shape}"
            )
        return self.modulus.fixed_base_products(self, digits)


class Modulus(ABC):
    """Arithmetic on vectors of residues modulo one odd number."""

    def __init__(self, value: int, workers: int) -> None:
        if value < 3 or value % 2 == 0:
            raise ValueError("expected an odd modulus above 1")
        self.value = mpz(value)
        self.workers = workers
        self.n_bytes = (self.value.bit_length() + 7) // 8

    @abstractmethod
    def load(self, data: NDArray[np.uint8]) -> Residues:
        """Return residues of little-endian integers, of any width, of shape (n, width)."""

    @abstractmethod
    def store(self, residues: Residues) -> NDArray[np.uint8]:
        """Return canonical little-endian bytes of shape (n, n_bytes)."""

    @abstractmethod
    def multiply(self, a: Residues, b: Residues) -> Residues:
        """Return elementwise products; ``b`` may be a single residue for all."""

    @abstractmethod
    def add(self, a: Residues, b: Residues) -> Residues:
        """Return elementwise sums."""

    @abstractmethod
    def power(self, a: Residues, exponent: int) -> Residues:
        """Return every residue raised to one non-negative exponent."""

    @abstractmethod
    def horner(self, a: Residues, slots: int, shift: int) -> Residues:
        """Return, for each run of ``slots`` residues, c ← c^(2^shift)·next over the run."""

    @abstractmethod
    def segment_products(
        self, a: Residues, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Residues:
        """Return product s of ``a[index[k]]`` over start[s] ≤ k < start[s + 1]; 1 when empty."""

    @abstractmethod
    def base_table(self, bases: Sequence[int]) -> Residues:
        """Return what :meth:`fixed_base_products` looks up, in the kernel's own arrangement."""

    @abstractmethod
    def fixed_base_products(self, bases: FixedBases, digits: NDArray[np.uint8]) -> Residues:
        """See :meth:`FixedBases.products`."""

    def all_products(
        self, wanted: Sequence[tuple[FixedBases, NDArray[np.uint8]]]
    ) -> list[Residues]:
        """Return what :meth:`FixedBases.products` does of several bases of the same engine."""
        return [bases.products(digits) for bases, digits in wanted]

    def from_ints(self, values: Sequence[int]) -> Residues:
        """Return residues of integers, which may be negative or above the modulus."""
        return self.load(ints_to_bytes([v % self.value for v in values], self.n_bytes))

    def to_ints(self, residues: Residues) -> list[int]:
        """Return canonical residues as gmpy2 integers."""
        return bytes_to_ints(self.store(residues))

    def ones(self, n: int) -> Residues:
        """Return n residues of 1."""
        return np.repeat(self.from_ints([1]), n, axis=0)

    def product(self, a: Residues) -> Residues:
        """Return the product of all residues, a vector of one."""
        while len(a) > 1:
            parts = max(1, min(8 * self.workers, len(a) // 8))
            start = np.linspace(0, len(a), parts + 1).astype(np.int64)
            a = self.segment_products(a, np.arange(len(a), dtype=np.uint32), start)
        return a if len(a) else self.ones(1)


def ints_to_bytes(values: Sequence[int], width: int) -> NDArray[np.uint8]:
    """Return non-negative integers as little-endian bytes of shape (n, width)."""
    data = b"".join([int(v).to_bytes(width, "little") for v in values])
    return np.frombuffer(data, np.uint8).reshape(len(values), width)


def bytes_to_ints(data: NDArray[np.uint8]) -> list[int]:
    """Return gmpy2 integers of little-endian rows."""
    return list(each_int(data))


def each_int(data: NDArray[np.uint8]) -> Iterator[int]:
    """Yield the gmpy2 integers of little-endian rows."""
    n, width = data.shape
    raw = np.ascontiguousarray(data).reshape(-1).data
    for i in range(0, n * width, width):
        yield mpz(int.from_bytes(raw[i : i + width], "little"))


def balanced_cuts(start: NDArray[np.int64], parts: int) -> list[int]:
    """Return segment numbers that cut the segments into ranges of about equal length."""
    goals = np.linspace(start[0], start[-1], parts + 1)[1:-1]
    cuts = {0, len(start) - 1, *np.searchsorted(start, goals).tolist()}
    return sorted(cuts)
