"""The data plane: one stream of a silo and an attempt carries its exchanges; the servicer.

The first frame of an offer has its ``StepKey``, which says how many follow; so has that of the
reply, after ``Waiting`` frames while the barrier is open. An exchange that fails ends the stream
with its status. Frames are (de)serialised here and not by gRPC, so that a reply to many silos is
serialised once. The client is :mod:`hedgerow.services.rpc.link`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from hedgerow.api.federation.v1.exchange_pb2 import ExchangeKind, StepKey, Waiting
from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeRequest, ExchangeResponse
from hedgerow.boosting.errors import OfferRejected, Unreachable
from hedgerow.boosting.exchange import Call, ExchangeKey, Silo
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import Clock, peer_of
from hedgerow.services.rpc.errors import aborting
from hedgerow.services.rpc.metering import label, settle
from hedgerow.services.rpc.offer_memory import BufferQuota
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.bounds import OBJECT_BYTES, check_request, held_bytes
from hedgerow.services.wire.bulk import frame, opened
from hedgerow.services.wire.masking import MORE

Made = TypeVar("Made")

SERVICE = "hedgerow.api.federation.v1.ExchangeService"
METHOD = "Exchange"
JOINED_BYTES = 1 << 16
"""Frames up to this length are copied, to be sent in one message with a key."""
WAITING_SECONDS = 15.0
"""Time between two ``Waiting`` frames."""

_WAITING = ExchangeResponse(waiting=Waiting()).SerializeToString()
_MASKING = ExchangeRequest.DESCRIPTOR.fields_by_name["masking"].number
_NUMBERS = {
    name: field.number for name, field in ExchangeResponse.DESCRIPTOR.fields_by_name.items()
}
"""Fields of both messages' frames: a family has the same number in offers and replies."""
KINDS = {call: ExchangeKind.Value(f"EXCHANGE_KIND_{call.name}") for call in Call}
_CALLS = {kind: call for call, kind in KINDS.items()}


class OfferIntake(Protocol):
    """Takes the offers of an attempt; the coordinator's barrier is one."""

    def admit(self, silo: Silo) -> None:
        """Raise OfferRejected unless the silo may offer here."""

    def receive(
        self,
        silo: Silo,
        step: str,
        at: ExchangeKey,
        call: Call,
        decode: Callable[[type[Any]], Any],
        n_bytes: int,
    ) -> asyncio.Future[Any]:
        """Take an offer of ``n_bytes`` on the wire; return the future of its reply."""

    def delivered(self, silo: Silo, step: str, at: ExchangeKey) -> None:
        """Note that a reply was sent, or that its silo no longer waits for it."""


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that takes offers, and its strategy, under which bytes are counted."""

    intake: OfferIntake
    strategy: str


FindAttempt = Callable[[str, int, Silo], OpenAttempt]
"""(job, attempt, silo) to the attempt; raises StaleAttempt, Unauthorised or JobStopped."""


class ExchangeServicer:
    """Server side of ExchangeService.

    Parameters
    ----------
    find : callable
        Returns the attempt, for a silo that takes part in it.
    waiting_seconds : float
        Time between two ``Waiting`` frames.
    clock : callable
        Seconds since 1970.
    """

    def __init__(
        self,
        find: FindAttempt,
        waiting_seconds: float = WAITING_SECONDS,
        memory: BufferQuota | None = None,
        clock: Clock = time.time,
    ) -> None:
        self._find = find
        self._clock = clock
        self._waiting_seconds = waiting_seconds
        # What is kept of replies goes with their attempt.
        self._replies = weakref.WeakKeyDictionary[OfferIntake, ReplyFrames]()
        self._memory = memory or BufferQuota()

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        handlers: dict[str, Any] = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return SERVICE

    @aborting
    async def _serve(
        self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        peer = peer_of(context)
        silo = Silo(peer.require(Role.SILO))
        async for data in frames:
            peer.check_time(self._clock)
            async for answer in self._exchange(silo, _first(data), frames, len(data)):
                yield answer

    async def _exchange(
        self, silo: Silo, first: ExchangeRequest, frames: AsyncIterator[bytes], n_bytes: int
    ) -> AsyncIterator[bytes]:
        key = first.key
        call = _CALLS[key.kind]
        label(job_id=key.job_id, silo=silo, method=call.value)
        attempt = self._find(key.job_id, key.attempt, silo)
        label(job_id=key.job_id, silo=silo, strategy=attempt.strategy, method=call.value)
        at = ExchangeKey(key.round, key.level, getattr(key, "pass"))
        attempt.intake.admit(silo)
        # The intake alone keeps the frames: it drops those of a resend, which it does not read.
        reply = attempt.intake.receive(
            silo, key.step, at, call, *await self._offer(silo, first, frames, n_bytes)
        )
        while not reply.done():
            await asyncio.wait({reply}, timeout=self._waiting_seconds)
            if not reply.done():
                yield _WAITING
        try:
            replies = self._replies.setdefault(attempt.intake, ReplyFrames())
            for data in framed(key.step, at, replies.of(reply.result())):
                yield data
            settle()
        finally:
            attempt.intake.delivered(silo, key.step, at)

    async def _offer(
        self, silo: Silo, first: ExchangeRequest, frames: AsyncIterator[bytes], n_bytes: int
    ) -> tuple[Callable[[type[Any]], Any], int]:
        """Return how to decode the frames of an offer, and their bytes."""
        key, parts = first.key, []
        field_name: str | None = first.WhichOneof("frame")
        if field_name:
            parts.append(getattr(first, field_name))
        held = held_bytes(first, n_bytes)
        self._memory.take(silo, held)
        try:
            for number in range(key.frames):
                data = await anext(frames, None)
                if data is None:
                    # A connection that breaks ends the stream as if it were complete.
                    raise Unreachable(
                        f"step {key.step!r}: expected an offer of {key.frames + 1} frames, "
                        f"received {number + 1}"
                    )
                n_bytes += len(data)
                name, part, size = read_part(data, key.step)
                self._memory.take(silo, size)
                held += size
                if name is None or (field_name and name != field_name):
                    raise OfferRejected(
                        f"step {key.step!r}: expected frames {field_name or 'of an offer'!r}, "
                        f"received {name or 'a key, or nothing'!r}"
                    )
                field_name = name
                parts.append(part)
        except BaseException:
            self._memory.give(silo, held)
            raise
        decode = decoder(parts, field_name or "", key.step)
        # Freed with the offer: when its place has passed, at a resend, at the attempt's end.
        release = weakref.finalize(decode, self._memory.give, silo, held)
        release.atexit = False
        return decode, n_bytes


def _first(data: bytes) -> ExchangeRequest:
    """Return the first frame of an offer."""
    message = _parse(data, "")
    key = message.key
    if not key.job_id:
        raise OfferRejected("the first frame of an offer must have a StepKey")
    check_request(key, key.ByteSize())
    if key.kind not in _CALLS:
        raise OfferRejected(f"step {key.step!r}: {key.kind} is no kind of exchange")
    return message


def _parse(data: bytes, step: str) -> ExchangeRequest:
    try:
        return ExchangeRequest.FromString(data)
    except DecodeError as error:
        where = f"step {step!r}: " if step else ""
        raise OfferRejected(f"{where}a frame is not an ExchangeRequest") from error


def read_part(data: bytes, step: str) -> tuple[str | None, Any, int]:
    """Return a later frame's field, what it holds, and about how much memory that takes."""
    part: Any = opened(data, _MASKING, "more", MORE)
    if part is not None:
        return "masking", part, len(data) + OBJECT_BYTES
    message = _parse(data, step)
    name = None if message.HasField("key") else message.WhichOneof("frame")
    return name, getattr(message, name) if name else None, held_bytes(message, len(data))


def decoder(parts: list[Any], field_name: str, step: str) -> Callable[[type[Any]], Any]:
    """Return what decodes the parts of an offer, once its step is known."""

    def decode(payload: type[Any]) -> Any:
        codec = codec_of(payload)
        if parts and field_name != codec.frame:
            raise OfferRejected(
                f"step {step!r}: expected frames {codec.frame!r}, received {field_name!r}"
            )
        try:
            return codec.decode(iter(parts))
        finally:
            parts.clear()

    return decode


class ReplyFrames:
    """Serialised replies: an object that answers many silos, or is part of it, is so once."""

    def __init__(self) -> None:
        self._replies: dict[int, tuple[Any, list[bytes]]] = {}
        self._parts: dict[int, tuple[Any, bytes]] = {}

    def of(self, reply: Any) -> list[bytes]:
        """Return a reply's frames; of the eight last replies and parts they are kept."""
        return _once(self._replies, reply, lambda one: serialised(one, self._frame))

    def _frame(self, number: int, part: Any) -> bytes:
        return _once(self._parts, part, lambda one: frame(number, one))


def _once(known: dict[int, tuple[Any, Made]], value: Any, make: Callable[[Any], Made]) -> Made:
    """Return what is made of an object, which is kept for the eight that were last asked for."""
    found = known.pop(id(value), None)
    if found is None or found[0] is not value:
        found = value, make(value)
    known[id(value)] = found
    if len(known) > 8:
        known.pop(next(iter(known)))
    return found[1]


def serialised(payload: Any, frame: Callable[[int, Any], bytes] = frame) -> list[bytes]:
    """Return the frames of an offer or a reply, without its key."""
    codec = codec_of(type(payload))
    return [frame(_NUMBERS[codec.frame], part) for part in codec.encode(payload)]


def framed(step: str, at: ExchangeKey, frames: list[bytes], **others: Any) -> list[bytes]:
    """Return frames, the first with the key that announces the others.

    A short first frame becomes part of it: a message costs more than its bytes.
    """
    n_joined = int(bool(frames) and len(frames[0]) <= JOINED_BYTES)
    others["pass"] = at.passing
    key = StepKey(
        round=at.round, level=at.level, step=step, frames=len(frames) - n_joined, **others
    )
    return [b"".join((frame(_NUMBERS["key"], key), *frames[:n_joined])), *frames[n_joined:]]
