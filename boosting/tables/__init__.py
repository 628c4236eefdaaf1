"""Tables: Parquet, CSV or LIBSVM read into Arrow tables, and those into data sets.

The meaning of columns, by name:

- the job names the **label** column; ``label`` and ``label_*`` are never features;
- a name that starts with ``_`` is **metadata**, never a feature; ``_id`` identifies rows of a
  vertical party;
- every other column is a **feature**: numbers and truth values unchanged, text (plain or
  dictionary) as a category, a null as missing.

A job's ``[columns]`` may give columns other names, make numbers of dates and categories of numbers
(:mod:`~hedgerow.boosting.tables.prepared`).

Of LIBSVM files a feature that a row does not list is 0, features are named ``f1``, ``f2``, ...
after their index, and the label is ``label``; only what rows list is in memory. Arrow is imported
when first needed.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import DataError, LabelUnfit
from hedgerow.boosting.job import MOST_WEIGHT, ColumnRules, is_feature
from hedgerow.boosting.ports import Vertical
from hedgerow.boosting.tables.delimited import Dialect, stream
from hedgerow.boosting.tables.indexes import ID
from hedgerow.boosting.tables.labelled import read_labels
from hedgerow.boosting.tables.libsvm import LibsvmTable
from hedgerow.boosting.tables.parquet import ParquetTable
from hedgerow.boosting.tables.prepared import PreparedTable, as_categories, refuse_twice, require
from hedgerow.boosting.tables.sources import (
    SOURCES,
    Location,
    TableSource,
    batches,
    foreign_source,
)
from hedgerow.boosting.tables.values import (
    Floats,
    categories_of,
    finite,
    float32s,
    is_given,
    is_number,
    is_text,
    without_views,
)

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
}
RECOGNISED = Dialect()
AS_IS = ColumnRules()
_COMPRESSIONS = (".xz", ".gz", ".bz2", ".zst")


def short_name(path: str) -> str:
    """Return the last part of a path or URL: the table's name in messages, always UTF-8."""
    last = path.rpartition("://")[2]
    return (PurePosixPath(last).name or last).encode(errors="backslashreplace").decode()


def read_table(path: str, features: Sequence[str] = (), dialect: Dialect = RECOGNISED) -> Any:
    """Return a file as a ``pyarrow.Table``.

    Parameters
    ----------
    path : str
        Local path or fsspec URL. Its ending gives the format: ``.parquet``, ``.csv``, ``.tsv``
        or ``.libsvm``, all but the first optionally followed by ``.xz``, ``.gz``, ``.bz2`` or
        ``.zst``.
    features : sequence of str
        Columns that a LIBSVM table has even where no row lists them.
    dialect : Dialect
        How a CSV file is written.

    Raises
    ------
    DataError
        Missing, unreadable or not of the format that its ending names; never quotes a value.
    """
    table = open_table(path, features, dialect)
    refuse_twice(table.column_names, short_name(path))
    return without_views(table.table() if isinstance(table, ParquetTable | LibsvmTable) else table)


def open_table(path: str, features: Sequence[str] = (), dialect: Dialect = RECOGNISED) -> Any:
    """Return a file as :func:`read_table` does, but some as tables whose columns are read by need.

    A local Parquet file is a :class:`ParquetTable`, a LIBSVM file a :class:`LibsvmTable`. What
    a package's source gives is read whole.
    """
    if foreign_source(path):
        import pyarrow as pa

        schema, parts = open_batches(path)
        return pa.Table.from_batches(parts, schema)
    at, kind = _location(path, features, dialect)
    if kind is None:
        raise DataError(
            f"{at.name}: expected a name that ends in .parquet, .csv, .tsv or .libsvm (all but the "
            f"first also with {', '.join(_COMPRESSIONS)})"
            + "; save a sheet of Excel as CSV (UTF-8)"
            * at.name.lower().endswith((".xlsx", ".xls"))
        )
    return SOURCES.load(kind, TableSource).read(at)


def open_batches(path: str) -> tuple[Any, Iterable[Any]]:
    """Return schema and rows of a URL of a package's source, see :func:`sources.batches`."""
    return batches(_location(path)[0], foreign_source(path))


def _location(
    path: str, features: Sequence[str] = (), dialect: Dialect = RECOGNISED
) -> tuple[Location, str | None]:
    name = short_name(path)
    kind, compression = _kind(name)
    file = partial(_File, path, compression, name)
    is_local = not compression and "://" not in path
    return Location(path, name, file, is_local, dialect, features), kind


def stream_csv(path: str, dialect: Dialect, begin: Callable[[Any], Callable[[Any], None]]) -> str:
    """Give the rows of a CSV file to a sink in parts; see :func:`delimited.stream`."""
    name = short_name(path)
    return stream(partial(_File, path, _kind(name)[1], name), name, dialect, begin)


def is_csv(path: str) -> bool:
    """Return whether a path or URL names a CSV file."""
    return _kind(short_name(path))[0] == "csv"


def _kind(name: str) -> tuple[str | None, str]:
    """Return the format that a name's ending tells, None for any other, and the compression."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    return _FORMATS.get(suffixes[-1] if suffixes else ""), compression


def for_job(
    table: Any, job: JobParameters, where: str, *, party: str | None = None, id_column: str = ID
) -> Dataset:
    """Return a table as the data set of a job.

    Parameters
    ----------
    table : pyarrow.Table or ParquetTable
    party : str, optional
        Owner of the table in a vertical job: row ids are required, labels only of the active
        party, and the table needs only some of the job's features.
    id_column : str
        The table's own column that names the rows; it is no feature.

    Raises
    ------
    DataError
    """
    if party is None:
        return to_dataset(
            table,
            where,
            task=job.task,
            label=job.label,
            features=job.features,
            classes=job.classes,
            objective=job.objective,
            rules=job.columns,
            weight=job.columns.weight,
            base_margin=job.base_margin,
            id_column=id_column,
        )
    layout = job.strategy.layout
    assert isinstance(layout, Vertical), "only a vertical job has parties"
    active = layout.active(job.parameters) == party
    weight, base_margin = layout.row_columns(job.parameters) if active else ("", ())
    here = PreparedTable(table, where, job.columns, is_whole=False).column_names
    features = tuple(name for name in job.features if name in here)
    if job.features and not features:
        raise DataError(f"{where}: none of the job's features is a column")
    if layout.scores_only(job.parameters):  # labels, if there are any, are for scores
        active = active and job.label in here
        weight = weight if weight in here else ""
    return to_dataset(
        table,
        where,
        task=job.task,
        label=job.label if active else "",
        features=features,
        classes=job.classes,
        objective=job.objective,
        with_ids=True,
        rules=job.columns,
        is_whole=False,
        weight=weight,
        base_margin=base_margin,
        id_column=id_column,
    )


def to_dataset(
    table: Any,
    where: str,
    *,
    task: Task,
    label: str,
    features: Sequence[str] = (),
    classes: int = 0,
    objective: str = "",
    with_ids: bool = False,
    rules: ColumnRules = AS_IS,
    is_whole: bool = True,
    weight: str = "",
    base_margin: Sequence[str] = (),
    id_column: str = ID,
) -> Dataset:
    """Return an Arrow table, or a Parquet file, as a data set.

    Parameters
    ----------
    table : pyarrow.Table, ParquetTable or LibsvmTable
        Of a Parquet file only what the schema follows from and the labels are read; features are
        read when they are used.
    label : str
        Column of the labels; empty to read none.
    features : sequence of str
        Columns to use, in this order; empty means all features, in the table's order.
    classes : int
        Size of the class list of a multi-class task; 0 takes the largest label.
    objective : str
        Its loss may limit the labels (Tweedie, Poisson, gamma).
    with_ids : bool
        Whether rows need an identifier.
    rules : ColumnRules
        How columns become features; all names above are those that they give.
    is_whole : bool
        Whether the table must have every column that the rules name.
    weight : str
        Column of row weights; empty for none.
    base_margin : sequence of str
        Columns of base margins, one an output; empty for none.
    id_column : str
        The table's own column of identifiers; it is a feature only where ``features`` says so.

    Raises
    ------
    DataError
        A column is missing (the message has the nearest name), repeated or of an unusable type;
        labels, weights or base margins are missing, infinite or out of range. A table without rows
        is accepted.
    """
    found = PreparedTable(table, where, rules, is_whole=is_whole)
    names = found.column_names
    labels = (label, *rules.more_labels) if label else ()
    for name in labels:
        require(name, names, where, "label column", LabelUnfit)
    for name in features:
        require(name, names, where, "feature")
        if name in labels:
            why = (
                "cannot be both a feature and the label" if name else "of the features has no name"
            )
            raise DataError(f"{where}: column '{name}' {why}")
    of_label = rules.beside_label if label else ()
    if label and task is Task.SURVIVAL and len(of_label) != 1:
        raise LabelUnfit(
            f"{where}: label '{label}' of survival needs [columns] label_upper, the column of its "
            "upper bound, or event, that of whether the event was seen"
        )
    if label and task is Task.RANKING and not rules.qid:
        raise LabelUnfit(
            f"{where}: label '{label}' of a ranking needs [columns] qid, the column of the query "
            "that a row belongs to"
        )
    of_rows = [*filter(None, [weight]), *base_margin, *of_label]
    uses = dict.fromkeys(base_margin, "base margin") | {weight: "weight column"}
    uses |= {
        rules.label_upper: "column of the label's upper bound",
        rules.event: "column of events",
        rules.qid: "column of queries",
    }
    for name in of_rows:
        require(name, names, where, uses[name], LabelUnfit if name in of_label else DataError)
        if name in labels or name in features or of_rows.count(name) > 1:
            raise DataError(
                f"{where}: column '{name}' has one use: label, feature, weight or base margin"
            )
    chosen = list(features) or [
        name
        for name in names
        if is_feature(name, label)
        and name not in (*of_rows, *rules.of_label)
        and found.source(name) != id_column
    ]
    if not chosen and not label:  # what others have, merging the silos' schemas tells
        raise DataError(f"{where}: expected at least one feature column")
    kept: NDArray[np.bool_] | None = None  # rows with a label: nothing is told of others
    if label and rules.missing_label:
        given = np.all([is_given(found.column(name)) for name in labels], axis=0)
        kept = None if given.all() else given
    levels = dict(rules.levels)
    ranges = dict(rules.ranges)
    read = [
        _feature(found, name, where, kept, levels.get(name), ranged=name in ranges)
        for name in chosen
    ]
    made = tuple(feature for feature, _ in read)
    columns = Columns(
        found.num_rows, tuple(reader for _, reader in read), found.n_stored, found.listed_in
    )
    y: NDArray[np.float64] | None = None
    n_classes = 2 if task is Task.BINARY else 0
    class_names: tuple[str, ...] = ()
    numbered = False
    if label:
        y, n_classes, class_names, numbered = read_labels(
            found, where, labels, kept,
            task=task, classes=classes, objective=objective, rules=rules,
        )  # fmt: skip
    weights: NDArray[np.float64] | None = None
    if weight:
        weights = _finite(found.column(weight), f"{where}: weight column '{weight}'", kept)
        used = weights if kept is None else weights[kept]
        if (used < 0).any() or (len(used) and not 2.0**-64 < used.max() < MOST_WEIGHT):
            raise DataError(
                f"{where}: weight column '{weight}': expected weights from 0, not all of them 0, "
                "and the largest between 2^-64 and 2^64"
            )
    margins: NDArray[np.float32] | None = None
    if base_margin:
        own = [_finite(found.column(n), f"{where}: base margin '{n}'", kept) for n in base_margin]
        margins = np.stack(own, axis=1).astype(np.float32)
    ids = _ids(table, where, id_column) if with_ids else None
    schema = Schema(made, label, task, n_classes, class_names, numbered, labels[1:])
    sources = tuple(found.source(name) for name in (*chosen, *of_rows))
    whole = columns if found.is_lazy else columns.table
    told = [name for name in chosen if found.is_named(name) and name not in levels]
    named = tuple(map(found.source, told))
    if kept is None:
        return Dataset(schema, whole, y, weights, ids, sources, named, margins)
    rows = np.flatnonzero(kept)
    others = Dataset(schema, whole, None, weights, ids, base_margin=margins).take(rows)
    return replace(others, y=y, sources=sources, named=named, unlabelled=len(kept) - len(rows))


def _finite(column: Any, place: str, kept: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return a column's numbers, 0 in rows that are left out."""
    import pyarrow as pa

    if kept is None:
        return finite(column, place)
    out = np.zeros(len(kept))
    out[kept] = finite(column.filter(pa.array(kept)), place)
    return out


def _feature(
    table: PreparedTable,
    name: str,
    where: str,
    kept: NDArray[np.bool_] | None,
    levels: tuple[str, ...] | None,
    *,
    ranged: bool,
) -> tuple[Feature, Callable[[], Floats]]:
    """Return a column as a feature, with a reader of its values; codes where it is text.

    A category that only rows have that are not ``kept`` is none. Where the job gives its levels,
    these are the categories for all rows, and other values are missing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if levels is not None:

        def of_levels() -> Floats:
            codes, own = categories_of(as_categories(table.column(name), f"{where}: '{name}'"))
            place = {level: code for code, level in enumerate(levels)}
            known = np.array([*(place.get(word, np.nan) for word in own), np.nan], np.float32)
            return known[np.where(np.isnan(codes), len(own), codes).astype(np.intp)]

        if table.is_lazy:
            return Feature(name, levels), of_levels
        coded = of_levels()
        return Feature(name, levels), lambda: coded
    kind = table.kind(name)
    if is_text(kind) or table.is_coded(name):

        def words() -> Any:
            own = table.column(name)
            if table.is_coded(name):
                own = as_categories(own, f"{where}: column '{name}'")
            if kept is None:
                return own
            if pa.types.is_dictionary(own.type):
                own = own.cast(own.type.value_type)
            return pc.if_else(pa.array(kept), own, pa.scalar(None, own.type))

        codes, categories = categories_of(words())
        if table.is_lazy:
            return Feature(name, categories), lambda: categories_of(words())[0]
        return Feature(name, categories), lambda: codes
    if pa.types.is_null(kind):
        n_rows = table.num_rows
        # One row's value would give it a type: where the job has a range it is of numbers anyway.
        made = Feature(name, None if ranged else ())
        return made, lambda: np.full(n_rows, np.nan, dtype=np.float32)
    if not is_number(kind):
        raise DataError(
            f"{where}: column '{name}' has type {kind}; numbers, truth values and text can be "
            "features ([columns] makes numbers of dates, and drops columns)"
        )

    def read() -> Floats:
        values = np.empty(table.num_rows, dtype=np.float32)
        at = 0
        for part in table.parts(name):
            values[at : at + len(part)] = float32s(part)
            at += len(part)
        values[values == np.float32(table.missing(name))] = np.nan
        if np.isinf(values).any():
            raise DataError(
                f"{where}: column '{name}' has infinite values or some beyond float32: leave these "
                "cells empty, or name the column in [columns] drop"
            )
        return values

    known = table.is_lazy and table.is_finite(name)
    if table.is_lazy and not known:  # a table that cannot be used is refused before the job starts
        known = not np.isnan(read()).all()
    # Of a column without any value other silos tell the type, unless the job has its range.
    blank = not (known or ranged or is_given(table.column(name)).any())
    return Feature(name, () if blank else None), read


def _ids(table: Any, where: str, name: str) -> NDArray[np.object_]:
    import pyarrow as pa

    if name == ID and name not in table.column_names:
        raise DataError(
            f"{where}: a vertical job needs a column '_id' that names the rows; another name is "
            "given by id of [data] in the agent's settings, --id of a command, or ids= in Python"
        )
    require(name, table.column_names, where, "column of identifiers")
    try:
        column = table.column(name).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: column '{name}' cannot be read as text") from error
    # The alignment reports missing and repeated ids, and leaves such rows out.
    return np.array(column.to_pylist(), dtype=object)


class _File(io.RawIOBase):
    """A local file or URL, unpacked; what goes wrong with it is a DataError."""

    def __init__(self, path: str, compression: str, name: str) -> None:
        import bz2
        import gzip
        import lzma

        import zstandard

        def zst(packed: Any) -> Any:
            return zstandard.ZstdDecompressor().stream_reader(packed)

        unpack: dict[str, Any] = {
            "": nullcontext,
            ".xz": lzma.open,
            ".gz": gzip.open,
            ".bz2": bz2.open,
            ".zst": zst,
        }
        self._name, self._compression = name, compression
        self._broken = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
        self._files = ExitStack()
        with self._named():
            packed = self._files.enter_context(_opened(path))
            self._file = self._files.enter_context(unpack[compression](packed))

    def read(self, size: int | None = -1) -> bytes:
        """Return as many bytes, or what is left of them."""
        with self._named():
            return bytes(self._file.read(-1 if size is None else size))

    def close(self) -> None:
        """Close the file, too."""
        self._files.close()
        super().close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DataError(f"{self._name}: there is no such file") from None
        except (OSError, ImportError, ValueError, *self._broken) as error:
            # gzip and bzip2 have OSErrors that the system knows nothing of.
            if isinstance(error, self._broken) or (self._compression and not _of_system(error)):
                raise DataError(
                    f"{self._name} is truncated, or not compressed as {self._compression}"
                ) from error
            reason = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, ImportError) or "Protocol not known" in str(error):
                reason = str(error).partition("\n")[0]
            raise DataError(f"{self._name} cannot be read: {reason}") from error


def _of_system(error: Exception) -> bool:
    return not isinstance(error, OSError) or error.errno is not None


def _opened(path: str) -> Any:
    if "://" not in path:
        return open(path, "rb")
    import fsspec

    return fsspec.open(path, "rb")
