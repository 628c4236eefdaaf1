"""Curve arithmetic by the C kernels of ``hedgerow.crypto.native``; threads share large batches.

Points that stay here are arrays of 64-bit words: 16 a decoded point, 24 a sum (see
``curve_points.h``). Tables are made once a process for each base.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto import curve25519
from hedgerow.crypto.curve25519 import Point
from hedgerow.crypto.curve_kernels import MOST_VALUE_BITS, ROW_BYTES, SCALAR_BYTES, CurveSums
from hedgerow.crypto.errors import InvalidPoint
from hedgerow.crypto.native import _curve
from hedgerow.crypto.threads import run_all

_T = TypeVar("_T")
_WORDS = 24
_WINDOW = 10
_CHECK_WINDOW = 8
_TABLE_BITS = 20
_LARGE_TABLE_BITS = 22
# Elements below which a batch stays on the calling thread.
_LEAST_SHARED = 512


def _in_parts(n: int, workers: int, part: Callable[[int, int], _T]) -> list[_T]:
    """Call ``part(first, last)`` for ranges that cover 0 to n, on several threads."""
    if workers == 1 or n < _LEAST_SHARED:
        return [part(0, n)]
    # A few parts a worker, in whole groups of lanes, so that uneven cores end together.
    step = -(-n // (4 * workers)) + 255 & ~255
    firsts = range(0, n, step)
    return run_all([functools.partial(part, a, min(a + step, n)) for a in firsts], workers)


def _words(point: Point) -> NDArray[np.uint64]:
    """Give a point as the kernels store a sum: limbs of 51 bits."""
    reduced = [int(value % curve25519.PRIME) for value in point]
    limbs = [value >> 51 * i & (1 << 51) - 1 for value in reduced for i in range(5)]
    return np.array([*limbs, 0, 0, 0, 0], np.uint64)


class NativeSums:
    """See :class:`hedgerow.crypto.curve_kernels.CurveSums`; ``points`` is (n, 3, 24) uint64."""

    def __init__(self, kernel: NativeCurve, points: NDArray[np.uint64]) -> None:
        self.kernel, self.points = kernel, points

    def __len__(self) -> int:
        """Count the sums."""
        return len(self.points)

    def combine(self, index: NDArray[np.int64], starts: NDArray[np.int64]) -> NativeSums:
        out = _curve.combine(
            self.kernel.ifma,
            self.points,
            3,
            np.ascontiguousarray(index, np.int64),
            np.ascontiguousarray(starts, np.int64),
        )
        return NativeSums(self.kernel, np.frombuffer(out, np.uint64).reshape(-1, 3, _WORDS))

    def append(self, others: CurveSums) -> NativeSums:
        assert isinstance(others, NativeSums)
        return NativeSums(self.kernel, np.concatenate([self.points, others.points]))

    def encode(self) -> bytes:
        points, ifma = self.points, self.kernel.ifma
        return b"".join(
            _in_parts(len(self), self.kernel.workers, lambda a, b: _curve.encode(ifma, points[a:b]))
        )


class NativeRows:
    """See :class:`hedgerow.crypto.curve_kernels.CurveRows`; ``points`` is (n, 3, 16) uint64."""

    def __init__(self, kernel: NativeCurve, points: NDArray[np.uint64]) -> None:
        self._kernel, self._points = kernel, points

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._points)

    def sum_segments(self, index: NDArray[np.uint32], starts: NDArray[np.int64]) -> NativeSums:
        """Sum rows.

        Segments much longer than the rest are summed in pieces, so that no lane ends alone.
        """
        index = np.ascontiguousarray(index, np.uint32)
        starts = np.ascontiguousarray(starts, np.int64)
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

        def part(first: int, last: int) -> bytes:
            return _curve.sum_rows(kernel.ifma, self._points, 3, index, starts, first, last)

        parts = run_all([functools.partial(part, a, b) for a, b in ranges], workers)
        points = np.frombuffer(b"".join(parts), np.uint64).reshape(-1, 3, _WORDS)
        return NativeSums(kernel, points)


class NativeMasker:
    """See :class:`hedgerow.crypto.curve_kernels.Masker`."""

    def __init__(self, kernel: NativeCurve, p1: bytes, p2: bytes) -> None:
        self._kernel = kernel
        self._tables = (
            kernel.table(curve25519.ristretto_encode(curve25519.BASE)),
            kernel.table(p1),
            kernel.table(p2),
            kernel.half_table(),
        )

    def encrypt(self, scalars: bytes, g: NDArray[np.int64], h: NDArray[np.int64]) -> bytes:
        view, ifma, tables = memoryview(scalars), self._kernel.ifma, self._tables

        def part(a: int, b: int) -> bytes:
            drawn = view[SCALAR_BYTES * a : SCALAR_BYTES * b]
            return _curve.encrypt(ifma, _WINDOW, *tables, drawn, g[a:b], h[a:b])

        return b"".join(_in_parts(len(g), self._kernel.workers, part))

    def rerandomise(self, sums: CurveSums, scalars: bytes) -> bytes:
        assert isinstance(sums, NativeSums)
        view, ifma, tables, points = (
            memoryview(scalars),
            self._kernel.ifma,
            self._tables,
            sums.points,
        )

        def part(a: int, b: int) -> bytes:
            drawn = view[SCALAR_BYTES * a : SCALAR_BYTES * b]
            return _curve.rerandomise(ifma, _WINDOW, *tables, points[a:b], drawn)

        return b"".join(_in_parts(len(sums), self._kernel.workers, part))


class NativeOpener:
    """See :class:`hedgerow.crypto.curve_kernels.Opener`."""

    def __init__(self, kernel: NativeCurve, x1: int, x2: int, limit: int) -> None:
        self._kernel, self._limit = kernel, limit
        order = int(curve25519.ORDER)
        self._keys = b"".join((order - x).to_bytes(32, "little") for x in (x1, x2))
        # A table is made in a tenth of a second, so it may be large: 17 MB, beyond 2^32 67 MB.
        most = _TABLE_BITS if limit <= 1 << 32 else _LARGE_TABLE_BITS
        self._bits = max(4, min(most, limit.bit_length() - 4))
        modulus = 2 * (1 << self._bits) + 1
        n_steps = (limit + (1 << self._bits)) // modulus
        self._steps = kernel.log_steps(self._bits, -(-n_steps // 8) * 8)
        self._table = kernel.log_table(self._bits)

    def decrypt(self, ciphertexts: bytes) -> NDArray[np.int64]:
        if len(ciphertexts) % ROW_BYTES:
            raise InvalidPoint(
                f"{ROW_BYTES} bytes a ciphertext expected, received {len(ciphertexts)}"
            )
        view, ifma = memoryview(ciphertexts), self._kernel.ifma
        check = self._kernel.check_table()

        def part(a: int, b: int) -> bytes:
            points = _located(
                lambda: _curve.decrypt(ifma, view[ROW_BYTES * a : ROW_BYTES * b], self._keys), a
            )
            return _curve.log_solve(
                ifma, points, self._bits, self._table, self._steps, check, self._limit
            )

        n = len(ciphertexts) // ROW_BYTES
        parts = _in_parts(n, self._kernel.workers, part)
        return np.frombuffer(b"".join(parts), np.int64).reshape(n, 2)


def _located(decode: Callable[[], bytes], first: int, points_a_row: int = 1) -> bytes:
    """Turn a kernel's report of a bad element into `InvalidPoint` with its row."""
    try:
        return decode()
    except ArithmeticError as error:
        row = first + int(str(error)) // points_a_row
        raise InvalidPoint(f"ciphertext {row} holds no valid ristretto255 elements") from None


class NativeCurve:
    """See :class:`hedgerow.crypto.curve_kernels.CurveKernel`.

    Parameters
    ----------
    ifma : bool
        The path of AVX-512 IFMA, else the portable one.
    workers : int
        Threads that share a large batch.
    """

    def __init__(self, ifma: bool, workers: int) -> None:
        self.ifma, self.workers = ifma, workers

    def map_to_curve(self, uniform: bytes) -> bytes:
        size = curve25519.HASH_BYTES
        view = memoryview(uniform)
        return b"".join(
            _in_parts(
                len(uniform) // size,
                self.workers,
                lambda a, b: _curve.map_to_curve(self.ifma, view[size * a : size * b]),
            )
        )

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        view = memoryview(points)
        try:
            return b"".join(
                _in_parts(
                    len(points) // 32,
                    self.workers,
                    lambda a, b: _curve.x25519(self.ifma, view[32 * a : 32 * b], scalar),
                )
            )
        except ArithmeticError:
            raise InvalidPoint("a point of small order: its product is zero") from None

    def load(self, ciphertexts: bytes) -> NativeRows:
        if len(ciphertexts) % ROW_BYTES:
            raise InvalidPoint(
                f"{ROW_BYTES} bytes a ciphertext expected, received {len(ciphertexts)}"
            )
        view = memoryview(ciphertexts)

        def part(a: int, b: int) -> bytes:
            block = view[ROW_BYTES * a : ROW_BYTES * b]
            return _located(lambda: _curve.decode(self.ifma, block), a, 3)

        parts = _in_parts(len(ciphertexts) // ROW_BYTES, self.workers, part)
        points = np.frombuffer(b"".join(parts), np.uint64).reshape(-1, 3, 16)
        return NativeRows(self, points)

    def masker(self, p1: bytes, p2: bytes) -> NativeMasker:
        return NativeMasker(self, p1, p2)

    def opener(self, x1: int, x2: int, limit: int) -> NativeOpener:
        return NativeOpener(self, x1, x2, limit)

    def table(self, encoding: bytes) -> bytes:
        """Give the fixed-base table of an encoded point."""
        return _table(self.ifma, encoding)

    def half_table(self) -> bytes:
        """Give the short table of half the base point, for plaintexts."""
        return _half_table(self.ifma)

    def check_table(self) -> bytes:
        """Give the short table of four times the base point, for logarithms."""
        return _check_table(self.ifma)

    def log_table(self, bits: int) -> bytes:
        """Give 2^bits baby steps of four times the base point (16 · 2^bits bytes)."""
        return _log_table(self.ifma, bits)

    def log_steps(self, bits: int, n: int) -> bytes:
        """Give n giant steps over a table of that many bits (120 bytes each)."""
        return _log_steps(self.ifma, bits, n)


_FOUR_BASE = curve25519.multiply(4, curve25519.BASE)
"""Decryption multiplies by four, which leaves one point of the four that stand for an element."""


@functools.lru_cache(maxsize=16)
def _table(ifma: bool, encoding: bytes) -> bytes:
    words = _words(curve25519.ristretto_decode(encoding))
    return _curve.fixed_table(ifma, words, _WINDOW, -(-253 // _WINDOW))


@functools.cache
def _half_table(ifma: bool) -> bytes:
    half = curve25519.multiply((curve25519.ORDER + 1) // 2, curve25519.BASE)
    windows = -(-(MOST_VALUE_BITS + 2) // _WINDOW)
    return _curve.fixed_table(ifma, _words(half), _WINDOW, windows)


@functools.cache
def _check_table(ifma: bool) -> bytes:
    return _curve.fixed_table(ifma, _words(_FOUR_BASE), _CHECK_WINDOW, 6)


@functools.cache
def _log_table(ifma: bool, bits: int) -> bytes:
    return _curve.log_table(ifma, _words(_FOUR_BASE), bits)


@functools.lru_cache(maxsize=8)
def _log_steps(ifma: bool, bits: int, n: int) -> bytes:
    step = curve25519.multiply(2 * (1 << bits) + 1, _FOUR_BASE)
    return _curve.log_steps(ifma, _words(step), n)
