"""Tables under a job's ``[columns]``: dates as numbers, codes as categories, other names.

Values are converted when they are read, so that a Parquet file is read by column here, too.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.job import ColumnRules, DatePart, category_name
from hedgerow.boosting.tables.libsvm import LibsvmTable
from hedgerow.boosting.tables.parquet import ParquetTable
from hedgerow.boosting.tables.values import is_text

_MISSPELT = 0.75
"""How like another name that of a column to drop is that no table has, if it is an error."""
_DATE = r"\s*(\d{4})[-/](\d{1,2})[-/](\d{1,2})([T ].*)?"
_DOTTED_DATE = r"\s*(\d{1,2})\.(\d{1,2})\.(\d{4})( .*)?"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a column of a job is from: a column of the table, and what becomes of it."""

    source: str
    part: DatePart | None = None
    is_category: bool = False


class PreparedTable:
    """A table with the columns that a job's rules make of it.

    Parameters
    ----------
    table : pyarrow.Table, ParquetTable or LibsvmTable
    is_whole : bool
        Whether the table must have every column that the rules name, as that of a silo in a
        horizontal job; a party has some of them, and rows to score no label.

    Raises
    ------
    DataError
        A column is missing (the message has the nearest name), or two would have one name.
    """

    def __init__(self, table: Any, where: str, rules: ColumnRules, *, is_whole: bool) -> None:
        self._table, self._where = table, where
        self.num_rows = int(table.num_rows)
        self.is_lazy = isinstance(table, ParquetTable | LibsvmTable)
        self._origins = self._made(rules, is_whole)
        self._missing = rules.missing
        one_each = len({o.source for o in self._origins.values()}) == len(self._origins)
        self.n_stored: int | None = table.n_stored if self.is_lazy and one_each else None
        self.listed_in = table.name if isinstance(table, LibsvmTable) else ""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns under the rules, in the table's order."""
        return list(self._origins)

    def source(self, name: str) -> str:
        """Return the table's own name of what a column is made of."""
        return self._origins[name].source

    def is_named(self, name: str) -> bool:
        """Return whether a feature's categories are names that were no texts of the table."""
        import pyarrow as pa

        origin = self._origins[name]
        kind = self._table.schema.field(origin.source).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        named = origin.is_category and (origin.part is not None or not is_text(kind))
        return named or self.is_coded(name)

    def is_coded(self, name: str) -> bool:
        """Return whether the table itself says that a column's numbers are categories, as pandas'.

        The labels may be such a column, too, and are not named for it.
        """
        import pyarrow as pa

        origin = self._origins[name]
        kind = self._table.schema.field(origin.source).type
        if origin != Origin(origin.source) or not pa.types.is_dictionary(kind):
            return False
        return bool(pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type))

    def kind(self, name: str) -> Any:
        """Return the Arrow type of a column; of a dictionary that of its values."""
        import pyarrow as pa

        origin = self._origins[name]
        kind = self._table.schema.field(origin.source).type
        if origin.is_category:
            return pa.string()
        if origin.part is not None:
            return pa.int32()
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def column(self, name: str) -> Any:
        """Return a whole column as a ``pyarrow.ChunkedArray``."""
        import pyarrow as pa

        origin = self._origins[name]
        if origin == Origin(origin.source):
            return self._table.column(origin.source)
        chunks = [chunk for part in self.parts(name) for chunk in part.chunks]
        return pa.chunked_array(chunks, type=self.kind(name))

    def table(self) -> Any:
        """Return all columns as a ``pyarrow.Table``."""
        import pyarrow as pa

        return pa.table({name: self.column(name) for name in self.column_names})

    def parts(self, name: str) -> Iterator[Any]:
        """Yield a column in parts that are read one at a time, each a ``pyarrow.ChunkedArray``."""
        origin = self._origins[name]
        place = f"{self._where}: column '{origin.source}'"
        table = self._table
        for part in table.parts(origin.source) if self.is_lazy else [table.column(origin.source)]:
            if origin.part is not None:
                part = _part(part, origin.part, place)
            yield as_categories(part, place) if origin.is_category else part

    def missing(self, name: str) -> float:
        """Return the number that stands for a missing value of a feature; NaN for none."""
        taken = self._origins[name].part is not None  # parts of dates are counted, not read
        return np.nan if taken or self._missing is None else self._missing

    def is_finite(self, name: str) -> bool:
        """Return whether a column is known without reading it to be finite, and to be dates."""
        import pyarrow as pa

        origin = self._origins[name]
        if origin.part is not None:
            return bool(pa.types.is_temporal(self._table.schema.field(origin.source).type))
        return self.is_lazy and bool(self._table.is_finite(origin.source))

    def _made(self, rules: ColumnRules, is_whole: bool) -> dict[str, Origin]:
        """Return the columns by name, in the table's order."""
        names: list[str] = self._table.column_names
        refuse_twice(names, self._where)
        given = dict(rules.rename)
        if is_whole:
            for old, new in given.items():
                if new not in names and new not in {given.get(name) for name in names}:
                    require(old, names, self._where, "column")
        refuse_twice([given.get(name, name) for name in names], self._where)
        sources = {given.get(name, name): name for name in names}
        made: dict[str, Origin] = {}
        dates, drop = dict(rules.dates), set(rules.drop)
        for name, source in sources.items():
            if name in dates:
                for own, part in zip(rules.date_features(name), dates[name], strict=True):
                    if own in sources:
                        raise DataError(f"{self._where}: '{own}' is a column, and made of dates")
                    made[own] = Origin(source, part)
            elif name not in drop:
                made[name] = Origin(source)
        if is_whole:
            for name in dates:
                require(name, list(sources), self._where, "column")
            for name in drop - sources.keys():
                if difflib.get_close_matches(name, sources.keys() - drop, n=1, cutoff=_MISSPELT):
                    require(name, list(sources), self._where, "column")
            for name in rules.categorical:
                require(name, list(made), self._where, "column")
        for name in set(rules.categorical) & set(made):
            made[name] = replace(made[name], is_category=True)
        return made


def require(
    name: str,
    names: Sequence[str],
    where: str,
    what: str,
    error: type[DataError] = DataError,
) -> None:
    """Raise ``error`` where there is no such column; names the nearest one."""
    if name in names:
        return
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"; did you mean '{folded[near[0]]}'?" if near else ""
    raise error(f"{where}: there is no {what} '{name}'{hint}")


def as_categories(column: Any, place: str) -> Any:
    """Return a column as texts: whole numbers are the same text however they are written.

    Raises
    ------
    DataError
        A number is not whole, or the column has another type.
    """
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    wrong = f"{place}: expected text or whole numbers for categories"
    if pa.types.is_nested(kind) or pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        raise DataError(f"{wrong}, received type {kind}")
    return _converted(column, lambda value: category(value, wrong), pa.string())


def category(value: Any, wrong: str) -> str | None:
    """Return the name of a category; ``wrong`` begins the error of a number that is not whole."""
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return category_name(value)
    if value % 1 != 0:
        raise DataError(f"{wrong}, received numbers that are not whole")
    return str(int(value))


def _part(column: Any, part: DatePart, place: str) -> Any:
    """Return what a feature takes of dates."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = _days(column, place)
    if part is DatePart.DAYS_SINCE:
        return days.cast(pa.int32())
    taken = {DatePart.YEAR: pc.year, DatePart.MONTH: pc.month, DatePart.WEEKDAY: pc.day_of_week}
    return taken[part](days).cast(pa.int32())


def _days(column: Any, place: str) -> Any:
    """Return dates as ``date32``: of a time the day, in the column's own time zone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_timestamp(kind):
        local = column if kind.tz is None else pc.local_timestamp(column)
        return pc.floor_temporal(local, unit="day").cast(pa.date32())
    if pa.types.is_date(kind):
        return column.cast(pa.date32())
    if not (is_text(kind) or pa.types.is_null(kind)):
        raise DataError(f"{place}: expected dates, received type {kind}")
    try:
        return _converted(column, day_of, pa.date32())
    except ValueError:
        raise DataError(
            f"{place}: expected dates as YYYY-MM-DD, YYYY/MM/DD or DD.MM.YYYY, received others"
        ) from None


def day_of(text: str | None) -> datetime.date | None:
    """Return the date that a text begins with, None of a blank one.

    Raises
    ------
    ValueError
        Another text.
    """
    if text is None or not text.strip():
        return None
    found = re.fullmatch(_DATE, text, re.ASCII)
    dotted = re.fullmatch(_DOTTED_DATE, text, re.ASCII)
    if found is None and dotted is None:
        raise ValueError
    numbers = found.group(1, 2, 3) if found else dotted.group(3, 2, 1) if dotted else ()
    return datetime.date(*map(int, numbers))


def _converted(column: Any, convert: Callable[[Any], Any], kind: Any) -> Any:
    """Return a column with each of its different values converted once."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = []
    for chunk in column.chunks:
        values = pa.array([convert(value) for value in chunk.dictionary.to_pylist()], kind)
        chunks.append(values.take(chunk.indices))
    return pa.chunked_array(chunks, type=kind)


def refuse_twice(names: Iterable[str], where: str) -> None:
    """Raise :class:`DataError` where two columns have one name; names it."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}: two columns are named '{twice[0]}'")
