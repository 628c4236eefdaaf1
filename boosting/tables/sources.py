"""Where tables come from: files by their ending, and what packages add by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.registry import Registry
from hedgerow.boosting.tables.delimited import Dialect, Open, read_csv
from hedgerow.boosting.tables.digests import with_digest
from hedgerow.boosting.tables.libsvm import LibsvmTable
from hedgerow.boosting.tables.parquet import ParquetTable


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table is, and how it is read."""

    path: str
    name: str
    """In messages."""
    open: Open
    """Opens the file, unpacked."""
    is_local: bool
    """Whether the file is of this machine, and not packed."""
    dialect: Dialect
    features: Sequence[str]
    """Columns that a table has even where no row lists them."""


@dataclass(frozen=True, slots=True)
class TableSource:
    """Reads tables of one kind."""

    read: Callable[[Location], Any]
    """Returns a table, or what has ``schema`` and yields batches as a ``pyarrow.RecordBatchReader``
    does; of another package it is given its URL in ``path`` only, and what it raises is not shown:
    it may quote a value."""


def _parquet(at: Location) -> ParquetTable:
    return ParquetTable(at.path if at.is_local else _content(at), at.name)


def _csv(at: Location) -> Any:
    table, digest = read_csv(at.open, at.name, at.dialect)
    return with_digest(table, digest)


def _content(at: Location) -> bytes:
    with at.open() as file:
        return bytes(file.read())


SOURCES = Registry(
    "hedgerow.tables",
    "source of tables",
    {
        "parquet": TableSource(_parquet),
        "csv": TableSource(_csv),
        "libsvm": TableSource(lambda at: LibsvmTable(_content(at), at.name, at.features)),
    },
)
"""By the format of a file, or of other packages by the scheme of a URL."""


def foreign_source(path: str) -> str:
    """Return the name of the package's source that a URL is of; empty for any other path."""
    scheme, mark, _ = path.partition("://")
    return scheme if mark and SOURCES.is_foreign(scheme) else ""


@contextmanager
def _reading(name: str, source: str) -> Iterator[None]:
    """Name the table and not its values where a package's source fails."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # a package's own fault may be anything; its text may hold values
        raise DataError(f"{name}: {source} cannot read it: {type(error).__name__}") from error


def batches(at: Location, source: str) -> tuple[Any, Iterable[Any]]:
    """Return the schema of a package's table, and its rows in parts.

    Raises
    ------
    DataError
        It is not installed, fails, or returns no Arrow table.
    """
    try:
        kind = SOURCES.load(source, TableSource)
    except InvalidJob as error:
        raise DataError(f"{at.name}: {error}") from error
    with _reading(at.name, source):
        found = kind.read(at)
        rows = found.to_batches() if hasattr(found, "to_batches") else found
        return found.schema, _each(rows, found.schema, at.name, source)


def _each(rows: Iterable[Any], schema: Any, name: str, source: str) -> Iterator[Any]:
    with _reading(name, source):
        for part in rows:
            if not part.schema.equals(schema):
                raise DataError(f"{name}: {source} gives rows of other columns than it says")
            yield part
