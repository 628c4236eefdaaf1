"""The control plane between a silo's agent and the coordinator: servicer and client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import grpc

from hedgerow.api.federation.v1 import federation_service_pb2 as pb
from hedgerow.api.federation.v1 import federation_service_pb2_grpc as pb_grpc
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.errors import aborting, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.records import message_of, value_of
from hedgerow.services.wire.signed_job import SignedJob

POLL_SECONDS = 30.0
"""Longest wait of a long poll."""

NOTICE_SECONDS = 0.25
"""How soon an agent that waits for an assignment notices that it is to end."""

MAX_ROWS = 1 << 48
"""Most rows that a silo may report."""

REVEALS = {
    "RegisterSilo": "that this silo's agent is there: its version, the strategies that its policy "
    "allows, how many columns its table has, and how many rows, rounded up to a power of two",
    "AwaitAssignment": "that this agent waits for work, and the attempts that it knows of",
    "AcceptAssignment": "this silo's answer to a job: its columns' names, types and category lists "
    "(in a vertical job none of them) and its number of rows (rounded up to a power of two unless "
    "the strategy says otherwise), with a signature over the job's digest; or why it declines",
    "RenewLease": "that this agent is alive, what it works on, which jobs it knows, and which list "
    "of revoked certificates it has",
    "ReportOutcome": "that this silo's half of a job has ended, or why it failed",
    "ReleaseLease": "that this agent ends",
}
"""What the requests of an agent's control calls tell the coordinator."""
TELLING = frozenset({"RegisterSilo", "AcceptAssignment"})
"""Those that tell something of the silo's data."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Names an attempt of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Registration:
    """What an agent reports of its silo.

    Parameters
    ----------
    instance_id : str
        Random name of the agent, the same after a restart.
    strategies : tuple of str
        Strategies that its policy allows; empty for all.
    row_count_class : int
        Rows, rounded up to a power of two.
    n_columns : int
        Columns that a job could use; 0 where it is not known before reading.
    """

    instance_id: str
    version: str
    strategies: tuple[str, ...]
    row_count_class: int
    n_columns: int = 0


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A lease as granted; ``version`` is the coordinator's."""

    lease_id: str
    lease_seconds: float
    version: str


class Renewal(NamedTuple):
    """What an agent is told when it renews its lease.

    Parameters
    ----------
    stop : tuple of AttemptKey
        Attempts to stop.
    ended : tuple of str
        The kept jobs that have ended.
    revoked : bytes
        A newer list of revoked certificates, or nothing.
    """

    stop: tuple[AttemptKey, ...]
    ended: tuple[str, ...]
    revoked: bytes


@dataclass(frozen=True, slots=True)
class Assignment:
    """A silo's work in an attempt: the job as its operator signed it, and who is asked."""

    key: AttemptKey
    silos: tuple[Silo, ...]
    job: SignedJob


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a silo brings to a job, with its signature over the job's digest."""

    schema: Schema
    n_samples: int
    job_digest: bytes
    signature: bytes
    certificate: bytes


@dataclass(frozen=True, slots=True)
class Declined:
    """A silo takes no part in a job, and why."""

    reason: str


Answer = Acceptance | Declined


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the silos of an attempt agreed on."""

    schema: Schema
    silos: tuple[Silo, ...]
    first_round: int


def accept_message(job_id: str, job_digest: bytes) -> bytes:
    """Return what a silo signs when it accepts a job: it binds the exact job."""
    return b"hedgerow/accept/v1\0" + job_id.encode() + b"\0" + job_digest


class FederationBackend(Protocol):
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
        self, silo: Silo, lease_id: str, key: AttemptKey, answer: Answer, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer and wait for the others'; None where they have not answered."""
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


class FederationServicer(pb_grpc.FederationServiceServicer):
    """Server side of FederationService."""

    def __init__(
        self, federation: FederationBackend, revoked: RevokedCertificates | None = None
    ) -> None:
        self._federation = federation
        self._revoked = revoked

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        pb_grpc.add_FederationServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["FederationService"].full_name

    @aborting
    async def RegisterSilo(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        _check_rows(silo, request.row_count_class)
        grant = await self._federation.register(silo, value_of(Registration, request))
        return message_of(grant, pb.RegisterSiloResponse())

    @aborting
    async def AwaitAssignment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        found = await self._federation.assignment(
            silo, request.lease_id, frozenset(_keys(request.held)), _patience(context)
        )
        response = pb.AwaitAssignmentResponse()
        if found is not None:
            label(job_id=found.key.job_id, silo=silo)
            message_of(found, response.assignment)
        return response

    @aborting
    async def AcceptAssignment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        label(job_id=request.key.job_id, silo=silo)
        agreed = await self._federation.accept(
            silo,
            request.lease_id,
            value_of(AttemptKey, request.key),
            read_answer(silo, request),
            _patience(context),
        )
        response = pb.AcceptAssignmentResponse()
        if agreed is not None:
            response.agreement.schema.CopyFrom(schema_wire.encode(agreed.schema))
            response.agreement.silos.extend(agreed.silos)
            response.agreement.first_round = agreed.first_round
        return response

    @aborting
    async def RenewLease(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        working = _keys(request.working)
        if working:
            label(job_id=working[0].job_id, silo=silo)
        stop = self._federation.renew(silo, request.lease_id, working)
        ended = await self._federation.ended(tuple(request.kept_jobs))
        response = pb.RenewLeaseResponse(stop=_key_messages(stop), ended_jobs=ended)
        if self._revoked is not None and self._revoked.number > request.revoked_number:
            response.revoked = self._revoked.pem
        return response

    @aborting
    async def ReportOutcome(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        label(job_id=request.key.job_id, silo=silo)
        key = value_of(AttemptKey, request.key)
        self._federation.outcome(silo, request.lease_id, key, request.error)
        return pb.ReportOutcomeResponse()

    @aborting
    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        self._federation.release(_silo(context), request.lease_id)
        return pb.ReleaseLeaseResponse()


def _keys(messages: Iterable[pb.AttemptKey]) -> tuple[AttemptKey, ...]:
    return tuple(value_of(AttemptKey, message) for message in messages)


def _key_messages(keys: Iterable[AttemptKey]) -> list[pb.AttemptKey]:
    return [message_of(key, pb.AttemptKey()) for key in keys]


def _silo(context: Any) -> Silo:
    """Return the silo that calls, and count the call's bytes for it."""
    silo = Silo(peer_of(context).require(Role.SILO))
    label(silo=silo)
    return silo


def read_answer(silo: Silo, request: Any) -> Answer:
    """Return a silo's answer; its numbers size what the coordinator plans and stores.

    Raises
    ------
    OfferRejected
        There is no answer, or a number in it that no silo can have; names the silo.
    """
    given = request.WhichOneof("answer")
    if given is None:
        raise OfferRejected(f"{silo}: expected an answer, received none")
    if given == "declined":
        return Declined(request.declined)
    accepted = request.accepted
    _check_rows(silo, accepted.n_samples)
    try:
        schema = schema_wire.decode(accepted.schema)
    except OfferRejected as error:
        raise OfferRejected(f"{silo}: {error}") from error
    return Acceptance(
        schema,
        accepted.n_samples,
        accepted.job_digest,
        accepted.signature,
        accepted.certificate,
    )


def _check_rows(silo: Silo, given: int) -> None:
    if given > MAX_ROWS:
        raise OfferRejected(f"{silo}: {given} rows, at most {MAX_ROWS} are accepted")


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
        self._stub = pb_grpc.FederationServiceStub(cast(grpc.Channel, channel))
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
        request = message_of(registration, pb.RegisterSiloRequest())
        return value_of(LeaseGrant, self._call("RegisterSilo", request))

    def await_assignment(
        self, lease_id: str, held: tuple[AttemptKey, ...], ended: Callable[[], bool]
    ) -> Assignment | None:
        """Wait up to half a minute for an assignment, or until ``ended`` says so."""
        request = pb.AwaitAssignmentRequest(lease_id=lease_id, held=_key_messages(held))
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
        return value_of(Assignment, response.assignment)

    def accept(self, lease_id: str, key: AttemptKey, answer: Answer) -> Agreement | None:
        """Answer an assignment; None while others have not answered."""
        request = pb.AcceptAssignmentRequest(lease_id=lease_id)
        message_of(key, request.key)
        if isinstance(answer, Declined):
            request.declined = answer.reason
        else:
            request.accepted.schema.CopyFrom(schema_wire.encode(answer.schema))
            request.accepted.n_samples = answer.n_samples
            request.accepted.job_digest = answer.job_digest
            request.accepted.signature = answer.signature
            request.accepted.certificate = answer.certificate
        response = self._call("AcceptAssignment", request, POLL_SECONDS + 5.0, key.job_id)
        if not response.HasField("agreement"):
            return None
        agreed = response.agreement
        return Agreement(
            schema_wire.decode(agreed.schema),
            tuple(Silo(name) for name in agreed.silos),
            agreed.first_round,
        )

    def renew(
        self,
        lease_id: str,
        working: tuple[AttemptKey, ...],
        kept_jobs: tuple[str, ...] = (),
        revoked_number: int = 0,
    ) -> Renewal:
        """Keep the lease."""
        request = pb.RenewLeaseRequest(
            lease_id=lease_id,
            working=_key_messages(working),
            kept_jobs=kept_jobs,
            revoked_number=revoked_number,
        )
        job_id = working[0].job_id if working else ""
        response = self._call("RenewLease", request, 5.0, job_id)
        return Renewal(_keys(response.stop), tuple(response.ended_jobs), response.revoked)

    def report(self, lease_id: str, key: AttemptKey, error: str) -> None:
        """Report how this silo's half ended."""
        request = pb.ReportOutcomeRequest(lease_id=lease_id, error=error)
        message_of(key, request.key)
        self._call("ReportOutcome", request, job_id=key.job_id)

    def release(self, lease_id: str) -> None:
        """Give the lease back."""
        self._call("ReleaseLease", pb.ReleaseLeaseRequest(lease_id=lease_id), 2.0)
