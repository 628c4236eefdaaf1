"""Failures mapped once: exceptions of the project to gRPC status codes, and back."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from hedgerow.boosting import errors as faults

REASON = "hedgerow-reason"
"""Trailing metadata key that names the exception behind a status."""


class Unauthorised(faults.FederationError):
    """The caller's certificate does not allow the call."""


class NotFound(faults.FederationError):
    """No such job, file or lease."""


class LeaseHeld(faults.FederationError):
    """Another agent of the same name holds the lease."""


class VersionRefused(faults.FederationError):
    """Agent and coordinator are too many versions apart; says which of them to upgrade."""


class LeaseLost(faults.FederationError):
    """The lease has ended or is not known; register again."""


_CODES: dict[type[faults.FederationError], grpc.StatusCode] = {
    faults.OfferRejected: grpc.StatusCode.INVALID_ARGUMENT,
    faults.InvalidJob: grpc.StatusCode.INVALID_ARGUMENT,
    faults.SchemaMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    faults.PolicyDeclined: grpc.StatusCode.FAILED_PRECONDITION,
    faults.PlacePassed: grpc.StatusCode.FAILED_PRECONDITION,
    faults.QuorumLost: grpc.StatusCode.ABORTED,
    faults.StaleAttempt: grpc.StatusCode.ABORTED,
    faults.JobStopped: grpc.StatusCode.ABORTED,
    faults.SignatureInvalid: grpc.StatusCode.PERMISSION_DENIED,
    faults.DataError: grpc.StatusCode.FAILED_PRECONDITION,
    Unauthorised: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    LeaseHeld: grpc.StatusCode.ALREADY_EXISTS,
    LeaseLost: grpc.StatusCode.FAILED_PRECONDITION,
    VersionRefused: grpc.StatusCode.FAILED_PRECONDITION,
    faults.Unreachable: grpc.StatusCode.UNAVAILABLE,
}
_BY_NAME = {kind.__name__: kind for kind in _CODES}


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: faults.FederationError
) -> NoReturn:
    """End the call with the status of ``error``."""
    code = _CODES.get(type(error), grpc.StatusCode.FAILED_PRECONDITION)
    await context.abort(code, str(error), ((REASON, type(error).__name__),))
    raise AssertionError("abort raises")


def from_rpc(error: grpc.RpcError, peer: str) -> faults.FederationError:
    """Return the exception that a failed call stands for.

    ``peer`` is the address that was dialled; an ``Unreachable`` names it.
    """
    metadata: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    kind = _BY_NAME.get(str(metadata.get(REASON, "")))
    details = error.details() or ""
    if kind is not None:
        return kind(details)
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return faults.Unreachable(f"{peer}: {explain(details, code)}")
    if code is grpc.StatusCode.CANCELLED:
        return faults.JobStopped("the call was cancelled")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return faults.Unreachable(f"{peer} does not know this call: is it a Hedgerow coordinator?")
    return faults.FederationError(f"{peer}: {code.name}: {details}")


def explain(details: str, code: grpc.StatusCode) -> str:
    """Return gRPC's connection error in words an operator can act on."""
    text = details.lower()
    if "certificate_verify_failed" in text or "certificate verify failed" in text:
        return (
            "the peer's certificate was refused: it is expired, made by another CA, or for "
            f"another name ({details})"
        )
    if "handshake" in text or "ssl" in text or "tls" in text:
        return (
            "the TLS handshake failed: the peer may have refused our certificate (expired, "
            f"foreign or for another role), or it does not speak TLS ({details})"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer before the deadline"
    if "refused" in text:
        return "nothing listens there (connection refused)"
    return details or code.name
