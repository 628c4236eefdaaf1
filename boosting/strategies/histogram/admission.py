"""When silos enter a job: together, with fresh keys, before a round that all of them start."""

from __future__ import annotations

from collections.abc import Mapping

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo
from hedgerow.boosting.strategies.histogram.steps import (
    ENTER,
    AfterRound,
    EntryRequest,
    EntryRound,
    KnownTrees,
    RoundEnd,
    RoundEntry,
    RowsScored,
    TrainingState,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums


class Membership:
    """Counts the rounds of a job and lets silos in between them.

    Parameters
    ----------
    sums : CoordinatorSums
        Its setup gives the silos that enter their keys.
    rounds : int
        Of the whole job.
    largest_silo : int or None
        Rows of the largest silo, for silos that enter before the first round.

    Attributes
    ----------
    round : int
        The round that is played, or comes next.
    over : bool
        Whether there is no further round.
    opens : bool
        Whether silos enter before that round.
    """

    def __init__(
        self,
        hub: CoordinatorEndpoint,
        sums: CoordinatorSums,
        rounds: int,
        least_silos: int,
        largest_silo: int | None = None,
    ) -> None:
        self._hub = hub
        self._largest = largest_silo
        self._sums = sums
        self._rounds = rounds
        self._least = least_silos
        self._door = ExchangeKey(0)
        self._ended = -1  # the last round whose end the silos know
        self._invited: set[int] = set()
        self._waiting: set[Silo] = set()  # at the last door, for one of their group
        self._told = False  # whether silos that come are told the model of a job that is over
        self.round = 0
        self.over = False
        self.opens = True

    def resume(self, round_: int) -> None:
        """Go on from a round after a restart, or after a round that nobody plays."""
        self.round, self._ended = round_, round_ - 1
        self.over = round_ >= self._rounds

    def invite(self, silo: Silo, at: ExchangeKey, offer: EntryRequest) -> EntryRound:
        """Answer a silo that starts, or was left out."""
        # The end of a round says whether silos enter before the next one. Unless they do, the
        # first entry that can still be announced is the one after.
        target = self._ended + (1 if self.opens else 2)
        if self.over or target >= self._rounds:
            return EntryRound(self.round if self._told else None)
        usable = self._sums.usable({*self._hub.silos, silo})
        if silo not in usable:
            self._waiting.add(silo)
            self._hub.drop(silo, "its group is not complete")  # what waits for it looks again
            return EntryRound(self._rounds)  # a door that nobody opens
        for other in sorted(self._waiting.intersection(usable)):
            self._waiting.discard(other)
            if other != silo:
                self._hub.dismiss(ENTER, other)  # its group is complete: it asks again
        self._invited.add(target)
        return EntryRound(target)

    async def gather(self) -> dict[Silo, int]:
        """Wait for all present silos to enter; return how many rounds each knows."""
        self._door = ExchangeKey(self.round)
        known = await self._hub.collect(
            ENTER, self._door, read=_known, quorum=max(self._least, 1), except_for=self._waiting
        )
        self.opens = False
        self._invited.discard(self.round)
        for silo in self._hub.silos:
            if silo not in known and silo not in self._waiting:
                self._hub.drop(silo, "it was late for this entry; it can enter at the next one")
        return known

    async def let_in(
        self, known: Mapping[Silo, int], scored: RowsScored, state: TrainingState | None
    ) -> None:
        """Give silos what they lack, and fresh keys."""
        complete = RoundEntry(scored, self.round, None, self._largest)
        lacking = RoundEntry(scored, self.round, state, self._largest)
        entries = {silo: complete if n == self.round else lacking for silo, n in known.items()}
        self._hub.answer(ENTER, self._door, entries)
        await self._sums.setup(ExchangeKey(self.round), tuple(known))

    def tell(self, scored: RowsScored, state: TrainingState | None) -> None:
        """Give silos that come after the last round its model: they check the result by it."""
        self._told, entry = True, RoundEntry(scored, None, state)
        self._hub.serve(ENTER, lambda silo, at, offer: entry)

    def end_round(self, *, stop: bool) -> RoundEnd:
        """Decide what follows the round, for the silos' last reply in it."""
        self._ended = self.round
        self.over = stop or self.round + 1 >= self._rounds
        self.opens = not self.over and bool(self._sums.joining or self.round + 1 in self._invited)
        if self.over:
            return RoundEnd(AfterRound.END)
        return RoundEnd(AfterRound.ENTRY if self.opens else AfterRound.ROUND)


def _known(silo: Silo, offer: KnownTrees) -> int:
    if offer.rounds < 0:
        raise OfferRejected(f"rounds: expected at least 0, received {offer.rounds}")
    return offer.rounds
