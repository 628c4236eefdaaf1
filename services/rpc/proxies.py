"""Proxies between a process and its coordinator: HTTP (CONNECT) and SOCKS5; TLS stays unopened.

gRPC speaks CONNECT only. On the way to a SOCKS proxy it therefore connects to a :class:`_Door` of
its own process, which answers CONNECT and speaks SOCKS5 (RFC 1928, and RFC 1929 for passwords).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import ipaddress
import os
import secrets
import socket
import socketserver
import threading
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import (  # type: ignore[attr-defined]
    getproxies_environment,
    proxy_bypass_environment,
)

from hedgerow.boosting.errors import FederationError, Unreachable

ENVIRONMENT = "environment"
"""Setting for the usual variables: HTTPS_PROXY and NO_PROXY."""
OPERATORS = "HEDGEROW_PROXY"
"""Variable with the proxy of an operator's commands, and of ``hedgerow join``."""
_WHO_ARE_YOU = (401, 407)
"""The second is what proxies should answer; tinyproxy answers a wrong password by the first."""
_MOST_HEADER_BYTES = 1 << 14
_SOCKS = ("socks5", "socks5h")
"""Both leave the coordinator's name to the proxy, which for curl the second does only."""
_MOST_SECRET_BYTES = 255
"""Of a user and of a password, each, by RFC 1929."""
_OPEN, _WITH_PASSWORD, _NEITHER = 0, 2, 255
"""Methods of authentication in RFC 1928."""
_REPLIES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "TTL expired",
    7: "command not supported",
    8: "address type not supported",
}
_NAME, _ADDRESS_BYTES = 3, {1: 4, 4: 16}
"""Types of address in RFC 1928: a name, IPv4 and IPv6."""
DOOR_SECONDS = 10.0
"""How long a proxy may take to connect: as long as gRPC waits for TCP and TLS."""


class ProxyRefused(Unreachable):
    """A proxy is not there, wants to know who asks, or does not connect; ``mend`` says what helps.

    No text holds the proxy's password.
    """

    def __init__(self, said: str, mend: str) -> None:
        super().__init__(f"{said}; {mend}")
        self.said, self.mend = said, mend


class Proxy(NamedTuple):
    """A proxy as its URL says: ``user`` and ``password`` are quoted as in it, or empty."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    scheme: str = "http"

    def __repr__(self) -> str:
        return f"Proxy({self.place})"  # no log or traceback has the password

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Return the proxy of ``http://[USER:PASSWORD@]HOST:PORT``, or ``socks5://`` of the same.

        Raises
        ------
        FederationError
            It is not of this form; the text does not repeat it.
        """
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            port = host = None
        known = host is not None and parts.scheme in ("http", *_SOCKS)
        if not known or host is None or port is None or parts.path not in ("", "/"):
            raise FederationError(
                "proxy: expected http:// or socks5://, then HOST:PORT or USER:PASSWORD@HOST:PORT, "
                f'with characters such as @ quoted as %40, or "{ENVIRONMENT}" for HTTPS_PROXY, '
                "ALL_PROXY and NO_PROXY"
            )
        made = cls(host, port, parts.username or "", parts.password or "", parts.scheme)
        if made.scheme in _SOCKS and any(len(one) > _MOST_SECRET_BYTES for one in made._who):
            raise FederationError(
                f"proxy: SOCKS5 takes {_MOST_SECRET_BYTES} bytes of user and password at most, "
                "received more"
            )
        return made

    @property
    def _who(self) -> tuple[bytes, bytes]:
        return unquote(self.user).encode(), unquote(self.password).encode()

    @property
    def place(self) -> str:
        """``HOST:PORT``, which may be shown."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Options of a gRPC channel through it."""
        if self.scheme in _SOCKS:
            between = _door(self)
        else:
            who = f"{self.user}:{self.password}@" if self.user else ""
            between = f"http://{who}{self.place}"
        return ("grpc.enable_http_proxy", 1), ("grpc.http_proxy", between)

    def connect(self, address: str, seconds: float) -> socket.socket:
        """Return a connection to ``HOST:PORT`` through it.

        Raises
        ------
        ProxyRefused
        """
        place = f"proxy {self.place}"
        try:
            opened = socket.create_connection((self.host, self.port), seconds)
        except OSError as error:
            why = error.strerror or str(error)
            raise ProxyRefused(f"{place}: not reachable ({why})", "correct `proxy`") from error
        kind, ask = ("HTTP", self._ask)
        if self.scheme in _SOCKS:
            kind, ask = ("SOCKS5", self._ask_socks)
        try:
            admitted, refusal = ask(opened, address)
        except (OSError, ValueError) as error:
            opened.close()
            raise ProxyRefused(
                f"{place}: no {kind} proxy answers there", "correct `proxy`"
            ) from error
        if not refusal:
            return opened
        opened.close()
        if not admitted:
            mend = "correct user and password in it" if self.user else "it needs a user: set one"
            raise ProxyRefused(f"{place}: authentication refused ({refusal})", f"`proxy`: {mend}")
        raise ProxyRefused(
            f"{place}: refused to connect ({refusal})",
            f"ask its administrator to allow connections to {address}, without opening TLS",
        )

    def _ask(self, opened: socket.socket, address: str) -> tuple[bool, str]:
        """Return whether the proxy knows us, and its refusal; empty where it has connected."""
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if self.user:
            lines.append(f"Proxy-Authorization: {_basic(b':'.join(self._who))}")
        opened.sendall("\r\n".join([*lines, "", ""]).encode())
        protocol, status, *reason = _head(opened)[0].split(" ", 2)
        if not protocol.startswith("HTTP/1.") or not status.isdecimal():
            raise ValueError("no answer of a proxy")
        if int(status) // 100 == 2:
            return True, ""
        said = "".join(c for c in "".join(reason) if c.isprintable())[:80]
        refusal = f"answered CONNECT {address} by {int(status)} {said}".rstrip()
        return int(status) not in _WHO_ARE_YOU, refusal

    def _ask_socks(self, opened: socket.socket, address: str) -> tuple[bool, str]:
        """Return the same of a SOCKS proxy."""
        methods = [_OPEN, _WITH_PASSWORD] if self.user else [_OPEN]
        opened.sendall(bytes([5, len(methods), *methods]))
        version, method = _exactly(opened, 2)
        if version != 5 or method not in (*methods, _NEITHER):
            raise ValueError("no answer of a SOCKS5 proxy")
        if method == _NEITHER:
            return False, "it takes none of the methods offered"
        if method == _WITH_PASSWORD:
            user, password = self._who
            opened.sendall(bytes([1, len(user), *user, len(password), *password]))
            if _exactly(opened, 2)[1] != 0:
                return False, "it does not take user and password"
        opened.sendall(b"\5\1\0" + _socks_address(address))
        version, reply, _, kind = _exactly(opened, 4)
        if version != 5:
            raise ValueError("no answer of a SOCKS5 proxy")
        if reply != 0:
            return True, f"to {address}: {_REPLIES.get(reply, f'reply {reply}')}"
        if kind not in (_NAME, *_ADDRESS_BYTES):
            raise ValueError("no answer of a SOCKS5 proxy")
        size = _exactly(opened, 1)[0] if kind == _NAME else _ADDRESS_BYTES[kind]
        _exactly(opened, size + 2)  # the proxy's own address and port
        return True, ""


def _basic(named: bytes) -> str:
    return f"Basic {base64.b64encode(named).decode()}"


def _exactly(opened: socket.socket, size: int) -> bytes:
    """Return this many bytes and take no more: what follows is the server's.

    Raises
    ------
    ValueError
        The connection ended before.
    """
    found = b""
    while len(found) < size:
        more = opened.recv(size - len(found))
        if not more:
            raise ValueError("the connection ended")
        found += more
    return found


def _head(opened: socket.socket) -> list[str]:
    """Return the lines of an HTTP message up to the empty one."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        if len(found) > _MOST_HEADER_BYTES:
            raise ValueError("no message of HTTP")
        found += _exactly(opened, 1)
    return found.decode("ascii").split("\r\n")


def _socks_address(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    end = int(port).to_bytes(2, "big")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("idna")
        return bytes([_NAME, len(name)]) + name + end
    return bytes([1 if ip.version == 4 else 4]) + ip.packed + end


class _Door(socketserver.ThreadingTCPServer):
    """Where this process' gRPC asks by CONNECT for connections through a SOCKS proxy.

    Others of this machine may knock, too. They would go out in this process' name, so the door
    opens for a secret only, which never leaves the process: gRPC has it from its options.
    """

    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Passage)
        self.proxy, self.secret = proxy, secrets.token_hex(16)

    @property
    def url(self) -> str:
        return f"http://door:{self.secret}@127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: the channel asks the proxy itself why it does not connect."""


class _Passage(socketserver.StreamRequestHandler):
    server: _Door
    timeout = DOOR_SECONDS
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Admit, connect, and carry bytes both ways until one end closes."""
        near: socket.socket = self.request
        asked, *headers = _head(near)
        method, address, _ = asked.split(" ")
        fields = {
            name.lower(): text.strip() for name, _, text in (x.partition(":") for x in headers)
        }
        shown = fields.get("proxy-authorization", "").encode()
        known = _basic(f"door:{self.server.secret}".encode()).encode()
        if method != "CONNECT" or not secrets.compare_digest(shown, known):
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        with self.server.proxy.connect(address, DOOR_SECONDS) as far:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            near.settimeout(None)
            far.settimeout(None)
            back = threading.Thread(target=_carry, args=(far, near), daemon=True)
            back.start()
            _carry(near, far)
            back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@functools.cache
def _door(proxy: Proxy) -> str:
    """Return the URL of this process' door to a proxy, which stays open until the process ends."""
    door = _Door(proxy)
    threading.Thread(target=door.serve_forever, name="proxy", daemon=True).start()
    return door.url


def proxy_of(setting: str, address: str) -> Proxy | None:
    """Return the proxy on the way to ``HOST:PORT``; None where there is none.

    Parameters
    ----------
    setting : str
        Empty for none, its URL, or :data:`ENVIRONMENT`. NO_PROXY is obeyed in both cases.

    Raises
    ------
    FederationError
        The URL is malformed.
    """
    if not setting:
        return None
    found = getproxies_environment()
    url = setting
    if setting == ENVIRONMENT:
        url = found.get("https") or found.get("all") or ""
    if not url or proxy_bypass_environment(address):
        return None
    return Proxy.parse(url)


def connected(address: str, seconds: float, proxy: str = "") -> socket.socket:
    """Return a connection to ``HOST:PORT``, through the proxy of a setting if any.

    Raises
    ------
    OSError
    ProxyRefused
    """
    between = proxy_of(proxy, address)
    if between is not None:
        return between.connect(address, seconds)
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), seconds)


def operators_proxy() -> str:
    """Return the setting of an operator's commands."""
    return os.environ.get(OPERATORS, "")
