"""Channels as every client makes them: metered, mTLS, with keepalive that sees a frozen peer."""

from __future__ import annotations

from typing import Any

import grpc

from hedgerow.boosting.errors import Unreachable
from hedgerow.services.rpc.metering import MeteredChannel, Metrics

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
    ("grpc.enable_http_proxy", 0),
    # We retry what may be retried ourselves, with the same bytes.
    ("grpc.enable_retries", 0),
)


def dial(
    address: str,
    credentials: grpc.ChannelCredentials,
    metrics: Metrics,
    *,
    server_name: str | None = None,
) -> MeteredChannel:
    """Return a channel to ``HOST:PORT``; connects when first used.

    Parameters
    ----------
    server_name : str, optional
        Name in the server's certificate where it differs from the host.
    """
    options = OPTIONS
    if server_name is not None:
        options = (*OPTIONS, ("grpc.ssl_target_name_override", server_name))
    return MeteredChannel(grpc.secure_channel(address, credentials, options), metrics)


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
            f"{address}: no connection within {timeout_seconds:g} s "
            "(not listening, or a certificate was refused)"
        ) from error
