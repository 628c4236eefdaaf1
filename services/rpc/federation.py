"""The control plane between a silo's agent and the coordinator: servicer and client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import grpc

from hedgerow.api.federation.v1 import federation_service_pb2 as pb
from hedgerow.api.federation.v1 import federation_service_pb2_grpc as pb_grpc
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import StateUnwritable
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.work import Rates
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.control_calls import TELLING
from hedgerow.services.rpc.errors import aborting, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label
from hedgerow.services.rpc.offer_memory import SendLimiter
from hedgerow.services.wire.acceptance import (
    Answer,
    Declined,
    PreflightAnswer,
    check_columns,
    check_rows,
    put_rates,
    read_answer,
    read_preflight_answer,
    read_rates,
)
from hedgerow.services.wire.job_view import JobView
from hedgerow.services.wire.records import message_of, value_of
from hedgerow.services.wire.results import (
    JobResult,
    Outcome,
    outcome_message,
    pieces,
    read_outcome,
    read_result,
)
from hedgerow.services.wire.signed_job import SignedJob, SignedSite, SiteSignature
from hedgerow.services.wire.texts import spell_out

POLL_SECONDS = 30.0
"""Longest wait of a long poll."""

FETCH_SECONDS = 600.0
NOTICE_SECONDS = 0.25
"""How soon an agent that waits for an assignment notices that it is to end."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Names an attempt of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Registration:
    """What an agent reports of its silo."""

    instance_id: str
    """Random name of the agent, the same after a restart."""
    version: str
    strategies: tuple[str, ...]
    """Strategies that its policy allows; empty for all."""
    row_count_class: int
    """Rows, rounded up to a power of two."""
    n_columns: int = 0
    """Columns that a job could use; 0 where it is not known before reading."""
    policy: tuple[str, ...] = ()
    """Rules that the silo's policy sets, for operators to read."""
    xgboost: str = ""
    """Version of its XGBoost; empty where it does not say it."""
    columns: tuple[str, ...] = ()
    """Names of columns that a job could use, where its policy lets operators read them."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A lease as granted; ``version`` is the coordinator's."""

    lease_id: str
    lease_seconds: float
    version: str


class Renewal(NamedTuple):
    """The answer to an agent that renews its lease."""

    stop: tuple[AttemptKey, ...]
    """Attempts to stop."""
    ended: tuple[str, ...]
    """The kept jobs that have ended."""
    revoked: bytes
    """A newer list of revoked certificates, or nothing."""
    seconds: float
    """After how long to renew next; 0 where that is the agent's choice."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A silo's work in an attempt: the job as its operator signed it, and who is asked."""

    key: AttemptKey
    silos: tuple[Silo, ...]
    job: SignedJob


@dataclass(frozen=True, slots=True)
class Preflight:
    """A job that a silo is to check and not to run, and who would be asked."""

    job: SignedJob
    silos: tuple[Silo, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an agent tells with each renewal of itself."""

    working: tuple[AttemptKey, ...] = ()
    """Attempts that it works on."""
    kept_jobs: tuple[str, ...] = ()
    """Jobs that have not ended as far as it knows, and none of whose attempts it works on."""
    revoked_number: int = 0
    """Of its list of revoked certificates."""
    crypto_answers: bool | None = None
    """Whether its crypto process does; None where that is not known, or there is none."""
    rates: Rates = field(default_factory=dict)
    """How fast the silo's machines are, where it is measured."""


@dataclass(frozen=True, slots=True)
class SiloGroup:
    """Silos of which sums have all or none, sorted."""

    silos: tuple[Silo, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the silos of an attempt agreed on; without groups the job has no secure sums."""

    schema: Schema
    silos: tuple[Silo, ...]
    first_round: int
    groups: tuple[SiloGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A script that is to run jobs with others; see the message ``Arrival``."""

    world_size: int
    rank: int | None
    nonce: bytes
    not_after: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """All sites in the order of their ranks; before they are there, the names of who is."""

    sites: tuple[SignedSite, ...] = ()
    not_after: float | None = None
    here: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """The job that all sites have signed; before they have, the names of those that have."""

    job_id: str
    here: tuple[str, ...] = ()


class FederationBackend(Protocol):
    """What the servicer needs of the coordinator."""

    async def register(
        self, silo: Silo, registration: Registration, certificate_end: float = 0.0
    ) -> LeaseGrant:
        """Grant a lease; raises LeaseHeld. The silo's certificate ends then, by the handshake."""

    async def assignment(
        self, silo: Silo, lease_id: str, held: frozenset[AttemptKey], timeout_seconds: float
    ) -> Assignment | Preflight | None:
        """Wait for an assignment that the agent does not hold yet, or for a question."""

    def preflight_answer(self, silo: Silo, lease_id: str, answer: PreflightAnswer) -> None:
        """Take a silo's answer to a preflight."""

    async def accept(
        self, silo: Silo, lease_id: str, key: AttemptKey, answer: Answer, timeout_seconds: float
    ) -> Agreement | None:
        """Take a silo's answer and wait for the others'; None where they have not answered."""

    def renew(
        self,
        silo: Silo,
        lease_id: str,
        working: tuple[AttemptKey, ...],
        crypto_answers: bool | None,
        rates: Rates,
    ) -> tuple[tuple[AttemptKey, ...], float]:
        """Keep a lease; returns what to stop, and after how many seconds to renew next."""

    async def ended(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the jobs that no attempt will continue."""

    async def outcome(self, silo: Silo, lease_id: str, key: AttemptKey, outcome: Outcome) -> None:
        """Note how a silo's half ended, and what it says that it sent."""

    async def result(
        self, silo: Silo, lease_id: str, job_id: str, timeout_seconds: float
    ) -> JobResult | None:
        """Wait for a job's result; None where there is none yet, raises NotFound for another's."""

    async def gather(
        self, silo: Silo, lease_id: str, arrival: Arrival, timeout_seconds: float
    ) -> Gathered:
        """Wait for the scripts of other silos; raises InvalidJob where they do not go together."""

    async def propose(
        self,
        silo: Silo,
        lease_id: str,
        statement: bytes,
        signed: SiteSignature,
        timeout_seconds: float,
    ) -> Proposed:
        """Start a job when all sites have signed the same statement; raises InvalidJob."""

    async def follow(
        self,
        silo: Silo,
        lease_id: str,
        job_id: str,
        n_rounds: int,
        timeout_seconds: float,
        *,
        stop: bool,
    ) -> JobView:
        """Return a job that the silo has signed, once it has changed; raises NotFound."""

    def release(self, silo: Silo, lease_id: str) -> None:
        """End a lease."""


class FederationServicer(pb_grpc.FederationServiceServicer):
    """Server side of FederationService."""

    def __init__(
        self, federation: FederationBackend, revoked: RevokedCertificates | None = None
    ) -> None:
        self._federation = federation
        self._revoked = revoked
        self._turns = SendLimiter()

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        pb_grpc.add_FederationServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["FederationService"].full_name

    @aborting
    async def RegisterSilo(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        check_rows(silo, request.row_count_class)
        check_columns(silo, request.columns)
        registration, ends = value_of(Registration, request), peer_of(context).subject.not_after
        grant = await self._federation.register(silo, registration, ends)
        return message_of(grant, pb.RegisterSiloResponse())

    @aborting
    async def AwaitAssignment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        found = await self._federation.assignment(
            silo, request.lease_id, frozenset(_keys(request.held)), _patience(context)
        )
        response = pb.AwaitAssignmentResponse()
        if isinstance(found, Preflight):
            message_of(found, response.preflight)
        elif found is not None:
            label(job_id=found.key.job_id, silo=silo)
            message_of(found, response.assignment)
        return response

    @aborting
    async def AnswerPreflight(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        answer = read_preflight_answer(silo, request.answer)
        self._federation.preflight_answer(silo, request.lease_id, answer)
        return pb.AnswerPreflightResponse()

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
            message_of(agreed, response.agreement)
        return response

    @aborting
    async def RenewLease(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        working = _keys(request.working)
        if working:
            label(job_id=working[0].job_id, silo=silo)
        answers = request.crypto_answers if request.HasField("crypto_answers") else None
        rates = read_rates(silo, request.rates)
        stop, seconds = self._federation.renew(silo, request.lease_id, working, answers, rates)
        ended = await self._federation.ended(tuple(request.kept_jobs))
        response = pb.RenewLeaseResponse(
            stop=_key_messages(stop),
            ended_jobs=ended,
            renew_seconds=seconds,
        )
        if self._revoked is not None and self._revoked.number > request.revoked_number:
            response.revoked = self._revoked.pem
        return response

    @aborting
    async def ReportOutcome(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        label(job_id=request.key.job_id, silo=silo)
        key = value_of(AttemptKey, request.key)
        await self._federation.outcome(silo, request.lease_id, key, read_outcome(silo, request))
        return pb.ReportOutcomeResponse()

    @aborting
    async def FetchResult(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        label(job_id=request.job_id, silo=silo)
        found = await self._federation.result(
            silo, request.lease_id, request.job_id, _patience(context)
        )
        if found is None:
            return
        first = pb.FetchResultResponse()
        for one in found.signatures:
            message_of(one, first.signatures.add())
        yield first
        packed = found.packed if request.reads_zstd else None
        async for piece in self._turns.paced(pieces(pb.FetchResultResponse, found.files, packed)):
            yield piece

    @aborting
    async def GatherSites(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        arrival = value_of(Arrival, request.arrival)
        found = await self._federation.gather(silo, request.lease_id, arrival, _patience(context))
        return message_of(found, pb.GatherSitesResponse())

    @aborting
    async def ProposeJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo, signed = _silo(context), value_of(SiteSignature, request.signed)
        found = await self._federation.propose(
            silo, request.lease_id, request.statement, signed, _patience(context)
        )
        label(job_id=found.job_id, silo=silo)
        return message_of(found, pb.ProposeJobResponse())

    @aborting
    async def FollowJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        silo = _silo(context)
        label(job_id=request.job_id, silo=silo)
        found = await self._federation.follow(
            silo,
            request.lease_id,
            request.job_id,
            request.n_rounds,
            _patience(context),
            stop=request.stop,
        )
        response = pb.FollowJobResponse()
        message_of(found, response.job)
        return response

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


def _patience(context: Any) -> float:
    """Return how long a long poll may wait: less than the caller's own deadline."""
    remaining = context.time_remaining()
    longest = POLL_SECONDS if remaining is None else remaining - 1.0
    return float(max(min(POLL_SECONDS, longest), 0.0))


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
        self, channel: MeteredChannel, address: str, record: Callable[[str, bytes, str, bool], None]
    ) -> None:
        self._stub = pb_grpc.FederationServiceStub(cast(grpc.Channel, channel))
        self.why_not = channel.why_not
        self._address = address
        self._record = record

    def _call(
        self, method: str, request: Any, timeout_seconds: float = 10.0, job_id: str = "",
        *, tells: bool = False,
    ) -> Any:  # fmt: skip
        self._record(method, request.SerializeToString(), job_id, tells or method in TELLING)
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
    ) -> Assignment | Preflight | None:
        """Wait up to half a minute for work or a question, or until ``ended`` says so."""
        request = pb.AwaitAssignmentRequest(lease_id=lease_id, held=_key_messages(held))
        self._record("AwaitAssignment", request.SerializeToString(), "", False)
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
        if response.HasField("preflight"):
            return value_of(Preflight, response.preflight)
        if not response.HasField("assignment"):
            return None
        return value_of(Assignment, response.assignment)

    def answer_preflight(self, lease_id: str, answer: PreflightAnswer) -> None:
        """Answer a preflight."""
        request = pb.AnswerPreflightRequest(lease_id=lease_id)
        message_of(answer, request.answer)
        self._call("AnswerPreflight", request, job_id=answer.job_id)

    def accept(self, lease_id: str, key: AttemptKey, answer: Answer) -> Agreement | None:
        """Answer an assignment; None while others have not answered."""
        request = pb.AcceptAssignmentRequest(lease_id=lease_id)
        message_of(key, request.key)
        if isinstance(answer, Declined):
            request.declined = answer.reason
        else:
            message_of(answer, request.accepted)
        response = self._call("AcceptAssignment", request, POLL_SECONDS + 5.0, key.job_id)
        if not response.HasField("agreement"):
            return None
        return value_of(Agreement, response.agreement)

    def renew(self, lease_id: str, sign: Heartbeat) -> Renewal:
        """Keep the lease."""
        request = pb.RenewLeaseRequest(
            lease_id=lease_id,
            working=_key_messages(sign.working),
            kept_jobs=sign.kept_jobs,
            revoked_number=sign.revoked_number,
            crypto_answers=sign.crypto_answers,
        )
        put_rates(sign.rates, request.rates)
        job_id = sign.working[0].job_id if sign.working else ""
        response = self._call("RenewLease", request, 5.0, job_id)
        ended, next_seconds = tuple(response.ended_jobs), response.renew_seconds
        return Renewal(_keys(response.stop), ended, response.revoked, next_seconds)

    def report(self, lease_id: str, key: AttemptKey, outcome: Outcome) -> None:
        """Report how this silo's half ended; without its scores where their line is not on disk."""
        request = pb.ReportOutcomeRequest(lease_id=lease_id)
        message_of(key, request.key)
        outcome_message(outcome, request)
        try:
            self._call("ReportOutcome", request, job_id=key.job_id, tells=bool(outcome.scores))
        except StateUnwritable:
            if not outcome.scores:
                raise
            self.report(lease_id, key, replace(outcome, scores={}))

    def fetch_result(self, lease_id: str, job_id: str) -> JobResult | None:
        """Return a job's result; None while there is none.

        Raises
        ------
        LimitReached
            It is longer than any model.
        ModelRejected
            A file's name is none.
        """
        request = pb.FetchResultRequest(lease_id=lease_id, job_id=job_id, reads_zstd=True)
        self._record("FetchResult", request.SerializeToString(), job_id, False)
        try:
            return read_result(self._stub.FetchResult(request, timeout=FETCH_SECONDS))
        except grpc.RpcError as error:
            raise from_rpc(error, self._address) from None

    def gather(self, lease_id: str, arrival: Arrival) -> Gathered:
        """Wait for the scripts of other silos, up to half a minute."""
        request = pb.GatherSitesRequest(lease_id=lease_id)
        message_of(arrival, request.arrival)
        return value_of(Gathered, self._call("GatherSites", request, POLL_SECONDS + 5.0))

    def propose(self, lease_id: str, statement: bytes, signed: SiteSignature) -> Proposed:
        """Propose a job, and wait up to half a minute for the other sites."""
        request = pb.ProposeJobRequest(lease_id=lease_id, statement=statement)
        message_of(signed, request.signed)
        return value_of(Proposed, self._call("ProposeJob", request, POLL_SECONDS + 5.0))

    def follow(self, lease_id: str, job_id: str, n_rounds: int, *, stop: bool = False) -> JobView:
        """Return a job that this silo has signed, once it has more rounds or has ended."""
        request = pb.FollowJobRequest(
            lease_id=lease_id, job_id=job_id, n_rounds=n_rounds, stop=stop
        )
        found = self._call("FollowJob", request, POLL_SECONDS + 5.0, job_id).job
        spell_out(found, but=("spec",))
        return value_of(JobView, found)

    def release(self, lease_id: str) -> None:
        """Give the lease back."""
        self._call("ReleaseLease", pb.ReleaseLeaseRequest(lease_id=lease_id), 2.0)
