"""Scripts that come together, and what they propose."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.api.federation.v1 import federation_service_pb2 as pb
from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import FederationError, InvalidJob, LimitReached, StaleAttempt
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.sites import MOST_SITES, Sites
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.federation import Arrival, Gathered, Proposed
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import (
    JobStatement,
    SignedJob,
    SignedSite,
    SiteSignature,
    read_statement,
    sign_as_site,
)
from tests.adversary.people import People

NAMES = tuple(map(Silo, ("north", "south", "west")))
ENDS = 2_000_000_000.0
NOW = ENDS - 1000.0
LONGEST = 15 << 17


class Meeting:
    """Sites whose silos are ``there``."""

    def __init__(self, roster_size: int = 0) -> None:
        self.there = dict.fromkeys((*NAMES, Silo("east")), None)
        self.made = list[SignedJob]()
        self.failure: Exception | None = None
        self.sites = Sites(lambda: self.there, lambda: roster_size, self.create, lambda: NOW)

    async def create(self, signed: SignedJob) -> str:
        await asyncio.sleep(0.0)
        self.made.append(signed)
        if self.failure is not None:
            raise self.failure
        return read_statement(signed.statement, "").job_id

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


def statement(sites: tuple[SignedSite, ...], turn: int = 1, **changes: object) -> JobStatement:
    plain = JobStatement("fed", b"", spec(), ENDS, 1, sites, turn)
    return replace(plain, **changes).of_sites  # type: ignore[arg-type]


async def test_sites_are_in_the_order_of_their_ranks_and_else_of_their_names() -> None:
    given = [
        ("west", own("west", rank=0)),
        ("south", own("south", ends=ENDS - 9.0)),
        ("north", own("north")),
    ]
    found = await Meeting().gather(*given)
    sites = tuple(SignedSite(silo, own(silo).nonce) for silo in ("west", "north", "south"))
    assert found == [Gathered(sites, ENDS - 9.0)] * 3


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


async def test_who_says_what_another_has_said_is_refused_alone() -> None:
    meeting = Meeting()
    await meeting.gather(("north", own("north", rank=1)), seconds=0.0)
    (said,) = await meeting.gather(("south", own("south", rank=1)))
    assert isinstance(said, InvalidJob)
    assert str(said) == "rank: south says 1, as north has said before"
    given = [("north", own("north", rank=1)), ("south", own("south")), ("west", own("west"))]
    found = await meeting.gather(*given)
    assert [site.silo for site in found[0].sites] == ["south", "north", "west"]  # type: ignore[attr-defined]


async def test_another_number_of_sites_is_another_group() -> None:
    meeting = Meeting()
    apart = [("north", own("north")), ("south", own("south", 2)), ("west", own("west"))]
    found = await meeting.gather(*apart, seconds=0.0)
    assert found[0] == Gathered(here=("north",))
    assert found[1:] == [Gathered(here=("south",)), Gathered(here=("north", "west"))]
    assert [
        {site.silo for site in one.sites}  # type: ignore[attr-defined]
        for one in await meeting.gather(("east", own("east", 2)), ("south", own("south", 2)))
    ] == [{"east", "south"}] * 2
    fresh = replace(own("south"), nonce=b"f" * 16)
    given = [("north", own("north")), ("west", own("west")), ("south", fresh)]
    found = await meeting.gather(*given)
    assert {site.silo for site in found[0].sites} == set(NAMES)  # type: ignore[attr-defined]


async def test_an_earlier_run_that_still_asks_does_not_displace_a_new_one() -> None:
    meeting = Meeting()
    old = asyncio.create_task(meeting.gather(("north", own("north"))))
    await asyncio.sleep(0.0)
    fresh = replace(own("north"), nonce=b"f" * 16)
    found = await meeting.gather(("north", fresh), ("south", own("south")), ("west", own("west")))
    assert SignedSite("north", fresh.nonce) in found[0].sites  # type: ignore[attr-defined]
    assert await old == [Gathered()]


@pytest.mark.parametrize(
    "lie",
    [
        own("north", 0),
        own("north", 1),
        own("north", MOST_SITES + 1),
        own("north", rank=3),
        replace(own("north"), nonce=b""),
    ],
)
async def test_numbers_that_no_site_has_are_refused(lie: Arrival) -> None:
    (found,) = await Meeting().gather(("north", lie))
    assert isinstance(found, InvalidJob)


@pytest.mark.parametrize("ends", [0.0, NOW - 1.0, NOW + 59.0, None])
async def test_jobs_that_could_not_begin_are_refused_by_the_name_of_their_site(ends: Any) -> None:
    meeting = Meeting()
    (said,) = await meeting.gather(("west", replace(own("west"), not_after=ends)))
    assert isinstance(said, InvalidJob)
    assert str(said).startswith("west: expected jobs that may begin for 60 s")
    found = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert found[0].not_after == ENDS  # type: ignore[attr-defined]


async def test_a_job_is_made_when_all_have_signed_the_same() -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    job = statement(found.sites)
    assert await meeting.propose(("west", job), seconds=0.0) == [Proposed("", ("west",))]
    made = await meeting.propose(*((silo, job) for silo in NAMES))
    signatures = tuple(SiteSignature(one.silo.encode(), b"") for one in found.sites)
    assert made == [Proposed(job.job_id)] * 3
    assert meeting.made == [SignedJob(job.serialise(), b"", b"", signatures)], "it is made once"


async def test_a_job_does_not_begin_without_one_who_gave_up() -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    job = statement(found.sites)
    north = asyncio.create_task(meeting.propose(("north", job), seconds=0.2))
    left = asyncio.create_task(meeting.propose(("west", job)))
    await asyncio.sleep(0.05)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    (south,) = await meeting.propose(("south", job), seconds=0.2)
    assert south == Proposed("", ("north", "south", "west")), "who has signed is told still"
    await north
    assert not meeting.made


async def test_a_caller_that_leaves_ends_no_job_and_what_may_be_asked_again_is() -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    job = statement(found.sites)
    meeting.failure = LimitReached("north has 4 unfinished jobs")
    said = await meeting.propose(*((silo, job) for silo in NAMES))
    assert [type(one) for one in said] == [LimitReached] * 3
    meeting.failure = None
    calls = [asyncio.create_task(meeting.propose((silo, job))) for silo in NAMES]
    while len(meeting.made) == 1:
        calls[0].cancel() if meeting.sites._turns[found.sites].over else None
        await asyncio.sleep(0.0)
    assert [await call for call in calls[1:]] == [[Proposed(job.job_id)]] * 2
    assert len(meeting.made) == 2
    meeting.failure = InvalidJob("no such booster")
    again = statement(found.sites, 2)
    for _ in range(2):
        said = await meeting.propose(*((silo, again) for silo in NAMES))
        assert [type(one) for one in said] == [InvalidJob] * 3
    assert len(meeting.made) == 3


async def test_the_largest_job_of_the_most_sites_fits_in_one_message(tmp_path: Path) -> None:
    """With the longest names, and certificates as the federation's authority makes them."""
    people = People(tmp_path, "f" * 63)
    one = sign_as_site(b"", people.identity(Role.SILO, "s" * 63))
    silos = [f"{n:063}" for n in range(MOST_SITES)]
    meeting = Meeting()
    meeting.there = dict.fromkeys(map(Silo, silos), None)
    arrival = Arrival(MOST_SITES, None, b"n" * 16, ENDS)
    found = (await meeting.gather(*((silo, arrival) for silo in silos)))[0]
    assert isinstance(found, Gathered)
    plain = job_pb2.JobSpec(strategy="histogram", silos=silos)
    room = LONGEST - len(statement(found.sites, spec=plain.SerializeToString()).serialise())
    plain.features.extend(["x" * 1000] * ((room - 16) // 1003))
    job = statement(found.sites, spec=plain.SerializeToString())
    assert LONGEST - 1100 < len(job.serialise()) <= LONGEST
    data = job.serialise()
    calls = (meeting.sites.propose(Silo(s), job, (data, one), 60.0) for s in silos)
    assert set(await asyncio.gather(*calls)) == {Proposed(job.job_id)}
    (made,) = meeting.made
    message = pb.AwaitAssignmentResponse()
    message.assignment.job.ParseFromString(made.serialise())
    message.assignment.silos.extend(silos)
    assert message.ByteSize() < 4 << 20
    again = statement(found.sites, 2, spec=plain.SerializeToString())
    long = replace(one, certificate=one.certificate * 2)
    data = again.serialise()
    calls = (meeting.sites.propose(Silo(s), again, (data, long), 60.0) for s in silos)
    said = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in said} == {InvalidJob}
    assert "with the certificates of its 1500 sites" in str(said[0])


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
    lie = statement((SignedSite("north", own("north").nonce),))
    assert [type(one) for one in await meeting.propose(("north", lie))] == [StaleAttempt]


@pytest.mark.parametrize("first", ["north", "west"])
async def test_a_site_that_is_ahead_is_named_and_the_others_go_on(first: str) -> None:
    meeting = Meeting()
    found, *_ = await meeting.gather(*((silo, own(silo)) for silo in NAMES))
    assert isinstance(found, Gathered)
    given = [("north", statement(found.sites)), ("west", statement(found.sites, 2**32 - 1))]
    said = await meeting.propose(*(given if first == "north" else given[::-1]))
    why = f"west is ahead, at job {2**32 - 1} of this script, north is at job 1"
    assert list(map(str, said)) == [why] * 2
    assert list(map(str, await meeting.propose(("south", statement(found.sites))))) == [why]
    second = statement(found.sites, 2)
    made = await meeting.propose(*((silo, second) for silo in NAMES))
    assert made == [Proposed(second.job_id)] * 3
