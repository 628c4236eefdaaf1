"""Columns of integers and float32 as bits: Golomb codes, written and read a column at a time.

A value ``v`` is written with its column's own parameter ``k``: ``v >> k`` in unary and ``k`` low
bits (Rice), or exponential Golomb, whichever makes the column shorter. The unary parts of all
columns come first, then the binary parts, so that both are read by whole-array operations.
What is read is bounded by the number of bytes received. The format is in docs/wire.md.

References
----------
S. W. Golomb, "Run-length encodings", 1966; R. F. Rice, "Some practical universal noiseless coding
techniques", 1979; J. Teuhola, "A compression method for clustered bit-vectors", 1978.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected

_MAX_WIDTH = 56  # bits of a value
EXPONENTIAL = 64  # column parameter k + 64: exponential Golomb with k
ZEROS = 255  # column parameter of a column of zeros, which has no bits at all
_LOW32 = np.int64(0xFFFFFFFF)
_SHORT = "packed columns end too early"
_DAMAGED = "expected a column of numbers, received other bits"

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]


class ColumnWriter:
    """Collects columns: their parameters, unary parts and binary parts apart.

    Parameters
    ----------
    head : bytearray
        Bytes before the columns' parameters.
    first : ndarray of bool
        Bits before all columns.
    """

    def __init__(self, head: bytearray, first: NDArray[np.bool_]) -> None:
        self.head = head
        self.first = first
        self.unary: list[I64] = []
        self.binary: list[tuple[I64, I64]] = []

    def plain(self, values: NDArray[Any], width: int) -> None:
        """Append integers of ``width`` bits each."""
        self.binary.append((values.astype(np.int64), np.full(len(values), width, np.int64)))

    def golomb(self, values: NDArray[Any]) -> None:
        """Append integers, small ones in few bits."""
        v = values.astype(np.int64)
        if (v < 0).any():
            raise ValueError("expected numbers from zero up")
        parameter = _best_parameter(v)
        self.head.append(parameter)
        if parameter == ZEROS:
            return
        k = parameter % EXPONENTIAL
        if parameter < EXPONENTIAL:
            count, width = v >> k, np.full(len(v), k, np.int64)
        else:
            count = _bit_length((v >> k) + 1) - 1
            width = count + k
            v = v - (((1 << count) - 1) << k)
        self.unary.append(count)
        self.binary.append((v & ((1 << width) - 1), width))

    def floats(self, values: F32) -> None:
        """Append float32: how far below the largest exponent, sign, mantissa up to its zeros."""
        bits = float_bits(values).astype(np.int64)
        used = int(np.bitwise_or.reduce(bits & 0x7FFFFF)) if len(bits) else 0
        zeros = min(23, (used & -used).bit_length() - 1) if used else 23
        exponent = bits >> 23 & 0xFF
        top = int(exponent.max()) if len(bits) else 0
        self.head += bytes([top, zeros])
        rest = (bits >> 31 << 23) | (bits & 0x7FFFFF)
        self.golomb(((top - exponent) << 24 | rest) >> zeros)

    def residual(self, actual: F32, predicted: F32) -> None:
        """Append how many float32 there are between each actual and predicted value."""
        self.golomb(zigzag(ordinal(actual) - ordinal(predicted)))

    def done(self) -> bytes:
        """Return all bytes."""
        counts = np.concatenate([np.zeros(0, np.int64), *self.unary])
        ends = np.cumsum(counts + 1)
        unary = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
        unary[ends - 1] = 1
        values = np.concatenate([np.zeros(0, np.int64), *(v for v, _ in self.binary)])
        widths = np.concatenate([np.zeros(0, np.int64), *(w for _, w in self.binary)])
        ends = np.cumsum(widths)
        shift = np.repeat(ends, widths) - 1 - np.arange(int(ends[-1]) if len(ends) else 0)
        binary = (np.repeat(values, widths) >> shift & 1).astype(np.uint8)
        bits = np.concatenate([self.first.astype(np.uint8), unary, binary])
        return bytes(self.head) + np.packbits(bits).tobytes()


class ColumnReader:
    """Reads the columns in the order in which they were written.

    Parameters
    ----------
    at : int
        Where the column parameters begin.
    columns : list of (int, bool)
        For each column of integers or floats, its length and whether it has floats.
    n_first : int
        Number of bits before all columns, read into ``first``.

    Raises
    ------
    OfferRejected
        From every method: the bytes end too early, or are no columns.
    """

    def __init__(self, data: bytes, at: int, columns: list[tuple[int, bool]], n_first: int) -> None:
        parameters = []
        for count, is_float in columns:
            size = 3 if is_float else 1
            parameters.append((count, data[at : at + size]))
            if len(parameters[-1][1]) != size:
                raise OfferRejected(_SHORT)
            at += size
        self.bytes = np.frombuffer(data + bytes(8), np.uint8)  # windows reach behind the end
        self.base = 8 * at
        bits = np.unpackbits(np.frombuffer(data, np.uint8)[at:])
        self.end = len(bits)
        self.first = bits[:n_first].astype(np.bool_)
        total = sum(count for count, parameter in parameters if parameter[-1] != ZEROS)
        ones = np.flatnonzero(bits[n_first:])[:total]
        if len(self.first) != n_first or len(ones) != total:
            raise OfferRejected(_SHORT)
        self.counts = np.diff(ones, prepend=-1) - 1
        self.at = n_first + (int(ones[-1]) + 1 if total else 0)
        self.parameters = iter(parameters)

    def plain(self, n: int, width: int) -> I64:
        """Return the next ``n`` integers of ``width`` bits."""
        return self._binary(np.full(n, width, np.int64))

    def golomb(self) -> I64:
        """Return the next column of integers."""
        n, parameter = next(self.parameters)
        return self._golomb(n, parameter[0])

    def floats(self) -> F32:
        """Return the next column of float32."""
        n, (top, zeros, parameter) = next(self.parameters)
        if zeros > 23:
            raise OfferRejected(_DAMAGED)
        code = self._golomb(n, parameter) << zeros
        exponent = top - (code >> 24)
        if (exponent < 0).any():
            raise OfferRejected(_DAMAGED)
        bits = (code >> 23 & 1) << 31 | exponent << 23 | code & 0x7FFFFF
        return bits.astype(np.uint32).view(np.float32)

    def _golomb(self, n: int, parameter: int) -> I64:
        if parameter == ZEROS:
            return np.zeros(n, np.int64)
        exponential, k = divmod(parameter, EXPONENTIAL)
        if exponential > 1 or k > _MAX_WIDTH:
            raise OfferRejected(_DAMAGED)
        count, self.counts = self.counts[:n], self.counts[n:]
        if n and int(count.max()) > (_MAX_WIDTH - k if exponential else 1 << (_MAX_WIDTH - k)):
            raise OfferRejected(_DAMAGED)
        if not exponential:
            return (count << k) + self._binary(np.full(n, k, np.int64))
        return (((1 << count) - 1) << k) + self._binary(count + k)

    def _binary(self, widths: I64) -> I64:
        ends = self.at + np.cumsum(widths)
        if len(ends) == 0:
            return np.zeros(0, np.int64)
        if int(ends[-1]) > self.end:
            raise OfferRejected(_SHORT)
        self.at = int(ends[-1])
        start = self.base + ends - widths
        window = self.bytes[(start >> 3)[:, None] + np.arange(8)]
        word = window.view(">u8")[:, 0].astype(np.uint64)
        word <<= (start & 7).astype(np.uint64)
        # A shift by 64 is undefined, so the last bit goes on its own.
        word = word >> np.uint64(1) >> (63 - widths).astype(np.uint64)
        values: I64 = word.astype(np.int64)
        return values


def _best_parameter(v: I64) -> int:
    """Return the parameter of the shortest code of a column."""
    if not v.any():
        return ZEROS
    ks = np.arange(40)[:, None]
    quotient = v >> ks
    # float64 keeps a sum that would overflow; the smallest is exact.
    rice = (quotient + (1.0 + ks)).sum(axis=1)
    exponential = (2 * _bit_length(quotient + 1) + (ks - 1)).sum(axis=1)
    plain, grown = int(rice.argmin()), int(exponential.argmin())
    if rice[plain] <= exponential[grown]:
        return plain
    return EXPONENTIAL + grown


def _bit_length(v: I64) -> I64:
    """Return the bit length of integers in [0, 2**52]; frexp's exponent, exactly."""
    return np.frexp(v.astype(np.float64))[1].astype(np.int64)


def float_bits(values: F32) -> NDArray[np.uint32]:
    """Return the bit patterns of float32."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def ordinal(values: F32) -> I64:
    """Return positions of float32 in numeric order, 0 to 2**32 - 1; every NaN has one too."""
    bits = float_bits(values).astype(np.int64)
    return np.where(bits >> 31 == 1, _LOW32 - bits, bits + (1 << 31))


def from_ordinal(positions: I64) -> F32:
    """Return the float32 at positions, which count modulo 2**32."""
    place = positions & _LOW32
    bits = np.where(place >> 31 == 1, place - (1 << 31), _LOW32 - place)
    return bits.astype(np.uint32).view(np.float32)


def zigzag(v: NDArray[Any]) -> I64:
    """Map 0, -1, 1, -2 ... to 0, 1, 2, 3 ..."""
    signed = v.astype(np.int64)
    return signed << 1 ^ signed >> 63


def unzigzag(v: I64) -> I64:
    """Undo :func:`zigzag`."""
    signed: I64 = v >> 1 ^ -(v & 1)
    return signed
