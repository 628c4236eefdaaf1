"""Curve arithmetic without a compiler: gmpy2 and the `cryptography` package.

Slow for EC-ElGamal (about a thousand rows a second a core), fast enough for private set
intersection. It is the reference that the C kernels are tested against.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic import curve25519
from hedgerow.crypto.arithmetic.curve25519 import BASE, IDENTITY, ORDER, PRIME, D, Point
from hedgerow.crypto.arithmetic.curve_kernels import (
    MOST_VALUE_BITS,
    NOT_FOUND,
    ROW_BYTES,
    SCALAR_BYTES,
    CurveSums,
)
from hedgerow.crypto.arithmetic.worker_processes import run_in_processes
from hedgerow.crypto.errors import InvalidPoint

_Row = tuple[Point, Point, Point]
_WINDOW = 6
_MOST_TABLE_BITS = 16
_LEAST_SHARED = 2000


def _in_processes(
    function: Callable[..., bytes], data: bytes, size: int, workers: int, *more: object
) -> bytes:
    """Cut `data`, elements of `size` bytes, over worker processes."""
    n = len(data) // size
    if workers == 1 or n < _LEAST_SHARED or len(data) % size:
        return function(data, *more)
    step = size * -(-n // workers)
    jobs = [(data[i : i + step], *more) for i in range(0, len(data), step)]
    return b"".join(run_in_processes(function, jobs, workers))


def _add_rows(a: _Row, b: _Row) -> _Row:
    add = curve25519.add
    return add(a[0], b[0]), add(a[1], b[1]), add(a[2], b[2])


def _negate_row(a: _Row) -> _Row:
    negate = curve25519.negate
    return negate(a[0]), negate(a[1]), negate(a[2])


_ZERO_ROW: _Row = (IDENTITY, IDENTITY, IDENTITY)


def _sum(rows: Iterable[_Row]) -> _Row:
    return functools.reduce(_add_rows, rows, _ZERO_ROW)


class PythonSums:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.CurveSums`."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        """Count the sums."""
        return len(self.rows)

    def combine(self, index: NDArray[np.int64], starts: NDArray[np.int64]) -> PythonSums:
        rows, order = self.rows, index.tolist()
        return PythonSums(
            [
                _sum(rows[i] if i >= 0 else _negate_row(rows[~i]) for i in order[a:b])
                for a, b in itertools.pairwise(starts)
            ]
        )

    def append(self, others: CurveSums) -> PythonSums:
        assert isinstance(others, PythonSums)
        return PythonSums(self.rows + others.rows)

    def encode(self) -> bytes:
        encode = curve25519.ristretto_encode
        return b"".join(encode(point) for row in self.rows for point in row)


class PythonRows:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.CurveRows`."""

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def sum_segments(self, index: NDArray[np.uint32], starts: NDArray[np.int64]) -> PythonSums:
        return PythonSums(self._rows).combine(index.astype(np.int64), starts)


def _fixed_table(base: Point, n_bits: int) -> list[list[Point]]:
    """Give digit · 2^(6 i) · base, for every window i and digit."""
    add, table = curve25519.add, []
    for _ in range(-(-n_bits // _WINDOW)):
        row = [IDENTITY, base]
        while len(row) <= 1 << _WINDOW:
            row.append(add(row[-1], base))
        base = row.pop()
        table.append(row)
    return table


def _from_table(table: list[list[Point]], scalar: int) -> Point:
    out, add = IDENTITY, curve25519.add
    for row in table:
        digit = scalar & (1 << _WINDOW) - 1
        if digit:
            out = add(out, row[digit])
        scalar >>= _WINDOW
    return out


@functools.lru_cache(maxsize=16)
def _public_table(encoding: bytes) -> list[list[Point]]:
    return _fixed_table(curve25519.ristretto_decode(encoding), 252)


@functools.cache
def _value_table() -> list[list[Point]]:
    return _fixed_table(BASE, MOST_VALUE_BITS + 1)


class PythonMasker:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.Encryptor`."""

    def __init__(self, p1: bytes, p2: bytes) -> None:
        base = curve25519.ristretto_encode(BASE)
        self._tables = tuple(_public_table(encoding) for encoding in (base, p1, p2))

    def _mask(self, scalars: bytes, i: int) -> _Row:
        drawn = int.from_bytes(scalars[SCALAR_BYTES * i : SCALAR_BYTES * (i + 1)], "little")
        r = drawn & (1 << 252) - 1
        g, p1, p2 = self._tables
        return _from_table(g, r), _from_table(p1, r), _from_table(p2, r)

    def encrypt(self, scalars: bytes, g: NDArray[np.int64], h: NDArray[np.int64]) -> bytes:
        """Encrypt rows; the randomness of a row is 2 r."""
        add, double, encode = curve25519.add, curve25519.double, curve25519.ristretto_encode
        out = []
        for i, values in enumerate(zip(g.tolist(), h.tolist(), strict=True)):
            first, *masks = (double(point) for point in self._mask(scalars, i))
            out.append(encode(first))
            for value, mask in zip(values, masks, strict=True):
                point = _from_table(_value_table(), abs(value))
                out.append(encode(add(mask, curve25519.negate(point) if value < 0 else point)))
        return b"".join(out)

    def rerandomise(self, sums: CurveSums, scalars: bytes) -> bytes:
        assert isinstance(sums, PythonSums)
        masked = [_add_rows(row, self._mask(scalars, i)) for i, row in enumerate(sums.rows)]
        return PythonSums(masked).encode()


class PythonOpener:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.Decryptor`: baby steps in a dictionary.

    Giant steps are batched.
    """

    def __init__(self, x1: int, x2: int, limit: int) -> None:
        self._keys, self._limit = (ORDER - x1, ORDER - x2), limit
        # A balance of what the table costs once and what every logarithm costs.
        bits = max(4, min(_MOST_TABLE_BITS, limit.bit_length() // 2 + 2))
        self._baby, self._modulus = _baby_steps(bits), 2 * (1 << bits) + 1
        self._giant = _giant_steps(bits, (limit + (1 << bits)) // self._modulus)

    def decrypt(self, ciphertexts: bytes) -> NDArray[np.int64]:
        rows = _decode_rows(ciphertexts)
        out = np.empty((len(rows), 2), np.int64)
        add, double, multiply = curve25519.add, curve25519.double, curve25519.multiply
        for i, (shared, *masked) in enumerate(rows):
            for k, (key, point) in enumerate(zip(self._keys, masked, strict=True)):
                out[i, k] = self._logarithm(double(double(add(point, multiply(key, shared)))))
        return out

    def _logarithm(self, point: Point) -> int:
        x, y = _affine([point])[0]
        found = self._candidate(0, y, x, y)
        if found is not None:
            return found
        p, block = PRIME, 16
        for first in range(0, len(self._giant), block):
            steps = self._giant[first : first + block]
            terms = []
            for x2, y2, dxy in steps:
                a, b, c = y * y2, x * x2, x * y % p * dxy % p
                terms.append((a, b, c))
            inverses = curve25519.batch_invert([1 - c * c % p for _, _, c in terms])
            for offset, ((a, b, c), inverse) in enumerate(zip(terms, inverses, strict=True)):
                k = first + offset + 1
                for sign in (1, -1):
                    y3 = (a - sign * b) * (1 - sign * c) % p * inverse % p
                    found = self._candidate(sign * k, y3, x, y)
                    if found is not None:
                        return found
        return NOT_FOUND

    def _candidate(self, k: int, y3: int, x: int, y: int) -> int | None:
        """Give v = k M ± j where j B has the y-coordinate y3 and v B = (x, y), in range."""
        j = self._baby.get(int(y3))
        if j is None:
            return None
        for value in (k * self._modulus + j, k * self._modulus - j):
            if abs(value) <= self._limit:
                point = _from_table(_four_table(), abs(value))
                point = curve25519.negate(point) if value < 0 else point
                if _affine([point])[0] == (x, y):
                    return value
        return None


@functools.cache
def _four_table() -> list[list[Point]]:
    return _fixed_table(curve25519.multiply(4, BASE), MOST_VALUE_BITS + 1)


@functools.cache
def _baby_steps(bits: int) -> dict[int, int]:
    """Map the y-coordinate of j · 4G to j, for 0 <= j <= 2^bits."""
    four = curve25519.multiply(4, BASE)
    points = [IDENTITY]
    for _ in range(1 << bits):
        points.append(curve25519.add(points[-1], four))
    return {int(y): j for j, (_, y) in enumerate(_affine(points))}


@functools.lru_cache(maxsize=4)
def _giant_steps(bits: int, n: int) -> list[tuple[int, int, int]]:
    """Give x, y and d·x·y of k · (2^(bits + 1) + 1) · 4G, for 1 <= k <= n."""
    step = curve25519.multiply(4 * (2 * (1 << bits) + 1), BASE)
    points, point = [], step
    for _ in range(n):
        points.append(point)
        point = curve25519.add(point, step)
    return [(x, y, D * x % PRIME * y % PRIME) for x, y in _affine(points)]


def _affine(points: list[Point]) -> list[tuple[int, int]]:
    p = PRIME
    inverses = curve25519.batch_invert([point[2] for point in points])
    return [
        (x * inverse % p, y * inverse % p)
        for (x, y, _, _), inverse in zip(points, inverses, strict=True)
    ]


def _decode_rows(ciphertexts: bytes) -> list[_Row]:
    if len(ciphertexts) % ROW_BYTES:
        raise InvalidPoint(f"{ROW_BYTES} bytes a ciphertext expected, received {len(ciphertexts)}")
    decode, rows = curve25519.ristretto_decode, []
    for i in range(0, len(ciphertexts), ROW_BYTES):
        try:
            rows.append(
                (
                    decode(ciphertexts[i : i + 32]),
                    decode(ciphertexts[i + 32 : i + 64]),
                    decode(ciphertexts[i + 64 : i + 96]),
                )
            )
        except InvalidPoint:
            raise InvalidPoint(
                f"ciphertext {i // ROW_BYTES} holds no valid ristretto255 elements"
            ) from None
    return rows


class PythonCurve:
    """See :class:`hedgerow.crypto.arithmetic.curve_kernels.CurveKernel`.

    Parameters
    ----------
    workers : int
        Processes that share a large batch of an intersection.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map_to_curve(self, uniform: bytes) -> bytes:
        size = curve25519.HASH_BYTES
        return _in_processes(curve25519.map_to_curve, uniform, size, self.workers)

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        return _in_processes(curve25519.multiply_u, points, 32, self.workers, scalar)

    def load(self, ciphertexts: bytes) -> PythonRows:
        return PythonRows(_decode_rows(ciphertexts))

    def masker(self, p1: bytes, p2: bytes) -> PythonMasker:
        return PythonMasker(p1, p2)

    def opener(self, x1: int, x2: int, limit: int) -> PythonOpener:
        return PythonOpener(x1, x2, limit)
