"""Tables as Spark writes them: Delta tables, and folders of Parquet files with partitions."""

from __future__ import annotations

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
