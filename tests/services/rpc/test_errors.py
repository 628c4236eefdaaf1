"""Errors travel as google.rpc.Status and come back as what was raised."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    OfferRejected,
    StaleAttempt,
    Unreachable,
)
from hedgerow.crypto.errors import Refusal
from hedgerow.services.rpc.crypto_calls import REFUSALS
from hedgerow.services.rpc.errors import FEDERATION, MAX_MESSAGE, ErrorTable, LeaseHeld, from_rpc

TABLES: dict[str, ErrorTable[Any]] = {"federation": FEDERATION, "vault": REFUSALS}


async def failed(table: ErrorTable[Any], error: Exception) -> grpc.RpcError:
    """Return what a client gets of a call that a server ends with ``error``."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            async def answer(request: Any, context: Any) -> None:
                await table.abort(context, error)

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary("/a.Service/Fail", lambda b: b, lambda b: b)
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.to_thread(method, b"", timeout=100)
    finally:
        await server.stop(0)
    return caught.value


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(below for own in kind.__subclasses__() for below in subclasses(own))]


@pytest.mark.process
@pytest.mark.parametrize("name", TABLES)
async def test_every_error_comes_back_as_it_was_raised(name: str) -> None:
    table = TABLES[name]
    for kind in table._by_kind:
        back = table.error(await failed(table, kind("what happened")))
        assert type(back) is kind
        assert str(back) == "what happened"


def test_reasons_have_the_form_that_error_info_asks_for() -> None:
    for table in TABLES.values():
        for reason in table._by_reason:
            assert re.fullmatch(r"[A-Z][A-Z0-9_]+[A-Z0-9]", reason)


def test_every_refusal_of_a_vault_has_a_row() -> None:
    assert set(subclasses(Refusal)) == set(REFUSALS._by_kind)


@pytest.mark.process
async def test_facts_travel_as_metadata_of_the_error_info() -> None:
    error = await failed(FEDERATION, LeaseHeld("held for 3 s more", seconds="3"))
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == (
        "hedgerow",
        "LEASE_HELD",
        {"seconds": "3"},
    )
    assert from_rpc(error, "peer").facts == {"seconds": "3"}


@pytest.mark.process
async def test_an_error_without_a_row_travels_as_its_base() -> None:
    class Narrower(StaleAttempt):
        pass

    assert type(from_rpc(await failed(FEDERATION, Narrower("replaced")), "peer")) is StaleAttempt


@pytest.mark.process
async def test_a_long_message_is_cut_so_that_the_status_arrives() -> None:
    back = from_rpc(await failed(FEDERATION, OfferRejected("x" * 100_000)), "peer")
    assert type(back) is OfferRejected
    assert str(back) == "x" * MAX_MESSAGE


@pytest.mark.process
async def test_a_status_of_another_domain_is_not_taken_for_ours() -> None:
    status = FEDERATION.status(StaleAttempt("theirs"))
    info = error_details_pb2.ErrorInfo(reason="STALE_ATTEMPT", domain="elsewhere")
    status.details[0].Pack(info)

    class Foreign(ErrorTable[FederationError]):
        def status(self, error: FederationError) -> Any:
            return status

    back = from_rpc(await failed(Foreign(), StaleAttempt()), "peer")
    assert type(back) is FederationError
    assert str(back) == "peer: ABORTED: theirs"


@pytest.mark.process
async def test_a_call_that_the_server_cancels_is_tried_again_and_our_own_is_not() -> None:
    class Cancelled(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            async def answer(request: Any, context: Any) -> None:
                if request == b"cancelled there":
                    await context.abort(grpc.StatusCode.CANCELLED)
                await asyncio.Event().wait()

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Cancelled(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary("/a.Service/Wait", lambda b: b, lambda b: b)
            theirs = method.future(b"cancelled there", timeout=60)
            told = await asyncio.to_thread(theirs.exception)
            found = from_rpc(told, "a peer")
            own = method.future(b"", timeout=60)
            own.cancel()
            with pytest.raises(grpc.FutureCancelledError):
                own.result()
            ours = from_rpc(own, "a peer")
    finally:
        await server.stop(0)
    assert told.code() is grpc.StatusCode.CANCELLED
    assert isinstance(found, Unreachable)
    assert isinstance(ours, JobStopped)
