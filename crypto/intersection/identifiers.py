"""Identifiers of rows: their normal form, and a digest of a whole column."""

from __future__ import annotations

import hmac
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.errors import PsiRefused

RawId = str | bytes | int | float | None
_T = TypeVar("_T")
_SLICE = 1 << 16
"""Ids that are worked on at a time: a whole column would be in memory several times over."""


@dataclass(frozen=True, slots=True)
class DistinctIds:
    """Ids of a table, normalised, one row each."""

    ids: tuple[bytes, ...]
    """Normalised ids that one row has, in the order of their rows."""
    rows: NDArray[np.int64]
    """Of shape (n_ids,), int64. Row of each id, the only one that has it."""
    n_missing: int
    """Rows left out because they have no id."""
    n_duplicates: int
    """Rows left out because another row has their id."""


def normalise_id(value: RawId) -> bytes | None:
    """Give an id's canonical bytes, or None where there is no id.

    Text is put into Unicode form NFKC and stripped of surrounding white space; its case and its
    leading zeros count. Whole numbers become decimal text, whole floats too (``12.0`` is ``12``,
    as spreadsheets make them). None, NaN and empty text are missing ids.

    Raises
    ------
    PsiRefused
        For a number that is not whole, a truth value, and bytes that are not UTF-8.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if isinstance(value, str):
        text = value if value.isascii() else unicodedata.normalize("NFKC", value)
        return text.strip().encode() or None
    if isinstance(value, bytes):
        try:
            return normalise_id(value.decode())
        except UnicodeDecodeError as error:
            raise PsiRefused("ids: expected UTF-8 text where they are bytes") from error
    if isinstance(value, bool):
        raise PsiRefused("ids: expected text or a whole number, received a truth value")
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, float):
        if value != value:
            return None
        if not value.is_integer():
            raise PsiRefused("ids: expected text or a whole number, received a fraction")
        return b"%d" % int(value)
    raise PsiRefused(f"ids: expected text or a whole number, received {type(value).__name__}")


def _slices(values: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(values)
    while part := list(islice(rest, _SLICE)):
        yield part


def _normalised(values: Iterable[RawId]) -> Iterator[bytes | None]:
    for part in _slices(values):
        if set(map(type, part)) <= {str} and "".join(texts := cast("list[str]", part)).isascii():
            yield from [text.strip().encode() or None for text in texts]
        else:
            yield from map(normalise_id, part)


def distinct_ids(values: Iterable[RawId]) -> DistinctIds:
    """Normalise a column of ids; rows without an id and repeated ids are left out and counted.

    Of a repeated one all rows are left out: nobody knows which of them is meant.
    """
    first: dict[bytes, int] = {}
    twice: set[bytes] = set()
    row = -1
    n_missing = 0
    for row, key in enumerate(_normalised(values)):
        if key is None:
            n_missing += 1
        elif key in first:
            twice.add(key)
        else:
            first[key] = row
    for key in twice:
        del first[key]
    rows = np.fromiter(first.values(), np.int64, len(first))
    return DistinctIds(tuple(first), rows, n_missing, row + 1 - n_missing - len(first))


def alignment_digest(key: bytes, column: DistinctIds) -> bytes:
    """Digest a column of ids, in its order, under a key that the coordinator does not know.

    Parties whose tables are aligned already compare these 32 bytes instead of running PSI. The
    key keeps outsiders from testing guesses of a whole column; parties can test theirs.

    Raises
    ------
    ValueError
        If the key is shorter than 16 bytes, a row has no id, or two have the same.
    """
    if len(key) < 16:
        raise ValueError(f"a digest key of at least 16 bytes expected, received {len(key)}")
    if column.n_missing or column.n_duplicates:
        raise PsiRefused("pre-aligned data has to have an id of its own in every row")
    digest = hmac.new(key, b"hedgerow row alignment v1", "sha256")
    for part in _slices(column.ids):
        digest.update(b"".join([len(own).to_bytes(4, "big") + own for own in part]))
    return digest.digest()
