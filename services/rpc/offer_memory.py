"""How much memory offers take until they are read, and results until they are sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

from hedgerow.boosting.errors import LimitReached
from hedgerow.boosting.exchange import Silo

Piece = TypeVar("Piece")

SILO_BYTES = 1 << 30
ALL_BYTES = 2 << 30
MOST_PIECES = 32
"""Pieces of results, of at most 1 MiB, that are being sent at a time."""
TURN_SECONDS = 5.0
"""How long a result waits, once, for pieces that are not read."""


class BufferQuota:
    """What offers take in memory from their first frame until they are read, counted as held."""

    def __init__(self, silo_bytes: int = SILO_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._silo_bytes = silo_bytes
        self._all_bytes = all_bytes
        self._held: dict[Silo, int] = {}
        self._total = 0
        self._lock = threading.Lock()  # offers are read in threads

    def take(self, silo: Silo, n_bytes: int) -> None:
        """Count bytes of a silo's offer.

        Raises
        ------
        LimitReached
            They are too many, and are not counted; names the limit.
        """
        with self._lock:
            own = self._held.get(silo, 0) + n_bytes
            if own > self._silo_bytes:
                raise LimitReached(
                    f"offers of {silo} that wait take over {self._silo_bytes} bytes of memory "
                    "(max_silo_bytes)"
                )
            if self._total + n_bytes > self._all_bytes:
                raise LimitReached(
                    f"offers of all silos that wait take over {self._all_bytes} bytes of memory "
                    "(max_waiting_bytes)"
                )
            self._held[silo] = own
            self._total += n_bytes

    def give(self, silo: Silo, n_bytes: int) -> None:
        """Count bytes of a silo no more."""
        with self._lock:
            held = self._held.pop(silo, 0)
            left = max(held - n_bytes, 0)
            self._total -= held - left
            if left:
                self._held[silo] = left

    def held(self, silo: Silo) -> int:
        """Return what is counted for a silo."""
        return self._held.get(silo, 0)


class SendLimiter:
    """Bounds how many pieces are being sent; silos that read none hold each result up once."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_PIECES)

    async def paced(self, pieces: Iterable[Piece]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a result, each in a turn; without one once a wait was in vain."""
        held = True
        for piece in pieces:
            if held:
                try:
                    async with asyncio.timeout(TURN_SECONDS):
                        await self._free.acquire()
                except TimeoutError:
                    held = False
            try:
                yield piece
            finally:
                if held:
                    self._free.release()
