"""Parquet files read by column and row group, so that a table may be larger than memory."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables.digests import digest_of
from hedgerow.boosting.tables.indexes import columns_without_index, without_index
from hedgerow.boosting.tables.values import without_views

_TAIL_BYTES = 8
"""The footer's length, and the format's name."""
_LARGEST = float(np.finfo(np.float32).max)


class ParquetTable:
    """A Parquet file with those members of a ``pyarrow.Table`` that need no whole table.

    Parameters
    ----------
    source : str or bytes
        Path of a local file, or the content of one.

    Raises
    ------
    DataError
        Missing, not Parquet or damaged, or changed since it was opened: in any method.
    """

    def __init__(self, source: str | bytes, name: str) -> None:
        self._source, self._name = source, name
        self._known = ""
        self._kept: Any = None
        self._footer: Any = None
        self._version = self._stat()
        file = self._open()
        self._footer, schema = file.metadata, without_index(file.schema_arrow)
        schema = without_views(schema.empty_table()).schema
        self._coded = _coded(self._footer.metadata or {}, schema)
        for name, kind in self._coded.items():
            at = schema.get_field_index(name)
            schema = schema.set(at, schema.field(at).with_type(kind))
        self.schema = schema
        self._idle = [file]
        self.column_names: list[str] = self.schema.names
        self.num_rows = int(self._footer.num_rows)

    def table(self) -> Any:
        """Return the whole table as a ``pyarrow.Table``."""
        table = columns_without_index(self._checked(lambda: self._open().read()))
        for name in self._coded:
            at = table.column_names.index(name)
            table = table.set_column(at, name, table.column(at).dictionary_encode())
        return table

    @classmethod
    def of_file(cls, file: Any, name: str, digest: str) -> ParquetTable:
        """Return the table of an open file that may have no name; it stays open with the table.

        Parameters
        ----------
        file : binary file
            As ``tempfile.TemporaryFile`` gives it.
        digest : str
            By which the table is known again.
        """
        path = f"/proc/self/fd/{file.fileno()}"
        if os.path.exists(path):
            table = cls(path, name)
        else:  # no Linux
            file.seek(0)
            table = cls(file.read(), name)
        table._known, table._kept = digest, file
        return table

    @property
    def digest(self) -> str:
        """By which the file is known again: its size, time and footer, or all of its content."""
        if self._known:
            return self._known
        if isinstance(self._source, bytes):
            return digest_of(self._source)
        _, _, size, changed = self._version
        with open(self._source, "rb") as file:
            file.seek(-_TAIL_BYTES, os.SEEK_END)
            tail = file.read(_TAIL_BYTES)
            file.seek(-_TAIL_BYTES - int.from_bytes(tail[:4], "little"), os.SEEK_END)
            footer = file.read()
        found: str = self._checked(lambda: digest_of(f"{size} {changed}\n".encode(), footer))
        return found

    def column(self, name: str) -> Any:
        """Return a whole column as a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        chunks = [chunk for part in self.parts(name) for chunk in part.chunks]
        return pa.chunked_array(chunks, type=self.schema.field(name).type)

    def parts(self, name: str) -> Iterator[Any]:
        """Yield a column by row group, as a ``pyarrow.ChunkedArray`` each."""
        try:  # to open a file takes time for each of its columns
            file = self._idle.pop()
        except IndexError:
            file = self._open()
        for group in range(self._footer.num_row_groups):
            part = self._checked(
                lambda at=group: file.read_row_group(at, columns=[name], use_threads=False)
            )
            column = without_views(part).column(name)
            yield column.dictionary_encode() if name in self._coded else column
        self._idle.append(file)

    def is_finite(self, name: str) -> bool:
        """Return whether the footer shows that a column's numbers are finite as float32."""
        at = self._places.get(name)
        if at is None:
            return False
        for group in range(self._footer.num_row_groups):
            found = self._footer.row_group(group).column(at).statistics
            if found is None or not found.has_min_max or not isinstance(found.min, int | float):
                return False
            if not -_LARGEST <= float(found.min) <= float(found.max) <= _LARGEST:
                return False
        return True

    @cached_property
    def n_stored(self) -> int | None:
        """How many values are there, those that are missing left out; None where not all know."""
        n = 0
        for group in range(self._footer.num_row_groups):
            own = self._footer.row_group(group)
            for column in map(own.column, range(own.num_columns)):
                found = column.statistics
                if found is None or not found.has_null_count:
                    return None
                n += found.num_values
        return n

    @cached_property
    def _places(self) -> dict[str, int]:
        """Return the places of columns that are not nested, and have a name of their own."""
        schema = self._footer.schema
        paths = [schema.column(k).path for k in range(len(schema))]
        times = Counter(paths)
        return {path: k for k, path in enumerate(paths) if times[path] == 1}

    def _stat(self) -> tuple[int, ...]:
        if isinstance(self._source, bytes):
            return ()
        try:
            now = os.stat(self._source)
        except FileNotFoundError:
            raise DataError(f"{self._name}: there is no such file") from None
        except OSError as error:
            raise DataError(f"{self._name} cannot be read: {error.strerror}") from error
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns

    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        def opened() -> Any:
            if isinstance(self._source, bytes):
                file = pa.BufferReader(self._source)
            else:
                file = pa.OSFile(os.fsencode(self._source))  # of a path Arrow takes only UTF-8
            return pq.ParquetFile(file, metadata=self._footer, pre_buffer=False)

        return self._checked(opened)

    def _checked(self, read: Any) -> Any:
        import pyarrow as pa

        try:
            found = read()
        except (pa.ArrowException, OSError) as error:
            if self._stat() == self._version:
                what = "is not a Parquet file, or is damaged"
                raise DataError(f"{self._name} {what}") from error
        else:
            if self._stat() == self._version:
                return found
        raise DataError(f"{self._name} has changed while a job read it")


def _coded(metadata: Mapping[bytes, bytes], schema: Any) -> dict[str, Any]:
    """Return the types of columns whose numbers are categories, as of a pandas frame.

    Parquet has plain numbers in their place, and only the Arrow schema beside them says so.
    """
    import pyarrow as pa

    try:
        stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata[b"ARROW:schema"])))
    except (KeyError, ValueError, pa.ArrowException):
        return {}
    found = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if min(schema.get_field_index(name), at := stored.get_field_index(name)) < 0:
            continue  # or one that is there twice
        is_code = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if is_code and pa.types.is_dictionary(stored.field(at).type):
            found[name] = pa.dictionary(pa.int32(), kind)
    return found
