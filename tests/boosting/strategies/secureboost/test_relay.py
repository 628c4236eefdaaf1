"""Sealed boxes between parties, and what the relay sees of them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import DataError, FederationError, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.strategies.secureboost import steps
from hedgerow.boosting.strategies.secureboost.coordinator import Relay
from hedgerow.boosting.strategies.secureboost.courier import (
    Delivery,
    SealedChannel,
    padded,
    unpadded,
)
from hedgerow.boosting.strategies.secureboost.steps import (
    EVERYONE,
    PASS_PIECES,
    PIECE_BYTES,
    CandidateSums,
    CiphertextPiece,
    PartyKeys,
    PassNote,
    RelayPass,
    RelayPiece,
    RowDigest,
    RowSet,
    SealedPiece,
    StepName,
    TableScore,
    size_class,
)
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.services.wire import BoxCodec
from hedgerow.services.wire.vertical import decode, encode
from tests.federation.memory import MemoryLink, through_wire

STEP = steps.SPLITS
AGAIN, END = StepName.SPLITS, StepName.END
PARTIES = tuple(Silo(name) for name in ("a", "b", "c"))
Half = Callable[[SealedChannel], Any]


def meet(halves: dict[str, Half]) -> tuple[dict[str, Any], list[dict[Silo, RelayPass]], Any]:
    """Run halves against a relay; return their results, what the relay saw, and its error."""
    results: dict[str, Any] = {}
    seen: list[dict[Silo, RelayPass]] = []

    class Watching(Barrier):
        async def collect(self, *arguments: Any, **options: Any) -> Any:
            offers = await super().collect(*arguments, **options)
            seen.append(offers)
            return offers

    async def main() -> Any:
        hub = Watching(PARTIES, PARTIES, 20.0)
        loop = asyncio.get_running_loop()

        def run(silo: Silo) -> None:
            link = MemoryLink(silo, hub, loop, through_wire=True)
            courier = SealedChannel(link, silo, b"job", BoxCodec(), os.urandom)
            courier.keys = {
                other: bytes(sorted((ord(silo), ord(other)))) * 16
                for other in PARTIES
                if other != silo
            }
            try:
                results[silo] = halves[silo](courier)
            except Exception as error:
                results[silo] = error

        threads = [threading.Thread(target=run, args=(silo,)) for silo in PARTIES]
        for thread in threads:
            thread.start()
        relay, failure = Relay(hub, PARTIES, Silo("a")), None
        try:
            while (await relay.forward(STEP)).then is not END:
                pass
        except FederationError as error:
            failure = error
            hub.end(error)
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        return failure

    return results, seen, asyncio.run(main())


def silent(courier: SealedChannel) -> Delivery:
    return courier.send(STEP, then=END)


def test_boxes_reach_their_receiver_only_and_the_relay_cannot_read_them() -> None:
    secret = b"nobody else sees this text"

    def sends(courier: SealedChannel) -> Delivery:
        return courier.send(STEP, boxes={"b": RowDigest(secret)}, then=END)

    results, seen, _ = meet({"a": sends, "b": silent, "c": silent})
    assert results["b"].read("a", RowDigest).digest == secret
    assert results["c"].boxes == {}
    pieces = [piece for offers in seen for offer in offers.values() for piece in offer.pieces]
    assert pieces
    assert all(isinstance(p, SealedPiece) and secret not in p.data for p in pieces)


def test_a_box_with_another_content_or_none_is_refused_and_its_sender_named() -> None:
    def sends(courier: SealedChannel) -> Delivery:
        return courier.send(STEP, boxes={"b": RowDigest(b"x")}, then=END)

    results, _, _ = meet({"a": sends, "b": silent, "c": silent})
    with pytest.raises(OfferRejected, match="a sent no CandidateSums: expected candidate_sums"):
        results["b"].read("a", CandidateSums)
    with pytest.raises(OfferRejected, match="a sent no RowDigest"):
        results["c"].read("a", RowDigest)


def test_large_vectors_go_in_passes_of_bounded_size_and_arrive_whole() -> None:
    block = np.random.default_rng(0).integers(0, 256, (5000, 1024), dtype=np.uint8)

    def sends(courier: SealedChannel) -> Delivery:
        return courier.send(STEP, ciphertexts={EVERYONE: (block, block[:10])}, then=END)

    results, seen, _ = meet({"a": sends, "b": silent, "c": silent})
    for party in ("b", "c"):
        parts = results[party].ciphertexts["a"]
        assert parts == (block.tobytes(), block[:10].tobytes())
    seals = len(PARTIES) - 1
    assert len(seen) == -(-(block.nbytes // PIECE_BYTES + 2 + seals) // PASS_PIECES)
    for offers in seen:
        held = sum(data_bytes(piece) for offer in offers.values() for piece in offer.pieces)
        assert held <= PASS_PIECES * PIECE_BYTES * len(PARTIES)


def data_bytes(piece: RelayPiece) -> int:
    assert not isinstance(piece, PartyKeys)
    return len(piece.data)


def test_a_refusal_ends_the_job_with_its_reason() -> None:
    def sends(courier: SealedChannel) -> None:
        courier.send(STEP, then=AGAIN)
        courier.send(STEP, then=AGAIN)

    def refuses(courier: SealedChannel) -> None:
        courier.send(STEP)
        courier.refuse(STEP, "this does not fit")

    def goes_on(courier: SealedChannel) -> None:
        courier.send(STEP)
        courier.send(STEP)

    results, _, error = meet({"a": sends, "b": refuses, "c": goes_on})
    assert str(error) == "b: this does not fit"
    assert isinstance(results["c"], DataError)
    assert results["b"] is None


FULL = bytes(PIECE_BYTES)
ENDLESS: dict[str, tuple[tuple[RelayPiece, ...], str]] = {
    "nothing": ((), "b sent nothing and says that more follows"),
    "empty pieces": ((CiphertextPiece("a", 0, b""),), "b went on after the last piece"),
    "short pieces": ((SealedPiece("a", b"x"),), "b went on after the last piece"),
    "pieces for nobody": (
        (CiphertextPiece("z", 0, FULL),),
        "b sent something to no party of this job",
    ),
    "full pieces": ((CiphertextPiece("a", 0, FULL),), "bytes in one exchange"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_party_that_sends_without_end_ends_the_job_and_is_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hedgerow.boosting.strategies.secureboost.coordinator.MOST_BYTES", 3 * PIECE_BYTES
    )
    pieces, why = ENDLESS[kind]

    def endless(courier: SealedChannel) -> None:
        for passing in range(20):
            offer = RelayPass(pieces, PassNote(more=True))
            courier.link.exchange(STEP, ExchangeKey(0, 0, passing), offer)

    results, seen, error = meet({"a": silent, "b": endless, "c": silent})
    assert isinstance(error, OfferRejected)
    assert why in str(error)
    assert str(error).startswith("b sent") or str(error).startswith("b went")
    assert len(seen) <= 4
    assert all(isinstance(result, FederationError) for result in results.values())


@given(st.binary(max_size=5000))
@settings(max_examples=50, deadline=None)
def test_padding_hides_lengths_within_an_eighth_and_comes_off(data: bytes) -> None:
    framed = padded(data)
    assert len(framed) == size_class(len(data) + 8)
    assert unpadded(framed, "x") == data


@given(st.integers(1, 1 << 40))
def test_a_size_class_is_at_most_an_eighth_larger(n: int) -> None:
    found = size_class(n)
    assert max(n, 256) <= found <= max(n, 256) * 9 / 8
    assert size_class(found) == found


@pytest.mark.parametrize("data", [b"", b"\xff" * 16, (9).to_bytes(8, "little") + b"short"])
def test_padding_that_lies_about_its_length_is_refused(data: bytes) -> None:
    with pytest.raises(OfferRejected, match="bob sent a box that is cut off"):
        unpadded(data, "bob")


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_a_box_keeps_the_width_of_its_numbers(dtype: type) -> None:
    content = CandidateSums(b"bits", np.arange(-2, 4, dtype=dtype).reshape(2, 3))
    back = BoxCodec().load(CandidateSums, BoxCodec().dump(content))
    assert back.sources.dtype == dtype
    assert back.sources.tolist() == content.sources.tolist()
    assert back.allowed == content.allowed


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_box_are_refused(data: bytes) -> None:
    with pytest.raises(OfferRejected):
        BoxCodec().load(CandidateSums, data)


def test_a_pass_survives_the_wire() -> None:
    whole = RelayPass(
        (
            SealedPiece("b", b"box"),
            CiphertextPiece(EVERYONE, 1, b"cipher"),
            PartyKeys(EVERYONE, b"k", b"", True, b"", b"cert", b"signature", 1),
        ),
        PassNote(True, AGAIN, "", (TableScore(RowSet.VALID, "auc", 0.5),), 3),
    )
    assert through_wire(whole) == whole
    assert through_wire(RelayPass()) == RelayPass()


@pytest.mark.parametrize(
    "pieces",
    [
        tuple(CiphertextPiece("b", 0, b"") for _ in range(1000)),
        (CiphertextPiece("b", 0, bytes(PIECE_BYTES + 1)),),
        (SealedPiece("b", bytes(PIECE_BYTES + 1)),),
        (CiphertextPiece("b", 5000, b""),),
        (PartyKeys(EVERYONE, b"k", b"", True, b"", bytes(1 << 17), b"", 0),),
    ],
)
def test_passes_beyond_their_limits_are_refused(pieces: tuple[RelayPiece, ...]) -> None:
    with pytest.raises(OfferRejected):
        decode(encode(RelayPass(pieces)))


def test_an_infinite_score_is_refused() -> None:
    score = TableScore(RowSet.TEST, "rmse", float("inf"))
    with pytest.raises(OfferRejected, match="finite"):
        decode(encode(RelayPass(note=PassNote(scores=(score,)))))


def test_frames_after_the_note_or_without_one_are_refused() -> None:
    frames = list(encode(RelayPass((CiphertextPiece("b", 0, b"x"),))))
    for broken in (frames[:-1], [*frames, frames[0]], []):
        with pytest.raises(OfferRejected):
            decode(broken)


def test_places_count_on_within_a_round_and_anew_in_the_next() -> None:
    seen: list[ExchangeKey] = []

    class Link:
        def exchange(self, step: Any, at: ExchangeKey, offer: RelayPass) -> RelayPass:
            seen.append(at)
            return RelayPass(note=PassNote(then=AGAIN))

    courier = SealedChannel(Link(), "a", b"job", BoxCodec(), os.urandom, 2)  # type: ignore[arg-type]
    courier.send(STEP)
    courier.send(STEP)
    courier.begin_round(3)
    courier.send(STEP)
    assert seen == [ExchangeKey(2, 0), ExchangeKey(2, 1), ExchangeKey(3, 0)]
    assert courier.next is AGAIN
