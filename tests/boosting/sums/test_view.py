"""The canonical encoding under a view: as docs/wire.md has it, and no two values alike."""

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

import numpy as np
import pytest

from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.sums.view import state_digest, sum_view


class Colour(Enum):
    RED = "red"


@dataclass
class Pair:
    left: int
    right: str


def part(letter: bytes, raw: bytes = b"") -> bytes:
    return letter + struct.pack(">Q", len(raw)) + raw


ONE, TWO = part(b"i", b"1"), part(b"i", b"2")
FLOATS = np.array([[1.0, 2.0]], dtype="<f4")


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, part(b"n")),
        (1, ONE),
        (np.int64(1), ONE),
        (True, ONE),
        (np.True_, ONE),
        (-20, part(b"i", b"-20")),
        (1.0, part(b"f", struct.pack(">d", 1.0))),
        (np.float32(1), part(b"f", struct.pack(">d", 1.0))),
        ("é", part(b"s", "é".encode())),
        (b"\xff", part(b"b", b"\xff")),
        (Colour.RED, part(b"s", b"red")),
        ((1, 2), part(b"l", ONE + TWO)),
        ([1, [2]], part(b"l", ONE + part(b"l", TWO))),
        ({"b": 2, "a": 1}, part(b"l", part(b"s", b"a") + ONE + part(b"s", b"b") + TWO)),
        (Pair(1, "x"), part(b"l", ONE + part(b"s", b"x"))),
        (FLOATS, part(b"a", part(b"s", b"<f4") + ONE + TWO + part(b"b", FLOATS.tobytes()))),
    ],
)
def test_a_value_has_the_bytes_of_the_wire_page(value: object, raw: bytes) -> None:
    assert state_digest(value) == hashlib.sha256(raw).digest()
    assert state_digest(1, value) == hashlib.sha256(ONE + raw).digest()


def test_arrays_are_their_values_in_any_layout() -> None:
    values = np.arange(6, dtype=np.int64).reshape(2, 3)
    same = (values.astype(">i8"), np.asfortranarray(values), values[::-1][::-1])
    assert {state_digest(array) for array in same} == {state_digest(values)}
    others = (values.T, values.reshape(3, 2), values.astype(np.int32), values.ravel(), values + 1)
    assert len({state_digest(array) for array in (values, *others)}) == 6


def test_every_part_of_a_question_makes_another_view() -> None:
    asked = (b"job", "sum", ExchangeKey(1, 2, 3), 4, 64, b"state")
    views = [sum_view(*asked)]
    for k, other in enumerate((b"JOB", "sums", ExchangeKey(1, 2, 4), 5, 32, b"STATE")):
        views.append(sum_view(*asked[:k], other, *asked[k + 1 :]))
    views += [
        sum_view(b"job", "sum", place, 4, 64, b"state")
        for place in (ExchangeKey(2, 2, 3), ExchangeKey(1, 1, 3))
    ]
    assert all(a != b for a, b in combinations(views, 2))
    expected = state_digest("hedgerow view v1", b"job", "sum", 1, 2, 3, 4, 64, b"state")
    assert views[0] == expected


def test_what_has_no_encoding_is_refused() -> None:
    with pytest.raises(TypeError, match="a view has no set"):
        state_digest({1})
