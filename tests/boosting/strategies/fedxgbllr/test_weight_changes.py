import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.strategies.fedxgbllr.weight_changes import (
    BLOCK,
    change_form,
    pack_change,
    unpack_change,
)


@pytest.mark.parametrize("bits", [8, 4])
@given(st.integers(1, 3 * BLOCK + 1), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_changes_come_back_within_one_step_of_their_block(bits, n, seed):
    rng = np.random.default_rng(seed)
    change = rng.normal(size=n) * 10.0 ** rng.integers(-6, 3)
    arrays = pack_change(change, bits, rng)
    form = {name: (a.dtype.str, a.shape) for name, a in arrays.items()}
    assert form == change_form(n, bits)
    found = unpack_change(arrays, n, bits)
    step = np.repeat(arrays["scales"], BLOCK)[:n]
    assert (np.abs(found - change) <= 1.001 * step).all()


def test_rounding_is_right_on_average():
    change = np.full(BLOCK, 0.3)
    change[0] = 7.0  # the block's largest: steps of one in four bits
    rng = np.random.default_rng(0)
    found = [unpack_change(pack_change(change, 4, rng), BLOCK, 4)[1:] for _ in range(50)]
    assert np.mean(found) == pytest.approx(0.3, abs=0.02)
    assert set(np.unique(found)) == {0.0, 1.0}


def test_no_change_stays_none():
    arrays = pack_change(np.zeros(5), 8, np.random.default_rng(0))
    assert np.array_equal(unpack_change(arrays, 5, 8), np.zeros(5))
