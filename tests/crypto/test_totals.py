"""Totals are checked by words that add up over silos, and no others pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.crypto.totals import MODULUS, TotalsCheck, totals_key

SILOS = ("ash", "birch", "cedar", "elm")
KEY = totals_key(bytes(32), "session")
NUMBERS = st.integers(-(1 << 61), 1 << 61)


def summed(view: bytes, parts: dict[str, list[int]], silos: tuple[str, ...]) -> list[int]:
    check = TotalsCheck(KEY, view, SILOS)
    return [sum(limbs) for limbs in zip(*(check.word(s, parts[s]) for s in silos), strict=True)]


@given(st.lists(st.tuples(*[NUMBERS] * 4), max_size=6), st.integers(1, 4))
def test_sums_of_words_hold_for_sums_of_totals(rows: list[tuple[int, ...]], n_silos: int) -> None:
    present = SILOS[:n_silos]
    parts = {silo: [row[k] for row in rows] for k, silo in enumerate(SILOS)}
    word = summed(b"view", parts, present)
    assert max(word) < n_silos << 30
    totals = [sum(row[:n_silos]) for row in rows]
    check = TotalsCheck(KEY, b"view", SILOS)
    assert check.holds(totals, word, present)
    for position in range(len(totals)):
        for change in (1, 1 << 60, (1 << 64), -(totals[position] or 1)):
            other = list(totals)
            other[position] += change
            assert not check.holds(other, word, present)
    assert not check.holds(totals, [word[0] ^ 1, *word[1:]], present)


@pytest.mark.parametrize("factor", [0, 2, -1])
def test_a_multiple_of_totals_and_word_does_not_pass(factor: int) -> None:
    parts = {silo: [5, -(1 << 40), 1 << 60] for silo in SILOS}
    totals = [sum(each) for each in zip(*parts.values(), strict=True)]
    word = [factor * limb for limb in summed(b"view", parts, SILOS)]
    assert not TotalsCheck(KEY, b"view", SILOS).holds([factor * t for t in totals], word, SILOS)


def test_a_word_is_of_one_view_one_set_and_one_session() -> None:
    parts = {silo: [7, 8] for silo in SILOS}
    word = summed(b"view", parts, SILOS)
    assert TotalsCheck(KEY, b"view", SILOS).holds([28, 32], word, SILOS)
    assert not TotalsCheck(KEY, b"other", SILOS).holds([28, 32], word, SILOS)
    assert not TotalsCheck(KEY, b"view", SILOS).holds([28, 32], word, SILOS[:3])
    other = totals_key(bytes(32), "another")
    assert not TotalsCheck(other, b"view", SILOS).holds([28, 32], word, SILOS)


def test_no_two_64_bit_totals_are_one_residue() -> None:
    assert MODULUS > 1 << 65
