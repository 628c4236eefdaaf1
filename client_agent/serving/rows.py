"""Rows by identifier: of a table in memory, or looked up in a database when they are asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Task, recode
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import read_table, short_name, to_dataset
from hedgerow.boosting.tables.indexes import ID
from hedgerow.client_agent.config import Source
from hedgerow.client_agent.queries import database, query_table, result_table

Floats = NDArray[np.float32]


class RowStore(Protocol):
    """Features of rows by identifier."""

    def find(self, ids: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the features of rows, NaN where there is no such row, and which there are.

        Returns
        -------
        ndarray of shape (n_ids, n_features), float32
        ndarray of shape (n_ids,), bool

        Raises
        ------
        DataError
            The store cannot be read now.
        """


def unknown_texts(X: Floats, rows: Any, features: Sequence[Feature]) -> dict[int, tuple[str, ...]]:
    """Return, by row, the features whose text is none that the model knows: it counts as missing.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float32
        What trees see of the rows.
    rows : pyarrow.Table
        What was given.
    """
    found: dict[int, tuple[str, ...]] = {}
    for k, feature in enumerate(features):
        if feature.categories is not None and feature.name in rows.column_names:
            given = np.asarray(rows.column(feature.name).is_valid())
            for row in np.flatnonzero(given & np.isnan(X[:, k])).tolist():
                found[row] = (*found.get(row, ()), feature.name)
    return found


class PartColumns:
    """The columns of a part: their order, and the places of texts.

    Parameters
    ----------
    categories : Mapping
        Texts by column, in the order of their places.
    """

    def __init__(self, features: Sequence[str], categories: Mapping[str, Sequence[str]]) -> None:
        self.names = tuple(features)
        self._features = tuple(
            Feature(name, tuple(categories[name]) if name in categories else None)
            for name in features
        )

    def coded(
        self, table: Any, where: str, *, with_ids: bool = True, id_column: str = ID
    ) -> Dataset:
        """Return a table's rows with the part's columns; an unknown text is missing.

        Raises
        ------
        DataError, SchemaMismatch
            A column is missing, or of another type.
        """
        found = to_dataset(
            table, where, task=Task.REGRESSION, label="", features=self.names, with_ids=with_ids,
            id_column=id_column,
        )  # fmt: skip
        return recode(found, replace(found.schema, features=self._features))

    def brought(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[Floats, dict[int, tuple[str, ...]]]:
        """Return the features of rows that a caller brings, and those of unknown texts by row."""
        import pyarrow as pa

        try:
            columns = {
                feature.name: pa.array(
                    [row.get(feature.name) for row in rows],
                    pa.string() if feature.is_categorical else pa.float64(),
                )
                for feature in self._features
            }
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise DataError("the rows: a feature is a text where a number is expected") from None
        table = pa.table(columns)
        X = np.asarray(self.coded(table, "the rows", with_ids=False).X)
        return X, unknown_texts(X, table, self._features)


class MemoryRows:
    """A table in memory; rows whose identifier is missing or repeated are left out."""

    def __init__(self, table: Dataset) -> None:
        assert table.ids is not None
        counts = Counter(table.ids.tolist())
        self._place = {
            name: k
            for k, name in enumerate(table.ids.tolist())
            if name is not None and counts[name] == 1
        }
        # One row more, of missing values, for whom there is none.
        self._X = np.concatenate([table.X, np.full((1, table.X.shape[1]), np.nan, np.float32)])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._place)

    def find(self, ids: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return rows; see :class:`RowStore`."""
        nowhere = len(self._X) - 1
        places = np.fromiter((self._place.get(i, nowhere) for i in ids), np.intp, len(ids))
        return self._X[places], places != nowhere


class QueriedRows:
    """A database that is asked at each request, by a query with ``:ids``.

    Parameters
    ----------
    source : Source
        Its query has a column ``_id``, as in ``SELECT key AS _id, age FROM people WHERE key IN
        :ids``.
    """

    def __init__(self, source: Source, columns: PartColumns) -> None:
        self._engine = database(source.sql_url)
        self._query, self._columns, self._id = source.query, columns, source.id

    def find(self, ids: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return rows; see :class:`RowStore`."""
        if not ids:
            return np.zeros((0, len(self._columns.names)), np.float32), np.zeros(0, np.bool_)
        wanted = list(dict.fromkeys(ids))
        table = result_table(self._engine, self._query, wanted)
        if not table.num_rows:
            shape = (len(ids), len(self._columns.names))
            return np.full(shape, np.nan, np.float32), np.zeros(len(ids), np.bool_)
        coded = self._columns.coded(table, "the query's result", id_column=self._id)
        return MemoryRows(coded).find(ids)


def open_rows(source: Source, columns: PartColumns) -> RowStore:
    """Return a source's rows with the columns of a part.

    Raises
    ------
    DataError, SchemaMismatch
        The source cannot be used; says where, never which value.
    """
    if source.query and ":ids" in source.query:
        return QueriedRows(source, columns)
    if source.query:
        found = query_table(source.sql_url, source.query)
        return MemoryRows(columns.coded(found, "the query", id_column=source.id))
    if not source.path:
        raise DataError("no rows: expected a path, or sql_url and query")
    table = read_table(source.path, columns.names, source.dialect)
    return MemoryRows(columns.coded(table, short_name(source.path), id_column=source.id))


def stamp(source: Source) -> object:
    """Return a value that changes when a source's local file does."""
    return file_stamp(source.path) if source.path and "://" not in source.path else None


def file_stamp(path: str | Path | None) -> tuple[int, ...]:
    """Return a value that changes when a file does; always the same where there is none."""
    if path is None:
        return ()
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_ino, found.st_size
