"""Named numpy arrays as blocks of about 1 MiB; the part that most payloads are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import zstandard
from hedgerow.federation.v1 import tensor_pb2
from numpy.typing import NDArray

from boosting.ports import OfferRejected

BLOCK_BYTES = 1 << 20
"""Largest block before compression."""

DTYPES = frozenset({"<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "<u2", "<i2", "|u1", "|i1", "|b1"})
"""numpy type strings that may travel."""

MAX_ARRAY_BYTES = 1 << 31
"""Largest array a peer may announce."""


def encode_arrays(
    arrays: Mapping[str, NDArray[Any]], *, compress: bool = False
) -> Iterator[tensor_pb2.TensorBlock]:
    """Yield the blocks of ``arrays``, in the mapping's order."""
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array)
        if flat.dtype.byteorder == ">":
            flat = flat.astype(flat.dtype.newbyteorder("<"))
        assert flat.dtype.str in DTYPES, f"{flat.dtype.str} does not travel"
        data = flat.reshape(-1).view(np.uint8).data if flat.size else b""
        for start in range(0, max(len(data), 1), BLOCK_BYTES):
            piece = bytes(data[start : start + BLOCK_BYTES])
            block = tensor_pb2.TensorBlock(name=name)
            if start == 0:
                block.dtype = flat.dtype.str
                block.shape.extend(array.shape)
                if not array.shape:
                    block.shape.append(1)
            block.data = zstandard.compress(piece, 3) if compress else piece
            block.compressed = compress
            yield block


def decode_arrays(blocks: Iterable[tensor_pb2.TensorBlock]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stream of blocks.

    Raises
    ------
    OfferRejected
        Unknown type, a repeated name, too little or too much data, or a bad zstandard frame.
    """
    arrays: dict[str, NDArray[Any]] = {}
    pieces: list[bytes] = []
    head: tensor_pb2.TensorBlock | None = None
    expected = received = 0

    def close() -> None:
        if head is None:
            return
        if received != expected:
            raise OfferRejected(f"array {head.name!r}: expected {expected} bytes, {received} came")
        data = np.frombuffer(b"".join(pieces), dtype=np.dtype(head.dtype))
        arrays[head.name] = data.reshape(tuple(head.shape))

    for block in blocks:
        if block.dtype:
            close()
            head, pieces, received = block, [], 0
            if block.dtype not in DTYPES:
                raise OfferRejected(f"array {block.name!r}: element type not known")
            if block.name in arrays:
                raise OfferRejected(f"array {block.name!r} came twice")
            expected = math.prod(block.shape) * np.dtype(block.dtype).itemsize
            if expected > MAX_ARRAY_BYTES:
                raise OfferRejected(f"array {block.name!r}: {expected} bytes are too many")
        if head is None or block.name != head.name:
            raise OfferRejected("array block without its first block")
        piece = block.data
        if block.compressed:
            try:
                piece = zstandard.ZstdDecompressor().decompress(piece, max_output_size=BLOCK_BYTES)
            except zstandard.ZstdError as error:
                raise OfferRejected(f"array {block.name!r}: not a zstandard frame") from error
        received += len(piece)
        if received > expected:
            raise OfferRejected(f"array {block.name!r}: expected {expected} bytes, {received} came")
        pieces.append(piece)
    close()
    return arrays


def require(arrays: Mapping[str, NDArray[Any]], name: str, dtype: str, ndim: int) -> NDArray[Any]:
    """Return ``arrays[name]`` after checking its element type and number of dimensions."""
    array = arrays.get(name)
    if array is None:
        raise OfferRejected(f"expected an array {name!r}, none came")
    if array.dtype.str != dtype or array.ndim != ndim:
        raise OfferRejected(
            f"array {name!r}: expected {ndim}-dimensional {dtype}, "
            f"{array.ndim}-dimensional {array.dtype.str} came"
        )
    return array
