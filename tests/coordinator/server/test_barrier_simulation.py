"""A barrier under random operations and faults, with a mock clock.

Silo k adds ``8**k`` a round: a digit of a total that is neither 0 nor 1 is an offer counted twice
or of another round; a 0 of a silo that holds the total as its reply is one that was lost.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    OfferRejected,
    PlacePassed,
    QuorumLost,
)
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo, Step
from hedgerow.coordinator.server.arrived import ArrivedOffer
from hedgerow.coordinator.server.barrier import Barrier
from tests.adversary.arena import UrgentLoop

SILOS = tuple(Silo(f"silo-{k}") for k in range(4))
QUORUM = 2
DEADLINE_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    round: int
    value: int


@dataclass(frozen=True)
class Total:
    round: int
    value: int


STEP = Step("parts", Call.SUMS, Part, Total, "a digit", Discloses.MASKED)
WHOSE = st.sampled_from(range(len(SILOS)))


class RendezvousSimulation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = UrgentLoop()
        self.totals: dict[int, int] = {}  # by round, as the strategy has made them
        self.rounds = [0] * len(SILOS)  # of each silo's next offer
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.attempts = 0
        self.begin()

    def begin(self) -> None:
        """Start an attempt after the last round that has a total."""
        self.attempts += 1
        self.hub = Barrier(SILOS, SILOS, DEADLINE_SECONDS, now=self.loop.time)
        self.waiting.clear()
        self.first = len(self.totals)
        self.rounds = [self.first] * len(SILOS)
        self.half = self.loop.create_task(self.coordinate(self.hub))
        self.settle()

    async def coordinate(self, hub: Barrier) -> None:
        while True:
            at = ExchangeKey(len(self.totals))

            def read(silo: Silo, part: Part, at: ExchangeKey = at) -> Part:
                if part.round != at.round:
                    raise OfferRejected(f"expected round {at.round}, received {part.round}")
                return part

            parts = await hub.collect(STEP, at, quorum=QUORUM, read=read)
            self.totals[at.round] = sum(part.value for part in parts.values())
            total = Total(at.round, self.totals[at.round])
            hub.answer(STEP, at, dict.fromkeys(parts, total))

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        if self.half.done():
            if not self.half.cancelled():
                assert isinstance(self.half.exception(), QuorumLost)
            self.hub.end(JobStopped("too few silos"))
            self.begin()

    def send(self, k: int, *values: int) -> None:
        at = ExchangeKey(self.rounds[k])

        async def arrives() -> set[asyncio.Future[Any]]:  # not awaited here
            parts = [Part(at.round, value) for value in values]
            parcels = [ArrivedOffer(STEP.call, lambda _, part=part: part) for part in parts]
            return {self.hub.offer(SILOS[k], STEP.name, at, parcel) for parcel in parcels}

        try:
            (self.waiting[k],) = self.loop.run_until_complete(arrives())
        except PlacePassed:
            self.synchronise(k)
        except FederationError:
            self.waiting.pop(k, None)

    def synchronise(self, k: int) -> None:
        self.waiting.pop(k, None)
        self.rounds[k] = len(self.totals)
        self.hub.join(SILOS[k])

    @rule(k=WHOSE, resent=st.booleans())
    def offer(self, k: int, resent: bool) -> None:
        """``resent``: once more before the strategy reads it, with another content."""
        if k not in self.waiting:
            self.send(k, 8**k, *[3 * 8**k] * resent)
            self.settle()

    @rule(k=WHOSE)
    def resend_with_other_content(self, k: int) -> None:
        """The request is repeated, before or after its response; what it says now is ignored."""
        if k in self.waiting:
            before = self.waiting[k]
            self.send(k, 3 * 8**k)
            assert self.waiting.get(k) in (before, None)
            self.settle()

    @rule(k=WHOSE)
    def lose_the_response(self, k: int) -> None:
        """The silo never sees the reply and asks once more: it gets the same."""
        done = self.waiting.get(k)
        if done is not None and done.done() and done.exception() is None:
            self.send(k, 5 * 8**k)
            again = self.waiting.get(k)
            assert again is not None
            assert again.done()
            assert again.result() == done.result()

    @rule(k=WHOSE)
    def take_the_response(self, k: int) -> None:
        done = self.waiting.get(k)
        if done is None or not done.done():
            return
        del self.waiting[k]
        if done.exception() is not None:
            self.synchronise(k)
            return
        total = done.result()
        assert total.round == self.rounds[k]
        assert total.value >> (3 * k) & 7 == 1, "a silo's part is in the total that it gets, once"
        self.rounds[k] += 1

    @rule(k=WHOSE)
    def lose_the_lease(self, k: int) -> None:
        self.hub.drop(SILOS[k], "lease lost")
        self.settle()

    @rule(k=WHOSE)
    def restart_the_silo(self, k: int) -> None:
        """Its process is new: it has no offer under way, and begins at the coordinator's round."""
        self.synchronise(k)
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()

    @rule(k=WHOSE)
    def offer_of_a_past_round(self, k: int) -> None:
        """Refused, or answered as it was: what it says now is in no total."""
        at = ExchangeKey(len(self.totals) - 1)
        if at.round < self.first or k in self.waiting:
            return

        async def arrives() -> list[asyncio.Future[Any]]:
            late = ArrivedOffer(STEP.call, lambda _: Part(at.round, 7 * 8**k))
            return [self.hub.offer(SILOS[k], STEP.name, at, late)]

        try:
            (known,) = self.loop.run_until_complete(arrives())
        except PlacePassed:
            return
        assert known.done()
        assert known.exception() is not None or known.result().value == self.totals[at.round]

    @rule()
    def stranger(self) -> None:
        parcel = ArrivedOffer(STEP.call, lambda _: Part(0, 1))
        with pytest.raises(OfferRejected):
            self.hub.offer(Silo("mallory"), STEP.name, ExchangeKey(len(self.totals)), parcel)

    @precondition(lambda self: self.attempts < 6)
    @rule()
    def restart_the_coordinator(self) -> None:
        self.half.cancel()
        self.settle()

    @invariant()
    def every_total_has_each_silo_once(self) -> None:
        for round_, total in self.totals.items():
            digits = [total >> (3 * k) & 7 for k in range(len(SILOS))]
            assert set(digits) <= {0, 1}, f"round {round_}: {digits}"
            assert sum(digits) >= QUORUM
            assert total < 8 ** len(SILOS)

    @invariant()
    def memory_does_not_grow_with_rounds(self) -> None:
        assert self.hub.open_places <= 2 * len(SILOS)

    def teardown(self) -> None:
        self.half.cancel()
        self.loop.run_until_complete(asyncio.wait([self.half]))
        self.loop.close()


TestRendezvousSimulation = pytest.mark.slow(RendezvousSimulation.TestCase)
TestRendezvousSimulation.settings = settings(max_examples=60, stateful_step_count=40)


class TakesResentOffers(Barrier):
    """A barrier without the rule of resends: what arrives last is the silo's offer."""

    def offer(
        self, silo: Silo, step: str, at: ExchangeKey, parcel: ArrivedOffer[Any]
    ) -> asyncio.Future[Any]:
        last = self._last.get(silo)
        if last is not None and last[0] == (step, at) and not last[1].reply.done():
            last[1].parcel = parcel
        return super().offer(silo, step, at, parcel)


def test_the_simulation_fails_where_the_rule_of_resends_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Barrier", TakesResentOffers)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            RendezvousSimulation,
            settings=settings(max_examples=60, stateful_step_count=40, phases=[Phase.generate]),
        )
