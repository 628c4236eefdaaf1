"""Secrets of what a silo draws over its own rows; :mod:`.streams` derives and uses them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hedgerow.crypto.masking.key_agreement import encode_fields, expand


@dataclass(frozen=True, slots=True)
class OwnDraws:
    """Secrets of a silo's draws.

    Each stream is seeded by HKDF, so that none tells anything of another; within one, numpy's
    generator is not a cryptographic one, and nobody sees its numbers.
    """

    split: bytes = field(repr=False)
    """32 bytes, of rows held back from training."""
    rounds: bytes = field(repr=False)
    """32 bytes, of all else."""

    @classmethod
    def unkept(cls) -> OwnDraws:
        """Return draws that nothing repeats."""
        return cls(os.urandom(32), os.urandom(32))

    def entropy(self, round: int, purpose: int, *, split: bool) -> int:
        """Return 256 bits that seed the stream of a purpose in one round."""
        secret = self.split if split else self.rounds
        return int.from_bytes(expand(secret, encode_fields("draws", purpose, round)), "big")
