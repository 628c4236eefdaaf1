"""Changes of weights in a few bits: within a step, right on average, refused where malformed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.fedxgbllr.weight_changes import (
    BLOCK,
    pack_change,
    unpack_change,
)


@pytest.mark.parametrize("bits", [8, 4])
@given(st.integers(1, 3 * BLOCK + 1), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_changes_come_back_within_one_step_of_their_block(bits, n, seed):
    rng = np.random.default_rng(seed)
    change = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3)
    packed = pack_change(change, bits, rng)
    assert packed.steps.shape == (-(-n * bits // 8),)
    assert packed.scales.shape == (-(-n // BLOCK),)
    found = unpack_change(packed, n, bits)
    step = np.repeat(packed.scales, BLOCK)[:n]
    assert (np.abs(found - change) <= 1.001 * step).all()


def test_rounding_is_right_on_average():
    change = np.full(BLOCK, 0.3)
    change[0] = 7.0  # the block's largest: steps of one in four bits
    rng = np.random.default_rng(0)
    found = [unpack_change(pack_change(change, 4, rng), BLOCK, 4)[1:] for _ in range(50)]
    assert np.mean(found) == pytest.approx(0.3, abs=0.02)
    assert set(np.unique(found)) == {0.0, 1.0}


def test_no_change_stays_none():
    packed = pack_change(np.zeros(5), 8, np.random.default_rng(0))
    assert np.array_equal(unpack_change(packed, 5, 8), np.zeros(5))


def test_changes_of_another_size_are_refused():
    packed = pack_change(np.zeros(BLOCK), 8, np.random.default_rng(0))
    for bits, n in ((8, BLOCK + 1), (4, BLOCK), (8, 2 * BLOCK)):
        with pytest.raises(OfferRejected):
            unpack_change(packed, n, bits)
    endless = replace(packed, scales=np.array([np.inf], np.float32))
    with pytest.raises(OfferRejected, match="finite"):
        unpack_change(endless, BLOCK, 8)
