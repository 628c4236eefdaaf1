"""Certificates of a federation: reading and checking them.

A certificate says who its holder is by one URI, ``hedgerow://<federation>/<role>/<name>``. Keys
are P-256.
"""

from __future__ import annotations

import datetime as dt
import re
import ssl
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificatePublicKeyTypes,
    PrivateKeyTypes,
)
from cryptography.x509.oid import NameOID

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.identity import passphrases

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_CERTIFICATE_BYTES = 1 << 16
"""Longest certificate chain that a peer may show; what was read of it is kept in memory."""
_ENCRYPTED = b"ENCRYPTED"
"""In the head of an encrypted key's PEM."""


UNREADABLE = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""What ``cryptography`` raises for damaged keys and certificates."""


class IdentityUnusable(FederationError):
    """A key, certificate or request that cannot serve; says which file and why."""


class Role(StrEnum):
    """What a certificate's holder may do."""

    COORDINATOR = "coordinator"
    SILO = "silo"
    OPERATOR = "operator"
    ADMIN = "admin"
    VIEWER = "viewer"
    CRYPTO = "crypto"


@dataclass(frozen=True, slots=True)
class IdentityPaths:
    """The three files of an identity, named as in a Kubernetes TLS secret."""

    key: Path
    certificate: Path
    roots: Path

    @classmethod
    def of(cls, folder: Path) -> IdentityPaths:
        """Return the usual names in ``folder``: tls.key, tls.crt, ca.crt."""
        return cls(folder / "tls.key", folder / "tls.crt", folder / "ca.crt")

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when one of the files does."""
        stats = [path.stat() for path in (self.key, self.certificate, self.roots)]
        return tuple((s.st_mtime_ns, s.st_ino, s.st_size) for s in stats)


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate names, and until when (seconds since 1970)."""

    federation: str
    role: Role
    name: str
    not_before: float = 0.0
    not_after: float = 0.0

    @property
    def uri(self) -> str:
        """The subject as a certificate has it."""
        return f"hedgerow://{self.federation}/{self.role}/{self.name}"

    def expect(self, role: Role, process: str) -> None:
        """Raise IdentityUnusable where a process (with its article) is given another's role."""
        if self.role is not role:
            raise IdentityUnusable(
                f"{process} needs a certificate of the role {role}; this one is of {self.role} "
                f"{self.name}"
            )


def _passphrase(path: Path) -> bytes | None:
    """Return the passphrase that opens a key file; None where the key is not encrypted.

    Raises
    ------
    IdentityUnusable
        The key is encrypted and no passphrase is given, or a wrong one.
    """
    data = read(path)
    if _ENCRYPTED not in data:
        return None
    try:
        given = passphrases.of(path)
    except OSError as error:
        raise IdentityUnusable(f"{error.filename} cannot be read: {error.strerror}") from error
    if not given:
        raise IdentityUnusable(
            f"{path} is encrypted: give its passphrase by key_passphrase_file of the settings, "
            f"{passphrases.VARIABLE}_FILE or {passphrases.VARIABLE}"
        )
    try:
        serialization.load_pem_private_key(data, password=given)
    except UNREADABLE:
        raise IdentityUnusable(f"the passphrase given does not open {path}") from None
    passphrases.keep(path, given)
    return given


def _private_key(path: Path) -> PrivateKeyTypes:
    given = _passphrase(path)
    try:
        return serialization.load_pem_private_key(read(path), password=given)
    except UNREADABLE as error:
        raise IdentityUnusable(f"{path} is no PEM private key") from error


def read_key(path: Path) -> bytes:
    """Return the PEM of a private key, decrypted where the file's is not: TLS wants it so."""
    if _ENCRYPTED not in (data := read(path)):
        return data
    return _private_key(path).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_chain(context: ssl.SSLContext, paths: IdentityPaths) -> None:
    """Have a TLS context show a certificate, whose key may be encrypted."""
    # OpenSSL would ask at the terminal itself where it gets no passphrase.
    context.load_cert_chain(paths.certificate, paths.key, password=_passphrase(paths.key) or b"")


def encrypted_pem(key: PrivateKeyTypes, passphrase: bytes | None) -> bytes:
    """Return a private key as PKCS#8, encrypted (PBES2) where there is a passphrase.

    Raises
    ------
    IdentityUnusable
        The passphrase is short.
    """
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        if len(passphrase) < passphrases.LEAST_BYTES:
            raise IdentityUnusable(
                f"expected a passphrase of at least {passphrases.LEAST_BYTES} bytes"
            )
        how = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def change_passphrase(path: Path, passphrase: bytes | None) -> None:
    """Encrypt a private key's file again, or with None store it in clear."""
    write(path, encrypted_pem(_private_key(path), passphrase))


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the P-256 private key of a PEM file."""
    key = _private_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise IdentityUnusable(f"{path}: the key is not on P-256")
    return key


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one."""
    return parse(read(path), str(path))


def load_identity(paths: IdentityPaths, now: float) -> Subject:
    """Check that the three files fit together and are valid now; return whom they name.

    Raises
    ------
    IdentityUnusable
        A file is missing or malformed, the key is another one's, the certificate is expired, not
        valid yet, or from a CA that is not in the bundle.
    """
    key, leaf = load_key(paths.key), load_certificates(paths.certificate)[0]
    if not matches(key, leaf):
        raise IdentityUnusable(f"{paths.certificate} does not belong to the key {paths.key}")
    try:
        return verify_chain(read(paths.certificate), read(paths.roots), now)
    except IdentityUnusable as error:
        raise IdentityUnusable(f"{paths.certificate}: {error}") from error


def verify_chain(certificate: bytes, roots: bytes, now: float) -> Subject:
    """Return whom a certificate names after checking it against the CAs of a bundle.

    A federation's CA has path length 0, so there are no certificates in between.

    Parameters
    ----------
    certificate : bytes
        PEM; the first certificate counts.
    roots : bytes
        PEM bundle; two CAs while one replaces the other.
    """
    subject = subject_of(certificate)
    if now > subject.not_after:
        raise IdentityUnusable(f"expired on {_date(subject.not_after)}; renew it")
    if now < subject.not_before:
        raise IdentityUnusable(f"not valid before {_date(subject.not_before)}; check the clock")
    issuer = _issuer_of(certificate, roots)
    if issuer is None:
        raise IdentityUnusable("signed by a CA that is not the federation's")
    if not issuer.not_valid_before_utc <= moment(now) <= issuer.not_valid_after_utc:
        raise IdentityUnusable("the CA's own certificate has expired or is not valid yet")
    if subject.federation != federation_of(issuer):
        raise IdentityUnusable(
            f"names federation {subject.federation}, its CA is of {federation_of(issuer)}"
        )
    return subject


@lru_cache(maxsize=4096)
def _issuer_of(certificate: bytes, roots: bytes) -> x509.Certificate | None:
    """Return the CA of a bundle that signed a holder's certificate, or None.

    Kept, as is :func:`subject_of`: silos check one another's signatures many times a round.
    """
    leaf = _leaf(certificate)
    issuer = next((root for root in parse(roots, "the CA bundle") if _issued(root, leaf)), None)
    if issuer is not None and (_is_authority(leaf) or not _is_authority(issuer)):
        raise IdentityUnusable("a holder's certificate was expected, signed by a CA's")
    return issuer


@lru_cache(maxsize=4096)
def public_key_of(certificate: bytes) -> CertificatePublicKeyTypes:
    """Return the public key of a certificate (PEM)."""
    return _leaf(certificate).public_key()


@lru_cache(maxsize=4096)
def serial_of(certificate: bytes) -> int:
    """Return the serial number of a certificate (PEM)."""
    return _leaf(certificate).serial_number


@lru_cache(maxsize=4096)
def subject_of(certificate: bytes) -> Subject:
    """Return whom a certificate (PEM) names, without checking who signed it.

    Raises
    ------
    IdentityUnusable
        It has not exactly one URI of the form ``hedgerow://<federation>/<role>/<name>``.
    """
    leaf = _leaf(certificate)
    named = uris(leaf.extensions)
    if len(named) != 1:
        raise IdentityUnusable("a Hedgerow certificate names its holder by exactly one URI")
    match = re.fullmatch(r"hedgerow://([^/]+)/([^/]+)/([^/]+)", named[0])
    if match is None or match[2] not in list(Role) or not _NAME.fullmatch(match[3]):
        raise IdentityUnusable(
            f"the certificate names {named[0]!r}; hedgerow://FEDERATION/ROLE/NAME was expected"
        )
    return Subject(
        match[1],
        Role(match[2]),
        match[3],
        leaf.not_valid_before_utc.timestamp(),
        leaf.not_valid_after_utc.timestamp(),
    )


def _leaf(certificate: bytes) -> x509.Certificate:
    """Return the certificate of a chain's holder."""
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        raise IdentityUnusable(
            f"expected a certificate of at most {MAX_CERTIFICATE_BYTES} bytes, "
            f"received {len(certificate)}"
        )
    return parse(certificate, "the certificate")[0]


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """Return the DNS names and IP addresses of a certificate."""
    leaf = parse(certificate, "the certificate")[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *names.get_values_for_type(x509.DNSName),
        *(str(ip) for ip in names.get_values_for_type(x509.IPAddress)),
    )


def federation_of(root: x509.Certificate) -> str:
    """Return the federation that a CA certificate belongs to."""
    names = root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(names) != 1:
        raise IdentityUnusable("the CA certificate names no federation")
    return str(names[0].value)


def read(path: Path) -> bytes:
    """Return a file's bytes; a missing or unreadable one is reported by its path."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityUnusable(f"{path} cannot be read: {error.strerror}") from error


def parse(pem: bytes, what: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM text, at least one; ``what`` names it in the error."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        for one in found:  # what is read later would raise later
            _ = one.public_key(), one.extensions, one.subject, one.issuer
            _ = one.not_valid_before_utc, one.not_valid_after_utc
    except UNREADABLE as error:
        raise IdentityUnusable(f"{what} is no PEM certificate") from error
    return found


def write(path: Path, data: bytes) -> None:
    """Put a private file (mode 0600) in its place atomically."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise IdentityUnusable(f"{path} cannot be written: {error.strerror}") from error


def _issued(root: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(root)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def matches(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    """Return whether a certificate is of this key."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def uris(extensions: x509.Extensions) -> list[str]:
    """Return the URIs among the alternative names."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(names.get_values_for_type(x509.UniformResourceIdentifier))


def check_name(what: str, name: str) -> None:
    """Raise :class:`IdentityUnusable` unless ``name`` can stand in a certificate's URI."""
    if not _NAME.fullmatch(name):
        raise IdentityUnusable(
            f"{what} {name[:80]!a}: up to 63 letters, digits and ._- are expected, "
            "no such sign first"
        )


def moment(seconds: float) -> dt.datetime:
    """Return seconds since 1970 as a whole second in UTC."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC)


def _date(seconds: float) -> str:
    return f"{moment(seconds):%Y-%m-%d %H:%M} UTC"
