"""Named arrays through their codec, and what a peer could get wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from boosting.ports import OfferRejected
from boosting.tensors import Tensors, scalar
from tests.federation.memory import through_wire

DTYPES = ["<f4", "<f8", "<i4", "<i8", "<u2", "<u4", "<u8", "|u1", "|i1", "|b1"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(max_dims=3, max_side=4, min_side=0))
)


@given(st.dictionaries(st.text(max_size=9), ARRAYS, max_size=4))
@settings(max_examples=40, deadline=None)
def test_tensors_survive_the_wire(given_arrays):
    back = through_wire(Tensors(given_arrays)).arrays
    assert list(back) == list(given_arrays)
    for name, array in given_arrays.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array, equal_nan=array.dtype.kind == "f")


def test_arrays_of_several_blocks_come_back_whole():
    large = np.arange(700_001, dtype=np.float64)
    assert np.array_equal(through_wire(Tensors({"x": large})).arrays["x"], large)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (None, "none came"),
        (np.zeros(3, np.float32), "expected <f8"),
        (np.zeros(2), "expected shape 3"),
        (np.zeros((3, 1)), "expected shape 3"),
        (np.array([0.0, np.nan, 0.0]), "not finite"),
    ],
)
def test_an_array_that_is_not_as_expected_is_refused(array, says):
    payload = Tensors({} if array is None else {"x": array})
    with pytest.raises(OfferRejected, match=says):
        payload.get("x", "<f8", (3,))


def test_an_array_that_is_as_expected_is_given():
    payload = Tensors({"x": np.ones((3, 2)), "n": scalar(4.0)})
    assert payload.get("x", "<f8", (3, None)).shape == (3, 2)
    assert payload.number("n") == 4.0
    assert payload.has("x")
    assert not payload.has("y")
