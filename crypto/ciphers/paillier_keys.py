"""Paillier keys: the modulus n, public, and its factors; the proof that n can be trusted.

To re-randomise under a foreign key relies on gcd(n, φ(n)) = 1: only then is raising to the
n-th power a permutation, so that a fresh r^n hides everything but the plaintext. A key travels with
a proof. The verifier checks that n is composite and has no prime factor below 2^16, derives eight
elements from n, and needs their n-th roots: if a prime divided both n and φ(n), at most one element
in 2^16 would have a root, so a false proof exists with probability 2^-128.

References
----------
S. Goldberg, L. Reyzin, O. Sagga, F. Baldimtsi, "Efficient noninteractive certification of RSA
moduli and beyond", 2019, §3.3 and §4.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cache

import gmpy2
from gmpy2 import mpz

from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.masking.key_agreement import encode_fields, expand

KEY_BITS = (2048, 3072, 4096)
KEY_ID_BYTES = 16
LEAST_FACTOR = 1 << 16
PROOF_ROUNDS = 8
"""κ / log2(LEAST_FACTOR) for a soundness error of 2^-κ, κ = 128."""
PUBLIC_MAGIC = b"HGP1"
_PROOF_DOMAIN = "hedgerow paillier modulus v1"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What others need to sum and to re-randomise."""

    n: int
    """Modulus, a product of two primes, of 2048 bits at least."""
    insecure_test_key: bool = field(default=False, compare=False)
    """Accept a modulus of any size. For tests of this package only."""

    def __post_init__(self) -> None:
        least = 8 if self.insecure_test_key else KEY_BITS[0]
        if not least <= self.bits <= KEY_BITS[-1] or self.n % 2 == 0:
            raise KeyRejected(
                f"expected an odd modulus of {least} to {KEY_BITS[-1]} bits, received {self.bits}"
            )
        if not self.insecure_test_key and self.bits not in KEY_BITS:
            raise KeyRejected(f"expected a modulus of {KEY_BITS} bits, received {self.bits}")

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
        return PUBLIC_MAGIC + self.bits.to_bytes(2, "little") + n

    @classmethod
    def from_bytes(cls, data: bytes, *, insecure_test_key: bool = False) -> PublicKey:
        """Read :meth:`to_bytes`.

        Raises
        ------
        KeyRejected
            Truncated, of another format, or too small.
        """
        head = len(PUBLIC_MAGIC) + 2
        bits = modulus_bits(data)
        expected = head + (bits + 7) // 8
        n = int.from_bytes(data[head:], "little")
        if len(data) != expected or n.bit_length() != bits:
            raise KeyRejected(
                f"expected {expected} bytes of public key for {bits} bits, received {len(data)}"
            )
        return cls(n, insecure_test_key)

    @classmethod
    def from_certified(cls, data: bytes, *, insecure_test_key: bool = False) -> PublicKey:
        """Read :meth:`to_bytes` with the proof of :meth:`PrivateKey.certified_bytes` behind it.

        Raises
        ------
        KeyRejected
            As :meth:`from_bytes`; the modulus is a prime, has a small factor, or its proof is
            missing or wrong.
        """
        width = (modulus_bits(data) + 7) // 8
        end = len(PUBLIC_MAGIC) + 2 + width
        key = cls.from_bytes(data[:end], insecure_test_key=insecure_test_key)
        proof = data[end:]
        if len(proof) != PROOF_ROUNDS * width:
            raise KeyRejected(
                f"expected a proof of the modulus in {PROOF_ROUNDS * width} bytes, "
                f"received {len(proof)}"
            )
        n = mpz(key.n)
        if gmpy2.gcd(n, _small_primes()) != 1:
            raise KeyRejected(f"the modulus has a prime factor below {LEAST_FACTOR}")
        if gmpy2.is_prime(n):
            raise KeyRejected("the modulus is a prime, so everybody can decrypt")
        roots = [
            int.from_bytes(proof[a : a + width], "little") for a in range(0, len(proof), width)
        ]
        for root, element in zip(roots, _challenges(key), strict=True):
            if root >= n or gmpy2.powmod(root, n, n) != element:
                raise KeyRejected("the proof that gcd(n, φ(n)) = 1 does not hold")
        return key


def modulus_bits(data: bytes) -> int:
    """Return the length that a serialised key states of its modulus; nothing else is checked."""
    head = len(PUBLIC_MAGIC) + 2
    if len(data) < head or not data.startswith(PUBLIC_MAGIC):
        raise KeyRejected("not a Paillier public key of this format")
    return int.from_bytes(data[head - 2 : head], "little")


@cache
def _small_primes() -> mpz:
    return gmpy2.primorial(LEAST_FACTOR)


def _challenges(key: PublicKey) -> list[mpz]:
    """Return the elements modulo n whose roots prove it, each from 16 bytes more than n has."""
    root = hashlib.sha256(key.to_bytes()).digest()
    elements = (
        expand(root, encode_fields(_PROOF_DOMAIN, k), key.plaintext_bytes + 16)
        for k in range(PROOF_ROUNDS)
    )
    return [mpz(int.from_bytes(element, "little") % key.n) for element in elements]


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The factors of a public key's modulus; never printed."""

    public_key: PublicKey
    """The key that others get."""
    p: int = field(repr=False)
    q: int = field(repr=False)
    """``p`` and ``q``: its prime factors."""

    def __post_init__(self) -> None:
        p, q, n = mpz(self.p), mpz(self.q), mpz(self.public_key.n)
        if p * q != n or p == q or p < 3 or q < 3:
            raise KeyRejected("the factors do not belong to the modulus")
        if not (gmpy2.is_prime(p) and gmpy2.is_prime(q)):
            raise KeyRejected("the factors are not primes")
        if gmpy2.gcd(n, (p - 1) * (q - 1)) != 1:
            raise KeyRejected("the modulus divides no safe group: gcd(n, φ(n)) is not 1")

    def certified_bytes(self) -> bytes:
        """Return the public key as it travels: its bytes, then the proof of its modulus.

        The proof is an n-th root modulo n of each of :data:`PROOF_ROUNDS` elements that are derived
        from n, each as long as n, little-endian. Roots by the remainder theorem.
        """
        p, q, key = mpz(self.p), mpz(self.q), self.public_key
        to_root = [(r, gmpy2.invert(key.n, r - 1)) for r in (p, q)]
        lift = gmpy2.invert(p, q)
        proof = b""
        for element in _challenges(key):
            at_p, at_q = (gmpy2.powmod(element, d, r) for r, d in to_root)
            root = int(at_p + p * ((at_q - at_p) * lift % q))
            proof += root.to_bytes(key.plaintext_bytes, "little")
        return key.to_bytes() + proof


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
