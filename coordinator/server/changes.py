"""Waking those that wait for a change, however many changes and waiters there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

LEAST_SECONDS = 0.05
"""Time between two wakings. A first change wakes at once; of a thousand silos' answers to a job,
each of which all the others wait for, many share one."""


MOST_PAUSE = 2.0
"""Seconds between two looks, at most."""

Asked = TypeVar("Asked")
Seen = TypeVar("Seen")


class Changes:
    """Something that changes; for one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._last = float("-inf")
        self._planned: asyncio.TimerHandle | None = None

    def notify(self) -> None:
        """Wake what waits: now, or soon after the last waking."""
        if self._planned is not None:
            return
        loop = asyncio.get_running_loop()
        at = self._last + LEAST_SECONDS
        if at <= loop.time():
            self._wake()
        else:
            self._planned = loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._planned, self._last = None, asyncio.get_running_loop().time()
        # Not a condition: a call that is cancelled twice while it waits would keep its lock.
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_seconds: float) -> None:
        """Wait for the next change, or until the time is over."""
        with suppress(TimeoutError):  # wait_for of Python 3.11 may lose a cancellation
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()


class Shared(Generic[Asked, Seen]):
    """Looks that are shared by all who ask before one begins; one at a time, with pauses.

    Parameters
    ----------
    look : callable
        Returns what is seen, by what was asked.
    pauses : float
        How long it pauses after a look, in times that it took.
    """

    def __init__(self, look: Callable[[Asked], Awaitable[Seen]], pauses: float) -> None:
        self._look, self._pauses = look, pauses
        self._one, self._took = asyncio.Lock(), 0.0
        self._next: asyncio.Task[Seen] | None = None
        self._asked: Asked

    async def look(self, asked: Asked, both: Callable[[Asked, Asked], Asked]) -> Seen:
        """Return what a look that begins after this call sees; ``both`` joins what two ask."""
        if self._next is None:
            self._asked, self._next = asked, asyncio.create_task(self._run())
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            self._asked = both(self._asked, asked)
        return await asyncio.shield(self._next)  # one who leaves ends it for no other

    async def _run(self) -> Seen:
        async with self._one:
            await asyncio.sleep(min(self._pauses * self._took, MOST_PAUSE))
            self._next, began = None, asyncio.get_running_loop().time()
            try:
                return await self._look(self._asked)
            finally:
                self._took = asyncio.get_running_loop().time() - began
