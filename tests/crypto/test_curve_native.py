"""The C kernels check every buffer that crosses into them."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.crypto.engine import available_kernels

native = pytest.importorskip("hedgerow.crypto.native._curve")

IFMA = "ifma" in available_kernels()
ROWS = np.zeros((4, 3, 16), np.uint64)
POINTS = np.zeros((4, 3, 24), np.uint64)
ONE_POINT = bytes(192)
TABLE = native.fixed_table(IFMA, ONE_POINT, 4, 64)
SHORT = native.fixed_table(IFMA, ONE_POINT, 4, 11)
NO_INDEX = np.empty(0, np.uint32)


def starts(*values):
    return np.array(values, np.int64)


def encrypt(*changes):
    arguments = [IFMA, 4, TABLE, TABLE, TABLE, SHORT, bytes(64), starts(0, 0), starts(0, 0)]
    for at, value in changes:
        arguments[at] = value
    return native.encrypt(*arguments)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: native.x25519(IFMA, bytes(33), bytes(32)), "multiple of 32"),
        (lambda: native.x25519(IFMA, bytes(32), bytes(31)), "scalar: 32 bytes"),
        (lambda: native.map_to_curve(IFMA, bytes(47)), "multiple of 48"),
        (lambda: native.decode(IFMA, bytes(31)), "multiple of 32"),
        (lambda: native.encode(IFMA, bytes(191)), "multiple of 192"),
        (lambda: native.encode(IFMA, memoryview(bytes(200))[1:193]), "aligned"),
        (lambda: native.sum_rows(IFMA, ROWS, 4, NO_INDEX, starts(0), 0, 0), "width"),
        (lambda: native.sum_rows(IFMA, ROWS, 3, NO_INDEX, starts(), 0, 0), "starts"),
        (lambda: native.sum_rows(IFMA, ROWS, 3, NO_INDEX, starts(0, 1), 0, 1), "starts"),
        (
            lambda: native.sum_rows(
                IFMA, ROWS, 3, np.zeros(2, np.uint32), starts(0, 2, 1, 2), 0, 3
            ),
            "starts",
        ),
        (lambda: native.sum_rows(IFMA, ROWS, 3, np.array([4], np.uint32), starts(0, 1), 0, 1), "4"),
        (lambda: native.sum_rows(IFMA, ROWS, 3, NO_INDEX, starts(0, 0), 0, 2), "range of segments"),
        (
            lambda: native.sum_rows(IFMA, ROWS, 3, NO_INDEX, starts(0, 0), -1, 1),
            "range of segments",
        ),
        (lambda: native.combine(IFMA, POINTS, 3, starts(4), starts(0, 1)), "points 0 to 3"),
        (lambda: native.combine(IFMA, POINTS, 3, starts(~4), starts(0, 1)), "points 0 to 3"),
        (lambda: native.fixed_table(IFMA, ONE_POINT, 13, 4), "4 to 12 bits"),
        (lambda: native.fixed_table(IFMA, ONE_POINT, 4, 65), "1 to 64"),
        (lambda: native.fixed_table(IFMA, bytes(160), 4, 4), "192 bytes"),
        (lambda: encrypt((2, TABLE[:-128])), "table"),
        (lambda: encrypt((5, TABLE)), "table"),
        (lambda: encrypt((7, starts(0))), "g: 16 bytes"),
        (lambda: encrypt((8, starts(0, (1 << 40) + 1))), "at most 2"),
        (lambda: encrypt((7, starts(-(1 << 63), 0))), "at most 2"),
        (
            lambda: native.rerandomise(IFMA, 4, TABLE, TABLE, TABLE, SHORT, POINTS[:2], bytes(32)),
            "scalars: 64 bytes",
        ),
        (lambda: native.decrypt(IFMA, bytes(95), bytes(64)), "multiple of 96"),
        (lambda: native.decrypt(IFMA, bytes(96), bytes(32)), "keys: 64 bytes"),
        (lambda: native.log_table(IFMA, ONE_POINT, 27), "4 to 26"),
        (lambda: native.log_steps(IFMA, ONE_POINT, 7), "multiple of 8"),
        (
            lambda: native.log_solve(IFMA, POINTS, 4, bytes(255), b"", bytes(8), 1),
            "table: 256 bytes",
        ),
        (lambda: native.log_solve(IFMA, POINTS, 4, bytes(256), b"", bytes(8), 1), "check"),
        (lambda: native.log_solve(IFMA, POINTS, 4, bytes(256), b"", b"", 1 << 42), "limit"),
    ],
)
def test_buffers_of_the_wrong_shape_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_encryption_takes_what_it_is_meant_for():
    assert len(encrypt()) == 2 * 96


def test_values_may_be_as_large_as_stated():
    assert len(encrypt((7, starts(1 << 40, -(1 << 40))))) == 2 * 96
