"""Named arrays as blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.tensors import Tensors
from hedgerow.services.wire import Codec
from hedgerow.services.wire.arrays import decode_arrays, encode_arrays


def encode(payload: Tensors) -> Iterator[tensor_pb2.TensorBlock]:
    """Yield the blocks of a payload; none for no arrays."""
    return encode_arrays(payload.arrays)


def decode(messages: Iterable[tensor_pb2.TensorBlock]) -> Tensors:
    """Return the payload of a stream of blocks."""
    return Tensors(decode_arrays(messages))


CODECS = (Codec(Tensors, "tensor", encode, decode),)
