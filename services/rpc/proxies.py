"""HTTP proxies (CONNECT) between a process and its coordinator; TLS goes through them unopened."""

from __future__ import annotations

import base64
import os
import socket
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

    def __repr__(self) -> str:
        return f"Proxy({self.place})"  # no log or traceback has the password

    @classmethod
    def parse(cls, url: str) -> Proxy:
        """Return the proxy of ``http://[USER:PASSWORD@]HOST:PORT``.

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
        if host is None or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
            raise FederationError(
                "proxy: expected http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with "
                f'characters such as @ quoted as %40, or "{ENVIRONMENT}" for HTTPS_PROXY and '
                "NO_PROXY"
            )
        return cls(host, port, parts.username or "", parts.password or "")

    @property
    def place(self) -> str:
        """``HOST:PORT``, which may be shown."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Options of a gRPC channel through it."""
        who = f"{self.user}:{self.password}@" if self.user else ""
        return ("grpc.enable_http_proxy", 1), ("grpc.http_proxy", f"http://{who}{self.place}")

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
        try:
            status, reason = self._ask(opened, address)
        except (OSError, ValueError) as error:
            opened.close()
            raise ProxyRefused(
                f"{place}: no HTTP proxy answers there", "correct `proxy`"
            ) from error
        if status // 100 == 2:
            return opened
        opened.close()
        said = f"answered CONNECT {address} by {status} {reason}".rstrip()
        if status in _WHO_ARE_YOU:
            mend = "correct user and password in it" if self.user else "it needs a user: set one"
            raise ProxyRefused(f"{place}: authentication refused ({said})", f"`proxy`: {mend}")
        raise ProxyRefused(
            f"{place}: refused to connect ({said})",
            f"ask its administrator to allow CONNECT to {address}, without opening TLS",
        )

    def _ask(self, opened: socket.socket, address: str) -> tuple[int, str]:
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if self.user:
            named = f"{unquote(self.user)}:{unquote(self.password)}"
            token = base64.b64encode(named.encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {token}")
        opened.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = opened.recv(1)  # no more: what follows is the server's
            if not byte or len(answer) > _MOST_HEADER_BYTES:
                raise ValueError("no answer of a proxy")
            answer += byte
        protocol, status, *reason = answer.split(b"\r\n", 1)[0].decode("ascii").split(" ", 2)
        if not protocol.startswith("HTTP/1.") or not status.isdecimal():
            raise ValueError("no answer of a proxy")
        return int(status), "".join(c for c in "".join(reason) if c.isprintable())[:80]


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
