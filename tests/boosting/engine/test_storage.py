"""Bins in memory or in a file: the same bins, whatever there is room for."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import cuts_from_thresholds
from hedgerow.boosting.engine.partition import RowPartition, Splits
from hedgerow.boosting.storage import Storage


@pytest.mark.parametrize("n_bins", [8, 256, 300], ids=["a byte", "widened for a gap", "two bytes"])
@pytest.mark.parametrize("copies", [0, 1, 2])
def test_bins_and_the_rows_they_divide_do_not_depend_on_the_room(n_bins: int, copies: int) -> None:
    rng = np.random.default_rng(n_bins)
    X = rng.normal(size=(1000, 3)).astype(np.float32)
    X[::7, 1] = np.nan
    schema = Schema(tuple(Feature(f"x{j}") for j in range(3)), "label", Task.BINARY, 2)
    inner = np.sort(rng.normal(size=n_bins - 1)).astype(np.float32)
    cuts = cuts_from_thresholds(schema, [inner] * 3)
    free = bin_features(X, cuts)
    size = free.by_row.nbytes
    mapped: list[np.ndarray] = []

    def in_file(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        mapped.append(np.zeros(shape, dtype))
        return mapped[-1]

    held = bin_features(X, cuts, storage=Storage(copies * size, in_file))
    assert held.by_row.dtype == free.by_row.dtype
    assert np.array_equal(held.by_row, free.by_row)
    assert np.array_equal(held.by_feature, free.by_feature)
    in_files = [np.shares_memory(held.by_row, each) for each in mapped]
    assert any(in_files) == (copies == 0)
    assert np.shares_memory(held.by_row, held.by_feature) == (copies < 2)
    partitions = [RowPartition(np.arange(1000, dtype=np.int32)) for _ in range(2)]
    one = np.ones(1, np.int32)
    splits = Splits(0 * one, one, one, 3 * one, np.array([True]))
    for partition, binned in zip(partitions, (free, held), strict=True):
        partition.split_by_bins(binned, splits)
    assert np.array_equal(partitions[0].order, partitions[1].order)
