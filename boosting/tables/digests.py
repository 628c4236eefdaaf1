"""Digests by which a table is known again when it is read another time.

They show a change, not a forger: the silo itself can write the table. They stay in the
silo.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError

Hashes = NDArray[np.uint64]

KEY = b"hedgerow digest"
"""Where the schema of an Arrow table has the digest of the file that it was read from."""
_ABSENT = np.uint64(0x9E3779B97F4A7C15)
_DIGITS = 64


def digest_of(*parts: bytes) -> str:
    """Return the SHA-256 of bytes one after another, in hexadecimal."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def with_digest(table: Any, digest: str) -> Any:
    """Return an Arrow table that has the digest of the file it was read from."""
    return table.replace_schema_metadata({KEY: digest})


def check_known(known: str, found: str) -> None:
    """Check that a table is the one that was read before.

    Parameters
    ----------
    known, found : str
        Digests. One without the order of the rows goes with one that has it.

    Raises
    ------
    DataError
    """
    if found.startswith(known) or known.startswith(found):
        return
    if found[:_DIGITS] == known[:_DIGITS]:
        raise DataError(
            "its rows come in another order than when it accepted the job, so that hold_back would "
            "hold others back; data.query may ORDER BY a key, or [test] name the test rows"
        )
    raise DataError(
        "its table has changed since it accepted the job; with the table as it was it can go on, "
        "and a new job takes the table as it is"
    )


class RowsDigest:
    """The digest of rows that come in parts, the same in any order that a database gives them."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._sum = 0
        self._ordered_sum = 0
        self._schema = ""

    def add(self, part: Any) -> None:
        """Add rows, a ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""
        self._schema = str(part.schema)
        rows = np.zeros(part.num_rows, np.uint64)
        for place, column in enumerate(part.columns):
            rows += _mixed(hashes(column) + np.uint64(place))
        rows = _mixed(rows)
        places = np.arange(self._n_rows, self._n_rows + len(rows), dtype=np.uint64)
        self._sum = (self._sum + int(rows.sum(dtype=np.uint64))) % (1 << 64)
        ordered = int(_mixed(rows + places).sum(dtype=np.uint64))
        self._ordered_sum = (self._ordered_sum + ordered) % (1 << 64)
        self._n_rows += len(rows)

    def hexdigest(self) -> str:
        """Return the digest of columns, number of rows and values."""
        return digest_of(f"{self._schema}\n{self._n_rows}\n{self._sum}".encode())

    @property
    def order(self) -> str:
        """What follows a digest of the same rows where their order counts, in hexadecimal."""
        return f"{self._ordered_sum:016x}"


def hashes(column: Any) -> Hashes:
    """Return a number for each value of a ``pyarrow.ChunkedArray``, equal for equal values."""
    import pyarrow as pa

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return hashes(column.cast(kind.storage_type))
    if pa.types.is_nested(kind):
        return np.concatenate([np.empty(0, np.uint64), *map(_nested_hashes, column.chunks)])
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        wide = pa.float64() if pa.types.is_floating(kind) else kind
        filled = column.cast(wide).fill_null(0).to_numpy()
        bits = filled.astype(filled.dtype.newbyteorder("="), copy=True)
        numbers = bits.view(np.uint64) if bits.dtype.itemsize == 8 else bits.astype(np.uint64)
        return np.where(column.is_null().to_numpy(), _ABSENT, _mixed(numbers))
    texts = column
    if not pa.types.is_dictionary(kind):
        texts = column.cast(pa.binary() if _is_bytes(kind) else pa.string()).dictionary_encode()
    chunks = [np.empty(0, np.uint64)]
    for chunk in texts.chunks:
        names = [
            int.from_bytes(hashlib.blake2b(_bytes(name), digest_size=8).digest(), "little")
            for name in chunk.dictionary.to_pylist()
        ]
        table = np.array([*names, int(_ABSENT)], np.uint64)
        chunks.append(table[chunk.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)])
    return np.concatenate(chunks)


def _nested_hashes(chunk: Any) -> Hashes:
    """Return a number for each list, map or struct, from those of its values in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = chunk.type
    if pa.types.is_struct(kind):
        own = np.zeros(len(chunk), np.uint64)
        for place, field in enumerate(chunk.flatten()):
            own += _mixed(hashes(field) + np.uint64(place))
    else:
        if pa.types.is_map(kind):
            chunk = chunk.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        lengths = pc.list_value_length(chunk).fill_null(0).to_numpy().astype(np.int64)
        ends = np.cumsum(lengths)
        inner = hashes(chunk.flatten())
        places = np.arange(len(inner)) - np.repeat(ends - lengths, lengths)
        sums = np.zeros(len(inner) + 1, np.uint64)
        np.cumsum(_mixed(inner + places.astype(np.uint64)), out=sums[1:])
        own = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)
    return np.where(chunk.is_null().to_numpy(zero_copy_only=False), _ABSENT, _mixed(own))


def _is_bytes(kind: Any) -> bool:
    """Return whether a type is of bytes, which need be no text."""
    import pyarrow as pa

    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _mixed(x: Hashes) -> Hashes:
    """Return numbers whose bits each depend on all bits of the given ones (splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
