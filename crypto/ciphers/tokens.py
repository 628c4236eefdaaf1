"""A key that seals others and stays in an HSM: what it seals opens with the HSM only (PKCS#11).

The HSM computes HMAC-SHA-256 of each file's salt by a generic secret key that never leaves it; the
sealing key of the file follows from the result. A copy of the folder, and of all settings, opens
nothing.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hedgerow.crypto.durable import write_atomically
from hedgerow.crypto.errors import KeyRejected

FORM = "pkcs11:token=TOKEN;object=KEY?module-path=LIBRARY&pin-source=FILE"
_PATH, _QUERY = {"token", "object"}, {"module-path", "pin-source"}
_INFO = b"hedgerow sealing key of a token"


@dataclass(frozen=True, slots=True)
class TokenUri:
    """Where a key is, as a URI of RFC 7512 says."""

    token: str
    key: str
    module: str
    """The vendor's PKCS#11 library."""
    pin_file: Path

    @classmethod
    def parse(cls, text: str) -> TokenUri:
        """Return what a URI says.

        Raises
        ------
        ValueError
            It is not of the form; the text does not repeat it, for it may hold a PIN.
        """
        scheme, _, rest = text.partition(":")
        path, _, query = rest.partition("?")
        parts = dict(one.partition("=")[::2] for one in path.split(";"))
        asked = dict(one.partition("=")[::2] for one in query.split("&"))
        found = {name: unquote(value) for name, value in (parts | asked).items() if value}
        if scheme != "pkcs11" or parts.keys() != _PATH or asked.keys() != _QUERY or len(found) != 4:
            raise ValueError(f"key_uri: expected {FORM}, of these parts only")
        pin_file = re.sub("^file:(//)?", "", found["pin-source"])
        return cls(found["token"], found["object"], found["module-path"], Path(pin_file))


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """What a key in an HSM seals; in the place of a secret in this process' memory."""

    uri: TokenUri
    refused: Path
    """Notes which token has refused which file's PIN. It is not retried: a few wrong tries, such
    as those of a process that is started again and again, lock a token for everybody."""
    kind: str = field(default="token", init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def key(self, salt: bytes) -> bytes:
        """Return the sealing key of a file; 32 bytes.

        Raises
        ------
        KeyRejected
            The HSM, or the key in it, cannot be used.
        """
        with self._lock:  # a session of PKCS#11 serves one caller at a time
            signed = _signed(self.uri, self.refused, _INFO + salt)
        return HKDF(SHA256(), 32, salt, _INFO).derive(signed)


def _stamp(uri: TokenUri) -> bytes:
    """Return by what a token and its PIN's file are known: nothing that says a word of the PIN."""
    found = uri.pin_file.stat()
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {uri.token!r}\n".encode()


def _signed(uri: TokenUri, refused: Path, message: bytes) -> bytes:
    """Return HMAC-SHA-256 of a message, as the HSM computes it; logs in each time, and out."""
    try:
        import pkcs11
    except ImportError:
        raise KeyRejected("key_uri needs python-pkcs11: pip install 'hedgerow[pkcs11]'") from None
    from pkcs11 import exceptions as reasons

    try:
        stamp = _stamp(uri)
        pin = uri.pin_file.read_text().strip()
        before = refused.read_bytes() if refused.exists() else b""
    except (OSError, UnicodeDecodeError) as error:
        raise KeyRejected(f"{uri.pin_file}: the PIN cannot be read ({error})") from None
    if before == stamp:
        raise KeyRejected(
            f"key_uri: {uri.token} has refused the PIN in {uri.pin_file}, which is not retried, "
            "for wrong tries lock a token: write the right PIN there, or the same once it is right"
        )
    try:
        library: Any = pkcs11.lib(uri.module)
        library.reinitialize()  # an HSM that was away is found again
        token = library.get_token(token_label=uri.token)
        if pkcs11.TokenFlag.USER_PIN_FINAL_TRY in token.flags:
            raise KeyRejected(
                f"key_uri: one more wrong PIN locks {uri.token}, so none is tried: log in by hand "
                "with the right one (pkcs11-tool --login) first"
            )
        with token.open(user_pin=pin) as session:
            refused.unlink(missing_ok=True)
            found = session.get_key(label=uri.key, object_class=pkcs11.ObjectClass.SECRET_KEY)
            if found[pkcs11.Attribute.EXTRACTABLE]:
                raise KeyRejected(f"key {uri.key} of {uri.token} can be taken out: make another")
            return bytes(found.sign(message, mechanism=pkcs11.Mechanism.SHA256_HMAC))
    except reasons.NoSuchToken:
        why = f"no token is called {uri.token}"
    except reasons.NoSuchKey:
        why = f"{uri.token} has no secret key {uri.key}"
    except (reasons.PinIncorrect, reasons.PinLenRange, reasons.PinInvalid):
        with suppress(OSError):  # a full disk, or a folder of others: the refusal is said anyway
            write_atomically(refused, stamp)
        why = f"{uri.token} refuses the PIN in {uri.pin_file}; it is not retried"
    except reasons.PinLocked:
        why = f"the PIN of {uri.token} is locked after wrong ones: its administrator unlocks it"
    except (reasons.MultipleTokensReturned, reasons.MultipleObjectsReturned):
        why = f"several tokens are called {uri.token}, or several of its keys {uri.key}"
    except reasons.PKCS11Error as error:
        why = f"{uri.token} does not answer ({str(error) or type(error).__name__})"
    raise KeyRejected(f"key_uri: {why} (library {uri.module})")
