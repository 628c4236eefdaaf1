"""Paillier moduli with their proofs: one to take, and those that nobody should."""

from __future__ import annotations

import gmpy2

from hedgerow.crypto.ciphers import paillier_keys
from hedgerow.crypto.ciphers.paillier_keys import PROOF_ROUNDS, PrivateKey, PublicKey

FORGED = (
    "no proof", "a root left out", "another root", "roots in another order", "a prime", "a square",
    "a small factor", "a factor of φ",
)  # fmt: skip


def with_primes(p: int, q: int) -> PrivateKey:
    """Return a key of any two numbers, without the checks of one's own key."""
    key = object.__new__(PrivateKey)
    for name, value in (("public_key", PublicKey(p * q, True)), ("p", p), ("q", q)):
        object.__setattr__(key, name, value)
    return key


def prime(bits: int, start: int = 0) -> int:
    return int(gmpy2.next_prime((3 << bits - 2) + start))


def good_key(bits: int) -> PrivateKey:
    """Return a key of fixed primes."""
    return with_primes(prime(bits // 2), prime(bits // 2, 1 << 200))


def forged(kind: str, bits: int) -> tuple[bytes, str]:
    """Return a public key to be refused, with the best proof that its maker can give, and why."""
    good = good_key(bits)
    p, public = good.p, good.public_key.to_bytes()
    proof = good.certified_bytes()[len(public) :]
    width = len(proof) // PROOF_ROUNDS
    if kind == "no proof":
        return public, f"expected a proof of the modulus in {len(proof)} bytes, received 0"
    if kind == "a root left out":
        return public + proof[:-width], "expected a proof of the modulus"
    if kind == "another root":
        return public + proof[:-1] + bytes([proof[-1] ^ 1]), "does not hold"
    if kind == "roots in another order":
        return public + proof[width:] + proof[:width], "does not hold"
    if kind == "a prime":
        n = prime(bits)
        return _with_powers(n, int(gmpy2.invert(n, n - 1))), "the modulus is a prime"
    if kind == "a square":
        return PublicKey(p * p, True).to_bytes() + proof, "does not hold"
    if kind == "a small factor":
        key = with_primes(prime(16), prime(bits - 16))
        return key.certified_bytes(), "a prime factor below 65536"
    assert kind == "a factor of φ"
    k = 2
    while not gmpy2.is_prime(k * p + 1):
        k += 2
    n = p * (k * p + 1)
    return _with_powers(n, n), "does not hold"  # most elements have no root


def _with_powers(n: int, power: int) -> bytes:
    """Return a modulus with powers of its elements as their roots."""
    key = PublicKey(n, True)
    roots = [int(gmpy2.powmod(e, power, n)) for e in paillier_keys._challenges(key)]
    return key.to_bytes() + b"".join(root.to_bytes(key.plaintext_bytes, "little") for root in roots)
