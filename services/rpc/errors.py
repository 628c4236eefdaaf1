"""Errors as ``google.rpc.Status``: one table gives each its code and its reason, both ways.

A failed call carries a ``Status`` with an ``ErrorInfo``: domain ``hedgerow``, the reason of the
table, and the error's facts as metadata. The client raises the exception that the reason names.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from hedgerow.boosting import errors
from hedgerow.services.process.texts import one_line

DOMAIN = "hedgerow"
"""Domain of the reasons, as ``ErrorInfo`` names it."""
MAX_MESSAGE = 1500
"""Longest message, characters: it travels twice, and gRPC limits trailing metadata to 8 KiB."""

Error = TypeVar("Error", bound=Exception)
Method = TypeVar("Method", bound=Callable[..., Any])


class NotFound(errors.FederationError):
    """There is no such job or file."""


class Damaged(errors.FederationError):
    """What is stored is not what was written; trying again does not help."""


class JobUnderWay(errors.FederationError):
    """The job has not ended, and cannot be deleted."""


class NotReleased(errors.FederationError):
    """The model is held back until enough approvers have signed an audit of it."""


class LeaseHeld(errors.FederationError):
    """Another agent of the same name holds the lease."""


class VersionRefused(errors.FederationError):
    """Agent and coordinator are too many versions apart; the message says which to upgrade."""


class LeaseLost(errors.FederationError):
    """The lease has ended or is unknown; the agent must register again."""


class ErrorRow(NamedTuple, Generic[Error]):
    """How one exception travels."""

    kind: type[Error]
    code: grpc.StatusCode
    reason: str


class ErrorTable(Generic[Error]):
    """Exceptions and their statuses.

    Parameters
    ----------
    *rows : Row
        A subclass that has no row of its own travels as its nearest base class that has one.
    """

    def __init__(self, *rows: ErrorRow[Error]) -> None:
        self._by_kind = {row.kind: row for row in rows}
        self._by_reason = {row.reason: row.kind for row in rows}

    def status(self, error: Error) -> status_pb2.Status:
        """Return the status of an exception."""
        row = next(self._by_kind[kind] for kind in type(error).__mro__ if kind in self._by_kind)
        code, _ = row.code.value
        detail = any_pb2.Any()
        detail.Pack(
            error_details_pb2.ErrorInfo(
                reason=row.reason,
                domain=DOMAIN,
                metadata=error.facts if isinstance(error, errors.FederationError) else None,
            )
        )
        return status_pb2.Status(code=code, message=str(error)[:MAX_MESSAGE], details=[detail])

    async def abort(
        self, context: grpc.aio.ServicerContext[object, object], error: Error
    ) -> NoReturn:
        """End the call with the status of ``error``."""
        status = rpc_status.to_status(self.status(error))
        await context.abort(status.code, status.details, status.trailing_metadata)
        raise AssertionError("abort raises")

    def error(self, call: grpc.RpcError) -> Error | None:
        """Return the exception that the status of a failed call names, or None."""
        try:
            status = rpc_status.from_call(call)
        except (ValueError, DecodeError):
            return None
        info = None if status is None else _info(status)
        kind = None if info is None else self._by_reason.get(info.reason)
        if status is None or info is None or kind is None:
            return None
        error = kind(one_line(status.message))
        if isinstance(error, errors.FederationError):
            error.facts = dict(info.metadata)
        return error


_Code = grpc.StatusCode
FEDERATION: ErrorTable[errors.FederationError] = ErrorTable(
    ErrorRow(errors.OfferRejected, _Code.INVALID_ARGUMENT, "OFFER_REJECTED"),
    ErrorRow(errors.LimitReached, _Code.RESOURCE_EXHAUSTED, "LIMIT_REACHED"),
    ErrorRow(errors.InvalidJob, _Code.INVALID_ARGUMENT, "INVALID_JOB"),
    ErrorRow(errors.SchemaMismatch, _Code.FAILED_PRECONDITION, "SCHEMA_MISMATCH"),
    ErrorRow(errors.PolicyDeclined, _Code.FAILED_PRECONDITION, "POLICY_DECLINED"),
    ErrorRow(errors.PlacePassed, _Code.FAILED_PRECONDITION, "PLACE_PASSED"),
    ErrorRow(errors.DataError, _Code.FAILED_PRECONDITION, "DATA_ERROR"),
    ErrorRow(errors.QuorumLost, _Code.ABORTED, "QUORUM_LOST"),
    ErrorRow(errors.StaleAttempt, _Code.ABORTED, "STALE_ATTEMPT"),
    ErrorRow(errors.JobStopped, _Code.ABORTED, "JOB_STOPPED"),
    ErrorRow(errors.SignatureInvalid, _Code.PERMISSION_DENIED, "SIGNATURE_INVALID"),
    ErrorRow(errors.Unreachable, _Code.UNAVAILABLE, "UNREACHABLE"),
    ErrorRow(errors.Unauthorised, _Code.PERMISSION_DENIED, "UNAUTHORISED"),
    ErrorRow(NotFound, _Code.NOT_FOUND, "NOT_FOUND"),
    ErrorRow(Damaged, _Code.DATA_LOSS, "DAMAGED"),
    ErrorRow(JobUnderWay, _Code.FAILED_PRECONDITION, "JOB_UNDER_WAY"),
    ErrorRow(NotReleased, _Code.FAILED_PRECONDITION, "NOT_RELEASED"),
    ErrorRow(LeaseHeld, _Code.ALREADY_EXISTS, "LEASE_HELD"),
    ErrorRow(LeaseLost, _Code.FAILED_PRECONDITION, "LEASE_LOST"),
    ErrorRow(VersionRefused, _Code.FAILED_PRECONDITION, "VERSION_REFUSED"),
    ErrorRow(errors.FederationError, _Code.FAILED_PRECONDITION, "FEDERATION_ERROR"),
)
"""The errors of the federation, job and exchange services; each RPC's comment lists its own."""


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: errors.FederationError
) -> NoReturn:
    """End a call of the coordinator with the status of ``error``."""
    await FEDERATION.abort(context, error)


def aborting(method: Method) -> Method:
    """Make a servicer's method end its call with the status of a FederationError it raises."""
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def stream(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for response in method(self, request, context):
                    yield response
            except errors.FederationError as error:
                await abort(context, error)

        return cast(Method, stream)

    @wraps(method)
    async def unary(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except errors.FederationError as error:
            await abort(context, error)

    return cast(Method, unary)


def reason_of(trailing_metadata: Any) -> str:
    """Return the reason in the trailing metadata of a call, or nothing."""
    for key, value in trailing_metadata or ():
        if key == rpc_status.GRPC_DETAILS_METADATA_KEY:
            info = _info(status_pb2.Status.FromString(value))
            return "" if info is None else info.reason
    return ""


def _info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo | None:
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info
    return None


def from_rpc(error: grpc.RpcError, peer: str) -> errors.FederationError:
    """Return the exception of a failed call.

    ``peer`` is the address that was dialled; an ``Unreachable`` names it.
    """
    known = FEDERATION.error(error)
    if known is not None:
        return known
    details = one_line(error.details() or "")
    code = error.code()
    # gRPC has no code of its own for a connection that breaks because its bytes were damaged.
    # "Channel closed": by us, since the server's certificate was revoked.
    broken = any(
        words in details.lower() for words in ("stream removed", "rst_stream", "channel closed")
    )
    if broken or code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return errors.Unreachable(f"{peer}: {explain(details, code)}")
    if code is grpc.StatusCode.CANCELLED:
        # Also what a call says whose connection the peer has closed, as for a flood of others.
        if "locally cancelled" in details.lower():
            return errors.JobStopped("the call was cancelled")
        return errors.Unreachable(f"{peer}: the call was cancelled there, or its connection closed")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unreachable(
            f"{peer} does not implement this call: is it a Hedgerow coordinator?"
        )
    return errors.FederationError(f"{peer}: {code.name}: {details}")


def explain(details: str, code: grpc.StatusCode) -> str:
    """Return gRPC's connection error in words an operator can act on."""
    text = details.lower()
    if any(sign in text for sign in ("certificate_verify_failed", "certificate verify failed")):
        if "unable to get local issuer" in text or "certificate signature failure" in text:
            return "the server's certificate was issued by another CA than those of our ca.crt"
        return (
            "the peer's certificate was refused: it has expired, was issued by another CA, or "
            f"names another host ({details})"
        )
    if "hostname verification" in text:
        return "the server's certificate names another host than the one that was dialled"
    if "handshake" in text or "ssl" in text or "tls" in text:
        return (
            "the TLS handshake failed: the peer may have refused our certificate (expired, from "
            f"another CA, or for another role), or it does not use TLS ({details})"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer before the deadline"
    if "refused" in text:
        return "no server listens there (connection refused)"
    return details or code.name
