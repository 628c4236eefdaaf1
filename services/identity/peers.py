"""Who is calling: the peer's certificate, our own, and gRPC credentials made of it.

TLS is 1.3: our certificates are all P-256, and ``services/__init__`` leaves no TLS 1.2 cipher
suite that could use one, so an older peer finds none in common; :func:`peer_of` checks it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from hedgerow.boosting.errors import SignatureInvalid, Unauthorised
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.certificates import (
    IdentityPaths,
    IdentityUnusable,
    Role,
    Subject,
    load_identity,
    load_key,
    public_key_of,
    read,
    read_key,
    subject_of,
    verify_chain,
)
from hedgerow.services.identity.revocation import RevokedCertificates

PEOPLE = (Role.OPERATOR, Role.ADMIN, Role.VIEWER)
"""Roles of certificates that people have."""
Clock = Callable[[], float]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The caller, as its certificate says."""

    subject: Subject
    certificate: bytes

    @property
    def name(self) -> str:
        """Name of the silo, operator or process."""
        return self.subject.name

    def require(self, *roles: Role) -> str:
        """Return the peer's name when it has one of the roles; raises Unauthorised."""
        if self.subject.role not in roles:
            wanted = " or ".join(roles)
            raise Unauthorised(
                f"this call is for the role {wanted}; the certificate is of "
                f"{self.subject.role} {self.subject.name}"
            )
        return self.subject.name

    def check_time(self, clock: Clock = time.time) -> None:
        """Raise Unauthorised where the certificate has expired since the handshake."""
        if clock() > self.subject.not_after:
            raise Unauthorised(
                f"the certificate of {self.subject.role} {self.subject.name} has expired; renew "
                "it and connect again",
                role=self.subject.role.value,
                ended=self.subject.name,
            )


def peer_of(context: Any, clock: Clock = time.time) -> PeerIdentity:
    """Return who is calling; to be asked on every call, for a connection outlives certificates.

    A stream asks :meth:`PeerIdentity.check_time` again for what it carries.

    Raises
    ------
    Unauthorised
        The certificate has expired since the handshake, names nobody, or there is none.
    """
    auth = context.auth_context()
    chain = auth.get("x509_pem_cert")
    if not chain:
        raise Unauthorised("the caller has shown no certificate")
    version = auth.get("ssl_tls_version")
    if version and version[0] != b"TLSv1.3":
        raise Unauthorised(f"TLS 1.3 is required; the connection has {version[0].decode()}")
    try:
        subject = subject_of(chain[0])
    except IdentityUnusable as error:
        raise Unauthorised(str(error)) from error
    peer = PeerIdentity(subject, chain[0])
    peer.check_time(clock)
    return peer


class FileIdentity:
    """An identity from its three files; signs as its holder and checks others by the CA.

    Parameters
    ----------
    clock : callable
        Seconds since 1970.
    revoked : RevokedCertificates, optional
        Certificates by which nobody's signature counts.

    Raises
    ------
    IdentityUnusable
        The files do not fit together or are out of date.
    """

    def __init__(
        self,
        paths: IdentityPaths,
        clock: Clock = time.time,
        revoked: RevokedCertificates | None = None,
    ) -> None:
        self.subject = load_identity(paths, clock())
        self._revoked = revoked
        self._clock = clock
        self._key = load_key(paths.key)
        self._certificate = read(paths.certificate)
        self._roots = read(paths.roots)

    @property
    def certificate(self) -> bytes:
        """Certificate chain of this holder, PEM."""
        return self._certificate

    def sign(self, message: bytes) -> bytes:
        """Return an ECDSA signature with SHA-256 of ``message``, DER."""
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    def now(self) -> float:
        """Return the time by this holder's clock, seconds since 1970."""
        return self._clock()

    def verify(self, silo: Silo, certificate: bytes, message: bytes, signature: bytes) -> None:
        """Check that ``silo`` signed ``message``, by a certificate of the federation's CA.

        Raises
        ------
        SignatureInvalid
        """
        self.signer_of(certificate, message, signature, f"silo {silo}", (Role.SILO,), silo)

    def approver(self, certificate: bytes, message: bytes, signature: bytes, whose: str) -> str:
        """Return the name of the person who signed ``message``; see :meth:`signer_of`."""
        return self.signer_of(certificate, message, signature, whose, PEOPLE).name

    @property
    def roots(self) -> bytes:
        """The federation's CA certificates, PEM."""
        return self._roots

    def approver_then(
        self, certificate: bytes, message: bytes, signature: bytes, whose: str
    ) -> str:
        """Do :meth:`approver`, and take a certificate that has ended since it signed."""
        found = signer_at(certificate, message, signature, whose, PEOPLE, self._roots)
        return found.name

    def signer_of(
        self,
        certificate: bytes,
        message: bytes,
        signature: bytes,
        whose: str,
        roles: tuple[Role, ...],
        name: str | None = None,
    ) -> Subject:
        """Return who signed ``message``, by a certificate of the federation's CA.

        Parameters
        ----------
        whose : str
            Who should have signed, for errors.
        roles : tuple of Role
            What the signer may be.
        name : str, optional
            What the signer must be called.

        Raises
        ------
        SignatureInvalid
        """
        signed, now = (certificate, message, signature), self._clock()
        subject = signer_at(*signed, whose, roles, self._roots, now, name)
        given = f"the certificate given for {whose}"
        try:
            if self._revoked is not None:
                self._revoked.check(certificate)
        except IdentityUnusable as error:
            raise SignatureInvalid(f"{given}: {error}") from error
        if subject.federation != self.subject.federation:
            raise SignatureInvalid(f"{given} is of federation {subject.federation}")
        return subject


def signer_at(
    certificate: bytes,
    message: bytes,
    signature: bytes,
    whose: str,
    roles: tuple[Role, ...],
    roots: bytes,
    now: float | None = None,
    name: str | None = None,
) -> Subject:
    """Return who signed ``message``, by a certificate of a CA that was valid at a time.

    Parameters
    ----------
    roots : bytes
        The CA's certificates, PEM.
    now : float or None
        Seconds since 1970; None also takes a certificate that has ended since it signed.
    name : str, optional
        What the signer must be called.

    Raises
    ------
    SignatureInvalid
    """
    given = f"the certificate given for {whose}"
    try:
        if now is None:
            now = min(time.time(), subject_of(certificate).not_after)
        subject = verify_chain(certificate, roots, now)
    except IdentityUnusable as error:
        raise SignatureInvalid(f"{given}: {error}") from error
    if subject.role not in roles or name not in (None, subject.name):
        raise SignatureInvalid(f"{given} is of {subject.role} {subject.name}")
    public = public_key_of(certificate)
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise SignatureInvalid(f"{given} has no P-256 key")
    try:
        public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise SignatureInvalid(f"the signature is not that of {whose}") from error
    return subject


class Reloading(Generic[Made]):
    """What is made of an identity's files, and made again when they have changed.

    Files that do not fit together, as in the middle of their replacement, leave what was; at the
    start ``make`` raises.
    """

    def __init__(self, paths: IdentityPaths, make: Callable[[IdentityPaths], Made]) -> None:
        self._paths, self._make = paths, make
        self._lock = threading.Lock()
        self._stamp = paths.stamp()
        self.current = make(paths)

    def changed(self) -> Made | None:
        """Return what has been made since the last look, or None."""
        with self._lock:
            try:
                stamp = self._paths.stamp()
                if stamp == self._stamp:
                    return None
                self.current = self._make(self._paths)
            except (OSError, IdentityUnusable):
                return None
            self._stamp = stamp
            return self.current


class Identities:
    """The silo's identity, read again when its files have changed."""

    def __init__(self, paths: IdentityPaths, revoked: RevokedCertificates) -> None:
        self._reloading = Reloading(paths, partial(FileIdentity, revoked=revoked))

    def __call__(self) -> FileIdentity:
        """Return the current identity."""
        self._reloading.changed()
        return self._reloading.current


def _configuration(paths: IdentityPaths) -> grpc.ServerCertificateConfiguration:
    load_identity(paths, time.time())
    pair = (read_key(paths.key), read(paths.certificate))
    return grpc.ssl_server_certificate_configuration([pair], read(paths.roots))


def server_credentials(paths: IdentityPaths) -> grpc.ServerCredentials:
    """Return credentials of a server that asks every client for its certificate.

    Certificate, key and CA bundle are read again when their files change; open connections
    keep what they have, and end with ``grpc.max_connection_age_ms``.

    Raises
    ------
    IdentityUnusable
    """
    try:
        reloading = Reloading(paths, _configuration)
    except OSError as error:
        raise IdentityUnusable(f"{error.filename} cannot be read: {error.strerror}") from error
    return grpc.dynamic_ssl_server_credentials(
        reloading.current,
        reloading.changed,  # type: ignore[arg-type]  # the stub leaves out None for "no change"
        require_client_authentication=True,
    )


def expiry(paths: IdentityPaths) -> float:
    """Return when the certificate ends, seconds since 1970; 0 while it cannot be read."""
    try:
        return subject_of(read(paths.certificate)).not_after
    except IdentityUnusable:
        return 0.0


def channel_credentials(
    paths: IdentityPaths, roots: bytes | None = None
) -> grpc.ChannelCredentials:
    """Return credentials of a client; a channel does not reload, so make a new one to renew.

    Parameters
    ----------
    roots : bytes, optional
        Whom to trust instead of the CA: the server's own certificate, PEM.

    Raises
    ------
    IdentityUnusable
    """
    load_identity(paths, time.time())
    trusted = read(paths.roots) if roots is None else roots
    return grpc.ssl_channel_credentials(trusted, read_key(paths.key), read(paths.certificate))
