"""The control plane between a silo's agent and the coordinator: servicer and client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc

from hedgerow.api.federation.v1 import federation_service_pb2, federation_service_pb2_grpc, job_pb2
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import FederationError, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.rpc.errors import abort, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label
from hedgerow.services.wire import schema as schema_wire

POLL_SECONDS = 30.0
"""Longest wait of a long poll."""

NOTICE_SECONDS = 0.25
"""How soon an agent that waits for an assignment notices that it is to end."""

MAX_ROWS = 1 << 48
"""Most rows that a silo may say it has."""


REVEALS = {
    "RegisterSilo": "that this silo's agent is there: its version, the strategies that its policy "
    "allows, how many columns its table has, and how many rows, rounded up to a power of two",
    "AwaitAssignment": "that this agent waits for work, and the attempts that it knows of",
    "AcceptAssignment": "this silo's answer to a job: its columns' names, types and category lists "
    "(in a vertical job none of them) and its number of rows (rounded up to a power of two unless "
    "the strategy says otherwise), with a signature over the job's digest; or why it declines",
    "RenewLease": "that this agent is alive, what it works on, and of which jobs it keeps keys",
    "ReportOutcome": "that this silo's half of a job has ended, or why it failed",
    "ReleaseLease": "that this agent ends",
}
"""What the requests of an agent's control calls tell the coordinator."""
TELLING = frozenset({"RegisterSilo", "AcceptAssignment"})
"""Those that tell something of the silo's data."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Job and attempt."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Registration:
    """What an agent tells of itself; see RegisterSiloRequest."""

    instance_id: str
    version: str
    strategies: tuple[str, ...]
    row_count_class: int
    n_columns: int = 0


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A lease as granted."""

    lease_id: str
    lease_seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A silo's part in an attempt; ``spec`` is the serialised JobSpec."""

    key: AttemptKey
    spec: bytes
    role: str
    silos: tuple[Silo, ...]
    exchange_address: str
    operator: str


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A silo's answer to an assignment; ``declined`` is empty when it takes part."""

    key: AttemptKey
    declined: str = ""
    schema: Schema | None = None
    n_samples: int = 0
    spec_digest: bytes = b""
    signature: bytes = b""
    certificate: bytes = b""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the silos of an attempt agreed on; None stands for "not yet"."""

    schema: Schema
    silos: tuple[Silo, ...]
    first_round: int


def accept_message(job_id: str, spec_digest: bytes) -> bytes:
    """Return what a silo signs when it accepts a job: it binds the job's exact text."""
    return b"hedgerow/accept/v1\0" + job_id.encode() + b"\0" + spec_digest


class Federation(Protocol):
    """What the servicer needs of the coordinator."""

    async def register(self, silo: Silo, registration: Registration) -> LeaseGrant:
        """Grant a lease; raises LeaseHeld."""
        ...

    async def assignment(
        self, silo: Silo, lease_id: str, held: frozenset[AttemptKey], timeout_seconds: float
    ) -> Assignment | None:
        """Wait for an assignment that the agent does not hold yet."""
        ...

    async def accept(
        self, silo: Silo, lease_id: str, acceptance: Acceptance, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer in and wait for the others'."""
        ...

    def renew(
        self, silo: Silo, lease_id: str, working: tuple[AttemptKey, ...]
    ) -> tuple[AttemptKey, ...]:
        """Keep a lease; returns what to stop."""
        ...

    async def ended(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the jobs that have ended for good."""
        ...

    def outcome(self, silo: Silo, lease_id: str, key: AttemptKey, error: str) -> None:
        """Note how a silo's half ended."""
        ...

    def release(self, silo: Silo, lease_id: str) -> None:
        """End a lease."""
        ...


def _key(key: AttemptKey) -> federation_service_pb2.AttemptKey:
    return federation_service_pb2.AttemptKey(job_id=key.job_id, attempt=key.attempt)


def _read_key(key: federation_service_pb2.AttemptKey) -> AttemptKey:
    return AttemptKey(key.job_id, key.attempt)


class FederationServicer(federation_service_pb2_grpc.FederationServiceServicer):
    """Server side of FederationService."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        federation_service_pb2_grpc.add_FederationServiceServicer_to_server(self, server)
        return federation_service_pb2.DESCRIPTOR.services_by_name["FederationService"].full_name

    async def RegisterSilo(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            silo = Silo(peer_of(context).require(Role.SILO))
            grant = await self._federation.register(
                silo,
                Registration(
                    request.instance_id,
                    request.version,
                    tuple(request.strategies),
                    _rows(silo, request.row_count_class),
                    request.n_columns,
                ),
            )
        except FederationError as error:
            await abort(context, error)
        label(silo=silo)
        return federation_service_pb2.RegisterSiloResponse(
            lease_id=grant.lease_id, lease_seconds=grant.lease_seconds, version=grant.version
        )

    async def AwaitAssignment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            silo = _silo(context)
            held = frozenset(_read_key(key) for key in request.held)
            found = await self._federation.assignment(
                silo, request.lease_id, held, _patience(context)
            )
        except FederationError as error:
            await abort(context, error)
        response = federation_service_pb2.AwaitAssignmentResponse()
        if found is not None:
            label(job_id=found.key.job_id, silo=silo)
            response.assignment.CopyFrom(
                federation_service_pb2.Assignment(
                    key=_key(found.key),
                    spec=found.spec,
                    role=job_pb2.Role.Value(f"ROLE_{found.role.upper()}"),
                    silos=found.silos,
                    exchange_address=found.exchange_address,
                    operator=found.operator,
                )
            )
        return response

    async def AcceptAssignment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            silo = _silo(context)
            label(job_id=request.key.job_id, silo=silo)
            agreed = await self._federation.accept(
                silo,
                request.lease_id,
                read_acceptance(silo, request),
                _patience(context),
            )
        except FederationError as error:
            await abort(context, error)
        if agreed is None:
            return federation_service_pb2.AcceptAssignmentResponse(ready=False)
        return federation_service_pb2.AcceptAssignmentResponse(
            schema=schema_wire.encode(agreed.schema),
            silos=agreed.silos,
            first_round=agreed.first_round,
            ready=True,
        )

    async def RenewLease(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            silo = _silo(context)
            working = tuple(_read_key(key) for key in request.working)
            if working:
                label(job_id=working[0].job_id, silo=silo)
            stop = self._federation.renew(silo, request.lease_id, working)
            ended = await self._federation.ended(tuple(request.kept_jobs))
        except FederationError as error:
            await abort(context, error)
        return federation_service_pb2.RenewLeaseResponse(
            stop=[_key(key) for key in stop], ended_jobs=ended
        )

    async def ReportOutcome(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            silo = _silo(context)
            label(job_id=request.key.job_id, silo=silo)
            self._federation.outcome(
                silo, request.lease_id, _read_key(request.key), request.error[:2000]
            )
        except FederationError as error:
            await abort(context, error)
        return federation_service_pb2.ReportOutcomeResponse()

    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            self._federation.release(_silo(context), request.lease_id)
        except FederationError as error:
            await abort(context, error)
        return federation_service_pb2.ReleaseLeaseResponse()


def _silo(context: Any) -> Silo:
    """Return the silo that calls, on whose account the call goes."""
    silo = Silo(peer_of(context).require(Role.SILO))
    label(silo=silo)
    return silo


def read_acceptance(silo: Silo, request: Any) -> Acceptance:
    """Return the answer of a silo; its numbers size what the coordinator plans and stores.

    Raises
    ------
    OfferRejected
        Numbers that no silo can have; names the silo.
    """
    try:
        schema = schema_wire.decode(request.schema) if request.HasField("schema") else None
    except OfferRejected as error:
        raise OfferRejected(f"{silo}: {error}") from error
    return Acceptance(
        _read_key(request.key),
        request.declined,
        schema,
        _rows(silo, request.n_samples),
        request.spec_digest,
        request.signature,
        request.certificate,
    )


def _rows(silo: Silo, given: int) -> int:
    if given > MAX_ROWS:
        raise OfferRejected(f"{silo}: {given} rows, at most {MAX_ROWS} are taken")
    return given


def _patience(context: Any) -> float:
    """Return how long a long poll may wait: less than the caller's own deadline."""
    remaining = context.time_remaining()
    if remaining is None:
        return POLL_SECONDS
    return float(max(min(POLL_SECONDS, remaining - 1.0), 0.0))


class FederationClient:
    """Agent side of FederationService; blocking.

    Every method raises :class:`~hedgerow.boosting.errors.FederationError` as mapped by
    :func:`hedgerow.services.rpc.errors.from_rpc`.

    Parameters
    ----------
    record : callable
        Called with (method, serialised request, job identifier or nothing) before each request is
        sent; what it raises stops the request.
    """

    def __init__(
        self, channel: MeteredChannel, address: str, record: Callable[[str, bytes, str], None]
    ) -> None:
        self._stub = federation_service_pb2_grpc.FederationServiceStub(cast(grpc.Channel, channel))
        self._address = address
        self._record = record

    def _call(
        self, method: str, request: Any, timeout_seconds: float = 10.0, job_id: str = ""
    ) -> Any:
        self._record(method, request.SerializeToString(), job_id)
        try:
            return getattr(self._stub, method)(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise from_rpc(error, self._address) from None

    def register(self, registration: Registration) -> LeaseGrant:
        """Take the lease."""
        response = self._call(
            "RegisterSilo",
            federation_service_pb2.RegisterSiloRequest(
                instance_id=registration.instance_id,
                version=registration.version,
                strategies=registration.strategies,
                row_count_class=registration.row_count_class,
                n_columns=registration.n_columns,
            ),
        )
        return LeaseGrant(response.lease_id, response.lease_seconds, response.version)

    def await_assignment(
        self, lease_id: str, held: tuple[AttemptKey, ...], ended: Callable[[], bool]
    ) -> Assignment | None:
        """Wait up to half a minute for an assignment, or until ``ended`` says so."""
        request = federation_service_pb2.AwaitAssignmentRequest(
            lease_id=lease_id, held=[_key(key) for key in held]
        )
        self._record("AwaitAssignment", request.SerializeToString(), "")
        call = self._stub.AwaitAssignment.future(request, timeout=POLL_SECONDS + 5.0)
        while True:
            try:
                response = call.result(timeout=NOTICE_SECONDS)
                break
            except grpc.FutureTimeoutError:
                if ended():
                    call.cancel()
                    return None
            except grpc.FutureCancelledError:
                return None
            except grpc.RpcError as error:
                raise from_rpc(error, self._address) from None
        if not response.HasField("assignment"):
            return None
        given = response.assignment
        return Assignment(
            _read_key(given.key),
            given.spec,
            job_pb2.Role.Name(given.role).removeprefix("ROLE_").lower(),
            tuple(Silo(name) for name in given.silos),
            given.exchange_address,
            given.operator,
        )

    def accept(self, lease_id: str, acceptance: Acceptance) -> Agreement | None:
        """Answer an assignment; None while others have not."""
        response = self._call(
            "AcceptAssignment",
            federation_service_pb2.AcceptAssignmentRequest(
                lease_id=lease_id,
                key=_key(acceptance.key),
                declined=acceptance.declined,
                schema=schema_wire.encode(acceptance.schema) if acceptance.schema else None,
                n_samples=acceptance.n_samples,
                spec_digest=acceptance.spec_digest,
                signature=acceptance.signature,
                certificate=acceptance.certificate,
            ),
            POLL_SECONDS + 5.0,
            acceptance.key.job_id,
        )
        if not response.ready:
            return None
        return Agreement(
            schema_wire.decode(response.schema),
            tuple(Silo(name) for name in response.silos),
            response.first_round,
        )

    def renew(
        self, lease_id: str, working: tuple[AttemptKey, ...], kept_jobs: tuple[str, ...] = ()
    ) -> tuple[tuple[AttemptKey, ...], tuple[str, ...]]:
        """Keep the lease; returns the attempts to stop, and the kept jobs that have ended."""
        response = self._call(
            "RenewLease",
            federation_service_pb2.RenewLeaseRequest(
                lease_id=lease_id,
                working=[_key(key) for key in working],
                kept_jobs=kept_jobs,
            ),
            5.0,
            working[0].job_id if working else "",
        )
        return tuple(_read_key(key) for key in response.stop), tuple(response.ended_jobs)

    def report(self, lease_id: str, key: AttemptKey, error: str) -> None:
        """Report how this silo's half ended."""
        self._call(
            "ReportOutcome",
            federation_service_pb2.ReportOutcomeRequest(
                lease_id=lease_id, key=_key(key), error=error
            ),
            job_id=key.job_id,
        )

    def release(self, lease_id: str) -> None:
        """Give the lease back."""
        self._call(
            "ReleaseLease",
            federation_service_pb2.ReleaseLeaseRequest(lease_id=lease_id),
            2.0,
        )
