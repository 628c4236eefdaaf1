"""What operators do with jobs: the values, the servicer and the client of JobService."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc

from hedgerow.api.federation.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from hedgerow.boosting.errors import FederationError, Unreachable
from hedgerow.boosting.ports import Forecast
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.rpc.errors import abort, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label

PIECE_BYTES = 1 << 20
"""Size of the pieces in which a file travels."""

RETRY_SECONDS = 3.0
"""How long an operator's call is repeated when the coordinator cannot be reached."""
WATCH_SECONDS = 60.0
"""How long a watcher waits for a coordinator that has gone."""

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
"""States that a job does not leave."""


@dataclass(frozen=True, slots=True)
class SiloView:
    """A silo's standing in a job; bytes are data-plane protobuf bytes."""

    name: str
    n_samples: int
    state: str
    detail: str
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class RoundView:
    """A finished round; ``metrics`` maps data set to metric to value."""

    round: int
    attempt: int
    seconds: float
    metrics: Mapping[str, Mapping[str, float]]
    bytes_up: int
    bytes_down: int
    silos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepView:
    """Traffic of one RPC with one silo; ``up`` is from the silo."""

    method: str
    silo: str
    calls: int
    messages_up: int
    messages_down: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as operators see it; ``spec`` is the serialised JobSpec."""

    job_id: str
    spec: bytes
    state: str
    detail: str
    attempt: int
    silos: tuple[SiloView, ...]
    rounds: tuple[RoundView, ...]
    steps: tuple[StepView, ...]
    created_seconds: float
    ended_seconds: float
    operator: str
    best_round: int
    artefacts: tuple[str, ...]
    model: str
    reveals: str
    control_bytes_up: int
    control_bytes_down: int
    spec_digest: str

    @property
    def ended(self) -> bool:
        """Whether the job has reached its last state."""
        return self.state in ENDED


class Jobs(Protocol):
    """What the servicer needs of the coordinator."""

    async def create(self, spec: bytes, operator: str, request_id: str) -> str:
        """Validate, store and start a job; returns its identifier."""
        ...

    async def view(self, job_id: str, *, brief: bool = False) -> JobView:
        """Return a job; raises NotFound."""
        ...

    async def list(self, page_size: int, page_token: str) -> tuple[tuple[JobView, ...], str]:
        """Return a page of jobs, newest first, and the next page's token."""
        ...

    async def cancel(self, job_id: str) -> str:
        """Cancel a job; returns its state."""
        ...

    def watch(self, job_id: str) -> AsyncIterator[JobView]:
        """Yield the job each time it changes, until it has ended."""
        ...

    async def artefact(self, job_id: str, name: str) -> tuple[str, bytes]:
        """Return name and content of a file of the result; the model when ``name`` is empty."""
        ...

    def plan(self, spec: bytes) -> dict[str, Forecast]:
        """Return the forecast of each silo; there is at least one."""
        ...


def encode(view: JobView, first_round: int = 0) -> job_pb2.Job:
    """Return the message of a job, with rounds from ``first_round`` on."""
    return job_pb2.Job(
        job_id=view.job_id,
        spec=job_pb2.JobSpec.FromString(view.spec),
        state=job_pb2.JobState.Value(f"JOB_STATE_{view.state}"),
        detail=view.detail,
        attempt=view.attempt,
        silos=[
            job_pb2.JobSilo(
                name=s.name,
                n_samples=s.n_samples,
                state=s.state,
                detail=s.detail,
                bytes_up=s.bytes_up,
                bytes_down=s.bytes_down,
            )
            for s in view.silos
        ],
        rounds=[
            job_pb2.Round(
                round=r.round,
                attempt=r.attempt,
                seconds=r.seconds,
                scores=[
                    job_pb2.Score(data=data, metric=metric, value=value)
                    for data, scores in r.metrics.items()
                    for metric, value in scores.items()
                ],
                bytes_up=r.bytes_up,
                bytes_down=r.bytes_down,
                silos=r.silos,
            )
            for r in view.rounds
            if r.round >= first_round
        ],
        steps=[
            job_pb2.StepBytes(
                method=s.method,
                silo=s.silo,
                calls=s.calls,
                messages_up=s.messages_up,
                messages_down=s.messages_down,
                bytes_up=s.bytes_up,
                bytes_down=s.bytes_down,
            )
            for s in view.steps
        ],
        created_seconds=view.created_seconds,
        ended_seconds=view.ended_seconds,
        operator=view.operator,
        best_round=view.best_round,
        artefacts=view.artefacts,
        model=view.model,
        reveals=view.reveals,
        control_bytes_up=view.control_bytes_up,
        control_bytes_down=view.control_bytes_down,
        spec_digest=view.spec_digest,
    )


def decode(job: job_pb2.Job) -> JobView:
    """Return the value of a job's message."""
    return JobView(
        job_id=job.job_id,
        spec=job.spec.SerializeToString(deterministic=True),
        state=job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_"),
        detail=job.detail,
        attempt=job.attempt,
        silos=tuple(
            SiloView(s.name, s.n_samples, s.state, s.detail, s.bytes_up, s.bytes_down)
            for s in job.silos
        ),
        rounds=tuple(
            RoundView(
                r.round,
                r.attempt,
                r.seconds,
                _scores(r),
                r.bytes_up,
                r.bytes_down,
                tuple(r.silos),
            )
            for r in job.rounds
        ),
        steps=tuple(
            StepView(
                s.method,
                s.silo,
                s.calls,
                s.messages_up,
                s.messages_down,
                s.bytes_up,
                s.bytes_down,
            )
            for s in job.steps
        ),
        created_seconds=job.created_seconds,
        ended_seconds=job.ended_seconds,
        operator=job.operator,
        best_round=job.best_round,
        artefacts=tuple(job.artefacts),
        model=job.model,
        reveals=job.reveals,
        control_bytes_up=job.control_bytes_up,
        control_bytes_down=job.control_bytes_down,
        spec_digest=job.spec_digest,
    )


def _scores(message: job_pb2.Round) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for score in message.scores:
        metrics.setdefault(score.data, {})[score.metric] = score.value
    return metrics


def _encode_plan(forecasts: dict[str, Forecast]) -> job_pb2.Plan:
    forecast = next(iter(forecasts.values()))
    return job_pb2.Plan(
        rounds=forecast.rounds,
        steps=[
            job_pb2.StepBytes(
                method=method,
                silo=silo,
                calls=messages,
                bytes_up=bytes_up,
                bytes_down=bytes_down,
            )
            for silo, own in forecasts.items()
            for method, (messages, bytes_up, bytes_down) in own.steps.items()
        ],
        reveals=forecast.reveals,
        notes=forecast.notes,
        cpu_class=forecast.cpu_class,
    )


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as the operator sees it; ``StepView.calls`` counts exchanges."""

    rounds: int
    steps: tuple[StepView, ...]
    reveals: str
    notes: tuple[str, ...]
    cpu_class: str


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Server side of JobService."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        job_service_pb2_grpc.add_JobServiceServicer_to_server(self, server)
        return job_service_pb2.DESCRIPTOR.services_by_name["JobService"].full_name

    async def CreateJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            operator = peer_of(context).require(Role.OPERATOR)
            job_id = await self._jobs.create(
                request.spec.SerializeToString(deterministic=True), operator, request.request_id
            )
            label(job_id=job_id)
        except FederationError as error:
            await abort(context, error)
        return job_service_pb2.CreateJobResponse(job_id=job_id)

    async def GetJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            label(job_id=request.job_id)
            view = await self._jobs.view(request.job_id)
        except FederationError as error:
            await abort(context, error)
        return job_service_pb2.GetJobResponse(job=encode(view))

    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            page, token = await self._jobs.list(request.page_size or 100, request.page_token)
        except FederationError as error:
            await abort(context, error)
        return job_service_pb2.ListJobsResponse(
            jobs=[encode(view) for view in page], next_page_token=token
        )

    async def CancelJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            label(job_id=request.job_id)
            state = await self._jobs.cancel(request.job_id)
        except FederationError as error:
            await abort(context, error)
        return job_service_pb2.CancelJobResponse(state=job_pb2.JobState.Value(f"JOB_STATE_{state}"))

    async def WatchJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            label(job_id=request.job_id)
            sent = 0
            async for view in self._jobs.watch(request.job_id):
                yield job_service_pb2.WatchJobResponse(job=encode(view, sent))
                sent = max((r.round + 1 for r in view.rounds), default=0)
        except FederationError as error:
            await abort(context, error)

    async def DownloadModel(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            label(job_id=request.job_id)
            name, data = await self._jobs.artefact(request.job_id, request.artefact)
        except FederationError as error:
            await abort(context, error)
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            yield job_service_pb2.DownloadModelResponse(
                artefact=name if start == 0 else "", data=data[start : start + PIECE_BYTES]
            )

    async def PlanJob(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            peer_of(context).require(Role.OPERATOR)
            forecasts = self._jobs.plan(request.spec.SerializeToString(deterministic=True))
        except FederationError as error:
            await abort(context, error)
        return job_service_pb2.PlanJobResponse(plan=_encode_plan(forecasts))


class JobClient:
    """Operator side of JobService; blocking.

    Every method raises :class:`~hedgerow.boosting.errors.FederationError` as mapped by
    :func:`hedgerow.services.rpc.errors.from_rpc`.
    """

    def __init__(self, channel: MeteredChannel, address: str) -> None:
        self._stub = job_service_pb2_grpc.JobServiceStub(cast(grpc.Channel, channel))
        self._address = address

    def _call(self, method: Any, request: Any, timeout_seconds: float = 30.0) -> Any:
        """Call; every request of an operator may be repeated, so a lost connection is retried."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return method(request, timeout=timeout_seconds)
            except grpc.RpcError as error:
                failure = from_rpc(error, self._address)
            if not isinstance(failure, Unreachable) or time.monotonic() > deadline:
                raise failure
            time.sleep(random.uniform(0.1, 0.5))  # noqa: S311

    def create(self, spec: bytes, request_id: str) -> str:
        """Submit a job."""
        request = job_service_pb2.CreateJobRequest(
            spec=job_pb2.JobSpec.FromString(spec), request_id=request_id
        )
        return str(self._call(self._stub.CreateJob, request).job_id)

    def get(self, job_id: str) -> JobView:
        """Return a job with its rounds and bytes."""
        return decode(
            self._call(self._stub.GetJob, job_service_pb2.GetJobRequest(job_id=job_id)).job
        )

    def list(self) -> Iterator[JobView]:
        """Yield all jobs, newest first."""
        token = ""
        while True:
            page = self._call(
                self._stub.ListJobs, job_service_pb2.ListJobsRequest(page_token=token)
            )
            yield from (decode(job) for job in page.jobs)
            token = page.next_page_token
            if not token:
                return

    def cancel(self, job_id: str) -> str:
        """Cancel a job; returns its state."""
        response = self._call(self._stub.CancelJob, job_service_pb2.CancelJobRequest(job_id=job_id))
        return job_pb2.JobState.Name(response.state).removeprefix("JOB_STATE_")

    def watch(self, job_id: str) -> Iterator[JobView]:
        """Yield the job each time it changes, until it has ended.

        ``rounds`` has only the new ones; after a lost connection, all of them again.
        """
        lost_since: float | None = None
        while True:
            try:
                stream = self._stub.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id))
                for response in stream:
                    lost_since = None
                    view = decode(response.job)
                    yield view
                    if view.ended:
                        return
            except grpc.RpcError as error:
                failure = from_rpc(error, self._address)
                now = time.monotonic()
                lost_since = lost_since or now
                if not isinstance(failure, Unreachable) or now - lost_since > WATCH_SECONDS:
                    raise failure from None
            time.sleep(0.3)

    def download(self, job_id: str, artefact: str = "") -> tuple[str, bytes]:
        """Return name and content of a file of the result."""
        request = job_service_pb2.DownloadModelRequest(job_id=job_id, artefact=artefact)
        name, pieces = "", []
        try:
            for response in self._stub.DownloadModel(request, timeout=600.0):
                name = name or response.artefact
                pieces.append(response.data)
        except grpc.RpcError as error:
            raise from_rpc(error, self._address) from None
        return name, b"".join(pieces)

    def plan(self, spec: bytes) -> PlanView:
        """Return what a job would cost and reveal."""
        request = job_service_pb2.PlanJobRequest(spec=job_pb2.JobSpec.FromString(spec))
        plan = self._call(self._stub.PlanJob, request).plan
        return PlanView(
            plan.rounds,
            tuple(
                StepView(s.method, s.silo, s.calls, 0, 0, s.bytes_up, s.bytes_down)
                for s in plan.steps
            ),
            plan.reveals,
            tuple(plan.notes),
            plan.cpu_class,
        )
