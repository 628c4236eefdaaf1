"""A table under a job's ``[columns]``: what becomes of each column, in every form of a table."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.dataset import Dataset, Task, merge, recode
from hedgerow.boosting.errors import DataError, SchemaMismatch
from hedgerow.boosting.job import ColumnRules, DatePart
from hedgerow.boosting.tables import open_table, to_dataset
from hedgerow.boosting.tables.prepared import PreparedTable
from hedgerow.coordinator.operator.library.frames import arrow_of
from tests.late import Late

pd: Any = Late("pandas")
polars: Any = Late("polars")

DAYS = [datetime.date(2024, 2, 29), None, datetime.date(1969, 12, 31), datetime.date(2023, 1, 1)]
PARTS = np.array(
    [[2024, 2, 3, 19782], [np.nan] * 4, [1969, 12, 2, -1], [2023, 1, 6, 19358]], np.float32
)
RULES = ColumnRules(dates=(("day", tuple(DatePart)),))


def dataset(table: Any, rules: ColumnRules = RULES, **changes: Any) -> Dataset:
    if isinstance(table, Mapping):
        table = pa.table(dict(table))
    given = {"task": Task.BINARY, "label": "label", **changes}
    return to_dataset(table, "t.parquet", rules=rules, **given)


def with_days(days: Any) -> pa.Table:
    return pa.table({"x": [1, 2, 3, 4], "day": days, "label": [0, 1, 0, 1]})


NOON = datetime.time(23, 59)
TIMES = [None if day is None else datetime.datetime.combine(day, NOON) for day in DAYS]
ZONED = [None if t is None else t.replace(tzinfo=datetime.UTC) for t in TIMES]


@pytest.mark.parametrize(
    "days",
    [
        pa.array(DAYS, pa.date32()),
        pa.array(DAYS, pa.date64()),
        pa.array(TIMES, pa.timestamp("s")),
        pa.array(TIMES, pa.timestamp("ns")),
        pa.array(ZONED, pa.timestamp("us", "UTC")),
        pa.array(DAYS, pa.date32()).dictionary_encode(),
        ["2024-02-29", None, "1969-12-31", "2023-01-01"],
        ["2024-02-29 10:00", "", "1969-12-31T09:00:00Z", "2023-1-1"],
        ["29.2.2024", "  ", "31.12.1969", "01.01.2023 12:00"],
        pa.array(["2024/02/29", None, "1969/12/31", "2023/01/01"]).dictionary_encode(),
    ],
    ids=str,
)
def test_dates_of_every_kind_become_the_numbers_of_their_parts(days: Any, tmp_path: Path) -> None:
    table = with_days(days)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    for given in (table, open_table(str(tmp_path / "t.parquet"))):
        found = dataset(given)
        assert found.schema.names == ("x", "day_year", "day_month", "day_weekday", "day_days_since")
        assert found.sources == ("x", "day", "day", "day", "day")
        np.testing.assert_array_equal(found.X[:, 1:], PARTS)


def test_days_are_those_of_the_columns_own_time_zone() -> None:
    late = datetime.datetime(2024, 12, 31, 23, 30, tzinfo=datetime.UTC)
    days = pa.array([late] * 4, pa.timestamp("s", "Europe/Paris"))
    assert dataset(with_days(days)).X[0, 1] == 2025


def test_frames_give_the_dates_that_files_give() -> None:
    stamps = pd.Series(pd.to_datetime(["2024-02-29", None, "1969-12-31", "2023-01-01"]))
    for frame in (
        pd.DataFrame({"x": [1, 2, 3, 4], "day": stamps, "label": [0, 1, 0, 1]}),
        polars.DataFrame({"x": [1, 2, 3, 4], "day": DAYS, "label": [0, 1, 0, 1]}),
    ):
        np.testing.assert_array_equal(dataset(arrow_of(frame, "frame")).X[:, 1:], PARTS)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (["12/31/2020"] * 4, "column 'day': expected dates as YYYY-MM-DD"),
        (["2020-13-01"] * 4, "column 'day': expected dates as YYYY-MM-DD"),
        (["secret"] * 4, "column 'day': expected dates as YYYY-MM-DD"),
        ([1, 2, 3, 4], "column 'day': expected dates, received type int64"),
    ],
)
def test_what_is_no_date_is_refused_before_a_job_starts(
    days: list[Any], said: str, tmp_path: Path
) -> None:
    pq.write_table(with_days(days), tmp_path / "t.parquet")
    for table in (with_days(days), open_table(str(tmp_path / "t.parquet"))):
        with pytest.raises(DataError, match=said) as refused:
            dataset(table)
        assert "secret" not in str(refused.value)


def test_columns_of_a_wrong_type_say_what_would_help() -> None:
    with pytest.raises(DataError, match=r"type date32.*\[columns\] makes numbers of dates"):
        dataset(with_days(DAYS), ColumnRules())


def test_a_column_to_drop_that_only_some_silos_have() -> None:
    rules = ColumnRules(drop=("name", "ward"))
    table = pa.table({"ward": [1], "nama": [2], "x": [3]})
    with pytest.raises(DataError, match="there is no column 'name'; did you mean 'nama'"):
        PreparedTable(table, "t", rules, is_whole=True)  # else names would leave by a slip
    found = PreparedTable(table.drop_columns("nama"), "t", rules, is_whole=True)
    assert found.column_names == ["x"]


def test_dropped_and_renamed_columns() -> None:
    rules = ColumnRules(drop=("name",), rename=(("Age (y)", "age"), ("Sick", "label")))
    found = dataset({"name": ["a", "b"], "Age (y)": [3, 4], "Sick": [0, 1]}, rules)
    assert found.schema.names == ("age",)
    assert found.sources == ("Age (y)",)
    assert found.labels.tolist() == [0, 1]
    assert dataset({"name": ["a"], "age": [3], "label": [1]}, rules).sources == ("age",)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"nane": ["a"], "age": [3], "label": [1]}, "no column 'name'; did you mean 'nane'"),
        ({"name": ["a"], "Ages": [3], "label": [1]}, "no column 'Age'; did you mean 'Ages'"),
        ({"name": ["a"], "age": [3], "Age": [3], "label": [1]}, "two columns are named 'age'"),
    ],
)
def test_a_silos_table_has_every_column_that_the_rules_name(
    table: dict[str, Any], said: str
) -> None:
    rules = ColumnRules(drop=("name",), rename=(("Age", "age"),))
    with pytest.raises(DataError, match=said):
        dataset(table, rules)


def test_a_part_of_a_date_does_not_hide_a_column() -> None:
    table = with_days(DAYS).append_column("day_year", [[1, 2, 3, 4]])
    with pytest.raises(DataError, match="'day_year' is a column, and made of dates"):
        dataset(table)


def test_rows_to_score_need_only_what_the_model_uses() -> None:
    rules = ColumnRules(drop=("name",), rename=(("Sick", "label"),), categorical=("zip",))
    found = dataset({"x": [1], "y": [2]}, rules, label="", features=("y",), is_whole=False)
    assert found.schema.names == ("y",)


@pytest.mark.parametrize(
    "codes",
    [
        pa.array([7, None, 12], pa.int8()),
        pa.array([7.0, float("nan"), 12.0]),
        pa.array([decimal.Decimal("7.00"), None, decimal.Decimal(12)]),
        ["007", None, "12"],
        pa.array(["7", None, "12.0"]).dictionary_encode(),
        pa.array([7, None, 12]).dictionary_encode(),
    ],
    ids=str,
)
def test_codes_are_the_same_categories_however_they_are_written(codes: Any, tmp_path: Path) -> None:
    table = pa.table({"zip": codes, "label": [0, 1, 0]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    for given in (table, open_table(str(tmp_path / "t.parquet"))):
        found = dataset(given, ColumnRules(categorical=("zip",)))
        assert found.schema.features[0].categories == ("12", "7")
        np.testing.assert_array_equal(found.X[:, 0], [1, np.nan, 0])
        texts = pa.types.is_string(pa.array(codes).type) or "string" in str(pa.array(codes).type)
        assert found.named == (() if texts else ("zip",))


def test_truth_values_and_parts_of_dates_can_be_categories() -> None:
    rules = ColumnRules(dates=(("day", (DatePart.MONTH,)),), categorical=("day_month", "flag"))
    table = with_days(DAYS).append_column("flag", [[True, False, None, True]])
    found = dataset(table, rules)
    assert [feature.categories for feature in found.schema.features] == [
        None, ("1", "12", "2"), ("false", "true"),
    ]  # fmt: skip
    assert found.named == ("day", "flag")


@pytest.mark.parametrize(
    ("column", "said"),
    [([0.5, 1.0], "received numbers that are not whole"), (DAYS[:2], "received type date32")],
)
def test_other_values_are_no_categories(column: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        dataset({"x": column, "label": [0, 1]}, ColumnRules(categorical=("x",)))


@pytest.mark.parametrize(
    ("labels", "positive", "other"),
    [
        (["yes", "no", "no"], "no", "yes"),
        (["yes", "no", "no"], "yes", "no"),
        ([1, 0, 0], "0", "1"),
        ([2.0, 4.0, 4.0], "4", "2"),
        ([True, False, False], "false", "true"),
    ],
)
def test_the_positive_class_is_the_last_one(labels: list[Any], positive: str, other: str) -> None:
    rules = ColumnRules(positive=positive)
    found = dataset({"x": [1, 2, 3], "label": labels}, rules)
    assert found.schema.classes == (other, positive)
    part = dataset({"x": [1], "label": labels[:1]}, rules)
    agreed = merge({"a": part.schema, "b": found.schema}, (), positive)
    assert agreed.classes == (other, positive)
    np.testing.assert_array_equal(recode(found, agreed).labels, found.labels)
    np.testing.assert_array_equal(recode(part, agreed).labels, found.labels[:1])


def test_a_positive_class_that_no_silo_has_is_an_error() -> None:
    rules = ColumnRules(positive="ja")
    with pytest.raises(DataError, match="'ja', the positive class, is none of its two"):
        dataset({"x": [1, 2], "label": ["yes", "no"]}, rules)
    schemas = {name: dataset({"x": [1], "label": [name]}, rules).schema for name in ("yes", "no")}
    with pytest.raises(SchemaMismatch, match="'ja' is no class of label 'label', which has 'no'"):
        merge(schemas, (), "ja")


def test_values_of_a_column_that_becomes_several_features_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    days = [datetime.date(2020, 1, 1), None, None]
    pq.write_table(pa.table({"day": days, "x": [1.0, None, None]}), path)
    for parts, stored in ((tuple(DatePart), None), ((DatePart.MONTH,), 2)):
        rules = ColumnRules(dates=(("day", parts),))
        assert PreparedTable(open_table(str(path)), "t", rules, is_whole=True).n_stored == stored


def test_of_two_whole_numbers_the_job_says_which_is_positive():
    for positive, expected in (("2", [0, 1, 0]), ("1", [1, 0, 1])):
        rules = ColumnRules(positive=positive)
        table = pa.table({"x": [1.0] * 3, "label": [1, 2, 1]})
        data = to_dataset(table, "t", task=Task.BINARY, label="label", rules=rules)
        np.testing.assert_array_equal(data.labels, expected)
        assert data.schema.classes[-1] == positive
