"""A silo's rows: from a file, an fsspec URL or a SQL query, as the data set of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.delimited import Dialect
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.tables import for_job, open_table, short_name

if TYPE_CHECKING:
    from hedgerow.client_agent.config import Source

_FETCH_ROWS = 50_000


def load(source: Source, job: JobParameters, silo: str) -> Dataset:
    """Return a silo's rows under its own schema.

    Parameters
    ----------
    source : Source
        A path (or URL), or a database with a query.
    job : JobParameters
        Says which column is the label, which columns are used, and whether the job is vertical.
    silo : str
        This silo; in a vertical job the party.

    Returns
    -------
    Dataset
        ``is_empty`` when there are no rows, which is legal.

    Raises
    ------
    DataError
        The table cannot be used; says where, never which value.
    """
    if source.query:
        table, where = query_table(source.sql_url, source.query), "the query's result"
    elif source.path:
        table, where = _file(source, job), short_name(source.path)
    else:
        raise DataError("no data: the agent's settings need data.path, or data.sql_url and query")
    return for_job(table, job, where, party=silo if job.vertical else None)


def _file(source: Source, job: JobParameters) -> Any:
    return open_table(source.path, job.features, Dialect(source.delimiter, source.decimal))


def extent(source: Source) -> tuple[int, int]:
    """Return a Parquet file's rows, and columns a job could use, as its footer has them.

    Zeros where telling them would mean to read the table.
    """
    if not source.path.endswith(".parquet") or "://" in source.path:
        return 0, 0
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(source.path)
        names = footer.schema.to_arrow_schema().names
        return int(footer.num_rows), sum(not name.startswith("_") for name in names)
    except (OSError, pa.ArrowException):
        # Loading it for a job will say what is wrong, to the operator too.
        return 0, 0


def query_table(url: str, query: str) -> Any:
    """Return the result of a query as a ``pyarrow.Table``.

    Parameters
    ----------
    url : str
        SQLAlchemy URL; its password appears in no message.
    query : str
        One statement that returns rows.
    """
    import pyarrow as pa
    import sqlalchemy as sql
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    try:
        engine = sql.create_engine(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise DataError("data.sql_url cannot be used: wrong form, or no driver for it") from error
    try:
        with engine.connect() as connection:
            result = connection.execution_options(stream_results=True).execute(sql.text(query))
            if not result.returns_rows:
                raise DataError("data.query returns no rows: it should be a SELECT")
            names = list(result.keys())
            columns: list[list[Any]] = [[] for _ in names]
            for rows in result.partitions(_FETCH_ROWS):
                for column, values in zip(columns, zip(*rows, strict=True), strict=True):
                    column.extend(values)
    except SQLAlchemyError as error:
        # The driver's own text may quote a value.
        raise DataError(f"data.query failed: {type(error).__name__}") from error
    finally:
        engine.dispose()
    try:
        arrays = [pa.array(column) for column in columns]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError("data.query returns a column of mixed or unusable types") from error
    return pa.Table.from_arrays(arrays, names)
