"""Sites of jobs of scripts that ask a coordinator, or each other, for what no script asks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.jobs import Jobs
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.federation import Arrival, Gathered
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import (
    JobStatement,
    SignedJob,
    SignedSite,
    open_job,
    sign_as_site,
)
from tests.adversary.people import People
from tests.coordinator.server.bench import REGISTRATION, Bench


class Door:
    """A coordinator, as the sites ``a`` and ``b`` reach it."""

    def __init__(self, folder: Path, *, scripts: bool = True) -> None:
        roster = SiloRegistry(frozenset(), 60.0, time.monotonic, "0.1.0")
        self.jobs = Jobs(replace(Bench(folder).environment, scripts=scripts), roster)
        self.leases = {name: roster.register(Silo(name), REGISTRATION).lease_id for name in "ab"}

    async def gather(self, silo: str, own: Arrival, seconds: float = 5.0) -> Gathered:
        return await self.jobs.gather(Silo(silo), self.leases[silo], own, seconds)


def own(silo: str, ends: float = 900.0) -> Arrival:
    return Arrival(2, None, silo.encode() * 16, time.time() + ends)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (replace(own("b"), world_size=1), "b: expected a world size of 2 to 1500"),
        (own("b", ends=-5.0), "b: expected jobs that may begin for 60 s"),
        (own("b", ends=30.0), "b: expected jobs that may begin for 60 s"),
    ],
)
async def test_who_lies_about_itself_is_refused_alone(
    tmp_path: Path, lie: Arrival, why: str
) -> None:
    door = Door(tmp_path)
    waiting = asyncio.create_task(door.gather("a", own("a")))
    await asyncio.sleep(0.0)
    with pytest.raises(InvalidJob, match=why):
        await door.gather("b", lie)
    assert not waiting.done()
    found = await door.gather("b", own("b"))
    assert await waiting == found
    assert [site.silo for site in found.sites] == ["a", "b"]


async def test_a_coordinator_without_jobs_of_scripts_brings_no_sites_together(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidJob, match="runs no jobs of scripts"):
        await Door(tmp_path, scripts=False).gather("a", own("a"))


def test_a_silo_signs_no_job_with_itself_alone(tmp_path: Path) -> None:
    a = People(tmp_path).identity(Role.SILO, "a")
    spec = job_file.parse("strategy = 'histogram'\nsilos = ['a']\n")
    ends = int(time.time()) + 900
    data = JobStatement(
        "fed", b"", spec, ends, 1, (SignedSite("a", b"a" * 16),), 1
    ).of_sites.serialise()
    with pytest.raises(InvalidJob, match="expected at least 2 sites"):
        open_job(SignedJob(data, b"", b"", (sign_as_site(data, a),)), a)
