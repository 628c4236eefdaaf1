"""What a job waits for: one record, whose words GetJob, watch, the metrics and the log use."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.artefacts import StorageFailed

ANSWERS, SILOS, STORE = "answers to the job", "silos", "its store"
APPROVALS = "approvals"
"""What an attempt waits for before it starts, and at any time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 4.0
"""Seconds before the store is retried; doubled each time."""
MOST_SILOS_NAMED = 12
"""Silos that a line names."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who is awaited, for what, and since when."""

    what: str
    """``answers to the job``, a step of a round, or ``its store``."""
    since: float
    """Seconds since 1970."""
    silos: tuple[Silo, ...] = ()
    """Who is awaited; empty where it is not a silo."""
    why: str = ""
    """What is known of the reason; may be empty."""
    urgent: bool = False
    """Whether people want to know it at once: it needs somebody to act."""

    @property
    def of_store(self) -> bool:
        """Whether the coordinator's own database or artefact store is what is awaited."""
        return self.what == STORE

    def __str__(self) -> str:
        """Return one line for people."""
        who = f"{named(self.silos)}: " if self.silos else ""
        why = f" ({self.why})" if self.why else ""
        return f"waits since {clock_of(self.since)} for {who}{self.what}{why}"


def explained(
    waiting: Waiting, there: Collection[Silo], without_crypto: Collection[Silo], least: int
) -> Waiting:
    """Return what a job waits for, with what is known of the silos that it waits for.

    Parameters
    ----------
    there : collection of Silo
        Silos that hold a lease.
    without_crypto : collection of Silo
        Those of them whose crypto process does not answer.
    least : int
        How few silos the job can run with.
    """
    missing = [silo for silo in waiting.silos if silo not in there]
    whys = [waiting.why] if waiting.why else []
    if waiting.what == SILOS and len(there) < least:
        whys.append(f"{len(there)} of at least {least} hold a lease")
    elif waiting.what == ANSWERS and missing and not waiting.why:
        whys.append(f"no agent of {named(missing)} is there")
    urgent = bool(whys) and waiting.what in (SILOS, ANSWERS)
    mute = [silo for silo in waiting.silos if silo in without_crypto]
    if mute:
        whys.append(f"the crypto process of {named(mute)} does not answer")
    return replace(waiting, why="; ".join(whys), urgent=urgent)


def named(silos: Sequence[Silo]) -> str:
    """Return the names of silos; of many the first, and how many more."""
    shown, more = ", ".join(silos[:MOST_SILOS_NAMED]), len(silos) - MOST_SILOS_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def by_reason(whys: Mapping[Silo, str]) -> list[tuple[str, str]]:
    """Return each reason once, after the names of the silos that have it."""
    return [
        (named(sorted(silo for silo, own in whys.items() if own == why)), why)
        for why in dict.fromkeys(whys.values())
    ]


def clock_of(seconds: float) -> str:
    """Return a time, seconds since 1970, as people read it."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def situation(waiting: Iterable[Waiting | None], last_end: str) -> str:
    """Return what a job waits for and why its last attempt ended, in one line."""
    parts = [str(one) for one in waiting if one is not None]
    return "; ".join([*parts, last_end] if last_end else parts)


class StorePatience:
    """How often a store that fails is retried, and how long; for any thread.

    Parameters
    ----------
    seconds : float
        The job's own deadline for anything it waits for.
    """

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._pause = FIRST_PAUSE
        self.waiting: Waiting | None = None

    @property
    def over(self) -> bool:
        """Whether the store has failed for longer than the deadline."""
        waiting = self.waiting
        return waiting is not None and self._now() - waiting.since > self._seconds

    def failed(self, error: Exception, *, for_ever: bool = False) -> float:
        """Note a failure; returns how many seconds to wait before the next try.

        Raises
        ------
        StorageFailed
            The deadline has passed; never where it is tried ``for_ever``.
        """
        waiting = self.waiting
        since = self._now() if waiting is None else waiting.since
        why = str(error) if isinstance(error, StorageFailed) else type(error).__name__
        self.waiting = Waiting(STORE, since, why=why)
        if self.over and not for_ever:
            raise error
        pause, self._pause = self._pause, min(2.0 * self._pause, LONGEST_PAUSE)
        return pause

    def worked(self) -> None:
        """Note that the store has worked."""
        self.waiting, self._pause = None, FIRST_PAUSE
