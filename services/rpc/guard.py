"""What every call of a server passes first, health and reflection included."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from hedgerow.boosting.errors import FederationError, Unauthorised, Unreachable
from hedgerow.services.identity.certificates import IdentityUnusable, Role
from hedgerow.services.identity.peers import PeerIdentity, peer_of
from hedgerow.services.identity.revocation import LOOK_SECONDS, RevokedCertificates
from hedgerow.services.process.trail import NOWHERE, Actor, Trail
from hedgerow.services.rpc.doorman import ConnectionLimiter
from hedgerow.services.rpc.errors import abort
from hedgerow.services.rpc.metering import Wrapping, behaviour_of
from hedgerow.services.wire.bounds import check_request

BOUNDED = "/hedgerow.api.federation."
"""Paths of the services whose requests are bounded; the crypto process' streams bound theirs."""
REVOKED = "the federation's CA has revoked the caller's certificate"


class AuthInterceptor(Wrapping):
    """Refuses the revoked, tells the doorman who has called, bounds requests.

    Reflection is for operators only.

    Parameters
    ----------
    revoked : RevokedCertificates, optional
        Nobody is revoked when left out.
    silo_ended : callable, optional
        Called with the name of a silo whose certificate has ended while its connection was open,
        and with what it is told.
    trail : Trail, optional
        Gets newer lists of revoked certificates.
    refusal : callable, optional
        Returns why this server answers nothing but health checks now; nothing where it does.
    """

    doorman: ConnectionLimiter | None = None

    def __init__(
        self,
        revoked: RevokedCertificates | None = None,
        silo_ended: Callable[[str, str], None] = lambda silo, why: None,
        trail: Trail = NOWHERE,
        refusal: Callable[[], str] = str,
    ) -> None:
        super().__init__()
        self._revoked, self._trail, self._refusal = revoked, trail, refusal
        self.silo_ended = silo_ended
        self._open: dict[asyncio.Task[Any], bytes] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    async def watch(self, seconds: float = LOOK_SECONDS) -> None:
        """Poll the revocation list until cancelled; end calls whose certificate it names."""
        assert self._revoked is not None
        number = self._revoked.number
        while True:
            await asyncio.to_thread(self._revoked.look)
            if self._revoked.number != number:
                number = self._revoked.number
                serials = [f"{serial:x}" for serial in sorted(self._revoked.serials)]
                about = {"hedgerow.number": number, "hedgerow.serials": serials}
                self._trail.enqueue("revocation-list", Actor(), about=about)
                self._end_revoked()
            await asyncio.sleep(seconds)

    def _end_revoked(self) -> None:
        assert self._revoked is not None
        for task, certificate in list(self._open.items()):
            try:
                self._revoked.check(certificate)
            except IdentityUnusable:
                self._ended.add(task)
                task.cancel()

    def wrap(self, path: str, handler: Any) -> Any:
        """Return the method's handler behind the checks."""
        kind, behaviour = behaviour_of(handler)

        async def once(request: Any, context: Any) -> Any:
            async with self._admitted(path, request, context):
                return await behaviour(request, context)

        async def streamed(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._admitted(path, request, context):
                async for message in behaviour(request, context):
                    yield message

        wrapped = streamed if inspect.isasyncgenfunction(behaviour) else once
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    @asynccontextmanager
    async def _admitted(self, path: str, request: Any, context: Any) -> AsyncIterator[None]:
        """Serve a call that passes; one whose caller is revoked meanwhile ends with that."""
        try:
            caller = peer_of(context)
            self._check_revoked(caller)
            if self.doorman is not None:
                self.doorman.know(context.peer(), caller.subject.uri)
            if (why := self._refusal()) and not path.startswith("/grpc.health"):
                raise Unreachable(why)
            if path.startswith("/grpc.reflection"):
                caller.require(Role.OPERATOR, Role.ADMIN)
            if path.startswith(BOUNDED) and isinstance(request, Message):
                check_request(request, request.ByteSize())
        except FederationError as error:
            if error.facts.get("role") == Role.SILO.value and "ended" in error.facts:
                self.silo_ended(error.facts["ended"], str(error))
            await abort(context, error)
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = caller.certificate
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            await abort(context, Unauthorised(REVOKED))
        finally:
            self._open.pop(task, None)
            self._ended.discard(task)

    def _check_revoked(self, caller: PeerIdentity) -> None:
        if self._revoked is None:
            return
        try:
            self._revoked.check(caller.certificate)
        except IdentityUnusable as error:
            raise Unauthorised(str(error)) from error
