"""Certificates that the federation's CA has revoked: its signed list (RFC 5280, section 5).

Everyone checks the list by the CA and not by who brought it. A newer list replaces an older one,
never the other way round, also across restarts. So a carrier of lists can only withhold them, which
shows by the age of the one that is kept.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from hedgerow.services.identity.certificates import (
    IdentityPaths,
    IdentityUnusable,
    parse,
    read,
    serial_of,
    subject_of,
    write,
)

MAX_LIST_BYTES = 1 << 20
"""Longest list: some 20,000 certificates."""
LOOK_SECONDS = 5.0
"""Time between two looks for a newer list."""
_PEM = re.compile(b"-----BEGIN X509 CRL-----[^-]{1,%d}-----END X509 CRL-----\n?" % MAX_LIST_BYTES)

log = structlog.get_logger()


class CertificateRevoked(IdentityUnusable):
    """The CA has revoked this certificate."""


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The list of one CA."""

    number: int
    issued: float
    """When it was signed, seconds since 1970."""
    serials: frozenset[int]
    pem: bytes

    def replaces(self, other: RevocationList | None) -> bool:
        """Whether it is newer, by its number and by its time."""
        return other is None or (self.number > other.number and self.issued >= other.issued)


def read_lists(data: bytes, roots: bytes) -> dict[bytes, RevocationList]:
    """Return the lists of a PEM text, by the fingerprint of the CA that signed each.

    Raises
    ------
    IdentityUnusable
        It is too long, no list, or not signed by a CA of the bundle ``roots``.
    """
    if len(data) > MAX_LIST_BYTES:
        raise IdentityUnusable(
            f"expected a list of revoked certificates of at most {MAX_LIST_BYTES} bytes, "
            f"{len(data)} came"
        )
    authorities = parse(roots, "the CA bundle")
    found = {}
    pieces = _PEM.findall(data)
    if not pieces or b"".join(pieces).strip() != data.strip():
        raise IdentityUnusable("expected a list of revoked certificates in PEM")
    for pem in pieces:
        try:
            crl = x509.load_pem_x509_crl(pem)
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            serials = frozenset(entry.serial_number for entry in crl)
        except (ValueError, x509.ExtensionNotFound) as error:
            raise IdentityUnusable("a list of revoked certificates cannot be read") from error
        issuer = next((root for root in authorities if _signed(root, crl)), None)
        if issuer is None:
            raise IdentityUnusable(
                "a list of revoked certificates is not signed by the federation's CA"
            )
        issued = crl.last_update_utc.timestamp()
        found[issuer.fingerprint(hashes.SHA256())] = RevocationList(number, issued, serials, pem)
    return found


def _signed(root: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    public = root.public_key()
    return (
        isinstance(public, ec.EllipticCurvePublicKey)
        and crl.issuer == root.subject
        and crl.is_signature_valid(public)
    )


class RevokedCertificates:
    """What a process knows to be revoked; safe in any thread.

    Parameters
    ----------
    paths : IdentityPaths
        The process' own identity; its CAs sign the lists.
    file : Path, optional
        Where the CA's owner puts a new list; ``ca.crl`` beside the CAs when left out. It may
        appear later, and is read again when it has changed.
    keep : Path, optional
        Where to keep the newest list.
    clock : callable
        Seconds since 1970.
    """

    def __init__(
        self,
        paths: IdentityPaths,
        file: Path | None = None,
        keep: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._roots = paths.roots
        # What was kept comes first: an older list must not be written over it.
        files = [] if keep is None else [keep]
        self._files = dict.fromkeys([*files, file or paths.roots.with_suffix(".crl")], (0, 0))
        self._keep = keep
        self._clock = clock
        self._lists: dict[bytes, RevocationList] = {}
        self._serials: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self.look()

    @property
    def number(self) -> int:
        """Grows with each newer list; 0 where there is none."""
        return sum(known.number for known in self._lists.values())

    @property
    def pem(self) -> bytes:
        """The lists, for others."""
        return b"".join(self._lists[issuer].pem for issuer in sorted(self._lists))

    @property
    def serials(self) -> frozenset[int]:
        """Numbers of the revoked certificates."""
        return self._serials

    @property
    def age(self) -> float | None:
        """Seconds since the CA signed the newest list, or None where there is none."""
        issued = [known.issued for known in self._lists.values()]
        return max(self._clock() - max(issued), 0.0) if issued else None

    def check(self, certificate: bytes) -> None:
        """Raise :class:`CertificateRevoked` where the CA has revoked a certificate (PEM)."""
        if self._serials and serial_of(certificate) in self._serials:
            subject = subject_of(certificate)
            raise CertificateRevoked(
                f"the federation's CA has revoked this certificate of {subject.role} {subject.name}"
            )

    def take(self, data: bytes) -> bool:
        """Keep the lists of a PEM text that are newer; return whether any is.

        Raises
        ------
        IdentityUnusable
            No list, or not the CA's.
        """
        found = read_lists(data, read(self._roots))
        with self._lock:
            newer = {
                issuer: one
                for issuer, one in found.items()
                if one.replaces(self._lists.get(issuer))
            }
            if not newer:
                return False
            self._lists |= newer
            self._serials = frozenset().union(*(one.serials for one in self._lists.values()))
            if self._keep is not None:
                write(self._keep, self.pem)
        log.info("list of revoked certificates", number=self.number, revoked=len(self._serials))
        return True

    def look(self) -> bool:
        """Read files that have changed; return whether a list was newer.

        A file that is not there, or is no list of the CA's, leaves what was.
        """
        changed = False
        for file, known in list(self._files.items()):
            try:
                status = file.stat()
            except OSError:
                continue
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == known:
                continue
            self._files[file] = stamp
            try:
                changed = self.take(read(file)) or changed
            except IdentityUnusable as error:
                log.warning("list of revoked certificates refused", file=str(file), why=str(error))
        return changed
