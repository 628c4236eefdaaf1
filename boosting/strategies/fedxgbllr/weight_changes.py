"""Changes of a weight vector in a few bits each.

A block of 256 changes shares one scale, its largest magnitude over the largest step. Each change is
rounded to one of the two nearest steps at random, so that its expectation is the change itself and
errors average out over silos and rounds.

References
----------
Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization", 2017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.payloads import checked
from hedgerow.boosting.strategies.fedxgbllr.steps import QuantisedChange

BLOCK = 256
"""Changes that share a scale."""


def pack_change(
    change: NDArray[np.floating], bits: int, rng: np.random.Generator
) -> QuantisedChange:
    """Return changes of shape (n,) as steps and scales.

    Parameters
    ----------
    bits : int
        8 (steps -127 to 127) or 4 (-7 to 7, two in a byte).
    """
    top = (1 << (bits - 1)) - 1
    n_blocks = -(-len(change) // BLOCK)
    padded = np.zeros(n_blocks * BLOCK)
    padded[: len(change)] = change
    blocks = padded.reshape(n_blocks, BLOCK)
    scales = (np.abs(blocks).max(axis=1, initial=0.0) / top).astype(np.float32)
    scales = np.maximum(scales, np.float32(1e-30))
    steps = np.floor(blocks / scales[:, None] + rng.random(blocks.shape))
    steps = (np.clip(steps, -top, top) + top + 1).astype(np.uint8).reshape(-1)[: len(change)]
    if bits == 4:
        even = np.append(steps, np.uint8(0)) if len(steps) % 2 else steps
        steps = even[::2] | (even[1::2] << 4)
    return QuantisedChange(steps, scales)


def unpack_change(change: QuantisedChange, n: int, bits: int) -> NDArray[np.float32]:
    """Return ``n`` changes, float32.

    Raises
    ------
    OfferRejected
        Another number of steps or scales, or a scale that is not finite.
    """
    top = (1 << (bits - 1)) - 1
    steps = checked("steps", change.steps, (n if bits == 8 else -(-n // 2),))
    if bits == 4:
        steps = np.stack([steps & 15, steps >> 4], axis=1).reshape(-1)[:n]
    scales = np.repeat(checked("scales", change.scales, (-(-n // BLOCK),)), BLOCK)[:n]
    return np.asarray((steps.astype(np.float32) - (top + 1)) * scales, np.float32)
