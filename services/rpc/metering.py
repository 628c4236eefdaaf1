"""Bytes counted once, where messages are serialised.

Servers: :class:`MeteringInterceptor` wraps the (de)serialisers of every method. Clients:
:class:`MeteredChannel` wraps those of every stub. The counts are exact protobuf bytes; TLS and
HTTP/2 framing are not in them. What a call moved is credited when it ends, under the labels that
its servicer gave it with :func:`label`; a stream of exchanges is credited one by one.
"""

from __future__ import annotations

import math
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from hedgerow.boosting.exchange import Call
from hedgerow.services.process.texts import parse_address
from hedgerow.services.process.trail import NOWHERE, Trail
from hedgerow.services.rpc.doorman import ConnectionLimiter
from hedgerow.services.rpc.refusal_log import REFUSALS, RefusalLog, caller_of

Wrap = Callable[[Any], Any]
PULSE_SECONDS = 5.0
"""A server whose loop was not free for so long hangs."""
SCRAPE_SECONDS = 5.0
"""How long a connection to ``/metrics`` may be silent."""
MAX_SCRAPE_SECONDS = 30.0
"""How long it may take in all."""


# They are a second line for each series, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

FEDERATION = "hedgerow.api.federation.v1.FederationService"
CRYPTO = "hedgerow.api.crypto.v1.CryptoService"
RELAY = "hedgerow.api.serving.v1.RelayService"
CODES = tuple(code.name for code in grpc.StatusCode)
WAYS = ("up", "down")
EXCHANGES = tuple(call.value for call in Call)
"""Methods under which exchanges are counted."""


def methods_of(service: str) -> tuple[str, ...]:
    """Return under which methods the calls of a service are counted; its stubs are imported."""
    found = descriptor_pool.Default().FindServiceByName(service)
    own = tuple(method.name for method in found.methods)
    return own + EXCHANGES if found.name == "ExchangeService" else own


@dataclass(slots=True)
class CallCount:
    """What one call has moved so far, seen from this process."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    strategy: str = ""
    job_id: str = ""
    silo: str = ""
    method: str = ""
    """Under which it is credited: the call's own name where left out."""


class _OpenCall:
    """A call being served: what it has moved since it began, or was last credited."""

    def __init__(self) -> None:
        self.count = CallCount()
        self.started = 0.0
        self.on_record = False
        self.peer = ""
        self.settle: Callable[[str | None], None] | None = None


_current: ContextVar[_OpenCall | None] = ContextVar("hedgerow_call", default=None)


def _open_call() -> _OpenCall:
    call = _current.get()
    if call is None:
        call = _OpenCall()
        _current.set(call)
    return call


def label(*, job_id: str = "", silo: str = "", strategy: str = "", method: str = "") -> None:
    """Say on whose account the current call goes."""
    count = _open_call().count
    count.job_id, count.silo, count.strategy, count.method = job_id, silo, strategy, method


def on_record() -> None:
    """Say that the audit trail has the current call, however it ends."""
    _open_call().on_record = True


def settle() -> None:
    """Credit the current stream's bytes as a call that succeeded, and count from 0 again."""
    settle = _open_call().settle
    assert settle is not None, "a stream that is metered"
    settle("OK")


def _free_share(folder: Path) -> float:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return math.nan
    return usage.free / usage.total


class Metrics:
    """The process' metrics; names as in docs/operations.md.

    Counters are there at 0 before anything is counted: :meth:`expect_calls` and its like. Of one
    that appears at 1, Prometheus' ``increase`` and ``rate`` see nothing.

    Parameters
    ----------
    by_silo : bool
        Whether to label messages with the silo; at the coordinator only, for rostered silos.
    """

    def __init__(self, *, by_silo: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.by_silo = by_silo
        self.pulse: float | None = None
        self._known: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._waits: dict[Any, dict[str, float]] = {}
        self._drifting: dict[str, tuple[str, ...]] = {}
        labels = ["service", "method", "direction", "strategy"] + (["silo"] if by_silo else [])
        r = self.registry
        ProcessCollector(registry=r)
        counter, gauge = partial(Counter, registry=r), partial(Gauge, registry=r)
        histogram = partial(Histogram, registry=r)
        self.message_bytes = counter("hedgerow_message_bytes", "Protobuf bytes moved.", labels)
        self.messages = counter("hedgerow_messages", "Messages moved.", labels)
        self.calls = counter("hedgerow_calls", "Calls ended.", ["method", "code"])
        self.call_seconds = histogram(
            "hedgerow_call_seconds", "Time of calls.", ["method"],
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0),
        )  # fmt: skip
        self.rounds = counter("hedgerow_rounds", "Rounds finished.", ["strategy"])
        self.round_seconds = histogram(
            "hedgerow_round_seconds", "Time of rounds.", ["strategy"],
            buckets=(0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0),
        )  # fmt: skip
        self.round_bytes = histogram(
            "hedgerow_round_bytes", "Data-plane bytes of rounds.", ["strategy", "direction"],
            buckets=tuple(float(1 << k) for k in range(10, 34, 3)),
        )  # fmt: skip
        self.planned_bytes = counter(
            "hedgerow_planned_bytes",
            "Data-plane bytes that the plan foresaw for the rounds finished.",
            ["strategy", "method", "direction"],
        )
        self.round_silos = counter("hedgerow_round_silos", "Silos over rounds.", ["strategy"])
        self.awaited_seconds = gauge(
            "hedgerow_awaited_seconds", "Longest wait for a silo now.", ["silo"]
        )
        self.rejected_offers = counter(
            "hedgerow_rejected_offers", "Offers refused.", ["method", "silo"]
        )
        self.privacy_spent = gauge("hedgerow_privacy_spent_epsilon", "Spent in all.", ["table"])
        self.calls_open = gauge("hedgerow_calls_open", "Calls being served.", ["method"])
        self.lease_held = gauge(
            "hedgerow_lease_held",
            "Whether the agent holds its lease at a coordinator that answers.",
        )
        self.certificate_expiry = gauge(
            "hedgerow_certificate_expiry_seconds",
            "When the process' certificate ends, seconds since 1970; 0 while it cannot be read.",
        )
        self.silos = gauge("hedgerow_silos", "Silos by state.", ["state"])
        self.jobs = gauge("hedgerow_jobs", "Jobs by state.", ["state"])
        self.waiting_seconds = gauge(
            "hedgerow_waiting_seconds", "Longest wait of a job now, by what it waits for.", ["what"]
        )
        self.store_silence = gauge(
            "hedgerow_store_silence_seconds",
            "Time since the coordinator's database answered: about a second where it works.",
        )
        self.disk_free = gauge(
            "hedgerow_disk_free_ratio", "Share of a state's disk that is free.", ["folder"]
        )
        self.ciphertexts = counter("hedgerow_ciphertexts", "Ciphertexts handled.", ["op"])
        self.scored_rows = counter(
            "hedgerow_scored_rows", "Rows asked to score.", ["model", "outcome"]
        )
        self.score_seconds = histogram(
            "hedgerow_score_seconds", "Time of requests for scores.", ["model"],
            buckets=(0.002, 0.004, 0.008, 0.016, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
        )  # fmt: skip
        self.parties_away = gauge(
            "hedgerow_parties_away", "Parties of served models that are away."
        )
        self.drift_psi = gauge(
            "hedgerow_drift_psi",
            "Population stability index of the last window of scored rows, in steps of 0.01.",
            ["model", "column"],
        )
        self.model_stale = gauge(
            "hedgerow_model_stale", "Whether a column of that window has drifted.", ["model"]
        )
        self.masked_values = counter("hedgerow_masked_values", "Values masked.")
        self.crypto_calls = gauge(
            "hedgerow_crypto_calls", "Calls to the crypto process by state.", ["state"]
        )

    def _child(self, metric: Any, *values: str) -> Any:
        """Return a metric's child; what is counted often is not looked up by its labels again."""
        key = metric, values
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = metric.labels(*values)
        return known

    def tell_drift(self, model: str, indices: Mapping[str, float], *, stale: bool) -> None:
        """Show the drift of a served model's rows by column, in place of earlier columns."""
        self.forget_drift(model)
        self._drifting[model] = tuple(indices)
        for column, psi in indices.items():
            self.drift_psi.labels(model, column).set(psi)
        self.model_stale.labels(model).set(float(stale))

    def forget_drift(self, model: str) -> None:
        """Show no drift of a model that is not compared any more."""
        for column in self._drifting.get(model, ()):
            self.drift_psi.remove(model, column)
        if self._drifting.pop(model, None) is not None:
            self.model_stale.remove(model)

    def expect_pulse(self) -> None:
        """Show whether a server answers: whether :attr:`pulse` was taken within seconds."""
        if self.pulse is None:
            Gauge(
                "hedgerow_serving",
                "1 while the process' server takes calls, 0 where it hangs or ends.",
                registry=self.registry,
            ).set_function(lambda: time.monotonic() - (self.pulse or 0.0) < PULSE_SECONDS)
        self.pulse = time.monotonic()

    def watch_disks(self, folders: Mapping[str, Path]) -> None:
        """Show how full the disks of a process' folders are."""
        for name, folder in folders.items():
            self.disk_free.labels(name).set_function(partial(_free_share, folder))

    def expect_calls(self, services: Iterable[str]) -> None:
        """Begin the counters of a server of these services, by full name."""
        for service in services:
            for method in methods_of(service):
                self._child(self.call_seconds, method)
                self._child(self.calls_open, method)
                for code in CODES:
                    self._child(self.calls, method, code)
            if not service.endswith(".ExchangeService"):  # of those, silo and strategy are known
                self.expect_messages(service, methods_of(service))

    def expect_messages(
        self, service: str, methods: Iterable[str], *, strategy: str = "", silo: str = ""
    ) -> None:
        """Begin the counters of what calls move; ``silo`` where messages are counted by silo."""
        name = service.rpartition(".")[2]
        for method in methods:
            for direction in WAYS:
                values = [name, method, direction, strategy, *([silo] if self.by_silo else [])]
                self._child(self.messages, *values)
                self._child(self.message_bytes, *values)

    def expect_rounds(self, strategies: Iterable[str]) -> None:
        """Begin the counters of rounds and the gauges of a coordinator."""
        self.active = Gauge(
            "hedgerow_active",
            "1 where this coordinator is the active one, 0 where it stands by",
            registry=self.registry,
        )
        for state in ("alive", "away"):
            self.silos.labels(state)
        for strategy in strategies:
            for metric in (self.rounds, self.round_seconds, self.round_silos):
                self._child(metric, strategy)
            for direction in WAYS:
                self._child(self.round_bytes, strategy, direction)
                for method in EXCHANGES:
                    self._child(self.planned_bytes, strategy, method, direction)

    def expect_client(self, strategies: Iterable[str], *, crypto: bool) -> None:
        """Begin the counters of what an agent's calls move, to a crypto process too if it has."""
        for service in [FEDERATION] + [CRYPTO] * crypto:
            self.expect_messages(service, methods_of(service))
        for strategy in strategies:
            self.expect_messages("ExchangeService", EXCHANGES, strategy=strategy)

    def expect_silo(self, silo: str, strategies: Iterable[str]) -> None:
        """Begin the counters of a silo whose agent has registered, and of jobs it may take part in.

        Of exchanges only for these strategies: all of them for each of a thousand silos would be
        too many series.
        """
        self.expect_messages(FEDERATION, methods_of(FEDERATION), silo=silo)
        for strategy in strategies:
            self.expect_messages("ExchangeService", EXCHANGES, strategy=strategy, silo=silo)
        for method in EXCHANGES:
            self._child(self.rejected_offers, method, silo)

    def credit(self, path: str, count: CallCount, *, server: bool) -> None:
        """Add what a call moved; ``up`` is from client to server."""
        service, _, method = path.strip("/").rpartition("/")
        up = (count.messages_in, count.bytes_in)
        down = (count.messages_out, count.bytes_out)
        if not server:
            up, down = down, up
        for direction, (messages, n_bytes) in zip(WAYS, (up, down), strict=True):
            values = [service.rpartition(".")[2], method, direction, count.strategy]
            if self.by_silo:
                values.append(count.silo)
            self._child(self.messages, *values).inc(messages)
            self._child(self.message_bytes, *values).inc(n_bytes)

    def ended(self, method: str, code: str, count: CallCount, seconds: float | None) -> None:
        """Note the end of a call; its seconds are None where nothing was received."""
        self._child(self.calls, method, code).inc()
        if count.method and self.by_silo:
            rejected = self._child(self.rejected_offers, method, count.silo)
            rejected.inc(code == "INVALID_ARGUMENT")
        if seconds is not None:
            self._child(self.call_seconds, method).observe(seconds)

    def round_ended(
        self,
        strategy: str,
        seconds: float,
        moved: tuple[int, int],
        planned: Sequence[Mapping[str, tuple[float, float]]],
        n_silos: int,
    ) -> None:
        """Note a finished round.

        Parameters
        ----------
        moved : tuple of int
            Data-plane bytes up and down.
        planned : Sequence of Mapping
            Bytes up and down that the plan expected of one silo, by kind of exchange; they add up.
        """
        self.rounds.labels(strategy).inc()
        self.round_seconds.labels(strategy).observe(seconds)
        self.round_silos.labels(strategy).inc(n_silos)
        for k, direction in enumerate(WAYS):
            self.round_bytes.labels(strategy, direction).observe(moved[k])
            for method, expected in (one for own in planned for one in own.items()):
                counted = self.planned_bytes.labels(strategy, method, direction)
                counted.inc(expected[k] * n_silos)

    def waits(self, longest: Mapping[str, float], silos: Mapping[str, float]) -> None:
        """Set the longest waits now, seconds by what is awaited and by who is."""
        for gauge, waits in ((self.waiting_seconds, longest), (self.awaited_seconds, silos)):
            shown = self._waits.get(gauge, {})
            for awaited in shown.keys() - waits.keys():
                gauge.remove(awaited)
            for awaited, seconds in waits.items():
                if shown.get(awaited) != seconds:
                    gauge.labels(awaited).set(seconds)
            self._waits[gauge] = dict(waits)

    def serve(self, address: str) -> tuple[Callable[[], None], int]:
        """Serve ``/metrics`` on HOST:PORT; return a function that stops it, and the port.

        Nothing is served where there is no address.
        """
        if not address:
            return (lambda: None), 0
        host, port = parse_address(address)
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise OSError(
                f"cannot serve /metrics on {address}: {error.strerror or error}; set "
                "`metrics` to another port, or to port 0 for a free one"
            ) from error
        # Five connections may wait otherwise: a sixth of a scraper is not even answered.
        server.socket.listen(socket.SOMAXCONN)
        # Otherwise a silent connection never releases its thread.
        server.RequestHandlerClass.timeout = SCRAPE_SECONDS  # type: ignore[attr-defined]
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        doorman = ConnectionLimiter(server.server_port, stranger_seconds=MAX_SCRAPE_SECONDS).start()

        def stop() -> None:
            doorman.stop()
            server.shutdown()
            server.server_close()
            thread.join()

        return stop, server.server_port


Sink = Callable[[str, CallCount], None]


class Wrapping(grpc.aio.ServerInterceptor, ABC):
    """Wraps the handler of each method once."""

    def __init__(self) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the method's handler, wrapped."""
        path = handler_call_details.method
        if path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._handlers[path] = self.wrap(path, handler)
        return self._handlers[path]

    @abstractmethod
    def wrap(self, path: str, handler: Any) -> Any:
        """Return a handler in place of this one."""


def behaviour_of(handler: Any) -> tuple[str, Any]:
    """Return a handler's kind, such as ``unary_stream``, and what it calls."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    return next((kind, found) for kind in kinds if (found := getattr(handler, kind)))


class MeteringInterceptor(Wrapping):
    """Counts every message of an aio server.

    Parameters
    ----------
    sink : callable, optional
        Gets the method path and the count of each finished call, for totals by job.
    """

    def __init__(self, metrics: Metrics, sink: Sink | None = None, trail: Trail = NOWHERE) -> None:
        super().__init__()
        self._metrics = metrics
        self._sink = sink
        self._refusals = RefusalLog(trail=trail)

    def wrap(self, path: str, handler: Any) -> Any:
        """Return the method's handler with counting serialisers."""
        if path.startswith(("/grpc.health", "/grpc.reflection")):
            return handler

        def taking(data: bytes) -> Any:
            call = _open_call()
            if not call.count.messages_in:
                call.started = time.monotonic()
            call.count.messages_in += 1
            call.count.bytes_in += len(data)
            return decode(data) if decode else data

        def giving(message: Any) -> bytes:
            data: bytes = encode(message) if encode else message
            count = _open_call().count
            count.messages_out += 1
            count.bytes_out += len(data)
            return data

        decode, encode = handler.request_deserializer, handler.response_serializer
        finish = self._finish
        opened = self._metrics.calls_open.labels(path.rpartition("/")[2])
        kind, behaviour = behaviour_of(handler)

        async def unary(request: Any, context: Any) -> Any:
            call = _open_call()
            call.peer = str(context.peer())  # not known any more when the call has ended
            opened.inc()

            def ended(_: Any) -> None:
                opened.dec()
                finish(path, call, context)

            # The response is serialised after the behaviour has returned, so the call is
            # credited by a callback that runs when it is over.
            context.add_done_callback(ended)
            return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            call, settled = _open_call(), False
            call.peer = str(context.peer())
            opened.inc()

            def settle(code: str | None) -> None:
                nonlocal settled
                finish(path, call, context, code)
                call.count, settled = CallCount(), True

            call.settle = settle
            code: str | None = "CANCELLED"
            try:
                async for message in behaviour(request, context):
                    yield message
                code = "OK"
            except grpc.aio.AbortError:
                code = None
                raise
            finally:
                opened.dec()
                if not settled or code is None or call.count.messages_in:
                    settle(code)

        wrapped = stream if kind.endswith("stream") else unary
        return getattr(grpc, f"{kind}_rpc_method_handler")(wrapped, taking, giving)

    def _finish(self, path: str, call: _OpenCall, context: Any, code: str | None = None) -> None:
        count = call.count
        service, _, method = path.rpartition("/")
        if count.method:
            method, path = count.method, f"{service}/{count.method}"
        ended = code or code_name(context.code())
        took = time.monotonic() - call.started if call.started else None
        self._metrics.ended(method, ended, count, took)
        if ended in REFUSALS:
            caller = caller_of(context) | {"peer": call.peer}
            self._refusals.note(method, ended, caller, on_record=call.on_record)
        self._metrics.credit(path, count, server=True)
        if self._sink is not None:
            self._sink(path, count)


_CODES: dict[Any, str] = {
    key: code.name for code in grpc.StatusCode for key in (code, code.value[0])
}


def code_name(code: Any) -> str:
    """Return the name of a status code given as a number, a code or nothing (OK)."""
    return _CODES.get(code, "OK")


class MeteredChannel:
    """A channel whose stubs count their messages; passes everything else on.

    Parameters
    ----------
    why_not : callable
        Returns why the server cannot be reached, as far as is found out; or nothing.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        metrics: Metrics,
        strategy: str = "",
        why_not: Callable[[], str] = str,
    ) -> None:
        self._channel = channel
        self._metrics = metrics
        self._strategy = strategy
        self.why_not = why_not

    def on_account_of(self, strategy: str) -> MeteredChannel:
        """Return the same channel with another strategy label."""
        return MeteredChannel(self._channel, self._metrics, strategy, self.why_not)

    def _call(
        self,
        kind: str,
        method: str,
        request_serializer: Wrap,
        response_deserializer: Wrap,
        account: Callable[[], str] | None = None,
        **options: Any,
    ) -> Any:
        """Return a counting callable; ``account`` returns the path under which it counts now."""
        metrics, strategy = self._metrics, self._strategy
        path = account or (lambda: method)

        def giving(message: Any) -> bytes:
            data: bytes = request_serializer(message)
            moved = CallCount(messages_out=1, bytes_out=len(data), strategy=strategy)
            metrics.credit(path(), moved, server=False)
            return data

        def taking(data: bytes) -> Any:
            moved = CallCount(messages_in=1, bytes_in=len(data), strategy=strategy)
            metrics.credit(path(), moved, server=False)
            return response_deserializer(data)

        return getattr(self._channel, kind)(method, giving, taking, **options)

    unary_unary = partialmethod(_call, "unary_unary")
    unary_stream = partialmethod(_call, "unary_stream")
    stream_unary = partialmethod(_call, "stream_unary")
    stream_stream = partialmethod(_call, "stream_stream")

    @property
    def raw(self) -> grpc.Channel:
        """The channel underneath."""
        return self._channel

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
