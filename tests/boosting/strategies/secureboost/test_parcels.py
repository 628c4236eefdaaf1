"""Sealed parcels between parties, and what the relay sees of them."""

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
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, FederationError, OfferRejected
from hedgerow.boosting.exchange import Call, Place, Silo, Step
from hedgerow.boosting.strategies.secureboost.courier import (
    EVERYONE,
    PASS_PIECES,
    PIECE_BYTES,
    SEALED,
    Courier,
    Parcels,
    Piece,
    Received,
    Relay,
    pack,
    padded,
    size_class,
    unpack,
    unpadded,
)
from hedgerow.coordinator.server.rendezvous import Rendezvous
from hedgerow.services.wire.parcels import decode, encode
from tests.federation.memory import MemoryLink, through_wire

STEP: Step[Parcels, Parcels] = Step("talk", Call.SPLITS, Parcels, Parcels, "nothing")
PARTIES = tuple(Silo(name) for name in ("a", "b", "c"))
Half = Callable[[Courier], Any]


def meet(halves: dict[str, Half]) -> tuple[dict[str, Any], list[dict[Silo, Parcels]], Any]:
    """Run halves against a relay; return their results, what the relay saw, and its error."""
    results: dict[str, Any] = {}
    seen: list[dict[Silo, Parcels]] = []

    class Watching(Rendezvous):
        async def collect(self, *arguments: Any, **options: Any) -> Any:
            offers = await super().collect(*arguments, **options)
            seen.append(offers)
            return offers

    async def main() -> Any:
        hub = Watching(PARTIES, PARTIES, 20.0)
        loop = asyncio.get_running_loop()

        def run(silo: Silo) -> None:
            link = MemoryLink(silo, hub, loop, through_wire=True)
            courier = Courier(link, silo, b"job", os.urandom)
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
            passed = await relay.pass_on(STEP)
            while passed.then:
                passed = await relay.pass_on(STEP)
        except FederationError as error:
            failure = error
            hub.end(error)
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        return failure

    return results, seen, asyncio.run(main())


def silent(courier: Courier) -> Received:
    return courier.send(STEP)


def test_boxes_reach_their_receiver_only_and_the_relay_cannot_read_them() -> None:
    secret = np.frombuffer(b"nobody else sees this text", np.uint8)

    def sends(courier: Courier) -> Received:
        return courier.send(STEP, boxes={"b": {"text": secret}}, numbers={"test.auc": 0.5})

    results, seen, _ = meet({"a": sends, "b": silent, "c": silent})
    assert results["b"].boxes["a"]["text"].tobytes() == secret.tobytes()
    assert results["c"].boxes == {}
    pieces = [piece for offers in seen for offer in offers.values() for piece in offer.pieces]
    assert pieces
    assert not any(secret.tobytes() in piece.data for piece in pieces)
    assert {piece.part for piece in pieces} == {SEALED}


def test_large_vectors_go_in_passes_of_bounded_size_and_arrive_whole() -> None:
    block = np.random.default_rng(0).integers(0, 256, (5000, 1024), dtype=np.uint8)

    def sends(courier: Courier) -> Received:
        return courier.send(STEP, ciphertexts={EVERYONE: (block, block[:10])})

    results, seen, _ = meet({"a": sends, "b": silent, "c": silent})
    for party in ("b", "c"):
        parts = results[party].ciphertexts["a"]
        assert parts == (block.tobytes(), block[:10].tobytes())
    assert len(seen) == -(-(block.nbytes // PIECE_BYTES + 2) // PASS_PIECES)
    for offers in seen:
        held = sum(len(piece.data) for offer in offers.values() for piece in offer.pieces)
        assert held <= PASS_PIECES * PIECE_BYTES * len(PARTIES)


def test_a_refusal_ends_the_job_with_its_reason() -> None:
    def sends(courier: Courier) -> None:
        courier.send(STEP, then="talk")
        courier.send(STEP)

    def refuses(courier: Courier) -> None:
        courier.send(STEP)
        courier.refuse(STEP, "this does not fit")

    def goes_on(courier: Courier) -> None:
        courier.send(STEP)
        courier.send(STEP)

    results, _, error = meet({"a": sends, "b": refuses, "c": goes_on})
    assert str(error) == "b: this does not fit"
    assert isinstance(results["c"], DataError)
    assert results["b"] is None


FULL = bytes(PIECE_BYTES)
ENDLESS: dict[str, tuple[tuple[Piece, ...], str]] = {
    "nothing": ((), "b sent nothing and says that more follows"),
    "empty pieces": ((Piece("a", 0, b""),), "b went on after the last piece"),
    "short pieces": ((Piece("a", SEALED, b"x"),), "b went on after the last piece"),
    "pieces for nobody": ((Piece("z", 0, FULL),), "b sent something to no party of this job"),
    "full pieces": ((Piece("a", 0, FULL),), "bytes in one exchange"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_party_that_sends_without_end_ends_the_job_and_is_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hedgerow.boosting.strategies.secureboost.courier.MOST_BYTES", 3 * PIECE_BYTES
    )
    pieces, why = ENDLESS[kind]

    def endless(courier: Courier) -> None:
        for passing in range(20):
            courier.link.exchange(STEP, Place(0, 0, passing), Parcels(pieces, more=True))

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


def test_arrays_come_back_as_they_were_and_objects_do_not_travel() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "x": np.arange(6).reshape(2, 3),
        "empty": np.empty(0, np.int32),
        "y": np.ones(1),
    }
    back = unpack(pack(arrays), "a")
    assert {k: (v.dtype, v.tolist()) for k, v in back.items()} == {
        k: (v.dtype, v.tolist()) for k, v in arrays.items()
    }
    with pytest.raises(ValueError, match="allow_pickle"):
        pack({"objects": np.array([{}], dtype=object)})


@given(st.binary(min_size=1, max_size=400))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_arrays_are_refused(data: bytes) -> None:
    with pytest.raises(OfferRejected, match="bob sent a box"):
        unpack(data, "bob")


def test_a_pass_survives_the_wire() -> None:
    whole = Parcels(
        (Piece("b", SEALED, b"box"), Piece(EVERYONE, 1, b"cipher")), True, "next", "", {"x.y": 0.5}
    )
    assert through_wire(whole) == whole


@pytest.mark.parametrize(
    "pieces",
    [
        tuple(Piece("b", 0, b"") for _ in range(1000)),
        (Piece("b", 0, bytes(PIECE_BYTES + 1)),),
        (Piece("b", 5000, b""),),
    ],
)
def test_passes_beyond_their_limits_are_refused(pieces: tuple[Piece, ...]) -> None:
    with pytest.raises(OfferRejected):
        decode(encode(Parcels(pieces)))


def test_frames_after_the_note_or_without_one_are_refused() -> None:
    frames = list(encode(Parcels((Piece("b", 0, b"x"),))))
    for broken in (frames[:-1], [*frames, frames[0]], []):
        with pytest.raises(OfferRejected):
            decode(broken)


def test_places_count_on_within_a_round_and_anew_in_the_next() -> None:
    seen: list[Place] = []

    class Link:
        def exchange(self, step: Any, at: Place, offer: Parcels) -> Parcels:
            seen.append(at)
            return Parcels((), False, "talk")

    courier = Courier(Link(), "a", b"job", os.urandom, 2)  # type: ignore[arg-type]
    courier.send(STEP)
    courier.send(STEP)
    courier.begin_round(3)
    courier.send(STEP)
    assert seen == [Place(2, 0), Place(2, 1), Place(3, 0)]
    assert courier.next == "talk"
