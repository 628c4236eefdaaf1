"""Packed fields of any width come back, add and take masks, each in a ring of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.masking import masks
from hedgerow.crypto.masking.fields import BitFields
from hedgerow.crypto.masking.keystream import CHUNK_BYTES

SIGNED = np.array([True, False])


@st.composite
def tables(draw: st.DrawFn) -> tuple[BitFields, np.random.Generator, bool]:
    segments = st.tuples(st.integers(0, 64), st.integers(0, 63), st.integers(0, 40))
    drawn = draw(st.lists(segments, max_size=8))
    widths = np.array([row[:2] for row in drawn], np.uint8).reshape(-1, 2)
    counts = np.array([row[2] for row in drawn], np.int64)
    seed = draw(st.integers(0, 1 << 32))
    return BitFields(widths, counts), np.random.default_rng(seed), draw(st.booleans())


def rows_of(fields: BitFields, rng: np.random.Generator, *, edges: bool) -> np.ndarray:
    """Return integers that fit their fields; only the least, -1, 0, 1 and the greatest if edges."""
    out = []
    for widths, count in zip(fields.widths.tolist(), fields.counts.tolist(), strict=True):
        for _ in range(count):
            row = []
            for width, signed in zip(widths, SIGNED, strict=True):
                low, high = (-(1 << width >> 1), (1 << width >> 1) - 1) if signed else (0, 1)
                high = (1 << width) - 1 if not signed else max(high, 0)
                low = low if width else 0
                some = [low, high, 0, *([1] if high else []), *([-1] if low else [])]
                row.append(
                    int(rng.choice(some)) if edges else int(rng.integers(low, high, endpoint=True))
                )
            out.append(row)
    return np.array(out, np.int64).reshape(-1, 2)


def packed(fields: BitFields, rows: np.ndarray) -> np.ndarray:
    """Return fields of all rows, half of them in a table of their own and the wrong way round."""
    half, n = len(rows) // 2, len(rows)
    index = np.concatenate([np.arange(half)[::-1], np.arange(half, n)])
    return fields.pack(np.ascontiguousarray(rows[:half][::-1]), index, rows[half:])


def unpacked(fields: BitFields, words: np.ndarray, signed: np.ndarray = SIGNED) -> np.ndarray:
    out = np.full((fields.n_rows, len(signed)), 7, np.int64)
    fields.unpack(words, signed, out, np.arange(len(out)), out[:0])
    return out


def wrapped(total: int, width: int, signed: bool) -> int:
    if not width:
        return 0
    residue = total % (1 << width)
    return residue - (1 << width) if signed and residue >> (width - 1) else residue


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(tables())
def test_masked_sums_are_those_of_each_field_modulo_its_width(
    drawn: tuple[BitFields, np.random.Generator, bool],
) -> None:
    fields, rng, edges = drawn
    parts = [rows_of(fields, rng, edges=edges) for _ in range(3)]
    pairs = {(i, j): rng.bytes(32) for i in range(3) for j in range(i + 1, 3)}
    own = [rng.bytes(32) for _ in range(3)]
    vectors = []
    for k, part in enumerate(parts):
        vector = packed(fields, part)
        assert np.array_equal(unpacked(fields, vector), part)
        add = [own[k], *(seed for (i, _), seed in pairs.items() if i == k)]
        subtract = [seed for (_, j), seed in pairs.items() if j == k]
        vectors.append(masks.masked(vector, fields, add, subtract))
        if fields.n_words > 2:
            assert not np.array_equal(vectors[-1], vector)
    total = masks.summed(vectors, fields.n_words, fields)
    opened = unpacked(fields, masks.unmasked(total, fields, own))
    widths = np.repeat(fields.widths, fields.counts, axis=0).tolist()
    sums = [[sum(int(part[i, c]) for part in parts) for c in (0, 1)] for i in range(len(widths))]
    expected = [
        [wrapped(sums[i][c], widths[i][c], bool(SIGNED[c])) for c in (0, 1)]
        for i in range(len(widths))
    ]
    assert opened.tolist() == expected


@pytest.mark.parametrize("width", [1, 7, 29, 33, 63, 64])
def test_carries_cross_the_pieces_of_a_long_vector(width: int) -> None:
    n = 3 * CHUNK_BYTES // width + 5
    fields = BitFields(np.array([[width]], np.uint8), np.array([n]))
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-(1 << 62), 1 << 62, (n, 1)) for _ in range(2))
    signed = np.array([True])
    words = packed(fields, a)
    fields.put(plus=True)(words, packed(fields, b), 0)
    shift = np.int64(64 - width)
    assert np.array_equal(unpacked(fields, words, signed), ((a + b) << shift) >> shift)
    fields.put(plus=False)(words, packed(fields, b), 0)
    assert np.array_equal(words, packed(fields, a))
    seeds = [rng.bytes(32) for _ in range(4)]
    masked = masks.masked(words, fields, seeds[:2], seeds[2:])
    assert not np.array_equal(masked, words)
    assert np.array_equal(masks.masked(masked, fields, seeds[2:], seeds[:2]), words)


def test_impossible_fields_and_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="0 to 64 bits"):
        BitFields(np.array([[65]], np.uint8), np.array([1]))
    fields = BitFields(np.array([[3]], np.uint8), np.array([4]))
    rows = np.zeros((5, 1), np.int64)
    with pytest.raises(ValueError, match="4 rows, received 5"):
        fields.pack(rows, np.arange(5), rows[:0])
    with pytest.raises(ValueError, match="positions below 5"):
        fields.pack(rows, np.arange(2, 6), rows[:0])
    with pytest.raises(ValueError, match="1 words, received 2"):
        fields.unpack(np.zeros(2, np.uint64), np.array([True]), rows, np.arange(4), rows[:0])
