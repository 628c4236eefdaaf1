"""Curve arithmetic by the C kernels of ``crypto/native/curve.c``; threads share large batches.

Points that stay here are arrays of 64-bit words: 16 a decoded point, 24 a sum (see
``curve_points.h``). Tables are made once a process for each base. The kernels check nothing: every
length, index and range is checked here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic import curve25519
from hedgerow.crypto.arithmetic.curve25519 import Point
from hedgerow.crypto.arithmetic.curve_kernels import (
    MOST_VALUE_BITS,
    ROW_BYTES,
    SCALAR_BYTES,
    CurveSums,
)
from hedgerow.crypto.errors import InvalidPoint
from hedgerow.crypto.native import KernelLibrary
from hedgerow.crypto.threads import run_all

_WORDS = 24
_WINDOW = 10
_CHECK_WINDOW = 8
_TABLE_BITS = 20
_LARGE_TABLE_BITS = 22
_STEP_WORDS = 15
_NO_MEMORY = -2
"""What a kernel returns; zero and above is the number of a bad element."""
# Elements below which a batch stays on the calling thread.
_LEAST_SHARED = 512
LIBRARY = KernelLibrary("curve")
Words = NDArray[np.uint64]
_Element = TypeVar("_Element", np.uint8, np.uint64, np.int64)


class _BadElement(ArithmeticError):
    """An element that a kernel refuses; its number is the argument."""


def _in_parts(n: int, workers: int, part: Callable[[int, int], None]) -> None:
    """Call ``part(first, last)`` for ranges that cover 0 to n, on several threads."""
    if workers == 1 or n < _LEAST_SHARED:
        part(0, n)
        return
    # A few parts a worker, in whole groups of lanes, so that uneven cores end together.
    step = -(-n // (4 * workers)) + 255 & ~255
    firsts = range(0, n, step)
    run_all([functools.partial(part, a, min(a + step, n)) for a in firsts], workers)


def _call(path: str, name: str, out: NDArray[Any], *arguments: Any) -> None:
    done = LIBRARY.call(f"curve_{name}_{path}", out, *arguments)
    if done == _NO_MEMORY:
        raise MemoryError
    if done >= 0:
        raise _BadElement(done)


def _elements(data: bytes, n_bytes: int, what: str = "an element") -> NDArray[np.uint8]:
    """Return bytes as elements, one a row."""
    if len(data) % n_bytes:
        raise InvalidPoint(f"{n_bytes} bytes {what} expected, received {len(data)}")
    return np.frombuffer(data, np.uint8).reshape(-1, n_bytes)


def _starts(starts: NDArray[np.int64], n_index: int) -> NDArray[np.int64]:
    """Return offsets into an index, which start at 0, never fall, and end at its length."""
    starts = np.ascontiguousarray(starts, np.int64)
    if not len(starts) or starts[0] or starts[-1] != n_index or (np.diff(starts) < 0).any():
        raise ValueError(f"starts: offsets from 0 to {n_index} that never fall expected")
    return starts


def _words(point: Point) -> Words:
    """Give a point as the kernels store a sum: limbs of 51 bits."""
    reduced = [int(value % curve25519.PRIME) for value in point]
    limbs = [value >> 51 * i & (1 << 51) - 1 for value in reduced for i in range(5)]
    return np.array([*limbs, 0, 0, 0, 0], np.uint64)


class NativeSums:
    """``CurveSums`` of :mod:`.curve_kernels`; ``points`` is (n, 3, 24) uint64."""

    def __init__(self, kernel: NativeCurve, points: Words) -> None:
        self.kernel, self.points = kernel, points

    def __len__(self) -> int:
        """Count the sums."""
        return len(self.points)

    def combine(self, index: NDArray[np.int64], starts: NDArray[np.int64]) -> NativeSums:
        index = np.ascontiguousarray(index, np.int64)
        starts = _starts(starts, len(index))
        if len(index) and int((index ^ index >> 63).max()) >= len(self):
            raise ValueError(f"index: points 0 to {len(self) - 1} expected")
        out = np.empty((len(starts) - 1, 3, _WORDS), np.uint64)
        _call(self.kernel.path, "combine", out, len(out), self.points, index, starts)
        return NativeSums(self.kernel, out)

    def append(self, others: CurveSums) -> NativeSums:
        assert isinstance(others, NativeSums)
        return NativeSums(self.kernel, np.concatenate([self.points, others.points]))

    def encode(self) -> bytes:
        points = self.points.reshape(-1, _WORDS)
        return self.kernel.run("encode", np.empty((len(points), 32), np.uint8), points).tobytes()


class NativeRows:
    """``CurveRows`` of :mod:`.curve_kernels`; ``points`` is (n, 3, 16) uint64."""

    def __init__(self, kernel: NativeCurve, points: Words) -> None:
        self._kernel, self._points = kernel, points

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._points)

    def sum_segments(self, index: NDArray[np.uint32], starts: NDArray[np.int64]) -> NativeSums:
        """Sum rows.

        Segments much longer than the rest are summed in pieces, so that no lane ends alone.
        """
        index = np.ascontiguousarray(index, np.uint32)
        starts = _starts(starts, len(index))
        if len(index) and int(index.max()) >= len(self):
            raise ValueError(f"index: rows below {len(self)} expected, received {index.max()}")
        lengths = np.diff(starts)
        most = max(256, len(index) // (64 * self._kernel.workers))
        n_pieces = np.maximum(1, -(-lengths // most))
        if (n_pieces == 1).all():
            return self._sum(index, starts)
        ends = np.cumsum(n_pieces)
        piece = np.arange(ends[-1]) - np.repeat(ends - n_pieces, n_pieces)
        piece_starts = np.repeat(starts[:-1], n_pieces) + piece * most
        pieces = self._sum(index, np.append(piece_starts, starts[-1]))
        return pieces.combine(np.arange(ends[-1]), np.concatenate([[0], ends]))

    def _sum(self, index: NDArray[np.uint32], starts: NDArray[np.int64]) -> NativeSums:
        kernel, n = self._kernel, len(starts) - 1
        workers = kernel.workers if len(index) >= _LEAST_SHARED else 1
        # Cut where the work is, not where the segments are.
        cuts = np.searchsorted(starts, np.linspace(0, len(index), 4 * workers + 1)[1:-1])
        bounds = [0, *cuts.tolist(), n] if workers > 1 else [0, n]
        ranges = [(a, b) for a, b in itertools.pairwise(bounds) if a < b]
        out = np.empty((n, 3, _WORDS), np.uint64)

        def part(first: int, last: int) -> None:
            into = out[first:last]
            _call(kernel.path, "sum_rows", into, self._points, index, starts, first, last)

        run_all([functools.partial(part, a, b) for a, b in ranges], workers)
        return NativeSums(kernel, out)


class NativeMasker:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.Encryptor`."""

    def __init__(self, kernel: NativeCurve, p1: bytes, p2: bytes) -> None:
        self._kernel = kernel
        path = kernel.path
        base = curve25519.ristretto_encode(curve25519.BASE)
        self._tables = (*(_table(path, point) for point in (base, p1, p2)), _half_table(path))

    def encrypt(self, scalars: bytes, g: NDArray[np.int64], h: NDArray[np.int64]) -> bytes:
        drawn = _elements(scalars, SCALAR_BYTES, "a scalar")
        values = [np.ascontiguousarray(v, np.int64) for v in (g, h)]
        most = 1 << MOST_VALUE_BITS
        if any(len(v) and (v.min() < -most or v.max() > most) for v in values):
            raise ValueError(f"values of at most 2^{MOST_VALUE_BITS} expected")
        out = np.empty((len(drawn), ROW_BYTES), np.uint8)
        self._kernel.run("encrypt", out, drawn, *values, fixed=(_WINDOW, *self._tables))
        return out.tobytes()

    def rerandomise(self, sums: CurveSums, scalars: bytes) -> bytes:
        assert isinstance(sums, NativeSums)
        drawn = _elements(scalars, SCALAR_BYTES, "a scalar")
        out = np.empty((len(sums), ROW_BYTES), np.uint8)
        fixed = (_WINDOW, *self._tables)
        return self._kernel.run("rerandomise", out, sums.points, drawn, fixed=fixed).tobytes()


class NativeOpener:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.Decryptor`."""

    def __init__(self, kernel: NativeCurve, x1: int, x2: int, limit: int) -> None:
        self._kernel, self._limit = kernel, limit
        order = int(curve25519.ORDER)
        self._keys = b"".join((order - x).to_bytes(32, "little") for x in (x1, x2))
        # A table is made in a tenth of a second, so it may be large: 17 MB, beyond 2^32 67 MB.
        most = _TABLE_BITS if limit <= 1 << 32 else _LARGE_TABLE_BITS
        self._bits = max(4, min(most, limit.bit_length() - 4))
        modulus = 2 * (1 << self._bits) + 1
        n_steps = (limit + (1 << self._bits)) // modulus
        self._steps = _log_steps(kernel.path, self._bits, -(-n_steps // 8) * 8)
        self._table = _log_table(kernel.path, self._bits)

    def decrypt(self, ciphertexts: bytes) -> NDArray[np.int64]:
        rows = _elements(ciphertexts, ROW_BYTES, "a ciphertext")
        points = np.empty((len(rows), 2, _WORDS), np.uint64)
        with _located(1):
            self._kernel.run("decrypt", points, rows, fixed=(self._keys,))
        out = np.empty((len(rows), 2), np.int64)
        steps, n_steps = self._steps, len(self._steps)
        check = _check_table(self._kernel.path)
        fixed = (self._bits, self._table, steps, n_steps, check, self._limit)
        self._kernel.run("log_solve", out.reshape(-1), points.reshape(-1, _WORDS), fixed=fixed)
        return out


@contextmanager
def _located(points_a_row: int) -> Iterator[None]:
    """Turn a kernel's report of a bad element into `InvalidPoint` with its row."""
    try:
        yield
    except _BadElement as error:
        row = error.args[0] // points_a_row
        raise InvalidPoint(f"ciphertext {row} holds no valid ristretto255 elements") from None


class NativeCurve:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.CurveKernel`.

    Parameters
    ----------
    path : str
        ``ifma``, ``avx2`` or ``portable``.
    workers : int
        Threads that share a large batch.
    """

    def __init__(self, path: str, workers: int) -> None:
        self.path, self.workers = path, workers

    def run(
        self, name: str, out: NDArray[_Element], *by_row: NDArray[Any], fixed: Sequence[Any] = ()
    ) -> NDArray[_Element]:
        """Have a kernel fill ``out`` from arrays with as many rows, and from what is ``fixed``."""
        if any(len(rows) != len(out) for rows in by_row):
            raise ValueError(f"{name}: expected {len(out)} rows of every array")

        def part(first: int, last: int) -> None:
            rows = (each[first:last] for each in by_row)
            try:
                _call(self.path, name, out[first:last], last - first, *rows, *fixed)
            except _BadElement as error:
                raise _BadElement(first + error.args[0]) from None

        _in_parts(len(out), self.workers, part)
        return out

    def map_to_curve(self, uniform: bytes) -> bytes:
        given = _elements(uniform, curve25519.HASH_BYTES)
        return self.run("map_to_curve", np.empty((len(given), 32), np.uint8), given).tobytes()

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        if len(scalar) != SCALAR_BYTES:
            raise ValueError(f"a scalar has {SCALAR_BYTES} bytes, received {len(scalar)}")
        given = _elements(points, 32)
        try:
            return self.run("x25519", np.empty_like(given), given, fixed=(scalar,)).tobytes()
        except _BadElement:
            raise InvalidPoint("a point of small order: its product is zero") from None

    def load(self, ciphertexts: bytes) -> NativeRows:
        rows = _elements(ciphertexts, ROW_BYTES, "a ciphertext")
        points = np.empty((3 * len(rows), 16), np.uint64)
        with _located(3):
            self.run("decode", points, rows.reshape(-1, 32))
        return NativeRows(self, points.reshape(-1, 3, 16))

    def masker(self, p1: bytes, p2: bytes) -> NativeMasker:
        return NativeMasker(self, p1, p2)

    def opener(self, x1: int, x2: int, limit: int) -> NativeOpener:
        return NativeOpener(self, x1, x2, limit)


_FOUR_BASE = curve25519.multiply(4, curve25519.BASE)
"""Decryption multiplies by four, which leaves one point of the four that stand for an element."""


def _fixed_table(path: str, base: Point, window: int, windows: int) -> Words:
    """Return the multiples of a base that each window of a scalar may stand for."""
    out = np.empty((windows, (1 << (window - 1)) + 1, 16), np.uint64)
    _call(path, "fixed_table", out, _words(base), window, windows)
    return out


@functools.lru_cache(maxsize=16)
def _table(path: str, encoding: bytes) -> Words:
    return _fixed_table(path, curve25519.ristretto_decode(encoding), _WINDOW, -(-253 // _WINDOW))


@functools.cache
def _half_table(path: str) -> Words:
    """Return the short table of half the base point, for plaintexts."""
    half = curve25519.multiply((curve25519.ORDER + 1) // 2, curve25519.BASE)
    return _fixed_table(path, half, _WINDOW, -(-(MOST_VALUE_BITS + 2) // _WINDOW))


@functools.cache
def _check_table(path: str) -> Words:
    """Return the short table of four times the base point, for logarithms."""
    return _fixed_table(path, _FOUR_BASE, _CHECK_WINDOW, 6)


@functools.cache
def _log_table(path: str, bits: int) -> Words:
    """Return 2^bits baby steps of four times the base point, in a hash table."""
    out = np.empty(2 << bits, np.uint64)
    _call(path, "log_table", out, _words(_FOUR_BASE), bits)
    return out


@functools.lru_cache(maxsize=8)
def _log_steps(path: str, bits: int, n: int) -> Words:
    """Return n giant steps over a table of that many bits; n is a multiple of 8."""
    out = np.empty((n, _STEP_WORDS), np.uint64)
    step = curve25519.multiply(2 * (1 << bits) + 1, _FOUR_BASE)
    _call(path, "log_steps", out, _words(step), n)
    return out
