"""JobService: servicer and client."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import grpc
import structlog

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.api.federation.v1 import job_service_pb2 as pb
from hedgerow.api.federation.v1 import job_service_pb2_grpc as pb_grpc
from hedgerow.boosting.errors import (
    InvalidJob,
    LimitReached,
    OfferRejected,
    Unauthorised,
    Unreachable,
)
from hedgerow.boosting.job import ReleaseAudit
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import FileIdentity, PeerIdentity, peer_of
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.errors import NotFound, aborting, from_rpc
from hedgerow.services.rpc.metering import label
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.job_view import JobState, JobView, PlanView, PreflightView, SiloView
from hedgerow.services.wire.records import message_of, value_of
from hedgerow.services.wire.release import ReleaseStatement, released_by, signed_release
from hedgerow.services.wire.results import pieces
from hedgerow.services.wire.signed_job import (
    DEFAULT_DAYS,
    PREFLIGHT_DAYS,
    PREFLIGHT_LABEL,
    READERS,
    SIGNERS,
    JobApproval,
    OpenedJob,
    SignedJob,
    approve_job,
    open_job,
    read_signed,
    read_statement,
    sign_job,
)
from hedgerow.services.wire.texts import spell_out

log = structlog.get_logger()

View = TypeVar("View", JobView, PlanView, PreflightView, SiloView)

MAX_REPLY_BYTES = 3 << 20
"""A page of jobs is shortened to this; gRPC refuses a message of over 4 MiB."""

RETRY_SECONDS = 3.0
"""How long an operator's call is repeated when the coordinator cannot be reached."""
FAIL_OVER_SECONDS = 20.0
"""The same where there are several coordinators: another one becomes active meanwhile."""
PREFLIGHT_SECONDS = 180.0
"""How long a preflight is repeated when too many are asked."""
WATCH_SECONDS = 60.0
"""How long a watcher waits for a coordinator that has gone."""


class JobBackend(Protocol):
    """What the servicer needs of the coordinator."""

    async def create(self, signed: SignedJob, operator: str) -> str:
        """Check, store and start a job of the operator's own; returns its identifier."""

    async def operator_of(self, job_id: str) -> str | None:
        """Return the operator who signed a job; None where there is none."""

    async def approvers_of(self, job_id: str, *, release: bool) -> frozenset[str]:
        """Return who is asked to approve a job or its release, or the release alone."""

    async def signed(self, job_id: str) -> SignedJob:
        """Return a job as it was signed, with its approvals; raises NotFound."""

    async def approve(self, job_id: str, approval: JobApproval, caller: str) -> tuple[str, ...]:
        """Add the caller's approval to a job; returns who has approved it."""

    async def release_model(self, job_id: str, line: bytes, caller: str) -> tuple[str, ...]:
        """Keep the caller's statement about a job's files; returns who has signed one."""

    async def view(self, job_id: str, *, brief: bool = False) -> JobView:
        """Return a job; raises NotFound."""

    async def list(
        self,
        page_size: int,
        page_token: str,
        operator: str | None,
        states: tuple[JobState, ...] = (),
    ) -> tuple[tuple[JobView, ...], str]:
        """Return a page of an operator's jobs, or of all, newest first; and the next token."""

    async def cancel(self, job_id: str, operator: str) -> JobState:
        """Cancel a job for an operator; returns its state."""

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended."""

    def watch(self, job_id: str) -> AsyncIterator[JobView]:
        """Yield the job each time it changes, with its new rounds alone, until it has ended."""

    async def artefact(self, job_id: str, name: str, caller: str) -> tuple[str, bytes]:
        """Return name and content of a file of the result; the model when ``name`` is empty.

        Raises NotReleased where it is held back from the caller.
        """

    async def forget_silo(self, name: str) -> None:
        """Forget that a silo has registered."""

    async def plan(self, spec: bytes, operator: str) -> PlanView:
        """Return what a job of an operator is expected to cost and reveal."""

    async def preflight(self, signed: SignedJob, operator: str) -> PreflightView:
        """Return what silos would answer to a job of the operator's own."""

    async def silos(self, operator: str | None, *, columns: bool = False) -> tuple[SiloView, ...]:
        """Return all silos, with what an operator's jobs, or all, await of them, and columns."""


class JobServicer(pb_grpc.JobServiceServicer):
    """Server side of JobService."""

    def __init__(self, jobs: JobBackend, revoked: RevokedCertificates | None = None) -> None:
        self._jobs = jobs
        self._revoked = revoked

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        pb_grpc.add_JobServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["JobService"].full_name

    @aborting
    async def CreateJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = peer_of(context).require(*SIGNERS)
        job_id = await self._jobs.create(value_of(SignedJob, request.job), operator)
        label(job_id=job_id)
        return pb.CreateJobResponse(job_id=job_id)

    @aborting
    async def GetJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._named(context, request.job_id)
        response = pb.GetJobResponse()
        message_of(await self._jobs.view(request.job_id), response.job)
        return response

    @aborting
    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        owner = _scope(peer_of(context))
        size = request.page_size or 100
        states = tuple(_state(state) for state in request.states)
        while True:
            page, token = await self._jobs.list(size, request.page_token, owner, states)
            jobs = [message_of(view, job_pb2.Job()) for view in page]
            response = pb.ListJobsResponse(jobs=jobs, next_page_token=token)
            if response.ByteSize() <= MAX_REPLY_BYTES or len(page) == 1:
                return response
            size = len(page) // 2

    @aborting
    async def CancelJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = await self._own(context, request.job_id)
        state = await self._jobs.cancel(request.job_id, operator)
        return pb.CancelJobResponse(state=job_pb2.JobState.Value(f"JOB_STATE_{state.name}"))

    @aborting
    async def DeleteJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = await self._own(context, request.job_id)
        await self._jobs.delete(request.job_id)
        log.info("job deleted", job=request.job_id, operator=operator)
        return pb.DeleteJobResponse()

    @aborting
    async def WatchJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._named(context, request.job_id)
        async for view in self._jobs.watch(request.job_id):
            yield pb.WatchJobResponse(job=message_of(view, job_pb2.Job()))

    @aborting
    async def DownloadModel(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        caller = await self._named(context, request.job_id, SIGNERS, release=True)
        name, data = await self._jobs.artefact(request.job_id, request.artefact, caller)
        for piece in pieces(pb.DownloadModelResponse, {name: data}):
            yield piece

    @aborting
    async def GetSignedJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await self._named(context, request.job_id)
        response = pb.GetSignedJobResponse()
        message_of(await self._jobs.signed(request.job_id), response.job)
        return response

    @aborting
    async def ApproveJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        caller = await self._named(context, request.job_id)
        approval = value_of(JobApproval, request.approval)
        approved = await self._jobs.approve(request.job_id, approval, caller)
        return pb.ApproveJobResponse(approved=approved)

    @aborting
    async def ReleaseModel(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        caller = await self._named(context, request.job_id)
        released = await self._jobs.release_model(request.job_id, request.statement, caller)
        return pb.ReleaseModelResponse(released=released)

    @aborting
    async def GetRevocations(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        peer_of(context).require(*READERS)
        return pb.GetRevocationsResponse(revoked=self._revoked.pem if self._revoked else b"")

    @aborting
    async def PlanJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = peer_of(context).require(*READERS)  # an admin's job starts from its own, too
        plan = await self._jobs.plan(request.spec.SerializeToString(deterministic=True), operator)
        return pb.PlanJobResponse(plan=message_of(plan, job_pb2.Plan()))

    @aborting
    async def PreflightJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = peer_of(context).require(*SIGNERS)
        found = await self._jobs.preflight(value_of(SignedJob, request.job), operator)
        return pb.PreflightJobResponse(result=message_of(found, job_pb2.PreflightResult()))

    @aborting
    async def ListSilos(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        found = await self._jobs.silos(_scope(peer_of(context)), columns=request.columns)
        return pb.ListSilosResponse(silos=[message_of(one, job_pb2.Silo()) for one in found])

    @aborting
    async def ForgetSilo(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        operator = peer_of(context).require(Role.ADMIN)
        await self._jobs.forget_silo(request.name)
        log.info("silo forgotten", name=request.name, operator=operator)
        return pb.ForgetSiloResponse()

    async def _own(self, context: Any, job_id: str, roles: tuple[Role, ...] = SIGNERS) -> str:
        """Return the caller, whose job it is and who has one of the roles; count its bytes.

        Raises
        ------
        NotFound
            There is no such job for the caller.
        Unauthorised
            The caller has another role.
        """
        peer = peer_of(context)
        name, scope = peer.require(*roles), _scope(peer)
        operator = await self._jobs.operator_of(job_id)
        if operator is None or scope not in (None, operator):
            raise NotFound(f"operator {name} has no job {job_id}")
        label(job_id=job_id)
        return name

    async def _named(
        self, context: Any, job_id: str, roles: tuple[Role, ...] = READERS, *, release: bool = False
    ) -> str:
        """Do :meth:`_own`, for those whom the job names as approvers in any of people's roles, too.

        Parameters
        ----------
        release : bool
            Whether only those of its release are meant.
        """
        try:
            return await self._own(context, job_id, roles)
        except (NotFound, Unauthorised):
            peer = peer_of(context)
            if peer.subject.role not in READERS:
                raise
            if peer.name not in await self._jobs.approvers_of(job_id, release=release):
                raise
            label(job_id=job_id)
            return peer.name


def _view_of(kind: type[View], message: Any) -> View:
    """Return a view whose texts, which silos and operators wrote, forge no line of a terminal."""
    spell_out(message, but=("spec",))
    return value_of(kind, message)


def _state(number: Any) -> JobState:
    if number not in job_pb2.JobState.values()[1:]:
        raise OfferRejected(f"{number} is no state of a job")
    return JobState(job_pb2.JobState.Name(number).removeprefix("JOB_STATE_"))


def _scope(peer: PeerIdentity) -> str | None:
    """Return whose jobs a caller may see: its own; None for all. Raises Unauthorised."""
    name = peer.require(*READERS)
    return name if peer.subject.role is Role.OPERATOR else None


class JobClient:
    """Operator side of JobService; blocking.

    Parameters
    ----------
    identity : FileIdentity
        The operator's; it signs jobs, and its key stays here.

    Every method raises :class:`~hedgerow.boosting.errors.FederationError` as mapped by
    :func:`hedgerow.services.rpc.errors.from_rpc`.
    """

    def __init__(self, channels: Channels, address: str, identity: FileIdentity) -> None:
        self._channels = channels
        self._address = address
        self._identity = identity

    @property
    def _stub(self) -> Any:
        return pb_grpc.JobServiceStub(cast(grpc.Channel, self._channels()))

    def _call(self, method: str, request: Any, timeout_seconds: float = 30.0) -> Any:
        return self._ask(lambda stub: getattr(stub, method)(request, timeout=timeout_seconds))

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        """Ask; every request of an operator may be repeated, so a lost connection is retried."""
        patience = FAIL_OVER_SECONDS if self._channels.several else RETRY_SECONDS
        deadline = time.monotonic() + patience
        while True:
            channel = self._channels()
            try:
                return ask(self._stub)
            except grpc.RpcError as error:
                failure = from_rpc(error, self._address)
            if not isinstance(failure, Unreachable):
                raise failure
            if time.monotonic() > deadline:
                raise Unreachable(self._channels().why_not() or str(failure))
            self._channels.leave(channel, failure)
            time.sleep(random.uniform(0.1, 0.5))  # noqa: S311

    def create(self, spec: bytes, days: float = DEFAULT_DAYS) -> str:
        """Sign a job and submit it; attempts of it may begin for ``days``."""
        return self.submit(sign_job(spec, self._identity, days))

    def submit(self, signed: SignedJob) -> str:
        """Submit a signed job; again as well, for it stays one job."""
        request = pb.CreateJobRequest()
        message_of(signed, request.job)
        return str(self._call("CreateJob", request).job_id)

    def get(self, job_id: str) -> JobView:
        """Return a job with its rounds and bytes."""
        found = self._call("GetJob", pb.GetJobRequest(job_id=job_id))
        return _view_of(JobView, found.job)

    def list(self, states: tuple[JobState, ...] = ()) -> Iterator[JobView]:
        """Yield this operator's jobs, or for an admin or viewer all jobs, newest first.

        Parameters
        ----------
        states : tuple of JobState
            In one of these only; in any if empty.
        """
        token = ""
        while True:
            found, token = self.page(0, token, states)
            yield from found
            if not token:
                return

    def page(
        self, size: int, token: str = "", states: tuple[JobState, ...] = ()
    ) -> tuple[tuple[JobView, ...], str]:
        """Return a page of those jobs (100 for a size of 0), and the token of the next one."""
        request = pb.ListJobsRequest(page_size=size, page_token=token)
        request.states.extend(job_pb2.JobState.Value(f"JOB_STATE_{one.name}") for one in states)
        response = self._call("ListJobs", request)
        views = (_view_of(JobView, job) for job in response.jobs)
        # An older coordinator does not know of states.
        found = tuple(view for view in views if not states or view.state in states)
        return found, response.next_page_token

    def cancel(self, job_id: str) -> JobState:
        """Cancel a job; returns its state."""
        response = self._call("CancelJob", pb.CancelJobRequest(job_id=job_id))
        return _state(response.state)

    def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with all that the coordinator has of it."""
        self._call("DeleteJob", pb.DeleteJobRequest(job_id=job_id), 600.0)

    def watch(self, job_id: str) -> Iterator[JobView]:
        """Yield the job each time it changes, until it has ended.

        ``rounds`` has only the new ones; after a lost connection, all of them again.
        """
        with self._channels.watched():
            yield from self._views(job_id)

    def _views(self, job_id: str) -> Iterator[JobView]:
        lost_since: float | None = None
        while True:
            channel = self._channels()
            try:
                stream = self._stub.WatchJob(pb.WatchJobRequest(job_id=job_id))
                for response in stream:
                    lost_since = None
                    view = _view_of(JobView, response.job)
                    yield view
                    if view.ended:
                        return
            except grpc.RpcError as error:
                failure = from_rpc(error, self._address)
                now = time.monotonic()
                lost_since = lost_since or now
                if not isinstance(failure, Unreachable):
                    raise failure from None
                if now - lost_since > WATCH_SECONDS:
                    raise Unreachable(self._channels().why_not() or str(failure)) from None
                self._channels.leave(channel, failure)
            time.sleep(0.3)

    def download(self, job_id: str, artefact: str = "") -> tuple[str, bytes]:
        """Return name and content of a file of the result."""
        request = pb.DownloadModelRequest(job_id=job_id, artefact=artefact)
        parts = self._ask(lambda stub: list(stub.DownloadModel(request, timeout=600.0)))
        name = next((part.artefact for part in parts if part.artefact), "")
        return name, b"".join(part.data for part in parts)

    def revocations(self) -> bytes:
        """Return the coordinator's list of revoked certificates, which is to be checked."""
        return bytes(self._call("GetRevocations", pb.GetRevocationsRequest()).revoked)

    def preflight(
        self,
        spec: bytes,
        patience_seconds: float = PREFLIGHT_SECONDS,
        waits: Callable[[str], None] = lambda why: None,
    ) -> PreflightView:
        """Return what the silos would answer to a job; what is signed for it can start nothing.

        Parameters
        ----------
        patience_seconds : float
            How long to ask again while the coordinator has too many preflights.
        waits : callable
            Is told why, each time.

        Raises
        ------
        LimitReached
            It still has.
        """
        signed = sign_job(spec, self._identity, PREFLIGHT_DAYS, PREFLIGHT_LABEL)
        request = pb.PreflightJobRequest()
        message_of(signed, request.job)
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                found = self._call("PreflightJob", request).result
            except LimitReached as error:
                seconds = error.facts.get("seconds", "")
                pause = float(seconds) if seconds.isdecimal() else math.inf
                pause *= random.uniform(1.0, 1.3)  # noqa: S311
                if time.monotonic() + pause > deadline:
                    raise
                waits(str(error))
                time.sleep(pause)
            else:
                return _view_of(PreflightView, found)

    def silos(self, *, columns: bool = False) -> tuple[SiloView, ...]:
        """Return the silos of the federation; with names of columns where they tell them."""
        found = self._call("ListSilos", pb.ListSilosRequest(columns=columns)).silos
        return tuple(_view_of(SiloView, one) for one in found)

    def forget_silo(self, name: str) -> None:
        """Forget that a silo has registered, which has left; for admins."""
        self._call("ForgetSilo", pb.ForgetSiloRequest(name=name))

    def signed(self, job_id: str) -> OpenedJob:
        """Return a job as its operator has signed it, once that is checked.

        Raises
        ------
        SignatureInvalid, InvalidJob
            The coordinator has another one, or it has expired.
        """
        found = self._call("GetSignedJob", pb.GetSignedJobRequest(job_id=job_id)).job
        opened = open_job(value_of(SignedJob, found), self._identity)
        if opened.statement.job_id != job_id:
            raise InvalidJob(f"expected job {job_id}, received {opened.statement.job_id}")
        job_wire.decode_known(opened.statement.spec)  # what is not known is not shown
        return opened

    def approve(self, job: OpenedJob) -> tuple[str, ...]:
        """Sign a job, which the caller has read, as an approver; return who has approved it."""
        request = pb.ApproveJobRequest(job_id=job.statement.job_id)
        message_of(approve_job(job.signed, self._identity), request.approval)
        return tuple(self._call("ApproveJob", request).approved)

    def release(self, audited: ReleaseStatement) -> tuple[bytes, tuple[str, ...]]:
        """Sign and send a statement by which a model may leave.

        Returns
        -------
        tuple
            The envelope that was sent, and who has signed one.
        """
        line = signed_release(replace(audited, approver=self.name), self._identity)
        request = pb.ReleaseModelRequest(job_id=audited.job, statement=line)
        return line, tuple(self._call("ReleaseModel", request).released)

    def releases(
        self, lines: bytes, rules: ReleaseAudit, view: JobView, files: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Return who has signed the release of a job's files, by :data:`release.FILE`'s lines."""
        check, of = self._identity.approver_then, (view.job_id, view.job_digest)
        return tuple(released_by(lines.splitlines(), check, rules, of, files)[0])

    def release_rules(self, data: bytes, job_digest: str, spec: bytes) -> ReleaseAudit | None:
        """Return whose audits release a job's model, as who submitted it has signed.

        Parameters
        ----------
        data : bytes
            The signed job as a run folder has it; empty of a coordinator that keeps none.
        job_digest : str
            SHA-256 in hex of the statement of the job that is meant.
        spec : bytes
            What the coordinator says that the job is, which is believed where ``data`` is empty.

        Raises
        ------
        SignatureInvalid, InvalidJob
            It is another job, or nobody of the federation has signed it.
        """
        operator = ""
        if data:
            signed, operator, _ = read_signed(data, self._identity.roots)
            if signed.digest.hex() != job_digest:
                raise InvalidJob(f"expected the signed job {job_digest[:12]}…, received another")
            spec = read_statement(signed.statement, f"the job of {operator}").spec
        rules = job_wire.decode(spec).audit
        return None if rules is None else rules.without(operator)

    @property
    def name(self) -> str:
        """Name in the operator's certificate."""
        return self._identity.subject.name

    def plan(self, spec: bytes) -> PlanView:
        """Return what a job would cost and reveal."""
        request = pb.PlanJobRequest(spec=job_pb2.JobSpec.FromString(spec))
        return _view_of(PlanView, self._call("PlanJob", request).plan)
