"""Scripts that come together, and what they propose."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hedgerow.boosting.errors import FederationError, InvalidJob, StaleAttempt
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.sites import Sites
from hedgerow.services.rpc.federation import Arrival, Gathered
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import JobStatement, SignedJob, Site, SiteSignature

NAMES = tuple(map(Silo, ("north", "south", "west")))
ENDS = 2_000_000_000.0


class Meeting:
    """Sites whose silos are ``there``."""

    def __init__(self, roster_size: int = 0) -> None:
        self.there = dict.fromkeys(NAMES, None)
        self.sites = Sites(lambda: self.there, lambda: roster_size)

    async def gather(self, *given: tuple[str, Arrival], seconds: float = 5.0) -> list[object]:
        calls = (self.sites.gather(Silo(silo), own, seconds) for silo, own in given)
        return await asyncio.gather(*calls, return_exceptions=True)

    async def propose(self, *given: tuple[str, JobStatement], seconds: float = 5.0) -> list[object]:
        def call(silo: str, own: JobStatement) -> object:
            signed = SiteSignature(silo.encode(), b"")
            return self.sites.propose(Silo(silo), own, (own.serialise(), signed), seconds)

        return await asyncio.gather(*(call(*one) for one in given), return_exceptions=True)


def own(silo: str, size: int = 3, rank: int | None = None, ends: float = ENDS) -> Arrival:
    return Arrival(size, rank, silo.encode().ljust(16, b"."), ends)


def spec(depth: int = 3) -> bytes:
    return job_file.parse(f"strategy = 'histogram'\n[booster]\nmax_depth = {depth}\n")


def statement(sites: tuple[Site, ...], turn: int = 1, **changes: object) -> JobStatement:
    plain = JobStatement("fed", b"", spec(), ENDS, 1, sites, turn)
    return replace(plain, **changes).of_sites  # type: ignore[arg-type]


async def test_sites_are_in_the_order_of_their_ranks_and_else_of_their_names() -> None:
    given = [
        ("west", own("west", rank=0)),
        ("south", own("south", ends=9.0)),
        ("north", own("north")),
    ]
    found = await Meeting().gather(*given)
    sites = tuple(Site(silo, own(silo).nonce) for silo in ("west", "north", "south"))
    assert found == [Gathered(sites, 9.0)] * 3


async def test_who_comes_again_finds_the_same_sites_and_a_new_run_others() -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert await meeting.gather(("south", own("south"))) == [found]
    fresh = replace(own("south"), nonce=b"f" * 16)
    assert await meeting.gather(("south", fresh), seconds=0.0) == [Gathered(here=("south",))]


async def test_a_silo_whose_lease_has_ended_is_not_waited_for() -> None:
    meeting = Meeting(roster_size=2)
    await meeting.gather(("north", own("north", 0)), seconds=0.0)
    del meeting.there[Silo("north")]
    assert await meeting.gather(("west", own("west", 0)), seconds=0.0) == [Gathered(here=("west",))]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (own("south", 4), "world_size: south says 4, north says 3"),
        (own("south", rank=1), "rank: south and north both say 1"),
    ],
)
async def test_all_are_told_who_does_not_go_together(other: Arrival, why: str) -> None:
    found = await Meeting().gather(("north", own("north", rank=1)), ("south", other))
    assert [type(one) for one in found] == [InvalidJob] * 2
    assert {str(one) for one in found} == {why}


@pytest.mark.parametrize(
    "lie",
    [own("north", 0), own("north", 10**6), own("north", rank=3), replace(own("north"), nonce=b"")],
)
async def test_numbers_that_no_site_has_are_refused(lie: Arrival) -> None:
    (found,) = await Meeting().gather(("north", lie))
    assert isinstance(found, InvalidJob)


async def test_a_job_is_made_when_all_have_signed_the_same() -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    job = statement(found.sites)
    assert await meeting.propose(("west", job), seconds=0.0) == [("west",)]
    made = await meeting.propose(*((silo, job) for silo in NAMES))
    signatures = tuple(SiteSignature(one.silo.encode(), b"") for one in found.sites)
    assert made == [SignedJob(job.serialise(), b"", b"", signatures)] * 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec": spec(4)}, "booster.max_depth: south says 4, north says 3"),
        ({"not_after": ENDS - 1}, "not_after: south says"),
        ({"federation": "other"}, "federation: south says other, north says fed"),
        ({"spec": spec() + b"\xf8\x3f\x01"}, "are their versions the same"),
    ],
)
async def test_all_are_told_in_what_statements_differ(changes: dict[str, object], why: str) -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    job = statement(found.sites)
    given = [("north", job), ("south", statement(found.sites, **changes)), ("west", job)]
    said = await meeting.propose(*given)
    assert [type(one) for one in said] == [InvalidJob] * 3
    assert all(why in str(one) for one in said)
    again = statement(found.sites, 2)
    assert not any(
        isinstance(one, FederationError)
        for one in await meeting.propose(*((silo, again) for silo in NAMES))
    )
    (late,) = await meeting.propose(("west", job))
    assert "west is at job 1 of this script, the others are at 2" in str(late)


async def test_other_sites_than_those_that_came_start_nothing() -> None:
    meeting = Meeting()
    await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    lie = statement((Site("north", own("north").nonce),))
    assert [type(one) for one in await meeting.propose(("north", lie))] == [StaleAttempt]
