"""Paillier encryption of whole vectors, with generator n + 1.

A ciphertext of m is (1 + m·n)·o mod n², where the *obfuscator* o is an n-th residue that nobody
else knows; :mod:`crypto.ciphers.obfuscators` makes them. Multiplying ciphertexts adds plaintexts.
Vectors of ciphertexts are contiguous little-endian bytes of one width, so that they stream as they
are. Keys and ciphertexts are those of ``phe``: the same n, the same integers below n².

Assumption: decisional composite residuosity for moduli of 2048 bits (about 112-bit security by
NIST SP 800-57), 3072 (about 128) or 4096. The scheme is malleable by design and protects against
eavesdroppers and honest-but-curious receivers of ciphertexts, not against someone for whom the key
holder decrypts what they choose. Running time depends on secrets, see
:mod:`crypto.arithmetic.modular`.

References
----------
P. Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", 1999, §4, §7.
I. Damgård, M. Jurik, J. B. Nielsen, "A generalization of Paillier's public-key system with
applications to electronic voting", 2010, §4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.arithmetic.modular import Residues, ints_to_bytes
from hedgerow.crypto.ciphers.obfuscators import Obfuscators
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
from hedgerow.crypto.ciphers.roles import Ciphertexts
from hedgerow.crypto.errors import CiphertextRejected, PlaintextOutOfRange

_ROWS_A_PASS = 4096


class PublicOperations:
    """What anyone can do with a public key."""

    def __init__(self, public_key: PublicKey, engine: Engine | None = None) -> None:
        self.public_key = public_key
        self.engine = engine or Engine()
        self.key_id = public_key.key_id
        self.modulus = self.engine.modulus(mpz(public_key.n) ** 2)
        self._n = self.modulus.from_ints([public_key.n])
        self._square = np.frombuffer(
            int(self.modulus.value).to_bytes(public_key.ciphertext_bytes, "little"), np.uint8
        )

    def load(self, ciphertexts: Ciphertexts) -> Residues:
        """Check ciphertexts and return them as residues modulo n².

        Raises
        ------
        CiphertextRejected
            Of another width, not below n², or not invertible.
        """
        width = self.public_key.ciphertext_bytes
        if ciphertexts.ndim != 2 or ciphertexts.shape[1] != width:
            raise CiphertextRejected(
                f"expected {width} bytes a ciphertext, received shape {ciphertexts.shape}"
            )
        if not _below(ciphertexts, self._square):
            raise CiphertextRejected("expected ciphertexts below n²")
        residues = self.modulus.load(ciphertexts)
        # A product is invertible where every factor is; 0 is not.
        product = self.modulus.to_ints(self.modulus.product(residues))[0]
        if gmpy2.gcd(product, self.public_key.n) != 1:
            raise CiphertextRejected("expected ciphertexts that are invertible modulo n²")
        return residues

    def store(self, residues: Residues) -> Ciphertexts:
        """Return residues as they are; what leaves the party goes through :meth:`rerandomise`."""
        width = self.public_key.ciphertext_bytes
        data = self.modulus.store(residues)
        if data.shape[1] < width:
            data = np.pad(data, ((0, 0), (0, width - data.shape[1])))
        return data

    def encode(self, plaintexts: Sequence[int]) -> Residues:
        """Return 1 + m·n mod n², a ciphertext with no protection, of every plaintext.

        Raises
        ------
        PlaintextOutOfRange
            A magnitude is above ``largest_plaintext``.
        """
        n, limit = int(self.public_key.n), self.public_key.largest_plaintext
        if len(plaintexts) and not (min(plaintexts) >= -limit and max(plaintexts) <= limit):
            raise PlaintextOutOfRange(f"expected plaintexts of at most {limit.bit_length()} bits")
        data = ints_to_bytes(
            [m if m >= 0 else n + m for m in plaintexts], self.public_key.plaintext_bytes
        )
        products = self.modulus.multiply(self.modulus.load(data), self._n)
        return self.modulus.add(products, self.modulus.ones(len(plaintexts)))

    def encrypt(self, plaintexts: Sequence[int], obfuscators: Obfuscators) -> Ciphertexts:
        """Encrypt signed integers, each under an obfuscator of its own.

        Parameters
        ----------
        plaintexts
            Signed integers of magnitude at most ``largest_plaintext``.
        obfuscators
            Of the same key and kernel.
        """
        return self.rerandomise(self.encode(plaintexts), obfuscators)

    def rerandomise(self, ciphertexts: Residues, obfuscators: Obfuscators) -> Ciphertexts:
        """Return the same plaintexts under fresh obfuscators.

        A party that answers the key holder needs
        :class:`~crypto.ciphers.obfuscators.UniformObfuscators`: the key holder knows every
        obfuscator that went into a sum, and only a uniform n-th residue hides which rows were in
        it.
        """
        if obfuscators.key_id != self.key_id:
            raise CiphertextRejected("expected obfuscators of the ciphertexts' key")
        fresh = obfuscators.take(len(ciphertexts))
        return self.store(self.modulus.multiply(ciphertexts, fresh))

    def add(self, a: Residues, b: Residues) -> Residues:
        """Return ciphertexts of elementwise sums."""
        return self.modulus.multiply(a, b)

    def negate(self, a: Residues) -> Residues:
        """Return ciphertexts of negated plaintexts: inverses mod n², with one division in all.

        References
        ----------
        P. Montgomery, "Speeding the Pollard and elliptic curve methods of factorization", 1987,
        §10.3.1 (simultaneous inversion).
        """
        if len(a) == 0:
            return a
        prefix = [a[:1]]
        for i in range(1, len(a)):
            prefix.append(self.modulus.multiply(prefix[-1], a[i : i + 1]))
        total = self.modulus.to_ints(prefix[-1])[0]
        inverse = self.modulus.from_ints([gmpy2.invert(total, self.modulus.value)])
        inverses = []
        for i in range(len(a) - 1, 0, -1):
            inverses.append(self.modulus.multiply(inverse, prefix[i - 1]))
            inverse = self.modulus.multiply(inverse, a[i : i + 1])
        inverses.append(inverse)
        return np.concatenate(inverses[::-1])


class KeyHolder:
    """What the owner of the private key can do: decrypt, and encrypt through the factors.

    Parameters
    ----------
    private_key
        The key; it stays in this process and its workers.
    """

    def __init__(self, private_key: PrivateKey, engine: Engine | None = None) -> None:
        self.private_key = private_key
        self.public = PublicOperations(private_key.public_key, engine)
        p, q = mpz(private_key.p), mpz(private_key.q)
        self._p, self._q = p, q
        self._halves = [self.public.engine.modulus(prime**2) for prime in (p, q)]
        # (n + 1)^(p − 1) = 1 + (p − 1)·n mod p², whose quotient by p is −q mod p.
        self._scale_p = gmpy2.invert(-q, p)
        self._scale_q = gmpy2.invert(-p, q)
        self._q_inverse = gmpy2.invert(q, p)

    def decrypt(self, ciphertexts: Ciphertexts) -> list[int]:
        """Return the signed plaintexts.

        Raises
        ------
        CiphertextRejected
            As :meth:`PublicOperations.load`.
        PlaintextOutOfRange
            A sum left the range of plaintexts.
        """
        self.public.load(ciphertexts)
        n, limit = mpz(self.private_key.public_key.n), self.private_key.public_key.largest_plaintext
        powers = []
        for prime, modulus in zip((self._p, self._q), self._halves, strict=True):
            raised = modulus.power(modulus.load(ciphertexts), prime - 1)
            powers.append(modulus.to_ints(raised))
        plaintexts = []
        p, q = self._p, self._q
        for at_p, at_q in zip(*powers, strict=True):
            m_p = (at_p - 1) // p * self._scale_p % p
            m_q = (at_q - 1) // q * self._scale_q % q
            m = m_q + q * ((m_p - m_q) * self._q_inverse % p)
            if m > limit:
                m -= n
                if m < -limit:
                    raise PlaintextOutOfRange("a decrypted sum is outside the range of plaintexts")
            plaintexts.append(int(m))
        return plaintexts

    def encrypt(self, plaintexts: Sequence[int], obfuscators: Obfuscators) -> Ciphertexts:
        """See :meth:`PublicOperations.encrypt`; some thousands at a time, to bound memory."""
        width = self.private_key.public_key.ciphertext_bytes
        data = np.empty((len(plaintexts), width), np.uint8)
        for start in range(0, len(plaintexts), _ROWS_A_PASS):
            block = plaintexts[start : start + _ROWS_A_PASS]
            data[start : start + len(block)] = self.public.encrypt(block, obfuscators)
        return data


def _below(data: NDArray[np.uint8], limit: NDArray[np.uint8]) -> bool:
    """Return whether every little-endian row is below ``limit``."""
    undecided = np.arange(len(data))
    for column in range(data.shape[1] - 1, -1, -1):
        if len(undecided) == 0:
            return True
        here = data[undecided, column]
        if (here > limit[column]).any():
            return False
        undecided = undecided[here == limit[column]]
    return len(undecided) == 0
