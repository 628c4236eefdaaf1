"""Channels as every client makes them: metered, mTLS, with keepalive that sees a frozen peer."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hedgerow.boosting.errors import FederationError, Unreachable
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, load_chain
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.identity.revocation import (
    LOOK_SECONDS,
    CertificateRevoked,
    RevokedCertificates,
)
from hedgerow.services.process.texts import parse_address
from hedgerow.services.rpc.errors import from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, Metrics
from hedgerow.services.rpc.probing import why_not
from hedgerow.services.rpc.proxies import connected, proxy_of

CLOCK = "hedgerow-clock"
"""Initial metadata of a health check: the server's clock, seconds since 1970."""
HEALTH_SECONDS = 10.0

_NO_PROXY = "grpc.enable_http_proxy"
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Also the least time that one attempt has for TCP and TLS: as much as the server gives it. A
    # refused connection ends at once, and a lost SYN is repeated within.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    (_NO_PROXY, 0),
    # We retry what may be retried ourselves, with the same bytes.
    ("grpc.enable_retries", 0),
)

HANDSHAKE_SECONDS = 10.0
"""How long a server may take to show its certificate."""
STANDS_BY = "this coordinator stands by"
"""Begins what a coordinator says that is not the active one."""
CLOSE_SECONDS = 1.0
"""How long calls go on at a server whose certificate was found revoked."""


def dial(
    address: str,
    credentials: grpc.ChannelCredentials,
    metrics: Metrics,
    paths: IdentityPaths | None = None,
    *,
    server_name: str | None = None,
    proxy: str = "",
) -> MeteredChannel:
    """Return a channel to ``HOST:PORT``; connects when first used.

    Parameters
    ----------
    paths : IdentityPaths, optional
        Files of the credentials, with which the channel can tell why it does not connect.
    """
    options = OPTIONS
    if server_name is not None:
        options = (*options, ("grpc.ssl_target_name_override", server_name))
    if between := proxy_of(proxy, address):
        options = (*(one for one in options if one[0] != _NO_PROXY), *between.options)
    raw = grpc.secure_channel(address, credentials, options)
    if paths is None:
        return MeteredChannel(raw, metrics)
    return MeteredChannel(raw, metrics, why_not=lambda: why_not(address, paths, server_name, proxy))


def clock_ahead(
    address: str, paths: IdentityPaths, server_name: str | None = None, proxy: str = ""
) -> tuple[bool, float]:
    """Ask a server for its health; return whether it serves, and how far its clock is ahead.

    Returns
    -------
    bool
    float
        Seconds, known to half the time that the call took; 0 where the server does not say.

    Raises
    ------
    FederationError
        The server cannot be asked.
    """
    credentials = channel_credentials(paths)
    channel = dial(address, credentials, Metrics(), paths, server_name=server_name, proxy=proxy)
    with channel.raw as raw:
        began = time.time()
        try:
            answer, call = health_pb2_grpc.HealthStub(raw).Check.with_call(
                health_pb2.HealthCheckRequest(), timeout=HEALTH_SECONDS
            )
        except grpc.RpcError as error:
            raise from_rpc(error, address) from None
        middle = (began + time.time()) / 2
        told = dict(call.initial_metadata()).get(CLOCK, middle)
        serves = answer.status == health_pb2.HealthCheckResponse.SERVING
        return serves, float(told) - middle


class Pulse:
    """Whether a server answers its health check, asked beside a caller who may wait for it."""

    def __init__(self, channel: Callable[[], MeteredChannel]) -> None:
        self._channel = channel
        self._call: Any = None
        self._found: bool | None = None

    def __call__(self, wait: bool = False) -> bool | None:
        """Return what is known, and ask again; None where nothing is known yet."""
        if wait:
            self._found = self._result(self._ask(wait=True))
        elif self._call is None:
            self._call = self._ask(wait=False)
        elif self._call.done():
            self._found = self._result(self._call)
            self._call = self._ask(wait=False)
        return self._found

    def _ask(self, *, wait: bool) -> Any:
        stub = health_pb2_grpc.HealthStub(self._channel().raw)
        request = health_pb2.HealthCheckRequest()
        return stub.Check.future(request, timeout=HEALTH_SECONDS, wait_for_ready=wait)

    def _result(self, call: Any) -> bool:
        try:
            return bool(call.result().status == health_pb2.HealthCheckResponse.SERVING)
        except (grpc.RpcError, grpc.FutureCancelledError):
            return False


def wait_until_ready(channel: MeteredChannel, address: str, timeout_seconds: float) -> None:
    """Block until the channel is connected.

    Raises
    ------
    Unreachable
        After ``timeout_seconds``.
    """
    try:
        grpc.channel_ready_future(channel.raw).result(timeout=timeout_seconds)
    except grpc.FutureTimeoutError as error:
        raise Unreachable(
            channel.why_not() or f"{address}: no connection within {timeout_seconds:g} s"
        ) from error


def server_certificate(
    address: str, paths: IdentityPaths, server_name: str | None = None, proxy: str = ""
) -> bytes:
    """Return the certificate, PEM, that the server at ``HOST:PORT`` has now, by a handshake.

    Raises
    ------
    Unreachable
        Nobody is there, or the certificate is not of the federation's CA or of another host.
    """
    host = address.rpartition(":")[0].strip("[]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(paths.roots)
        load_chain(context, paths)
        with (
            connected(address, HANDSHAKE_SECONDS, proxy) as plain,
            context.wrap_socket(plain, server_hostname=server_name or host) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
    except (OSError, ValueError) as error:
        why = why_not(address, paths, server_name, proxy)
        raise Unreachable(why or f"{address}: {error}") from error
    assert certificate is not None, "a server without a certificate ends the handshake"
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


class Channels:
    """The channel to a server, made again when the certificates have changed.

    Of several addresses, divided by commas, one is used until :meth:`leave` goes to the next.

    gRPC shows a client no certificate of its server. So where the CA has revoked any, the server's
    is asked for by a handshake of its own, checked, and is the only one that the channel's
    connections accept: the holder of a revoked key cannot answer them.

    Parameters
    ----------
    revoked : RevokedCertificates, optional
        By which the server is refused; its certificate is not looked at when left out.

    Raises
    ------
    IdentityUnusable
        At the first call. Later, files that do not fit together leave the channel that was.
    Unreachable
        The server's certificate is revoked, or cannot be had. Running calls are ended.
    FederationError
        When made: an address is not ``HOST:PORT``.
    """

    def __init__(
        self,
        address: str,
        paths: IdentityPaths,
        metrics: Metrics,
        server_name: str | None = None,
        revoked: RevokedCertificates | None = None,
        proxy: str = "",
    ) -> None:
        self._addresses = [one.strip() for one in address.split(",")]
        for one in self._addresses:  # what is malformed is refused at once
            parse_address(one)
            proxy_of(proxy, one)
        self._proxy = proxy
        self._paths, self._metrics = paths, metrics
        self._server_name = server_name
        self._revoked = revoked
        self._lock = threading.Lock()
        self._stamp: object = None
        self._channel: MeteredChannel | None = None
        self._pinned: bytes | None = None
        self._failed = False

    def __call__(self) -> MeteredChannel:
        """Return the current channel."""
        with self._lock:
            if self._revoked is not None:
                self._revoked.look()
            self._leave_revoked()
            pinned = self._pinned
            if self._failed or (pinned is None and self._revoked and self._revoked.serials):
                pinned = self._ask_server()
            try:
                stamp = (self._paths.stamp(), pinned)
                if self._channel is not None and stamp == self._stamp:
                    return self._channel
                credentials = channel_credentials(self._paths, roots=pinned)
            except (OSError, IdentityUnusable):
                if self._channel is None:
                    raise
                return self._channel
            # The old channel is left to its running calls; the last of them closes it.
            self._channel = dial(
                self._address,
                credentials,
                self._metrics,
                self._paths,
                server_name=self._server_name,
                proxy=self._proxy,
            )
            self._stamp, self._pinned = stamp, pinned
            if pinned is not None:
                self._channel.raw.subscribe(self._note_failure)
            return self._channel

    @property
    def several(self) -> bool:
        """Whether there is another address to go to."""
        return len(self._addresses) > 1

    @property
    def _address(self) -> str:
        return self._addresses[0]

    def leave(self, channel: MeteredChannel, why: FederationError) -> None:
        """Go to the next address, or connect again to one that leads to several servers.

        Parameters
        ----------
        channel : MeteredChannel
            On which the server could not be reached.
        """
        with self._lock:
            if channel is not self._channel:  # another caller has done it
                return
            if self.several or STANDS_BY in str(why):
                self._addresses.append(self._addresses.pop(0))
                self._pinned = None
                self._close_soon()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """End calls under way, too, within seconds of a newer list of revoked certificates."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                with contextlib.suppress(FederationError):
                    self()

        threading.Thread(target=look, name="revoked", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _note_failure(self, state: grpc.ChannelConnectivity) -> None:
        # The server may have got another certificate.
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._failed = True

    def _leave_revoked(self) -> None:
        """End the calls of a channel whose server has, or may have, a revoked certificate."""
        if self._channel is None or self._revoked is None or not self._revoked.serials:
            return
        try:
            if self._pinned is not None:
                self._revoked.check(self._pinned)
                return
        except CertificateRevoked:
            self._pinned = None
        self._close_soon()

    def _close_soon(self) -> None:
        """Leave the channel; not at once: a call may be about to begin on it in a thread."""
        assert self._channel is not None
        closing = threading.Timer(CLOSE_SECONDS, self._channel.close)
        closing.daemon = True
        closing.start()
        self._channel, self._failed = None, False

    def _ask_server(self) -> bytes:
        """Return the server's certificate, which nobody has revoked."""
        assert self._revoked is not None
        try:
            certificate = server_certificate(
                self._address, self._paths, self._server_name, self._proxy
            )
            self._revoked.check(certificate)
        except CertificateRevoked as error:
            raise Unreachable(f"{self._address}: {error}") from error
        except Unreachable:
            if self._pinned is None:
                raise
            return self._pinned
        self._failed = False
        return certificate
