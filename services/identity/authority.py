"""The federation's CA: requests made where the key is, signing, throw-away identities.

A private key is made in the folder where it stays; a request carries the public half only, and
the CA copies nothing else from it: federation, role, name and hosts are the CA's word.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hedgerow.services.identity import passphrases
from hedgerow.services.identity.certificates import (
    UNREADABLE,
    IdentityPaths,
    IdentityUnusable,
    Role,
    Subject,
    check_name,
    encrypted_pem,
    federation_of,
    load_certificates,
    load_key,
    matches,
    moment,
    parse,
    read,
    serial_of,
    subject_of,
    uris,
    verify_chain,
    write,
)

AUTHORITY_DAYS = 3650
LIFETIME_DAYS = (1, 30)
"""Shortest and longest life of a certificate."""

ISSUED = "issued"
"""File of a CA: serial number and holder of every certificate that it has signed."""

_DAY = 86_400
_SKEW = dt.timedelta(minutes=5)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_USAGES = {
    # Servers dial themselves for health checks, hence both.
    Role.COORDINATOR: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    Role.SILO: (ExtendedKeyUsageOID.CLIENT_AUTH,),
    Role.OPERATOR: (ExtendedKeyUsageOID.CLIENT_AUTH,),
    Role.ADMIN: (ExtendedKeyUsageOID.CLIENT_AUTH,),
    Role.VIEWER: (ExtendedKeyUsageOID.CLIENT_AUTH,),
    Role.CRYPTO: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
}


def create_authority(folder: Path, federation: str, now: float) -> None:
    """Make a federation's CA in ``folder``: ca.key (keep it offline) and ca.crt (for everyone).

    Raises
    ------
    IdentityUnusable
        There is a CA already, or the name is malformed.
    """
    check_name("federation", federation)
    if (folder / "ca.key").exists():
        raise IdentityUnusable(f"{folder / 'ca.key'} exists: it is not overwritten")
    key, certificate = new_authority(federation, now)
    write(folder / "ca.key", _pem_at_rest(key))
    write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def new_authority(
    federation: str, now: float
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return the key and the self-signed certificate of a new CA; nothing is written."""
    key = ec.generate_private_key(ec.SECP256R1())
    start = moment(now)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Hedgerow CA {start:%F}"),
        ]
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), start, start + dt.timedelta(days=AUTHORITY_DAYS), 0)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def create_request(
    folder: Path, federation: str, role: Role, name: str, *, key_name: str = "tls.key"
) -> Path:
    """Make a key in ``folder`` unless it is there, and a request for a certificate of it.

    Returns
    -------
    Path
        ``folder/tls.csr``; it holds no secret.
    """
    check_name("federation", federation)
    check_name("name", name)
    path = folder / key_name
    if path.exists():
        key = load_key(path)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write(path, _pem_at_rest(key))
    subject = Subject(federation, role, name)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject_name(subject))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    target = folder / "tls.csr"
    write(target, request.public_bytes(serialization.Encoding.PEM))
    return target


def sign_request(
    authority: Path,
    request: bytes,
    role: Role,
    name: str,
    *,
    now: float,
    days: float = LIFETIME_DAYS[1],
    hosts: Sequence[str] = (),
) -> bytes:
    """Return the certificate (PEM) that the CA in folder ``authority`` gives to a request.

    Parameters
    ----------
    request : bytes
        PEM. Only its public key is used; a request made for another identity is refused.
    role, name
        Who the holder is, as the CA's owner knows.
    hosts : sequence of str
        DNS names and IP addresses under which a server is dialled.

    Raises
    ------
    IdentityUnusable
    """
    key, root = _open(authority)
    try:
        parsed = x509.load_pem_x509_csr(request)
        public, asked = parsed.public_key(), uris(parsed.extensions)
        unaltered = parsed.is_signature_valid
    except UNREADABLE as error:
        raise IdentityUnusable("the request is no PEM certificate request") from error
    if not unaltered:
        raise IdentityUnusable("the request's own signature is wrong: it was altered")
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise IdentityUnusable("the request's key is not on P-256")
    wanted = Subject(federation_of(root), role, name)
    if asked and asked != [wanted.uri]:
        raise IdentityUnusable(f"the request was made for {asked[0]}, not for {wanted.uri}")
    certificate = issue(key, root, public, role, name, now=now, days=days, hosts=hosts)
    with (authority / ISSUED).open("a", encoding="utf-8") as register:
        register.write(f"{serial_of(certificate):x} {wanted.role}/{wanted.name}\n")
    return certificate


def issued_to(authority: Path, holder: str) -> tuple[int, ...]:
    """Return the serial numbers of what the CA has signed for ``NAME`` or ``ROLE/NAME``.

    Raises
    ------
    IdentityUnusable
        The name is that of holders of several roles.
    """
    try:
        lines = (authority / ISSUED).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return ()
    known = [(line.split(" ")[0], line.split(" ")[1]) for line in lines if " " in line]
    found = [(serial, who) for serial, who in known if holder in (who, who.partition("/")[2])]
    holders = sorted({who for _, who in found})
    if len(holders) > 1:
        raise IdentityUnusable(f"{holder} is {' and '.join(holders)}: say which")
    return tuple(int(serial, 16) for serial, _ in found)


def revoke(authority: Path, serials: Sequence[int], now: float) -> Path:
    """Sign a new list with these certificates and those of the list before; return its file.

    Without any it is a list as fresh as ``now``, for silos that limit its age.
    """
    key, root = _open(authority)
    target = authority / "ca.crl"
    entries: dict[int, dt.datetime] = {}
    number = int(now)  # grows even where the list before was lost
    if target.exists():
        before = x509.load_pem_x509_crl(read(target))
        entries = {entry.serial_number: entry.revocation_date_utc for entry in before}
        last = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        number = max(number, last + 1)
    start = moment(now)
    entries = dict.fromkeys(serials, start) | entries
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(start)
        .next_update(start + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    for serial, date in sorted(entries.items()):
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
        )
    crl = builder.sign(key, hashes.SHA256())
    write(target, crl.public_bytes(serialization.Encoding.PEM))
    return target


def _open(authority: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return the key of the CA in a folder, and its certificate."""
    key = load_key(authority / "ca.key")
    bundle = load_certificates(authority / "ca.crt")
    root = next((found for found in bundle if matches(key, found)), None)
    if root is None:
        raise IdentityUnusable(f"{authority / 'ca.crt'} has no certificate of the key ca.key")
    return key, root


def issue(
    key: ec.EllipticCurvePrivateKey,
    root: x509.Certificate,
    public: ec.EllipticCurvePublicKey,
    role: Role,
    name: str,
    *,
    now: float,
    days: float,
    hosts: Sequence[str] = (),
) -> bytes:
    """Return a certificate (PEM) for a public key."""
    check_name("name", name)
    if not LIFETIME_DAYS[0] <= days <= LIFETIME_DAYS[1]:
        raise IdentityUnusable(
            f"a certificate lives between {LIFETIME_DAYS[0]} and {LIFETIME_DAYS[1]} days, "
            f"not {days:g}"
        )
    subject = Subject(federation_of(root), role, name)
    start = moment(now)
    alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(subject.uri)]
    alternatives += [_host(host) for host in hosts]
    end = min(start + dt.timedelta(days=days), root.not_valid_after_utc)
    certificate = (
        _builder(root.subject, _subject_name(subject), public, start, end)
        .add_extension(x509.ExtendedKeyUsage(_USAGES[role]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def install(folder: Path, certificate: bytes, now: float) -> Subject:
    """Put a newly signed certificate into use in ``folder``, with its key if that is new.

    The certificate must belong to ``tls.key`` or to ``tls.key.next``, come from a CA of
    ``ca.crt``, name whom the old one names and be valid now; else the folder stays as it was.
    """
    paths = IdentityPaths.of(folder)
    leaf = parse(certificate, "the new certificate")[0]
    subject = verify_chain(certificate, read(paths.roots), now)
    if paths.certificate.exists():
        before = subject_of(read(paths.certificate))
        if before.uri != subject.uri:
            raise IdentityUnusable(f"the new certificate is of {subject.uri}, not {before.uri}")
    fresh = folder / "tls.key.next"
    if fresh.exists() and matches(load_key(fresh), leaf):
        # Between the two renames key and certificate differ; servers then keep what they have.
        fresh.rename(paths.key)
    elif not matches(load_key(paths.key), leaf):
        raise IdentityUnusable(f"the certificate does not belong to the key in {folder}")
    write(paths.certificate, certificate)
    return subject


def throwaway(folder: Path, silos: Sequence[str], now: float) -> dict[str, IdentityPaths]:
    """Make a CA and identities for one run on this machine; the CA's key is never written.

    Parameters
    ----------
    folder : Path
        Gets one folder an identity, all 0700; the caller deletes it.

    Returns
    -------
    dict
        Keys ``coordinator``, ``operator``, and ``silo/<name>`` and ``crypto/<name>`` of each silo.
    """
    key, root = new_authority("local", now)
    wanted = [
        ("coordinator", Role.COORDINATOR, "coordinator"),
        ("operator", Role.OPERATOR, "local"),
    ]
    for silo in silos:
        wanted.append((f"silo/{silo}", Role.SILO, silo))
        wanted.append((f"crypto/{silo}", Role.CRYPTO, silo))
    made = {}
    for place, role, name in wanted:
        paths = IdentityPaths.of(folder / place)
        own = ec.generate_private_key(ec.SECP256R1())
        hosts = _LOCAL_HOSTS if ExtendedKeyUsageOID.SERVER_AUTH in _USAGES[role] else ()
        certificate = issue(
            key, root, own.public_key(), role, name, now=now, days=LIFETIME_DAYS[1], hosts=hosts
        )
        paths.key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = (
            (paths.key, _pem_of_key(own)),
            (paths.certificate, certificate),
            (paths.roots, root.public_bytes(serialization.Encoding.PEM)),
        )
        for path, data in files:  # not to outlive a power cut
            path.touch(0o600)
            path.write_bytes(data)
        made[place] = paths
    return made


def lone_server(host: str, now: float, seconds: float) -> tuple[bytes, bytes]:
    """Return key and certificate, PEM, of a server that no CA signs: clients know its SHA-256.

    The certificate is valid for ``seconds`` and a day on both sides, since no clock is compared.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    start, end = moment(now - _DAY), moment(now + seconds + _DAY)
    certificate = (
        _builder(name, name, key.public_key(), start, end)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem_of_key(key), certificate.public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise IdentityUnusable(f"{host!r} is neither a host name nor an IP address")
    return x509.DNSName(host)


def _subject_name(subject: Subject) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.federation),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, subject.role),
            x509.NameAttribute(NameOID.COMMON_NAME, subject.name),
        ]
    )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    start: dt.datetime,
    end: dt.datetime,
    path_length: int | None = None,
) -> x509.CertificateBuilder:
    """Return what all certificates have; ``path_length`` is a CA's."""
    authority = path_length is not None
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(authority, path_length), critical=True)
        .add_extension(usage, critical=True)
    )


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return encrypted_pem(key, None)


def _pem_at_rest(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key that outlives this process, encrypted where a passphrase is configured."""
    try:
        return encrypted_pem(key, passphrases.configured())
    except OSError as error:
        raise IdentityUnusable(f"{error.filename} cannot be read: {error.strerror}") from error
