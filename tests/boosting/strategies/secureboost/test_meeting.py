"""Keys of vertical parties: hybrid where both have ML-KEM, and nobody strips that unnoticed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import FederationError, OfferRejected, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.strategies.secureboost import SecureBoost, steps
from hedgerow.boosting.strategies.secureboost.coordinator import Relay
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.meeting import meet
from hedgerow.boosting.strategies.secureboost.steps import (
    PartyKeys,
    RelayPass,
    RowDigest,
    SealedPiece,
    StepName,
)
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.services.wire import BoxCodec
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation.memory import MemoryLink

PARTIES = (Silo("a"), Silo("b"))
SCHEMA = Schema((Feature("x"),), "y", Task.BINARY, 2)
Change = Callable[[Silo, PartyKeys], PartyKeys]


def older(keys: PartyKeys) -> PartyKeys:
    return replace(keys, kem_key=b"", kem_signature=b"")


def run(
    change: Change = lambda receiver, keys: keys, require_hybrid: bool = False
) -> tuple[dict[str, Any], list[dict[Silo, RelayPass]]]:
    """Let two parties meet and exchange two boxes each; ``change`` alters what one receives."""
    results: dict[str, Any] = {}
    seen: list[dict[Silo, RelayPass]] = []
    authority = Authority()

    class Altering(MemoryLink):
        def exchange(self, step: Any, at: Any, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            pieces = (
                change(self.silo, piece) if isinstance(piece, PartyKeys) else piece
                for piece in reply.pieces
            )
            return replace(reply, pieces=tuple(pieces))

    class Watching(Barrier):
        async def collect(self, *arguments: Any, **options: Any) -> Any:
            offers = await super().collect(*arguments, **options)
            seen.append(offers)
            return offers

    async def main() -> None:
        hub = Watching(PARTIES, PARTIES, 200.0)
        loop = asyncio.get_running_loop()

        def party(silo: Silo) -> None:
            link = Altering(silo, hub, loop, through_wire=True)
            courier = SealedChannel(link, silo, b"job", BoxCodec(), os.urandom)
            courier.active = "a"
            data = Dataset(SCHEMA, np.zeros((4, 1), np.float32), np.zeros(4))
            start = SiloStart(
                JobParameters("job", SecureBoost("a")), "job", 1, silo, PARTIES, SCHEMA, data,
                identity=TestIdentity(authority, silo), require_hybrid=require_hybrid,
            )  # fmt: skip
            (other,) = set(PARTIES) - {silo}
            active = silo == "a"
            try:
                meet(courier, start, "a", then=StepName.SPLITS if active else None)
                for then in (StepName.SPLITS, StepName.END):
                    sent = courier.send(
                        steps.SPLITS,
                        boxes={other: RowDigest(silo.encode())},
                        then=then if active else None,
                    )
                    results[silo] = sent.read(other, RowDigest).digest
            except Exception as error:
                results[silo] = error
                loop.call_soon_threadsafe(hub.drop, silo, "refused")

        threads = [threading.Thread(target=party, args=(silo,)) for silo in PARTIES]
        for thread in threads:
            thread.start()
        relay = Relay(hub, PARTIES, Silo("a"))
        try:
            await relay.forward(steps.KEYS)
            while (await relay.forward(steps.SPLITS)).then is not StepName.END:
                pass
        except FederationError as error:
            hub.end(error)
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    asyncio.run(main())
    return results, seen


def box_sizes(seen: list[dict[Silo, RelayPass]]) -> list[int]:
    return [
        len(piece.data)
        for offers in seen
        for piece in offers[PARTIES[0]].pieces
        if isinstance(piece, SealedPiece)
    ]


def test_parties_with_ml_kem_keys_seal_with_them_and_the_first_box_brings_the_ciphertext() -> None:
    results, seen = run(require_hybrid=True)
    assert results == {"a": b"b", "b": b"a"}
    first, second = box_sizes(seen)
    assert first == second + 1088


def test_parties_of_which_one_is_of_an_older_release_seal_by_x25519() -> None:
    results, seen = run(lambda receiver, keys: older(keys))  # as both would see it
    assert results == {"a": b"b", "b": b"a"}
    first, second = box_sizes(seen)
    assert first == second


def test_a_relay_that_takes_one_ml_kem_key_off_ends_the_job() -> None:
    results, _ = run(lambda receiver, keys: older(keys) if receiver == "a" else keys)
    assert any(isinstance(error, OfferRejected) for error in results.values())
    assert b"a" not in results.values()


def test_a_relay_that_puts_in_another_ml_kem_key_is_found_out() -> None:
    results, _ = run(lambda receiver, keys: replace(keys, kem_key=bytes(1184)))
    assert all(isinstance(error, SignatureInvalid) for error in results.values())


def test_a_policy_that_requires_ml_kem_refuses_a_party_without() -> None:
    results, _ = run(lambda receiver, keys: older(keys), require_hybrid=True)
    assert all("require_hybrid: no ML-KEM key came" in str(error) for error in results.values())
