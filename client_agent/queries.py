"""SQL queries as tables, read in parts by a cursor of the database's own server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables.digests import RowsDigest
from hedgerow.boosting.tables.parquet import ParquetTable
from hedgerow.client_agent.records import writing_state

_FETCH_ROWS = 50_000
RESULT = "the query's result"


def database(url: str) -> Any:
    """Return a SQLAlchemy engine of a URL, whose password appears in no message.

    Raises
    ------
    DataError
    """
    import sqlalchemy as sql
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        return sql.create_engine(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise DataError("data.sql_url cannot be used: wrong form, or no driver for it") from error


def query_table(url: str, query: str) -> Any:
    """Return the result of a query as a ``pyarrow.Table``.

    Parameters
    ----------
    url : str
        SQLAlchemy URL; its password appears in no message.
    query : str
        One statement that returns rows.
    """
    engine = database(url)
    try:
        return result_table(engine, query)
    finally:
        engine.dispose()


def result_table(engine: Any, query: str, ids: Sequence[str] | None = None) -> Any:
    """Return the result of a query as a ``pyarrow.Table``.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    ids : sequence of str, optional
        What ``:ids`` stands for in the query, as in ``WHERE key IN :ids``.
    """
    import pyarrow as pa

    parts = [*_parts(engine, query, ids)]
    schema = parts[0].schema
    for part in parts[1:]:
        schema = _wider(schema, part.schema)
    return pa.concat_tables([_cast(part, schema) for part in parts])


def spooled_table(
    url: str, query: str, folder: Path | None, in_order: bool = False
) -> ParquetTable:
    """Return the result of a query as a Parquet file without a name, gone with the table.

    Rows come in parts, so that the result may be larger than memory.

    Parameters
    ----------
    folder : Path or None
        Where the file is; None for the system's own folder of temporary files.
    in_order : bool
        Whether the same rows in another order have another digest.

    Raises
    ------
    DataError
    StateUnwritable
        The disk has no room for the rows.
    """
    engine = database(url)
    try:
        spool: Spool | None = None
        for part in _parts(engine, query, None):
            if spool is None:
                spool = Spool(folder, part.schema)
            spool = spool.add(part)
        assert spool is not None
        return spool.table(in_order=in_order)
    finally:
        engine.dispose()


class Spool:
    """A Parquet file that grows by parts; another one with wider types where a part needs them."""

    def __init__(self, folder: Path | None, schema: Any) -> None:
        import pyarrow.parquet as pq

        self._folder, self._schema = folder, schema
        with writing_state():
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            self._writer = pq.ParquetWriter(self._file, schema)

    def add(self, part: Any) -> Spool:
        """Write rows; return the spool that has them all."""
        schema = _wider(self._schema, part.schema)
        spool = self
        if schema != self._schema:
            spool = Spool(self._folder, schema)
            for before in self._read():
                spool.write(before)
        spool.write(part)
        return spool

    def table(self, name: str = RESULT, known: str = "", in_order: bool = False) -> ParquetTable:
        """Return the rows under a name, with a digest.

        Parameters
        ----------
        known : str
            The digest where it is known already, instead of that of rows in any order.
        in_order : bool
            Whether their order is added to it.
        """
        digest = RowsDigest()
        self._finish()
        if in_order or not known:
            for part in self._read():
                digest.add(part)
        found = (known or digest.hexdigest()) + (digest.order if in_order else "")
        return ParquetTable.of_file(self._file, name, found)

    def write(self, part: Any) -> None:
        """Write rows of the schema."""
        rows = _cast(part, self._schema)
        with writing_state():
            self._writer.write_table(rows)

    def _finish(self) -> None:
        with writing_state():
            self._writer.close()
            self._file.flush()

    def _read(self) -> Iterator[Any]:
        import pyarrow.parquet as pq

        self._finish()
        file = pq.ParquetFile(self._file)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def _parts(engine: Any, query: str, ids: Sequence[str] | None) -> Iterator[Any]:
    """Yield the rows of a query as tables, at least one."""
    import pyarrow as pa
    import sqlalchemy as sql
    from sqlalchemy.exc import SQLAlchemyError

    statement = sql.text(query)
    if ids is not None:
        statement = statement.bindparams(sql.bindparam("ids", list(ids), expanding=True))
    try:
        with engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=_FETCH_ROWS)
            result = streamed.execute(statement)
            if not result.returns_rows:
                raise DataError("data.query returns no rows: it should be a SELECT")
            names = list(result.keys())
            empty = True
            for rows in result.partitions(_FETCH_ROWS):
                empty = False
                yield _table(names, [list(column) for column in zip(*rows, strict=True)])
            if empty:
                yield pa.table({}) if not names else _table(names, [[] for _ in names])
    except SQLAlchemyError as error:
        # The driver's own text may quote a value.
        raise DataError(f"data.query failed: {type(error).__name__}") from error


def _table(names: list[str], columns: list[list[Any]]) -> Any:
    import pyarrow as pa

    try:
        return pa.Table.from_arrays([pa.array(column) for column in columns], names)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _mixed() from error


def _wider(schema: Any, other: Any) -> Any:
    """Return the schema that has the rows of both."""
    import pyarrow as pa

    if schema == other:
        return schema
    try:
        fields = [
            pa.unify_schemas([pa.schema([a]), pa.schema([b])], promote_options="permissive")
            for a, b in zip(schema, other, strict=True)
        ]
    except pa.ArrowException as error:
        raise _mixed() from error
    return pa.schema([field for one in fields for field in one])


def _cast(part: Any, schema: Any) -> Any:
    import pyarrow as pa

    try:
        return part.cast(schema)
    except pa.ArrowException as error:
        raise _mixed() from error


def _mixed() -> DataError:
    return DataError("data.query returns a column of mixed or unusable types")
