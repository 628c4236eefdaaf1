"""Totals are checked by words that add up over silos, and no others pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.crypto.masking.totals import MODULUS, Check, ResiduesCheck, TotalsCheck, totals_key

SILOS = ("ash", "birch", "cedar", "elm")
KEY = totals_key(bytes(32), "session")
NUMBERS = st.integers(-(1 << 60), 1 << 60)
RESIDUES = st.integers(-(1 << 63), (1 << 63) - 1)
Integers = NDArray[np.int64]
Parts = dict[str, Integers]


def integers(numbers: list[int]) -> Integers:
    return np.array(numbers, np.int64)


def summed(kind: type[Check], view: bytes, parts: Parts, silos: tuple[str, ...]) -> Integers:
    check = kind(KEY, view, SILOS, len(parts[SILOS[0]]))
    words = [np.array(check.word(silo, parts[silo]), np.uint64) for silo in silos]
    return np.array(np.sum(words, axis=0, dtype=np.uint64).view(np.int64))


@given(st.lists(st.tuples(*[NUMBERS] * 4), max_size=6), st.integers(1, 4))
def test_sums_of_words_hold_for_sums_of_totals(rows: list[tuple[int, ...]], n_silos: int) -> None:
    present = SILOS[:n_silos]
    parts = {silo: integers([row[k] for row in rows]) for k, silo in enumerate(SILOS)}
    word = summed(TotalsCheck, b"view", parts, present)
    assert max(word) < n_silos << 30
    totals = integers([sum(row[:n_silos]) for row in rows])
    check = TotalsCheck(KEY, b"view", SILOS, len(totals))
    assert check.holds(totals, word, present)
    for position in range(len(totals)):
        for change in (1, 1 << 60, -(int(totals[position]) or 1)):
            other = totals.copy()
            other[position] += change
            assert not check.holds(other, word, present)
    assert not check.holds(totals, word ^ integers([1, 0, 0]), present)


@given(st.lists(st.tuples(*[RESIDUES] * 4), min_size=1, max_size=6), st.integers(1, 4))
def test_sums_of_words_hold_for_sums_of_residues(rows: list[tuple[int, ...]], n_silos: int) -> None:
    """Sums wrap around 2**64; what changes any of the lowest 32 bits of a total does not pass."""
    present = SILOS[:n_silos]
    parts = {silo: integers([row[k] for row in rows]) for k, silo in enumerate(SILOS)}
    word = summed(ResiduesCheck, b"view", parts, present)
    totals = np.sum([parts[silo] for silo in present], axis=0)
    check = ResiduesCheck(KEY, b"view", SILOS, len(totals))
    assert check.holds(totals, word, present)
    for position in range(len(totals)):
        for change in (1, 1 << 31, (1 << 63) + 1, -(int(totals[position]) & 0xFFFFFFFF or 1)):
            other = totals.copy()
            other[position : position + 1] += np.array([change % 2**64], np.uint64).view(np.int64)
            assert not check.holds(other, word, present)
    assert not check.holds(totals, word ^ 1, present)
    assert not check.holds(totals, word, SILOS[: n_silos - 1])


@pytest.mark.parametrize("kind", [TotalsCheck, ResiduesCheck])
@pytest.mark.parametrize("factor", [0, 2, -1])
def test_a_multiple_of_totals_and_word_does_not_pass(kind: type[Check], factor: int) -> None:
    parts = {silo: integers([5, -(1 << 40), 1 << 59]) for silo in SILOS}
    totals = np.sum(list(parts.values()), axis=0)
    word = factor * summed(kind, b"view", parts, SILOS)
    assert not kind(KEY, b"view", SILOS, 3).holds(factor * totals, word, SILOS)


@pytest.mark.parametrize("kind", [TotalsCheck, ResiduesCheck])
def test_a_word_is_of_one_view_one_set_and_one_session(kind: type[Check]) -> None:
    parts = {silo: integers([7, 8]) for silo in SILOS}
    word, totals = summed(kind, b"view", parts, SILOS), integers([28, 32])
    assert kind(KEY, b"view", SILOS, 2).holds(totals, word, SILOS)
    assert not kind(KEY, b"other", SILOS, 2).holds(totals, word, SILOS)
    assert not kind(KEY, b"view", SILOS, 2).holds(totals, word, SILOS[:3])
    other = totals_key(bytes(32), "another")
    assert not kind(other, b"view", SILOS, 2).holds(totals, word, SILOS)


def test_no_two_64_bit_totals_are_one_residue() -> None:
    assert MODULUS > 1 << 65
