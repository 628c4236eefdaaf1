"""Residues by the C kernels: on AVX-512 IFMA eight at a time, on AVX2 four, or on 64-bit words.

The kernels let threads run at the same time, so threads share a batch. They check nothing: every
length and every index is checked here.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic import modular
from hedgerow.crypto.arithmetic.modular import FixedBases, Modulus, Residues, balanced_cuts
from hedgerow.crypto.native import KernelLibrary
from hedgerow.crypto.threads import run_all

_WINDOW_BITS = 5
_DIGIT_BITS = 52
_PATHS = ("portable", "ifma", "avx2")
"""As the C code numbers them."""
_MAX_LIMBS = 160
"""Words of the largest modulus: n^2 of a key of 4096 bits."""
LIBRARY = KernelLibrary("paillier")


def _limbs(bits: int, *, vectors: bool) -> int:
    """Return the words of a residue, see ``montgomery.h``."""
    if not vectors:
        return -(-bits // 64)
    digits = -(-(bits + 8) // _DIGIT_BITS)
    return -(-digits // 4) * 4


class NativeModulus(Modulus):
    """The C kernels; threads share a batch.

    Parameters
    ----------
    path : str
        ``ifma``, ``avx2`` or ``portable``.
    """

    def __init__(self, value: int, workers: int, path: str) -> None:
        super().__init__(value, workers)
        vectors = path != "portable"
        self._path = _PATHS.index(path)
        self._lanes = 8 if vectors else 1
        # Modulo n² they are kept as a + n·b, see ``montgomery.h``.
        root, rest = gmpy2.isqrt_rem(self.value)
        halved = vectors and not rest and LIBRARY.has("modulus_squared")
        self._half = _limbs(root.bit_length(), vectors=True) if halved else 0
        self._limbs = 2 * self._half or _limbs(8 * self.n_bytes, vectors=vectors)
        if self._limbs > _MAX_LIMBS:
            raise ValueError(f"no kernel for a modulus of {self.n_bytes} bytes")
        self._bits = self._limbs * (_DIGIT_BITS if vectors else 64)
        handle = self._modulus_squared(root) if self._half else self._modulus()
        if handle is None:
            raise MemoryError
        self._handle = ctypes.c_void_p(handle)
        weakref.finalize(self, LIBRARY.call, "modulus_free", self._handle, result=None)
        self._radix: Residues | None = None

    def _modulus(self) -> int | None:
        radix = mpz(1) << self._bits
        constants = (
            gmpy2.to_binary(x)[2:].ljust(self.n_bytes, b"\0")
            for x in (self.value, radix % self.value, radix * radix % self.value)
        )
        found: int | None = LIBRARY.call(
            "modulus_new", self._path, self._limbs, self.n_bytes, *constants, result=ctypes.c_void_p
        )
        return found

    def _modulus_squared(self, root: int) -> int | None:
        radix = mpz(1) << self._bits // 2
        halves = [half for k in (1, 2, 3) for half in divmod(radix**k % self.value, root)[::-1]]
        n, *powers = (
            [int(x >> at & (1 << _DIGIT_BITS) - 1) for at in range(0, self._bits // 2, _DIGIT_BITS)]
            for x in (root, *halves)
        )
        found: int | None = LIBRARY.call(
            "modulus_squared", self._path, self._half, self.n_bytes, np.array(n, np.uint64),
            np.array(powers, np.uint64), result=ctypes.c_void_p,
        )  # fmt: skip
        return found

    def _call(self, name: str, *arguments: Any) -> Any:
        return LIBRARY.call(name, self._handle, *arguments)

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
            flat = np.ascontiguousarray(data, np.uint8)
            self._share(n, 1, lambda a, b: self._call("load", out[a:b], flat[a:b], width, b - a))
            return out
        # value = low + 2^(8 chunk) · high, and 2^(8 chunk) is the radix R itself.
        low, high = self.load(data[:, :chunk]), self.load(data[:, chunk:])
        if self._radix is None:
            self._radix = self.from_ints([mpz(1) << self._bits])
        return self.add(low, self.multiply(high, self._radix))

    def store(self, residues: Residues) -> NDArray[np.uint8]:
        words = self._words(residues)
        out = np.empty((len(words), self.n_bytes), np.uint8)
        self._share(len(words), 1, lambda a, b: self._call("store", out[a:b], words[a:b], b - a))
        return out

    def multiply(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        single = len(y) == 1
        if not single:
            _check_terms(x, y)

        def part(i: int, j: int) -> None:
            self._call("multiply", out[i:j], x[i:j], y if single else y[i:j], single, j - i)

        self._share(len(x), 1, part)
        return out

    def add(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        _check_terms(x, y)
        self._call("add", out, x, y, len(x))
        return out

    def power(self, a: Residues, exponent: int) -> Residues:
        x = self._words(a)
        out = self._empty(len(x))
        digits = _window_digits(exponent)

        def part(i: int, j: int) -> None:
            if self._call("power", out[i:j], x[i:j], digits, len(digits), j - i):
                raise MemoryError

        self._share(len(x), exponent.bit_length(), part)
        return out

    def horner(self, a: Residues, slots: int, shift: int) -> Residues:
        x = self._words(a)
        if slots < 1 or shift < 0 or len(x) % slots:
            raise ValueError(f"expected {slots} slots a result, received {len(x)} residues")
        out = self._empty(len(x) // slots)

        def part(i: int, j: int) -> None:
            self._call("horner", out[i:j], x[i * slots : j * slots], slots, shift, j - i)

        self._share(len(out), slots * shift, part)
        return out

    def segment_products(
        self, a: Residues, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Residues:
        x = self._words(a)
        out = self._empty(len(start) - 1)
        rows = np.ascontiguousarray(index, dtype=np.uint32)
        edges = np.ascontiguousarray(start, dtype=np.int64)
        if edges[0] < 0 or edges[-1] > len(rows) or (np.diff(edges) < 0).any():
            raise ValueError("starts must rise within the index")
        used = rows[edges[0] : edges[-1]]
        if len(used) and int(used.max()) >= len(x):
            raise ValueError(f"index out of range, expected rows below {len(x)}")

        def run(i: int, j: int) -> None:
            self._call("segment_products", out[i:j], x, rows, edges[i : j + 1], j - i)

        if self.workers == 1 or int(edges[-1] - edges[0]) < modular.LEAST_SHARED_WORK // 4:
            run(0, len(out))
            return out
        cuts = balanced_cuts(edges, 4 * self.workers)
        ranges = itertools.pairwise(cuts)
        run_all([functools.partial(run, i, j) for i, j in ranges], self.workers)
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
        flat = np.ascontiguousarray(digits, np.uint8)
        rows = flat.shape[1]
        if not rows or len(table) != 256 * rows:
            raise ValueError(f"expected 256 residues a row, received {len(table)} for {rows} rows")
        out = self._empty(len(flat))

        def part(i: int, j: int) -> None:
            self._call("fixed_base", out[i:j], table, flat[i:j], rows, j - i)

        self._share(len(flat), rows, part)
        return out


def _check_terms(a: Residues, b: Residues) -> None:
    if len(a) != len(b):
        raise ValueError(f"expected {len(a)} residues beside {len(a)}, received {len(b)}")


def _window_digits(exponent: int) -> bytes:
    if exponent < 0:
        raise ValueError("expected a non-negative exponent")
    digits = []
    while exponent:
        digits.append(int(exponent & 31))
        exponent >>= _WINDOW_BITS
    return bytes(reversed(digits)) or b"\0"
