"""A silo's end of the data plane: its exchanges, by a stream that stays open; see ``exchange``."""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from hedgerow.api.federation.v1.exchange_pb2 import StepKey
from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeResponse
from hedgerow.boosting.errors import JobStopped, OfferRejected, Unreachable
from hedgerow.boosting.exchange import ExchangeKey, Offer, Reply, Step
from hedgerow.services.process import tracing
from hedgerow.services.rpc.errors import from_rpc
from hedgerow.services.rpc.exchange import KINDS, METHOD, SERVICE, framed, serialised
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.wire import codec_of

STREAM_SECONDS = 300.0
"""How long a stream takes new exchanges: less than the server's grace for old connections."""


class Ledger(Protocol):
    """A silo's record of what leaves it."""

    def record(
        self, *, job_id: str, step: Step[Any, Any], at: ExchangeKey, kind: str, frames: list[bytes]
    ) -> None:
        """Make one line durable; raises where it cannot, and then nothing is sent."""


class Memory(Protocol):
    """Durable records of a silo for one job."""

    def remember(self, key: str, value: bytes) -> None:
        """Store a record durably."""

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""


@dataclass(slots=True)
class LinkTimes:
    """Where the time of a silo's exchanges went, seconds."""

    waiting: float = 0.0
    """For the other silos and the reply, after gRPC has taken the last frame."""
    sending: float = 0.0
    """Serialising offers and giving their frames to the connection."""
    recording: float = 0.0
    """Making the ledger's lines durable."""


class _Stream:
    """An open stream of a link: gRPC's own thread takes the offers, the caller's reads the replies.

    Parameters
    ----------
    timeout_seconds : float
        Longest duration of an exchange.
    deadline : float
        Of the first one.
    """

    def __init__(self, channel: MeteredChannel, timeout_seconds: float, deadline: float) -> None:
        self.raw = channel.raw
        self.sent = 0.0
        self.method = METHOD
        self.deadline = deadline
        self._until = time.monotonic() + STREAM_SECONDS
        self._timeout_seconds = timeout_seconds
        self._offers: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        stub = channel.stream_stream(
            f"/{SERVICE}/{METHOD}", _as_is, _as_is, lambda: f"/{SERVICE}/{self.method}"
        )
        self.call = stub(self._flow(), timeout=STREAM_SECONDS + timeout_seconds)
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    def offer(self, method: str, frames: list[bytes], deadline: float) -> None:
        """Send an offer; the frames of its reply are what the call yields next."""
        self.method, self.deadline = method, deadline
        self._offers.put(frames)

    def takes_more(self, channel: MeteredChannel) -> bool:
        """Whether another exchange may begin here rather than on a new stream."""
        young = time.monotonic() < self._until
        return young and self.raw is channel.raw and bool(self.call.is_active())

    def close(self, *, cancel: bool = False) -> None:
        """End the stream: after its last exchange, or at once."""
        self._closed.set()
        if cancel:
            self.call.cancel()
        self._offers.put(None)

    def _flow(self) -> Iterator[bytes]:
        while (frames := self._offers.get()) is not None:
            yield from frames
            self.sent = time.monotonic()
            del frames  # megabytes, until the next offer

    def _watch(self) -> None:
        """Cancel the call where the deadline of an exchange has passed."""
        left = 0.0
        while not self._closed.wait(left):
            left = min(self.deadline - time.monotonic(), self._timeout_seconds)
            if left <= 0.0:
                self.call.cancel()
                return


@dataclass
class GrpcChannel:
    """A silo's end of the federation over gRPC: :class:`hedgerow.boosting.exchange.SiloChannel`."""

    channel: Callable[[], MeteredChannel]
    """Returns the current channel; a fresh one after certificates were renewed."""
    address: str
    job_id: str
    attempt: int
    ledger: Ledger
    memory: Memory
    timeout_seconds: float
    """Longest duration of an exchange, resends included."""
    rng: random.Random = field(default_factory=random.SystemRandom)
    times: LinkTimes = field(default_factory=LinkTimes)
    _stopped: str | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _stream: _Stream | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def exchange(self, step: Step[Offer, Reply], at: ExchangeKey, offer: Offer) -> Reply:
        """Send an offer and return its reply; after a lost connection the same bytes again."""
        self.check()
        assert isinstance(offer, step.offer), f"{step.name}: a {type(offer).__name__}"
        started = time.monotonic()
        frames = framed(
            step.name,
            at,
            serialised(offer),
            job_id=self.job_id,
            attempt=self.attempt,
            kind=KINDS[step.call],
        )
        self.times.sending += time.monotonic() - started
        n_bytes = sum(map(len, frames))
        with tracing.span(step.call.value, step=step.name, round=at.round, bytes=n_bytes):
            return self._until_answered(step, at, offer, frames, started + self.timeout_seconds)

    def _until_answered(
        self,
        step: Step[Offer, Reply],
        at: ExchangeKey,
        offer: Offer,
        frames: list[bytes],
        deadline: float,
    ) -> Reply:
        pause = 0.1
        while True:
            recording = time.monotonic()
            self.ledger.record(
                job_id=self.job_id, step=step, at=at, kind=type(offer).__name__, frames=frames
            )
            self.times.recording += time.monotonic() - recording
            try:
                return self._once(step, at, frames, deadline)
            except Unreachable:
                self.check()
                if time.monotonic() + pause >= deadline:
                    raise
            # Full jitter, so that many silos do not return at the same moment.
            self._ended.wait(self.rng.uniform(0.0, pause))
            self.check()
            pause = min(pause * 2.0, 5.0)

    def _once(
        self, step: Step[Any, Reply], at: ExchangeKey, frames: list[bytes], deadline: float
    ) -> Reply:
        began = time.monotonic()
        stream = self._open(deadline)
        stream.sent = began
        try:
            stream.offer(step.call.value, frames, deadline)
            parts = self._reply(step, at, stream.call)
        except BaseException as error:
            self._close(cancel=True)
            if not isinstance(error, grpc.RpcError):
                raise
            self.check()
            if time.monotonic() >= deadline:
                raise Unreachable(f"{self.address}: no answer before the deadline") from None
            raise from_rpc(error, self.address) from None
        finally:
            stream.deadline = math.inf
            self.times.sending += stream.sent - began
            self.times.waiting += time.monotonic() - stream.sent
        reply: Reply = codec_of(step.reply).decode(iter(parts))
        return reply

    def _open(self, deadline: float) -> _Stream:
        """Return the stream, a new one where there is none or the last one takes no more."""
        channel = self.channel()
        if self._stream is not None and not self._stream.takes_more(channel):
            self._close()
        with self._lock:
            self.check()
            if self._stream is None:
                self._stream = _Stream(channel, self.timeout_seconds, deadline)
            return self._stream

    def _reply(self, step: Step[Any, Any], at: ExchangeKey, call: Iterator[bytes]) -> list[Any]:
        """Return the frames of a reply."""
        frame = codec_of(step.reply).frame
        key: StepKey | None = None
        left = 0
        parts: list[Any] = []
        for data in call:
            try:
                message = ExchangeResponse.FromString(data)
            except DecodeError as error:
                raise OfferRejected(
                    f"step {step.name!r}: the coordinator sent bytes that are no frame"
                ) from error
            name = message.WhichOneof("frame")
            if name == "waiting":
                continue
            if key is None:
                key, left = message.key, message.key.frames
                place = ExchangeKey(key.round, key.level, getattr(key, "pass"))
                if key.step != step.name or place != at:
                    raise OfferRejected(
                        f"expected the reply to step {step.name!r} at {at} from the coordinator, "
                        f"received step {key.step!r} at {place}"
                    )
            else:
                left -= 1
            if name == frame:
                parts.append(getattr(message, name))
            elif name is not None or not message.HasField("key"):
                raise OfferRejected(
                    f"step {step.name!r}: expected frames {frame!r} from the coordinator, "
                    f"received {name!r}"
                )
            if not left:
                return parts
        raise Unreachable(f"{self.address}: the stream ended before the reply")

    def check(self) -> None:
        """Raise :class:`JobStopped` once :meth:`stop` was called."""
        if self._stopped is not None:
            raise JobStopped(self._stopped)

    def stop(self, reason: str) -> None:
        """End the running exchange and every later one with :class:`JobStopped`."""
        with self._lock:
            self._stopped = reason
        self._ended.set()
        self._close(cancel=True)

    def close(self) -> None:
        """End the stream after the last exchange."""
        self._close()

    def _close(self, *, cancel: bool = False) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(cancel=cancel)

    def remember(self, key: str, value: bytes) -> None:
        """Store a record of this job durably."""
        self.memory.remember(key, value)

    def recall(self, key: str) -> bytes | None:
        """Return a record of this job, or None."""
        return self.memory.recall(key)


def _as_is(data: bytes) -> bytes:
    return data
