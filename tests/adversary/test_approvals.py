"""A coordinator that starts jobs without the approvals that their operators or silos ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.boosting.errors import InvalidJob, SignatureInvalid
from hedgerow.client_agent.admission import PreflightAnswers
from hedgerow.client_agent.policy import Policy
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.federation import Preflight
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.acceptance import Acceptance, Declined
from hedgerow.services.wire.signed_job import (
    APPROVAL_LABEL,
    LABEL,
    PREFLIGHT_LABEL,
    JobApproval,
    SignedJob,
    approve_job,
    check_approval,
    open_job,
    sign_as_site,
    sign_job,
)
from tests.adversary.people import People
from tests.adversary.test_joint_jobs import signed_by, statement
from tests.adversary.test_preflights import why
from tests.adversary.test_signed_jobs import ALL, Victim, spec


class Signers:
    """Who may sign in a federation, and a silo that a coordinator asks."""

    def __init__(self, folder: Path) -> None:
        self.people = People(folder / "pki")
        self.ann = self.people.identity(Role.OPERATOR, "ann")
        self.dpo = self.people.identity(Role.VIEWER, "dpo")
        self.board = self.people.identity(Role.ADMIN, "board")
        self.folder = folder

    def job(self, more: str = 'approvers = ["dpo", "board"]') -> SignedJob:
        return sign_job(spec() + job_file.parse(more), self.ann)

    def victim(self, **policy: object) -> Victim:
        return Victim(self.people, self.folder, **policy)


@pytest.fixture
def office(tmp_path: Path) -> Signers:
    return Signers(tmp_path)


def given(job: SignedJob, *approvals: JobApproval) -> SignedJob:
    return replace(job, approvals=approvals)


def test_a_silo_accepts_a_job_that_all_its_approvers_have_signed(office: Signers) -> None:
    job = office.job()
    approved = given(job, approve_job(job, office.dpo), approve_job(job, office.board))
    assert approved.digest == job.digest
    assert SignedJob.parse(approved.serialise()) == approved
    assert approved.approved == ("board", "dpo")
    assert isinstance(office.victim().assign(approved), Acceptance)


def test_enough_of_them_are_enough(office: Signers) -> None:
    job = office.job('approvers = ["dpo", "board", "eve"]\nmin_approvals = 2')
    silo = office.victim()
    one = silo.assign(given(job, approve_job(job, office.dpo)))
    assert isinstance(one, Declined)
    assert "is not approved: dpo has signed, 1 more of board, eve must" in one.reason
    two = silo.assign(given(job, approve_job(job, office.board), approve_job(job, office.dpo)))
    assert isinstance(two, Acceptance)


LIES: dict[str, Callable[[Signers, SignedJob], tuple[JobApproval, ...]]] = {
    "none": lambda of, job: (),
    "one of two": lambda of, job: (approve_job(job, of.dpo),),
    "one twice": lambda of, job: (approve_job(job, of.dpo), approve_job(job, of.dpo)),
    "of another job": lambda of, job: (
        approve_job(job, of.dpo), approve_job(of.job(), of.board),
    ),
    "somebody else's": lambda of, job: (
        approve_job(job, of.dpo), approve_job(job, of.people.identity(Role.ADMIN, "root")),
    ),
    "the operator's": lambda of, job: (approve_job(job, of.dpo), approve_job(job, of.ann)),
    "a silo's of that name": lambda of, job: (
        approve_job(job, of.dpo), approve_job(job, of.people.identity(Role.SILO, "board")),
    ),
    "the coordinator's of that name": lambda of, job: (
        approve_job(job, of.dpo), approve_job(job, of.people.identity(Role.COORDINATOR, "board")),
    ),
    "of another CA": lambda of, job: (
        approve_job(job, of.dpo),
        approve_job(job, People(of.folder / "other").identity(Role.ADMIN, "board")),
    ),
    "another's certificate": lambda of, job: (
        approve_job(job, of.dpo),
        JobApproval(approve_job(job, of.dpo).signature, of.board.certificate),
    ),
    "what the approver signed of a job": lambda of, job: (
        approve_job(job, of.dpo),
        JobApproval(of.board.sign(LABEL + job.statement), of.board.certificate),
    ),
    "no certificate": lambda of, job: (
        approve_job(job, of.dpo), JobApproval(of.board.sign(APPROVAL_LABEL + job.digest), b""),
    ),
}  # fmt: skip
"""What a coordinator may give in place of the approvals of dpo and board."""


@pytest.mark.parametrize("lie", LIES)
def test_no_other_approval_counts(office: Signers, lie: str) -> None:
    job = office.job()
    silo = office.victim()
    answer = silo.assign(given(job, *LIES[lie](office, job)))
    assert isinstance(answer, Declined)
    assert "is not approved" in answer.reason
    assert not silo.loaded, "nothing of the table is read before"


def test_an_operator_s_own_approval_does_not_count(office: Signers) -> None:
    job = office.job('approvers = ["ann", "dpo"]\nmin_approvals = 1')
    silo = office.victim()
    own = silo.assign(given(job, approve_job(job, office.ann)))
    assert isinstance(own, Declined)
    assert "is not approved: nobody has signed, 1 more of dpo must" in own.reason
    assert isinstance(silo.assign(given(job, approve_job(job, office.dpo))), Acceptance)


def test_an_approval_does_not_count_once_its_certificate_has_ended(office: Signers) -> None:
    people, job = office.people, office.job('approvers = ["guest"]')
    people.make("guest", Role.VIEWER, "guest", seconds=86400.0)
    guest = people.identity(Role.VIEWER, "guest")
    short = FileIdentity(IdentityPaths.of(people.folder / "guest"))
    silo = office.victim()
    silo.days = 2.0
    answer = silo.assign(given(job, approve_job(job, short)))
    assert isinstance(answer, Declined)
    assert "nobody has signed, 1 more of guest must; the certificate given" in answer.reason
    assert ": expired on" in answer.reason
    assert isinstance(silo.assign(given(job, approve_job(job, guest))), Acceptance)


def test_approvers_cannot_be_taken_out_of_a_job(office: Signers) -> None:
    job = office.job()
    plain = sign_job(spec(), office.ann)
    answer = office.victim().assign(replace(job, statement=plain.statement))
    assert isinstance(answer, Declined)
    assert "not that of the job's operator" in answer.reason


def test_a_policy_asks_for_approvers_of_its_own(office: Signers) -> None:
    silo = office.victim(approvers=("dpo", "eve"), min_approvals=1)

    def answer(more: str, *by: FileIdentity) -> Acceptance | Declined:
        job = office.job(more)
        return silo.assign(given(job, *(approve_job(job, one) for one in by)))

    # Whoever of them signs, one of the policy's people must be among them.
    for more in ("", 'approvers = ["board"]', 'approvers = ["dpo", "board"]\nmin_approvals = 1'):
        refused = answer(more, office.dpo, office.board)
        assert isinstance(refused, Declined)
        assert refused.reason.startswith("policy rule approvers: 1 of dpo, eve must approve a job")
    assert not silo.loaded
    assert isinstance(answer('approvers = ["dpo"]'), Declined)
    assert isinstance(answer('approvers = ["dpo"]', office.dpo), Acceptance)
    assert isinstance(answer('approvers = ["dpo", "board"]', office.dpo, office.board), Acceptance)


def test_a_preflight_says_that_a_policy_lacks_approvers(office: Signers) -> None:
    silo = office.victim(approvers=("ann", "dpo"))
    for more, said in (
        ("", ["policy rule approvers: 2 of ann, dpo must approve a job, beside its operator; the "
              "job asks 0 of nobody"]),
        ('approvers = ["dpo"]', ["policy rule approvers: 2 of ann, dpo must approve a job, beside "
                                 "its operator; the job asks 1 of dpo"]),
    ):  # fmt: skip
        job = sign_job(spec() + job_file.parse(more), office.ann, 0.01, PREFLIGHT_LABEL)
        assert why(PreflightAnswers(silo.parts).answer(Preflight(job, ALL))) == said
    bob = office.people.identity(Role.OPERATOR, "bob")
    text = 'approvers = ["ann", "dpo"]'
    job = sign_job(spec() + job_file.parse(text), bob, 0.01, PREFLIGHT_LABEL)
    assert why(PreflightAnswers(silo.parts).answer(Preflight(job, ALL))) == []


def test_a_policy_with_fewer_approvers_than_it_asks_for_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 1, the number of approvers, received 2"):
        Policy.model_validate({"approvers": ["dpo"], "min_approvals": 2})


def test_a_job_that_its_silos_sign_has_no_approvers(office: Signers) -> None:
    people = office.people
    b = people.identity(Role.SILO, "b")
    job = signed_by(people)
    approval = approve_job(job, office.dpo)
    with pytest.raises(SignatureInvalid, match="something else signed beside it"):
        open_job(replace(job, approvals=(approval,)), b)
    data = statement(spec=spec() + job_file.parse('approvers = ["dpo"]'))
    raw = data.serialise()
    sites = tuple(sign_as_site(raw, people.identity(Role.SILO, name)) for name in data.silos)
    with pytest.raises(InvalidJob, match="expected no approvers"):
        open_job(SignedJob(raw, b"", b"", sites), b)


def test_an_approval_is_of_one_job(office: Signers) -> None:
    job, other = office.job(), office.job()
    approval = approve_job(job, office.dpo)
    assert check_approval(job, approval, office.board.approver) == "dpo"
    with pytest.raises(SignatureInvalid):
        check_approval(other, approval, office.board.approver)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('approvers = ["a b"]', "approvers: expected at most 64 names as certificates have them"),
        ('approvers = ["a"]\nmin_approvals = 2', "min_approvals: expected at most 1"),
        ("min_approvals = 1", "min_approvals: expected at most 0"),
        ("[audit]\nmembership_auc_max = 0.6", "[audit] approvers: expected the names"),
        ('[audit]\napprovers = ["a"]\ngroup_auc_min = 1.5', "group_auc_min: expected 0 to 1"),
        ('[audit]\napprovers = ["a"]\nmin_approvals = 2', "[audit] min_approvals: expected"),
    ],
)
def test_a_job_with_approvers_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        job_wire.decode(job_file.parse('strategy = "bagging"\n' + text))
    assert said in str(refused.value)
