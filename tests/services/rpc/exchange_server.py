"""An exchange service of its own, on loopback, for the tests."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import (
    StaleAttempt,
    Unauthorised,
)
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Receipt, Silo, Step
from hedgerow.boosting.strategies.fedxgbllr.steps import RoundVector
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.peers import channel_credentials, server_credentials
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.exchange import (
    METHOD,
    SERVICE,
    ExchangeServicer,
    OpenAttempt,
)
from hedgerow.services.rpc.link import GrpcChannel
from hedgerow.services.rpc.metering import CallCount, Metrics
from hedgerow.services.rpc.server import serve

STEP = Step("weights", Call.WEIGHTS, RoundVector, Receipt, "weights", Discloses.WEIGHTS)


@dataclass
class Notes:
    """A ledger and memory that keep what they are told."""

    frames: list[list[bytes]] = field(default_factory=list)

    def record(self, *, frames: list[bytes], **_: Any) -> None:
        self.frames.append(list(frames))

    def remember(self, key: str, value: bytes) -> None:
        raise AssertionError

    def recall(self, key: str) -> bytes | None:
        raise AssertionError


class Server:
    """A coordinator's data plane with one attempt open, on a loop in a thread."""

    def __init__(self, folder: Path) -> None:
        self.paths = throwaway(folder, ["a", "b", "stranger"], time.time())
        self.calls: list[tuple[str, CallCount]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.do(self._open())

    async def _open(self) -> None:
        self.hub = Barrier((Silo("a"), Silo("b")), (Silo("a"), Silo("b")), 120.0)
        self.years = 0.0
        self.servicer = ExchangeServicer(
            self._find, waiting_seconds=0.05, clock=lambda: time.time() + self.years * 3e7
        )
        self.metrics = Metrics(by_silo=True)
        await self.listen(0)

    async def listen(self, port: int) -> None:
        self.serving = await serve(
            f"127.0.0.1:{port}",
            [self.servicer.register],
            self.metrics,
            server_credentials(self.paths["coordinator"]),
            lambda path, count: self.calls.append((path, count)),
        )

    def _find(self, job_id: str, attempt: int, silo: Silo) -> OpenAttempt:
        if job_id != "job" or attempt != 2:
            raise StaleAttempt(f"attempt {attempt} is over")
        if silo not in ("a", "b"):
            raise Unauthorised(f"{silo} is not on the roster of this job")
        return OpenAttempt(self.hub, "test")

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(150)

    def until(self, reached: Callable[[], object]) -> None:
        """Wait for what the server's loop brings about."""

        async def wait() -> None:
            while not reached():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        self.do(asyncio.wait_for(wait(), 120))

    def offered(self, n: int = 1, at: ExchangeKey = ExchangeKey(0)) -> None:  # noqa: B008
        """Wait until offers of ``STEP`` have arrived at a place."""
        self.until(lambda: self.hub.n_offered(STEP.name, at) == n)

    def later(self, work: Callable[[], Any]) -> None:
        self.loop.call_soon_threadsafe(work)

    def link(
        self, name: str = "silo/a", attempt: int = 2, notes: Notes | None = None
    ) -> GrpcChannel:
        address = f"127.0.0.1:{self.serving.port}"
        channel = dial(address, channel_credentials(self.paths[name]), Metrics())
        notes = notes or Notes()
        return GrpcChannel(
            lambda: channel, address, "job", attempt, notes, notes, 120.0, random.Random(1)
        )

    def raw(self, frames: Iterator[bytes]) -> list[bytes]:
        address = f"127.0.0.1:{self.serving.port}"
        channel = dial(address, channel_credentials(self.paths["silo/a"]), Metrics())
        stub = channel.stream_stream(f"/{SERVICE}/{METHOD}", lambda b: b, lambda b: b)
        return list(stub(frames, timeout=120))

    async def answer_all(self, at: ExchangeKey, silos: tuple[str, ...] = ("a",)) -> None:
        names = tuple(Silo(s) for s in silos)
        offers = await self.hub.collect(STEP, at, silos=names)
        self.hub.answer(STEP, at, {silo: Receipt() for silo in offers})

    def close(self) -> None:
        self.do(self.serving.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
