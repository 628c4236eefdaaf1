"""Shamir's secret sharing over the prime field of order 2**255 - 19, for batches of secrets.

Information-theoretic: fewer than ``threshold`` shares say nothing about a secret. Share ``k``
(counting from zero) is the polynomial's value at ``k + 1``.

A batch is evaluated at once: the same coefficient of all secrets is laid side by side in one big
integer, wide enough that Horner's rule with the small points ``1 … n`` never carries from one
secret into the next, and is reduced modulo the prime only at the end.

References
----------
Shamir, How to share a secret, CACM 22 (1979).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hedgerow.crypto.masking.key_agreement import Entropy

PRIME = 2**255 - 19
SECRET_BYTES = 32
SHARE_BYTES = 32


def random_element(entropy: Entropy = os.urandom) -> bytes:
    """Return a uniform field element, 32 bytes little-endian (rejection sampling)."""
    while True:
        value = int.from_bytes(entropy(SECRET_BYTES), "little") & ((1 << 255) - 1)
        if value < PRIME:
            return value.to_bytes(SECRET_BYTES, "little")


def split(
    secrets: Sequence[bytes], threshold: int, n_shares: int, entropy: Entropy = os.urandom
) -> list[list[bytes]]:
    """Return ``shares[k][s]``: share ``k`` of secret ``s``; any ``threshold`` of them restore it.

    Parameters
    ----------
    secrets : sequence of bytes
        32-byte little-endian field elements.
    threshold, n_shares : int
        ``1 <= threshold <= n_shares <= 65535``.
    """
    if not 1 <= threshold <= n_shares < 1 << 16:
        raise ValueError(f"no {threshold}-of-{n_shares} sharing: expected 1 <= threshold <= shares")
    values = [_element(secret) for secret in secrets]
    # |value at x| < threshold * 2^255 * n^(threshold-1): room for it, in whole bytes.
    slot_bytes = (255 + threshold.bit_length() + (threshold - 1) * n_shares.bit_length() + 7) // 8
    rows = [values] + [
        [int.from_bytes(random_element(entropy), "little") for _ in values]
        for _ in range(threshold - 1)
    ]
    packed = [
        int.from_bytes(b"".join(v.to_bytes(slot_bytes, "little") for v in row), "little")
        for row in rows
    ]
    shares = []
    for point in range(1, n_shares + 1):
        total = 0
        for coefficient in reversed(packed):
            total = total * point + coefficient
        raw = total.to_bytes(slot_bytes * len(values), "little")
        shares.append(
            [
                (int.from_bytes(raw[at : at + slot_bytes], "little") % PRIME).to_bytes(
                    SHARE_BYTES, "little"
                )
                for at in range(0, len(raw), slot_bytes)
            ]
        )
    return shares


def restore(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret behind shares, keyed by share number (from zero).

    The ``threshold`` lowest-numbered shares are used. Shares that do not belong together give
    another secret, which the caller must be able to tell (by a commitment).

    Raises
    ------
    ValueError
        Fewer than ``threshold`` shares, or a share that is no field element.
    """
    if len(shares) < threshold:
        raise ValueError(f"expected at least {threshold} shares, received {len(shares)}")
    numbers = tuple(sorted(shares)[:threshold])
    weights = _weights_at_zero(numbers)
    total = sum(w * _element(shares[k]) for w, k in zip(weights, numbers, strict=True))
    return (total % PRIME).to_bytes(SECRET_BYTES, "little")


@lru_cache(maxsize=64)
def _weights_at_zero(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange coefficients at zero for the points ``number + 1``."""
    points = [number + 1 for number in numbers]
    weights = []
    for i, x in enumerate(points):
        above = below = 1
        for j, other in enumerate(points):
            if j != i:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


def _element(raw: bytes) -> int:
    value = int.from_bytes(raw, "little")
    if len(raw) != SECRET_BYTES or value >= PRIME:
        raise ValueError("expected a 32-byte element of the field of order 2^255 - 19")
    return value
