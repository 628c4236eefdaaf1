"""How much memory the offers of silos take until they are read."""

from __future__ import annotations

import threading

from hedgerow.boosting.errors import LimitReached
from hedgerow.boosting.exchange import Silo

SILO_BYTES = 1 << 30
ALL_BYTES = 2 << 30


class OfferMemory:
    """What offers take in memory from their first frame until they are read, counted as held.

    Parameters
    ----------
    silo_bytes : int
        Most of one silo.
    all_bytes : int
        Most of all silos.
    """

    def __init__(self, silo_bytes: int = SILO_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._silo_bytes = silo_bytes
        self._all_bytes = all_bytes
        self._held: dict[Silo, int] = {}
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
            if sum(self._held.values()) + n_bytes > self._all_bytes:
                raise LimitReached(
                    f"offers of all silos that wait take over {self._all_bytes} bytes of memory "
                    "(max_waiting_bytes)"
                )
            self._held[silo] = own

    def give(self, silo: Silo, n_bytes: int) -> None:
        """Count bytes of a silo no more."""
        with self._lock:
            left = self._held.pop(silo, 0) - n_bytes
            if left > 0:
                self._held[silo] = left

    def held(self, silo: Silo) -> int:
        """Return what is counted for a silo."""
        return self._held.get(silo, 0)
