"""Named arrays, and plain values about them, as bytes: what a coordinator keeps between rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import zstandard
from numpy.typing import NDArray

from hedgerow.boosting.errors import FOREIGN, DataError

MAX_BYTES = 1 << 31
"""Most bytes of a checkpoint, unpacked."""
MAX_ROUNDS = 1 << 20
"""Most rounds of a checkpoint."""
_ABOUT = "about"


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise DataError, which names ``what``, for anything that reading malformed bytes raises."""
    try:
        yield
    except (*FOREIGN, safetensors.SafetensorError, zstandard.ZstdError) as error:
        raise DataError(f"expected {what}, received other bytes") from error


def array(arrays: Mapping[str, NDArray[Any]], name: str, dtype: str, ndim: int = 1) -> NDArray[Any]:
    """Return a named array of an element type and a number of dimensions."""
    found = arrays[name]
    if found.dtype != np.dtype(dtype) or found.ndim != ndim:
        raise DataError(f"{name}: expected {ndim}-dimensional {dtype}")
    return found


def whole(value: object, most: int = MAX_ROUNDS) -> int:
    """Return a count or a round, at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DataError(f"expected a number from 0 to {most}")
    return value


def dump(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, object]) -> bytes:
    """Return arrays and values as a compressed safetensors file.

    Parameters
    ----------
    arrays : Mapping
        Arrays of any element type but texts and objects.
    about : Mapping
        What JSON can write, without NaN and infinity; kept in the file's metadata.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about, allow_nan=False)
    return zstandard.compress(safetensors.numpy.save(contiguous, {_ABOUT: text}))


def load(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return what :func:`dump` was given; anything else raises what :func:`readable` knows."""
    if not 0 <= zstandard.frame_content_size(data) <= MAX_BYTES:
        raise DataError(f"expected a checkpoint of at most {MAX_BYTES} bytes")
    plain = zstandard.decompress(data)
    # The library returns the metadata of files only: its format is a length and a JSON header.
    n_bytes = int.from_bytes(plain[:8], "little")
    metadata = json.loads(plain[8 : 8 + n_bytes])["__metadata__"]
    return safetensors.numpy.load(plain), json.loads(metadata[_ABOUT])
