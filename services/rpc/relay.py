"""The relay between parties that score together: the coordinator's servicer and a party's end.

Parties dial the coordinator and keep a stream open. It forwards what they send each other and
keeps nothing; what they send is sealed (:mod:`hedgerow.services.rpc.sealed`).
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import grpc
import structlog

from hedgerow.api.serving.v1 import relay_service_pb2 as pb
from hedgerow.api.serving.v1 import relay_service_pb2_grpc as pb_grpc
from hedgerow.boosting.errors import (
    FederationError,
    LimitReached,
    OfferRejected,
    StaleAttempt,
    Unreachable,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.certificates import IdentityUnusable, Role
from hedgerow.services.identity.peers import PeerIdentity, peer_of
from hedgerow.services.process.logs import defect
from hedgerow.services.rpc.errors import aborting, from_rpc
from hedgerow.services.rpc.metering import MeteredChannel, label, settle

log = structlog.get_logger()

MAX_PARCEL_BYTES = 2 << 20
"""Longest parcel."""
MAX_WAITING_BYTES = 16 << 20
"""Most bytes that wait for an end that does not read; it counts as away beyond."""
PARCEL_BYTES = 512
"""What a parcel takes beside its bytes, while it waits."""
MOST_STREAMS = 64
"""Streams on which a silo may ask at a time: so what waits for it has at most 1 GiB."""
CREDIT_PARCELS = 256
"""After how many parcels a stream's bytes are credited."""


class _End:
    """An open stream at the coordinator, and the parcels that wait for it."""

    def __init__(self, silo: Silo, session: int) -> None:
        self.silo, self.session = silo, session
        self.replaced = False
        self._waiting: asyncio.Queue[pb.Parcel | None] = asyncio.Queue()
        self._bytes = 0

    def give(self, parcel: pb.Parcel) -> bool:
        """Queue a parcel; return whether there was room."""
        size = parcel.ByteSize() + PARCEL_BYTES
        if self._bytes + size > MAX_WAITING_BYTES:
            return False
        self._bytes += size
        self._waiting.put_nowait(parcel)
        return True

    def close(self) -> None:
        """End the stream after what waits."""
        self._waiting.put_nowait(None)

    async def parcels(self) -> AsyncIterator[pb.Parcel]:
        """Yield parcels until :meth:`close`."""
        while (parcel := await self._waiting.get()) is not None:
            self._bytes -= parcel.ByteSize() + PARCEL_BYTES
            yield parcel


class RelayServicer(pb_grpc.RelayServiceServicer):
    """Server side of RelayService.

    Parameters
    ----------
    admit : callable
        Raises Unauthorised unless a silo is on the roster.
    """

    def __init__(self, admit: Callable[[Silo], None]) -> None:
        self._admit = admit
        self._answering: dict[str, _End] = {}
        self._asking: dict[int, _End] = {}
        self._n_sessions = 0

    def register(self, server: grpc.aio.Server) -> str:
        """Add the service to ``server``."""
        pb_grpc.add_RelayServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["RelayService"].full_name

    @aborting
    async def Relay(self, frames: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Forward parcels until the party ends its stream, or another one replaces it."""
        peer = peer_of(context)
        silo = Silo(peer.require(Role.SILO))
        label(silo=silo)
        self._admit(silo)
        first = await anext(frames, None)
        if first is None or first.WhichOneof("frame") != "join":
            raise OfferRejected(f"{silo}: expected a Join as the first frame")
        end = self._join(silo, first.join.answers)
        reader = asyncio.create_task(self._read(end, frames, peer), name=f"relay {silo}")
        reader.add_done_callback(lambda _: end.close())
        try:
            moved = 0
            async for parcel in end.parcels():
                yield pb.RelayResponse(parcel=parcel)
                moved += 1
                if moved % CREDIT_PARCELS == 0:
                    settle()
            if reader.done():
                reader.result()
            elif end.replaced:
                raise StaleAttempt(f"another agent or stream of {silo} answers now")
        finally:
            reader.cancel()
            self._leave(end)

    def _join(self, silo: Silo, answers: bool) -> _End:
        if not answers:
            if sum(other.silo == silo for other in self._asking.values()) >= MOST_STREAMS:
                raise LimitReached(f"{silo} asks on {MOST_STREAMS} streams, it may have no more")
            self._n_sessions += 1
            end = self._asking[self._n_sessions] = _End(silo, self._n_sessions)
            return end
        earlier = self._answering.get(silo)
        end = self._answering[silo] = _End(silo, 0)
        if earlier is not None:
            earlier.replaced = True
            earlier.close()
            self._tell_askers(silo)  # it may be another process, which has no session
        return end

    def _tell_askers(self, silo: Silo) -> None:
        for other in self._asking.values():
            other.give(pb.Parcel(party=silo, away=pb.Away()))

    def _leave(self, end: _End) -> None:
        """Tell the other side that an end is gone."""
        if end.session:
            del self._asking[end.session]
            for other in self._answering.values():
                other.give(pb.Parcel(party=end.silo, session=end.session, away=pb.Away()))
        elif self._answering.get(end.silo) is end:
            del self._answering[end.silo]
            self._tell_askers(end.silo)

    async def _read(self, end: _End, frames: AsyncIterator[Any], peer: PeerIdentity) -> None:
        async for frame in frames:
            peer.check_time()
            parcel = frame.parcel
            if (
                frame.WhichOneof("frame") != "parcel"
                or parcel.WhichOneof("content") not in ("key", "box")
                or parcel.ByteSize() > MAX_PARCEL_BYTES
            ):
                raise OfferRejected(
                    f"{end.silo}: expected a parcel with a key or a box, of at most "
                    f"{MAX_PARCEL_BYTES} bytes"
                )
            to = parcel.party
            other = self._answering.get(to)
            if not end.session:
                other = self._asking.get(parcel.session)
            else:
                parcel.session = end.session
            parcel.party = end.silo
            if (other is None or not other.give(parcel)) and end.session:
                end.give(pb.Parcel(party=to, number=parcel.number, away=pb.Away()))


class RelayEnd:
    """A party's end of the relay: a thread keeps a stream open and hands over what arrives.

    Parameters
    ----------
    answers : bool
        Whether this end answers questions or asks them.
    receive : callable
        Gets each parcel, one after the other; must not raise.
    lost : callable
        Called when the stream has ended, before another is tried.
    """

    def __init__(
        self,
        channel: Callable[[], MeteredChannel],
        address: str,
        answers: bool,
        receive: Callable[[pb.Parcel], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._address, self._answers = channel, address, answers
        self._receive, self._lost = receive, lost
        self._frames: queue.SimpleQueue[pb.RelayRequest | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> RelayEnd:
        """Open the stream in a thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the stream."""
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()
        self._frames.put(None)
        self._thread.join(10.0)

    def send(self, parcel: pb.Parcel) -> None:
        """Send a parcel; what was sent while there is no stream is lost."""
        self._frames.put(pb.RelayRequest(parcel=parcel))

    def _run(self) -> None:
        pause, said = 0.1, ""
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._stream()
                why: FederationError | None = None
            except grpc.RpcError as error:
                why = from_rpc(error, self._address)
            except (FederationError, IdentityUnusable, OSError) as error:
                why = error if isinstance(error, FederationError) else Unreachable(str(error))
            self._lost()
            if self._stopped.is_set():
                return
            if why is not None and str(why) != said:
                said = str(why)
                log.warning("relay lost", why=said)
            if time.monotonic() - began > 10.0:
                pause, said = 0.1, ""
            self._stopped.wait(random.uniform(0.5, 1.0) * pause)  # noqa: S311
            pause = min(2.0 * pause, 2.0)

    def _stream(self) -> None:
        # A queue of its own: what was meant for an earlier session must not reach a later one.
        frames: queue.SimpleQueue[pb.RelayRequest | None] = queue.SimpleQueue()
        self._frames = frames
        frames.put(pb.RelayRequest(join=pb.Join(answers=self._answers)))

        def flow() -> Iterator[pb.RelayRequest]:
            while (frame := frames.get()) is not None:
                yield frame

        stub = pb_grpc.RelayServiceStub(cast(grpc.Channel, self._channel()))
        self._call = call = stub.Relay(flow())
        try:
            for response in call:
                try:
                    self._receive(response.parcel)
                except Exception as error:  # one parcel must not end the stream of all
                    log.error("parcel", **defect(error))
        finally:
            frames.put(None)
            call.cancel()
