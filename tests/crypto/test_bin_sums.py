"""The plan of a node's histograms adds up to the naive loop, with fewer additions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hedgerow.crypto.ciphers.bin_sums import plan_bin_sums


def naive(values, bins, n_bins, members):
    out = np.zeros((bins.shape[1], n_bins), np.int64)
    for row in members:
        for feature, number in enumerate(bins[row]):
            out[feature, number] += values[row]
    return out


def signed(values, index):
    return np.where(index >= 0, values[np.where(index >= 0, index, ~index)], 0) - np.where(
        index < 0, values[np.where(index < 0, ~index, 0)], 0
    )


def run(segments, values):
    picked = signed(values, segments.index) if len(segments.index) else np.empty(0, np.int64)
    return np.array(
        [picked[a:b].sum() for a, b in zip(segments.starts[:-1], segments.starts[1:], strict=True)],
        np.int64,
    )


def carried_out(plan, values):
    points = run(plan.rows, values)
    points = np.concatenate([points, run(plan.total, points)])
    points = np.concatenate([points, run(plan.derived, points)])
    return run(plan.bins, points).reshape(plan.shape)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_adds_up_to_the_naive_loop(data):
    n_bins = data.draw(st.integers(1, 6))
    shape = (data.draw(st.integers(1, 150)), data.draw(st.integers(1, 5)))
    bins = data.draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, n_bins - 1)))
    kept = data.draw(hnp.arrays(np.bool_, shape[0]))
    members = np.flatnonzero(kept)
    joint, derive = data.draw(st.booleans()), data.draw(st.booleans())
    values = np.random.default_rng(3).integers(-1000, 1000, shape[0])
    plan = plan_bin_sums(bins, n_bins, members, joint=joint, derive=derive)
    np.testing.assert_array_equal(carried_out(plan, values), naive(values, bins, n_bins, members))


def big_bins(n=6000, n_features=6, n_bins=16, skew=0.0):
    rng = np.random.default_rng(5)
    bins = rng.integers(0, n_bins, (n, n_features)).astype(np.uint16)
    bins[rng.random(bins.shape) < skew] = 3
    return bins


def test_joint_cells_halve_the_additions_of_rows():
    bins = big_bins()
    plan = plan_bin_sums(bins, 16, derive=False)
    assert len(plan.rows.index) == bins.size // 2
    assert len(plan_bin_sums(bins, 16, joint=False, derive=False).rows.index) == bins.size


def test_a_skewed_features_fullest_bin_is_derived():
    bins = big_bins(skew=0.9)
    plain = plan_bin_sums(bins, 16, joint=False, derive=False)
    derived = plan_bin_sums(bins, 16, joint=False)
    assert len(derived.rows.index) < 0.35 * len(plain.rows.index)
    values = np.arange(len(bins))
    np.testing.assert_array_equal(carried_out(derived, values), carried_out(plain, values))


def test_many_binary_features_share_one_pass():
    bins = big_bins(n_features=8, n_bins=2)
    assert len(plan_bin_sums(bins, 2, derive=False).rows.index) == len(bins)


def test_small_nodes_are_not_joined():
    bins = big_bins(n=200)
    assert len(plan_bin_sums(bins, 16, derive=False).rows.index) == bins.size


def test_a_node_without_rows_has_empty_bins():
    plan = plan_bin_sums(big_bins(n=10), 16, np.empty(0, np.int64))
    assert len(plan.rows.index) == 0
    assert not carried_out(plan, np.ones(10, np.int64)).any()


def test_malformed_bins_are_refused():
    bins = big_bins(n=10)
    with pytest.raises(ValueError, match="one is numbered above"):
        plan_bin_sums(bins, 2)
    with pytest.raises(ValueError, match="uint8 or uint16"):
        plan_bin_sums(bins.astype(np.int32), 16)
    with pytest.raises(ValueError, match="rows 0 to 9"):
        plan_bin_sums(bins, 16, np.array([10]))
