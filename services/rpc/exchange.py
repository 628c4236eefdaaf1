"""The data plane: one call is one exchange at a barrier; servicer and client.

A request's first frame is its :class:`StepKey`, the others are the offer. The response has
``Waiting`` frames while the barrier is open, then the reply. Frames are (de)serialised here and
not by gRPC, so that a reply to many silos is serialised once and a resend is the same bytes.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from hedgerow.api.federation.v1 import exchange_pb2, exchange_service_pb2
from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    OfferRejected,
    Unreachable,
)
from hedgerow.boosting.exchange import Call, Offer, Place, Reply, Silo, Step
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.rpc.errors import abort, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label
from hedgerow.services.rpc.offer_memory import OfferMemory
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.bounds import OBJECT_BYTES, check_request, held_bytes
from hedgerow.services.wire.bulk import frame, opened
from hedgerow.services.wire.masking import MORE

SERVICE = "hedgerow.api.federation.v1.ExchangeService"
WAITING_SECONDS = 15.0
"""Time between two ``Waiting`` frames."""

_METHODS = {
    call: (
        getattr(exchange_service_pb2, f"{call.value}Request"),
        getattr(exchange_service_pb2, f"{call.value}Response"),
    )
    for call in Call
}


class OfferIntake(Protocol):
    """Takes the offers of an attempt; the coordinator's rendezvous is one."""

    def admit(self, silo: Silo) -> None:
        """Raise OfferRejected unless the silo may offer here."""
        ...

    def receive(
        self,
        silo: Silo,
        step: str,
        at: Place,
        call: Call,
        decode: Callable[[type[Any]], Any],
        n_bytes: int,
    ) -> asyncio.Future[Any]:
        """Take an offer of ``n_bytes`` on the wire; return the future of its reply."""
        ...

    def delivered(self, silo: Silo, step: str, at: Place) -> None:
        """Note that a reply was sent, or that its silo no longer waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that takes offers, and its strategy, under which bytes are counted."""

    intake: OfferIntake
    strategy: str


FindAttempt = Callable[[str, int, Silo], OpenAttempt]
"""(job, attempt, silo) to the attempt; raises StaleAttempt, Unauthorised or JobStopped."""


class ExchangeServicer:
    """Server side of every method of ExchangeService.

    Parameters
    ----------
    find : callable
        Returns the attempt, for a silo that takes part in it.
    waiting_seconds : float
        Time between two ``Waiting`` frames.
    memory : OfferMemory, optional
    """

    def __init__(
        self,
        find: FindAttempt,
        waiting_seconds: float = WAITING_SECONDS,
        memory: OfferMemory | None = None,
    ) -> None:
        self._find = find
        self._waiting_seconds = waiting_seconds
        self._encoded: dict[int, tuple[Any, list[bytes]]] = {}
        self._memory = memory or OfferMemory()

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        handlers: dict[str, Any] = {
            call.value: grpc.stream_stream_rpc_method_handler(self._behaviour(call))
            for call in Call
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return SERVICE

    def _behaviour(self, call: Call) -> Any:
        request_type, response_type = _METHODS[call]

        async def behaviour(
            frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
        ) -> AsyncIterator[bytes]:
            try:
                async for frame in self._exchange(
                    call, request_type, response_type, frames, context
                ):
                    yield frame
            except FederationError as error:
                await abort(context, error)

        return behaviour

    async def _exchange(
        self,
        call: Call,
        request_type: Any,
        response_type: Any,
        frames: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[bytes]:
        silo = Silo(peer_of(context).require(Role.SILO))
        key = await self._first(request_type, frames, call)
        attempt = self._find(key.job_id, key.attempt, silo)
        label(job_id=key.job_id, silo=silo, strategy=attempt.strategy)
        at = Place(key.round, key.level, getattr(key, "pass"))
        attempt.intake.admit(silo)
        # The intake alone keeps the frames: it drops those of a resend, which it does not read.
        reply = attempt.intake.receive(
            silo, key.step, at, call, *await self._rest(request_type, frames, call, silo, key)
        )
        waiting = response_type(waiting=exchange_pb2.Waiting()).SerializeToString()
        while not reply.done():
            await asyncio.wait({reply}, timeout=self._waiting_seconds)
            if not reply.done():
                yield waiting
        try:
            for frame in self._encode(response_type, reply.result()):
                yield frame
        finally:
            attempt.intake.delivered(silo, key.step, at)

    async def _first(
        self, request_type: Any, frames: AsyncIterator[bytes], call: Call
    ) -> exchange_pb2.StepKey:
        async for data in frames:
            message = _parse(request_type, data, call)
            if message.WhichOneof("frame") != "key" or not message.key.job_id:
                raise OfferRejected(f"{call.value}: the first frame must be a StepKey")
            key: exchange_pb2.StepKey = message.key
            check_request(key, len(data))
            return key
        raise OfferRejected(f"{call.value}: expected a StepKey, received an empty stream")

    async def _rest(
        self,
        request_type: Any,
        frames: AsyncIterator[bytes],
        call: Call,
        silo: Silo,
        key: exchange_pb2.StepKey,
    ) -> tuple[Callable[[type[Any]], Any], int]:
        """Return how to decode the frames of an offer, and their bytes."""
        parts: list[Any] = []
        field_name, received, held = "", 0, 0
        masking = request_type.DESCRIPTOR.fields_by_name.get("masking")
        try:
            async for data in frames:
                received += len(data)
                name, part = "masking", None
                if masking is not None:
                    part = opened(data, masking.number, "more", MORE)
                size = len(data) + OBJECT_BYTES
                if part is None:
                    message = _parse(request_type, data, call)
                    name = message.WhichOneof("frame")
                    part = getattr(message, name) if name else None
                    size = held_bytes(message, len(data))
                self._memory.take(silo, size)
                held += size
                if name in (None, "key") or (field_name and name != field_name):
                    raise OfferRejected(
                        f"{call.value}: expected frames {field_name or 'of an offer'!r}, "
                        f"received {name!r}"
                    )
                field_name = name
                parts.append(part)
            if len(parts) != key.frames:
                # A connection that breaks ends the stream as if it were complete.
                raise Unreachable(
                    f"{call.value}: expected an offer of {key.frames} frames, received {len(parts)}"
                )
        except BaseException:
            self._memory.give(silo, held)
            raise
        decode = _decoder(parts, field_name, call, key.step)
        # Whoever drops an offer drops this: the place passed, a resend, the end of the attempt.
        release = weakref.finalize(decode, self._memory.give, silo, held)
        release.atexit = False
        return decode, received

    def _encode(self, response_type: Any, payload: Any) -> list[bytes]:
        """Serialise a reply; one payload object that answers many silos is serialised once."""
        known = self._encoded.get(id(payload))
        if known is not None and known[0] is payload:
            return known[1]
        frames = list(_serialise(response_type, payload))
        if len(self._encoded) >= 8:
            self._encoded.pop(next(iter(self._encoded)))
        self._encoded[id(payload)] = (payload, frames)
        return frames


def _parse(request_type: Any, data: bytes, call: Call) -> Any:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise OfferRejected(f"{call.value}: a frame is not a {request_type.__name__}") from error


def _decoder(
    parts: list[Any], field_name: str, call: Call, step: str
) -> Callable[[type[Any]], Any]:
    def decode(payload: type[Any]) -> Any:
        codec = codec_of(payload)
        if parts and field_name != codec.frame:
            raise OfferRejected(
                f"{call.value}: step {step!r} expected frames {codec.frame!r}, "
                f"received {field_name!r}"
            )
        try:
            return codec.decode(iter(parts))
        finally:
            parts.clear()

    return decode


def _serialise(message_type: Any, payload: Any) -> Iterator[bytes]:
    codec = codec_of(type(payload))
    if not codec.frame:
        return
    number = message_type.DESCRIPTOR.fields_by_name[codec.frame].number
    for part in codec.encode(payload):
        yield frame(number, part)


class Ledger(Protocol):
    """A silo's record of what leaves it."""

    def record(
        self, *, job_id: str, step: Step[Any, Any], at: Place, kind: str, frames: list[bytes]
    ) -> None:
        """Make one line durable; raises where it cannot, and then nothing is sent."""
        ...


class Memory(Protocol):
    """Durable records of a silo for one job."""

    def remember(self, key: str, value: bytes) -> None:
        """Store a record durably."""
        ...

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        ...


@dataclass(slots=True)
class LinkTimes:
    """Where the time of a silo's exchanges went, seconds.

    Parameters
    ----------
    waiting : float
        For the other silos and the reply, after gRPC has taken the last frame.
    sending : float
        Serialising offers and giving their frames to the connection.
    recording : float
        Making the ledger's lines durable.
    """

    waiting: float = 0.0
    sending: float = 0.0
    recording: float = 0.0


@dataclass
class GrpcLink:
    """A silo's end of the federation over gRPC; see :class:`hedgerow.boosting.exchange.Link`.

    Parameters
    ----------
    channel : callable
        Returns the current channel; a fresh one after certificates were renewed.
    timeout_seconds : float
        Longest duration of an exchange, resends included.
    """

    channel: Callable[[], MeteredChannel]
    address: str
    job_id: str
    attempt: int
    ledger: Ledger
    memory: Memory
    timeout_seconds: float
    rng: random.Random = field(default_factory=random.SystemRandom)
    times: LinkTimes = field(default_factory=LinkTimes)
    _stopped: str | None = None
    _call: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def exchange(self, step: Step[Offer, Reply], at: Place, offer: Offer) -> Reply:
        """Send an offer and return its reply; after a lost connection the same bytes again."""
        self.check()
        assert isinstance(offer, step.offer), f"{step.name}: a {type(offer).__name__}"
        started = time.monotonic()
        request_type, response_type = _METHODS[step.call]
        key = exchange_pb2.StepKey(
            job_id=self.job_id,
            attempt=self.attempt,
            round=at.round,
            level=at.level,
            step=step.name,
            **{"pass": at.passing},
        )
        frames = list(_serialise(request_type, offer))
        key.frames = len(frames)
        frames.insert(0, request_type(key=key).SerializeToString())
        self.times.sending += time.monotonic() - started
        deadline = started + self.timeout_seconds
        pause = 0.1
        while True:
            recording = time.monotonic()
            self.ledger.record(
                job_id=self.job_id, step=step, at=at, kind=type(offer).__name__, frames=frames
            )
            self.times.recording += time.monotonic() - recording
            try:
                return self._once(step, response_type, frames, deadline)
            except Unreachable:
                self.check()
                if time.monotonic() + pause >= deadline:
                    raise
            # Full jitter, so that many silos do not return at the same moment.
            time.sleep(self.rng.uniform(0.0, pause))
            pause = min(pause * 2.0, 5.0)

    def _once(
        self, step: Step[Any, Reply], response_type: Any, frames: list[bytes], deadline: float
    ) -> Reply:
        path = f"/{SERVICE}/{step.call.value}"
        stub = self.channel().stream_stream(path, _as_is, _as_is)
        parts: list[Any] = []
        codec = codec_of(step.reply)
        began = sent = time.monotonic()

        def flow() -> Iterator[bytes]:
            nonlocal sent
            yield from frames
            sent = time.monotonic()

        try:
            with self._lock:
                self.check()
                self._call = call = stub(flow(), timeout=max(deadline - time.monotonic(), 0.001))
            for data in call:
                message = response_type.FromString(data)
                name = message.WhichOneof("frame")
                if name == "waiting":
                    continue
                if name != codec.frame:
                    raise OfferRejected(
                        f"step {step.name!r}: expected frames {codec.frame!r} from the "
                        f"coordinator, received {name!r}"
                    )
                parts.append(getattr(message, name))
        except grpc.RpcError as error:
            self.check()
            raise from_rpc(error, self.address) from None
        except DecodeError as error:
            raise OfferRejected(
                f"step {step.name!r}: the coordinator sent bytes that are no frame"
            ) from error
        finally:
            self._call = None
            self.times.sending += sent - began
            self.times.waiting += time.monotonic() - sent
        reply: Reply = codec.decode(iter(parts))
        return reply

    def check(self) -> None:
        """Raise :class:`JobStopped` once :meth:`stop` was called."""
        if self._stopped is not None:
            raise JobStopped(self._stopped)

    def stop(self, reason: str) -> None:
        """End the running exchange and every later one with :class:`JobStopped`."""
        with self._lock:
            self._stopped = reason
            if self._call is not None:
                self._call.cancel()

    def remember(self, key: str, value: bytes) -> None:
        """Store a record of this job durably."""
        self.memory.remember(key, value)

    def recall(self, key: str) -> bytes | None:
        """Return a record of this job, or None."""
        return self.memory.recall(key)


def _as_is(data: bytes) -> bytes:
    return data
