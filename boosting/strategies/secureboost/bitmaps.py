"""What is in the boxes of a tree: row bitmaps, and numbers of candidates, read with distrust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected

BATCH_DIVISIONS = 1 << 14
"""Candidates that are summed or decrypted at a time; 8 MB of ciphertexts at 2048 bits."""


def batches(n_nodes: int, n_divisions: int, most: int = 0) -> list[slice]:
    """Return nodes whose sums are made and read together: few enough to bound memory.

    Parameters
    ----------
    most : int
        Nodes of a batch; 0 for as many as have :data:`BATCH_DIVISIONS` candidates.
    """
    size = most or max(1, BATCH_DIVISIONS // max(n_divisions, 1))
    return [slice(a, a + size) for a in range(0, n_nodes, size)]


def narrow(n: int) -> type[np.int16] | type[np.int32]:
    """Return the type of numbers below ``n``."""
    return np.int16 if n < 1 << 15 else np.int32


def pack_masks(masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.uint8]:
    """Return row bitmaps one after the other, a bit a row."""
    return np.packbits(np.concatenate([np.empty(0, np.bool_), *masks]))


def unpack_masks(
    bits: NDArray[np.uint8], sizes: Sequence[int], sender: str
) -> list[NDArray[np.bool_]]:
    """Return row bitmaps of these lengths.

    Raises
    ------
    OfferRejected
        There are more bits or fewer; names the sender.
    """
    total = sum(sizes)
    if len(bits) != (total + 7) // 8:
        raise OfferRejected(f"{sender} sent {len(bits)} bytes of rows, {(total + 7) // 8} expected")
    flat = np.unpackbits(bits, count=total).astype(np.bool_)
    return [part.copy() for part in np.split(flat, np.cumsum(sizes)[:-1])] if sizes else []


def unpack_candidates(
    bits: NDArray[np.uint8], n_nodes: int, n: int, sender: str
) -> NDArray[np.bool_]:
    """Return a bit for each candidate of each node, shape (n_nodes, n)."""
    (flat,) = unpack_masks(bits, [n_nodes * n], sender)
    return flat.reshape(n_nodes, n)


def array_of(box: Mapping[str, NDArray[Any]], name: str, dtype: type, sender: str) -> NDArray[Any]:
    """Return a vector of a box.

    Raises
    ------
    OfferRejected
        It is not there, or of another type or shape; names the sender.
    """
    array = box.get(name)
    if array is None or array.dtype != dtype or array.ndim != 1:
        raise OfferRejected(f"{sender} sent no {name}")
    return array
