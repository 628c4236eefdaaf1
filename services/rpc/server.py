"""An aio gRPC server as every process runs it: metered, with health, reflection and keepalive.

There is no mode without TLS: ``hedgerow local`` makes certificates that live as long as the job.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process.trail import NOWHERE, Trail
from hedgerow.services.rpc.auditing import AuditInterceptor
from hedgerow.services.rpc.channel import CLOCK
from hedgerow.services.rpc.doorman import ConnectionLimiter, raise_descriptor_limit
from hedgerow.services.rpc.guard import AuthInterceptor
from hedgerow.services.rpc.metering import MeteringInterceptor, Metrics, Sink

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without this a frozen peer is noticed after a minute only.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 3_000),
    # An open connection survives the rotation of certificates and the removal of a CA: end it.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 600_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
    # Who does not finish TLS is no client; the core's own limit is two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
)
"""Server options; the 4 MiB message limit is kept on purpose."""

Register = Callable[[grpc.aio.Server], str]
"""Adds a servicer to a server and returns the full name of its service."""


class DatedHealth(health.aio.HealthServicer):  # type: ignore[misc]
    """The health service, whose answer says what time it is here: certificates need clocks."""

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await context.send_initial_metadata(((CLOCK, f"{time.time():.3f}"),))
        return await super().Check(request, context)


@dataclass(slots=True)
class Serving:
    """A started server."""

    server: grpc.aio.Server
    port: int
    health: health.aio.HealthServicer
    doorman: ConnectionLimiter
    names: tuple[str, ...] = ()
    watcher: asyncio.Task[None] | None = None
    pulse: asyncio.Task[None] | None = None

    async def say(self, *, ready: bool) -> None:
        """Say of each service whether it serves; the process itself is healthy in any case."""
        answers = health_pb2.HealthCheckResponse
        for name in self.names:
            await self.health.set(name, answers.SERVING if ready else answers.NOT_SERVING)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Say NOT_SERVING, then drain for at most ``grace_seconds``."""
        for task in (self.watcher, self.pulse):
            if task is not None:
                task.cancel()
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)
        await asyncio.to_thread(self.doorman.stop)


async def serve(
    address: str,
    registers: list[Register],
    metrics: Metrics,
    credentials: grpc.ServerCredentials,
    sink: Sink | None = None,
    revoked: RevokedCertificates | None = None,
    silo_ended: Callable[[str, str], None] = lambda silo, why: None,
    trail: Trail = NOWHERE,
    refusal: Callable[[], str] = str,
) -> Serving:
    """Start a server on ``HOST:PORT`` (port 0: a free one).

    Parameters
    ----------
    revoked : RevokedCertificates, optional
        Whose calls are refused, and ended within seconds of a newer list.
    silo_ended, refusal : callable, optional
        See :class:`~hedgerow.services.rpc.guard.AuthInterceptor`.
    trail : Trail, optional
        Gets what operators and silos do, and whose calls are refused.

    Raises
    ------
    OSError
        The address cannot be bound.
    """
    raise_descriptor_limit()
    guard = AuthInterceptor(revoked, silo_ended, trail, refusal)
    metering = MeteringInterceptor(metrics, sink, trail)
    server = grpc.aio.server(
        interceptors=[metering, guard, AuditInterceptor(trail)], options=OPTIONS
    )
    names = [register(server) for register in registers]
    metrics.expect_calls(names)
    status = DatedHealth()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    reflection.enable_server_reflection(
        (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(
            f"cannot listen on {address}: another process does, or the address is not this "
            "machine's; set `listen` to another port"
        ) from error
    await server.start()
    guard.doorman = ConnectionLimiter(port).start()
    watcher = None if revoked is None else asyncio.create_task(guard.watch(), name="revoked")
    metrics.expect_pulse()
    pulse = asyncio.create_task(_pulse(metrics), name="pulse")
    serving = Serving(server, port, status, guard.doorman, tuple(names), watcher, pulse)
    await status.set("", health_pb2.HealthCheckResponse.SERVING)
    await serving.say(ready=not refusal())
    return serving


async def _pulse(metrics: Metrics) -> None:
    try:
        while True:
            metrics.pulse = time.monotonic()
            await asyncio.sleep(1.0)
    finally:
        metrics.pulse = -math.inf
