"""A silo's rows: from a file, an fsspec URL or a SQL query, as the data set of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, LimitReached
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.tables import (
    for_job,
    is_csv,
    open_batches,
    open_table,
    short_name,
    stream_csv,
)
from hedgerow.boosting.tables.delimited import Dialect
from hedgerow.boosting.tables.digests import KEY, check_known
from hedgerow.boosting.tables.indexes import without_index
from hedgerow.boosting.tables.libsvm import LibsvmTable
from hedgerow.boosting.tables.parquet import ParquetTable
from hedgerow.boosting.tables.sources import foreign_source
from hedgerow.boosting.trees.local import split_dataset
from hedgerow.client_agent.lakes import folder_table, is_folder, spooled
from hedgerow.client_agent.queries import RESULT, Spool, spooled_table

if TYPE_CHECKING:
    from hedgerow.client_agent.config import Source


def load(
    source: Source,
    job: JobParameters,
    silo: str,
    most_read: int | None = None,
    scratch: Path | None = None,
    in_order: bool = False,
    keeps_table: bool = False,
) -> Dataset:
    """Return a silo's rows under its own schema.

    Parameters
    ----------
    source : Source
        A path (or URL), or a database with a query.
    job : JobParameters
        Says which column is the label, which columns are used, and whether the job is vertical.
    silo : str
        This silo; in a vertical job the party.
    most_read : int or None
        Bytes of the largest file that may be read whole, as all but Parquet and CSV are.
    scratch : Path or None
        Folder of the nameless file that has a query's result; None for the system's own.
    in_order : bool
        Whether the digest is another one where a query or folder gives its rows in another order.
    keeps_table : bool
        Whether the data set has the table that it was read from.

    Returns
    -------
    Dataset
        ``is_empty`` when there are no rows, which is legal.

    Raises
    ------
    DataError
        The table cannot be used; says where, never which value.
    LimitReached
        The file is too large to be read whole.
    """
    _check_reading(source, most_read)
    table, where = _opened(source, job.features, scratch, in_order)
    party = silo if job.vertical else None
    dataset = for_job(table, job, where, party=party, id_column=source.id)
    return replace(dataset, digest=_digest(table), table=table if keeps_table else None)


@dataclass(frozen=True, slots=True)
class SourceRows:
    """A silo's rows: those to train on, and those that only score finished models.

    Parameters
    ----------
    data, test_data, validation_data : Source
        None where there is no table of test rows, or of validation rows.
    hold_back : float
        Share of ``data`` that is test rows of horizontal jobs instead; a vertical one's rows are
        matched with other parties', so nothing is held back there.
    secret : bytes
        From which it follows which rows these are.
    most_read, scratch
        As in :func:`load`.
    """

    data: Source
    test_data: Source | None
    hold_back: float
    silo: str
    secret: bytes
    most_read: int | None = None
    scratch: Path | None = None
    validation_data: Source | None = None

    def n_scored(self, n_train: int) -> int:
        """Return how many rows only score models beside that many, as far as that is known."""
        found = 0 if self.validation_data is None else extent(self.validation_data)[0]
        if self.test_data is not None:
            return found + extent(self.test_data)[0]
        return found + int(n_train * self.hold_back / (1.0 - self.hold_back))

    def train(self, job: JobParameters) -> Dataset:
        """Return the rows that a job trains on."""
        for source in (self.test_data, self._validation_of(job)):
            if source is not None:
                _check_reading(source, self.most_read)
        return self._part(job, 0)

    def test(self, job: JobParameters, known: str) -> Dataset | None:
        """Return the test rows, None where there are none.

        Parameters
        ----------
        known : str
            Digest of the table whose other rows the job trains on.

        Raises
        ------
        DataError
            Also where rows would be held back of another table than that.
        """
        if self.test_data is not None:
            return self._scored(self.test_data, job)
        if not self.divides(job):
            return None
        held_back = self._part(job, 1)
        check_known(known, held_back.digest)
        return held_back

    def validation(self, job: JobParameters) -> Dataset | None:
        """Return the validation rows of a job that has such tables, None where there are none."""
        source = self._validation_of(job)
        if source is None:
            return None
        return self._scored(source, job)

    def _scored(self, source: Source, job: JobParameters) -> Dataset:
        return load(source, job, self.silo, self.most_read, self.scratch, keeps_table=True)

    def _validation_of(self, job: JobParameters) -> Source | None:
        return self.validation_data if job.validates else None

    def _part(self, job: JobParameters, part: int) -> Dataset:
        divides = self.divides(job)
        whole = load(
            self.data, job, self.silo, self.most_read, self.scratch, divides, keeps_table=True
        )
        if not divides:
            return whole
        rng = np.random.default_rng(list(self.secret))
        kept = whole.take(split_dataset(whole, self.hold_back, rng)[part])
        left_out = whole.unlabelled
        return replace(kept, digest=whole.digest, table=whole.table, unlabelled=left_out)

    def divides(self, job: JobParameters) -> bool:
        """Return whether test rows are held back of the table that the job trains on."""
        return self.test_data is None and not job.vertical and self.hold_back > 0


def _opened(
    source: Source, features: Sequence[str], scratch: Path | None = None, in_order: bool = False
) -> tuple[Any, str]:
    """Return a source's table, and what errors call it."""
    if source.query:
        return spooled_table(source.sql_url, source.query, scratch, in_order), RESULT
    if not source.path:
        raise DataError("no data: the agent's settings need data.path, or data.sql_url and query")
    if foreign_source(source.path):
        name, (schema, parts) = short_name(source.path), open_batches(source.path)
        return spooled(name, schema, parts, scratch, in_order=in_order), name
    if is_folder(source.path):
        return folder_table(source.path, scratch, in_order), short_name(source.path)
    if is_csv(source.path):
        return _csv_table(source.path, source.dialect, scratch), short_name(source.path)
    return open_table(source.path, features, source.dialect), short_name(source.path)


def _csv_table(path: str, dialect: Dialect, scratch: Path | None) -> ParquetTable:
    """Return the rows of a CSV file as a Parquet file without a name, gone with the table."""
    import pyarrow as pa

    spool: Spool | None = None

    def begin(schema: Any) -> Callable[[Any], None]:
        nonlocal spool
        spool = own = Spool(scratch, schema)
        return lambda batch: own.write(pa.Table.from_batches([batch]))

    digest = stream_csv(path, dialect, begin)
    assert spool is not None
    return spool.table(short_name(path), digest)


def _check_reading(source: Source, most_read: int | None) -> None:
    if most_read is not None and _read_whole(source.path) > most_read:
        raise LimitReached(
            "memory_limit: this silo's table is a file that is read whole, for which there is not "
            "enough memory; as a Parquet or CSV file it would be read in parts"
        )


def _read_whole(path: str) -> int:
    """Return the bytes of a file of which reading a part is not enough, 0 where unknown."""
    name = short_name(path).lower()
    if not path or is_csv(path) or (name.endswith((".parquet", ".pq")) and "://" not in path):
        return 0
    try:
        if "://" not in path:
            return os.stat(path).st_size
        import fsspec

        files, inner = fsspec.core.url_to_fs(path)
        return int(files.size(inner) or 0)
    except (OSError, ImportError, ValueError):
        return 0  # reading it will say what is wrong


def _digest(table: Any) -> str:
    """Return by what a table is known again."""
    if isinstance(table, ParquetTable | LibsvmTable):
        return table.digest
    return str(table.schema.metadata[KEY], "ascii")


def look(source: Source) -> tuple[int, int]:
    """Open a source as a job would; return its rows, and columns that a job could use.

    Raises
    ------
    DataError
        The table cannot be read; says where, never which value.
    """
    table, _ = _opened(source, ())
    return int(table.num_rows), sum(not name.startswith("_") for name in table.column_names)


def texts(source: Source, column: str) -> list[str | None]:
    """Return a column of a source as text, row by row.

    Raises
    ------
    DataError
        The table cannot be read, or has no such column.
    """
    table, where = _opened(source, ())
    if column not in table.column_names:
        raise DataError(f"{where}: there is no column '{column}'")
    return [None if one is None else str(one) for one in table.column(column).to_pylist()]


def extent(source: Source) -> tuple[int, tuple[str, ...]]:
    """Return a Parquet file's rows, and columns a job could use, as its footer has them.

    None where telling them would mean to read the table.
    """
    if not source.path.endswith(".parquet") or "://" in source.path:
        return 0, ()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(source.path)
        names = without_index(footer.schema.to_arrow_schema()).names
        return int(footer.num_rows), tuple(name for name in names if not name.startswith("_"))
    except (OSError, pa.ArrowException):
        # Loading it for a job will say what is wrong, to the operator too.
        return 0, ()
