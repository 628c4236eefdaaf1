"""A silo whose offers are small on the wire and large in memory, at a real data plane."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from hedgerow.api.federation.v1 import exchange_service_pb2 as pb
from hedgerow.boosting.errors import LimitReached, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Receipt, Silo
from hedgerow.services.rpc.offer_memory import BufferQuota
from hedgerow.services.wire.bounds import MAX_OBJECTS, OBJECT_BYTES, check_request
from tests.services.rpc.test_exchange import STEP, Server, key_frame, weights


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def with_lists(kind: Descriptor, depth: int = 4) -> Iterator[tuple[list[str], Message]]:
    """Yield the path to each list of objects in a message."""
    for field in kind.fields:
        if field.is_repeated and (field.message_type or field.type in (9, 12)):
            if not (field.message_type and field.message_type.GetOptions().map_entry):
                yield [field.name], GetMessageClass(kind)()
        elif field.message_type and not field.is_repeated and depth:
            for path, _ in with_lists(field.message_type, depth - 1):
                yield [field.name, *path], GetMessageClass(kind)()


def empties(number: int) -> Iterator[tuple[str, bytes]]:
    """Yield frames of an offer with so many empty values in a list."""
    for path, message in with_lists(pb.ExchangeRequest.DESCRIPTOR):
        inner = message
        for name in path[:-1]:
            inner = getattr(inner, name)
            inner.SetInParent()
        field = inner.DESCRIPTOR.fields_by_name[path[-1]]
        whole = getattr(inner, path[-1])
        if field.message_type:
            for _ in range(number):
                whole.add()
        else:
            whole.extend(["" if field.type == 9 else b""] * number)
        yield ".".join(path), message.SerializeToString()


LISTS = [name for name, _ in empties(1)]


def test_there_are_lists_to_fill() -> None:
    assert len(LISTS) > 3


@pytest.mark.parametrize("name", LISTS)
def test_empty_values_count_as_what_they_hold(server: Server, name: str) -> None:
    server.servicer._memory = BufferQuota(64 << 20)
    frame = dict(empties(40_000))[name]
    assert len(frame) < 1 << 18

    def offer() -> Iterator[bytes]:
        yield key_frame(frames=200)
        for _ in range(200):
            yield frame

    with pytest.raises(grpc.RpcError) as caught:
        server.raw(offer())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "offers of a that wait take over 67108864 bytes" in (caught.value.details() or "")
    server.until(lambda: server.calls)
    # Sent were 16 MB, and of the first frames alone 64 MB would have been held.
    assert server.calls[0][1].messages_in <= 2 + (64 << 20) // (40_000 * OBJECT_BYTES)
    assert server.servicer._memory.held(Silo("a")) == 0


def test_a_list_of_too_many_empty_values_is_refused_as_it_is_read(server: Server) -> None:
    frame = dict(empties(MAX_OBJECTS + 1))[LISTS[0]]
    with pytest.raises(grpc.RpcError, match="more than 131072 elements"):
        server.raw(iter([key_frame(), frame]))


def test_an_offer_counts_until_it_is_read_and_no_longer(server: Server) -> None:
    memory = server.servicer._memory
    threads = [
        threading.Thread(
            target=server.link(name).exchange, args=(STEP, ExchangeKey(0), weights()), daemon=True
        )
        for name in ("silo/a", "silo/b")
    ]
    for thread in threads:
        thread.start()
    server.offered(2)
    assert memory.held(Silo("a")) > OBJECT_BYTES
    server.do(server.answer_all(ExchangeKey(0), ("a", "b")))
    for thread in threads:
        thread.join()
    assert memory.held(Silo("a")) == memory.held(Silo("b")) == 0


def test_an_offer_that_is_displaced_or_ends_with_its_attempt_counts_no_longer(
    server: Server,
) -> None:
    memory = server.servicer._memory
    failures: list[Exception] = []

    def offer(at: int) -> None:
        try:
            server.link().exchange(STEP, ExchangeKey(at), weights(100_000))
        except OfferRejected as error:
            failures.append(error)

    threads = [threading.Thread(target=offer, args=(at,), daemon=True) for at in (1, 2)]
    threads[0].start()
    server.offered(1, ExchangeKey(1))
    one = memory.held(Silo("a"))
    threads[1].start()
    server.offered(1, ExchangeKey(2))
    threads[0].join()
    failures.clear()  # an error's traceback keeps what it went through
    server.until(lambda: memory.held(Silo("a")) == one)
    server.later(lambda: server.hub.end(OfferRejected("over")))
    threads[1].join()
    failures.clear()
    server.until(lambda: memory.held(Silo("a")) == 0)


def test_what_all_silos_hold_is_bounded_and_names_its_setting(server: Server) -> None:
    server.servicer._memory = BufferQuota(1 << 30, 3 << 20)
    first = threading.Thread(
        target=server.link("silo/b").exchange,
        args=(STEP, ExchangeKey(0), weights(600_000)),
        daemon=True,
    )
    first.start()
    server.offered()
    with pytest.raises(LimitReached, match="max_waiting_bytes"):
        server.link("silo/a").exchange(STEP, ExchangeKey(0), weights(600_000))
    done = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(0), ("b",)), server.loop)
    done.result(150)
    first.join()
    # What was read makes room.
    done = asyncio.run_coroutine_threadsafe(server.answer_all(ExchangeKey(1)), server.loop)
    assert server.link("silo/a").exchange(STEP, ExchangeKey(1), weights(600_000)) == Receipt()
    done.result(150)


def test_a_step_s_name_is_as_short_as_a_request_s_texts(server: Server) -> None:
    with pytest.raises(grpc.RpcError, match="step: 100000 long"):
        server.raw(iter([key_frame(step="s" * 100_000)]))
    with pytest.raises(OfferRejected, match="step: 5000 long"):
        check_request(pb.ExchangeRequest(key={"step": "s" * 5000}), 5010)
