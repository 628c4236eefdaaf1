"""Private keys at rest: sealed with a passphrase, a key file, or a key in an HSM.

A sealed key is ChaCha20-Poly1305 over the factors of a Paillier modulus, the scalars of an
EC-ElGamal key, or the bytes of another secret, with everything before the ciphertext as associated
data. The sealing key comes from a passphrase through scrypt (RFC 7914; N = 2^17, r = 8, p = 1: 128
MiB and about half a second a guess), or from a key file of 32 random bytes or more through
HKDF-SHA-256, or from an HSM (:mod:`hedgerow.crypto.ciphers.tokens`). Opening tells neither a wrong
passphrase from damage nor anything of the key.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from hedgerow.crypto.ciphers import elgamal
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
from hedgerow.crypto.ciphers.tokens import TokenSecret
from hedgerow.crypto.durable import write_atomically
from hedgerow.crypto.errors import KeyRejected

AnyPrivateKey = PrivateKey | elgamal.ElGamalPrivateKey

_MAGIC = b"HGPK1"
_SALT_BYTES, _NONCE_BYTES = 16, 12
_LEAST_SECRET_BYTES = {"passphrase": 12, "key file": 32}
_KINDS = ("passphrase", "key file", "token")
"""By the byte that a sealed key has for each."""
_SCRYPT_LOG2_N = 17
_SECRET = b"hedgerow secret"
"""In place of a public key, where what is sealed has none."""


@dataclass(frozen=True, slots=True)
class SealingSecret:
    """What a sealed key opens with; never printed."""

    kind: str
    """``passphrase`` or ``key file``."""
    value: bytes = field(repr=False)
    """The passphrase in UTF-8 (12 bytes at least), or the file's bytes (32 at least)."""

    def __post_init__(self) -> None:
        if self.kind not in _LEAST_SECRET_BYTES:
            kinds = tuple(_LEAST_SECRET_BYTES)
            raise ValueError(f"expected one of {kinds}, received {self.kind!r}")
        if len(self.value) < _LEAST_SECRET_BYTES[self.kind]:
            raise ValueError(
                f"expected a {self.kind} of at least {_LEAST_SECRET_BYTES[self.kind]} bytes"
            )

    def key(self, salt: bytes) -> bytes:
        """Return the sealing key of a file; 32 bytes."""
        if self.kind == "key file":
            return HKDF(SHA256(), 32, salt, b"hedgerow paillier key file").derive(self.value)
        return Scrypt(salt=salt, length=32, n=1 << _SCRYPT_LOG2_N, r=8, p=1).derive(self.value)


AnySecret = SealingSecret | TokenSecret


def seal_private_key(private_key: AnyPrivateKey, secret: AnySecret) -> bytes:
    """Return the key, readable only with ``secret``; every call gives other bytes."""
    if isinstance(private_key, elgamal.ElGamalPrivateKey):
        public, hidden = (
            elgamal.PUBLIC_MAGIC + private_key.public_key().to_bytes(),
            private_key.to_bytes(),
        )
    else:
        public = private_key.public_key.to_bytes()
        width = private_key.public_key.plaintext_bytes
        hidden = b"".join(int(x).to_bytes(width, "little") for x in (private_key.p, private_key.q))
    return _seal(public, hidden, secret)


def _seal(public: bytes, hidden: bytes, secret: AnySecret) -> bytes:
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    head = (
        _MAGIC
        + bytes([_KINDS.index(secret.kind)])
        + salt
        + nonce
        + len(public).to_bytes(4, "little")
        + public
    )
    return head + ChaCha20Poly1305(secret.key(salt)).encrypt(nonce, hidden, head)


def open_private_key(
    sealed: bytes, secret: AnySecret, *, insecure_test_key: bool = False
) -> AnyPrivateKey:
    """Return the key of :func:`seal_private_key`.

    Raises
    ------
    KeyRejected
        Another format, another kind of secret, a wrong secret, or damage.
    """
    public, hidden = _open(sealed, secret)
    if public.startswith(elgamal.PUBLIC_MAGIC):
        return elgamal.ElGamalPrivateKey.from_bytes(hidden)
    public_key = PublicKey.from_bytes(public, insecure_test_key=insecure_test_key)
    width = public_key.plaintext_bytes
    p, q = (int.from_bytes(hidden[i : i + width], "little") for i in (0, width))
    return PrivateKey(public_key, p, q)


def _open(sealed: bytes, secret: AnySecret) -> tuple[bytes, bytes]:
    """Return the public and the hidden part of what was sealed."""
    at = len(_MAGIC) + 1 + _SALT_BYTES + _NONCE_BYTES
    if len(sealed) < at + 4 or not sealed.startswith(_MAGIC) or sealed[len(_MAGIC)] >= len(_KINDS):
        raise KeyRejected("not a sealed private key of this format")
    kind = _KINDS[sealed[len(_MAGIC)]]
    if kind != secret.kind:
        raise KeyRejected(f"this key was sealed with a {kind}, received a {secret.kind}")
    salt = sealed[len(_MAGIC) + 1 : len(_MAGIC) + 1 + _SALT_BYTES]
    nonce = sealed[at - _NONCE_BYTES : at]
    end = at + 4 + int.from_bytes(sealed[at : at + 4], "little")
    if end > len(sealed):
        raise KeyRejected("a sealed private key is truncated")
    public = sealed[at + 4 : end]
    try:
        cipher = ChaCha20Poly1305(secret.key(salt))
        hidden = cipher.decrypt(nonce, sealed[end:], sealed[:end])
    except InvalidTag:
        raise KeyRejected(f"wrong {kind}, or a damaged sealed key") from None
    return public, hidden


def make_key_file(path: Path) -> None:
    """Make a key file that only its owner can read, unless there is one."""
    if not path.exists():
        write_atomically(path, os.urandom(64))


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Sealed private keys in a folder, one file a name."""

    folder: Path
    """Made with mode 0700 where it is missing."""
    secret: AnySecret
    """What all of its keys are sealed with."""

    def _file(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.key"

    def save(self, name: str, private_key: AnyPrivateKey) -> None:
        """Write a key atomically, readable by its owner only."""
        write_atomically(self._file(name), seal_private_key(private_key, self.secret))

    def check(self) -> None:
        """Open one of the keys, so that a wrong secret shows before it is needed.

        Raises
        ------
        KeyRejected
            As :func:`open_private_key`; names the file.
        """
        for path in sorted(self.folder.glob("*.key"))[:1]:
            try:
                _open(path.read_bytes(), self.secret)
            except KeyRejected as error:
                raise KeyRejected(f"{path}: {error}") from None

    def load(self, name: str, *, insecure_test_key: bool = False) -> AnyPrivateKey | None:
        """Return the key of a name, or None where there is none.

        Raises
        ------
        KeyRejected
            As :func:`open_private_key`.
        """
        try:
            sealed = self._file(name).read_bytes()
        except FileNotFoundError:
            return None
        return open_private_key(sealed, self.secret, insecure_test_key=insecure_test_key)

    def save_secret(self, name: str, value: bytes) -> None:
        """Write a secret that is no key pair; under a name that no session has."""
        write_atomically(self._file(name), _seal(_SECRET, value, self.secret))

    def load_secret(self, name: str) -> bytes | None:
        """Return a secret, or None where there is none; raises as :meth:`load`."""
        try:
            public, value = _open(self._file(name).read_bytes(), self.secret)
        except FileNotFoundError:
            return None
        if public != _SECRET:
            raise KeyRejected("expected a sealed secret, received a private key")
        return value

    def erase(self, name: str) -> None:
        """Delete the key of a name, if there is one."""
        self._file(name).unlink(missing_ok=True)
