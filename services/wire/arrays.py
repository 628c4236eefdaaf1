"""Named numpy arrays as blocks of about 1 MiB; the part that most payloads are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.errors import OfferRejected

BLOCK_BYTES = 1 << 20
"""Largest block before compression."""

DTYPES = frozenset({"<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "<u2", "<i2", "|u1", "|i1", "|b1"})
"""numpy type strings that may travel."""

MAX_ARRAY_BYTES = 1 << 31
"""Largest array a peer may announce."""

MAX_DECODED_BYTES = 1 << 30
"""Most bytes of all arrays of an offer, decompressed: as many as an offer may have on the wire."""

MAX_ARRAYS = 1 << 16
"""Most arrays of a payload."""

MAX_DIMENSIONS = 8
"""Most dimensions of an array."""


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


def decode_arrays(
    blocks: Iterable[tensor_pb2.TensorBlock], *, most_bytes: float = MAX_DECODED_BYTES
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stream of blocks.

    Parameters
    ----------
    most_bytes : float
        Bound on the bytes of all arrays; a party's own processes may send one another more.

    Raises
    ------
    OfferRejected
        Unknown type, a repeated name, too many arrays or dimensions, too little or too much data
        in one array or in all, or a bad zstandard frame.
    """
    arrays: dict[str, NDArray[Any]] = {}
    pieces: list[bytes] = []
    head: tensor_pb2.TensorBlock | None = None
    expected = received = announced = 0

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
            if len(arrays) == MAX_ARRAYS:
                raise OfferRejected(f"more than {MAX_ARRAYS} arrays came")
            expected = _size(block)
            announced += expected
            if announced > most_bytes:
                raise OfferRejected(
                    f"array {block.name!r}: {announced} bytes with the arrays before it, "
                    f"at most {most_bytes} are taken"
                )
        if head is None or block.name != head.name:
            raise OfferRejected("array block without its first block")
        piece = block.data
        if block.compressed:
            piece = _unfolded(block.name, piece)
        received += len(piece)
        if received > expected:
            raise OfferRejected(f"array {block.name!r}: expected {expected} bytes, {received} came")
        pieces.append(piece)
    close()
    return arrays


def _unfolded(name: str, piece: bytes) -> bytes:
    """Return what a zstandard frame holds, at most a block."""
    try:
        # The size in a frame's own header goes before max_output_size: check it first.
        if zstandard.frame_content_size(piece) > BLOCK_BYTES:
            raise OfferRejected(f"array {name!r}: a frame of more than {BLOCK_BYTES} bytes")
        return zstandard.ZstdDecompressor().decompress(piece, max_output_size=BLOCK_BYTES)
    except zstandard.ZstdError as error:
        raise OfferRejected(f"array {name!r}: not a zstandard frame") from error


def _size(head: tensor_pb2.TensorBlock) -> int:
    """Return the bytes of the array that a first block announces."""
    if len(head.shape) > MAX_DIMENSIONS:
        raise OfferRejected(
            f"array {head.name!r}: {len(head.shape)} dimensions, at most {MAX_DIMENSIONS} are known"
        )
    itemsize = np.dtype(head.dtype).itemsize
    # An array without elements keeps its other lengths, which numpy bounds as if it had some.
    spanned = math.prod(max(length, 1) for length in head.shape) * itemsize
    if spanned > MAX_ARRAY_BYTES:
        raise OfferRejected(f"array {head.name!r}: {spanned} bytes are too many")
    return 0 if 0 in head.shape else spanned


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
