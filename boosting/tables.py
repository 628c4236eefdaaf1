"""Tables: Parquet, CSV or LIBSVM read into Arrow tables, and those into data sets.

The meaning of columns, by name:

- the job names the **label** column; ``label`` and ``label_*`` are never features;
- a name that starts with ``_`` is **metadata**, never a feature; ``_id`` identifies rows of a
  vertical party;
- every other column is a **feature**: numbers and truth values unchanged, text (plain or
  dictionary) as a category, a null as missing.

LIBSVM files become dense: a feature that a row does not list is 0, features are named ``f1``,
``f2``, ... after their index, and the label is ``label``. Arrow is imported when first needed.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Dataset, Feature, Schema, Task
from hedgerow.boosting.delimited import Dialect, read_csv
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.parquet import ParquetTable
from hedgerow.boosting.ports import Vertical

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
}
Floats = NDArray[np.float32]
RECOGNISED = Dialect()
_COMPRESSIONS = (".xz", ".gz", ".bz2", ".zst")


def short_name(path: str) -> str:
    """Return the last part of a path or URL: the table's name in messages."""
    return PurePosixPath(path.rpartition("://")[2]).name or path.rpartition("://")[2]


def read_table(path: str, features: Sequence[str] = (), dialect: Dialect = RECOGNISED) -> Any:
    """Return a file as a ``pyarrow.Table``.

    Parameters
    ----------
    path : str
        Local path or fsspec URL. Its ending gives the format: ``.parquet``, ``.csv`` or
        ``.libsvm``, the last two optionally followed by ``.xz``, ``.gz``, ``.bz2`` or ``.zst``.
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
    return table.table() if isinstance(table, ParquetTable) else table


def open_table(path: str, features: Sequence[str] = (), dialect: Dialect = RECOGNISED) -> Any:
    """Return a file as :func:`read_table` does, but Parquet as a :class:`ParquetTable`.

    A local Parquet file is read by column when it is used.
    """
    name = short_name(path)
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    kind = _FORMATS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise DataError(
            f"{name}: expected a name that ends in .parquet, .csv or .libsvm (these two also with "
            + ", ".join(_COMPRESSIONS)
            + ")"
        )
    if kind == "parquet" and not compression:
        return ParquetTable(path if "://" not in path else _read(path, name), name)
    data = _decompress(_read(path, name), compression, name)
    if kind == "parquet":
        return ParquetTable(data, name)
    if kind == "csv":
        return read_csv(data, name, dialect)
    return _with_zeros(_libsvm(data, name), features)


def for_job(table: Any, job: JobParameters, where: str, *, party: str | None = None) -> Dataset:
    """Return a table as the data set of a job.

    Parameters
    ----------
    table : pyarrow.Table or ParquetTable
    where : str
        The table's name in messages.
    party : str, optional
        Owner of the table in a vertical job: row ids are required, labels only of the active
        party, and the table needs only some of the job's features.

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
        )
    layout = job.strategy.layout
    assert isinstance(layout, Vertical), "only a vertical job has parties"
    active = layout.active(job.parameters) == party
    here = set(table.column_names)
    features = tuple(name for name in job.features if name in here)
    if job.features and not features:
        raise DataError(f"{where}: none of the job's features is a column")
    if layout.scores_only(job.parameters):  # labels, if there are any, are for scores
        active = active and job.label in here
    return to_dataset(
        table,
        where,
        task=job.task,
        label=job.label if active else "",
        features=features,
        classes=job.classes,
        objective=job.objective,
        with_ids=True,
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
) -> Dataset:
    """Return an Arrow table, or a Parquet file, as a data set.

    Parameters
    ----------
    table : pyarrow.Table or ParquetTable
        Of a Parquet file only what the schema follows from and the labels are read; features are
        read when they are used.
    where : str
        The table's name in messages.
    task : Task
    label : str
        Column of the labels; empty to read none.
    features : sequence of str
        Columns to use, in this order; empty means all features, in the table's order.
    classes : int
        Size of the class list of a multi-class task; 0 takes the largest label.
    objective : str
        Its loss may limit the labels (Tweedie, Poisson, gamma).
    with_ids : bool
        Whether rows need an ``_id``.

    Raises
    ------
    DataError
        A column is missing (the message has the nearest name), repeated or of an unusable type;
        labels are missing, infinite or out of range. A table without rows is accepted.
    """
    names: list[str] = table.column_names
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}: two columns are named '{twice[0]}'")
    if label:
        _require(label, names, where, "label column")
    for name in features:
        _require(name, names, where, "feature")
        if name == label:
            raise DataError(f"{where}: column '{name}' cannot be both a feature and the label")
    chosen = list(features) or [name for name in names if is_feature(name, label)]
    if not chosen:
        raise DataError(f"{where}: expected at least one feature column")
    made, readers = zip(*(_feature(table, name, where) for name in chosen), strict=True)
    columns = Columns(table.num_rows, readers)
    y: NDArray[np.float64] | None = None
    n_classes = 2 if task is Task.BINARY else 0
    class_names: tuple[str, ...] = ()
    if label:
        place = f"{where}: label column '{label}'"
        y, n_classes, class_names = _labels(table.column(label), place, task, classes)
        _check_range(y, objective, place)
    ids = _ids(table, where) if with_ids else None
    schema = Schema(made, label, task, n_classes, class_names)
    in_memory = not isinstance(table, ParquetTable)
    return Dataset(schema, columns.table if in_memory else columns, y, None, ids)


def is_feature(name: str, label: str) -> bool:
    """Return whether a column is a feature, by its name alone."""
    return not (name.startswith(("_", "label_")) or name in ("label", label))


def _require(name: str, names: Sequence[str], where: str, what: str) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise DataError(f"{where}: there is no {what} '{name}'{hint}")


def _feature(table: Any, name: str, where: str) -> tuple[Feature, Callable[[], Floats]]:
    """Return a column as a feature, with a reader of its values; codes where it is text."""
    import pyarrow as pa

    kind = table.schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        codes, categories = _categories(table.column(name))
        if isinstance(table, ParquetTable):
            return Feature(name, categories), lambda: _categories(table.column(name))[0]
        return Feature(name, categories), lambda: codes
    if pa.types.is_null(kind):
        n_rows = table.num_rows
        return Feature(name, ()), lambda: np.full(n_rows, np.nan, dtype=np.float32)
    if not is_number(kind):
        raise DataError(
            f"{where}: column '{name}' has type {kind}; numbers, truth values and text can be "
            "features (a column whose name starts with '_' is left out)"
        )

    def read() -> Floats:
        whole = not isinstance(table, ParquetTable)
        values = np.empty(table.num_rows, dtype=np.float32)
        at = 0
        for part in [table.column(name)] if whole else table.parts(name):
            values[at : at + len(part)] = _float32s(part)
            at += len(part)
        if np.isinf(values).any():
            raise DataError(f"{where}: column '{name}' has infinite values or some beyond float32")
        return values

    if isinstance(table, ParquetTable) and not table.is_finite(name):
        read()  # a table that cannot be used is refused before the job starts
    return Feature(name), read


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text."""
    import pyarrow as pa

    is_view = getattr(pa.types, "is_string_view", None)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (is_view is not None and is_view(kind))
    )


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type is a number or a truth value."""
    import pyarrow as pa

    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _numbers(chunked: Any) -> NDArray[np.float64]:
    import pyarrow as pa

    if pa.types.is_boolean(chunked.type):
        chunked = chunked.cast(pa.int8())
    values = chunked.cast(pa.float64(), safe=False).to_numpy()
    return np.asarray(values, dtype=np.float64)


def _float32s(chunked: Any) -> Floats:
    """Return numbers rounded once to float32, nulls as NaN; infinite where they are beyond it."""
    import pyarrow as pa

    kind = chunked.type
    if pa.types.is_dictionary(kind):
        chunked, kind = chunked.cast(kind.value_type), kind.value_type
    if pa.types.is_float32(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32):
        return np.asarray(chunked.cast(pa.float32(), safe=False).to_numpy(), np.float32)
    with np.errstate(over="ignore"):
        return _numbers(chunked).astype(np.float32)


def _categories(chunked: Any) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return codes into the sorted list of the categories that occur."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(chunked.type):
        chunked = chunked.dictionary_encode()
    chunked = chunked.unify_dictionaries()
    if chunked.num_chunks == 0:
        return np.zeros(0, dtype=np.float32), ()
    words = chunked.chunk(0).dictionary.to_pylist()
    parts = [pc.fill_null(part.indices.cast(pa.int64()), -1).to_numpy() for part in chunked.chunks]
    codes = np.concatenate(parts)
    # A dictionary can hold a null or a word twice, and words that no row has.
    found = np.zeros(len(words) + 1, dtype=bool)
    found[codes] = True
    used = {word for word, here in zip(words, found, strict=False) if here and word is not None}
    position = {word: code for code, word in enumerate(sorted(used))}
    table = np.array([position.get(word, np.nan) for word in words] + [np.nan], dtype=np.float32)
    return table[codes], tuple(position)


def _labels(
    chunked: Any, place: str, task: Task, classes: int
) -> tuple[NDArray[np.float64], int, tuple[str, ...]]:
    import pyarrow as pa

    kind = chunked.type
    if pa.types.is_dictionary(kind):
        chunked, kind = chunked.cast(kind.value_type), kind.value_type
    n_rows = len(chunked)
    if n_rows == 0:
        return np.zeros(0), 2 if task is Task.BINARY else 0, ()
    if not (is_text(kind) or is_number(kind) or pa.types.is_null(kind)):
        raise DataError(f"{place}: expected numbers or text, received type {kind}")
    if is_text(kind):
        if task is Task.REGRESSION:
            raise DataError(f"{place}: expected numbers for a regression, received text")
        codes, words = _categories(chunked)
        y = codes.astype(np.float64)
    else:
        y, words = _numbers(chunked), ()
    bad = int(np.count_nonzero(~np.isfinite(y)))
    if bad:
        raise DataError(f"{place}: {bad} of {n_rows} labels are missing or not finite")
    if task is Task.REGRESSION:
        return y, 0, ()
    if words:
        if task is Task.BINARY and len(words) > 2:
            raise DataError(
                f"{place}: expected two classes for a binary job, received {len(words)}"
            )
        if classes and len(words) > classes:
            raise DataError(f"{place}: expected at most {classes} classes, received {len(words)}")
        return y, 2 if task is Task.BINARY else max(classes, len(words)), words
    if task is Task.BINARY:
        if np.isin(y, (-1.0, 1.0)).all():
            y = (y > 0.0).astype(np.float64)
        bad = int(np.count_nonzero(~np.isin(y, (0.0, 1.0))))
        if bad:
            raise DataError(f"{place}: {bad} of {n_rows} labels are neither 0 nor 1 (nor all ±1)")
        return y, 2, ()
    bad = int(np.count_nonzero((y < 0.0) | (y != np.floor(y)) | (y >= (classes or 2**20))))
    if bad:
        top = f"below {classes}" if classes else "from 0"
        raise DataError(f"{place}: {bad} of {n_rows} labels are not class numbers {top}")
    return y, classes or int(y.max()) + 1, ()


def _check_range(y: NDArray[np.float64], objective: str, place: str) -> None:
    """Refuse labels for which the objective's loss is not defined."""
    if objective in ("reg:tweedie", "tweedie", "count:poisson"):
        bad, what = y < 0.0, "negative"
    elif objective == "reg:gamma":
        bad, what = y <= 0.0, "not positive"
    elif objective == "reg:logistic":
        bad, what = (y < 0.0) | (y > 1.0), "outside 0 to 1"
    elif objective == "reg:squaredlogerror":
        bad, what = y <= -1.0, "not above -1"
    else:
        return
    if bad.any():
        raise DataError(
            f"{place}: {int(bad.sum())} of {len(y)} labels are {what}, which {objective} excludes"
        )


def _ids(table: Any, where: str) -> NDArray[np.object_]:
    import pyarrow as pa

    if "_id" not in table.column_names:
        raise DataError(f"{where}: a vertical job needs a column '_id' that names the rows")
    try:
        column = table.column("_id").cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: column '_id' cannot be read as text") from error
    # The alignment reports missing and repeated ids, and leaves such rows out.
    return np.array(column.to_pylist(), dtype=object)


def _read(path: str, name: str) -> bytes:
    try:
        if "://" not in path:
            with open(path, "rb") as file:
                return file.read()
        import fsspec

        with fsspec.open(path, "rb") as file:
            return bytes(file.read())
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file") from None
    except (OSError, ImportError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DataError(f"{name} cannot be read: {reason}") from error


def _decompress(data: bytes, compression: str, name: str) -> bytes:
    if not compression:
        return data
    import bz2
    import gzip
    import lzma

    import zstandard

    def zst(packed: bytes) -> bytes:
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            return bytes(reader.read())

    unpack = {".xz": lzma.decompress, ".gz": gzip.decompress, ".bz2": bz2.decompress, ".zst": zst}
    try:
        return unpack[compression](data)
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
        raise DataError(f"{name} is truncated, or not compressed as {compression}") from error


def _with_zeros(table: Any, features: Sequence[str]) -> Any:
    """Add the columns of ``features`` that no row of a LIBSVM file lists."""
    import pyarrow as pa

    lacking = [f for f in features if re.fullmatch(r"f\d+", f) and f not in table.column_names]
    if not lacking:
        return table
    zeros = pa.array(np.zeros(table.num_rows, dtype=np.float32))
    names = [*table.column_names, *lacking]
    return pa.Table.from_arrays([*table.columns, *[zeros] * len(lacking)], names)


def _libsvm(data: bytes, name: str) -> Any:
    import pyarrow as pa

    labels: list[float] = []
    counts: list[int] = []
    parts: list[NDArray[np.float64]] = []
    for number, line in enumerate(data.splitlines(), start=1):
        text = line.partition(b"#")[0]
        if not text.strip():
            continue
        try:
            head, *tokens = re.sub(rb"\bqid:\d+", b"", text).replace(b":", b" ").split()
            labels.append(float(head))
            parts.append(np.array(tokens, dtype="S").astype(np.float64).reshape(-1, 2))
        except ValueError as error:
            raise DataError(f"{name}: line {number} is not LIBSVM text") from error
        counts.append(len(parts[-1]))
    pairs = np.concatenate(parts) if parts else np.zeros((0, 2))
    index = pairs[:, 0].astype(np.int64)
    if (index != pairs[:, 0]).any() or (index < 0).any():
        raise DataError(f"{name}: expected feature indices that are whole numbers from 0 or 1")
    first = 0 if (index == 0).any() else 1
    width = int(index.max()) + 1 - first if len(index) else 0
    if len(labels) * width > 1 << 32:
        raise DataError(f"{name} is too large for a dense table: {len(labels)} by {width}")
    X = np.zeros((len(labels), width), dtype=np.float32, order="F")
    X[np.repeat(np.arange(len(labels)), counts), index - first] = pairs[:, 1]
    columns = [pa.array(X[:, k]) for k in range(width)]
    names = [f"f{k + first}" for k in range(width)]
    return pa.Table.from_arrays([pa.array(np.array(labels)), *columns], ["label", *names])
