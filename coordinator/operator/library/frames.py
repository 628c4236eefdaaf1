"""Tables of any library as Arrow tables, and what the library returns as tables.

Any object with the Arrow PyCapsule method ``__arrow_c_stream__`` is read: frames of pandas and
polars, tables of Arrow, DuckDB and others. None of those libraries is needed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, DataWarning
from hedgerow.services.process.texts import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from hedgerow.boosting.job import ColumnRules

SHOWN_ROWS = 20
"""Rows of a table that a notebook or a terminal shows."""
WIDEST_CELL = 60
"""Characters of a cell in a terminal."""
_UNREADABLE = (TypeError, ValueError, OverflowError, NotImplementedError, KeyError)
"""What libraries raise for values that Arrow has no type for; Arrow's own errors are of these."""


class ArrowStream(Protocol):
    """A table that gives its columns as Arrow: of pandas, polars, Arrow, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a PyCapsule of an ``ArrowArrayStream``."""


Tabular: TypeAlias = "str | os.PathLike[str] | ArrowStream | Mapping[str, Sequence[Any] | Any]"
"""A table: a path or URL, a frame of any library, or columns by name."""


class Frame:
    """A small table that notebooks show and that pandas, polars and Arrow read.

    ``numpy.asarray(frame)`` is the matrix of its columns, ``frame["name"]`` one column.

    Parameters
    ----------
    columns : Mapping
        Values by column's name, equally many.
    title : str
        Shown above the table.
    """

    def __init__(
        self, columns: Mapping[str, Sequence[Any] | NDArray[Any]], title: str = ""
    ) -> None:
        import pyarrow as pa

        self._table = pa.table(dict(columns))
        self.title = title

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column; what is missing is NaN or None."""
        column: NDArray[Any] = self._table.column(name).to_numpy()
        return column

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, each with its values by name."""
        found: list[dict[str, Any]] = self._table.to_pylist()
        return found

    def to_arrow(self) -> pa.Table:
        """Return a ``pyarrow.Table``."""
        return self._table

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``; needs pandas."""
        return self._table.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as an Arrow stream, for any library that reads those."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the matrix of the columns, shape (n_rows, n_columns)."""
        columns = [self[name] for name in self.columns]
        return np.asarray(np.stack(columns, axis=1) if columns else np.empty((0, 0)), dtype)

    def __repr__(self) -> str:
        shown = self._table.slice(0, SHOWN_ROWS)
        columns = [
            [_cell(name), *map(_cell, column.to_pylist())]
            for name, column in zip(self.columns, shown.columns, strict=True)
        ]
        is_number = [kind not in ("string", "bool") for kind in map(str, self._table.schema.types)]
        lines = [f"{self.title or 'Frame'}, {len(self):,} rows"]
        widths = [max(map(len, column)) for column in columns]
        for row in zip(*columns, strict=True):
            cells = zip(row, widths, is_number, strict=True)
            lines.append("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells))
        more = len(self) - SHOWN_ROWS
        lines += [f"and {more:,} more rows"] if more > 0 else []
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(_shown(value))}</td>" for value in row.values())
            + "</tr>"
            for row in self._table.slice(0, SHOWN_ROWS).to_pylist()
        )
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        more = len(self) - SHOWN_ROWS
        note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cell(value: object) -> str:
    """Return a value for a terminal; other parties' texts move no cursor in it."""
    text = one_line(_shown(value))
    return text if len(text) <= WIDEST_CELL else f"{text[: WIDEST_CELL - 1]}…"


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def arrow_of(table: object, what: str) -> Any:
    """Return a frame of any library, or columns by name, as a ``pyarrow.Table``.

    A pandas index is no column, but one named ``_id``.

    Parameters
    ----------
    what : str
        The table's name in messages.

    Raises
    ------
    DataError
        It is no table, two columns have one name, or one has values of several types.
    """
    import pyarrow as pa

    from hedgerow.boosting.tables.prepared import refuse_twice

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__"):
        names = table.column_names if isinstance(table, pa.Table) else getattr(table, "columns", ())
        names = list(table if isinstance(table, Mapping) else names)
        refuse_twice(map(str, names), what)
        if any(name is None or (isinstance(name, float) and name != name) for name in names):
            raise DataError(f"{what}: a column has no name: name it, or leave it out")
        try:
            return _plain(_dense(table))
        except _UNREADABLE:  # its text may quote a value
            if names:  # a column alone has a stream, too
                raise DataError(f"{what}: {_why_unreadable(table, names)}") from None
    lazy = "; collect it first" if hasattr(table, "collect") else ""
    raise DataError(
        f"{what}: expected a path or a table (pandas, polars, Arrow, or columns by name), received "
        f"{type(table).__name__}{lazy}"
    )


def _plain(table: ArrowStream | Mapping[Any, Any]) -> Any:
    import pyarrow as pa

    from hedgerow.boosting.tables.indexes import columns_without_index
    from hedgerow.boosting.tables.values import without_views

    if not isinstance(table, pa.Table):
        table = pa.table(dict(table) if isinstance(table, Mapping) else table)
    return columns_without_index(without_views(table))


def _dense(table: Any) -> Any:
    """Return a pandas frame with dense columns for sparse ones, any other table as it is."""
    kinds: Any = getattr(getattr(table, "dtypes", None), "items", tuple)()
    sparse = {name: kind.subtype for name, kind in kinds if str(kind).startswith("Sparse")}
    return table.astype(sparse) if sparse else table


def _why_unreadable(table: Any, names: Sequence[Any]) -> str:
    """Name the column that Arrow does not read."""
    for name in names:
        if isinstance(table, Mapping):
            if not isinstance(name, str):
                return f"expected columns by name, a text, received {name!r}"
            value, kind = table[name], type(table[name]).__name__
            if isinstance(value, str | bytes | int | float | None):
                return f"column '{name}': expected a sequence of values, received {kind}"
            if isinstance(value, Mapping) or hasattr(value, "columns"):
                return f"column '{name}': expected a sequence of values, received a table, {kind}"
        try:
            alone = isinstance(table, Mapping) or hasattr(table, "column_names")
            _plain({name: table[name]} if alone else _dense(table[[name]]))
        except _UNREADABLE as error:
            return (
                f"column '{name}' cannot be read as Arrow ({type(error).__name__}); has it values "
                "of several types, or beyond 64 bits?"
            )
    return "its columns cannot be read as one table; are all of one length?"


def read(
    table: Tabular,
    what: str,
    features: Sequence[str] = (),
    *,
    whole: bool = True,
    id_column: str = "_id",
) -> tuple[Any, str]:
    """Return a table, and its name in messages; a path is read as the command line reads it."""
    from hedgerow.boosting.tables import open_table, read_table, short_name
    from hedgerow.boosting.tables.delimited import Dialect

    if isinstance(table, str | os.PathLike):
        path, dialect = os.fspath(table), Dialect(id_column=id_column)
        check_path(path, what)
        return (read_table if whole else open_table)(path, features, dialect), short_name(path)
    return arrow_of(table, what), what


def warn_of_integers(table: Any, where: str, features: Iterable[str]) -> None:
    """Warn of features in an Arrow table whose integers not even float64 tells apart."""
    from hedgerow.boosting.tables.values import beyond

    for name in features:
        if told := beyond(table.column(name), 53):
            warn(f"{where}: column '{name}': {told}", DataWarning, stacklevel=4)


def check_path(path: str, what: str) -> None:
    """Raise :class:`DataError` for a text that no file can have as its name."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise DataError(f"{what}: expected a path, received {path!r}") from None


def as_file(table: Tabular, folder: Path, name: str) -> str:
    """Return a table's path; one that is in memory is written to ``folder`` first."""
    if isinstance(table, str | os.PathLike):
        check_path(given := os.fspath(table), name)
        return given
    import pyarrow.parquet as pq

    path, own = folder / f"{name}.parquet", arrow_of(table, name)
    try:
        pq.write_table(own, path, compression="zstd")
    except NotImplementedError as error:  # Arrow's own; it names the type
        raise DataError(f"{name}: it cannot be written as Parquet: {error}") from None
    path.chmod(0o600)
    return str(path)


def with_id(table: Any, where: str, column: str) -> Any:
    """Return an Arrow table whose identifiers are called ``_id``; raises DataError."""
    from hedgerow.boosting.tables.prepared import require

    if column == "_id":
        return table
    require(column, table.column_names, where, "column of identifiers")
    if "_id" in table.column_names:
        raise DataError(f"{where}: it has '_id' and '{column}': which one names the rows?")
    return table.rename_columns(["_id" if n == column else n for n in table.column_names])


def joined(
    parts: Mapping[str, Tabular],
    label: str,
    rules: ColumnRules,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return the rows that all parties have, with all columns, in the first party's order.

    A column that several parties have is called ``party.column``.

    Parameters
    ----------
    ids : Mapping
        By party, its column of identifiers where that is not ``_id``.

    Raises
    ------
    DataError
        A table has no identifiers, or one of them twice.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from hedgerow.boosting.tables.prepared import PreparedTable

    tables, counts = {}, Counter[str]()
    for party, table in parts.items():
        own, where = read(table, party, id_column=ids.get(party, "_id"))
        own = with_id(own, where, ids.get(party, "_id"))
        own = PreparedTable(own, where, rules, is_whole=False).table()
        if "_id" not in own.column_names:
            raise DataError(f"{where}: a vertical model needs a column '_id' that names the rows")
        named = own.column("_id").cast(pa.string())
        if pc.count_distinct(named).as_py() != len(named):
            raise DataError(f"{where}: column '_id' names a row twice, or not at all")
        tables[party] = own.set_column(own.column_names.index("_id"), "_id", named)
        counts.update(name for name in own.column_names if name not in ("_id", label))
    columns: dict[str, Any] = {}
    common = next(iter(tables.values())).column("_id")
    for own in tables.values():
        common = common.filter(pc.is_in(common, own.column("_id").combine_chunks()))
    for party, own in tables.items():
        places = pc.index_in(common, own.column("_id").combine_chunks())
        for name in own.column_names:
            if name not in ("_id", label):
                key = name if counts[name] == 1 else f"{party}.{name}"
                columns[key] = own.column(name).take(places)
    return pa.table({"_id": common, **columns})
