"""Questions and answers over the relay: what it sees, and what is not answered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hedgerow.api.serving.v1 import relay_service_pb2 as pb
from hedgerow.api.serving.v1 import relay_service_pb2_grpc as pb_grpc
from hedgerow.boosting.errors import (
    FederationError,
    LimitReached,
    OfferRejected,
    SignatureInvalid,
    Unauthorised,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.peers import FileIdentity, channel_credentials, server_credentials
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.errors import from_rpc
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.relay import MAX_PARCEL_BYTES, MOST_STREAMS, RelayServicer
from hedgerow.services.rpc.sealed import (
    HalfOpenSession,
    ScoringClient,
    ScoringResponder,
    answer_opening,
)
from hedgerow.services.rpc.server import serve
from hedgerow.services.wire.answers import Answer, Question
from tests.federation.processes import wait_until

pytestmark = pytest.mark.process

MODEL = bytes(range(32))
SECRET = "the customer 4711"
DIRECTIONS = b"\xa5" * 16  # of two rows; so long that no box has them by chance


class Relay:
    """A coordinator's relay on loopback; keeps the bytes of all that it forwards."""

    def __init__(self, folder: Path) -> None:
        self.paths = throwaway(folder, ["bank", "registry", "stranger", "mallory"], time.time())
        self.seen: list[pb.Parcel] = []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.do(self._open())

    async def _open(self) -> None:
        self.servicer = RelayServicer(self._admit)
        end_type = type(self.servicer._join(Silo("nobody"), False))
        self.servicer._asking.clear()
        give, seen = end_type.give, self.seen

        def keeping(end: Any, parcel: pb.Parcel) -> bool:
            seen.append(pb.Parcel.FromString(parcel.SerializeToString()))
            return give(end, parcel)

        end_type.give = keeping  # type: ignore[method-assign]
        self._restore = lambda: setattr(end_type, "give", give)
        credentials = server_credentials(self.paths["coordinator"])
        self.serving = await serve(
            "127.0.0.1:0", [self.servicer.register], Metrics(by_silo=True), credentials
        )

    def _admit(self, silo: Silo) -> None:
        if silo == "stranger":
            raise Unauthorised(f"{silo} is not on the roster")

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(150)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.serving.port}"

    def identity(self, silo: str) -> FileIdentity:
        return FileIdentity(self.paths[f"silo/{silo}"])

    def of(self, silo: str) -> tuple[Any, str, Any]:
        """Channel, address and identity of a silo's end."""
        channel = dial(self.address, channel_credentials(self.paths[f"silo/{silo}"]), Metrics())
        identity = self.identity(silo)
        return (lambda: channel), self.address, (lambda: identity)

    def raw(self, silo: str, *frames: pb.RelayRequest) -> str:
        """Return how a stream of frames ends."""
        stub = pb_grpc.RelayServiceStub(self.of(silo)[0]())
        with pytest.raises(grpc.RpcError) as failed:
            list(stub.Relay(iter(frames), timeout=60))
        return str(from_rpc(failed.value, "there"))

    def close(self) -> None:
        self._restore()
        self.do(self.serving.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    made = Relay(tmp_path_factory.mktemp("relay"))
    yield made
    made.close()


def test_a_question_is_answered_and_the_relay_reads_neither(relay: Relay) -> None:
    asked: list[tuple[str, Question]] = []

    def answer(asker: str, question: Question) -> Answer:
        asked.append((asker, question))
        return Answer(DIRECTIONS, 64, (1,))

    registry = ScoringResponder(
        *relay.of("registry"), lambda asker: asker == "bank", answer
    ).start()
    bank = ScoringClient(*relay.of("bank"), ("registry", "nobody")).start()
    try:
        wait_until(lambda: bank.away("registry") is None, 20, "a session")
        assert bank.away("nobody") is not None
        with pytest.raises(FederationError, match="nobody is away"):
            bank.ask("nobody", Question(MODEL, ()))
        question = Question(MODEL, (SECRET, "b"))
        found = bank.ask("registry", question).result(60)
        assert found == Answer(DIRECTIONS, 64, (1,))
        assert asked == [("bank", question)]
        forwarded = b"".join(parcel.SerializeToString() for parcel in relay.seen)
        for secret in (SECRET.encode(), MODEL, DIRECTIONS):
            assert secret not in forwarded
        boxes = [parcel for parcel in relay.seen if parcel.WhichOneof("content") == "box"]
        assert len({len(parcel.box) for parcel in boxes[:1]}) == 1

        # The coordinator, or who has its place, sends the question again.
        end = relay.servicer._answering["registry"]
        relay.loop.call_soon_threadsafe(end.give, boxes[0])
        assert bank.ask("registry", question).result(60) == found
        assert len(asked) == 2

        mallory = ScoringClient(*relay.of("mallory"), ("registry",)).start()
        seen = len(relay.seen)
        wait_until(
            lambda: any(p.party == "mallory" for p in relay.seen[seen:]), 20, "mallory's key"
        )
        assert bank.ask("registry", question).result(60) == found
        assert mallory.away("registry") is not None
        mallory.stop()

        # Another process of the silo takes over: sessions of the first are gone, new ones are made.
        first = bank._parties["registry"].session
        again = ScoringResponder(*relay.of("registry"), lambda _: True, answer).start()
        wait_until(lambda: relay.servicer._answering["registry"] is not end, 20, "taken over")
        registry.stop()
        wait_until(
            lambda: bank._parties["registry"].session not in (None, first), 20, "a new session"
        )
        assert bank.ask("registry", question).result(60) == found
        pending = bank.ask("registry", question)
        again.stop()
        assert pending.exception(60) is None or "away" in str(pending.exception())
        wait_until(lambda: bank.away("registry") is not None, 20, "away again")
    finally:
        bank.stop()
        registry.stop()


def test_keys_that_another_silo_signed_open_no_session(relay: Relay) -> None:
    opening = HalfOpenSession.of(relay.identity("bank"), "registry")
    with pytest.raises(SignatureInvalid, match="of silo bank"):
        answer_opening(relay.identity("registry"), "mallory", opening.key)
    with pytest.raises(SignatureInvalid):  # the key was for another party
        answer_opening(relay.identity("mallory"), "bank", opening.key)
    reply, _ = answer_opening(relay.identity("registry"), "bank", opening.key)
    another = HalfOpenSession.of(relay.identity("bank"), "registry")
    with pytest.raises(SignatureInvalid):  # the reply to an earlier opening
        another.finish(relay.identity("bank"), reply)


def changed(key: pb.SessionKey, **fields: bytes) -> pb.SessionKey:
    other = pb.SessionKey.FromString(key.SerializeToString())
    for name, value in fields.items():
        setattr(other, name, value)
    return other


OLDER = {"kem_key": b"", "ciphertext": b"", "kem_signature": b""}


def test_sessions_with_a_party_of_an_older_release_are_of_x25519(relay: Relay) -> None:
    bank, registry = relay.identity("bank"), relay.identity("registry")
    opening = HalfOpenSession.of(bank, "registry")
    assert len(opening.key.kem_key) == 1184
    reply, there = answer_opening(registry, "bank", changed(opening.key, **OLDER))
    assert not reply.ciphertext
    assert not reply.kem_signature
    here = opening.finish(bank, reply)
    assert there.open(1, here.seal(1, b"question")) == b"question"


def test_a_relay_alters_no_ml_kem_key_and_no_ciphertext_unnoticed(relay: Relay) -> None:
    bank, registry = relay.identity("bank"), relay.identity("registry")
    opening, other = HalfOpenSession.of(bank, "registry"), HalfOpenSession.of(bank, "registry")
    for fields in ({"kem_key": other.key.kem_key}, {"kem_signature": b""}):
        with pytest.raises(SignatureInvalid):
            answer_opening(registry, "bank", changed(opening.key, **fields))
    reply, there = answer_opening(registry, "bank", opening.key)
    assert len(reply.ciphertext) == 1088
    another, _ = answer_opening(registry, "bank", opening.key)
    for fields in ({"ciphertext": another.ciphertext}, {"kem_signature": b""}):
        with pytest.raises(SignatureInvalid):
            opening.finish(bank, changed(reply, **fields))
    without = opening.finish(bank, changed(reply, **OLDER))
    with pytest.raises(OfferRejected, match="does not open"):
        there.open(1, without.seal(1, b"question"))


def test_boxes_count_once_in_their_direction_and_place(relay: Relay) -> None:
    opening = HalfOpenSession.of(relay.identity("bank"), "registry")
    reply, there = answer_opening(relay.identity("registry"), "bank", opening.key)
    here = opening.finish(relay.identity("bank"), reply)
    box = here.seal(3, b"question")
    assert there.open(3, box) == b"question"
    for number, opened, given in (
        (4, there, box),
        (3, here, box),
        (3, there, box[:-1] + bytes([box[-1] ^ 1])),
    ):
        with pytest.raises(OfferRejected, match="does not open"):
            opened.open(number, given)


@pytest.mark.parametrize(
    ("silo", "frames", "said"),
    [
        ("stranger", [pb.RelayRequest(join=pb.Join())], "not on the roster"),
        ("bank", [pb.RelayRequest(parcel=pb.Parcel(box=b"x"))], "expected a Join"),
        ("bank", [], "expected a Join"),
        ("bank", [pb.RelayRequest(join=pb.Join())] * 2, "expected a parcel"),
        (
            "bank",
            [pb.RelayRequest(join=pb.Join()), pb.RelayRequest(parcel=pb.Parcel(away=pb.Away()))],
            "expected a parcel",
        ),
        (
            "bank",
            [
                pb.RelayRequest(join=pb.Join()),
                pb.RelayRequest(parcel=pb.Parcel(party="a", box=bytes(MAX_PARCEL_BYTES))),
            ],
            "expected a parcel",
        ),
    ],
)
def test_streams_of_strangers_and_without_sense_end(
    relay: Relay, silo: str, frames: list[pb.RelayRequest], said: str
) -> None:
    assert said in relay.raw(silo, *frames)


def test_an_end_that_does_not_read_holds_a_bounded_number_of_bytes(relay: Relay) -> None:
    async def fill() -> int:
        end = relay.servicer._join(Silo("bank"), False)
        parcel = pb.Parcel(party="a", box=bytes(1 << 20))
        taken = sum(end.give(parcel) for _ in range(40))
        relay.servicer._leave(end)
        return taken

    assert relay.do(fill()) == 15


def test_a_silo_asks_on_a_bounded_number_of_streams(relay: Relay) -> None:
    async def many() -> None:
        ends = [relay.servicer._join(Silo("bank"), False) for _ in range(MOST_STREAMS)]
        with pytest.raises(LimitReached, match="bank asks on 64 streams"):
            relay.servicer._join(Silo("bank"), False)
        relay.servicer._leave(relay.servicer._join(Silo("mallory"), False))
        for end in ends:
            relay.servicer._leave(end)

    relay.do(many())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff", "no question"),
        (Question(b"short", ()).encode(), "32 bytes"),
        (Question(MODEL, ("x" * 257,)).encode(), "over 256"),
        (Question(MODEL, ("",) * 65_537).encode(), "65537 rows"),
    ],
)
def test_questions_that_are_none_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(OfferRejected, match=f"mallory.*{said}"):
        Question.decode(data, "mallory")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        Answer(b"ab", 8).encode(),
        Answer(b"abc", 8, (3,)).encode(),
        Answer(b"a", 0).encode(),
    ],
)
def test_answers_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(OfferRejected, match="mallory"):
        Answer.decode(data, "mallory", 3)
    assert Answer.decode(Answer(refusal="no", later=True).encode(), "b", 3).refusal == "no"
