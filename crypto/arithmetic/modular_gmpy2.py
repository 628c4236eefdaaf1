"""Residues by gmpy2, which needs no compiler.

gmpy2 holds the interpreter's lock in loops of multiplications, so those go to worker processes;
threads share powers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic import modular
from hedgerow.crypto.arithmetic.modular import (
    FixedBases,
    Modulus,
    Residues,
    balanced_cuts,
    bytes_to_ints,
    each_int,
    ints_to_bytes,
)
from hedgerow.crypto.arithmetic.worker_processes import run_in_processes
from hedgerow.crypto.threads import run_all

_MOST_TABLE_BYTES = 24 << 20
"""Of a table of fixed bases; each worker process has its own."""
_ROWS_A_PASS = 512


class GmpModulus(Modulus):
    """gmpy2; threads share powers, worker processes share loops of multiplications."""

    def _share(self, a: Residues, unit: int, run: Callable[[Residues], list[int]]) -> Residues:
        """Return ``run`` over parts of ``a`` on threads, cut at multiples of ``unit``."""
        size = max(1, -(-len(a) // (unit * self.workers))) * unit
        parts = [a[i : i + size] for i in range(0, len(a), size)]
        if len(parts) < 2:
            return _objects(run(a))
        results = run_all([functools.partial(run, part) for part in parts], self.workers)
        return _objects([value for result in results for value in result])

    def load(self, data: NDArray[np.uint8]) -> Residues:
        m = self.value
        return _objects([v % m for v in each_int(data)])

    def store(self, residues: Residues) -> NDArray[np.uint8]:
        return ints_to_bytes(_integers(residues), self.n_bytes)

    def multiply(self, a: Residues, b: Residues) -> Residues:
        m, x, y = self.value, _integers(a), _integers(b)
        if len(y) == 1:
            return _objects([u * y[0] % m for u in x])
        return _objects([u * v % m for u, v in zip(x, y, strict=True)])

    def add(self, a: Residues, b: Residues) -> Residues:
        m = self.value
        return _objects([(u + v) % m for u, v in zip(_integers(a), _integers(b), strict=True)])

    def power(self, a: Residues, exponent: int) -> Residues:
        # powmod_base_list lets other threads run.
        work = _integers(a)
        if self.workers == 1 or len(work) < 2 or len(work) * exponent.bit_length() < 2000:
            return _objects(gmpy2.powmod_base_list(work, exponent, self.value))
        size = -(-len(work) // self.workers)
        parts = [
            functools.partial(gmpy2.powmod_base_list, work[i : i + size], mpz(exponent), self.value)
            for i in range(0, len(work), size)
        ]
        return _objects([value for part in run_all(parts, self.workers) for value in part])

    def horner(self, a: Residues, slots: int, shift: int) -> Residues:
        m, factor = self.value, mpz(1) << shift

        def run(part: Residues) -> list[int]:
            rows = part.reshape(-1, slots)
            sums = list(rows[:, 0])
            for k in range(1, slots):
                shifted = gmpy2.powmod_base_list(sums, factor, m)
                sums = [u * v % m for u, v in zip(shifted, rows[:, k], strict=True)]
            return sums

        return self._share(a, slots, run)

    def segment_products(
        self, a: Residues, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Residues:
        n_factors = int(start[-1] - start[0])
        if self.workers == 1 or n_factors < modular.LEAST_SHARED_WORK:
            return _objects(gmp_segment_products(int(self.value), _integers(a), index, start))
        cuts = balanced_cuts(start, self.workers)
        jobs = []
        for i, j in itertools.pairwise(cuts):
            used, local = np.unique(index[start[i] : start[j]], return_inverse=True)
            # Bytes: integers would be copied twice more on their way.
            rows = ints_to_bytes(_integers(a[used]), self.n_bytes)
            edges = start[i : j + 1] - start[i]
            jobs.append((int(self.value), rows, local.astype(np.uint32), edges))
        parts = run_in_processes(_segment_products_of_bytes, jobs, self.workers)
        return _objects([value for part in parts for value in part])

    def base_table(self, bases: Sequence[int]) -> Residues:
        return _objects(gmp_base_table(self.value, bases))

    def fixed_base_products(self, bases: FixedBases, digits: NDArray[np.uint8]) -> Residues:
        return self.all_products([(bases, digits)])[0]

    def all_products(
        self, wanted: Sequence[tuple[FixedBases, NDArray[np.uint8]]]
    ) -> list[Residues]:
        # Worker processes keep tables: several bases at once leave one table to each process,
        # where one base after the other would leave every table to every process.
        if self.workers == 1:
            return [
                _objects(_table_products(bases.modulus.value, _integers(bases.table), digits))
                for bases, digits in wanted
            ]
        n_parts = 1
        if sum(digits.size for _, digits in wanted) >= modular.LEAST_SHARED_WORK:
            n_parts = -(-self.workers // len(wanted))
        jobs = [
            (int(bases.modulus.value), tuple(int(b) for b in bases.bases), part)
            for parts in zip(
                *(np.array_split(digits, n_parts) for _, digits in wanted), strict=True
            )
            for (bases, _), part in zip(wanted, parts, strict=True)
        ]
        found = run_in_processes(gmp_fixed_base_products, jobs, self.workers)
        return [
            _objects([value for part in found[k :: len(wanted)] for value in part])
            for k in range(len(wanted))
        ]


def gmp_segment_products(
    m: int, rows: Sequence[int], index: NDArray[np.uint32], start: NDArray[np.int64]
) -> list[int]:
    """Return segment products with gmpy2; a worker process runs it too."""
    modulus = mpz(m)
    order = index.tolist()
    products = []
    for low, high in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
        product = mpz(1)
        for k in order[low:high]:
            product = product * rows[k] % modulus
        products.append(product)
    return products


def _segment_products_of_bytes(
    m: int, rows: NDArray[np.uint8], index: NDArray[np.uint32], start: NDArray[np.int64]
) -> list[int]:
    """Return segment products in a worker process."""
    return gmp_segment_products(m, bytes_to_ints(rows), index, start)


def _digit_window(m: int, n_bases: int) -> int:
    """Return how many bits of the digits one entry of gmpy2's table covers.

    Longer windows take fewer multiplications, from a larger table.
    """
    entry_bytes = mpz(m).bit_length() // 8 + 48
    sizes = {bits: (-(-8 * n_bases // bits) * entry_bytes) << bits for bits in (10, 9, 8)}
    return next((bits for bits, size in sizes.items() if size <= _MOST_TABLE_BYTES), 7)


def gmp_base_table(m: int, bases: Sequence[int]) -> list[int]:
    """Return, for each window over the bits of the digits, the products that its values stand for.

    A window that begins within a digit goes on into the next one.
    """
    modulus, window = mpz(m), _digit_window(m, len(bases))

    def powers(base: int, n: int) -> list[int]:
        found = [mpz(1)]
        while len(found) < n:
            found.append(found[-1] * base % modulus)
        return found

    table = []
    for first in range(0, 8 * len(bases), window):
        i, offset = divmod(first, 8)
        low = powers(gmpy2.powmod(bases[i], 1 << offset, modulus), 1 << min(window, 8 - offset))
        high = [mpz(1)]
        if window > 8 - offset and i + 1 < len(bases):
            high = powers(bases[i + 1], 1 << (window - 8 + offset))
        table += [x * y % modulus for y in high for x in low]
        table += [mpz(1)] * ((1 << window) - len(high) * len(low))
    return table


def _table_products(m: int, table: Sequence[int], digits: NDArray[np.uint8]) -> list[int]:
    window = _digit_window(m, digits.shape[1])
    first = np.arange(0, 8 * digits.shape[1], window)
    rows = np.arange(len(first)) << window
    products = []
    for start in range(0, len(digits), _ROWS_A_PASS):  # lists of integers are large
        wide = np.pad(digits[start : start + _ROWS_A_PASS], ((0, 0), (0, 1))).astype(np.uint16)
        pairs = wide[:, first // 8] | wide[:, first // 8 + 1] << 8
        values = (pairs >> (first % 8).astype(np.uint16)) & ((1 << window) - 1)
        for at in (values + rows).tolist():
            product = table[at[0]]
            for k in at[1:]:
                product = product * table[k] % m
            products.append(product)
    return products


@functools.lru_cache(maxsize=4)
def _cached_table(m: int, bases: tuple[int, ...]) -> list[int]:
    return gmp_base_table(m, [mpz(base) for base in bases])


def gmp_fixed_base_products(m: int, bases: Sequence[int], digits: NDArray[np.uint8]) -> list[int]:
    """Return fixed-base products; a worker process keeps the tables of its last few bases."""
    return _table_products(mpz(m), _cached_table(m, tuple(bases)), digits)


def _objects(values: Sequence[int]) -> Residues:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _integers(residues: Residues) -> list[int]:
    if residues.dtype != object or residues.ndim != 1:
        raise ValueError("residues of another modulus or kernel")
    return list(residues)
