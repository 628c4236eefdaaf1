"""Named arrays through their codec, and what a peer could get wrong."""

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.tensors import Tensors, scalar
from hedgerow.services.wire.arrays import BLOCK_BYTES, MAX_ARRAYS, decode_arrays
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


def bomb(n_arrays: int, n_blocks: int, declared: int | None = None):
    """Yield blocks of zeros, each of 1 MiB in some 50 bytes."""
    data = zstandard.compress(bytes(BLOCK_BYTES), 3)
    for a in range(n_arrays):
        for b in range(n_blocks):
            block = tensor_pb2.TensorBlock(name=str(a), data=data, compressed=True)
            if b == 0:
                block.dtype = "|u1"
                block.shape.append(declared or BLOCK_BYTES * n_blocks)
            yield block


def test_a_zstandard_bomb_is_refused_before_it_is_large():
    blocks = list(bomb(2048, 1))
    assert sum(block.ByteSize() for block in blocks) < 1 << 18
    taken = []
    with pytest.raises(OfferRejected, match="at most 1073741824 are taken"):
        decode_arrays(block for block in blocks if taken.append(1) is None)
    assert len(taken) == 1025


def test_one_array_over_the_limit_is_refused_at_its_first_block():
    with pytest.raises(OfferRejected, match="at most 1073741824 are taken"):
        decode_arrays(bomb(1, 1, declared=(1 << 30) + 1))


def test_a_block_that_unfolds_to_more_than_a_block_is_refused():
    data = zstandard.compress(bytes(64 * BLOCK_BYTES), 3)
    block = tensor_pb2.TensorBlock(
        name="x", dtype="|u1", shape=[64 * BLOCK_BYTES], data=data, compressed=True
    )
    with pytest.raises(OfferRejected, match="a frame of more than 1048576 bytes"):
        decode_arrays([block])


def test_too_many_arrays_are_refused():
    blocks = (
        tensor_pb2.TensorBlock(name=str(a), dtype="|u1", shape=[0]) for a in range(MAX_ARRAYS + 1)
    )
    with pytest.raises(OfferRejected, match="more than 65536 arrays"):
        decode_arrays(blocks)


@pytest.mark.parametrize(
    "shape", [[0, 1 << 63], [0, (1 << 64) - 1], [1] * 70, [1 << 32, 1 << 32, 0], [1 << 63]]
)
def test_a_shape_that_numpy_cannot_make_is_refused(shape):
    block = tensor_pb2.TensorBlock(name="x", dtype="|u1", shape=shape, data=b"")
    with pytest.raises(OfferRejected, match=r"bytes are too many|dimensions"):
        decode_arrays([block])
