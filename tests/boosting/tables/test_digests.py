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

from hedgerow.boosting.tables import open_table
from hedgerow.boosting.tables.digests import KEY, RowsDigest

TABLE = pa.table(
    {
        "x": pa.array([1.5, None, -0.25, 3.0]),
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "t": pa.array(["a", "b", None, "a"]),
        "b": pa.array([True, False, None, True]),
        "d": pa.array([datetime.date(2020, 1, k) for k in range(1, 5)]),
        "m": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("2.00"), None]),
        "c": pa.array(["p", "q", "p", None]).dictionary_encode(),
    }
)


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
