"""The secret of a silo's noise: it stays in the vault, which gives out a seed a query."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from hedgerow.crypto.ciphers.key_files import KeyFolder
from hedgerow.crypto.masking import key_agreement
from hedgerow.crypto.masking.key_agreement import Entropy, encode_fields

_NAME = "hedgerow noise"


@dataclass(frozen=True, slots=True)
class NoiseSeed:
    """What the noise of one query is drawn from."""

    key_id: bytes
    """16 bytes that identify the key, and say nothing of it: another one after it was lost."""
    seed: bytes = field(repr=False)
    """32 bytes, a function of key and context. Who has it can take the noise of this query off."""


class NoiseKey:
    """A key that is made when it is first needed.

    Assumption: HMAC-SHA256 is a pseudo-random function.

    Parameters
    ----------
    folder : KeyFolder or None
        Keeps it, sealed, across restarts; without one it lives in memory only.
    """

    def __init__(self, folder: KeyFolder | None, entropy: Entropy = os.urandom) -> None:
        self._folder = folder
        self._entropy = entropy
        self._root = b""
        self._lock = threading.Lock()

    def derive(self, context: bytes) -> NoiseSeed:
        """Return the seed of a query; the same for the same context.

        Raises
        ------
        KeyRejected
            The key's file is damaged, or sealed with another secret.
        """
        with self._lock:
            self._root = self._root or self._kept()
        return NoiseSeed(
            key_agreement.expand(self._root, encode_fields("noise key id v1"), 16),
            key_agreement.expand(self._root, encode_fields("noise seed v1", context)),
        )

    def _kept(self) -> bytes:
        if self._folder is None:
            return self._entropy(32)
        root = self._folder.load_secret(_NAME)
        if root is None:
            root = self._entropy(32)
            self._folder.save_secret(_NAME, root)
        return root
