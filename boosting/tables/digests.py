"""Digests by which a table is known again when it is read another time.

They tell a change, not a forger: whoever can write the table is the silo itself. They stay in the
silo.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

KEY = b"hedgerow digest"
"""Where the schema of an Arrow table has the digest of the file that it was read from."""
_ABSENT = np.uint64(0x9E3779B97F4A7C15)


def digest_of(*parts: bytes) -> str:
    """Return the SHA-256 of bytes one after another, in hexadecimal."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def with_digest(table: Any, data: bytes) -> Any:
    """Return an Arrow table that has the digest of the file it was read from."""
    return table.replace_schema_metadata({KEY: digest_of(data)})


class RowsDigest:
    """The digest of rows that come in parts, the same in whatever order a database gives them."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._sum = 0
        self._schema = ""

    def add(self, part: Any) -> None:
        """Add rows, a ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""
        self._schema = str(part.schema)
        self._n_rows += part.num_rows
        rows = np.zeros(part.num_rows, np.uint64)
        for place, column in enumerate(part.columns):
            rows += _mixed(_hashes(column) + np.uint64(place))
        self._sum = (self._sum + int(_mixed(rows).sum(dtype=np.uint64))) % (1 << 64)

    def hexdigest(self) -> str:
        """Return the digest of columns, number of rows and values."""
        return digest_of(f"{self._schema}\n{self._n_rows}\n{self._sum}".encode())


def _hashes(column: Any) -> Hashes:
    """Return a number for each value, equal for equal values."""
    import pyarrow as pa

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        wide = pa.float64() if pa.types.is_floating(kind) else kind
        filled = column.cast(wide).fill_null(0).to_numpy()
        bits = filled.astype(filled.dtype.newbyteorder("="), copy=True)
        numbers = bits.view(np.uint64) if bits.dtype.itemsize == 8 else bits.astype(np.uint64)
        return np.where(column.is_null().to_numpy(), _ABSENT, _mixed(numbers))
    texts = column if pa.types.is_dictionary(kind) else column.cast(pa.string()).dictionary_encode()
    chunks = [np.empty(0, np.uint64)]
    for chunk in texts.chunks:
        names = [
            int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), "little")
            for name in chunk.dictionary.to_pylist()
        ]
        table = np.array([*names, int(_ABSENT)], np.uint64)
        chunks.append(table[chunk.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)])
    return np.concatenate(chunks)


def _mixed(x: Hashes) -> Hashes:
    """Return numbers whose bits each depend on all bits of the given ones (splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
