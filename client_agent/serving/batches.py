"""Requests that come while others are under way ask the other parties together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hedgerow.boosting.strategies.secureboost.divisions import Bits

MOST_RUNNING = 2
"""Batches under way: one is asked about while the last one's answers are read."""


@dataclass(frozen=True, slots=True)
class PartyBits:
    """What other parties have answered about rows."""

    bits: Mapping[str, Bits]
    """Directions by party, each (n_rows, n_divisions)."""
    unknown: Mapping[int, str]
    """Why a row cannot be scored, by its position."""
    away: str = ""
    """Why there are no directions, where the active party scores without them."""

    def part(self, start: int, stop: int) -> PartyBits:
        """Return what is of some of the rows."""
        unknown = {k - start: why for k, why in self.unknown.items() if start <= k < stop}
        bits = {party: own[start:stop] for party, own in self.bits.items()}
        return PartyBits(bits, unknown, self.away)


Waiting = tuple[Sequence[str], asyncio.Future[PartyBits]]


class Batches:
    """Asks about the rows of many requests at a time; waits for no further ones.

    Parameters
    ----------
    run : callable
        Identifiers to what the parties answer.
    most_rows : int
        Of a batch; a request of more goes alone.
    """

    def __init__(
        self, run: Callable[[Sequence[str]], Awaitable[PartyBits]], most_rows: int
    ) -> None:
        self._run, self._most_rows = run, most_rows
        self._waiting: list[Waiting] = []
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, ids: Sequence[str]) -> PartyBits:
        """Return what the parties answer about rows."""
        future: asyncio.Future[PartyBits] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, future))
        self._pump()
        return await future

    def _pump(self) -> None:
        while self._waiting and len(self._running) < MOST_RUNNING:
            taken, n_rows = 0, 0
            for ids, _ in self._waiting:
                if taken and n_rows + len(ids) > self._most_rows:
                    break
                taken, n_rows = taken + 1, n_rows + len(ids)
            batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
            task = asyncio.create_task(self._together(batch))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._pump()

    async def _together(self, batch: list[Waiting]) -> None:
        try:
            found = await self._run([i for ids, _ in batch for i in ids])
        except Exception as error:  # every request of the batch ends with it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        start = 0
        for ids, future in batch:
            if not future.done():
                future.set_result(found.part(start, start + len(ids)))
            start += len(ids)
