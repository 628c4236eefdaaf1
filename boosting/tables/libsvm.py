"""LIBSVM files, of which only what rows list is kept; columns are made when they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import check_dense
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables.digests import digest_of, with_digest

_MOST_FEATURES = 1 << 20


class LibsvmTable:
    """A LIBSVM file with the members of a ``ParquetTable``: it is read by column.

    A feature that a row does not list is 0 there. Where every row ends in a comment in UTF-8, the
    comments are the column ``_id``.

    Parameters
    ----------
    features : sequence of str
        Columns ``f1``, ``f2``, ... that the table has even where no row lists them.

    Raises
    ------
    DataError
        A line is no LIBSVM text, or an index is too large.
    """

    def __init__(self, data: bytes, name: str, features: Sequence[str] = ()) -> None:
        import pyarrow as pa

        self.name, self.digest = name, digest_of(data)
        self._labels, ids, counts, index, values = _read(data, name)
        self.num_rows, self.n_stored = len(self._labels), len(values)
        first = 0 if (index == 0).any() else 1
        width = int(index.max()) + 1 - first if len(index) else 0
        # A stable order by column: the rows of each ascend.
        order = np.argsort(index, kind="stable")
        self._rows = np.repeat(np.arange(self.num_rows, dtype=np.int32), counts)[order]
        self._values = values[order]
        found = np.bincount(index - first, minlength=width) if width else np.empty(0, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(found)]).astype(np.int64)
        self._finite = bool(np.isfinite(values).all())
        self._places = {f"f{k + first}": k for k in range(width)}
        lacking = [f for f in features if re.fullmatch(r"f\d+", f) and f not in self._places]
        self._ids = None if ids is None else pa.array(ids, pa.string())
        fields = [("label", pa.float64())]
        fields += [] if ids is None else [("_id", pa.string())]
        fields += [(f, pa.float32()) for f in (*self._places, *dict.fromkeys(lacking))]
        self.schema = pa.schema(fields)
        self.column_names: list[str] = self.schema.names

    def column(self, name: str) -> Any:
        """Return a whole column as a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        if name == "label":
            return pa.chunked_array([self._labels])
        if name == "_id":
            return pa.chunked_array([self._ids])
        own = np.zeros(self.num_rows, np.float32)
        if name in self._places:
            place = self._places[name]
            span = slice(*self._starts[place : place + 2].tolist())
            own[self._rows[span]] = self._values[span]
        return pa.chunked_array([own])

    def parts(self, name: str) -> Iterator[Any]:
        """Yield a whole column, as a ``pyarrow.ChunkedArray``."""
        yield self.column(name)

    def is_finite(self, name: str) -> bool:
        """Return whether all numbers are finite as float32."""
        return self._finite

    def table(self) -> Any:
        """Return the whole table, dense, as a ``pyarrow.Table``.

        Raises
        ------
        DataError
            It would be too large.
        """
        import pyarrow as pa

        check_dense(self.name, self.num_rows, len(self.column_names))
        columns = {name: self.column(name) for name in self.column_names}
        return with_digest(pa.table(columns, schema=self.schema), self.digest)


def _read(
    data: bytes, name: str
) -> tuple[
    NDArray[np.float64],
    list[str] | None,
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.float32],
]:
    """Return rows' labels, ids and numbers of values, and the values' indices and values."""
    labels: list[float] = []
    ids: list[str] = []
    counts: list[int] = []
    indices, values = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for number, line in enumerate(data.splitlines(), start=1):
        text, _, comment = line.partition(b"#")
        if not text.strip():
            continue
        try:
            head, *tokens = re.sub(rb"\bqid:\d+", b"", text).replace(b":", b" ").split()
            labels.append(float(head))
            pairs = np.array(tokens, dtype="S").astype(np.float64).reshape(-1, 2)
        except ValueError as error:
            raise DataError(f"{name}: line {number} is not LIBSVM text") from error
        own = pairs[:, 0]
        if not ((own >= 0) & (own == np.floor(own))).all():
            raise DataError(f"{name}: expected feature indices that are whole numbers from 0 or 1")
        if (own > _MOST_FEATURES).any():
            raise DataError(f"{name}: expected feature indices up to {_MOST_FEATURES}")
        with np.errstate(over="ignore"):
            values.append(pairs[:, 1].astype(np.float32))
        indices.append(own.astype(np.int32))
        counts.append(len(own))
        with suppress(UnicodeDecodeError):  # a comment in another encoding is no id
            ids += filter(None, [comment.strip().decode()])
    return (
        np.array(labels, np.float64),
        ids if ids and len(ids) == len(labels) else None,
        np.array(counts, np.int64),
        np.concatenate(indices),
        np.concatenate(values),
    )
