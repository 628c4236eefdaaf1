"""Hashes and similar rows, against a loop over all pairs of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, JobStopped
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.simfl.similarity import (
    Similar,
    decode_maps,
    encode_maps,
    hashes_of,
    most_similar,
    ranges_of,
)
from hedgerow.boosting.strategies.simfl.steps import FeatureRanges
from tests.boosting.trees.ensembles import KINDS, dataset

BINARY = KINDS[0]


def joint(*tables: Dataset) -> FeatureRanges:
    each = [ranges_of(table) for table in tables]
    return FeatureRanges(
        np.min([r.low for r in each], axis=0), np.max([r.high for r in each], axis=0)
    )


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99)
)
def test_a_row_shares_the_most_hashes_with_its_similar_row(n, m, n_hashes, n_values, seed):
    rng = np.random.default_rng(seed)
    own = rng.integers(-n_values, n_values, (n, n_hashes))
    other = rng.integers(-n_values, n_values, (m, n_hashes))
    found = most_similar(own, other, rng, lambda: None)
    for row, at in zip(own, found, strict=True):
        equal = (other == row).sum(axis=1)
        assert equal[at] == equal.max()


def test_rows_that_are_equally_similar_are_drawn_alike() -> None:
    own = np.zeros((6000, 2), np.int64)
    other = np.array([[0, 1], [0, 0], [2, 2], [0, 0], [0, 0]])
    found = most_similar(own, other, np.random.default_rng(1), lambda: None)
    counts = np.bincount(found, minlength=5)
    assert counts[[0, 2]].sum() == 0
    assert (np.abs(counts[[1, 3, 4]] - 2000) < 200).all()


def test_many_hash_values_are_told_apart() -> None:
    own = np.arange(1000, dtype=np.int64)[:, None] * 2**40
    found = most_similar(own, own[::-1].copy(), np.random.default_rng(0), lambda: None)
    np.testing.assert_array_equal(found, np.arange(1000)[::-1])


def test_no_row_has_a_similar_one_where_a_silo_is_empty() -> None:
    some, none = np.zeros((4, 3), np.int64), np.zeros((0, 3), np.int64)
    for own, other in ((some, none), (none, some)):
        assert len(most_similar(own, other, np.random.default_rng(0), lambda: None)) == 0


def test_a_long_search_can_be_stopped() -> None:
    def stop() -> None:
        raise JobStopped("stopped")

    with pytest.raises(JobStopped):
        most_similar(np.eye(3, dtype=np.int64), np.eye(3, dtype=np.int64),
                     np.random.default_rng(0), stop)  # fmt: skip


def test_hashes_are_those_of_the_formula() -> None:
    a, b = dataset(BINARY, 50, 1), dataset(BINARY, 30, 2)
    ranges = joint(a, b)
    numeric = [0, 1, 2]
    both = np.vstack([a.X, b.X])[:, numeric]
    np.testing.assert_array_equal(ranges.low[numeric], np.nanmin(both, axis=0))
    np.testing.assert_array_equal(ranges.high[numeric], np.nanmax(both, axis=0))
    found = hashes_of(a, ranges, 7, 0.5, seed=3)
    from hedgerow.boosting.streams import Purpose, generator

    rng = generator(3, 0, 0, Purpose.HASHING)
    normal, offset = rng.normal(size=(3 + 9, 7)), rng.uniform(0, 0.5, 7)
    for row, hashes in zip(a.X.astype(np.float64), found, strict=True):
        x = np.zeros(12)
        scaled = (row[:3] - ranges.low[:3]) / (ranges.high[:3] - ranges.low[:3]).astype(np.float64)
        x[:3] = np.nan_to_num(scaled)
        if not np.isnan(row[3]):
            x[3 + int(row[3])] = 1.0
        np.testing.assert_array_equal(hashes, np.floor((x @ normal + offset) / 0.5))


def test_columns_without_values_or_with_one_add_nothing() -> None:
    table = dataset(BINARY, 20, 1)
    X = table.X.copy()
    X[:, 0], X[:, 1] = np.nan, 5.0
    odd = Dataset(table.schema, X, table.y)
    none = Dataset(table.schema, X[:0], table.labels[:0])
    assert np.isfinite(ranges_of(none).low).all()
    found = hashes_of(odd, joint(odd, none), 5, 4.0, seed=1)
    assert found.shape == (20, 5)
    assert hashes_of(none, joint(odd), 5, 4.0, seed=1).shape == (0, 5)


def test_similar_rows_are_kept_for_the_table_that_they_are_of() -> None:
    maps = {
        Silo("a b"): Similar(np.array([2, 0, 1], np.int32), 3),
        Silo("c"): Similar(np.array([10, 10, 2**20], np.int32), 2**20 + 1),
    }
    data = encode_maps(maps, 3)
    again = decode_maps(data, 3)
    assert again.keys() == maps.keys()
    for silo, kept in maps.items():
        np.testing.assert_array_equal(again[silo].rows, kept.rows)
        assert again[silo].n_rows == kept.n_rows
    with pytest.raises(DataError, match="another table: 4 rows"):
        decode_maps(data, 4)
    with pytest.raises(DataError, match="too early"):
        decode_maps(data[:-1], 3)
