"""Every method of every service is counted, whichever of its sides is a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from hedgerow.api.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.api.federation.v1 import federation_service_pb2_grpc, job_service_pb2_grpc
from hedgerow.services.process.logs import MOST_KINDS, REPEAT_SECONDS
from hedgerow.services.rpc.metering import (
    MeteredChannel,
    MeteringInterceptor,
    Metrics,
)
from hedgerow.services.rpc.refusal_log import RefusalLog


def echo(data: bytes) -> bytes:
    return data


async def join(requests: Any, context: Any) -> bytes:
    return b"".join([part async for part in requests])


class Handlers(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_unary_rpc_method_handler(join)


@pytest.mark.parametrize(
    "stub",
    [
        crypto_service_pb2_grpc.CryptoServiceStub,
        federation_service_pb2_grpc.FederationServiceStub,
        job_service_pb2_grpc.JobServiceStub,
    ],
)
def test_a_counting_channel_serves_every_stub(stub: Any) -> None:
    with grpc.insecure_channel("localhost:1") as channel:
        assert vars(stub(MeteredChannel(channel, Metrics())))


@pytest.mark.process
async def test_a_streamed_request_with_one_response_is_counted_at_both_ends() -> None:
    served, called = Metrics(), Metrics()
    server = grpc.aio.server(interceptors=[MeteringInterceptor(served)])
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = MeteredChannel(channel, called).stream_unary("/a.Service/Join", echo, echo)
            answer = await asyncio.to_thread(method, iter([b"abc", b"de"]), timeout=100)
    finally:
        await server.stop(1)
    assert answer == b"abcde"
    for metrics in (served, called):
        for direction, messages in (("up", 2), ("down", 1)):
            labels = {
                "service": "Service",
                "method": "Join",
                "direction": direction,
                "strategy": "",
            }
            value = metrics.registry.get_sample_value
            assert value("hedgerow_messages_total", labels) == messages
            assert value("hedgerow_message_bytes_total", labels) == 5


def test_a_callers_repeated_refusals_are_counted_and_logged_once_a_minute() -> None:
    clock = [0.0]
    refusals = RefusalLog(lambda: clock[0])
    north = {"role": "silo", "name": "north", "reason": "NOT_ON_ROSTER"}
    with capture_logs() as logged:
        for _ in range(50):
            refusals.note("RegisterSilo", "PERMISSION_DENIED", north)
            clock[0] += 1.0
        refusals.note("RegisterSilo", "PERMISSION_DENIED", {**north, "name": "south"})
        for port in range(20):
            caller = {"peer": f"ipv4:10.0.0.7:{4000 + port}"}
            refusals.note("GetJob", "UNAUTHENTICATED", caller)
        clock[0] += REPEAT_SECONDS
        refusals.note("RegisterSilo", "PERMISSION_DENIED", north)
    assert [(e.get("name", ""), e["method"], e.get("repeats", 0)) for e in logged] == [
        ("north", "RegisterSilo", 0), ("south", "RegisterSilo", 0), ("", "GetJob", 0),
        ("north", "RegisterSilo", 49),
    ]  # fmt: skip


def test_refusals_of_many_callers_are_forgotten_oldest_first() -> None:
    refusals = RefusalLog(lambda: 0.0)
    with capture_logs() as logged:
        for name in [*map(str, range(2 * MOST_KINDS)), "1", str(2 * MOST_KINDS - 1)]:
            refusals.note("GetJob", "PERMISSION_DENIED", {"role": "silo", "name": name})
    assert len(logged) == 2 * MOST_KINDS + 1  # the first ones are new again, the last is not
