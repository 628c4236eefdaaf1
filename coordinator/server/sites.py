"""Scripts that run one job together: who they are, and that all of them sign the same statement.

Nothing here needs trust: a silo starts only what it has signed itself, with signatures of all
sites that the statement names, and its nonce is made of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hedgerow.boosting.errors import InvalidJob, StaleAttempt
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.changes import Changes
from hedgerow.services.rpc.federation import Arrival, Gathered
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import (
    NONCE_BYTES,
    JobStatement,
    SignedJob,
    Site,
    SiteSignature,
    read_statement,
)

MOST_SITES = 10_000


@dataclass
class _Proposals:
    """What the sites of one turn have signed."""

    turn: int
    statements: dict[str, tuple[bytes, SiteSignature]] = field(default_factory=dict)
    refusal: str = ""


class Sites:
    """The scripts that are there.

    Parameters
    ----------
    alive : callable
        Silos that hold a lease.
    roster_size : callable
        How many silos the federation has; 0 where there is no roster.
    """

    def __init__(
        self, alive: Callable[[], Mapping[Silo, object]], roster_size: Callable[[], int]
    ) -> None:
        self._alive, self._roster_size = alive, roster_size
        self._changes = Changes()
        self._coming: dict[Silo, Arrival] = {}
        self._refused: dict[Silo, tuple[bytes, str]] = {}
        self._gathered: dict[Silo, Gathered] = {}
        self._proposed: dict[tuple[Site, ...], _Proposals] = {}

    async def gather(self, silo: Silo, arrival: Arrival, timeout_seconds: float) -> Gathered:
        """Return all sites, or in time those that have come.

        Raises
        ------
        InvalidJob
            Two of them do not go together.
        """
        size, rank = arrival.world_size or self._roster_size(), arrival.rank
        if not size or size > MOST_SITES or len(arrival.nonce) != NONCE_BYTES:
            raise InvalidJob(
                f"{silo}: expected a world size of at most {MOST_SITES} and {NONCE_BYTES} random "
                f"bytes, received {size or 'none, and the federation has no roster'}"
            )
        if rank is not None and rank >= size:
            raise InvalidJob(f"{silo}: rank {rank} is not below the world size of {size}")
        own, deadline = Site(silo, arrival.nonce), time.monotonic() + timeout_seconds
        while True:
            nonce, why = self._refused.get(silo, (b"", ""))
            if nonce == arrival.nonce:
                del self._refused[silo]
                raise InvalidJob(why)
            found = self._gathered.get(silo)
            if found is not None and own in found.sites:
                return found
            self._come(silo, arrival, size)
            remaining = deadline - time.monotonic()
            if own in self._gathered.get(silo, Gathered()).sites or silo in self._refused:
                continue
            if remaining <= 0.0:
                return Gathered(here=tuple(sorted(self._coming)))
            await self._changes.wait(min(remaining, 1.0))

    def _come(self, silo: Silo, arrival: Arrival, size: int) -> None:
        """Note who has come; settle the sites where all have, or that they do not go together."""
        alive = self._alive()
        self._coming = {s: one for s, one in self._coming.items() if s in alive} | {silo: arrival}
        for other, one in self._coming.items():
            theirs = one.world_size or self._roster_size()
            why = ""
            if theirs != size:
                why = f"world_size: {silo} says {size}, {other} says {theirs}"
            elif other != silo and one.rank is not None and one.rank == arrival.rank:
                why = f"rank: {silo} and {other} both say {one.rank}"
            if why:
                self._refused |= {s: (own.nonce, why) for s, own in self._coming.items()}
                self._coming = {}
                self._changes.notify()
                return
        if len(self._coming) < size:
            return
        stated = {one.rank: s for s, one in self._coming.items() if one.rank is not None}
        others = iter(sorted(self._coming.keys() - set(stated.values())))
        order = [stated[r] if r in stated else next(others) for r in range(size)]
        sites = tuple(Site(s, self._coming[s].nonce) for s in order)
        ends = min(one.not_after for one in self._coming.values())
        for s in order:
            self._leave(s)
            self._gathered[s] = Gathered(sites, ends)
        self._coming = {}
        self._changes.notify()

    def _leave(self, silo: Silo) -> None:
        """Forget the sites that a silo was one of before, where nobody is left of them."""
        before = self._gathered.pop(silo, None)
        if before is not None and not any(
            one.sites == before.sites for one in self._gathered.values()
        ):
            self._proposed.pop(before.sites, None)

    async def propose(
        self,
        silo: Silo,
        statement: JobStatement,
        own: tuple[bytes, SiteSignature],
        timeout_seconds: float,
    ) -> SignedJob | tuple[str, ...]:
        """Return the job that all sites have signed, or in time the names of those that have.

        Parameters
        ----------
        own : tuple
            The statement's bytes, which are ``silo``'s, and its signature, both checked.

        Raises
        ------
        InvalidJob
            The sites are not those that have come together, or two of them say different things.
        """
        sites, deadline = statement.sites, time.monotonic() + timeout_seconds
        if self._gathered.get(silo, Gathered()).sites != sites:
            raise StaleAttempt(f"{silo}: these sites have not come together here: join again")
        asked = self._proposed.get(sites)
        if asked is None or asked.turn < statement.turn:
            asked = self._proposed[sites] = _Proposals(statement.turn)
        if asked.turn > statement.turn:
            raise InvalidJob(
                f"{silo} is at job {statement.turn} of this script, the others are at {asked.turn}"
            )
        asked.statements[silo] = own
        for other, (data, _) in sorted(asked.statements.items()):
            if data != own[0] and not asked.refusal:
                theirs = read_statement(data, f"the statement of {other}")
                asked.refusal = differing(silo, statement, other, theirs)
        self._changes.notify()
        while not asked.refusal and len(asked.statements) < len(sites):
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return tuple(sorted(asked.statements))
            await self._changes.wait(remaining)
        if asked.refusal:
            raise InvalidJob(asked.refusal)
        signatures = tuple(asked.statements[site.silo][1] for site in sites)
        return SignedJob(own[0], b"", b"", signatures)


def differing(silo: str, own: JobStatement, other: str, theirs: JobStatement) -> str:
    """Return in what the statements of two scripts differ; of a job the first key."""
    found = job_file.difference(own.spec, theirs.spec)
    if found is not None:
        key, here, there = found
        return f"the scripts differ in {key}: {silo} says {here}, {other} says {there}"
    for name in ("not_after", "view_version", "turn", "federation"):
        here, there = str(getattr(own, name)), str(getattr(theirs, name))
        if here != there:
            return f"the scripts differ in {name}: {silo} says {here}, {other} says {there}"
    return f"the statements of {silo} and {other} differ: are their versions the same?"
