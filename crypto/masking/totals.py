"""A one-time MAC of totals that adds up over silos: who has no key can change none of them.

The silos of a sum share a key that the coordinator has not. With ``p = 2**89 - 1``, a point ``r``
and pads ``b_i`` derived from that key and the sum's view, silo ``i`` adds to its vector ::

    w_i = b_i + sum_k t_ik r**(k + 1)    (mod p)

of its parts ``t_ik`` of the totals. Sums of words are words of sums: from totals ``T_k`` that the
coordinator sends back with the sum of the words every silo checks ``sum_i w_i - b_i = sum_k T_k
r**(k + 1)``. The pads make the sum of the words uniform to who has no key, so that it says nothing
of ``r``; other totals fit with probability ``n / p`` for ``n`` of them, once a view.

``p`` is a prime above ``2**64``: neither a factor nor a multiple of it turns one 64-bit total into
another. A word travels as limbs of 30 bits in elements of at least 48, so that words of ``2**18``
silos add up. What is called a word here is the MAC's tag.

Totals that wrap around ``2**64``, such as those of random residues, have :class:`ResiduesCheck`:
one word ``b_i + sum_k a_k t_ik`` modulo ``2**64``, with a secret factor ``a_k`` for each. Only the
lowest 32 bits of such totals mean anything: a change of these passes with probability ``2**-33``.

References
----------
Carter and Wegman, New hash functions and their use in authentication and set equality, JCSS 1981.
Cramer and others, SPDZ2k: efficient MPC mod 2^k for dishonest majority, CRYPTO 2018 (the idea of
tags modulo a larger power of two than the values).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.masking.key_agreement import encode_fields, expand
from hedgerow.crypto.masking.keystream import keystream

MODULUS = (1 << 89) - 1
N_LIMBS = 3
LIMB_BITS = 30

_LIMB = (1 << LIMB_BITS) - 1
_BYTES = 16


def totals_key(group_key: bytes, session: str) -> bytes:
    """Return the 32-byte key of the words of a session, from the key that its silos share."""
    return expand(group_key, encode_fields("node totals", session))


class TotalsCheck:
    """The check of the totals of one sum, integers that do not wrap around.

    Parameters
    ----------
    key : bytes
        :func:`totals_key`.
    silos : sequence of str
        Whose vectors may be in it, sorted.
    """

    N_WORDS = N_LIMBS

    def __init__(self, key: bytes, view: bytes, silos: Sequence[str], n_totals: int) -> None:
        self.n_totals = n_totals
        stream = keystream(
            expand(key, encode_fields("word", view, *silos)), _BYTES * (1 + len(silos))
        )
        numbers = [
            int.from_bytes(stream[at : at + _BYTES], "little") % MODULUS
            for at in range(0, len(stream), _BYTES)
        ]
        self._point = numbers[0]
        self._powers = [numbers[0]]
        self._pads = dict(zip(silos, numbers[1:], strict=True))

    def word(self, silo: str, totals: NDArray[np.int64]) -> list[int]:
        """Return the limbs of a silo's word of its parts of the totals."""
        word = (self._hash(totals.tolist()) + self._pads[silo]) % MODULUS
        return [word >> LIMB_BITS * k & _LIMB for k in range(N_LIMBS)]

    def holds(
        self, totals: NDArray[np.int64], word: NDArray[np.int64], present: Iterable[str]
    ) -> bool:
        """Return whether totals are those of the silos present, whose words' limbs add to these."""
        found = sum(limb << LIMB_BITS * k for k, limb in enumerate(word.tolist()))
        pads = sum(self._pads[silo] for silo in present)
        return bool((found - pads - self._hash(totals.tolist())) % MODULUS == 0)

    def _hash(self, numbers: list[int]) -> int:
        """Return ``sum_k t_k r**(k + 1)``; the powers serve the own word and the check."""
        powers = self._powers
        while len(powers) < len(numbers):
            powers.append(powers[-1] * self._point % MODULUS)
        found: int = sum(map(mul, numbers, powers))
        return found % MODULUS


class ResiduesCheck:
    """The check of the totals of one sum, residues of ``2**64`` of which 32 bits mean something.

    Parameters
    ----------
    key, view, silos, n_totals
        As of :class:`TotalsCheck`.
    """

    N_WORDS = 1

    def __init__(self, key: bytes, view: bytes, silos: Sequence[str], n_totals: int) -> None:
        self.n_totals = n_totals
        stream = expand(key, encode_fields("residues", view, *silos))
        numbers = np.frombuffer(keystream(stream, 8 * (n_totals + len(silos))), "<u8")
        self._factors = numbers[:n_totals]
        self._pads = dict(zip(silos, numbers[n_totals:].tolist(), strict=True))

    def word(self, silo: str, totals: NDArray[np.int64]) -> list[int]:
        """Return a silo's word of its parts of the totals."""
        return [(self._hash(totals) + self._pads[silo]) % 2**64]

    def holds(
        self, totals: NDArray[np.int64], word: NDArray[np.int64], present: Iterable[str]
    ) -> bool:
        """Return whether totals are those of the silos present, whose words add to this one."""
        pads = sum(self._pads[silo] for silo in present)
        return bool((int(word[0]) - pads - self._hash(totals)) % 2**64 == 0)

    def _hash(self, totals: NDArray[np.int64]) -> int:
        return int((self._factors * totals.view(np.uint64)).sum(dtype=np.uint64))


Check = TotalsCheck | ResiduesCheck
"""The check of one sum."""
