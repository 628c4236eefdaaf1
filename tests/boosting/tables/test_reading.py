import bz2
import decimal
import gzip
import io
import lzma
from dataclasses import replace
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hedgerow.boosting.dataset import Feature, Task, recode
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.job import ColumnRules, DatePart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.tables import for_job, open_table, read_table, to_dataset
from hedgerow.boosting.tables.delimited import Dialect
from hedgerow.boosting.tables.parquet import ParquetTable
from tests.late import Late

datasets: Any = Late("sklearn.datasets")


def write(path, content):
    path.write_bytes(content)
    return str(path)


def dataset(table, task=Task.BINARY, label="label", **changes):
    if isinstance(table, dict):
        table = pa.table(table)
    return to_dataset(table, "t.parquet", task=task, label=label, **changes)


def test_features_are_the_columns_that_are_neither_metadata_nor_labels():
    data = dataset(
        {
            "b": [1, 2],
            "_silo": ["x", "y"],
            "label": [0, 1],
            "label_other": [5, 6],
            "a": [0.5, None],
            "_id": [7, 8],
        }
    )
    assert data.schema.names == ("b", "a")
    assert data.X.dtype == np.float32
    assert data.X.flags.c_contiguous
    assert data.y.tolist() == [0.0, 1.0]
    assert np.isnan(data.X[1, 1])
    assert data.ids is None


def test_another_label_leaves_the_usual_one_out_of_the_features():
    columns = {"x": [1.0], "label": [1], "label_delay": [3.5]}
    data = dataset(columns, Task.REGRESSION, "label_delay")
    assert data.schema.names == ("x",)
    assert data.y.tolist() == [3.5]
    assert dataset({"x": [1.0], "price": [3.5]}, Task.REGRESSION, "price").schema.names == ("x",)


def test_the_job_can_choose_features_and_their_order():
    columns = {"a": [1], "b": [2], "c": [3], "label": [0]}
    assert dataset(columns, features=("c", "a")).X.tolist() == [[3.0, 1.0]]
    with pytest.raises(DataError, match="no feature 'colour'; did you mean 'colour_'"):
        dataset({"colour_": [1], "label": [0]}, features=("colour",))
    with pytest.raises(DataError, match="both a feature and the label"):
        dataset(columns, features=("a", "label"))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([True, None, False]), [1, np.nan, 0]),
        (pa.array([1, None, 3], pa.int8()), [1, np.nan, 3]),
        (pa.array([1, None, 2**40], pa.int64()), [1, np.nan, 2**40]),
        (pa.array([1.5, np.nan, None], pa.float32()), [1.5, np.nan, np.nan]),
        (pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(2)]), [1.25, np.nan, 2]),
        (pa.array([7.0, None, 7.0]).dictionary_encode(), [7, np.nan, 7]),
        (pa.nulls(3), [np.nan] * 3),
    ],
)
def test_numbers_of_every_type_are_read_and_null_is_missing(column, expected):
    data = dataset({"x": column, "label": [0, 1, 0]})
    np.testing.assert_array_equal(data.X[:, 0], np.array(expected, np.float32))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), "str")])
def test_text_is_categorical_by_the_sorted_list_of_what_occurs(kind):
    chunks = [pa.array(["z", None, "a"]), pa.array(["m", "a", ""])]
    column = pa.chunked_array(chunks).cast(kind)
    data = dataset({"x": column, "label": [0] * 6})
    assert data.schema.features[0].categories == ("", "a", "m", "z")
    np.testing.assert_array_equal(data.X[:, 0], np.array([3, np.nan, 1, 2, 1, 0], np.float32))
    part = dataset(pa.table({"x": column, "label": [0] * 6}).slice(2, 1))
    assert part.schema.features[0].categories == ("a",)


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.string(), pa.float64(), pa.int64(), pa.bool_(), pa.decimal128(5, 2)]
    + [pa.dictionary(pa.int8(), own) for own in (pa.string(), pa.int64(), pa.float64())],
)
def test_columns_without_any_value_are_numbers_or_text_as_others_have_it(tmp_path, kind):
    table = pa.table({"x": pa.nulls(2).cast(kind), "label": [0, 1]})
    pq.write_table(table, tmp_path / "t.parquet")
    for own in (table, ParquetTable(str(tmp_path / "t.parquet"), "t.parquet")):
        data = dataset(own)
        assert data.schema.features[0].categories == ()
        assert np.isnan(data.X).all()
        for theirs in (None, ("a", "b")):
            assert np.isnan(
                recode(data, replace(data.schema, features=(Feature("x", theirs),))).X
            ).all()


def test_a_column_of_nan_has_no_value_unless_the_job_has_its_range():
    table = pa.table({"x": [float("nan"), None], "label": [0, 1]})
    assert dataset(table).schema.features[0].categories == ()
    ranged = ColumnRules(ranges=(("x", (0.0, 1.0)),))
    assert dataset(table, rules=ranged).schema.features[0].categories is None


def test_any_values_score_under_a_model_whose_silos_had_none():
    schema = dataset({"x": pa.nulls(2), "label": [0, 1]}).schema
    for values in ([1.0, 2.0], ["a", None]):
        assert recode(dataset({"x": values, "label": [0, 1]}), schema).n_samples == 2


def test_no_rows_are_legal():
    table = pa.table({"x": [1.0], "s": ["a"], "label": [1]}).slice(0, 0)
    for task in Task:
        key = {Task.SURVIVAL: "label_upper", Task.RANKING: "qid"}.get(task)
        told = table.append_column("end", pa.array([], pa.float64())) if key else table
        rules = ColumnRules(**({key: "end"} if key else {}))
        data = dataset(told, task, rules=rules)
        assert data.is_empty
        assert data.X.shape == (0, 2)
        assert data.y.shape == ((0, 2) if key else (0,))
    assert dataset(table, Task.MULTICLASS).schema.n_classes == 0


def test_binary_labels_may_be_zero_one_minus_one_one_truth_values_or_two_texts():
    for labels in ([0, 1, 1], [-1, 1, 1], [False, True, True], [0.0, 1.0, 1.0]):
        assert dataset({"x": [1, 2, 3], "label": labels}).y.tolist() == [0, 1, 1]
    assert dataset({"x": [1, 2], "label": [-1, 1]}).schema.classes == ("-1", "1")
    assert dataset({"x": [1, 2], "label": [False, True]}).schema.classes == ("false", "true")
    assert dataset({"x": [1, 2], "label": [1, 1]}).schema.classes == ()
    text = dataset({"x": [1, 2, 3], "label": ["no", "yes", "yes"]})
    assert text.y.tolist() == [0, 1, 1]
    assert text.schema.classes == ("no", "yes")


@pytest.mark.parametrize("only", [0, 1, -1])
def test_a_single_class_is_legal(only):
    data = dataset({"x": [1, 2], "label": [only, only]})
    assert data.y.tolist() == [max(only, 0)] * 2
    assert data.schema.n_classes == 2


def test_multiclass_labels_are_numbers_from_zero_or_texts():
    columns = {"x": [1, 2, 3]}
    assert dataset(columns | {"label": [0, 3, 1]}, Task.MULTICLASS).schema.n_classes == 4
    one = dataset(columns | {"label": [10, 2, 1]}, Task.MULTICLASS)
    assert (one.schema.classes, one.y.tolist()) == (("1", "10", "2"), [1, 2, 0])
    some = dataset(columns | {"label": [1, 2, 2]}, Task.MULTICLASS, classes=3)
    assert (some.schema.classes, some.schema.n_classes) == ((), 3)
    fixed = dataset(columns | {"label": [0, 3, 1]}, Task.MULTICLASS, classes=6)
    assert fixed.schema.n_classes == 6
    text = dataset(columns | {"label": ["b", "a", "b"]}, Task.MULTICLASS)
    assert (text.y.tolist(), text.schema.classes) == ([1, 0, 1], ("a", "b"))


@pytest.mark.parametrize("gap", [None, np.nan])
def test_rows_without_a_label_are_left_out_where_the_job_says_so(gap):
    columns = {
        "x": [1.0, 2.0, 3.0, 4.0], "c": ["a", "b", "a", "b"], "w": [1.0, None, 3.0, None],
        "_id": ["p", "q", "r", "s"], "label": pa.array([0.0, gap, 1.0, gap], from_pandas=False),
    }  # fmt: skip
    found = dataset(columns, weight="w", with_ids=True, rules=ColumnRules(missing_label="drop"))
    assert found.X.tolist() == [[1.0, 0.0], [3.0, 0.0]]
    assert found.schema.features[1].categories == ("a",), "of rows left out nothing is told"
    assert (found.y.tolist(), found.weight.tolist()) == ([0.0, 1.0], [1.0, 3.0])
    assert (found.ids.tolist(), found.unlabelled) == (["p", "r"], 2)
    assert found.sources == ("x", "c", "w")


def test_a_number_that_stands_for_a_missing_value_is_none_in_columns_of_numbers_only(tmp_path):
    days = pa.array([-999, 1, None], pa.int32()).cast(pa.date32())
    columns = pa.table({
        "x": [-999.0, 1.5, None], "n": [3, -999, -999], "c": ["-999", "a", "a"],
        "k": [-999, 7, 7], "d": days, "label": [-999.0, 1.0, 2.0],
    })  # fmt: skip
    rules = ColumnRules(
        dates=(("d", (DatePart.DAYS_SINCE,)),), categorical=("k",), missing=-999.0
    )  # fmt: skip
    pq.write_table(columns, tmp_path / "t.parquet")
    for table in (columns, open_table(str(tmp_path / "t.parquet"))):
        found = to_dataset(table, "t", task=Task.REGRESSION, label="label", rules=rules)
        x, n, c, k, d = found.X.T.tolist()
        assert np.isnan([x[0], x[2], n[1], n[2], d[2]]).all()
        assert (x[1], n[0], d[:2], found.y.tolist()) == (1.5, 3, [-999, 1], [-999, 1, 2])
        assert [f.categories for f in found.schema.features if f.is_categorical] == [
            ("-999", "a"), ("-999", "7"),
        ]  # fmt: skip
        assert (c, k) == ([0, 1, 1], [0, 1, 1])


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ([1.0, -1.0, 2.0], "expected weights from 0, not all of them 0"),
        ([0.0, 0.0, 0.0], "expected weights from 0, not all of them 0"),
        ([1.0, None, 2.0], "some are missing, infinite or beyond float32"),
        ([1.0, np.inf, 2.0], "some are missing, infinite or beyond float32"),
        ([1.0, np.nan, 2.0], "some are missing, infinite or beyond float32"),
        ([1.0, 2.0**65, 2.0], r"the largest between 2\^-64 and 2\^64"),
        ([0.0, 2.0**-65, 0.0], r"the largest between 2\^-64 and 2\^64"),
        (["1", "2", "3"], "expected numbers, received type string"),
    ],
)
def test_weights_that_are_none_are_named_by_table_and_column(weight, said):
    columns = {"x": [1.0, 2.0, 3.0], "w": weight, "label": [0, 1, 1]}
    job = JobParameters("t", Bagging(), columns=ColumnRules(weight="w"))
    with pytest.raises(DataError, match=said) as refused:
        for_job(pa.table(columns), job, "people.csv")
    assert str(refused.value).startswith("people.csv: weight column 'w'")
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match=r"people.csv: there is no weight column 'w'"):
        for_job(pa.table({**columns, "w": weight}).drop(["w"]), job, "people.csv")


def test_a_column_of_weights_is_no_feature_and_may_be_renamed():
    table = pa.table({"x": [1.0, 2.0], "Weight": [0, 3], "label": [0, 1]})
    rules = ColumnRules(weight="w", rename=(("Weight", "w"),))
    found = for_job(table, JobParameters("t", Bagging(), columns=rules), "t")
    assert (found.schema.names, found.weight.tolist()) == (("x",), [0.0, 3.0])
    assert found.sources == ("x", "Weight"), "a policy knows columns by the table's own names"
    empty = for_job(table.slice(0, 0), JobParameters("t", Bagging(), columns=rules), "t")
    assert empty.weight.tolist() == []


def test_a_pandas_category_of_whole_numbers_is_a_category():
    ward = pa.array([30, 7, 30]).dictionary_encode()
    table = {"ward": ward, "flag": pa.array([True, False, True]).dictionary_encode()}
    found = dataset(table | {"label": pa.array([1, 0, 1]).dictionary_encode()})
    assert found.schema.features == (
        Feature("ward", ("30", "7")), Feature("flag", ("false", "true"))
    )  # fmt: skip
    assert (found.X[:, 0].tolist(), found.y.tolist()) == ([0.0, 1.0, 0.0], [1.0, 0.0, 1.0])
    assert found.named == ("ward", "flag"), "a policy tells whether the numbers may leave"
    assert found.schema.classes == ()


@pytest.mark.parametrize(
    ("labels", "task", "changes", "message"),
    [
        ([0, 2, 1], Task.BINARY, {}, "some labels are neither 0 nor 1"),
        ([1, 2, 1], Task.BINARY, {}, r"of two other whole numbers \[columns\] positive says which"),
        ([0, -1, 1], Task.BINARY, {}, "some labels are neither 0 nor 1"),
        ([0, None, 1], Task.BINARY, {}, "some labels are missing; rows without one are left out"),
        ([0.0, np.nan, 1.0], Task.REGRESSION, {}, "some labels are missing; rows without one"),
        ([0.0, np.nan, np.inf], Task.REGRESSION, {}, "some labels are infinite"),
        (["a", "b", "c"], Task.BINARY, {}, "expected two classes for a binary job, received 3"),
        (["a", None, "c"], Task.BINARY, {}, "some labels are missing"),
        (["a", "b", "c"], Task.REGRESSION, {}, "expected numbers for a regression, received text"),
        ([0, 1.5, -1], Task.MULTICLASS, {}, "some labels are not class numbers from 0"),
        ([0, 1, 5], Task.MULTICLASS, {"classes": 5}, "some labels are not class numbers below 5"),
        (
            ["a", "b", "c"],
            Task.MULTICLASS,
            {"classes": 2},
            "expected at most 2 classes, received 3",
        ),
        ([0, 1, -2], Task.REGRESSION, {"objective": "reg:tweedie"}, "some labels are negative"),
        ([0, 1, 2], Task.REGRESSION, {"objective": "reg:gamma"}, "some labels are not positive"),
        ([0, 1, 2], Task.REGRESSION, {"objective": "reg:logistic"}, "outside 0 to 1"),
    ],
)
def test_labels_out_of_range_are_counted_and_never_quoted(labels, task, changes, message):
    with pytest.raises(DataError, match=message) as caught:
        dataset({"x": [1, 2, 3], "label": labels}, task, **changes)
    assert str(caught.value).startswith("t.parquet: label column 'label'")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": [1], "Label": [0]}, "no label column 'label'; did you mean 'Label'"),
        ({"x": [1]}, "there is no label column 'label'$"),
        ({"when": pa.array([0], pa.timestamp("s")), "label": [0]}, "'when' has type timestamp"),
        ({"x": [[1, 2]], "label": [0]}, "'x' has type list"),
        ({"x": [np.inf], "label": [0]}, "'x' has infinite values"),
        ({"x": [1e300], "label": [0]}, "beyond float32"),
        (
            {"x": [1], "label": pa.array([0], pa.timestamp("s"))},
            "expected numbers or text, received type timestamp",
        ),
        (
            pa.Table.from_arrays([pa.array([1])] * 3, ["x", "x", "label"]),
            "two columns are named 'x'",
        ),
    ],
)
def test_unusable_columns_are_named(table, message):
    with pytest.raises(DataError, match=message):
        dataset(table)


def test_row_ids_are_text_and_may_be_missing_or_repeated_until_they_are_aligned():
    columns = {"x": [1, 2], "label": [0, 1]}
    assert dataset(columns | {"_id": [10, 2]}, with_ids=True).ids.tolist() == ["10", "2"]
    assert dataset(columns | {"_id": ["a", None]}, with_ids=True).ids.tolist() == ["a", None]
    assert dataset(columns | {"_id": ["a", "a"]}, with_ids=True).ids.tolist() == ["a", "a"]
    with pytest.raises(DataError, match="needs a column '_id'"):
        dataset(columns, with_ids=True)


CSV = b"age,job,label\n31,clerk,1\n,cook,0\n44,NA,1\n"


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".bz2", bz2.compress),
        (".zst", lambda data: zstandard.ZstdCompressor().compress(data)),
    ],
)
def test_csv_is_read_whatever_it_is_packed_with(tmp_path, suffix, pack):
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(pack(CSV))
    data = dataset(read_table(str(path)))
    assert data.schema.features[1].categories == ("clerk", "cook")
    expected = np.array([[31, 0], [np.nan, 1], [44, np.nan]], np.float32)
    np.testing.assert_array_equal(data.X, expected)


def test_a_csv_column_that_turns_to_text_far_down_is_text(tmp_path):
    rows = "".join(f"{k % 10},{'0123456789' * 5},0\n" for k in range(40_000))
    path = tmp_path / "t.csv"
    path.write_text("x,_pad,label\n" + rows + "word,0,1\n")
    data = dataset(read_table(str(path)))
    assert data.schema.features[0].categories == (*"0123456789", "word")


def test_a_csv_with_a_header_only_is_an_empty_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,job,label\n")
    assert dataset(read_table(str(path))).is_empty


def test_an_fsspec_url_is_read():
    with fsspec.open("memory://tables/t.parquet", "wb") as file:
        file.write(parquet(pa.table({"x": [1, 2], "label": [0, 1]})))
    assert dataset(read_table("memory://tables/t.parquet")).n_samples == 2


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_libsvm_is_read_dense_as_scikit_learn_wrote_it(tmp_path, zero_based, suffix):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((40, 7)) < 0.4, rng.normal(size=(40, 7)).round(3), 0.0)
    X[0] = 1.0  # index 0 and the last index occur
    y = rng.choice([-1, 1], 40)
    out = io.BytesIO()
    datasets.dump_svmlight_file(X, y, out, zero_based=zero_based, comment="made by a test")
    path = tmp_path / f"t.libsvm{suffix}"
    path.write_bytes(lzma.compress(out.getvalue()) if suffix else out.getvalue())
    table = read_table(str(path))
    first = 0 if zero_based else 1
    assert table.column_names == ["label"] + [f"f{k + first}" for k in range(7)]
    data = dataset(table)
    np.testing.assert_array_equal(data.X, X.astype(np.float32))
    assert data.y.tolist() == (y > 0).tolist()


def test_libsvm_rows_may_be_empty_and_carry_query_ids(tmp_path):
    path = tmp_path / "t.svm"
    path.write_text("1 qid:3 2:5\n0\n\n# note\n0 1:-1e2 # a remark\n")
    data = dataset(read_table(str(path)))
    assert data.X.tolist() == [[0, 5], [0, 0], [-100, 0]]
    assert data.y.tolist() == [1, 0, 0]


def test_features_that_a_libsvm_file_never_mentions_are_zero_where_they_are_named(tmp_path):
    path = tmp_path / "t.libsvm"
    path.write_text("1 1:2\n0 2:1\n")
    table = read_table(str(path), ("f1", "f2", "f4", "age"))
    assert table.column_names == ["label", "f1", "f2", "f4"]
    assert dataset(table).X.tolist() == [[2, 0, 0], [0, 1, 0]]


def test_libsvm_columns_are_read_one_by_one_and_only_listed_values_are_kept(tmp_path):
    path = tmp_path / "t.libsvm"
    path.write_text("1 1:2 3:0.5 # ann\n0 # bo b\n1 3:0 4000:-1 3:4 # cem\n")
    table = open_table(str(path), ("f7", "f5000000"))
    assert (table.num_rows, table.n_stored) == (3, 5)
    data = dataset(table, features=["f3", "f7", "f4000", "f5000000"], with_ids=True)
    assert data.ids.tolist() == ["ann", "bo b", "cem"]
    assert data.features.n_stored == 5
    expected = [[0.5, 0, 0, 0], [0, 0, 0, 0], [4, 0, -1, 0]]
    assert data.X.tolist() == expected, "what is listed twice is the last one"
    with pytest.raises(DataError, match="expected feature indices up to 1048576"):
        open_table(write(tmp_path / "u.libsvm", b"1 1:2 5000000:1\n"))
    with pytest.raises(DataError, match="needs a column '_id'"):
        dataset(open_table(write(tmp_path / "v.svm", b"1 1:2 # a\n0 1:2\n")), with_ids=True)


def test_a_comment_that_is_not_utf8_is_no_id(tmp_path):
    table = open_table(write(tmp_path / "t.svm", b"1 1:2 # ann\n0 1:3 # caf\xe9\n"))
    assert table.column_names == ["label", "f1"]
    assert dataset(table).X.tolist() == [[2], [3]]


def test_a_libsvm_file_is_refused_as_a_dense_table_with_very_many_values(tmp_path):
    table = open_table(write(tmp_path / "t.svm", b"1 1:2\n0 3:1\n"))
    data = dataset(table)

    def read():
        raise AssertionError("nothing is read")

    columns = replace(data.features, n_samples=1 << 19, readers=(read,) * (1 << 14))
    wide, table.num_rows = replace(data, y=None, features=columns), 1 << 31
    for whole in (lambda: wide.X, lambda: wide.take(np.arange(400_000)).X, table.table):
        with pytest.raises(DataError, match=r"t\.svm is too large for a dense table"):
            whole()


def test_an_infinite_value_of_a_libsvm_file_is_refused_before_a_job(tmp_path):
    table = open_table(write(tmp_path / "t.libsvm", b"1 1:2 2:1e60\n0 1:3\n"))
    with pytest.raises(DataError, match="column 'f2' has infinite values"):
        dataset(table)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", CSV, "t.parquet is not a Parquet file"),
        ("t.parquet", b"", "not a Parquet file"),
        ("t.csv", b"", "expected a header, the file is empty"),
        ("t.csv", b"a,label\n1,0\nsecret,1,2\n", "a row has 3 columns, the header 2"),
        ("t.csv.gz", CSV, "truncated, or not compressed as .gz"),
        ("t.csv.xz", lzma.compress(CSV)[:-9], "truncated, or not compressed as .xz"),
        ("t.csv.zst", b"no", "truncated, or not compressed as .zst"),
        ("t.libsvm", b"1 1:2\nsecret 1:1\n", "line 2 is not LIBSVM text"),
        ("t.libsvm", b"1 1:2 3\n", "line 1 is not LIBSVM text"),
        ("t.libsvm", b"1 1.5:2\n", "whole numbers"),
        ("t.xlsx", b"", "expected a name that ends in .parquet, .csv, .tsv or .libsvm"),
        ("t.XLSX", b"", "save a sheet of Excel as CSV"),
        ("t", b"", "expected a name that ends in"),
    ],
)
def test_wrong_files_are_told_by_name_without_their_content(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(str(path))
    assert "secret" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_file_and_an_unknown_file_system_are_told(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv: there is no such file"):
        read_table(str(tmp_path / "none.csv"))
    with pytest.raises(DataError, match=r"t\.csv cannot be read"):
        read_table("nonsense://bucket/t.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(DataError, match=r"d\.csv cannot be read: Is a directory"):
        read_table(str(tmp_path / "d.csv"))


def test_another_column_may_name_the_rows_and_is_no_feature(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("cust,age,label\n007,1,0\n7,2,1\n")
    table = read_table(str(path), dialect=Dialect(id_column="cust"))
    asked = {"task": Task.BINARY, "label": "label", "id_column": "cust"}
    found = to_dataset(table, "t", with_ids=True, **asked)
    assert found.ids.tolist() == ["007", "7"]
    assert found.schema.names == ("age",)
    assert to_dataset(table, "t", **asked).schema.names == ("age",)
    with pytest.raises(
        DataError, match="id of \\[data\\] in the agent's settings, --id of a command"
    ):
        to_dataset(table, "t", task=Task.BINARY, label="label", with_ids=True)
    with pytest.raises(DataError, match="did you mean 'cust'"):
        to_dataset(table, "t", with_ids=True, **{**asked, "id_column": "custs"})
