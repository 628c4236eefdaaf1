"""Why a server cannot be reached: name, port, TLS and certificates, looked at one after the other.

gRPC reports the last of a host's addresses only: where ``localhost`` has ``::1`` as well, a wrong
CA at 127.0.0.1 reads "connection refused". Here every address is tried by itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from hedgerow.boosting.errors import FederationError
from hedgerow.services.identity.certificates import (
    IdentityPaths,
    federation_of,
    hosts_of,
    load_certificates,
    load_chain,
    subject_of,
)
from hedgerow.services.process.texts import parse_address
from hedgerow.services.rpc.proxies import ProxyRefused, proxy_of

PROBE_SECONDS = 5.0
"""How long an address has for each step."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""What a client of HTTP/2 says first, with empty settings: a server that accepts it answers."""
_EXPIRED, _TOO_EARLY = 10, 9
"""Codes of OpenSSL's verification."""


class Finding(NamedTuple):
    """What a check found."""

    check: str
    """What was looked at."""
    good: bool
    said: str
    """What is the case."""
    mend: str = ""
    """What to do about it; empty where all is well."""

    @property
    def line(self) -> str:
        """The finding as an error's text."""
        return f"{self.said}; {self.mend}" if self.mend else self.said


def probe(
    address: str, paths: IdentityPaths, server_name: str | None = None, proxy: str = ""
) -> Iterator[Finding]:
    """Look at a server as this identity would dial it; ends at the first thing that is wrong.

    Parameters
    ----------
    address : str
        ``HOST:PORT``.
    """
    try:
        host, port = parse_address(address)
        between = proxy_of(proxy, address)
    except FederationError as error:
        yield Finding("dns", False, str(error))
        return
    if between is not None:
        try:
            through = between.connect(address, PROBE_SECONDS)
        except ProxyRefused as error:
            yield Finding("proxy", False, error.said, error.mend)
            return
        yield Finding("proxy", True, f"{between.place} connects to {address}")
        yield _handshake(through, address, paths, server_name or host)
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        said = f"{address}: the name {host} is not known ({error.strerror or error})"
        yield Finding("dns", False, said, "correct it, or ask for its entry in the DNS")
        return
    places = dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found)
    known = ", ".join(place[0] for place in places)
    yield Finding("dns", True, host if host == known else f"{host} is {known}")
    opened: list[socket.socket] = []
    refused = ""
    for place in places:
        try:
            opened.append(socket.create_connection(place, PROBE_SECONDS))
        except OSError as error:
            refused = _unopened(error)
    if not opened:
        said = f"{address}: {refused}"
        yield Finding("port", False, said, "start it, or look at address and firewall")
        return
    yield Finding("port", True, f"{port} accepts connections")
    problems = [_handshake(one, address, paths, server_name or host) for one in opened]
    yield next((found for found in problems if found.good), problems[0])


def _unopened(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PROBE_SECONDS:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "no server listens there (connection refused)"
    return f"no connection ({error.strerror or error})"


def _handshake(opened: socket.socket, address: str, paths: IdentityPaths, name: str) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    load_chain(context, paths)
    context.load_verify_locations(paths.roots)
    context.check_hostname = False  # after the chain, so that the error says which is wrong
    with opened:
        opened.settimeout(PROBE_SECONDS)
        try:
            with context.wrap_socket(opened, server_hostname=name) as secured:
                shown = secured.getpeercert(binary_form=True) or b""
                secured.sendall(_PREFACE)
                answered = bool(secured.recv(1))
        except ssl.SSLCertVerificationError as error:
            return Finding("tls", False, *_distrusted(address, paths, error))
        except ssl.SSLError as error:
            return Finding("tls", False, *_unsecured(address, error))
        except OSError:
            answered = False
            shown = b""
    if not answered:
        return Finding(
            "tls",
            False,
            f"{address}: the server ended the connection after the TLS handshake: it refuses our "
            "certificate (of another CA, expired, revoked), or something in between did it",
            "compare ca.crt with the server's; a load balancer in between must pass TCP through",
        )
    pem = x509.load_der_x509_certificate(shown).public_bytes(Encoding.PEM)
    hosts = hosts_of(pem)
    if name not in hosts and not _wildcard(name, hosts):
        return Finding(
            "tls",
            False,
            f"{address}: the server's certificate is for {', '.join(hosts) or 'no host'}, not for "
            f"{name}",
            f"dial one of these, set server_name, or have it signed with --host {name}",
        )
    return Finding("tls", True, f"{subject_of(pem).uri}, for {name}")


def _wildcard(name: str, hosts: tuple[str, ...]) -> bool:
    return f"*.{name.partition('.')[2]}" in hosts


def _distrusted(
    address: str, paths: IdentityPaths, error: ssl.SSLCertVerificationError
) -> tuple[str, str]:
    if error.verify_code == _EXPIRED:
        return f"{address}: the server's certificate has expired", "its owner renews it"
    if error.verify_code == _TOO_EARLY:
        said = f"{address}: the server's certificate is not valid yet"
        return said, "compare the clocks of both machines"
    ours = load_certificates(paths.roots)[0]
    return (
        f"{address}: the server's certificate was issued by another CA than those in {paths.roots} "
        f"(of federation {federation_of(ours)})",
        "ask the owner of the federation's CA for its ca.crt, or correct the address",
    )


def _unsecured(address: str, error: ssl.SSLError) -> tuple[str, str]:
    text = (error.reason or str(error)).upper()
    for alert, why in (
        ("UNKNOWN_CA", "it was issued by another CA than the server's"),
        ("CERTIFICATE_EXPIRED", "it has expired"),
        ("CERTIFICATE_REVOKED", "it is revoked"),
        ("CERTIFICATE", "it may have expired, or be of another CA"),
    ):
        if alert in text:
            said = f"{address}: the server refuses our certificate: {why}"
            return said, "have a new one signed by the owner of the federation's CA"
    said = f"{address}: no TLS 1.3 is spoken there ({error.reason or error})"
    return said, "see whether it is the gRPC port of a Hedgerow process"


def why_not(
    address: str, paths: IdentityPaths, server_name: str | None = None, proxy: str = ""
) -> str:
    """Return why a server cannot be dialled; nothing where it can be."""
    found = (finding for finding in probe(address, paths, server_name, proxy) if not finding.good)
    return next((finding.line for finding in found), "")
