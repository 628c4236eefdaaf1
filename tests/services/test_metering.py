"""Every method of every service is counted, whichever of its sides is a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from hedgerow.crypto.v1 import crypto_service_pb2_grpc
from hedgerow.federation.v1 import federation_service_pb2_grpc, job_service_pb2_grpc

from services.metering import MeteredChannel, MeteringInterceptor, Metrics


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


async def test_a_streamed_request_with_one_response_is_counted_at_both_ends() -> None:
    served, called = Metrics(), Metrics()
    server = grpc.aio.server(interceptors=[MeteringInterceptor(served)])
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = MeteredChannel(channel, called).stream_unary("/a.Service/Join", echo, echo)
            answer = await asyncio.to_thread(method, iter([b"abc", b"de"]), timeout=10)
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
