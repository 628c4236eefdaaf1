"""What a vault refuses: every error that may cross the boundary of the crypto process.

No text of a refusal holds a secret or a value of a table, so other parties may read it.
"""

from __future__ import annotations


class Refusal(Exception):
    """A vault does not do what it was asked to."""


class VaultRefused(Refusal):
    """The request would break a rule of the vault; nothing was revealed."""


class NothingHeld(Refusal):
    """The vault has no key or no rows of this session; a restarted vault needs them again."""


class InputRefused(Refusal, ValueError):
    """An argument, or what another party sent, cannot be used."""


class KeyRejected(InputRefused):
    """A key is malformed, of low order, or smaller than is safe."""


class BoxInvalid(InputRefused):
    """A sealed box was not made by its sender for this use, or was altered."""


class CiphertextRejected(InputRefused):
    """Bytes are no ciphertexts of the key."""


class PlaintextOutOfRange(InputRefused):
    """A plaintext does not fit the modulus, before encryption or after a sum."""


class RangeRefused(InputRefused):
    """A value, or the sum of all rows, would not fit the range in which logarithms are found."""


class HistogramRefused(InputRefused):
    """Bins, rows or an answer do not fit together."""


class PackingRefused(InputRefused):
    """Numbers, or a number of slots, do not fit a layout."""


class PsiRefused(InputRefused):
    """A message, a set or an id breaks protocol or policy; the text says which, never the id."""


class InvalidPoint(InputRefused):
    """Bytes are no valid point: not canonical, not in the group, or of small order."""
