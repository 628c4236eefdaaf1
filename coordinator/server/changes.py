"""Waking those that wait for a change, however many changes and waiters there are."""

from __future__ import annotations

import asyncio
from contextlib import suppress

LEAST_SECONDS = 0.05
"""Time between two wakings. A first change wakes at once; of a thousand silos' answers to a job,
each of which all the others wait for, many share one."""


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
