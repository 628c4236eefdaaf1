"""The coordinator's half: forwards what parties send each other, and keeps the scores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo
from hedgerow.boosting.ports import Artefact, CoordinatorStart, JobParameters, RoundResult
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.steps import (
    EVERYONE,
    LARGE_PASSES,
    PIECE_BYTES,
    STEPS,
    CiphertextPiece,
    PartyKeys,
    PassNote,
    RelayPass,
    RelayPiece,
    RelayStep,
    SealedPiece,
    StepName,
)
from hedgerow.crypto.allocator import release_freed_memory

MOST_BYTES = 1 << 38
"""Most that a party may send in one exchange; 20 million rows under 4096-bit keys take 2^35."""
SUMMARY = "vertical.json"
"""File that the coordinator keeps of a job: who took part, which round is the best."""


async def coordinate(
    parameters: SecureBoost, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Forward what parties send each other, and yield the scores of each round."""
    silos, active = start.silos, Silo(parameters.active)
    if active not in silos:
        raise InvalidJob(f"the active party {active!r} takes no part in this job")
    parameters.validate_cohort(len(silos))
    round = 0
    if start.checkpoint is not None:
        state = json.loads(start.checkpoint)
        if state["final"]:
            return
        round = int(state["round"]) + 1
    relay = Relay(hub, silos, active, round)
    then = StepName.KEYS
    while then is not StepName.END:
        step, note = then, await relay.forward(STEPS[then])
        assert note.then is not None
        then = note.then
        if step is StepName.SCORES:
            yield _result(parameters, note, round, silos)
            round += 1
            relay.begin_round(round)


def artefact(
    parameters: SecureBoost, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return what the coordinator knows of the result: the parts are the parties'."""
    return Artefact({SUMMARY: checkpoint + b"\n"}, SUMMARY)


def _result(
    parameters: SecureBoost, note: PassNote, round: int, silos: tuple[Silo, ...]
) -> RoundResult:
    scores: dict[str, dict[str, float]] = {}
    for score in note.scores:
        scores.setdefault(score.rows.value, {})[score.metric] = score.value
    best = round if note.best_round is None else note.best_round
    final = note.then is StepName.END
    state = {
        "strategy": parameters.name,
        "active": parameters.active,
        "parties": sorted(silos),
        "round": round,
        "best_round": best,
        "final": final,
    }
    return RoundResult(round, json.dumps(state).encode(), scores, silos, final, best)


class Relay:
    """Forwards pieces, and reads notes.

    Parameters
    ----------
    parties : tuple of Silo
        All of them must take part all the time.
    active : Silo
        Whose ``then`` and scores count.
    """

    def __init__(
        self, hub: CoordinatorEndpoint, parties: tuple[Silo, ...], active: Silo, round: int = 0
    ) -> None:
        self._hub = hub
        self._parties = parties
        self._active = active
        self._at = ExchangeKey(round)

    def begin_round(self, round: int) -> None:
        """Start counting the exchanges of a round."""
        self._at = ExchangeKey(round)

    async def forward(self, step: RelayStep) -> PassNote:
        """Forward one exchange, pass by pass; return the active party's note with its next step.

        Raises
        ------
        QuorumLost
            A party is lost; names it.
        DataError
            A party ends the job, with its reason.
        OfferRejected
            A party sends without end, or the active one names no next step; names it.
        """
        passing, note = 0, PassNote()
        flows = {silo: _Flow(silo, self._parties) for silo in self._parties}
        while True:
            at = ExchangeKey(self._at.round, self._at.level, passing)
            offers = await self._hub.collect(step, at, silos=self._parties)
            for silo, offer in offers.items():
                if offer.note.refusal:
                    raise DataError(f"{silo}: {offer.note.refusal}")
                flows[silo].take(offer)
            latest = offers[self._active].note
            if latest.then is None:
                raise OfferRejected(f"{self._active} names no next step")
            note = replace(note, then=latest.then) if passing else latest
            more = any(offer.note.more for offer in offers.values())
            self._hub.answer(step, at, _replies(offers, PassNote(more, latest.then)))
            passing += 1
            if not more:
                break
        if passing >= LARGE_PASSES:
            await asyncio.to_thread(release_freed_memory)
        self._at = ExchangeKey(self._at.round, self._at.level + 1)
        return note


class _Flow:
    """What one party sends in one exchange, which must come to an end.

    Everything is cut into full pieces but for the last one, so a sender that holds an exchange open
    must send full pieces, whose number is limited.
    """

    def __init__(self, silo: Silo, parties: tuple[Silo, ...]) -> None:
        self._silo = silo
        self._receivers = {EVERYONE, *parties}
        self._ended: set[tuple[type[RelayPiece], str, int]] = set()
        self._left = MOST_BYTES

    def take(self, offer: RelayPass) -> None:
        """Raise :class:`OfferRejected` where a pass does not bring the exchange to its end."""
        if offer.note.more and not offer.pieces:
            raise OfferRejected(f"{self._silo} sent nothing and says that more follows")
        for piece in offer.pieces:
            part = piece.part if isinstance(piece, CiphertextPiece) else 0
            n_bytes = 0 if isinstance(piece, PartyKeys) else len(piece.data)
            to = (type(piece), piece.party, part)
            if piece.party not in self._receivers:
                raise OfferRejected(f"{self._silo} sent something to no party of this job")
            if to in self._ended:
                raise OfferRejected(f"{self._silo} went on after the last piece of what it sent")
            if n_bytes < PIECE_BYTES:
                self._ended.add(to)
            self._left -= n_bytes
        if self._left < 0:
            raise OfferRejected(f"{self._silo} sent more than {MOST_BYTES} bytes in one exchange")


def _replies(offers: Mapping[Silo, RelayPass], note: PassNote) -> dict[Silo, RelayPass]:
    """Return each party's pieces; parties that get the same share one reply, encoded once."""
    same: dict[tuple[RelayPiece, ...], RelayPass] = {}
    replies = {}
    for silo in offers:
        pieces = tuple(_for(silo, offers))
        replies[silo] = same.setdefault(pieces, RelayPass(pieces, note))
    return replies


def _for(silo: Silo, offers: Mapping[Silo, RelayPass]) -> Iterator[RelayPiece]:
    for sender, offer in offers.items():
        if sender == silo:
            continue
        for piece in offer.pieces:
            everyone = piece.party == EVERYONE and not isinstance(piece, SealedPiece)
            if piece.party == silo or everyone:
                yield replace(piece, party=sender)
