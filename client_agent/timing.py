"""How a silo spends its time in a job: training, waiting, cryptography, sending, the ledger."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hedgerow.services.rpc.link import LinkTimes


class Stopwatch:
    """Seconds spent in blocks; those of several threads add up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds of a block."""
        began = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self.seconds += self._clock() - began


def summary(attempt: int, total: float, link: LinkTimes, crypto: float) -> bytes:
    """Return ``times.json``: seconds of a silo's half by what they went into; see file-formats.md.

    Parameters
    ----------
    total : float
        Seconds from the agreement to the end of the silo's half.
    crypto : float
        Seconds in the vault: keys, masks, encryption.
    """
    training = max(total - link.waiting - link.sending - link.recording - crypto, 0.0)
    split = {
        "train": training,
        "wait": link.waiting,
        "encrypt": crypto,
        "send": link.sending,
        "ledger": link.recording,
    }
    report = {"schema": 1, "attempt": attempt, "seconds": round(total, 6)}
    report |= {name: round(seconds, 6) for name, seconds in split.items()}
    return json.dumps(report, indent=1).encode()
