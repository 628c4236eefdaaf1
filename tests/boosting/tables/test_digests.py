"""Digests by which a table is known again."""

from __future__ import annotations

import datetime
import decimal
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import open_table
from hedgerow.boosting.tables.digests import KEY, RowsDigest, check_known

TABLE = pa.table(
    {
        "x": pa.array([1.5, None, -0.25, 3.0]),
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "t": pa.array(["a", "b", None, "a"]),
        "b": pa.array([True, False, None, True]),
        "d": pa.array([datetime.date(2020, 1, k) for k in range(1, 5)]),
        "m": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("2.00"), None]),
        "c": pa.array(["p", "q", "p", None]).dictionary_encode(),
        "l": pa.array([[1.0, None], [None, 1.0], None, []]),
        "f": pa.array([[1, 2], [2, 1], None, [3, 4]], pa.list_(pa.int8(), 2)),
        "s": pa.array([{"u": 1, "v": "a"}, {"u": 2, "v": None}, None, {"u": 1, "v": "b"}]),
        "k": pa.array([[("a", 1)], [("b", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "o": pa.array([b"\xff", b"text", None, b""], pa.binary()),
        "w": pa.array([b"\xff" * 16, b"b" * 16, None, None], pa.uuid()),
    }
)

OF_0_2 = "9d28368e988c5a1671d3ce460bfdee17162fc91df669138046338bfb0f0623e1"
"""What release 0.2 noted of the first columns."""


def digest(*parts: pa.Table) -> str:
    found = RowsDigest()
    for part in parts:
        found.add(part)
    return found.hexdigest()


def test_rows_have_one_digest_in_any_order_and_in_any_parts() -> None:
    whole = digest(TABLE)
    assert digest(TABLE.take([2, 0, 3, 1])) == whole
    assert digest(TABLE.slice(0, 1), TABLE.slice(1)) == whole
    assert digest(TABLE.slice(3), *TABLE.slice(0, 3).to_batches()) == whole
    assert digest(TABLE.slice(0, 0), TABLE) == whole


def test_the_order_of_rows_can_be_told_apart() -> None:
    found, turned, parts = RowsDigest(), RowsDigest(), RowsDigest()
    found.add(TABLE)
    turned.add(TABLE.take([1, 0, 2, 3]))
    parts.add(TABLE.slice(0, 3))
    parts.add(TABLE.slice(3))
    assert found.order == parts.order
    assert found.order != turned.order
    known = found.hexdigest()
    check_known(known, known + found.order)
    check_known(known + found.order, known)
    with pytest.raises(DataError, match="another order"):
        check_known(known + found.order, known + turned.order)


def test_digests_of_earlier_releases_still_hold() -> None:
    assert digest(TABLE.select(["x", "n", "t", "b", "d", "m", "c"])) == OF_0_2


@pytest.mark.parametrize("column", range(TABLE.num_columns))
def test_a_value_a_row_or_a_name_changes_the_digest(column: int) -> None:
    whole, name = digest(TABLE), TABLE.column_names[column]
    swapped = TABLE.set_column(column, name, TABLE.column(column).take([1, 0, 2, 3]))
    assert digest(swapped) != whole, "values went to other rows"
    gone = pa.array([None] * 4, TABLE.schema.field(column).type)
    assert digest(TABLE.set_column(column, name, gone)) != whole
    assert digest(TABLE.rename_columns([*TABLE.column_names[:column], "z",
                                        *TABLE.column_names[column + 1:]])) != whole  # fmt: skip
    assert digest(TABLE.slice(1)) != whole
    assert digest(TABLE, TABLE.slice(3)) != whole


def test_files_are_known_again(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rng = np.random.default_rng(1)
    pq.write_table(pa.table({"x": rng.normal(size=50)}), path)
    first, times = open_table(str(path)).digest, os.stat(path)
    assert open_table(str(path)).digest == first
    pq.write_table(pa.table({"x": rng.normal(size=50)}), path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert open_table(str(path)).digest != first, "its footer has other statistics"
    csv = tmp_path / "t.csv"
    csv.write_text("x,y\n1,2\n3,4\n")
    found = open_table(str(csv)).schema.metadata[KEY]
    csv.write_text("x,y\n1,2\n3,4\n")
    assert open_table(str(csv)).schema.metadata[KEY] == found, "the content is what counts"
    csv.write_text("x,y\n1,2\n3,5\n")
    assert open_table(str(csv)).schema.metadata[KEY] != found
