"""Scripts that run one job together: who they are, and that all of them sign the same statement.

Nothing here needs trust: a silo starts only what it has signed itself, with signatures of all
sites that the statement names, and its nonce is made of theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hedgerow.boosting.errors import InvalidJob, LimitReached, StaleAttempt
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.artefacts import StorageFailed
from hedgerow.coordinator.server.changes import Changes
from hedgerow.services.rpc.federation import Arrival, Gathered, Proposed
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import (
    LEAST_SITES,
    MOST_SITES,
    NONCE_BYTES,
    JobStatement,
    SignedJob,
    SignedSite,
    SiteSignature,
)

MOST_JOB_BYTES = (4 << 20) - (1 << 16)
"""What one message holds: the largest job, with a signature and certificate of each site."""
SITE_BYTES = 80
"""What a site adds besides, with the longest name."""
LEAST_SECONDS = 60.0
"""How long a site's jobs may begin after it has come, at least."""


@dataclass
class _Proposed:
    """A statement, its signatures of those who wait, and what has become of it in the end."""

    statement: JobStatement
    data: bytes
    signatures: dict[str, SiteSignature] = field(default_factory=dict)
    signers: set[str] = field(default_factory=set)
    """All who have signed it, those who gave up among them."""
    refusal: str = ""
    made: asyncio.Task[str] | None = None


@dataclass
class _Turns:
    """The jobs of some sites: the last turn that is over, why if it was refused, and the next."""

    over: int = 0
    refusal: str = ""
    next: _Proposed | None = None

    def end(self, turn: int, refusal: str = "") -> None:
        if self.next is not None:
            self.next.refusal = refusal
        self.over, self.refusal, self.next = turn, refusal, None


class Sites:
    """The scripts that are there.

    Parameters
    ----------
    alive : callable
        Silos that hold a lease.
    roster_size : callable
        How many silos the federation has; 0 where there is no roster.
    create : callable
        Starts a job that all its sites have signed; returns its identifier.
    now : callable
        Seconds since 1970.
    """

    def __init__(
        self,
        alive: Callable[[], Mapping[Silo, object]],
        roster_size: Callable[[], int],
        create: Callable[[SignedJob], Awaitable[str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._alive, self._roster_size = alive, roster_size
        self._create, self._now = create, now
        self._changes = Changes()
        self._coming: dict[Silo, tuple[int, Arrival]] = {}
        self._gathered: dict[Silo, Gathered] = {}
        self._nonces: dict[Silo, bytes] = {}
        self._turns: dict[tuple[SignedSite, ...], _Turns] = {}

    async def gather(self, silo: Silo, arrival: Arrival, timeout_seconds: float) -> Gathered:
        """Return all sites, or in time those that have come and say the same number of sites.

        Raises
        ------
        InvalidJob
            It does not go together with those that have come before.
        """
        size, rank = arrival.world_size or self._roster_size(), arrival.rank
        if not LEAST_SITES <= size <= MOST_SITES or len(arrival.nonce) != NONCE_BYTES:
            raise InvalidJob(
                f"{silo}: expected a world size of {LEAST_SITES} to {MOST_SITES} and {NONCE_BYTES} "
                f"random bytes, received {size or 'none, and the federation has no roster'}"
            )
        if rank is not None and rank >= size:
            raise InvalidJob(f"{silo}: rank {rank} is not below the world size of {size}")
        left = (arrival.not_after or 0.0) - self._now()
        if not left >= LEAST_SECONDS:
            raise InvalidJob(
                f"{silo}: expected jobs that may begin for {LEAST_SECONDS:g} s at least, by the "
                f"coordinator's clock they may for {left:.0f} s: is its certificate about to end, "
                "or its clock wrong?"
            )
        deadline = time.monotonic() + timeout_seconds
        if self._nonces.get(silo) != arrival.nonce:
            self._come(silo, arrival, size)
        while self._nonces.get(silo) != arrival.nonce:
            remaining, there = deadline - time.monotonic(), self._coming.get(silo)
            if remaining <= 0.0 or there != (size, arrival):  # its lease ended, or another run came
                return Gathered(here=tuple(sorted(self._with(size))))
            await self._changes.wait(min(remaining, 1.0))
        return self._gathered[silo]

    def _with(self, size: int) -> dict[Silo, Arrival]:
        """Return who waits for as many sites."""
        return {silo: one for silo, (n, one) in self._coming.items() if n == size}

    def _come(self, silo: Silo, arrival: Arrival, size: int) -> None:
        """Note who has come; settle the sites where all have."""
        alive = self._alive()
        self._coming = {s: one for s, one in self._coming.items() if s in alive and s != silo}
        coming = self._with(size)
        for other, one in coming.items():
            if one.rank is not None and one.rank == arrival.rank:
                raise InvalidJob(f"rank: {silo} says {one.rank}, as {other} has said before")
        self._coming[silo], coming[silo] = (size, arrival), arrival
        if len(coming) < size:
            return
        stated = {one.rank: s for s, one in coming.items() if one.rank is not None}
        others = iter(sorted(coming.keys() - set(stated.values())))
        order = [stated[r] if r in stated else next(others) for r in range(size)]
        found = Gathered(
            tuple(SignedSite(s, coming[s].nonce) for s in order),
            min(one.not_after for one in coming.values()),
        )
        for s in order:
            self._leave(s)
            self._gathered[s], self._nonces[s] = found, coming[s].nonce
            del self._coming[s]
        self._changes.notify()

    def _leave(self, silo: Silo) -> None:
        """Forget the sites that a silo was one of before, where nobody is left of them."""
        before = self._gathered.pop(silo, None)
        if before is not None and not any(
            self._gathered.get(Silo(one.silo)) is before for one in before.sites
        ):
            self._turns.pop(before.sites, None)

    async def propose(
        self,
        silo: Silo,
        statement: JobStatement,
        own: tuple[bytes, SiteSignature],
        timeout_seconds: float,
    ) -> Proposed:
        """Return the job that all sites have signed, or in time the names of those that have.

        A job begins only while the calls of all its sites wait for it.

        Parameters
        ----------
        own : tuple
            The statement's bytes, which are ``silo``'s, and its signature, both checked.

        Raises
        ------
        InvalidJob
            The sites are not those that have come together, or two of them say different things.
        """
        sites, (data, signature) = statement.sites, own
        if self._gathered.get(silo, Gathered()).sites != sites:
            raise StaleAttempt(f"{silo}: these sites have not come together here: join again")
        turns = self._turns.setdefault(sites, _Turns())
        deadline = time.monotonic() + timeout_seconds
        if statement.turn <= turns.over:
            if statement.turn == turns.over and turns.refusal:
                raise InvalidJob(turns.refusal)
            raise InvalidJob(
                f"{silo} is at job {statement.turn} of this script, the others are at {turns.over}"
            )
        asked = turns.next
        if asked is None or (data != asked.data and asked.signatures.keys() <= {silo}):
            asked = turns.next = _Proposed(statement, data)
        if data != asked.data:
            other = min(asked.signatures.keys() - {silo})
            refusal = differing(silo, statement, other, asked.statement)
            turns.end(min(statement.turn, asked.statement.turn), refusal)
        else:
            asked.signatures[silo] = signature
            asked.signers.add(silo)
            if len(asked.signatures) == len(sites):
                self._settle(turns, asked)
        self._changes.notify()
        try:
            while not asked.refusal and asked.made is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0.0:
                    return Proposed("", tuple(sorted(asked.signers)))
                await self._changes.wait(remaining)
            if asked.made is None:
                raise InvalidJob(asked.refusal)
            return Proposed(await asyncio.shield(asked.made))
        finally:
            if asked.signatures.get(silo) is signature:
                del asked.signatures[silo]
            if turns.next is asked and not asked.signatures:
                turns.next = None

    def _settle(self, turns: _Turns, asked: _Proposed) -> None:
        """Start the job that all its sites have signed."""
        turn, sites = asked.statement.turn, asked.statement.sites
        signatures = tuple(asked.signatures[site.silo] for site in sites)
        each = (len(one.signature) + len(one.certificate) + SITE_BYTES for one in signatures)
        n_bytes = len(asked.data) + sum(each)
        if n_bytes > MOST_JOB_BYTES:
            turns.end(
                turn,
                f"expected a job of at most {MOST_JOB_BYTES} bytes with the certificates of its "
                f"{len(sites)} sites, received {n_bytes}",
            )
            return
        # A task of its own: a caller that disconnects takes it from no other.
        signed = SignedJob(asked.data, b"", b"", signatures)
        asked.made = asyncio.create_task(self._make(turns, turn, signed))
        asked.made.add_done_callback(lambda made: made.cancelled() or made.exception())
        turns.end(turn)

    async def _make(self, turns: _Turns, turn: int, signed: SignedJob) -> str:
        try:
            return await self._create(signed)
        except (LimitReached, StorageFailed):  # the same may be asked again
            turns.over = min(turns.over, turn - 1)
            raise


def differing(silo: str, own: JobStatement, other: str, theirs: JobStatement) -> str:
    """Return in what the statements of two scripts differ; of a job the first key."""
    if own.turn != theirs.turn:
        (low, behind), (high, ahead) = sorted(((own.turn, silo), (theirs.turn, other)))
        return f"{ahead} is ahead, at job {high} of this script, {behind} is at job {low}"
    found = job_file.difference(own.spec, theirs.spec)
    if found is not None:
        key, here, there = found
        return f"the scripts differ in {key}: {silo} says {here}, {other} says {there}"
    for name in ("not_after", "view_version", "federation"):
        here, there = str(getattr(own, name)), str(getattr(theirs, name))
        if here != there:
            return f"the scripts differ in {name}: {silo} says {here}, {other} says {there}"
    return f"the statements of {silo} and {other} differ: are their versions the same?"
