"""Tables that commands write: texts of other parties are no formulas, numbers are numbers."""

from __future__ import annotations

import csv
import datetime as dt
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.secureboost.model import ActivePart
from hedgerow.boosting.strategies.secureboost.predictions import predictions
from hedgerow.boosting.tables.spreadsheet import shown, write_rows, write_table

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
PLAIN = ["", "a", "a=b", "-1", "+3.5e-7", "-.5", "0", "it's", " =1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_begins_like_a_formula_is_marked(text: str) -> None:
    assert shown(text) == f"'{text}"


@pytest.mark.parametrize("cell", [*PLAIN, -1.5, -3, None, True])
def test_numbers_and_other_texts_stay_as_they_are(cell: object) -> None:
    assert shown(cell) == cell


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_no_cell_of_a_file_begins_like_a_formula(texts: list[str]) -> None:
    table = pa.table(
        {"n": np.arange(len(texts)) - 1.5, "t": texts, "d": pa.array(texts).dictionary_encode()}
        | {str(kind): pa.array(texts).cast(kind) for kind in (pa.large_string(), pa.binary())}
        | {"dl": pa.array(texts).cast(pa.large_string()).dictionary_encode()}
    )
    by_rows = write_rows(
        ["n", "=t"], zip((np.arange(len(texts)) - 1.5).tolist(), texts, strict=True)
    )
    for data in (by_rows, write_table(table)):
        for row in csv.reader(io.StringIO(data.decode(), newline="")):
            for cell in row:
                assert shown(cell) == cell


def test_a_written_table_is_read_back() -> None:
    table = pa.table({"x": [-1.5, 2.0, None], "t": ["-12", "plain", None]})
    assert arrow_csv.read_csv(io.BytesIO(write_table(table))).to_pydict() == {
        "x": [-1.5, 2.0, None],
        "t": ["-12", "plain", ""],
    }


def test_durations_are_seconds_and_a_list_is_refused_by_name() -> None:
    waits = [dt.timedelta(seconds=1.5), None, dt.timedelta(days=-1)]
    for unit in ("ms", "us", "ns"):
        data = write_table(pa.table({"wait": pa.array(waits, pa.duration(unit)), "n": [1, 2, 3]}))
        assert arrow_csv.read_csv(io.BytesIO(data))["wait"].to_pylist() == [1.5, None, -86400.0]
    with pytest.raises(DataError, match="column 'many' has type list"):
        write_table(pa.table({"n": [1], "many": [[1, 2]]}))
    with pytest.raises(DataError, match="column 'raw' has type binary"):
        write_table(pa.table({"raw": [b"\xff"]}))


def test_a_class_name_that_is_a_formula_reaches_no_table() -> None:
    part = ActivePart(
        "guest", ["guest"], "m", "binary:logistic", "binary:logistic", Task.BINARY.value, 1, 0.0,
        [], {}, "label", ["=cmd|' /C calc'!A0", "@b"],
    )  # fmt: skip
    ids = np.array(["=1", "-2"], dtype=object)
    table = predictions(part, ids, np.arange(2), np.array([[-1.0], [1.0]], np.float32))
    rows = list(csv.reader(io.StringIO(table.decode())))
    assert [row[:2] for row in rows[1:]] == [["'=1", "'=cmd|' /C calc'!A0"], ["-2", "'@b"]]
