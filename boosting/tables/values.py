"""Values of Arrow columns as the numbers that trees and losses take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import SIGNS, TRUTH, Task
from hedgerow.boosting.errors import DataError, LabelUnfit
from hedgerow.boosting.queries import MOST_RELEVANT

Floats = NDArray[np.float32]


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


def without_views(table: Any) -> Any:
    """Return a table without views and runs of values, which few of Arrow's functions take."""
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    types = table.schema.types  # a list that Arrow makes at each use
    for k, (name, kind) in enumerate(zip(table.column_names, types, strict=True)):
        column = table.column(k)
        if pa.types.is_run_end_encoded(kind):
            kind, column = kind.value_type, pc.run_end_decode(column)
        if pa.types.is_dictionary(kind) and kind.value_type in plain:
            chunks = [(c.indices, c.dictionary.cast(plain[kind.value_type])) for c in column.chunks]
            kind = pa.dictionary(kind.index_type, plain[kind.value_type])
            parts = [pa.DictionaryArray.from_arrays(*chunk) for chunk in chunks]
            column = pa.chunked_array(parts, kind)
        elif kind in plain:
            column = column.cast(plain[kind])
        if column.type != types[k]:
            table = table.set_column(k, name, column)
    return table


def _numbers(chunked: Any) -> NDArray[np.float64]:
    import pyarrow as pa

    if pa.types.is_boolean(chunked.type):
        chunked = chunked.cast(pa.int8())
    values = chunked.cast(pa.float64(), safe=False).to_numpy()
    return np.asarray(values, dtype=np.float64)


def finite(chunked: Any, place: str) -> NDArray[np.float64]:
    """Return numbers that are all there and within float32.

    Raises
    ------
    DataError
        They are not; says where, not which.
    """
    import pyarrow as pa

    kind = chunked.type
    if pa.types.is_dictionary(kind):
        chunked, kind = chunked.cast(kind.value_type), kind.value_type
    if not is_number(kind):
        raise DataError(f"{place}: expected numbers, received type {kind}")
    values = _numbers(chunked)
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32)).all():
            raise DataError(f"{place}: some are missing, infinite or beyond float32")
    return values


def is_given(chunked: Any) -> NDArray[np.bool_]:
    """Return in which rows of a column there is a value; NaN is none."""
    import pyarrow.compute as pc

    return np.asarray(pc.invert(pc.is_null(chunked, nan_is_null=True)).to_numpy(), np.bool_)


def float32s(chunked: Any) -> Floats:
    """Return numbers rounded once to float32, nulls as NaN; infinite where they are beyond it."""
    import pyarrow as pa

    kind = chunked.type
    if pa.types.is_dictionary(kind):
        chunked, kind = chunked.cast(kind.value_type), kind.value_type
    if pa.types.is_float32(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32):
        return np.asarray(chunked.cast(pa.float32(), safe=False).to_numpy(), np.float32)
    with np.errstate(over="ignore"):
        return _numbers(chunked).astype(np.float32)


def beyond(chunked: Any, bits: int) -> str:
    """Return a warning where a column has integers above 2^``bits``; empty where it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_integer(chunked.type) or chunked.null_count == len(chunked):
        return ""
    ends = pc.min_max(chunked).as_py()
    if max(-ends["min"], ends["max"]) <= 1 << bits:
        return ""
    return f"integers beyond 2^{bits}: float32 does not tell all of them apart"


def categories_of(chunked: Any) -> tuple[NDArray[np.float32], tuple[str, ...]]:
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


def labels_of(
    chunked: Any, place: str, task: Task, classes: int, positive: str = ""
) -> tuple[NDArray[np.float64], int, tuple[str, ...]]:
    """Return labels as codes or numbers, the number of classes, and the names of the classes.

    Classes have names where labels are text, truth values, -1 and 1, or class numbers from 1 on, so
    that predictions are what the table has; else they are numbers from 0.

    Parameters
    ----------
    place : str
        Table and column, for messages.
    classes : int
        Most classes, 0 for any number.
    positive : str
        The class that is the last one, where it is given.
    """
    import pyarrow as pa

    kind = chunked.type
    if pa.types.is_dictionary(kind):
        chunked, kind = chunked.cast(kind.value_type), kind.value_type
    n_rows = len(chunked)
    if n_rows == 0:
        return np.zeros(0), 2 if task is Task.BINARY else 0, ()
    if not (is_text(kind) or is_number(kind) or pa.types.is_null(kind)):
        raise LabelUnfit(f"{place}: expected numbers or text, received type {kind}")
    if is_text(kind):
        if not task.of_classes:
            raise LabelUnfit(f"{place}: expected numbers for a {task.value}, received text")
        codes, words = categories_of(chunked)
        y = codes.astype(np.float64)
    else:
        y, words = _numbers(chunked), ()
    # No counts: the coordinator reads why a silo declines.
    if np.isinf(y).any():
        raise LabelUnfit(f"{place}: some labels are infinite")
    if np.isnan(y).any():
        raise LabelUnfit(
            f"{place}: some labels are missing; rows without one are left out where the job has "
            "[columns] missing_label = 'drop'"
        )
    if not task.of_classes:
        return y, 0, ()
    if words:
        if task is Task.BINARY and len(words) > 2:
            raise LabelUnfit(
                f"{place}: expected two classes for a binary job, received {len(words)}"
            )
        if classes and len(words) > classes:
            raise LabelUnfit(f"{place}: expected at most {classes} classes, received {len(words)}")
        if positive and len(words) == 2:
            if positive not in words:
                raise LabelUnfit(f"{place}: '{positive}', the positive class, is none of its two")
            if words[0] == positive:
                y, words = 1.0 - y, words[::-1]
        return y, 2 if task is Task.BINARY else max(classes, len(words)), words
    if pa.types.is_boolean(kind):
        return y, max(classes, 2), TRUTH
    if task is Task.BINARY:
        if np.isin(y, (-1.0, 1.0)).all():
            signs = SIGNS if (y < 0.0).any() else ()  # of ones alone nobody knows
            return (y > 0.0).astype(np.float64), 2, signs
        if not np.isin(y, (0.0, 1.0)).all():
            raise LabelUnfit(
                f"{place}: some labels are neither 0 nor 1 (nor all ±1); of two other whole "
                "numbers [columns] positive says which one is 1"
            )
        return y, 2, ()
    if y.min() >= 1.0 and (y == np.floor(y)).all() and y.max() < 2**20:
        found = np.unique(y)
        names = {str(int(number)): number for number in found}
        if not classes or (y.max() >= classes and len(names) <= classes):
            words = tuple(sorted(names))
            place_of = np.argsort(np.argsort([str(int(number)) for number in found]))
            ranks = place_of[np.searchsorted(found, y)].astype(np.float64)
            return ranks, max(classes, len(words)), words
    if ((y < 0.0) | (y != np.floor(y)) | (y >= (classes or 2**20))).any():
        top = f"below {classes}" if classes else "from 0"
        raise LabelUnfit(f"{place}: some labels are not class numbers {top}")
    return y, classes or int(y.max()) + 1, ()


def bounds_of(
    lower: NDArray[np.float64], column: Any, label: str, place: str, is_event: bool
) -> NDArray[np.float64]:
    """Return earliest and latest times of events, shape (n_samples, 2), float64.

    Parameters
    ----------
    lower : ndarray of shape (n_samples,), float64
        The label.
    column : pyarrow.ChunkedArray
        Latest times, missing or infinite where nobody knows; or, with ``is_event``, 1 or true where
        the event was seen at the label's time, 0 where it had not happened by then.
    label, place : str
        Table and column of the label and of ``column``, for messages.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if len(column) and not (is_number(kind) or pa.types.is_null(kind)):
        raise LabelUnfit(f"{place}: expected numbers, received type {kind}")
    told = _numbers(column) if len(column) else np.zeros(0)
    if is_event:
        if not np.isin(told, (0.0, 1.0)).all():
            raise LabelUnfit(
                f"{place}: some values are missing, or neither 0 (not seen) nor 1 (seen)"
            )
        upper = np.where(told == 1.0, lower, np.inf)
    else:
        upper = np.where(np.isnan(told), np.inf, told)
    # XGBoost holds both as float32: what rounds to 0 or beyond would be another kind of label.
    with np.errstate(over="ignore"):
        first, last = lower.astype(np.float32), upper.astype(np.float32)
    if (lower < 0.0).any():
        raise LabelUnfit(f"{label}: some times are negative")
    if (upper < lower).any():
        raise LabelUnfit(f"{place}: some upper bounds are below the label")
    if (last <= 0.0).any() or ((first <= 0.0) & (lower > 0.0)).any() or np.isinf(first).any():
        raise LabelUnfit(
            f"{label}: some times are beyond float32, or events are at time 0: "
            "expected times above 0"
        )
    return np.stack([lower, upper], axis=1)


def queries_of(column: Any, place: str) -> NDArray[np.float64]:
    """Return the number of each row's query, shape (n_samples,), float64, rising from 0.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        Names of queries: numbers or text.
    place : str
        Table and column, for messages.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise LabelUnfit(f"{place}: some rows are of no query")
    if not len(column):
        return np.zeros(0)
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    found = column.unify_dictionaries().combine_chunks().indices.to_numpy(zero_copy_only=False)
    changes = np.flatnonzero(found[1:] != found[:-1]) + 1
    if len(changes) + 1 > len(np.unique(found)):
        raise LabelUnfit(f"{place}: expected the rows of a query next to each other: sort by it")
    return np.repeat(
        np.arange(len(changes) + 1.0), np.diff(np.concatenate([[0], changes, [len(found)]]))
    )


def check_range(y: NDArray[np.float64], objective: str, place: str) -> None:
    """Refuse labels for which the objective's loss is not defined."""
    if objective in ("reg:tweedie", "tweedie", "count:poisson"):
        bad, what = y < 0.0, "negative"
    elif objective == "reg:gamma":
        bad, what = y <= 0.0, "not positive"
    elif objective == "reg:logistic":
        bad, what = (y < 0.0) | (y > 1.0), "outside 0 to 1"
    elif objective == "reg:squaredlogerror":
        bad, what = y <= -1.0, "not above -1"
    elif objective in ("rank:ndcg", "rank:pairwise", "rank:map"):
        most = 1 if objective == "rank:map" else MOST_RELEVANT
        bad = (y < 0.0) | (y > most) | (y != np.floor(y))
        what = f"no whole numbers from 0 to {most}"
    else:
        return
    if bad.any():
        raise LabelUnfit(f"{place}: some labels are {what}, which {objective} excludes")
