"""Tables that are folders, as Spark writes them: Delta tables, and Parquet files with partitions.

Rows come in parts into a Parquet file without a name, as a query's do: a job reads one version of
them, regardless of what is written to the folder meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import short_name
from hedgerow.boosting.tables.digests import digest_of
from hedgerow.boosting.tables.parquet import ParquetTable
from hedgerow.client_agent.queries import Spool

DELTA = "delta+"
"""Before the URL of a Delta table in an object store."""
_ROWS = 50_000


def is_folder(path: str) -> bool:
    """Return whether a path names a folder, or a Delta table by its URL."""
    return path.startswith(DELTA) or ("://" not in path and os.path.isdir(path))


def folder_table(path: str, folder: Path | None, in_order: bool = False) -> ParquetTable:
    """Return the rows of a folder as a Parquet file without a name, gone with the table.

    Parameters
    ----------
    path : str
        A Delta table, or else a folder of Parquet files of one schema; names of folders in it such
        as ``year=2025`` are a column's values.
    folder : Path or None
        Where the file is; None for the system's own folder of temporary files.
    in_order : bool
        Whether the same rows in another order have another digest.

    Raises
    ------
    DataError
        It is neither, cannot be read, has files of different columns, or needs a package that is
        not installed.
    StateUnwritable
        The disk has no room for the rows.
    """
    name = short_name(path.rstrip("/"))
    is_delta = path.startswith(DELTA) or os.path.isdir(os.path.join(path, "_delta_log"))
    rows, version = _delta(path, name) if is_delta else (_parquet(path, name), "")
    parts = rows.to_batches(batch_size=_ROWS, batch_readahead=1, fragment_readahead=1)
    return spooled(name, rows.schema, parts, folder, version, in_order)


def spooled(
    name: str,
    schema: Any,
    parts: Iterable[Any],
    folder: Path | None,
    version: str = "",
    in_order: bool = False,
) -> ParquetTable:
    """Return rows that come in parts as :func:`folder_table` does; ``version`` as there."""
    import pyarrow as pa

    try:
        spool = Spool(folder, schema)
        for part in parts:
            spool = spool.add(pa.Table.from_batches([part]))
        return spool.table(name, version, in_order)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{name}: a file of the table cannot be read, or is gone ({type(error).__name__})"
        ) from error


def _delta(path: str, name: str) -> tuple[Any, str]:
    """Return the newest version of a Delta table as a data set, and by what it is known again."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise DataError(
            f"{name} is a Delta table, which needs the extra hedgerow[delta]"
        ) from error
    try:
        table = DeltaTable(path.removeprefix(DELTA))
        known = digest_of(f"delta {table.metadata().id} {table.version()}".encode())
        return table.to_pyarrow_dataset(), known
    except (DeltaError, OSError, ValueError) as error:
        raise DataError(
            f"{name} cannot be read as a Delta table: {type(error).__name__}"
        ) from error


def _parquet(path: str, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as pads

    try:
        found = pads.dataset(path, format="parquet", partitioning="hive")
        _check_columns(found, name)
    except pa.ArrowTypeError as error:
        raise DataError(
            f"{name}: a column is in its files and, with another type, in the names of folders"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{name} is not a folder of Parquet files, or they are damaged") from error
    if not found.files:
        raise DataError(f"{name}: there is no Parquet file in this folder")
    return found


def _check_columns(found: Any, name: str) -> None:
    """Refuse files whose columns or types are not those of the first, of which Arrow reads others.

    It would leave out what only later files have, and take what they lack for missing values. Of a
    file an error has only its own name: that of its folder may be a value.
    """
    import pyarrow.dataset as pads

    expected: dict[str, str] = {}
    first = ""
    for fragment in found.get_fragments():
        file = os.path.basename(fragment.path)
        own = fragment.physical_schema
        kinds = dict(zip(own.names, map(str, own.types), strict=True))
        for column in pads.get_partition_keys(fragment.partition_expression):
            kinds[column] = "a partition"
        if not first:
            expected, first = kinds, file
        for column in {**expected, **kinds}:
            wanted, received = (of.get(column, "no such column") for of in (expected, kinds))
            if wanted != received:
                raise DataError(
                    f"{name}: column '{column}' of {file}: expected {wanted}, as in {first}, "
                    f"received {received}"
                )
