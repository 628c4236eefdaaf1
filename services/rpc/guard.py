"""What every call of a server passes first, health and reflection included."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from hedgerow.boosting.errors import FederationError
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.rpc.doorman import Doorman
from hedgerow.services.rpc.errors import abort
from hedgerow.services.wire.bounds import check_request

BOUNDED = "/hedgerow.api.federation."
"""Paths of the services whose requests are bounded; the crypto process' streams bound theirs."""


class Guard(grpc.aio.ServerInterceptor):
    """Tells the doorman who has called, bounds requests, and shows reflection to operators only."""

    doorman: Doorman | None = None

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the method's handler behind the checks."""
        path = handler_call_details.method
        if path in self._handlers:
            return self._handlers[path]
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        self._handlers[path] = self._wrap(path, handler)
        return self._handlers[path]

    def _wrap(self, path: str, handler: Any) -> Any:
        kind = next(
            kind
            for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
            if getattr(handler, kind)
        )
        behaviour = getattr(handler, kind)

        async def once(request: Any, context: Any) -> Any:
            await self._check(path, request, context)
            return await behaviour(request, context)

        async def streamed(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._check(path, request, context)
            async for message in behaviour(request, context):
                yield message

        wrapped = streamed if inspect.isasyncgenfunction(behaviour) else once
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    async def _check(self, path: str, request: Any, context: Any) -> None:
        try:
            caller = peer_of(context)
            if self.doorman is not None:
                self.doorman.know(context.peer(), caller.subject.uri)
            if path.startswith("/grpc.reflection"):
                caller.require(Role.OPERATOR, Role.ADMIN)
            if path.startswith(BOUNDED) and isinstance(request, Message):
                check_request(request, request.ByteSize())
        except FederationError as error:
            await abort(context, error)
