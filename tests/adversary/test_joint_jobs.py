"""A coordinator that makes, changes, thins out or repeats what all silos of a job sign."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob, SignatureInvalid
from hedgerow.joining import NotAllHere, check_gathered
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.federation import Arrival, Gathered, Proposed
from hedgerow.services.wire.acceptance import Acceptance, Declined
from hedgerow.services.wire.job_view import JobState, JobView
from hedgerow.services.wire.signed_job import (
    ITS_SILOS,
    PREFLIGHT_LABEL,
    JobStatement,
    SignedJob,
    Site,
    open_job,
    sign_as_site,
    sign_job,
)
from tests.adversary.people import People
from tests.adversary.test_signed_jobs import ALL, Victim, spec, statement_of

SITES = tuple(Site(silo, bytes([rank]) * 16) for rank, silo in enumerate(ALL))


def statement(**changes: object) -> JobStatement:
    plain = JobStatement("fed", b"", spec(), int(time.time()) + 3600, 1, SITES, 1)
    return replace(plain, **changes).of_sites  # type: ignore[arg-type]


def signed_by(
    people: People, silos: tuple[str, ...] = ALL, data: bytes = b"", **changes: object
) -> SignedJob:
    data = data or statement(**changes).serialise()
    signatures = (sign_as_site(data, people.identity(Role.SILO, silo)) for silo in silos)
    return SignedJob(data, b"", b"", tuple(signatures))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people"))


@pytest.fixture
def victim(people: People, tmp_path: Path) -> Victim:
    return Victim(people, tmp_path)


def sign(victim: Victim, job: SignedJob) -> None:
    """Let the victim's script have signed a job itself."""
    victim.parts = replace(victim.parts, has_signed=lambda opened: opened.signed == job)


def test_a_job_of_all_its_silos_is_accepted_and_has_no_operator(
    people: People, victim: Victim
) -> None:
    job = signed_by(people)
    opened = open_job(job, people.identity(Role.SILO, "b"))
    assert opened.operator == ITS_SILOS
    assert opened.statement.silos == ALL
    sign(victim, job)
    answer = victim.assign(job)
    assert isinstance(answer, Acceptance)
    assert answer.job_digest == job.digest


LIES = {
    "a signature is dropped": lambda p, j: replace(j, sites=j.sites[:2]),
    "all signatures are dropped": lambda p, j: replace(j, sites=()),
    "one signs for another": lambda p, j: replace(j, sites=(j.sites[0], j.sites[1], j.sites[1])),
    "the order is another": lambda p, j: replace(j, sites=j.sites[::-1]),
    "a signature is of an earlier job": lambda p, j: replace(
        j, sites=(*j.sites[:2], signed_by(p, turn=2).sites[2])
    ),
    "a signature is changed": lambda p, j: replace(
        j, sites=(replace(j.sites[0], signature=j.sites[1].signature), *j.sites[1:])
    ),
    "a certificate is another's": lambda p, j: replace(
        j, sites=(replace(j.sites[0], certificate=j.sites[1].certificate), *j.sites[1:])
    ),
    "the job is changed": lambda p, j: replace(
        j, statement=statement(spec=spec(rounds=9)).serialise()
    ),
    "a site is left out": lambda p, j: replace(
        j, statement=statement(sites=SITES[:2]).serialise(), sites=j.sites[:2]
    ),
    "a site's bytes are changed": lambda p, j: replace(
        j, statement=statement(sites=(*SITES[:2], Site("c", b"x" * 16))).serialise()
    ),
    "the turn is changed": lambda p, j: replace(j, statement=statement(turn=2).serialise()),
    "an operator signed it, too": lambda p, j: replace(
        j, **{k: getattr(sign_job(spec(), p.identity(Role.OPERATOR, "ann")), k)
              for k in ("signature", "certificate")}
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_job_that_not_all_its_silos_signed_is_declined_before_any_row_is_read(
    people: People, victim: Victim, lie: str
) -> None:
    job = signed_by(people)
    false = LIES[lie](people, job)
    victim.parts = replace(victim.parts, has_signed=lambda opened: True)
    job_id = statement_of(false).job_id
    answer = victim.assign(false, job_id=job_id)
    assert isinstance(answer, Declined)
    assert "sign" in answer.reason or "certificate" in answer.reason
    assert victim.loaded == 0


def test_statements_that_no_script_makes_are_declined_though_all_signed_them(
    people: People, victim: Victim
) -> None:
    chosen = replace(statement(), nonce=b"\1" * 16).serialise()
    for job, why in (
        (signed_by(people, data=chosen), "nonce"),
        (signed_by(people, turn=0), "nonce"),
        (signed_by(people, ALL[:2], sites=SITES[:2]), "sites that are its silos"),
        (signed_by(people, (*ALL, "a"), sites=(*SITES, SITES[0])), "sites that are its silos"),
        (signed_by(people, sites=(*SITES[:2], Site("c", b""))), "16 bytes"),
        (signed_by(people, federation="theirs"), "for federation theirs"),
        (signed_by(people, not_after=1.0), "its silos has expired|job's silos has expired"),
        (signed_by(people, view_version=2), "view version 2"),
    ):
        with pytest.raises(InvalidJob, match=why):
            open_job(job, people.identity(Role.SILO, "b"))
        sign(victim, job)
        assert isinstance(victim.assign(job, job_id=statement_of(job).job_id), Declined)
    assert victim.loaded == 0
    with pytest.raises(SignatureInvalid, match="something else"):
        open_job(signed_by(people), people.identity(Role.SILO, "b"), PREFLIGHT_LABEL)


def test_an_operator_signs_no_job_that_names_sites(people: People) -> None:
    ann = people.identity(Role.OPERATOR, "ann")
    data = statement().serialise()
    for label in (b"hedgerow/job/v1\0", b""):
        job = SignedJob(data, ann.sign(label + data), ann.certificate)
        with pytest.raises(SignatureInvalid):
            open_job(job, people.identity(Role.SILO, "b"))


def test_an_earlier_job_of_scripts_is_not_repeated(people: People, victim: Victim) -> None:
    """A run of a script has signed none of an earlier run's jobs, and an agent has signed none."""
    job = signed_by(people)
    answer = victim.assign(job)
    assert isinstance(answer, Declined)
    assert "this run of this silo's has not signed it" in answer.reason
    assert victim.loaded == 0
    sign(victim, job)
    assert isinstance(victim.assign(job), Acceptance)
    victim.parts.accepted.end([statement_of(job).job_id])
    answer = victim.assign(job, attempt=2)
    assert isinstance(answer, Declined)
    assert "has ended" in answer.reason


def test_a_policy_that_names_operators_needs_a_word_for_jobs_of_scripts(
    people: People, tmp_path: Path
) -> None:
    job = signed_by(people)
    for names, accepted in ((["ann"], False), (["ann", ITS_SILOS], True)):
        own = Victim(people, tmp_path / str(accepted), operators=names)
        sign(own, job)
        assert isinstance(own.assign(job), Acceptance if accepted else Declined)


def test_a_silo_checks_whom_a_coordinator_names() -> None:
    now = time.time()
    own = Arrival(3, 0, SITES[0].nonce, now + 100.0)
    found = Gathered(SITES, now + 50.0)
    check_gathered(found, "a", own, now)
    for lie, why in (
        (replace(found, sites=SITES[:2]), "expected 3 sites"),
        (replace(found, sites=(*SITES[:2], SITES[0])), "expected 3 sites"),
        (replace(found, sites=(*SITES[1:], Site("a", secrets.token_bytes(16)))), "this run"),
        (replace(found, sites=(*SITES[1:], Site("d", b"d" * 16))), "this run"),
        (replace(found, sites=SITES[::-1]), "rank 0, a's, to c"),
        (replace(found, not_after=now + 101.0), "later end"),
        (replace(found, not_after=now - 1.0), "later end"),
        (replace(found, not_after=None), "later end"),
    ):
        with pytest.raises(InvalidJob, match=why):
            check_gathered(lie, "a", own, now)


def script_of(people: People, answers: object) -> hedgerow.Site:
    """Return the site of silo ``a``, for which a coordinator's client gives these answers."""
    site = object.__new__(hedgerow.Site)
    site.__dict__ |= {
        "_agent": SimpleNamespace(ask=lambda asked, *_: asked(answers, "lease")),
        "_parts": SimpleNamespace(identity=lambda: people.identity(Role.SILO, "a")),
        "_thread": SimpleNamespace(is_alive=lambda: True),
        "_failure": None, "_signed": set(), "_sites": SITES, "silos": ALL, "_turn": 1,
        "_ends": int(time.time()) + 3600, "_wait": 0.0,
    }  # fmt: skip
    return site


def test_a_job_that_a_script_did_not_propose_is_not_taken_for_its_own(people: People) -> None:
    told = JobView(
        "own", spec(), JobState.SUCCEEDED, "", 1, (), (), (), 0.0, 1.0, ITS_SILOS, 0,
        ("../model.ubj",), "../model.ubj", "", 0, 0, "",
    )  # fmt: skip
    for lie in (told, replace(told, job_id="../../x"), replace(told, spec=spec(rounds=9))):
        site = script_of(people, SimpleNamespace(follow=lambda *_, lie=lie, stop: lie))
        if lie is told:
            assert site._followed("own", spec(), None) == (told, False)
            continue
        with pytest.raises(InvalidJob, match="shows another job"):
            site._followed("own", spec(), None)
    site = script_of(people, SimpleNamespace(propose=lambda *_: Proposed("another")))
    with pytest.raises(InvalidJob, match="started job another"):
        site._agreed(spec())
    assert not site._signed
    site = script_of(people, SimpleNamespace(propose=lambda *_: Proposed("", ("a", "c"))))
    with pytest.raises(NotAllHere, match="b has not signed job 1"):
        site._agreed(spec())
    assert not site._signed
