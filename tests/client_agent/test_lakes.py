"""Tables as Spark writes them: Delta tables, and folders of Parquet files with partitions."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.client_agent import sources
from hedgerow.client_agent.config import Source

JOB = JobParameters("j", Histogram(rounds=1), task=Task.BINARY)


def table(n: int = 60) -> pa.Table:
    rng = np.random.default_rng(2)
    return pa.table(
        {
            "age": rng.integers(20, 80, n),
            "city": pa.array([("rome", "oslo", None)[k % 3] for k in range(n)]),
            "year": [2024 + k % 2 for k in range(n)],
            "label": rng.integers(0, 2, n),
        }
    )


def loaded(path: str | Path) -> tuple[list[tuple[float, ...]], str]:
    found = sources.load(Source(path=str(path)), JOB, "a")
    names = found.schema.names
    assert sorted(names) == ["age", "city", "year"]
    at = [names.index(name) for name in ("age", "city", "year")]
    values = np.nan_to_num(found.X[:, at], nan=-1)
    return sorted(map(tuple, np.c_[values, found.labels].tolist())), found.digest


@pytest.fixture
def expected(tmp_path: Path) -> list[tuple[float, ...]]:
    pq.write_table(table(), tmp_path / "whole.parquet")
    return loaded(tmp_path / "whole.parquet")[0]


def test_a_folder_of_parquet_files_with_partitions_is_the_table(
    tmp_path: Path, expected: list[tuple[float, ...]]
) -> None:
    folder = tmp_path / "spark"
    pq.write_to_dataset(table(), folder, partition_cols=["year"])
    (folder / "_SUCCESS").touch()
    rows, digest = loaded(folder)
    assert rows == expected
    assert loaded(folder)[1] == digest
    pq.write_to_dataset(table(3), folder, partition_cols=["year"])
    assert loaded(folder)[1] != digest


@pytest.mark.parametrize(
    "extra",
    [
        pa.array([[0.5, None], None, []], pa.list_(pa.float64())),
        pa.array([{"size": 3, "at": [1.0]}, None, {"size": 4, "at": None}]),
        pa.array([[("a", 1)], None, [("b", 2), ("c", 3)]], pa.map_(pa.string(), pa.int64())),
        pa.array([b"\xff\x00", None, b"text"], pa.binary()),
    ],
    ids=["list", "struct", "map", "bytes"],
)
def test_a_column_of_another_type_matters_where_the_job_uses_it(
    tmp_path: Path, extra: pa.Array
) -> None:
    rows = table(3).append_column("extra", extra)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "one.parquet", tmp_path / "folder" / "part.parquet"):
        pq.write_table(rows, path)
        with pytest.raises(DataError, match=r"column 'extra' has type (list|struct|map|binary)"):
            sources.load(Source(path=str(path)), JOB, "a")
    job = replace(JOB, features=("age", "city"))
    source = Source(path=str(tmp_path / "folder"))
    found = sources.load(source, job, "a")
    assert found.X.shape == (3, 2)
    assert sources.load(source, job, "a").digest == found.digest
    pq.write_table(rows.set_column(4, "extra", extra.take([2, 1, 0])), path)
    assert sources.load(source, job, "a").digest != found.digest


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (table(2).append_column("late", pa.array([1, 2])),
         "column 'late' of b.parquet: expected no such column, as in a.parquet, received int64"),
        (table(2).drop_columns("city"),
         "column 'city' of b.parquet: expected string, as in a.parquet, received no such column"),
        (table(2).set_column(0, "age", pa.array([1.5, 2.0])),
         "column 'age' of b.parquet: expected int64, as in a.parquet, received double"),
    ],
    ids=["more", "fewer", "type"],
)  # fmt: skip
def test_files_of_other_columns_are_refused(tmp_path: Path, other: pa.Table, said: str) -> None:
    pq.write_table(table(2), tmp_path / "a.parquet")
    pq.write_table(other, tmp_path / "b.parquet")
    with pytest.raises(DataError, match=said):
        loaded(tmp_path)


def test_a_file_beside_the_partitions_is_refused_and_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "year=1999").mkdir()
    plain = table(2).drop_columns("year")
    pq.write_table(plain, tmp_path / "year=1999" / "a.parquet")
    pq.write_table(plain, tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'year' of") as refused:
        loaded(tmp_path)
    assert "1999" not in str(refused.value)
    (tmp_path / "b.parquet").unlink()
    pq.write_table(table(2), tmp_path / "year=1999" / "a.parquet")
    with pytest.raises(DataError, match="in its files and, with another type, in the names of"):
        loaded(tmp_path)


def test_rows_are_held_back_of_the_table_that_the_job_trains_on(tmp_path: Path) -> None:
    def query(order: str) -> Source:
        return Source(sql_url=f"sqlite:///{tmp_path}/t.db", query=f"SELECT * FROM t {order}")

    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("CREATE TABLE t (x REAL, label INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(k, k % 2) for k in range(20)])
    rows = sources.SourceRows(query("ORDER BY x"), None, 0.25, "a", b"secret")
    train = rows.train(JOB)
    test = rows.test(JOB, train.digest)
    assert test is not None
    assert sorted([*train.X[:, 0], *test.X[:, 0]]) == [*range(20)]
    turned = replace(rows, data=query("ORDER BY x DESC"))
    with pytest.raises(DataError, match="its rows come in another order than when it accepted"):
        turned.test(JOB, train.digest)
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("UPDATE t SET x = 99 WHERE x = 7")
    with pytest.raises(DataError, match="its table has changed since it accepted the job"):
        rows.test(JOB, train.digest)
    whole = replace(rows, hold_back=0.0)
    assert whole.train(JOB).digest == replace(whole, data=turned.data).train(JOB).digest


def test_a_delta_table_that_changes_during_admission_gives_no_test_rows(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "t", table())
    rows = sources.SourceRows(Source(path=str(tmp_path / "t")), None, 0.25, "a", b"secret")
    train = rows.train(JOB)
    assert rows.test(JOB, train.digest) is not None
    deltalake.write_deltalake(tmp_path / "t", table(3), mode="append")
    with pytest.raises(DataError, match="its table has changed since it accepted the job"):
        rows.test(JOB, train.digest)


def test_a_delta_table_is_read_and_known_by_its_version(
    tmp_path: Path, expected: list[tuple[float, ...]]
) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / "patients"
    deltalake.write_deltalake(path, table().slice(0, 40), partition_by=["year"])
    first = loaded(path)
    deltalake.write_deltalake(path, table().slice(40), mode="append")
    rows, digest = loaded(f"delta+file://{path}")
    assert rows == expected
    assert (rows, digest) == loaded(path)
    assert digest != first[1]
    deltalake.DeltaTable(path).delete("city = 'oslo'")
    assert len(loaded(path)[0]) == 40


def test_what_is_no_table_is_said(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none: there is no Parquet file in this folder"):
        loaded(tmp_path / "none")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "part.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(DataError, match="bad is not a folder of Parquet files"):
        loaded(tmp_path / "bad")


def test_a_damaged_delta_table_is_said(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    (tmp_path / "patients" / "_delta_log").mkdir(parents=True)
    with pytest.raises(DataError, match="patients cannot be read as a Delta table"):
        loaded(tmp_path / "patients")
