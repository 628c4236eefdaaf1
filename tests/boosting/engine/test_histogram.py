"""Binning, histograms and partitions against naive loops kept here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.binning import BinnedFeatures, bin_features
from hedgerow.boosting.engine.cuts import FENCE, Cuts, cuts_from_thresholds
from hedgerow.boosting.engine.histogram import build_histograms, layout_of, node_sums
from hedgerow.boosting.engine.partition import RowPartition, Splits
from hedgerow.boosting.errors import DataError
from tests import oracles


def numeric_cuts(*thresholds: list[float]) -> Cuts:
    schema = Schema(
        tuple(Feature(f"f{j}") for j in range(len(thresholds))), "y", Task.REGRESSION, 0
    )
    return cuts_from_thresholds(schema, [np.array(t, np.float32) for t in thresholds])


def naive_histograms(
    binned: BinnedFeatures, rows: list[NDArray[np.int32]], q: NDArray[np.int64], cuts: Cuts
) -> NDArray[np.int64]:
    out = np.zeros((len(rows), int(cuts.n_bins.sum()), q.shape[1]), dtype=np.int64)
    for s, members in enumerate(rows):
        for row in members:
            for j in range(cuts.n_features):
                b = int(binned.by_row[row, j])
                if b < cuts.n_bins[j]:
                    out[s, cuts.offsets[j] + b] += q[row]
    return out


def one_split(**fields: object) -> Splits:
    defaults: dict[str, object] = {
        "node": [0],
        "left": [1],
        "feature": [0],
        "bin": [0],
        "default_left": [False],
    }
    given = defaults | fields
    arrays = {
        k: np.array(v, np.bool_ if k == "default_left" else np.int32)
        for k, v in given.items()
        if k != "categories"
    }
    return Splits(**arrays, categories=given.get("categories", ()))  # type: ignore[arg-type]


def grown(n: int, max_bin: int, missing: float = 0.1) -> tuple[BinnedFeatures, Cuts, RowPartition]:
    data = oracles.generated(Task.BINARY, n, missing=missing)
    cuts = oracles.xgboost_cuts(data, max_bin)
    binned = bin_features(data.X, cuts)
    partition = RowPartition(np.arange(0, n, 2, dtype=np.int32))
    partition.split_by_bins(binned, one_split(bin=[max_bin // 3]))
    partition.split_by_bins(
        binned, one_split(node=[2], left=[3], feature=[1], bin=[2], default_left=[True])
    )
    return binned, cuts, partition


def test_a_value_equal_to_a_threshold_goes_to_the_right_bin() -> None:
    cuts = numeric_cuts([0.1, 0.5])
    at = np.nextafter(np.float32(0.1), np.float32(0))
    X = np.array([[at], [0.1], [0.3], [0.5], [9.0], [np.nan]], np.float32)
    assert bin_features(X, cuts).by_row[:, 0].tolist() == [0, 1, 1, 2, 2, 3]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), max_size=40, unique=True),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
)
def test_binning_counts_the_thresholds_not_above_the_value(
    thresholds: list[float], values: list[float]
) -> None:
    inner = np.unique(np.array(thresholds, np.float32))
    cuts = numeric_cuts(inner.tolist())
    x = np.array(values + thresholds, np.float32)
    binned = bin_features(x[:, None], cuts).by_row[:, 0]
    assert binned.tolist() == np.searchsorted(inner, x, side="right").tolist()
    for b in range(inner.shape[0]):
        assert np.array_equal(binned <= b, x < cuts.threshold(0, b))


def test_values_outside_the_bins_are_refused_without_being_named() -> None:
    with pytest.raises(DataError, match="feature 0") as error:
        bin_features(np.array([[FENCE]], np.float32), numeric_cuts([0.0]))
    assert "e+38" not in str(error.value)


def test_more_than_256_bins_take_two_bytes() -> None:
    x = np.arange(1000, dtype=np.float32)[:, None]
    binned = bin_features(x, numeric_cuts((np.arange(999) + 0.5).tolist()))
    assert binned.by_row.dtype == np.uint16
    assert np.array_equal(binned.by_row[:, 0], np.arange(1000))


@pytest.mark.parametrize("max_bin", [16, 400])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_histograms_equal_a_naive_loop(max_bin: int, n_outputs: int, missing: float) -> None:
    binned, cuts, partition = grown(900, max_bin, missing)
    q = np.random.default_rng(1).integers(-(2**40), 2**40, (900, 2 * n_outputs))
    nodes = [1, 3, 4]
    ours = build_histograms(binned, partition, nodes, q, layout_of(cuts))
    assert np.array_equal(
        ours, naive_histograms(binned, [partition.rows(n) for n in nodes], q, cuts)
    )
    expected = [q[partition.rows(n)].sum(axis=0) for n in nodes]
    assert np.array_equal(node_sums(partition, nodes, q), expected)


def test_histograms_of_some_features_are_slices_of_all() -> None:
    binned, cuts, partition = grown(800, 32)
    q = np.random.default_rng(2).integers(-(2**40), 2**40, (800, 2))
    whole = build_histograms(binned, partition, [1, 3], q, layout_of(cuts))
    used = np.array([1, 4, 6])
    some = build_histograms(binned, partition, [1, 3], q, layout_of(cuts, used))
    columns = np.concatenate([np.arange(cuts.offsets[j], cuts.offsets[j + 1]) for j in used])
    assert np.array_equal(some, whole[:, columns])


@pytest.mark.parametrize("n_threads", [2, 3])
def test_threads_change_no_bit(n_threads: int) -> None:
    n = 150_000
    rng = np.random.default_rng(3)
    cuts = numeric_cuts(*[np.linspace(-1, 1, 63).tolist()] * 4)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    binned = bin_features(X, cuts)
    partition = RowPartition(np.arange(n, dtype=np.int32))
    partition.split_by_bins(binned, one_split(bin=[10]))
    q = rng.integers(-(2**40), 2**40, (n, 2))
    one = build_histograms(binned, partition, [1, 2], q, layout_of(cuts), 1)
    assert np.array_equal(
        one, build_histograms(binned, partition, [1, 2], q, layout_of(cuts), n_threads)
    )


@pytest.mark.parametrize("n_silos", [2, 5, 17])
def test_sums_over_silos_equal_the_pooled_histogram_bit_for_bit(n_silos: int) -> None:
    n = 1200
    binned, cuts, _ = grown(n, 64)
    q = np.random.default_rng(4).integers(-(2**41), 2**41, (n, 2))
    layout = layout_of(cuts)
    pooled = build_histograms(binned, RowPartition(np.arange(n, dtype=np.int32)), [0], q, layout)
    edges = np.sort(np.random.default_rng(5).integers(0, n, n_silos - 1))
    total = np.zeros_like(pooled)
    for rows in np.split(np.arange(n, dtype=np.int32), edges):
        total += build_histograms(binned, RowPartition(rows), [0], q, layout)
    assert np.array_equal(total, pooled)


def test_a_sibling_is_parent_minus_child() -> None:
    binned, cuts, partition = grown(900, 32)
    q = np.random.default_rng(6).integers(-(2**41), 2**41, (900, 2))
    layout = layout_of(cuts)
    root = build_histograms(
        binned, RowPartition(np.arange(0, 900, 2, dtype=np.int32)), [0], q, layout
    )
    parts = build_histograms(binned, partition, [1, 3, 4], q, layout)
    assert np.array_equal(root[0] - parts[0], parts[1] + parts[2])


def test_partition_keeps_rows_in_order_and_follows_directions() -> None:
    X = np.array([[0, 1, 2, np.nan, 1, np.nan, 0]], np.float32).T
    binned = bin_features(X, numeric_cuts([0.5, 1.5]))
    for default_left, expected in ((True, [0, 1, 3, 4, 5, 6]), (False, [0, 1, 4, 6])):
        partition = RowPartition(np.arange(7, dtype=np.int32))
        partition.split_by_bins(binned, one_split(bin=[1], default_left=[default_left]))
        assert partition.rows(1).tolist() == expected
        assert partition.nodes == (1, 2)
    partition = RowPartition(np.arange(7, dtype=np.int32))
    partition.split_by_bins(binned, one_split(bin=[-1], default_left=[True]))
    assert partition.rows(1).tolist() == [3, 5]


def test_categories_that_go_right_do_and_the_rest_go_left() -> None:
    schema = Schema((Feature("c", ("a", "b", "c", "d")),), "y", Task.REGRESSION, 0)
    X = np.array([[0, 1, 2, 3, np.nan]], np.float32).T
    binned = bin_features(X, cuts_from_thresholds(schema, []))
    partition = RowPartition(np.arange(5, dtype=np.int32))
    partition.split_by_bins(
        binned, one_split(default_left=[True], categories=((0, np.array([1, 3], np.int32)),))
    )
    assert partition.rows(1).tolist() == [0, 2, 4]
    assert partition.rows(2).tolist() == [1, 3]


def test_masks_partition_as_bins_do() -> None:
    binned, _, by_bins = grown(500, 32)
    split = one_split(node=[4], left=[5], feature=[3], bin=[11])
    by_masks = grown(500, 32)[2]
    mask = binned.by_row[by_masks.rows(4), 3] <= 11
    by_bins.split_by_bins(binned, split)
    by_masks.split_by_masks(split, [mask])
    assert np.array_equal(by_bins.order, by_masks.order)
    assert by_bins.nodes == by_masks.nodes
