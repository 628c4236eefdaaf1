"""Paillier keys: the modulus n, public, and its factors."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import gmpy2
from gmpy2 import mpz

from hedgerow.crypto.errors import KeyRejected

KEY_BITS = (2048, 3072, 4096)
KEY_ID_BYTES = 16
_PUBLIC_MAGIC = b"HGP1"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What others need to sum and to re-randomise.

    Parameters
    ----------
    n
        Modulus, a product of two primes, of 2048 bits at least.
    insecure_test_key
        Accept a modulus of any size. For tests of this package only.
    """

    n: int
    insecure_test_key: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        least = 8 if self.insecure_test_key else KEY_BITS[0]
        if not least <= self.bits <= KEY_BITS[-1] or self.n % 2 == 0:
            raise KeyRejected(
                f"expected an odd modulus of {least} to {KEY_BITS[-1]} bits, received {self.bits}"
            )

    @property
    def bits(self) -> int:
        """Length of the modulus."""
        return int(self.n).bit_length()

    @property
    def plaintext_bytes(self) -> int:
        """Bytes of a number below n."""
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of a ciphertext: two moduli wide."""
        return 2 * self.plaintext_bytes

    @property
    def largest_plaintext(self) -> int:
        """Largest magnitude of a plaintext, n // 3 − 1 as in ``phe``, so that overflow shows."""
        return int(self.n) // 3 - 1

    @property
    def key_id(self) -> bytes:
        """First 16 bytes of the SHA-256 of the serialised key."""
        return hashlib.sha256(b"hedgerow paillier key id" + self.to_bytes()).digest()[:KEY_ID_BYTES]

    def to_bytes(self) -> bytes:
        """Serialise: ``HGP1``, bits (u16), n; little-endian."""
        n = int(self.n).to_bytes(self.plaintext_bytes, "little")
        return _PUBLIC_MAGIC + self.bits.to_bytes(2, "little") + n

    @classmethod
    def from_bytes(cls, data: bytes, *, insecure_test_key: bool = False) -> PublicKey:
        """Read :meth:`to_bytes`.

        Raises
        ------
        KeyRejected
            Truncated, of another format, or too small.
        """
        head = len(_PUBLIC_MAGIC) + 2
        if len(data) < head or not data.startswith(_PUBLIC_MAGIC):
            raise KeyRejected("not a Paillier public key of this format")
        bits = int.from_bytes(data[head - 2 : head], "little")
        expected = head + (bits + 7) // 8
        n = int.from_bytes(data[head:], "little")
        if len(data) != expected or n.bit_length() != bits:
            raise KeyRejected(
                f"expected {expected} bytes of public key for {bits} bits, received {len(data)}"
            )
        return cls(n, insecure_test_key)


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The factors of a public key's modulus; never printed.

    Parameters
    ----------
    public_key
        The key that others get.
    p, q
        Its prime factors.
    """

    public_key: PublicKey
    p: int = field(repr=False)
    q: int = field(repr=False)

    def __post_init__(self) -> None:
        p, q, n = mpz(self.p), mpz(self.q), mpz(self.public_key.n)
        if p * q != n or p == q or p < 3 or q < 3:
            raise KeyRejected("the factors do not belong to the modulus")
        if not (gmpy2.is_prime(p) and gmpy2.is_prime(q)):
            raise KeyRejected("the factors are not primes")
        if gmpy2.gcd(n, (p - 1) * (q - 1)) != 1:
            raise KeyRejected("the modulus divides no safe group: gcd(n, φ(n)) is not 1")


def generate_private_key(bits: int = 2048, *, insecure_test_key: bool = False) -> PrivateKey:
    """Return a fresh key whose modulus has exactly ``bits`` bits.

    Parameters
    ----------
    bits
        2048, 3072 or 4096.
    insecure_test_key
        Allow any even number of bits from 32 on. For tests of this package only.

    Raises
    ------
    KeyRejected
        Another size was asked for.
    """
    if not (insecure_test_key and bits >= 32 and bits % 2 == 0) and bits not in KEY_BITS:
        raise KeyRejected(f"expected a key of {KEY_BITS} bits, received {bits}")
    half = bits // 2
    while True:
        p, q = _random_prime(half), _random_prime(half)
        if p != q and gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1:
            return PrivateKey(PublicKey(int(p * q), insecure_test_key), int(p), int(q))


def _random_prime(bits: int) -> mpz:
    """Return a random prime with its two top bits set, so that products are full."""
    while True:
        candidate = mpz(secrets.randbits(bits)) | 1 | mpz(3) << (bits - 2)
        if gmpy2.is_prime(candidate, 40):
            return candidate
