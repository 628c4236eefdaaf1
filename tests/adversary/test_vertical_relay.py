"""A coordinator that alters, repeats, swaps or forges the boxes that it forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.strategies.secureboost.silo import participate
from hedgerow.boosting.strategies.secureboost.steps import (
    CiphertextPiece,
    RelayPass,
    RelayPiece,
    SealedPiece,
    StepName,
)
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.services.wire import BoxCodec
from tests.adversary.test_vertical import refused, run
from tests.federation.memory import MemoryLink

ENGINE = Engine(workers=1)
Sent = dict[str, Any]


Alter = Callable[[list[RelayPiece], list[tuple[RelayPiece, ...]]], list[RelayPiece]]


def tampering(victim: str, step: StepName, round: int, alter: Alter) -> type[MemoryLink]:
    """Return links at which the coordinator alters what it forwards to a party in a step."""
    before: list[tuple[RelayPiece, ...]] = []

    class Tampered(MemoryLink):
        def exchange(self, at_step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply: RelayPass = super().exchange(at_step, at, offer)
            if self.silo != victim or at_step.name != step.value:
                return reply
            pieces = reply.pieces
            if at.round == round:
                reply = replace(reply, pieces=tuple(alter(list(pieces), before)))
            before.append(pieces)
            return reply

    return Tampered


def flip(pieces: list[RelayPiece], _: Any) -> list[RelayPiece]:
    return [
        replace(p, data=bytes([p.data[0] ^ 1]) + p.data[1:])
        if isinstance(p, CiphertextPiece)
        else p
        for p in pieces
    ]


def doubled(pieces: list[RelayPiece], _: Any) -> list[RelayPiece]:
    """Repeat one ciphertext in place of the next: valid ones, of other rows."""
    return [
        replace(p, data=p.data[:128] * 2 + p.data[256:]) if isinstance(p, CiphertextPiece) else p
        for p in pieces
    ]


ALTERED: dict[str, tuple[Alter, str]] = {
    "a bit of a ciphertext": (flip, "the box does not open"),
    "valid ciphertexts of other rows": (doubled, "the box does not open"),
    "no ciphertexts": (
        lambda pieces, _: [p for p in pieces if not isinstance(p, CiphertextPiece)],
        "the box does not open",
    ),
    "no box": (
        lambda pieces, _: [p for p in pieces if not isinstance(p, SealedPiece)],
        "sent ciphertexts without a seal",
    ),
    "ciphertexts of an earlier tree": (
        lambda pieces, before: [
            *(p for p in pieces if isinstance(p, SealedPiece)),
            *(p for p in before[0] if isinstance(p, CiphertextPiece)),
        ],
        "the box does not open",
    ),
    "all of an earlier tree": (lambda _, before: list(before[0]), "the box does not open"),
}


@pytest.mark.parametrize("kind", ALTERED)
@pytest.mark.parametrize(
    ("victim", "sender", "step"),
    [("host-1", "guest", StepName.GRADIENTS), ("guest", "host-1", StepName.HISTOGRAMS)],
)
def test_what_a_coordinator_alters_or_repeats_is_refused(
    kind: str, victim: str, sender: str, step: StepName
) -> None:
    alter, said = ALTERED[kind]
    outcome = run(make_link=tampering(victim, step, 1, alter))
    refused(outcome, f"{victim}: ", victim)
    assert sender in str(outcome.error)
    assert said in str(outcome.error)


def test_a_box_in_the_name_of_another_party_is_refused() -> None:
    def renamed(pieces: list[RelayPiece], _: Any) -> list[RelayPiece]:
        other = {"host-1": "host-2", "host-2": "host-1"}
        return [replace(p, party=other[p.party]) for p in pieces]

    outcome = run((2, 2, 2), make_link=tampering("guest", StepName.HISTOGRAMS, 0, renamed))
    refused(outcome, "guest: from host-", "guest")


def test_a_coordinator_cannot_end_a_job_before_the_active_party_does() -> None:
    class Early(MemoryLink):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            reply: RelayPass = super().exchange(step, at, offer)
            if self.silo == "host-1" and step.name == "scores":
                reply = replace(reply, note=replace(reply.note, then=StepName.END))
            return reply

    outcome = run(make_link=Early)
    assert isinstance(outcome.errors["host-1"], OfferRejected)  # type: ignore[index]
    assert "from guest: the box does not open" in str(outcome.errors["host-1"])  # type: ignore[index]
    assert not any(outcome.kept.values())


def test_a_coordinator_that_shows_parties_different_jobs_brings_them_no_common_keys() -> None:
    """The digest of the job is in the roots of all boxes, and in what each party signs."""

    def other_job(parameters: Any, link: Any, vault: Any, start: Any) -> Any:
        digest = str(start.silo).encode()
        return participate(parameters, link, vault, replace(start, job_digest=digest))

    outcome = run(participate_as=other_job)
    assert "the box does not open" in str(outcome.error)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "noise": lambda data: bytes(range(256))[: len(data)],
    "cut off": lambda data: data[: len(data) // 2],
    "a field of another type": lambda data: b"\x0a\xff\xff\xff\xff\x0f" + data,
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize(
    ("sender", "victim", "content"),
    [("guest", "host-1", "TreeGradients"), ("host-1", "guest", "CandidateSums")],
)
def test_malformed_content_in_a_sealed_box_is_refused_with_its_sender(
    kind: str, sender: str, victim: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party seals with its own keys what no decoder reads."""
    dump = BoxCodec.dump

    def damaging(self: BoxCodec, payload: object) -> bytes:
        data = dump(self, payload)
        return DAMAGED[kind](data) if type(payload).__name__ == content else data

    monkeypatch.setattr(BoxCodec, "dump", damaging)
    outcome = run()
    refused(outcome, f"{victim}: {sender}", victim)
