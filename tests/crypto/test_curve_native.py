"""The C kernels check nothing themselves: what crosses into them is refused before."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.crypto.arithmetic import curve25519
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.errors import InvalidPoint

native = pytest.importorskip("hedgerow.crypto.arithmetic.curve_native")

CURVE = Engine(available_kernels()[0], workers=1).curve()
BASE = curve25519.ristretto_encode(curve25519.BASE)
ROWS = CURVE.load(4 * 3 * BASE)
SUMS = ROWS.sum_segments(np.arange(4, dtype=np.uint32), np.arange(5))
MASKER = CURVE.masker(BASE, BASE)
NO_INDEX = np.empty(0, np.uint32)


def starts(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: CURVE.multiply(bytes(33), bytes(32)), "32 bytes"),
        (lambda: CURVE.multiply(bytes(32), bytes(31)), "a scalar has 32 bytes"),
        (lambda: CURVE.map_to_curve(bytes(47)), "48 bytes"),
        (lambda: CURVE.load(bytes(95)), "96 bytes"),
        (lambda: CURVE.run("encode", np.empty((3, 32), np.uint8), SUMS.points), "3 rows"),
        (lambda: ROWS.sum_segments(NO_INDEX, starts()), "starts"),
        (lambda: ROWS.sum_segments(NO_INDEX, starts(0, 1)), "starts"),
        (lambda: ROWS.sum_segments(np.zeros(2, np.uint32), starts(0, 2, 1, 2)), "starts"),
        (lambda: ROWS.sum_segments(np.array([4], np.uint32), starts(0, 1)), "rows below 4"),
        (lambda: SUMS.combine(starts(4), starts(0, 1)), "points 0 to 3"),
        (lambda: SUMS.combine(starts(~4), starts(0, 1)), "points 0 to 3"),
        (lambda: SUMS.combine(starts(0), starts(1, 1)), "starts"),
        (lambda: MASKER.encrypt(bytes(63), starts(0, 0), starts(0, 0)), "32 bytes"),
        (lambda: MASKER.encrypt(bytes(64), starts(0), starts(0, 0)), "2 rows"),
        (lambda: MASKER.encrypt(bytes(64), starts(0, 0), starts(0)), "2 rows"),
        (lambda: MASKER.encrypt(bytes(64), starts(0, 0), starts(0, (1 << 40) + 1)), "at most 2"),
        (lambda: MASKER.encrypt(bytes(64), starts(-(1 << 63), 0), starts(0, 0)), "at most 2"),
        (lambda: MASKER.rerandomise(SUMS, bytes(32)), "4 rows"),
        (lambda: CURVE.opener(1, 2, 100).decrypt(bytes(95)), "96 bytes"),
    ],
)
def test_what_a_kernel_would_read_beyond_is_refused(call, said):
    with pytest.raises((ValueError, InvalidPoint), match=said):
        call()


def test_values_may_be_as_large_as_stated():
    encrypted = MASKER.encrypt(bytes(64), starts(1 << 40, -(1 << 40)), starts(0, 0))
    assert len(encrypted) == 2 * 96


def test_a_kernel_gets_whole_arrays_only():
    with pytest.raises(ValueError, match="C order"):
        CURVE.run("encode", np.empty((2, 32), np.uint8), SUMS.points[::2])
