"""Masks of the secure sums: seeds, masked vectors, and what takes the masks off a sum.

Silo ``i`` sends ``y_i = q_i + PRG(b_i) + sum_{i<j} PRG(s_ij) - sum_{i>j} PRG(s_ij)`` modulo
``2**ring_bits``. In the sum over all the pair masks cancel; the self masks ``b_i`` come off by
their shares, and the pair masks of lost silos by the pair seeds that the survivors reveal.

Every seed is derived for one context: job, attempt, group, number of the sum and its view, which
covers all that the vector is computed from. It is one-way, so that a revealed seed says nothing
about any other.

Inside a tree, sums after the first have no self mask. Their seeds come from one root a pair, which
is derived for the exact set and the view of the tree's first sum.

References
----------
Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from hedgerow.crypto.masking.fixed_point import reduce_residues, residue_dtype
from hedgerow.crypto.masking.key_agreement import encode_fields, expand, extract
from hedgerow.crypto.masking.keystream import apply_keystreams

if TYPE_CHECKING:
    from hedgerow.crypto.masking.fields import BitFields

Residues = NDArray[np.unsignedinteger]
"""Residue vector of shape (n,): uint32 for a 32-bit ring, else uint64 (48 bits: reduced)."""

Ring = Union[int, "BitFields"]
"""Bits of the one ring of all residues, or the fields that are packed in words of 64 bits."""

SEED_BYTES = 32
COMMITMENT_BYTES = 32
SHARE_COMMITMENT_BYTES = 16

_FINGERPRINT = AESGCM(hashlib.sha256(b"hedgerow vector fingerprint v1").digest())


def sum_context(session: str, number: int, tag: bytes) -> bytes:
    """Return the context of one sum, bound into all its seeds and signatures.

    Parameters
    ----------
    session : str
        The group: job, attempt and setup.
    number : int
        Counts the group's sums from zero.
    tag : bytes
        The sum's view, or its :func:`view_tag` under group masks.
    """
    return encode_fields("hedgerow secure sum v2", session, number, tag)


def view_tag(key: bytes, view: bytes) -> bytes:
    """Return the keyed hash of a view, 32 bytes: equal for equal views, and not to be guessed."""
    return expand(key, encode_fields("view", view), SEED_BYTES)


def tree_context(context: bytes, present: Sequence[str]) -> bytes:
    """Return the context of a tree's sums: that of its first sum, and the set of all of them."""
    return encode_fields("hedgerow tree v1", context, encode_fields(*present))


def tree_root(root: bytes, use: str, context: bytes) -> bytes:
    """Return the 32-byte root of one use of a tree, from the root of a pair or a group."""
    return expand(root, encode_fields("tree", use, context), SEED_BYTES)


def tree_seed(root: bytes, view: bytes) -> bytes:
    """Return the 32-byte seed of a mask of the sum inside a tree that has this view."""
    return expand(root, encode_fields("tree mask", view), SEED_BYTES)


def pair_seed(root: bytes, context: bytes) -> bytes:
    """Return the 32-byte seed of the mask that two silos share in one sum."""
    return expand(root, encode_fields("mask", context), SEED_BYTES)


def self_seed(secret: bytes, context: bytes) -> bytes:
    """Return the 32-byte seed of a silo's own mask in one sum, from the secret that it shared."""
    return expand(
        extract(b"hedgerow self mask", secret), encode_fields("self", context), SEED_BYTES
    )


def group_seed(group_key: bytes, silo: str, context: bytes) -> bytes:
    """Return the 32-byte seed of the mask that hides a sum from the coordinator."""
    return expand(group_key, encode_fields("group", silo, context), SEED_BYTES)


def commitment(secret: bytes, context: bytes) -> bytes:
    """Return a commitment to a self-mask secret (255 random bits, so it hides by itself)."""
    return hashlib.sha256(encode_fields("hedgerow self mask commitment", secret, context)).digest()


def share_commitments(
    session: str, first: int, dealer: str, receiver: str, shares: Iterable[bytes]
) -> bytes:
    """Return 16 bytes for each share of a self mask, which fix it; 255 random bits hide it.

    The shares are of the sums numbered from ``first``.
    """
    start = encode_fields("hedgerow share commitment v1", session)
    silos = encode_fields(dealer, receiver)
    return b"".join(
        hashlib.sha256(
            b"".join((start, encode_fields(number), silos, encode_fields(share)))
        ).digest()[:SHARE_COMMITMENT_BYTES]
        for number, share in enumerate(shares, first)
    )


def fingerprint(values: NDArray[Any]) -> str:
    """Return 64 bits that tell a silo's own vectors apart, as hexadecimal digits.

    GHASH under a fixed key (the tag of AES-256-GCM over associated data), which costs a tenth of
    SHA-256 and less. A pair of different vectors collides with probability ``n / 2**64`` for
    ``n`` blocks of 16 bytes; nobody but the silo itself, which has no use for a collision, chooses
    the vectors.
    """
    tag = _FINGERPRINT.encrypt(bytes(12), b"", np.ascontiguousarray(values).view(np.uint8).data)
    return tag[:8].hex()


def word_bits(ring: Ring) -> int:
    """Return the bits of a vector's elements: those of its ring, or of words of fields."""
    return ring if isinstance(ring, int) else 64


def masked(
    values: Residues,
    ring: Ring,
    add: Sequence[bytes],
    subtract: Sequence[bytes],
) -> Residues:
    """Return ``values`` plus and minus the masks of seeds, modulo the ring or field by field.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Residues; not changed.
    add, subtract : sequences of bytes
        32-byte seeds.
    """
    bits = word_bits(ring)
    out: Residues = np.array(values, dtype=residue_dtype(bits), order="C").reshape(-1)
    apply_keystreams(out, add, subtract, None if isinstance(ring, int) else ring)
    reduce_residues(out, bits)
    return out


def summed(vectors: Iterable[Residues], n_values: int, ring: Ring) -> Residues:
    """Return the sum of residue vectors, modulo the ring or field by field, shape (n_values,)."""
    bits = word_bits(ring)
    total: Residues = np.zeros(n_values, dtype=residue_dtype(bits))
    for vector in vectors:
        if isinstance(ring, int):
            np.add(total, vector, out=total)
        else:
            ring.put(plus=True)(total, vector, 0)
    reduce_residues(total, bits)
    return total


def unmasked(
    total: Residues,
    ring: Ring,
    self_seeds: Sequence[bytes],
    left_over: Iterable[tuple[int, int, bytes]] = (),
) -> Residues:
    """Return a sum of masked vectors without its masks.

    Parameters
    ----------
    total : ndarray of shape (n,)
        Sum of the masked vectors of the silos present.
    self_seeds : sequence of bytes
        Seeds of the self masks of the silos present.
    left_over : iterable of (present, lost, seed)
        Positions of a present and a lost silo in the group's order, and the seed of their pair.
    """
    add: list[bytes] = []
    subtract = list(self_seeds)
    for present, lost, seed in left_over:
        # The lower position added the pair's mask, the higher subtracted it.
        (subtract if present < lost else add).append(seed)
    return masked(total, ring, add, subtract)


def set_statement(
    digest: bytes,
    context: bytes,
    participants: Sequence[str],
    present: Sequence[str],
) -> bytes:
    """Return what a silo signs to say that a sum is to be unmasked over ``present``.

    Parameters
    ----------
    digest : bytes
        SHA-256 of the signed roster and keys of the group.
    context : bytes
        The sum's context (:func:`sum_context`).
    participants, present : sequences of str
        Whose masks are in the sum, sorted; those of them whose vectors are. The rest is lost.
    """
    return encode_fields(
        "hedgerow secure sum set v1",
        digest,
        context,
        encode_fields(*participants),
        encode_fields(*present),
    )
