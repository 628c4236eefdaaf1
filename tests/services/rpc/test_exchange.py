"""The data plane over a real server with real TLS: what it takes in and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from hedgerow.api.federation.v1 import exchange_service_pb2 as pb
from hedgerow.api.federation.v1 import stacking_pb2, tensor_pb2
from hedgerow.boosting.errors import (
    JobStopped,
    OfferRejected,
    PlacePassed,
    StaleAttempt,
    Unauthorised,
    Unreachable,
)
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Receipt, Silo, Step
from hedgerow.boosting.strategies.fedxgbllr.steps import RoundVector, TrainedWeights
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.services.rpc import metering
from hedgerow.services.rpc.exchange import (
    METHOD,
    framed,
)
from hedgerow.services.rpc.link import GrpcChannel
from hedgerow.services.rpc.offer_memory import BufferQuota
from tests.services.rpc.exchange_server import Notes, Server

pytestmark = pytest.mark.process

STEP = Step("weights", Call.WEIGHTS, RoundVector, Receipt, "weights", Discloses.WEIGHTS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def weights(n: int = 10) -> RoundVector:
    return RoundVector(network=TrainedWeights(1, np.arange(n, dtype=np.float32)))


def more(n_bytes: int = 1 << 20) -> bytes:
    """Return a frame of an offer that is not its first one."""
    part = stacking_pb2.StackingPart(more=bytes(n_bytes))
    return pb.ExchangeRequest(stacking=part).SerializeToString()


def test_an_offer_meets_its_reply_and_every_byte_is_counted(server: Server) -> None:
    notes = Notes()
    answering = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(0)), server.loop)
    reply = server.link(notes=notes).exchange(STEP, ExchangeKey(0), weights(1_000_000))
    answering.result(150)
    assert reply == Receipt()
    server.until(lambda: server.calls)
    (path, count), *others = server.calls
    assert not others
    assert path.endswith("/ExchangeWeights")
    assert (count.job_id, count.silo, count.strategy) == ("job", "a", "test")
    assert count.bytes_in == sum(map(len, notes.frames[0])) > 4_000_000
    assert count.messages_in == len(notes.frames[0])


def test_waiting_frames_come_while_the_barrier_is_open(server: Server) -> None:
    link = server.link()
    done: list[Any] = []
    waiter = threading.Thread(
        target=lambda: done.append(link.exchange(STEP, ExchangeKey(0), weights())), daemon=True
    )
    waiter.start()
    registry = link.channel()._metrics.registry
    labels = {
        "service": "ExchangeService",
        "method": "ExchangeWeights",
        "direction": "down",
        "strategy": "",
    }
    server.until(lambda: (registry.get_sample_value("hedgerow_messages_total", labels) or 0) >= 3)
    server.do(server.answer_all(ExchangeKey(0)))
    waiter.join()
    assert done == [Receipt()]


def test_a_resend_is_the_same_bytes_and_gets_the_stored_reply(server: Server) -> None:
    notes = Notes()
    answering = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(0)), server.loop)
    first, second = server.link(notes=notes), server.link(notes=notes)
    assert first.exchange(STEP, ExchangeKey(0), weights()) == Receipt()
    answering.result(150)
    assert second.exchange(STEP, ExchangeKey(0), weights()) == Receipt()
    assert notes.frames[0] == notes.frames[1]


def test_a_passed_place_and_a_stale_attempt_are_told_apart(server: Server) -> None:
    answering = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(4)), server.loop)
    server.link().exchange(STEP, ExchangeKey(4), weights())
    answering.result(150)
    with pytest.raises(PlacePassed):
        server.link("silo/b").exchange(STEP, ExchangeKey(3), weights())
    with pytest.raises(StaleAttempt):
        server.link(attempt=1).exchange(STEP, ExchangeKey(5), weights())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("silo/stranger", "stranger is not on the roster"),
        ("operator", "role silo"),
        ("coordinator", "role silo"),
    ],
)
def test_only_silos_of_the_roster_may_offer(server: Server, name: str, message: str) -> None:
    with capture_logs() as events:
        with pytest.raises(Unauthorised, match=message):
            server.link(name).exchange(STEP, ExchangeKey(0), weights())
        server.until(lambda: any(e["event"] == "a call was refused" for e in events))
    role, _, own = name.partition("/")
    (event,) = (e for e in events if e["event"] == "a call was refused")
    assert event["log_level"] == "warning"
    told = {key: event[key] for key in ("method", "code", "reason", "role")}
    assert told == {
        "method": STEP.call.value if role == "silo" else METHOD,
        "code": "PERMISSION_DENIED",
        "reason": "UNAUTHORISED",
        "role": role,
    }
    assert event["name"].startswith(own)


def test_an_offer_by_the_wrong_call_names_both(server: Server) -> None:
    wrong = Step("weights", Call.SUMS, RoundVector, Receipt, "weights", Discloses.WEIGHTS)
    link = server.link()
    failures: list[Exception] = []

    def offer() -> None:
        try:
            link.exchange(wrong, ExchangeKey(0), weights())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    server.offered()
    with pytest.raises(Exception, match=r"a \(step 'weights' travels by ExchangeWeights"):
        server.do(server.answer_all(ExchangeKey(0)))
    thread.join()
    assert isinstance(failures[0], OfferRejected)
    of_a = {"method": Call.SUMS.value, "silo": "a"}
    value = server.metrics.registry.get_sample_value
    server.until(lambda: value("hedgerow_rejected_offers_total", of_a) == 1)


def key_frame(**change: Any) -> bytes:
    key = {"job_id": "job", "attempt": 2, "step": "weights", "kind": 9, "frames": 64} | change
    return bytes(pb.ExchangeRequest(key=key).SerializeToString())


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([b""], "first frame of an offer must have a StepKey"),
        ([b"\xff" * 40], "not an ExchangeRequest"),
        ([key_frame(job_id="")], "first frame of an offer must have a StepKey"),
        ([key_frame(), b"\xff\xfe" * 500], "not an ExchangeRequest"),
        ([key_frame(), key_frame()], "expected frames"),
        ([key_frame(kind=0)], "0 is no kind of exchange"),
        ([key_frame(kind=99)], "99 is no kind of exchange"),
    ],
)
def test_malformed_streams_are_refused_with_what_was_expected(
    server: Server, frames: list[bytes], message: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(iter(frames))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in (caught.value.details() or "")


def test_64_mib_of_garbage_is_refused_at_its_first_frame(server: Server) -> None:
    def garbage() -> Iterator[bytes]:
        yield key_frame()
        for _ in range(64):
            yield bytes([0xFF]) * (1 << 20)

    with pytest.raises(grpc.RpcError) as caught:
        server.raw(garbage())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    server.until(lambda: server.calls)
    assert server.calls[0][1].bytes_in < 8 << 20


def test_a_silo_off_the_job_s_roster_is_refused_before_its_offer_is_read(server: Server) -> None:
    server.hub = Barrier((Silo("b"),), (Silo("b"),), 20.0)
    frame = more()

    def offer() -> Iterator[bytes]:
        yield key_frame()
        for _ in range(64):
            yield frame

    with pytest.raises(grpc.RpcError) as caught:
        server.raw(offer())
    assert "a is not on the roster of this job" in (caught.value.details() or "")
    server.until(lambda: server.calls)
    assert server.calls[0][1].bytes_in < 8 << 20


def test_unfinished_streams_of_a_silo_are_bounded_together(
    server: Server,
) -> None:
    server.servicer._memory = memory = BufferQuota(3 << 20)
    held = threading.Event()

    def frames(n: int) -> Iterator[bytes]:
        yield key_frame(frames=n + 1)
        part = stacking_pb2.StackingPart()
        part.vector.network.weights.type = tensor_pb2.ELEMENT_TYPE_FLOAT32
        part.vector.network.weights.shape.append(n << 18)
        yield pb.ExchangeRequest(stacking=part).SerializeToString()
        for _ in range(n):
            yield more()

    def hanging() -> Iterator[bytes]:
        yield from frames(2)
        held.wait(120.0)

    thread = threading.Thread(target=lambda: server.raw(hanging()), daemon=True)
    thread.start()
    server.until(lambda: memory.held(Silo("a")) >= 2 << 20)
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(frames(2))
    assert "offers of a that wait take over 3145728 bytes of memory (max_silo_bytes)" in (
        caught.value.details() or ""
    )
    held.set()
    server.do(server.answer_all(ExchangeKey(0)))
    thread.join()


def test_frames_with_nothing_in_them_are_bounded_too(
    server: Server,
) -> None:
    server.servicer._memory = memory = BufferQuota(1 << 16)
    empty = more(0)

    def offer() -> Iterator[bytes]:
        yield key_frame(frames=1000)
        for _ in range(1000):
            yield empty

    with pytest.raises(grpc.RpcError) as caught:
        server.raw(offer())
    assert "take over 65536 bytes" in (caught.value.details() or "")
    assert memory.held(Silo("a")) == 0


def test_a_frame_over_the_message_limit_is_refused(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(iter([b"\x00" * (5 << 20)]))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_stopping_a_link_ends_its_exchange_at_once(server: Server) -> None:
    link = server.link()
    failures: list[Exception] = []

    def offer() -> None:
        try:
            link.exchange(STEP, ExchangeKey(0), weights())
        except JobStopped as error:
            failures.append(error)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    server.offered()
    link.stop("cancelled")
    thread.join()
    assert [str(f) for f in failures] == ["cancelled"]


def test_an_ended_attempt_ends_open_exchanges_with_its_reason(server: Server) -> None:
    link = server.link()
    failures: list[Exception] = []

    def offer() -> None:
        try:
            link.exchange(STEP, ExchangeKey(0), weights())
        except JobStopped as error:
            failures.append(error)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    server.offered()
    server.later(lambda: server.hub.end(JobStopped("cancelled by olga")))
    thread.join()
    assert [str(f) for f in failures] == ["cancelled by olga"]


def test_stopping_a_link_ends_its_wait_for_a_coordinator_that_is_away(server: Server) -> None:
    link = server.link()
    pauses = link.rng = Pauses()
    server.do(server.serving.stop(0.0))
    failures: list[Exception] = []

    def offer() -> None:
        try:
            link.exchange(STEP, ExchangeKey(0), weights())
        except JobStopped as error:
            failures.append(error)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    server.until(lambda: pauses.asked)
    link.stop("a newer attempt has started")
    thread.join(60.0)
    assert [str(f) for f in failures] == ["a newer attempt has started"]


class Pauses(random.Random):
    """Draws an hour where a link waits before it sends again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append(b)
        return 3600.0


def test_nobody_there_is_unreachable_after_the_deadline(server: Server) -> None:
    link = server.link()
    link.timeout_seconds = 0.5
    server.do(server.serving.stop(0.0))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        link.exchange(STEP, ExchangeKey(0), weights())


def exchanges(server: Server, link: GrpcChannel, *rounds: int) -> None:
    for at in map(ExchangeKey, rounds):
        answering = asyncio.run_coroutine_threadsafe(server.answer_all(at), server.loop)
        assert link.exchange(STEP, at, weights()) == Receipt()
        answering.result(150)


def test_one_stream_carries_a_link_s_exchanges_and_each_is_counted(server: Server) -> None:
    link, notes = server.link(), Notes()
    link.ledger = notes
    exchanges(server, link, 0, 1, 2)
    stream = link._stream
    assert stream is not None
    value = server.metrics.registry.get_sample_value
    assert value("hedgerow_calls_open", {"method": METHOD}) == 1
    link.close()
    server.until(lambda: value("hedgerow_calls_open", {"method": METHOD}) == 0)
    assert [path.rpartition("/")[2] for path, _ in server.calls] == [STEP.call.value] * 3
    assert [c.bytes_in for _, c in server.calls] == [sum(map(len, f)) for f in notes.frames]
    found = value("hedgerow_calls_total", {"method": STEP.call.value, "code": "OK"})
    assert (found, value("hedgerow_calls_total", {"method": METHOD, "code": "OK"})) == (3, 0)
    sent = {"service": "ExchangeService", "method": STEP.call.value, "strategy": ""}
    for way, n_bytes in (
        ("up", sum(count.bytes_in for _, count in server.calls)),
        ("down", sum(count.bytes_out for _, count in server.calls)),
    ):
        mine = link.channel()._metrics.registry.get_sample_value(
            "hedgerow_message_bytes_total", {**sent, "direction": way}
        )
        assert mine == n_bytes > 0


def test_an_exchange_that_fails_ends_its_stream_and_the_next_opens_another(server: Server) -> None:
    link = server.link()
    exchanges(server, link, 4)
    first = link._stream
    link.attempt = 1
    with pytest.raises(StaleAttempt):
        link.exchange(STEP, ExchangeKey(5), weights())
    link.attempt = 2
    exchanges(server, link, 5, 6)
    assert link._stream is not first


def test_an_open_stream_takes_no_offer_once_the_certificate_has_expired(server: Server) -> None:
    link = server.link()
    exchanges(server, link, 0)
    server.years = 100.0
    with pytest.raises(Unauthorised, match="certificate of silo a has expired"):
        link.exchange(STEP, ExchangeKey(1), weights())
    assert server.hub.n_offered(STEP.name, ExchangeKey(1)) == 0


def test_a_renewed_certificate_s_channel_gets_a_stream_of_its_own(server: Server) -> None:
    link, renewed = server.link(), server.link()
    exchanges(server, link, 0)
    first = link._stream
    link.channel = renewed.channel
    exchanges(server, link, 1)
    assert first is not None
    assert link._stream is not first
    server.until(lambda: not first.call.is_active())


def test_a_stream_that_breaks_at_a_barrier_is_opened_again_with_the_same_bytes(
    server: Server,
) -> None:
    notes = Notes()
    link = server.link(notes=notes)
    exchanges(server, link, 0)
    replies: list[Any] = []
    thread = threading.Thread(
        target=lambda: replies.append(link.exchange(STEP, ExchangeKey(1), weights())), daemon=True
    )
    thread.start()
    server.offered(1, ExchangeKey(1))
    server.do(server.serving.stop(0.0))
    server.do(server.listen(server.serving.port))
    server.do(server.answer_all(ExchangeKey(1)))
    thread.join()
    assert replies == [Receipt()]
    assert len(notes.frames) > 2
    assert all(frames == notes.frames[1] for frames in notes.frames[2:])


def test_an_exchange_ends_at_its_deadline_though_the_coordinator_lives(server: Server) -> None:
    link = server.link()
    link.timeout_seconds = 0.5
    with pytest.raises(Unreachable, match="no answer before the deadline"):
        link.exchange(STEP, ExchangeKey(1), weights())


def test_a_reply_to_another_exchange_is_refused(server: Server) -> None:
    link = server.link()
    late = framed("scores", ExchangeKey(0), [])
    other = framed("weights", ExchangeKey(0), [more(0)])
    with pytest.raises(OfferRejected, match="expected the reply to step 'weights'"):
        link._reply(STEP, ExchangeKey(0), iter(late))
    with pytest.raises(OfferRejected, match="expected frames '' from the coordinator"):
        link._reply(STEP, ExchangeKey(0), iter(other))
    with pytest.raises(Unreachable, match="ended before the reply"):
        link._reply(
            STEP, ExchangeKey(0), iter(framed("weights", ExchangeKey(0), [bytes(1 << 17)])[:1])
        )


def test_one_serialisation_serves_all_silos(server: Server) -> None:
    exchanges(server, server.link(), 0)
    (replies,) = server.servicer._replies.values()
    reply = weights(100_000)
    first = replies.of(reply)
    assert replies.of(reply) is first
    assert replies.of(weights(100_000)) is not first
    server.hub = Barrier((), (), 1.0)
    server.until(lambda: gc.collect() >= 0 and not server.servicer._replies)


def test_an_offer_that_a_broken_connection_cut_short_is_not_taken_in(server: Server) -> None:
    whole = Notes()
    answering = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(0)), server.loop)
    server.link(notes=whole).exchange(STEP, ExchangeKey(0), weights(1_000_000))
    answering.result(150)
    frames = whole.frames[0]
    assert len(frames) > 2
    cut = pb.ExchangeRequest.FromString(frames[0])
    cut.key.round = 1
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(iter([cut.SerializeToString(), *frames[1:-1]]))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.hub.n_offered(STEP.name, ExchangeKey(1)) == 0


def test_a_server_says_that_it_serves_until_its_loop_hangs_or_it_ends(server: Server) -> None:
    def says() -> float | None:
        return server.metrics.registry.get_sample_value("hedgerow_serving")

    said = []

    async def hung() -> None:
        """Look as a probe would whom nobody has renewed the pulse for: nothing else runs here."""
        server.metrics.pulse = time.monotonic() - metering.PULSE_SECONDS
        said.append(says())

    assert says() == 1.0
    server.do(hung())
    assert said == [0.0]
    server.until(says)
    server.do(server.serving.stop(0.1))
    assert says() == 0.0
    server.do(server.listen(0))
    assert says() == 1.0
