"""The data plane within a process: silos in threads meet the intake on a loop, without gRPC.

With codecs every payload becomes the frames that gRPC would carry, byte for byte, and is decoded
again at the other end; without them the objects themselves pass.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeRequest, ExchangeResponse
from hedgerow.boosting.errors import JobStopped
from hedgerow.boosting.exchange import Offer, Place, Reply, Silo, Step
from hedgerow.services.rpc.exchange import (
    KINDS,
    OfferIntake,
    decoder,
    framed,
    read_part,
    serialised,
)
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.job_view import StepTotal


class SiloAway(BaseException):
    """A silo leaves here, as the schedule has it; nothing of the strategy may catch this."""


@dataclass
class MemoryPlane:
    """What the links of one attempt share.

    Parameters
    ----------
    intake : OfferIntake
    loop : asyncio.AbstractEventLoop
        Where the intake runs.
    workers : int
        Silos that compute at the same time; those that wait for a reply do not count.
    codecs : bool
        Whether payloads pass through their codecs, and bytes are counted.
    away : callable
        Whether a silo is away in a round.
    """

    job_id: str
    intake: OfferIntake
    loop: asyncio.AbstractEventLoop
    workers: int
    codecs: bool
    away: Callable[[Silo, int], bool]
    stopped: str = ""
    traffic: dict[tuple[str, str], StepTotal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = threading.BoundedSemaphore(self.workers)
        self._encoded: dict[int, tuple[Any, list[bytes]]] = {}

    async def meet(
        self, silo: Silo, step: Step[Any, Any], at: Place, offer: Any, frames: list[bytes]
    ) -> tuple[Any, list[bytes]]:
        """Give an offer to the intake; return the reply and its frames, on the loop."""
        decode: Callable[[type[Any]], Any] = lambda _: offer  # noqa: E731
        if self.codecs:
            decode = _received(step.name, frames)
        n_bytes = sum(map(len, frames))
        future = self.intake.receive(silo, step.name, at, step.call, decode, n_bytes)
        reply = await asyncio.shield(future)
        self.intake.delivered(silo, step.name, at)
        answer: list[bytes] = []
        if self.codecs:
            answer = framed(step.name, at, self._frames(reply))
            moved = StepTotal(
                silo, step.call.value, 1, len(frames), len(answer), n_bytes, sum(map(len, answer))
            )
            key = silo, step.call.value
            self.traffic[key] = self.traffic[key] + moved if key in self.traffic else moved
        return reply, answer

    def _frames(self, reply: Any) -> list[bytes]:
        """Serialise a reply; one object that answers many silos is serialised once."""
        known = self._encoded.get(id(reply))
        if known is None or known[0] is not reply:
            known = reply, serialised(reply)
            if len(self._encoded) >= 8:
                self._encoded.pop(next(iter(self._encoded)))
            self._encoded[id(reply)] = known
        return known[1]


@dataclass
class MemoryLink:
    """A silo's end of the federation within a process; see :class:`boosting.exchange.Link`.

    Parameters
    ----------
    round : int
        The last round in which the silo has offered.
    here : threading.Event
        Cleared while the silo is away; set by the first reply when it is back.
    """

    plane: MemoryPlane
    silo: Silo
    round: int = -1
    memory: dict[str, bytes] = field(default_factory=dict)
    here: threading.Event = field(default_factory=threading.Event)

    def exchange(self, step: Step[Offer, Reply], at: Place, offer: Offer) -> Reply:
        """Give an offer and wait for its reply; others compute meanwhile."""
        self.check()
        assert isinstance(offer, step.offer), f"{step.name}: a {type(offer).__name__}"
        if at.round > self.round:
            self.round = at.round
            if self.plane.away(self.silo, at.round):
                self.here.clear()
                raise SiloAway
        frames: list[bytes] = []
        if self.plane.codecs:
            frames = framed(
                step.name,
                at,
                serialised(offer),
                job_id=self.plane.job_id,
                attempt=1,
                kind=KINDS[step.call],
            )
        meeting = self.plane.meet(self.silo, step, at, offer, frames)
        future = asyncio.run_coroutine_threadsafe(meeting, self.plane.loop)
        self.plane.slots.release()
        try:
            reply, answer = future.result()
        finally:
            self.plane.slots.acquire()
        self.here.set()
        if self.plane.codecs:
            found = [ExchangeResponse.FromString(data) for data in answer]
            codec = codec_of(step.reply)
            reply = codec.decode(
                getattr(message, codec.frame)
                for message in found
                if message.WhichOneof("frame") == codec.frame
            )
        assert isinstance(reply, step.reply), f"{step.name}: a {type(reply).__name__}"
        return reply

    def check(self) -> None:
        """Raise JobStopped when the job has been stopped."""
        if self.plane.stopped:
            raise JobStopped(self.plane.stopped)

    def remember(self, key: str, value: bytes) -> None:
        """Keep a record for as long as the link is there."""
        self.memory[key] = value

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        return self.memory.get(key)


def _received(step: str, frames: list[bytes]) -> Callable[[type[Any]], Any]:
    """Return how to decode an offer's frames, as a servicer reads them."""
    first = ExchangeRequest.FromString(frames[0])
    name: str | None = first.WhichOneof("frame")
    parts: list[Any] = [getattr(first, name)] if name else []
    for data in frames[1:]:
        name, part, _ = read_part(data, step)
        parts.append(part)
    return decoder(parts, name or "", step)
