"""CSV files of other countries and programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import RECOGNISED, read_table
from hedgerow.boosting.tables.delimited import Dialect

ROWS = {"a": [1.5, 2.0], "b": ["x", "y"]}


def read(folder: Path, text: str | bytes, dialect: Dialect = RECOGNISED) -> dict[str, list[object]]:
    path = folder / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found: dict[str, list[object]] = read_table(str(path), dialect=dialect).to_pydict()
    return found


@pytest.mark.parametrize(
    "text",
    ["a,b\n1.5,x\n2.0,y\n", "a;b\n1,5;x\n2,0;y\n", "a\tb\n1,5\tx\n2,0\ty\n", "a|b\n1.5|x\n2.0|y\n"],
)
def test_delimiter_and_decimal_comma_are_recognised(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ROWS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, "é;b\nzürich;1\n".encode(encoding)) == {"é": ["zürich"], "b": [1]}


def test_quotes_keep_delimiters_and_line_ends(tmp_path: Path) -> None:
    text = '"a;b",c\n"x;\ny",1\n'
    assert read(tmp_path, text) == {"a;b": ["x;\ny"], "c": [1]}


def test_a_dialect_may_be_given(tmp_path: Path) -> None:
    assert read(tmp_path, "a:b\n1,5:x\n2:y\n", Dialect(":", ",")) == ROWS
    text = read(tmp_path, "a;b\n1,5;x\n", Dialect(decimal="."))
    assert text == {"a": ["1,5"], "b": ["x"]}
    with pytest.raises(DataError, match="two different characters"):
        Dialect(",", ",")


def test_one_column_under_another_delimiter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv: one column under a header with another"):
        read(tmp_path, "a;b\n1;x\n", Dialect(","))
    with pytest.raises(DataError, match=r"t\.csv: one column under a header with another"):
        read(tmp_path, "a;b\n1,5;x\n", Dialect(","))
