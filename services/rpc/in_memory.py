"""The data plane within a process: silos in threads meet the intake on a loop, without gRPC.

With codecs every payload becomes the frames that gRPC would carry, byte for byte, and is decoded
again at the other end; without them the objects themselves pass.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeRequest, ExchangeResponse
from hedgerow.boosting.errors import InvalidJob, JobStopped
from hedgerow.boosting.exchange import ExchangeKey, Offer, Reply, Silo, Step
from hedgerow.services.rpc.exchange import (
    KINDS,
    OfferIntake,
    ReplyFrames,
    decoder,
    framed,
    read_part,
    serialised,
)
from hedgerow.services.wire import Codec, codec_of
from hedgerow.services.wire.job_view import StepTotal


class SiloAway(BaseException):
    """A silo leaves here, as the schedule has it; nothing of the strategy may catch this."""


@dataclass(frozen=True, slots=True)
class LineSpeed:
    """A silo's line to the coordinator."""

    round_trip_seconds: float
    bits_per_second: float
    """Of each direction."""

    @classmethod
    def parse(cls, text: str) -> LineSpeed:
        """Return the line of ``MILLISECONDS:MBIT``; raises InvalidJob for anything else."""
        parts = text.split(":")
        try:
            delay, megabits = map(float, parts)
        except ValueError:
            delay = megabits = math.nan
        if not (0 <= delay < math.inf and 0 < megabits < math.inf):
            raise InvalidJob(
                f"link: expected MILLISECONDS:MBIT such as 20:100 (round trip, and megabits a "
                f"second each way), received {text!r}"
            )
        return cls(delay / 1e3, megabits * 1e6)

    def seconds(self, n_bytes: int) -> float:
        """Return how long bytes take in one direction."""
        return self.round_trip_seconds / 2 + 8 * n_bytes / self.bits_per_second


INSTANT = LineSpeed(0.0, math.inf)
"""A line on which nothing takes time."""


@dataclass
class MemoryPlane:
    """What the links of one attempt share."""

    job_id: str
    intake: OfferIntake
    loop: asyncio.AbstractEventLoop
    """Where the intake runs."""
    workers: int
    """Silos that compute at the same time; those that wait for a reply do not count."""
    codecs: bool
    """Whether payloads pass through their codecs, and bytes are counted."""
    away: Callable[[Silo, int], bool]
    """Whether a silo is away in a round."""
    late: Callable[[Silo, int], float]
    """Seconds by which a silo is late with its first offer of a round."""
    patience_seconds: float
    """How long an offer is waited for: who is later is away in the round."""
    lines: Mapping[Silo, LineSpeed] = field(default_factory=dict)
    """Lines of silos. With them, clocks tell when each silo would have its reply were it alone on
    its machine: CPU seconds of its thread, plus what travels, plus waiting for the others."""
    stopped: str = ""
    clocks: dict[Silo, float] = field(default_factory=dict)
    traffic: dict[tuple[str, str], StepTotal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moved = threading.Condition()
        self.slots = threading.BoundedSemaphore(self.workers)
        self.answered = 0.0  # when the last reply so far has arrived
        self._over = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._arrived: dict[tuple[str, ExchangeKey], float] = {}
        self._replies = ReplyFrames()

    def close(self) -> None:
        """End offers that wait, and later ones, for the coordinator half has ended; on the loop.

        What is answered at once, such as a silo's catching up, still is.
        """
        self._over = True
        for future in [one for one in self._waiting if not one.done()]:
            future.set_exception(JobStopped("the job has ended"))

    async def meet(
        self, silo: Silo, step: Step[Any, Any], at: ExchangeKey, offer: Any, frames: list[bytes]
    ) -> tuple[Any, list[bytes]]:
        """Give an offer to the intake; return the reply and its frames, on the loop."""
        decode: Callable[[type[Any]], Any] = lambda _: offer  # noqa: E731
        if self.codecs:
            decode = _received(step.name, frames)
        n_bytes = sum(map(len, frames))
        key = step.name, at
        line = self.lines.get(silo)
        if line is not None:
            self._note_arrival(key, self.clocks[silo] + line.seconds(n_bytes))
        future = self.intake.receive(silo, step.name, at, step.call, decode, n_bytes)
        if not future.done():
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
            if self._over:
                self.close()
        reply = await asyncio.shield(future)
        self.intake.delivered(silo, step.name, at)
        answer: list[bytes] = []
        if self.codecs:
            answer = framed(step.name, at, self._replies.of(reply))
            moved = StepTotal(
                silo, step.call.value, 1, len(frames), len(answer), n_bytes, sum(map(len, answer))
            )
            where = silo, step.call.value
            known = self.traffic.get(where)
            self.traffic[where] = moved if known is None else known + moved
        if line is not None:
            self.clocks[silo] = self._arrived[key] + line.seconds(sum(map(len, answer)))
            self.answered = max(self.answered, self.clocks[silo])
        return reply, answer

    def await_in_vain(self, silo: Silo, step: Step[Any, Any], at: ExchangeKey) -> None:
        """Note how long the others wait for a silo whose clock is at the end of their patience."""
        self.loop.call_soon_threadsafe(self._note_arrival, (step.name, at), self.clocks[silo])

    def _note_arrival(self, key: tuple[str, ExchangeKey], seconds: float) -> None:
        self._arrived[key] = max(self._arrived.get(key, 0.0), seconds)


class SiloEnd(ABC):
    """A silo's end of a link: the codecs, and who computes while others wait.

    Parameters
    ----------
    slots : threading.BoundedSemaphore
        Held by a silo that computes.
    codecs : bool
        See :class:`MemoryPlane`.
    """

    def __init__(
        self, silo: Silo, job_id: str, slots: threading.BoundedSemaphore, codecs: bool = True
    ) -> None:
        self.silo, self.job_id, self.slots, self.codecs = silo, job_id, slots, codecs
        self.timed = False  # whether CPU seconds count
        self.began = 0.0  # CPU seconds of the silo's thread when it had its last reply
        self.memory: dict[str, bytes] = {}

    @abstractmethod
    def carry(
        self, step: Step[Any, Any], at: ExchangeKey, offer: Any, frames: list[bytes], spent: float
    ) -> tuple[Any, list[bytes]]:
        """Bring an offer to the coordinator; return the reply, or its frames with codecs.

        Parameters
        ----------
        spent : float
            CPU seconds of the silo since its last reply, where they count.
        """

    def exchange(self, step: Step[Offer, Reply], at: ExchangeKey, offer: Offer) -> Reply:
        """Give an offer and wait for its reply; others compute meanwhile."""
        self.check()
        assert isinstance(offer, step.offer), f"{step.name}: a {type(offer).__name__}"
        frames: list[bytes] = []
        if self.codecs:
            frames = framed(
                step.name,
                at,
                serialised(offer),
                job_id=self.job_id,
                attempt=1,
                kind=KINDS[step.call],
            )
        spent = time.thread_time() - self.began if self.timed else 0.0
        self.slots.release()
        try:
            reply, answer = self.carry(step, at, offer, frames, spent)
        finally:
            self.slots.acquire()
            self.began = time.thread_time() if self.timed else 0.0
        if self.codecs:
            # What silos of one process receive alike is decoded once, but where it is timed.
            decode = _decoded.__wrapped__ if self.timed else _decoded
            reply = decode(codec_of(step.reply), tuple(answer))
        assert isinstance(reply, step.reply), f"{step.name}: a {type(reply).__name__}"
        return reply

    @abstractmethod
    def check(self) -> None:
        """Raise JobStopped when the job has been stopped."""

    def remember(self, key: str, value: bytes) -> None:
        """Keep a record for as long as the link is there."""
        self.memory[key] = value

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        return self.memory.get(key)


class MemoryLink(SiloEnd):
    """A silo's end of the federation within a process; a ``SiloChannel``."""

    def __init__(self, plane: MemoryPlane, silo: Silo) -> None:
        super().__init__(silo, plane.job_id, plane.slots, plane.codecs)
        self.plane, self.timed = plane, silo in plane.lines
        self.round = -1  # the last round in which the silo has offered
        self.here = False  # false while the silo is away, until its first reply when it is back

    def carry(
        self, step: Step[Any, Any], at: ExchangeKey, offer: Any, frames: list[bytes], spent: float
    ) -> tuple[Any, list[bytes]]:
        """Give an offer to the intake; raises SiloAway where the schedule says so."""
        self.check()
        plane = self.plane
        if self.silo in plane.lines:
            plane.clocks[self.silo] = plane.clocks.get(self.silo, 0.0) + spent
        if at.round > self.round:
            away = plane.away(self.silo, at.round)
            seconds = 0.0 if away else plane.late(self.silo, at.round)
            if seconds:
                plane.clocks[self.silo] += min(seconds, plane.patience_seconds)
            if seconds > plane.patience_seconds:
                plane.await_in_vain(self.silo, step, at)
                away = True
            with self.plane.moved:
                self.round, self.here = at.round, self.here and not away
                self.plane.moved.notify_all()
            if away:
                raise SiloAway
        meeting = plane.meet(self.silo, step, at, offer, frames)
        reply, answer = asyncio.run_coroutine_threadsafe(meeting, plane.loop).result()
        self.note_here()
        return reply, answer

    def note_here(self) -> None:
        """Let those go on who wait for this silo."""
        if not self.here:
            with self.plane.moved:
                self.here = True
                self.plane.moved.notify_all()

    def wait_here(self, round: int) -> None:
        """Wait until the silo is back after ``round``; it may be away in the next one already."""
        with self.plane.moved:
            self.plane.moved.wait_for(lambda: self.here or self.round != round)

    def check(self) -> None:
        """Raise JobStopped when the job has been stopped."""
        if self.plane.stopped:
            raise JobStopped(self.plane.stopped)


@lru_cache(maxsize=2)
def _decoded(codec: Codec[Any], answer: tuple[bytes, ...]) -> Any:
    """Return the reply of frames."""
    found = map(ExchangeResponse.FromString, answer)
    return codec.decode(
        getattr(message, codec.frame)
        for message in found
        if message.WhichOneof("frame") == codec.frame
    )


def _received(step: str, frames: list[bytes]) -> Callable[[type[Any]], Any]:
    """Return how to decode an offer's frames, as a servicer reads them."""
    first = ExchangeRequest.FromString(frames[0])
    name: str | None = first.WhichOneof("frame")
    parts: list[Any] = [getattr(first, name)] if name else []
    for data in frames[1:]:
        name, part, _ = read_part(data, step)
        parts.append(part)
    return decoder(parts, name or "", step)
