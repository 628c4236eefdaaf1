"""HTTP servers under the limits of gRPC's: who may hold a connection, and for how long."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509
from cryptography.x509.oid import NameOID
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hedgerow.services.identity.certificates import IdentityPaths, load_chain
from hedgerow.services.process.texts import parse_address
from hedgerow.services.rpc.channel import HANDSHAKE_SECONDS
from hedgerow.services.rpc.doorman import ConnectionLimiter, raise_descriptor_limit

BODY_SECONDS = 30.0
"""Longest time of a request's body, and of a caller that does not read its response."""
KEEP_ALIVE_SECONDS = 60
MAX_REQUESTS = 1024
"""Requests that are served at a time; idle connections do not count."""
CALLER = "hedgerow.caller"
"""Common name in the caller's certificate, in the scope of a request; none without TLS."""
ADMIT = "hedgerow.admit"
"""In the scope of a request: is called with the name of a caller that the application knows."""


class HttpServer(uvicorn.Server):
    """Serves an application; shuts down connections beyond the limits.

    Parameters
    ----------
    app : ASGI application
        Calls ``scope[ADMIT]`` where no certificate says who calls. A connection of nobody that is
        known is shut down after :data:`HANDSHAKE_SECONDS`, as one without a TLS handshake is.
    tls : Path, optional
        Folder with tls.key, tls.crt and ca.crt, the CA whose certificates callers show.
    **settings
        Of uvicorn.
    """

    def __init__(self, app: Any, tls: Path | None = None, **settings: Any) -> None:
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            **settings,
        )
        config.load()
        if tls is not None:
            config.ssl = _tls(tls)
        super().__init__(config)
        self._doorman: ConnectionLimiter | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        assert sockets is not None
        raise_descriptor_limit()
        ports = [one.getsockname()[1] for one in sockets]
        self._doorman = ConnectionLimiter(*ports, stranger_seconds=HANDSHAKE_SECONDS)
        made: Any = functools.partial(_Connection, self._doorman)
        self.config.http_protocol_class = made
        await super().startup(sockets)
        self._doorman.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections; wait for the requests that are being served."""
        assert self._doorman is not None
        self._doorman.stop()
        await super().shutdown(sockets)


class _Connection(HttpToolsProtocol):
    """Ends requests that take too long to arrive, and tells the doorman who calls."""

    def __init__(self, doorman: ConnectionLimiter, **named: Any) -> None:
        super().__init__(**named)
        self._doorman = doorman
        self._caller: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._within(HANDSHAKE_SECONDS)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._caller = _name(secured.getpeercert(binary_form=True))
            self._admit(f"certificate {self._caller}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        served = self.cycle is None or self.cycle.response_complete
        if served and self._deadline is None and self.timeout_keep_alive_task is None:
            self._within(HANDSHAKE_SECONDS)  # empty lines begin no request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._within(HANDSHAKE_SECONDS)
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[ADMIT] = self._admit
        if self._caller is not None:
            scope[CALLER] = self._caller

    def on_headers_complete(self) -> None:
        self._within(BODY_SECONDS)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._within(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._within(BODY_SECONDS)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._within(None)
        super().resume_writing()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        busy = len(self.tasks) >= MAX_REQUESTS
        super()._start_asgi_task(cycle, service_unavailable if busy else app)

    def _admit(self, name: str) -> None:
        if self.client is not None:
            self._doorman.admit(self.client, name)

    def _within(self, seconds: float | None) -> None:
        """Let what is awaited of the caller take so long; None: nothing is awaited."""
        if self._deadline is not None:
            self._deadline.cancel()
        abort: Callable[[], None] = self.transport.abort
        self._deadline = None if seconds is None else self.loop.call_later(seconds, abort)


def _tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "ca.crt")
    load_chain(context, IdentityPaths.of(folder))
    return context


def _name(certificate: bytes | None) -> str:
    """Return the common name of a certificate; nothing where it has none."""
    if certificate is None:
        return ""
    names = x509.load_der_x509_certificate(certificate).subject
    found = names.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def listening(listen: str) -> socket.socket:
    """Return a socket that listens on ``HOST:PORT``; raises OSError."""
    host, port = parse_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=1024)
    # asyncio sets it only where it has made the socket. Without it the second write of a response
    # waits for the client's delayed acknowledgement: 40 ms.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
