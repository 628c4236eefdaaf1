"""Traces of jobs for OpenTelemetry, by OTLP over gRPC; off unless a collector is set.

Each process makes a job's trace of the job's identifier, so spans of all organisations are one
trace where they come together, and no context of a trace travels: a coordinator can choose none. A
crypto process reaches no network and exports nothing: its calls are spans of its silo's agent.
Spans have names of steps, numbers of rounds, silos and bytes; no values and no errors' texts, which
could hold some.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

from hedgerow.boosting.errors import FederationError

_F = TypeVar("_F", bound=Callable[..., Any])
_root: ContextVar[tuple[int, int] | None] = ContextVar("hedgerow_root", default=None)
_tracer: Any = None


def configure(collector: str, process: str, **who: str) -> None:
    """Export this process' spans from now on; nothing where ``collector`` is empty.

    Parameters
    ----------
    collector : str
        As ``http://HOST:4317``, or ``https://`` with TLS. Certificates and headers are set by
        OpenTelemetry's own ``OTEL_EXPORTER_OTLP_*`` in the environment.
    process : str
        ``coordinator`` or ``agent``.
    **who : str
        Attributes of the process, as ``silo``.

    Raises
    ------
    FederationError
        The packages of the extra ``otel`` are not installed.
    """
    global _tracer
    if not collector:
        return
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ModuleNotFoundError as error:
        raise FederationError(
            f"traces: {error.name} is not installed; pip install 'hedgerow[otel]'"
        ) from error

    class Identifiers(RandomIdGenerator):  # type: ignore[misc]
        """Random, but for a job's own span, whose children may be exported before it."""

        def generate_trace_id(self) -> int:
            root = _root.get()
            return root[0] if root else super().generate_trace_id()

        def generate_span_id(self) -> int:
            root = _root.get()
            return root[1] if root else super().generate_span_id()

    about = {"service.name": f"hedgerow-{process}", "service.namespace": "hedgerow", **who}
    provider = TracerProvider(resource=Resource.create(about), id_generator=Identifiers())
    exporter = OTLPSpanExporter(endpoint=collector, insecure=not collector.startswith("https:"))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    _tracer = provider.get_tracer("hedgerow")


def _identifiers(job_id: str) -> tuple[int, int]:
    """Return a job's trace and the span of the whole job."""
    digest = hashlib.sha256(f"hedgerow job {job_id}".encode()).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:24], "big") or 1


def _within(job_id: str) -> Any:
    """Return the context of a job's span, of whichever process."""
    from opentelemetry import trace

    trace_id, span_id = _identifiers(job_id)
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    context = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


@contextmanager
def span(name: str, job_id: str = "", **facts: str | int) -> Iterator[None]:
    """Trace what is done within, as part of a job, or of the span around it where none is named."""
    if _tracer is None:
        yield
        return
    from opentelemetry import trace

    made = _tracer.start_span(name, _within(job_id) if job_id else None, attributes=_named(facts))
    # Not OpenTelemetry's own way out: it keeps errors' texts.
    with _ending(made), trace.use_span(made, False, False, False):
        yield


def record(name: str, seconds: float, *, job_id: str = "", **facts: str | int) -> None:
    """Trace what has just ended: the whole job that is named, or else a part of the span around."""
    if _tracer is None:
        return
    from opentelemetry import context, trace

    if not job_id and not trace.get_current_span().get_span_context().is_valid:
        return  # of no job
    token = _root.set(_identifiers(job_id) if job_id else None)
    try:
        began = time.time_ns() - int(seconds * 1e9)
        around = context.Context() if job_id else None
        _tracer.start_span(name, around, attributes=_named(facts), start_time=began).end()
    finally:
        _root.reset(token)


def _named(facts: dict[str, str | int]) -> dict[str, str | int]:
    return {f"hedgerow.{key}": value for key, value in facts.items()}


@contextmanager
def _ending(made: Any) -> Iterator[None]:
    """End a span; of an error it has the kind."""
    from opentelemetry.trace import StatusCode

    try:
        yield
    except BaseException as error:
        made.set_status(StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        made.end()


def stepped(collect: _F) -> _F:
    """Trace a coordinator's wait for the offers of a step."""

    @wraps(collect)
    async def traced(hub: Any, step: Any, at: Any, **options: Any) -> Any:
        with span(f"await {step.name}", round=at.round, level=at.level):
            return await collect(hub, step, at, **options)

    return cast("_F", traced)
