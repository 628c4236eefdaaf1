"""Bitmaps in boxes: a bit a row or candidate, most significant first, read with distrust."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected


def pack_masks(masks: Sequence[NDArray[np.bool_]]) -> bytes:
    """Return bitmaps one after the other, padded to whole bytes at the end."""
    return np.packbits(np.concatenate([np.empty(0, np.bool_), *masks])).tobytes()


def unpack_masks(bits: bytes, sizes: Sequence[int], sender: str) -> list[NDArray[np.bool_]]:
    """Return bitmaps of these lengths.

    Raises
    ------
    OfferRejected
        There are more bits or fewer; names the sender.
    """
    total = sum(sizes)
    if len(bits) != (total + 7) // 8:
        raise OfferRejected(
            f"{sender}: expected a bitmap of {(total + 7) // 8} bytes, received {len(bits)}"
        )
    flat = np.unpackbits(np.frombuffer(bits, np.uint8), count=total).astype(np.bool_)
    return [part.copy() for part in np.split(flat, np.cumsum(sizes)[:-1])] if sizes else []


def unpack_candidates(bits: bytes, n_nodes: int, n: int, sender: str) -> NDArray[np.bool_]:
    """Return a bit for each candidate of each node, shape (n_nodes, n)."""
    (flat,) = unpack_masks(bits, [n_nodes * n], sender)
    return flat.reshape(n_nodes, n)
