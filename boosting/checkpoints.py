"""Named arrays, and plain values about them, as bytes: what a coordinator keeps between rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import zstandard
from numpy.typing import NDArray

_ABOUT = "about"


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
    """Return what :func:`dump` was given."""
    plain = zstandard.decompress(data)
    # The library returns the metadata of files only: its format is a length and a JSON header.
    n_bytes = int.from_bytes(plain[:8], "little")
    metadata = json.loads(plain[8 : 8 + n_bytes])["__metadata__"]
    return safetensors.numpy.load(plain), json.loads(metadata[_ABOUT])
