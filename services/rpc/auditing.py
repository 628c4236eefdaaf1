"""What a server's calls leave in the audit trail."""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc

from hedgerow.boosting.errors import FederationError, Unauthorised
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.process.trail import Actor, Trail
from hedgerow.services.rpc.doorman import address_of
from hedgerow.services.rpc.errors import abort, reason_of
from hedgerow.services.rpc.metering import Wrapping, behaviour_of, on_record

OPERATORS = (Role.OPERATOR, Role.ADMIN)
ACTS = {
    "CreateJob": "job-submit",
    "ApproveJob": "job-approve",
    "ReleaseModel": "model-release",
    "CancelJob": "job-cancel",
    "DeleteJob": "job-delete",
    "DownloadModel": "model-download",
    "ForgetSilo": "silo-forget",
}
"""Calls of operators that are on record before they are served."""
OF_VIEWERS = ("job-approve", "model-release")
"""Those of them that a viewer may make, too, where a job names them."""
NOTES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "RegisterSilo": ("silo-join", lambda request: ""),
    "ReleaseLease": ("silo-leave", lambda request: ""),
    "AcceptAssignment": ("job-decline", lambda request: request.declined),
}
"""Calls of silos that are on record, each once a minute; and what says why one declines."""
_RULE = re.compile(r"policy rule ([a-z_]+)")


class AuditInterceptor(Wrapping):
    """Writes what operators and silos do; refuses what cannot be written."""

    def __init__(self, trail: Trail) -> None:
        super().__init__()
        self._trail = trail

    def wrap(self, path: str, handler: Any) -> Any:
        """Return the method's handler behind the trail."""
        method = path.rpartition("/")[2]
        kind, behaviour = behaviour_of(handler)
        if method in ACTS:
            wrapped = self._streamed if inspect.isasyncgenfunction(behaviour) else self._once
            served: Any = wrapped(ACTS[method], behaviour)
        elif method in NOTES:
            served = self._noted(*NOTES[method], behaviour)
        else:
            return handler
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(served, handler.request_deserializer, handler.response_serializer)

    def _once(self, action: str, behaviour: Any) -> Any:
        async def served(request: Any, context: Any) -> Any:
            actor, about = await self._begun(action, request, context)
            code, response = "CANCELLED", None
            try:
                response = await behaviour(request, context)
                code = ""
                return response
            except grpc.aio.AbortError:
                code = _code(context)
                raise
            finally:
                self._ended(action, actor, about, code, getattr(response, "job_id", ""))

        return served

    def _streamed(self, action: str, behaviour: Any) -> Any:
        async def served(request: Any, context: Any) -> AsyncIterator[Any]:
            actor, about = await self._begun(action, request, context)
            code = "CANCELLED"
            try:
                async for message in behaviour(request, context):
                    yield message
                code = ""
            except grpc.aio.AbortError:
                code = _code(context)
                raise
            finally:
                self._ended(action, actor, about, code)

        return served

    def _noted(self, action: str, reason: Callable[[Any], str], behaviour: Any) -> Any:
        async def served(request: Any, context: Any) -> Any:
            actor, why = actor_of(context), reason(request)
            about = {"hedgerow.job": _text(request, "key.job_id")}
            if why:  # the call of one that declines ends with an error
                rule = _RULE.search(why)
                about |= {"rule.name": rule[1]} if rule else {}
                self._trail.enqueue_limited(action, actor, "failure", about)
            response = await behaviour(request, context)
            if action != "job-decline":
                self._trail.enqueue_limited(action, actor, "success", about)
            return response

        return served

    async def _begun(self, action: str, request: Any, context: Any) -> tuple[Actor, dict[str, Any]]:
        actor = actor_of(context)
        about: dict[str, Any] = {
            "hedgerow.job": _text(request, "job_id"),
            "hedgerow.silo": _text(request, "name"),
            "file.name": _text(request, "artefact"),
            "event.id": secrets.token_hex(8),
        }
        if _on_record(action, actor):  # of others, the refusal is on record, once a minute
            on_record()
            try:
                await asyncio.to_thread(self._trail.write, action, actor, "unknown", about)
            except FederationError as error:
                await abort(context, error)
        return actor, about

    def _ended(
        self, action: str, actor: Actor, about: dict[str, Any], code: str, job_id: str = ""
    ) -> None:
        if _on_record(action, actor):
            more = {"error.code": code} | ({"hedgerow.job": job_id} if job_id else {})
            self._trail.enqueue(action, actor, "failure" if code else "success", about | more)


def actor_of(context: Any) -> Actor:
    """Return who calls, by the certificate, and from where."""
    address = address_of(context.peer())[0]
    with suppress(Unauthorised):
        subject = peer_of(context).subject
        return Actor(subject.name, subject.role.value, address)
    return Actor(address=address)


def _on_record(action: str, actor: Actor) -> bool:
    return actor.role in OPERATORS or (actor.role == Role.VIEWER and action in OF_VIEWERS)


def _code(context: Any) -> str:
    return reason_of(context.trailing_metadata()) or "UNKNOWN"


def _text(request: Any, name: str) -> str:
    found = request
    for part in name.split("."):
        found = getattr(found, part, "")
    return found if isinstance(found, str) else ""
