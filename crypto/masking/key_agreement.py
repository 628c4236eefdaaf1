"""Secrets between two silos: X25519 with ML-KEM-768, HKDF-SHA256 and sealed boxes.

Assumptions: gap Diffie-Hellman on Curve25519 (about 128 bits), SHA-256 as a random oracle within
HKDF, ChaCha20-Poly1305 as an authenticated cipher. Hybrid secrets hold while either Diffie-Hellman
or ML-KEM-768 (module learning with errors, FIPS 203, category 3) does: both secrets are
concatenated, as TLS does for X25519MLKEM768, and extracted under a salt that binds all public keys;
names and ciphertexts are in the info.

References
----------
RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305), FIPS 203 (ML-KEM);
draft-ietf-tls-ecdhe-mlkem (the concatenation, ML-KEM first); NIST SP 800-56C rev. 2, section 2 (a
second secret); Giacon, Heuer, Poettering 2018 (why ciphertexts belong into the derivation).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM768PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from hedgerow.crypto.errors import BoxInvalid, KeyRejected

NONCE_BYTES = 12
BOX_OVERHEAD_BYTES = NONCE_BYTES + 16
KEY_BYTES = 32
KEM_SEED_BYTES, KEM_KEY_BYTES, KEM_CIPHERTEXT_BYTES = 64, 1184, 1088
_head = struct.Struct(">cI").pack

Entropy = Callable[[int], bytes]
"""Returns that many bytes from a cryptographic generator; ``os.urandom`` outside tests."""


def encode_fields(*fields: bytes | str | int) -> bytes:
    """Return an injective encoding of a sequence of fields, for contexts, digests and signatures.

    Each field is a type letter, its length in four bytes (big endian) and its bytes: text in
    UTF-8, an integer in decimal.
    """
    out: list[bytes] = []
    for value in fields:
        if isinstance(value, bytes):
            letter, raw = b"b", value
        elif isinstance(value, str):
            letter, raw = b"s", value.encode()
        else:
            letter, raw = b"i", b"%d" % value
        out += (_head(letter, len(raw)), raw)
    return b"".join(out)


def new_private_key(entropy: Entropy = os.urandom) -> X25519PrivateKey:
    """Return a fresh X25519 private key."""
    return X25519PrivateKey.from_private_bytes(entropy(32))


def public_bytes(private_key: X25519PrivateKey) -> bytes:
    """Return the 32-byte public key."""
    return private_key.public_key().public_bytes_raw()


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract with SHA-256: a 32-byte pseudo-random root from a secret."""
    mac = hmac.HMAC(salt or bytes(32), hashes.SHA256())
    mac.update(secret)
    return mac.finalize()


def expand(root: bytes, info: bytes, n_bytes: int = 32) -> bytes:
    """HKDF-Expand with SHA-256: ``n_bytes`` for the use that ``info`` names."""
    return HKDFExpand(algorithm=hashes.SHA256(), length=n_bytes, info=info).derive(root)


def shared_secret(private_key: X25519PrivateKey, peer_public_key: bytes) -> bytes:
    """Return the 32-byte secret of X25519.

    Raises
    ------
    KeyRejected
        The peer's key is malformed or of low order (the secret would be zero).
    """
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(peer_public_key))
    except ValueError as error:
        raise KeyRejected("not an X25519 public key, or one of low order") from error


def new_kem_key(entropy: Entropy = os.urandom) -> MLKEM768PrivateKey | None:
    """Return a fresh ML-KEM-768 private key; None where OpenSSL has no ML-KEM."""
    try:
        return MLKEM768PrivateKey.from_seed_bytes(entropy(KEM_SEED_BYTES))
    except UnsupportedAlgorithm:
        return None


def encapsulate(kem_key: bytes) -> tuple[bytes, bytes]:
    """Return a fresh secret of 32 bytes and its ciphertext for the holder of a public key.

    Raises
    ------
    KeyRejected
        The key is malformed, or OpenSSL has no ML-KEM.
    """
    try:
        return MLKEM768PublicKey.from_public_bytes(kem_key).encapsulate()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyRejected("not an ML-KEM-768 public key") from error


def decapsulate(private_key: MLKEM768PrivateKey, ciphertext: bytes) -> bytes:
    """Return the secret of a ciphertext; of one that was altered, another secret.

    Raises
    ------
    KeyRejected
        The ciphertext has another length.
    """
    if len(ciphertext) != KEM_CIPHERTEXT_BYTES:
        raise KeyRejected(f"expected a ciphertext of {KEM_CIPHERTEXT_BYTES} bytes")
    return private_key.decapsulate(ciphertext)


def hybrid_root(salt: bytes, secrets: Sequence[bytes], *info: bytes | str) -> bytes:
    """Return a 32-byte root from several secrets, which holds while one of them does.

    Parameters
    ----------
    secrets : sequence of bytes
        Of 32 bytes each: those of ML-KEM, then that of X25519.
    info : bytes or str
        The use, the names and the ciphertexts.
    """
    return expand(extract(salt, b"".join(secrets)), encode_fields("hedgerow hybrid v1", *info))


def hybrid_box_root(
    salt: bytes, shared: bytes, sender: str, receiver: str, secret: bytes, ciphertext: bytes
) -> bytes:
    """Return the root of the boxes that go along with a sender's encapsulation.

    Parameters
    ----------
    shared : bytes
        Secret of X25519.
    secret, ciphertext : bytes
        Of the sender's encapsulation to the receiver.
    """
    return hybrid_root(salt, (secret, shared), "box", sender, receiver, ciphertext)


def hybrid_pair_root(
    salt: bytes, shared: bytes, encapsulated: Mapping[str, tuple[bytes, bytes]]
) -> bytes:
    """Return the root that two silos share, each of which has encapsulated to the other.

    Parameters
    ----------
    shared : bytes
        Secret of X25519.
    encapsulated : Mapping[str, tuple of bytes]
        By silo that encapsulated, the secret and its ciphertext.
    """
    (low, (first, its)), (high, (second, theirs)) = sorted(encapsulated.items())
    return hybrid_root(salt, (first, second, shared), "pair", low, high, its, theirs)


class HybridBoxes:
    """Roots of the boxes between two parties, each direction by its sender's own encapsulation.

    A sender puts its ciphertext in front of its first box, so that no exchange is needed for it.

    Parameters
    ----------
    salt, shared : bytes
        Digest of what both agree on, and the secret of X25519.
    own, peer : str
        Names of both.

    Raises
    ------
    KeyRejected
        The peer's key is malformed.
    """

    def __init__(
        self,
        private_key: MLKEM768PrivateKey,
        kem_key: bytes,
        salt: bytes,
        shared: bytes,
        own: str,
        peer: str,
    ) -> None:
        self._private_key = private_key
        both = {own: private_key.public_key().public_bytes_raw(), peer: kem_key}
        self._salt = extract(
            salt, encode_fields(*(x for pair in sorted(both.items()) for x in pair))
        )
        self._shared, self._names = shared, (peer, own)
        secret, self._ciphertext = encapsulate(kem_key)
        self.sends = hybrid_box_root(self._salt, shared, own, peer, secret, self._ciphertext)
        self._receives = b""

    def sent(self, box: bytes) -> bytes:
        """Return a box as it is sent: the first one behind the ciphertext."""
        ciphertext, self._ciphertext = self._ciphertext, b""
        return ciphertext + box

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the root of the peer's boxes and its box, of what came from it.

        Raises
        ------
        BoxInvalid
            The first box comes without a ciphertext.
        """
        if self._receives:
            return self._receives, data
        ciphertext, box = data[:KEM_CIPHERTEXT_BYTES], data[KEM_CIPHERTEXT_BYTES:]
        if len(ciphertext) < KEM_CIPHERTEXT_BYTES:
            raise BoxInvalid("the first box comes without a ciphertext of ML-KEM")
        secret = decapsulate(self._private_key, ciphertext)
        self._receives = hybrid_box_root(self._salt, self._shared, *self._names, secret, ciphertext)
        return self._receives, box


def seal(key: bytes, plaintext: bytes, associated: bytes, entropy: Entropy = os.urandom) -> bytes:
    """Return a box: a random 12-byte nonce, then ciphertext and tag of ChaCha20-Poly1305.

    Nonces are random, so one 32-byte key should seal fewer than 2**32 boxes.
    """
    nonce = entropy(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, associated)


def open_box(key: bytes, box: bytes, associated: bytes) -> bytes:
    """Return a box's plaintext.

    Raises
    ------
    BoxInvalid
        Key, associated data or box are not those of :func:`seal`.
    """
    if len(box) < BOX_OVERHEAD_BYTES:
        raise BoxInvalid(f"a box has at least {BOX_OVERHEAD_BYTES} bytes, received {len(box)}")
    try:
        return ChaCha20Poly1305(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], associated)
    except InvalidTag as error:
        raise BoxInvalid("the box does not open: altered, or sealed for another use") from error
