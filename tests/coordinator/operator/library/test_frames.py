"""Tables of any library go in; tables that any library reads come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import read_table, to_dataset
from hedgerow.coordinator.operator.library.frames import Frame, arrow_of, as_file, read
from tests.coordinator.operator.library.tables import people
from tests.late import Late

pd: Any = Late("pandas")
pl: Any = Late("polars")

COLUMNS = people(40, 0)


def in_runs(table: Any) -> Any:
    return pa.table({name: pc.run_end_encode(table[name]) for name in table.column_names})


def in_views(table: Any) -> Any:
    views = table["site"].cast(pa.string_view()).combine_chunks()
    words = views.unique()
    codes = pc.index_in(table["site"], table["site"].unique()).combine_chunks()
    return table.set_column(
        table.column_names.index("site"), "site", pa.DictionaryArray.from_arrays(codes, words)
    )


@pytest.mark.parametrize(
    "made",
    [
        lambda: pd.DataFrame(COLUMNS),
        lambda: pd.DataFrame(COLUMNS).astype({"site": "category"}).set_index(np.arange(40) * 2),
        lambda: pl.DataFrame(COLUMNS),
        lambda: pl.DataFrame(COLUMNS).with_columns(pl.col("site").cast(pl.Categorical)),
        lambda: pd.DataFrame(COLUMNS).astype({"age": pd.SparseDtype("float64", 0.0)}),
        lambda: pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
        lambda: in_runs(pa.table(COLUMNS)),
        lambda: in_views(pa.table(COLUMNS)),
        lambda: pa.table(COLUMNS),
        lambda: pa.table(COLUMNS).to_batches()[0],
        lambda: COLUMNS,
        lambda: Frame(COLUMNS),
    ],
    ids=["pandas", "pandas-category", "polars", "polars-category", "sparse", "pandas-arrow", "runs",
         "views", "arrow", "batch", "columns", "frame"],
)  # fmt: skip
@pytest.mark.parametrize("is_written", [False, True])
def test_every_library_gives_the_same_rows(
    made: Callable[[], object], is_written: bool, tmp_path: Path
) -> None:
    expected = to_dataset(pa.table(COLUMNS), "t", task=Task.BINARY, label="label")
    table = read_table(as_file(made(), tmp_path, "t")) if is_written else arrow_of(made(), "t")
    found = to_dataset(table, "t", task=Task.BINARY, label="label")
    assert found.schema == expected.schema
    np.testing.assert_array_equal(found.X, expected.X)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_what_is_no_table_is_refused_without_a_value() -> None:
    with pytest.raises(DataError, match=r"north: expected a path or a table .* received list"):
        arrow_of([1, 2], "north")
    mixed = pd.DataFrame({"x": ["secret", 1]})
    with pytest.raises(DataError, match="north: column 'x' cannot be read as Arrow") as refused:
        arrow_of(mixed, "north")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": [1], "x": [10**30]}, "column 'x' cannot be read as Arrow"),
        ({"a": [1], "x": ["s", 1]}, "column 'x' cannot be read as Arrow"),
        (pd.DataFrame({"a": [1], "x": [10**30]}), "column 'x' cannot be read as Arrow"),
        (pd.DataFrame({"a": [1.0], "x": [1j]}), "column 'x' cannot be read as Arrow"),
        ({"a": [1], "b": [1, 2]}, "are all of one length"),
        ({"a": 1.0, "b": [2]}, "column 'a': expected a sequence of values, received float"),
        ({"a": [1], "b": None}, "column 'b': expected a sequence of values, received NoneType"),
        ({"a": pd.DataFrame({"x": [1]})}, "column 'a': expected a sequence .* a table, DataFrame"),
        ({"a": pa.table({"x": [1]})}, "column 'a': expected a sequence of values, .* Table"),
        ({1: [1, 2]}, "expected columns by name, a text, received 1"),
        (pd.Series([1]), "expected a path or a table .* received Series"),
        (pl.Series([1]), "expected a path or a table .* received Series"),
        (pl.LazyFrame({"a": [1]}), "received LazyFrame; collect it first"),
        (pl.DataFrame({"x": [1]}, schema={"x": pl.Int128}), "column 'x' cannot be read as Arrow"),
        (pa.table({"a": [1], "x": pa.RunEndEncodedArray.from_arrays(
            [1], pa.array(["s"]).dictionary_encode())}), "column 'x' cannot be read as Arrow"),
    ],
)  # fmt: skip
def test_the_column_that_no_library_reads_is_named(table: object, said: str) -> None:
    with pytest.raises(DataError, match=f"north: .*{said}"):
        arrow_of(table, "north")


def test_what_parquet_does_not_hold_is_refused_in_a_line(tmp_path: Path) -> None:
    interval = pa.array([pa.MonthDayNano([1, 2, 3])])
    with pytest.raises(DataError, match=r"north: it cannot be written as Parquet: .*interval"):
        as_file({"x": interval}, tmp_path, "north")


def test_a_frame_in_memory_becomes_a_file_that_only_this_user_reads(tmp_path: Path) -> None:
    path = as_file(pd.DataFrame(COLUMNS), tmp_path, "north")
    assert Path(path).stat().st_mode & 0o077 == 0
    again, where = read(path, "north")
    assert where == "north.parquet"
    assert again.column("age").to_pylist() == COLUMNS["age"].tolist()
    assert as_file(path, tmp_path, "other") == path


def test_a_result_is_a_frame_for_everybody() -> None:
    frame = Frame({"round": [0, 1], "test.auc": [0.5, None]}, "scores <b>")
    assert frame.to_pandas()["round"].tolist() == [0, 1]
    assert pl.DataFrame(frame).columns == ["round", "test.auc"]
    assert pa.table(frame).num_rows == len(frame) == 2
    np.testing.assert_array_equal(frame["test.auc"], [0.5, np.nan])
    np.testing.assert_array_equal(np.asarray(frame)[:, 0], [0, 1])
    shown = frame._repr_html_()
    assert "<th>test.auc</th>" in shown
    assert "scores &lt;b&gt;" in shown
    assert "30 more rows" in Frame({"x": range(50)})._repr_html_()
    assert repr(frame) == "scores <b>, 2 rows\nround  test.auc\n    0       0.5\n    1"
    assert repr(Frame({"x": range(21)})).endswith("\n19\nand 1 more rows")
    assert repr(Frame({"said": ["a\x1b[2J\nb"]})).count("\n") == 2
    assert "\x1b" not in repr(Frame({"said": ["a\x1b[2J\nb"]}))


def test_two_columns_of_one_name_are_named() -> None:
    frame = pd.DataFrame([[1.0, 2.0, 0]], columns=["a", "a", "label"])
    with pytest.raises(DataError, match="silo: two columns are named 'a'"):
        arrow_of(frame, "silo")


def test_a_column_without_a_name_is_told() -> None:
    frame = pd.DataFrame({"x": [1.0], "y": [0]}).rename(columns={"x": None})
    with pytest.raises(DataError, match="north: a column has no name: name it, or leave it out"):
        arrow_of(frame, "north")
