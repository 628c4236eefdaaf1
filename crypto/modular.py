"""Vectors of residues of one odd modulus: the arithmetic under Paillier.

Three kernels give the same residues. ``ifma`` is C on AVX-512 IFMA, eight residues at a time;
``portable`` is C on 64-bit words; ``gmpy2`` needs no compiler. The C kernels let threads run at the
same time; gmpy2 holds the interpreter's lock in loops of multiplications, so those go to worker
processes instead. An :class:`Engine` names a kernel and a number of cores.

Residues stay in a kernel's own form between operations (an opaque array, one residue an item of
its first axis, so slicing and concatenating work) and cross a boundary as little-endian bytes.

Nothing here is constant-time: table look-ups and window digits depend on secrets, and someone who
runs code on the same core could observe them. Keep the crypto process on a machine of the silo.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias, TypeVar

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto import worker_processes

Kernel = Literal["ifma", "portable", "gmpy2"]
Residues: TypeAlias = "NDArray[np.generic]"
"""Opaque residues of shape (n, ...): uint64 words in C kernels, mpz objects with gmpy2."""

_T = TypeVar("_T")
_WINDOW_BITS = 5
_MOST_TABLE_BYTES = 24 << 20
"""Of a table of fixed bases under gmpy2; each worker process has its own."""
# Below this many multiplications a batch stays on the calling core.
_LEAST_SHARED_WORK = 20_000
_ROWS_A_PASS = 512


@functools.cache
def _native() -> ModuleType | None:
    try:
        from hedgerow.crypto.native import _paillier
    except ImportError:
        return None
    return _paillier


def available_kernels() -> tuple[Kernel, ...]:
    """Return the kernels that run on this machine, fastest first for several cores."""
    native = _native()
    if native is None:
        return ("gmpy2",)
    return ("ifma", "portable", "gmpy2") if native.has_ifma() else ("portable", "gmpy2")


def usable_cores() -> int:
    """Return how many cores this process may use: by affinity, and by its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


@dataclass(frozen=True, slots=True)
class Engine:
    """Which kernel computes, on how many cores.

    Parameters
    ----------
    kernel
        One of :func:`available_kernels`.
    workers
        Threads (C kernels) or processes (gmpy2) that share a large batch.
    """

    kernel: Kernel = field(default_factory=lambda: best_kernel())
    workers: int = field(default_factory=usable_cores)

    def __post_init__(self) -> None:
        if self.kernel not in available_kernels():
            raise ValueError(
                f"kernel {self.kernel!r} does not run here, expected one of {available_kernels()}"
            )
        if self.workers < 1:
            raise ValueError(f"expected at least one worker, received {self.workers}")

    def modulus(self, value: int) -> Modulus:
        """Return the arithmetic modulo an odd ``value`` on this engine."""
        if self.kernel == "gmpy2":
            return _GmpModulus(value, self.workers)
        return _NativeModulus(value, self.workers, ifma=self.kernel == "ifma")


def best_kernel() -> Kernel:
    """Return the fastest kernel of this machine.

    A core of the portable kernel and a core of gmpy2 do about as much, but threads share a tree's
    ciphertexts, which processes must be sent.
    """
    return available_kernels()[0]


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

    @functools.cached_property
    def table(self) -> Residues:
        """The kernel's table, built where it is used: gmpy2's worker processes have their own."""
        return self.modulus.base_table(self.bases)

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


class _NativeModulus(Modulus):
    """The C kernels; threads share a batch."""

    def __init__(self, value: int, workers: int, *, ifma: bool) -> None:
        super().__init__(value, workers)
        native = _native()
        assert native is not None, "Engine checks the kernel"
        self._native = native
        self._lanes = 8 if ifma else 1
        self._limbs, word_bits = native.radix(ifma, self.n_bytes)
        self._bits = self._limbs * word_bits
        radix = mpz(1) << self._bits
        m, one, square = (
            gmpy2.to_binary(x)[2:].ljust(self.n_bytes, b"\0")
            for x in (self.value, radix % self.value, radix * radix % self.value)
        )
        self._handle = native.modulus(ifma, m, one, square)
        self._radix: Residues | None = None

    def _empty(self, n: int) -> NDArray[np.uint64]:
        return np.empty((n, self._limbs), np.uint64)

    def _words(self, residues: Residues) -> NDArray[np.uint64]:
        if residues.dtype != np.uint64 or residues.shape[1:] != (self._limbs,):
            raise ValueError("residues of another modulus or kernel")
        return np.ascontiguousarray(residues, dtype=np.uint64)

    def _share(self, n: int, cost: int, part: Callable[[int, int], None]) -> None:
        """Run ``part(low, high)`` over ranges of n items, ``cost`` multiplications each."""
        if self.workers == 1 or n * cost < _LEAST_SHARED_WORK // 4:
            part(0, n)
            return
        # Whole vectors of lanes, several ranges a worker so that uneven cores even out.
        size = -(-n // (4 * self.workers * self._lanes)) * self._lanes
        edges = [*range(0, n, size), n]
        _run_all([functools.partial(part, a, b) for a, b in itertools.pairwise(edges)])

    def load(self, data: NDArray[np.uint8]) -> Residues:
        n, width = data.shape
        chunk = self._bits // 8
        out = self._empty(n)
        if width <= chunk:
            flat = np.ascontiguousarray(data)
            self._share(
                n,
                1,
                lambda a, b: self._native.load(self._handle, out[a:b], flat[a:b], width),
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
            lambda a, b: self._native.store(self._handle, out[a:b], words[a:b]),
        )
        return out

    def multiply(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        single = len(y) == 1
        self._share(
            len(x),
            1,
            lambda i, j: self._native.multiply(
                self._handle, out[i:j], x[i:j], y if single else y[i:j]
            ),
        )
        return out

    def add(self, a: Residues, b: Residues) -> Residues:
        x, y = self._words(a), self._words(b)
        out = self._empty(len(x))
        self._native.add(self._handle, out, x, y)
        return out

    def power(self, a: Residues, exponent: int) -> Residues:
        x = self._words(a)
        out = self._empty(len(x))
        digits = _window_digits(exponent)
        self._share(
            len(x),
            exponent.bit_length(),
            lambda i, j: self._native.power(self._handle, out[i:j], x[i:j], digits),
        )
        return out

    def horner(self, a: Residues, slots: int, shift: int) -> Residues:
        x = self._words(a)
        out = self._empty(len(x) // slots)
        self._share(
            len(out),
            slots * shift,
            lambda i, j: self._native.horner(
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
        run = functools.partial(self._native.segment_products, self._handle)
        if self.workers == 1 or int(edges[-1] - edges[0]) < _LEAST_SHARED_WORK // 4:
            run(out, x, rows, edges)
            return out
        cuts = _balanced_cuts(edges, 4 * self.workers)
        _run_all(
            [
                functools.partial(run, out[i:j], x, rows, edges[i : j + 1])
                for i, j in itertools.pairwise(cuts)
            ]
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
            lambda i, j: self._native.fixed_base(self._handle, out[i:j], table, flat[i:j]),
        )
        return out


class _GmpModulus(Modulus):
    """gmpy2; threads share powers, worker processes share loops of multiplications."""

    def _share(self, a: Residues, unit: int, run: Callable[[Residues], list[int]]) -> Residues:
        """Return ``run`` over parts of ``a`` on threads, cut at multiples of ``unit``."""
        size = max(1, -(-len(a) // (unit * self.workers))) * unit
        parts = [a[i : i + size] for i in range(0, len(a), size)]
        if len(parts) < 2:
            return _objects(run(a))
        results = _run_all([functools.partial(run, part) for part in parts])
        return _objects([value for result in results for value in result])

    def load(self, data: NDArray[np.uint8]) -> Residues:
        m = self.value
        return _objects([v % m for v in _each_int(data)])

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
        return _objects([value for part in _run_all(parts) for value in part])

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
        if self.workers == 1 or n_factors < _LEAST_SHARED_WORK:
            return _objects(gmp_segment_products(int(self.value), _integers(a), index, start))
        cuts = _balanced_cuts(start, self.workers)
        jobs = []
        for i, j in itertools.pairwise(cuts):
            used, local = np.unique(index[start[i] : start[j]], return_inverse=True)
            # Bytes: integers would be copied twice more on their way.
            rows = ints_to_bytes(_integers(a[used]), self.n_bytes)
            edges = start[i : j + 1] - start[i]
            jobs.append((int(self.value), rows, local.astype(np.uint32), edges))
        parts = worker_processes.pool(self.workers).run(_segment_products_of_bytes, jobs)
        return _objects([value for part in parts for value in part])

    def base_table(self, bases: Sequence[int]) -> Residues:
        return _objects(gmp_base_table(self.value, bases))

    def fixed_base_products(self, bases: FixedBases, digits: NDArray[np.uint8]) -> Residues:
        return all_products([(bases, digits)])[0]


def all_products(wanted: Sequence[tuple[FixedBases, NDArray[np.uint8]]]) -> list[Residues]:
    """Return what :meth:`FixedBases.products` does of several bases under the same engine.

    gmpy2's worker processes keep tables, and two bases shared out together leave one each to two
    of them, where one after the other would leave both to both.
    """
    first = wanted[0][0].modulus
    if not isinstance(first, _GmpModulus):
        return [bases.products(digits) for bases, digits in wanted]
    if first.workers == 1:
        return [
            _objects(_table_products(bases.modulus.value, _integers(bases.table), digits))
            for bases, digits in wanted
        ]
    n_parts = 1
    if sum(digits.size for _, digits in wanted) >= _LEAST_SHARED_WORK:
        n_parts = -(-first.workers // len(wanted))
    jobs = [
        (int(bases.modulus.value), tuple(int(b) for b in bases.bases), part)
        for parts in zip(*(np.array_split(digits, n_parts) for _, digits in wanted), strict=True)
        for (bases, _), part in zip(wanted, parts, strict=True)
    ]
    found = worker_processes.pool(first.workers).run(gmp_fixed_base_products, jobs)
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


def ints_to_bytes(values: Sequence[int], width: int) -> NDArray[np.uint8]:
    """Return non-negative integers as little-endian bytes of shape (n, width)."""
    data = b"".join([int(v).to_bytes(width, "little") for v in values])
    return np.frombuffer(data, np.uint8).reshape(len(values), width)


def bytes_to_ints(data: NDArray[np.uint8]) -> list[int]:
    """Return gmpy2 integers of little-endian rows."""
    return list(_each_int(data))


def _each_int(data: NDArray[np.uint8]) -> Iterator[int]:
    n, width = data.shape
    raw = np.ascontiguousarray(data).reshape(-1).data
    for i in range(0, n * width, width):
        yield mpz(int.from_bytes(raw[i : i + width], "little"))


def _objects(values: Sequence[int]) -> Residues:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _integers(residues: Residues) -> list[int]:
    if residues.dtype != object or residues.ndim != 1:
        raise ValueError("residues of another modulus or kernel")
    return list(residues)


def _window_digits(exponent: int) -> bytes:
    if exponent < 0:
        raise ValueError("expected a non-negative exponent")
    digits = []
    while exponent:
        digits.append(int(exponent & 31))
        exponent >>= _WINDOW_BITS
    return bytes(reversed(digits)) or b"\0"


def _balanced_cuts(start: NDArray[np.int64], parts: int) -> list[int]:
    """Return segment numbers that cut the segments into ranges of about equal length."""
    goals = np.linspace(start[0], start[-1], parts + 1)[1:-1]
    cuts = {0, len(start) - 1, *np.searchsorted(start, goals).tolist()}
    return sorted(cuts)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usable_cores(), thread_name_prefix="modular")


def _run_all(parts: Sequence[Callable[[], _T]]) -> list[_T]:
    return [future.result() for future in [_threads().submit(part) for part in parts]]
