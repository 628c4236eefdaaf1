"""A coordinator that makes, changes, thins out or repeats what all silos of a job sign."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob, SignatureInvalid, Unreachable
from hedgerow.client_agent.admission import PreflightAnswers
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.parts import ScriptTables
from hedgerow.client_agent.records import RecordDamaged, Records
from hedgerow.joining import NotAllHere, _Signed, check_gathered
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.federation import Arrival, Gathered, Preflight, Proposed
from hedgerow.services.wire.acceptance import Acceptance, Answer, Declined, PreflightAnswer
from hedgerow.services.wire.job_view import CheckState, FinishedRound, JobState, JobView
from hedgerow.services.wire.signed_job import (
    ITS_SILOS,
    PREFLIGHT_LABEL,
    JobStatement,
    OpenedJob,
    SignedJob,
    SignedSite,
    open_job,
    sign_as_site,
    sign_job,
)
from tests.adversary.people import People
from tests.adversary.test_signed_jobs import ALL, Victim, spec, statement_of

SETTINGS = AgentSettings.model_construct()
SITES = tuple(SignedSite(silo, bytes([rank]) * 16) for rank, silo in enumerate(ALL))


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


def script_that_signed(victim: Victim, *digests: bytes) -> Callable[[OpenedJob], ScriptTables]:
    """Return what a script says that has signed these jobs, or any; its table is the victim's."""
    tables = SimpleNamespace(
        train=victim.parts.load, tested=lambda job, known: None, validated=lambda job: None
    )

    def script(opened: OpenedJob) -> ScriptTables:
        if digests and opened.signed.digest not in digests:
            raise InvalidJob("this run of this silo's has not signed it")
        return tables

    return script


def sign(victim: Victim, job: SignedJob) -> None:
    """Let the victim's script have signed a job itself."""
    victim.parts = replace(victim.parts, script=script_that_signed(victim, job.digest))


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
        j, statement=statement(sites=(*SITES[:2], SignedSite("c", b"x" * 16))).serialise()
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
    victim.parts = replace(victim.parts, script=script_that_signed(victim))
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
        (signed_by(people, sites=(*SITES[:2], SignedSite("c", b""))), "16 bytes"),
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
    assert "none is joined here" in answer.reason
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
        (replace(found, sites=(*SITES[1:], SignedSite("a", secrets.token_bytes(16)))), "this run"),
        (replace(found, sites=(*SITES[1:], SignedSite("d", b"d" * 16))), "this run"),
        (replace(found, sites=SITES[::-1]), "rank 0, a's, to c"),
        (replace(found, not_after=now + 101.0), "later end"),
        (replace(found, not_after=now - 1.0), "later end"),
        (replace(found, not_after=None), "later end"),
    ):
        with pytest.raises(InvalidJob, match=why):
            check_gathered(lie, "a", own, now)
    check_gathered(found, "a", own, now, ("c", "b", "a"))
    with pytest.raises(InvalidJob, match="expected a, b, d, the coordinator named a, b, c"):
        check_gathered(found, "a", own, now, ("a", "b", "d"))


def site_of(people: People, client: object, left: list[str] | None = None) -> hedgerow.Site:
    """Return the site of silo ``a``, for which a coordinator's client gives these answers.

    ``left`` are the jobs whose attempts it has ended.
    """
    left = [] if left is None else left
    site = object.__new__(hedgerow.Site)
    site.__dict__ |= {
        "_agent": SimpleNamespace(
            ask=lambda asked, *_: asked(client, "lease"),
            wait=lambda job_id, seconds: None,
            abandon=lambda job_id, why: left.append(job_id),
        ),
        "_parts": SimpleNamespace(identity=lambda: people.identity(Role.SILO, "a")),
        "_thread": SimpleNamespace(is_alive=lambda: True),
        "_records": SimpleNamespace(write=lambda name, data: None),
        "_failure": None, "_sites": SITES, "silo": "a", "silos": ALL, "_turn": 0, "_wait": 0.0,
        "_own": Arrival(3, None, SITES[0].nonce, time.time() + 3600.0), "_begun": [],
        "_ends": int(time.time()) + 3600, "_current": None, "_training": threading.Lock(),
    }  # fmt: skip
    return site


TOLD = JobView(
    "own", spec(), JobState.SUCCEEDED, "", 1, (), (), (), 0.0, 1.0, ITS_SILOS, 0,
    ("../model.ubj",), "../model.ubj", "", 0, 0, "",
)  # fmt: skip


def test_a_job_that_a_script_did_not_propose_is_not_taken_for_its_own(people: People) -> None:
    own = _Signed(statement(), table(0, 1), {}, None, {})
    told = replace(TOLD, job_id=own.job_id)
    for lie in (told, replace(told, job_id="../../x"), replace(told, spec=spec(rounds=9))):
        site = site_of(people, SimpleNamespace(follow=lambda *_, lie=lie, stop: lie))
        if lie is told:
            assert site._followed(own, None) == (told, False)
            continue
        with pytest.raises(InvalidJob, match="shows another job"):
            site._followed(own, None)
    site = site_of(people, SimpleNamespace(propose=lambda *_: Proposed("another")))
    with pytest.raises(InvalidJob, match="started job another"):
        site._agreed(own)
    site = site_of(people, SimpleNamespace(propose=lambda *_: Proposed("", ("a", "c"))))
    with pytest.raises(NotAllHere, match="b has not signed job 1"):
        site._agreed(own)


JOB = hedgerow.Job("histogram", rounds=2, label="label")


def table(*labels: int) -> pa.Table:
    return pa.table({"x0": [float(k) for k in range(len(labels))], "label": list(labels)})


class Liar:
    """A coordinator's client that starts each job, and then says of it what it is told to say.

    While the script's job is under way, the coordinator does ``during`` with the signed job.
    """

    def __init__(self, people: People, during: Callable[[SignedJob], object]) -> None:
        self._people, self._during = people, during
        self.jobs: list[SignedJob] = []
        self.left: list[str] = []
        self.site = site_of(people, self, self.left)
        self.site.__dict__["_run"] = lambda view: None

    def propose(self, lease: str, data: bytes, signature: object) -> Proposed:
        self.jobs.append(signed_by(self._people, data=data))
        return Proposed(statement_of(self.jobs[-1]).job_id)

    def follow(self, lease: str, job_id: str, n_rounds: int, *, stop: bool) -> JobView:
        self._during(self.jobs[-1])
        spec = statement_of(self.jobs[-1]).spec
        return replace(TOLD, job_id=job_id, spec=spec, state=JobState.FAILED, detail="says I")

    def train(self, rows: pa.Table) -> None:
        with pytest.raises(hedgerow.FederationError, match="says I"):
            self.site.train(JOB, rows)


def test_an_earlier_job_does_not_train_on_a_later_job_s_table(
    people: People, victim: Victim
) -> None:
    """The coordinator says that the first job has ended, and assigns it again in the second."""
    answers: list[Answer] = []
    held: list[ScriptTables] = []

    def during(job: SignedJob) -> None:
        first = liar.jobs[0]
        answers.append(victim.assign(first, attempt=len(answers) + 1))
        answers.append(victim.assign(job, attempt=len(answers) + 1))
        if job is first:  # an attempt that is about to read
            tables = liar.site._tables_of(open_job(first, people.identity(Role.SILO, "a")))
            assert tables is not None
            held.append(tables)

    liar = Liar(people, during)
    victim.parts = replace(victim.parts, script=liar.site._tables_of)
    liar.train(table(*(0, 1) * 10))
    answers.append(victim.assign(liar.jobs[0], attempt=3))
    liar.train(table(*(0, 1) * 50))
    rows = [one.n_samples if isinstance(one, Acceptance) else None for one in answers]
    assert rows == [20, 20, None, None, 100]
    assert "or is at another job" in getattr(answers[3], "reason", "")
    with pytest.raises(InvalidJob, match="has left job"):
        held[0].train(JOB.parameters)
    assert liar.left == [statement_of(j).job_id for j in liar.jobs]
    assert victim.loaded == 0


def test_no_operator_s_job_reads_a_script_s_table(people: People, victim: Victim) -> None:
    ann = people.identity(Role.OPERATOR, "ann")
    found: list[tuple[Answer, PreflightAnswer | None]] = []

    def during(_: SignedJob) -> None:
        asked = Preflight(sign_job(spec(), ann, label=PREFLIGHT_LABEL), ALL)
        declined = victim.assign(sign_job(spec(), ann))
        found.append((declined, PreflightAnswers(victim.parts).answer(asked)))

    liar = Liar(people, during)
    tables = lambda opened: pytest.fail("asked for the script's tables")  # noqa: E731
    victim.parts = replace(victim.parts, script=tables)
    liar.train(table(*(0, 1) * 20))
    ((declined, preflight),) = found
    assert isinstance(declined, Declined)
    assert preflight is not None
    assert "none of operator ann's" in declined.reason
    assert preflight.schema is None
    assert preflight.n_samples == 0
    failed = [check.detail for check in preflight.checks if check.state is CheckState.FAILED]
    assert failed == [declined.reason]
    assert victim.loaded == 0


def test_a_script_is_at_one_job_at_a_time(people: People) -> None:
    def during(_: SignedJob) -> None:
        with pytest.raises(InvalidJob, match="a job of this script is under way"):
            liar.site.train(JOB, table(0, 1))

    def fails(_: object) -> None:
        raise KeyError("the user's own")

    liar = Liar(people, during)
    liar.train(table(0, 1))
    liar.site.__dict__["_followed"] = lambda job, on_round: on_round(None)
    with pytest.raises(KeyError):
        liar.site.train(JOB, table(0, 1), on_round=fails)
    del liar.site.__dict__["_followed"]
    liar.train(table(0, 1))
    assert [statement_of(job).turn for job in liar.jobs] == [1, 2, 3]
    assert liar.left == [statement_of(j).job_id for j in liar.jobs]


def test_a_script_asks_for_the_rounds_after_the_last_and_pauses(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator answers at once, and leaves a round out."""
    asked: list[int] = []
    paused: list[float] = []
    own = _Signed(statement(), table(0, 1), {}, None, {})
    done = FinishedRound(4, 1, 1.0, (), 0, 0, ())

    def follow(lease: str, job_id: str, n_rounds: int, *, stop: bool) -> JobView:
        asked.append(n_rounds)
        state = JobState.SUCCEEDED if len(asked) == 3 else JobState.RUNNING
        return replace(TOLD, job_id=own.job_id, state=state, rounds=(done,))

    monkeypatch.setattr(time, "sleep", paused.append)
    site_of(people, SimpleNamespace(follow=follow))._followed(own, None)
    assert asked == [0, 5, 5]
    assert paused == [0.1, 0.1]


def test_a_script_that_was_killed_goes_on_only_with_the_same_job_and_rows(people: People) -> None:
    """Else the same statement would end at once, with the model of other rows."""
    liar = Liar(people, lambda job: None)
    liar.train(table(0, 1))
    kept = liar.site._begun
    records: list[bytes] = []
    for job, rows, tests, other in (
        (JOB, table(0, 1), None, ""),
        (JOB, table(1, 0), None, "table"),
        (hedgerow.Job("histogram", rounds=3, label="label"), table(0, 1), None, "job"),
        (JOB, table(0, 1), {"test": table(0, 1)}, "test table"),
    ):
        again = Liar(people, lambda job: None)
        again.site.__dict__ |= {"_begun": list(kept)}
        again.site.__dict__["_records"].write = lambda name, data: records.append(data)
        if not other:
            again.train(rows)
            continue
        with pytest.raises(InvalidJob, match=f"begun job 1 with another {other}: run"):
            again.site.train(job, rows, tests)
        assert not again.jobs
        assert records.pop() == b""  # the next run has other random bytes
    assert not records


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "world_size: expected how many sites"),
        ({"world_size": -1}, "world_size: expected a number from 2 to 1500, received -1"),
        ({"world_size": True}, "received True"),
        ({"world_size": "3"}, "received '3'"),
        ({"world_size": 3, "rank": -1}, "rank: expected a number from 0 to 2, received -1"),
        ({"world_size": 3, "rank": 3}, "rank: expected a number from 0 to 2, received 3"),
        ({"world_size": 3, "rank": "1"}, "rank: .* received '1'"),
        ({"silos": "abc"}, "silos: expected names of sites, each once, received 'abc'"),
        ({"silos": []}, "silos: expected names"),
        ({"silos": ["a", "a"]}, "silos: expected names"),
        ({"silos": ["a", 1]}, "silos: expected names"),
        ({"silos": ["a", "b"], "world_size": 3}, "world_size: 3 sites, and silos names 2"),
        ({"world_size": 3, "wait": 0}, "wait: expected seconds"),
        ({"world_size": 3, "wait": "9"}, "wait: expected seconds"),
        ({"world_size": 3, "server": 7443}, "server: expected 'HOST:PORT', received 7443"),
    ],
)
def test_joining_says_which_argument_cannot_be(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        hedgerow.join("no folder", **arguments)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_site_that_cannot_join_says_why_and_frees_its_folder(
    people: People, victim: Victim, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    freed: list[bool] = []
    built = SimpleNamespace(parts=victim.parts), lambda: freed.append(True), 0
    monkeypatch.setattr("hedgerow.joining.build", lambda config: built)
    if damaged:
        monkeypatch.setattr(Records, "read", lambda *_: (_ for _ in ()).throw(RecordDamaged("x")))
    kind, why = (RecordDamaged, "x") if damaged else (InvalidJob, "expected a among b, c")
    with pytest.raises(kind, match=why):
        hedgerow.Site(SETTINGS, 2, None, 1.0, ("a", "b") if damaged else ("b", "c"))
    assert freed == [True]


@pytest.mark.parametrize("error", [None, KeyError("of the user"), Unreachable("gone")])
def test_a_script_that_ends_begins_anew_and_one_that_was_killed_goes_on(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    built = SimpleNamespace(parts=victim.parts), lambda: None, 0
    monkeypatch.setattr("hedgerow.joining.build", lambda config: built)
    monkeypatch.setattr(hedgerow.Site, "_gather", lambda self, silos: None)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)

    def came() -> hedgerow.Site:
        return hedgerow.Site(SETTINGS, 3, None, 1.0)

    killed = came()
    killed._begin(_Signed(statement(), table(0, 1), {}, None, {}))
    site = came()
    assert site._own == killed._own
    with pytest.raises(InvalidJob, match="another table"):
        site._begin(_Signed(statement(), table(1, 0), {}, None, {}))
    ending = came()
    assert ending._own.nonce != killed._own.nonce
    with contextlib.suppress(KeyError, Unreachable), ending:
        if error is not None:
            raise error
    assert came()._own.nonce != ending._own.nonce


def test_a_script_that_never_leaves_begins_anew_once_its_process_has_ended(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], None]] = []
    built = SimpleNamespace(parts=victim.parts), lambda: None, 0
    monkeypatch.setattr("hedgerow.joining.build", lambda config: built)
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr(hedgerow.Site, "_gather", lambda self, silos: None)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    first = hedgerow.Site(SETTINGS, 3, None, 1.0)
    at_exit.pop()()
    assert hedgerow.Site(SETTINGS, 3, None, 1.0)._own.nonce != first._own.nonce
