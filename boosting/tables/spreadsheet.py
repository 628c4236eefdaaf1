"""CSV that a spreadsheet opens as text and numbers only.

Names of columns, categories, classes and silos come from other parties. A spreadsheet runs a cell
that begins with ``=`` as a formula, also where the file has quotes around it. So texts that begin
like a formula get an apostrophe in front, which spreadsheets show as text; numbers stay as they
are, also where they are written as text.

References
----------
OWASP, CSV injection, for the characters.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hedgerow.boosting.errors import DataError

_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FORMULA = "^[=+@\t\r\n＝＋－＠-]"
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"


def shown(cell: object) -> object:
    """Return a cell as it may be in a table: a text that begins like a formula is marked."""
    if isinstance(cell, str) and re.match(_FORMULA, cell) and not re.fullmatch(_NUMBER, cell):
        return f"'{cell}"
    return cell


def write_rows(names: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return a CSV file of rows under names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([shown(name) for name in names])
    writer.writerows([shown(cell) for cell in row] for row in rows)
    return out.getvalue().encode()


def write_table(table: Any) -> bytes:
    """Return a CSV file of a pyarrow table.

    Raises
    ------
    DataError
        A column has a type for which CSV has no text, such as a list.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns.append(_writable(column))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"column '{name}' has type {column.type}, which CSV has no text for; a file whose "
                "name ends in .parquet can hold it"
            ) from None
    sink = pa.BufferOutputStream()
    arrow_csv.write_csv(pa.table(columns, [str(shown(n)) for n in table.column_names]), sink)
    return bytes(sink.getvalue().to_pybytes())


def _writable(column: Any) -> Any:
    """Return a column as CSV has it: durations in seconds, texts with marks.

    Raises
    ------
    pyarrow.ArrowException
        CSV has no text for its type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_duration(kind):
        column = pc.divide(column.cast(pa.int64()).cast(pa.float64()), _A_SECOND[kind.unit])
    views = pa.types.is_string_view(kind), pa.types.is_binary_view(kind)
    if views[1] or pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    if any(views) or pa.types.is_binary(column.type) or pa.types.is_large_binary(kind):
        column = column.cast(pa.large_string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        like = pc.match_substring_regex(column, _FORMULA)
        formula = pc.and_not(like, pc.match_substring_regex(column, _NUMBER))
        mark, nothing = (pa.scalar(text, column.type) for text in ("'", ""))
        column = pc.if_else(formula, pc.binary_join_element_wise(mark, column, nothing), column)
    arrow_csv.write_csv(pa.table({"": column.slice(0, 0)}), pa.BufferOutputStream())
    return column
