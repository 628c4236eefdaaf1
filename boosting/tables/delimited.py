"""CSV files as people have them: delimiter, decimal sign and encoding recognised or given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hedgerow.boosting.errors import DataError

_DELIMITERS = ",;\t|"
_DECIMAL_COMMA = r"^\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*$"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written; what is empty is recognised.

    Parameters
    ----------
    delimiter : str
        One character between columns: the commonest of comma, semicolon, tab and bar in the header.
    decimal : str
        ``.`` or ``,``: a comma where columns are divided otherwise and numbers have one.
    """

    delimiter: str = ""
    decimal: str = ""

    def __post_init__(self) -> None:
        if len(self.delimiter.encode()) > 1 or self.decimal not in ("", ".", ","):
            raise DataError("delimiter: expected one character of ASCII; decimal: '.' or ','")
        if self.delimiter and self.delimiter == self.decimal:
            raise DataError("delimiter and decimal: expected two different characters")


def read_csv(data: bytes, name: str, dialect: Dialect) -> Any:
    """Return a CSV file's bytes as a ``pyarrow.Table``.

    UTF-8 is expected, UTF-16 recognised by its mark, and what is neither is read as Windows-1252.

    Raises
    ------
    DataError
        Empty, rows of unequal length, or one column whose header has another delimiter.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    data = _as_utf8(data)
    if not data.strip():
        raise DataError(f"{name}: expected a header, the file is empty")
    header = re.sub(r'"[^"]*"', "", data.split(b"\n", 1)[0].decode())
    delimiter = dialect.delimiter or max(_DELIMITERS, key=header.count)
    if delimiter not in header and any(mark in header for mark in _DELIMITERS):
        raise DataError(
            f"{name}: one column under a header with another delimiter than {delimiter!r}; "
            "set delimiter"
        )
    table = _parsed(data, name, delimiter, dialect.decimal or ".")
    if dialect.decimal or delimiter == ",":
        return table
    for column in table.columns:
        text = pa.types.is_string(column.type) and column.null_count < len(column)
        if text and pc.all(pc.match_substring_regex(column, _DECIMAL_COMMA)).as_py():
            return _parsed(data, name, delimiter, ",")
    return table


def _as_utf8(data: bytes) -> bytes:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace").encode()
    try:
        return data.decode("utf-8-sig").encode() if data[:3] == b"\xef\xbb\xbf" else _checked(data)
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace").encode()


def _checked(data: bytes) -> bytes:
    data.decode()
    return data


def _parsed(data: bytes, name: str, delimiter: str, decimal: str) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    def parse(block_size: int) -> Any:
        return csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(block_size=block_size),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in data),
            convert_options=csv.ConvertOptions(strings_can_be_null=True, decimal_point=decimal),
        )

    try:
        try:
            return parse(1 << 20)
        except pa.ArrowInvalid:
            # A column's type is guessed from the first block: guess from the whole file.
            return parse(min(len(data) + 1, (1 << 31) - 1))
    except pa.ArrowException as error:
        # The text of the error quotes the row.
        counts = re.search(r"Expected (\d+) columns, got (\d+)", str(error))
        why = f": a row has {counts[2]} columns, the header {counts[1]}" if counts else ""
        raise DataError(f"{name} is not a CSV file{why}") from error
