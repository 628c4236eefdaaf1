"""Residues by the C kernels: on AVX-512 IFMA eight at a time, or portable on 64-bit words.

The kernels let threads run at the same time, so threads share a batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto import modular
from hedgerow.crypto.modular import FixedBases, Modulus, Residues, balanced_cuts
from hedgerow.crypto.native import _paillier
from hedgerow.crypto.threads import run_all

_WINDOW_BITS = 5


class NativeModulus(Modulus):
    """The C kernels; threads share a batch."""

    def __init__(self, value: int, workers: int, *, ifma: bool) -> None:
        super().__init__(value, workers)
        self._lanes = 8 if ifma else 1
        self._limbs, word_bits = _paillier.radix(ifma, self.n_bytes)
        self._bits = self._limbs * word_bits
        radix = mpz(1) << self._bits
        m, one, square = (
            gmpy2.to_binary(x)[2:].ljust(self.n_bytes, b"\0")
            for x in (self.value, radix % self.value, radix * radix % self.value)
        )
        self._handle = _paillier.modulus(ifma, m, one, square)
        self._radix: Residues | None = None

    def _empty(self, n: int) -> NDArray[np.uint64]:
        return np.empty((n, self._limbs), np.uint64)

    def _words(self, residues: Residues) -> NDArray[np.uint64]:
        if residues.dtype != np.uint64 or residues.shape[1:] != (self._limbs,):
            raise ValueError("residues of another modulus or kernel")
        return np.ascontiguousarray(residues, dtype=np.uint64)

    def _share(self, n: int, cost: int, part: Callable[[int, int], None]) -> None:
        """Run ``part(low, high)`` over ranges of n items, ``cost`` multiplications each."""
        if self.workers == 1 or n * cost < modular.LEAST_SHARED_WORK // 4:
            part(0, n)
            return
        # Whole vectors of lanes, several ranges a worker so that uneven cores even out.
        size = -(-n // (4 * self.workers * self._lanes)) * self._lanes
        edges = [*range(0, n, size), n]
        run_all([functools.partial(part, a, b) for a, b in itertools.pairwise(edges)], self.workers)

    def load(self, data: NDArray[np.uint8]) -> Residues:
        n, width = data.shape
        chunk = self._bits // 8
        out = self._empty(n)
        if width <= chunk:
            flat = np.ascontiguousarray(data)
            self._share(
                n,
                1,
                lambda a, b: _paillier.load(self._handle, out[a:b], flat[a:b], width),
            )
            return out
        # value = low + 2^(8 chunk) · high, and 2^(8 chunk) is the radix R itself.
        low, high = self.load(data[:, :chunk]), self.load(data[:, chunk:])
        if self._radix is None:
            self._radix = self.from_ints([mpz(1) << self._bits])
        return self.add(low, self.multiply(high, self._radix))

    def store(self, residues: Residues) -> NDArray[np.uint8]:
        words = self._words(residues)
        out = np.empty((len(words), self.n_bytes), np.uint8)
        self._share(
            len(words),
            1,
            lambda a, b: _paillier.store(self._handle, out[a:b], words[a:b]),
        )
        return out

    def multiply(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        single = len(y) == 1
        self._share(
            len(x),
            1,
            lambda i, j: _paillier.multiply(
                self._handle, out[i:j], x[i:j], y if single else y[i:j]
            ),
        )
        return out

    def add(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        _paillier.add(self._handle, out, x, y)
        return out

    def power(self, a: Residues, exponent: int) -> Residues:
        x = self._words(a)
        out = self._empty(len(x))
        digits = _window_digits(exponent)
        self._share(
            len(x),
            exponent.bit_length(),
            lambda i, j: _paillier.power(self._handle, out[i:j], x[i:j], digits),
        )
        return out

    def horner(self, a: Residues, slots: int, shift: int) -> Residues:
        x = self._words(a)
        out = self._empty(len(x) // slots)
        self._share(
            len(out),
            slots * shift,
            lambda i, j: _paillier.horner(
                self._handle, out[i:j], x[i * slots : j * slots], slots, shift
            ),
        )
        return out

    def segment_products(
        self, a: Residues, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Residues:
        x = self._words(a)
        out = self._empty(len(start) - 1)
        rows = np.ascontiguousarray(index, dtype=np.uint32)
        edges = np.ascontiguousarray(start, dtype=np.int64)
        run = functools.partial(_paillier.segment_products, self._handle)
        if self.workers == 1 or int(edges[-1] - edges[0]) < modular.LEAST_SHARED_WORK // 4:
            run(out, x, rows, edges)
            return out
        cuts = balanced_cuts(edges, 4 * self.workers)
        run_all(
            [
                functools.partial(run, out[i:j], x, rows, edges[i : j + 1])
                for i, j in itertools.pairwise(cuts)
            ],
            self.workers,
        )
        return out

    def base_table(self, bases: Sequence[int]) -> Residues:
        base = self._words(self.from_ints(bases))
        table = np.empty((len(bases), 256, self._limbs), np.uint64)
        table[:, 0] = self.ones(len(bases))
        table[:, 1] = base
        done = 2
        while done < 256:  # x^k · x^(done - 1) for k = 1 … done - 1
            step = min(done - 1, 256 - done)
            for k in range(1, step + 1):
                table[:, done - 1 + k] = self.multiply(table[:, done - 1], table[:, k])
            done += step
        return table.reshape(-1, self._limbs)

    def fixed_base_products(self, bases: FixedBases, digits: NDArray[np.uint8]) -> Residues:
        table = self._words(bases.table)
        flat = np.ascontiguousarray(digits)
        out = self._empty(len(flat))
        self._share(
            len(flat),
            flat.shape[1],
            lambda i, j: _paillier.fixed_base(self._handle, out[i:j], table, flat[i:j]),
        )
        return out


def _window_digits(exponent: int) -> bytes:
    if exponent < 0:
        raise ValueError("expected a non-negative exponent")
    digits = []
    while exponent:
        digits.append(int(exponent & 31))
        exponent >>= _WINDOW_BITS
    return bytes(reversed(digits)) or b"\0"
