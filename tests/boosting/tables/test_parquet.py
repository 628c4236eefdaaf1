"""Parquet by column and row group: the data set that the whole table gives, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.dataset import Columns, Dataset, Feature, Schema, Task, recode
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables import open_table, read_table, to_dataset


def dataset(table: object) -> Dataset:
    return to_dataset(table, "t.parquet", task=Task.BINARY, label="label")


def write(path: Path, columns: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=7, **options)  # type: ignore[arg-type]
    return str(path)


def columns(n: int) -> dict[str, object]:
    rng = np.random.default_rng(3)
    words = pa.array([None if k % 11 == 0 else "xyz"[k % 3] for k in range(n)])
    return {
        "double": pa.array(rng.normal(size=n), mask=rng.random(n) < 0.2),
        "single": rng.normal(size=n).astype(np.float32),
        "long": rng.integers(-(2**62), 2**62, n),
        "int": pa.array(rng.integers(-(2**31), 2**31, n), pa.int32(), mask=rng.random(n) < 0.2),
        "flag": rng.random(n) < 0.5,
        "word": words,
        "coded": words.dictionary_encode(),
        "rank": pa.array(rng.integers(0, 9, n), mask=rng.random(n) < 0.2).dictionary_encode(),
        "kept": pa.array(rng.random(n) < 0.5).dictionary_encode(),
        "share": pa.array(rng.integers(0, 9, n) / 8).dictionary_encode(),
        "dotted.name": np.arange(n),
        "none": pa.nulls(n),
        "_id": [str(k) for k in range(n)],
        "label": rng.integers(0, 2, n),
    }


def test_numbers_that_are_categories_of_a_frame_stay_so_in_a_file(tmp_path: Path) -> None:
    own = columns(50)
    path = write(tmp_path / "t.parquet", own)
    frame = dataset(pa.table(own))  # type: ignore[arg-type]
    for table in (open_table(path), read_table(path)):
        found = dataset(table)
        assert found.schema == frame.schema
        kinds = {f.name: f.categories for f in found.schema.features}
        assert kinds["rank"] == tuple("012345678")
        assert kinds["kept"] == ("false", "true")
        assert kinds["share"] is None
        np.testing.assert_array_equal(found.X, frame.X)


def test_a_file_read_by_column_gives_the_data_set_of_the_whole_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", columns(50))
    whole, lazy = dataset(read_table(path)), dataset(open_table(path))
    assert isinstance(lazy.features, Columns)
    assert not isinstance(whole.features, Columns)
    assert lazy.schema == whole.schema
    assert np.array_equal(lazy.labels, whole.labels)
    for j, read in enumerate(lazy.columns.readers):
        assert np.array_equal(read(), whole.X[:, j], equal_nan=True)
    assert np.array_equal(lazy.X, whole.X, equal_nan=True)


def test_rows_and_categories_of_a_file_are_chosen_as_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", columns(50))
    whole, lazy = dataset(read_table(path)), dataset(open_table(path))
    features = [
        Feature("word", ("w", "x", "z")) if feature.name == "word" else feature
        for feature in reversed(whole.schema.features)
    ]
    agreed = Schema(tuple(features), "label", Task.BINARY, 2)
    rows = np.array([3, 4, 40])
    one, other = (recode(data, agreed).take(rows) for data in (whole, lazy))
    assert isinstance(other.features, Columns)
    assert np.array_equal(one.X, other.X, equal_nan=True)
    assert np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("value", [np.inf, -1e39])
def test_infinite_values_are_refused_when_the_file_is_opened(
    tmp_path: Path, statistics: bool, value: float
) -> None:
    given = {"x": [1.0] * 20 + [value], "label": [0] * 21}
    path = write(tmp_path / "t.parquet", given, write_statistics=statistics)
    with pytest.raises(DataError, match="column 'x' has infinite values or some beyond float32"):
        dataset(open_table(path))


def test_a_file_that_changes_under_a_job_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", columns(50))
    data = dataset(open_table(path))
    write(tmp_path / "t.parquet", columns(51))
    with pytest.raises(DataError, match=r"t\.parquet has changed while a job read it"):
        data.columns.readers[0]()


def test_a_file_that_is_damaged_inside_is_refused_without_its_content(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "t.parquet", columns(50)))
    raw = bytearray(path.read_bytes())
    raw[4:400] = b"\xff" * 396
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"t\.parquet is not a Parquet file, or is damaged"):
        dataset(open_table(str(path))).columns.readers[0]()
