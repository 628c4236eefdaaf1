"""A coordinator that makes, changes or repeats jobs, and operators after each other's (3, 14a)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob, JobStopped, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.attempt import Attempt
from hedgerow.client_agent.keeper import VaultSessions
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.memory import MappedFiles, MemoryLimit
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import RecordDamaged
from hedgerow.client_agent.seen_tables import SeenTables
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.federation import (
    Agreement,
    Assignment,
    AttemptKey,
    Registration,
    SiloGroup,
)
from hedgerow.services.wire import job_file
from hedgerow.services.wire.acceptance import Acceptance, Answer, Declined
from hedgerow.services.wire.records import value_of
from hedgerow.services.wire.signed_job import (
    LABEL,
    JobStatement,
    SignedJob,
    open_job,
    sign_job,
)
from tests.adversary.people import People

TABLE = Dataset(
    Schema((Feature("x0"),), "label", Task.BINARY, 2),
    np.zeros((40, 1), np.float32),
    np.tile(np.array([0.0, 1.0]), 20),
)
JOB = """
strategy = "bagging"
seed = 1
min_silos = {min_silos}
silos = {silos}
[bagging]
rounds = {rounds}
evaluate = "none"
[booster]
max_depth = 2
"""
ALL = (Silo("a"), Silo("b"), Silo("c"))


def spec(silos: tuple[str, ...] = ALL, min_silos: int = 2, rounds: int = 2) -> bytes:
    return job_file.parse(JOB.format(min_silos=min_silos, silos=list(silos), rounds=rounds))


def statement_of(signed: SignedJob) -> JobStatement:
    """Return what was signed, without asking who signed."""
    return value_of(JobStatement, job_pb2.JobStatement.FromString(signed.statement))


def altered(signed: SignedJob, **changes: object) -> SignedJob:
    """Return a job of which a coordinator has changed the statement."""
    statement = replace(statement_of(signed), **changes)  # type: ignore[arg-type]
    return replace(signed, statement=statement.serialise())


class Victim:
    """The agent of silo ``a``; time is ``clock`` days from now."""

    def __init__(self, people: People, folder: Path, **policy: object) -> None:
        self.days = 0.0
        clock = lambda: time.time() + 86400.0 * self.days  # noqa: E731
        identity = people.identity(Role.SILO, "a", clock)
        self.state = StateFolder(folder / "state")
        self._ledger = SiloLedger(folder / "ledger.jsonl", "a", "coordinator", time.time)
        self.loaded = 0

        def load(job: object) -> Dataset:
            self.loaded += 1
            return TABLE

        self.parts = AgentParts(
            silo=Silo("a"),
            address="",
            channel=lambda: pytest.fail("nothing may leave"),
            identity=lambda: identity,
            state=self.state,
            ledger=self._ledger,
            accepted=ReplayGuard(self.state.accepted),
            policy=Policy.model_validate(policy),
            account=TableAccount(folder / "state", "t"),
            opened=TableOpenings(self.state.records("opened"), "t", 0),
            seen=SeenTables(self.state.records("seen"), 1),
            load=load,
            memory=MemoryLimit(None, MappedFiles(folder)),
            secrets=VaultSessions(self.state, lambda pause: LocalVault()),
            registration=Registration("i", "0", (), 64),
            revoked=RevokedCertificates(IdentityPaths.of(people.folder / "silo/a")),
        )

    def restart(self) -> None:
        """Forget all that is not on disk."""
        self.parts = replace(self.parts, accepted=ReplayGuard(self.state.accepted))

    def assign(
        self,
        job: SignedJob,
        silos: tuple[Silo, ...] = ALL,
        *,
        job_id: str | None = None,
        attempt: int = 1,
        agreed: tuple[Silo, ...] | None = None,
    ) -> Answer:
        """Return the silo's answer to an assignment; it trains for no silos but ``agreed``."""
        answers: list[Answer] = []

        def answer(given: Answer) -> Agreement:
            answers.append(given)
            if agreed is None or isinstance(given, Declined):
                raise JobStopped("answered")
            return Agreement(TABLE.schema, agreed, 0, (SiloGroup(agreed),))

        key = AttemptKey(statement_of(job).job_id if job_id is None else job_id, attempt)
        with contextlib.suppress(JobStopped):
            Attempt(self.parts, Assignment(key, silos, job), answer).run()
        (given,) = answers
        return given


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path / "pki")


@pytest.fixture
def victim(people: People, tmp_path: Path) -> Iterator[Victim]:
    made = Victim(people, tmp_path / "silo", operators=["ann"])
    yield made
    made.state.close()


@pytest.fixture
def ann(people: People) -> FileIdentity:
    return people.identity(Role.OPERATOR, "ann")


def test_a_job_of_a_listed_operator_is_accepted_by_its_digest(
    victim: Victim, ann: FileIdentity
) -> None:
    job = sign_job(spec(), ann)
    given = victim.assign(job)
    assert isinstance(given, Acceptance)
    assert given.job_digest == job.digest
    assert len(statement_of(job).job_id) == 22


def test_an_admin_may_sign_and_is_checked_by_name(victim: Victim, people: People) -> None:
    assert isinstance(
        victim.assign(sign_job(spec(), people.identity(Role.ADMIN, "ann"))), Acceptance
    )
    given = victim.assign(sign_job(spec(), people.identity(Role.ADMIN, "root")))
    assert given == Declined("policy rule operators: root is not among them")


FORGERIES: dict[str, tuple[Callable[[SignedJob, FileIdentity, FileIdentity], SignedJob], str]] = {
    "changed spec": (
        lambda job, bob, coordinator: altered(job, spec=spec(rounds=9)),
        "the signature is not that of the job's operator",
    ),
    "wider roster": (
        lambda job, bob, coordinator: altered(job, spec=spec(silos=(*ALL, "mallory"))),
        "the signature is not that of the job's operator",
    ),
    "fewer silos": (
        lambda job, bob, coordinator: altered(job, spec=spec(min_silos=1)),
        "the signature is not that of the job's operator",
    ),
    "a column as weights": (
        lambda job, bob, coordinator: altered(
            job, spec=spec() + job_pb2.JobSpec(columns={"weight": "x"}).SerializeToString()
        ),
        "the signature is not that of the job's operator",
    ),
    "weights of classes": (
        lambda job, bob, coordinator: altered(
            job,
            spec=spec() + job_pb2.JobSpec(columns={"class_weight": {"1": 9.0}}).SerializeToString(),
        ),
        "the signature is not that of the job's operator",
    ),
    "later end": (
        lambda job, bob, coordinator: altered(job, not_after=4e9),
        "the signature is not that of the job's operator",
    ),
    "new nonce": (
        lambda job, bob, coordinator: altered(job, nonce=bytes(16)),
        "the signature is not that of the job's operator",
    ),
    "made by the coordinator": (
        lambda job, bob, coordinator: sign_job(spec(), coordinator),
        "the certificate given for the job's operator is of coordinator ann",
    ),
    "under ann's certificate": (
        lambda job, bob, coordinator: replace(
            sign_job(spec(), coordinator), certificate=job.certificate
        ),
        "the signature is not that of the job's operator",
    ),
    "other operator": (
        lambda job, bob, coordinator: sign_job(spec(), bob),
        "policy rule operators: bob is not among them",
    ),
    "a signature of something else": (
        lambda job, bob, coordinator: replace(job, signature=bob.sign(LABEL + job.statement)),
        "the signature is not that of the job's operator",
    ),
    "none": (
        lambda job, bob, coordinator: replace(job, signature=b"", certificate=b""),
        "the certificate given for the job's operator: the certificate is no PEM certificate",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_job_that_the_operator_did_not_sign_is_declined_before_any_row_is_read(
    victim: Victim, people: People, ann: FileIdentity, forgery: str
) -> None:
    make, why = FORGERIES[forgery]
    bob = people.identity(Role.OPERATOR, "bob")
    job = make(sign_job(spec(), ann), bob, people.identity(Role.COORDINATOR, "ann"))
    assert victim.assign(job) == Declined(why)
    assert victim.loaded == 0
    assert victim.parts.accepted.open == frozenset()


def test_a_job_of_another_ca_is_declined(victim: Victim, tmp_path: Path) -> None:
    stranger = People(tmp_path / "other").identity(Role.OPERATOR, "ann")
    given = victim.assign(sign_job(spec(), stranger))
    assert isinstance(given, Declined)
    assert given.reason.endswith("signed by a CA that is not the federation's")


def test_a_job_for_another_federation_is_declined(victim: Victim, ann: FileIdentity) -> None:
    job = altered(sign_job(spec(), ann), federation="elsewhere")
    job = replace(job, signature=ann.sign(LABEL + job.statement))
    given = victim.assign(job)
    assert isinstance(given, Declined)
    assert "is for federation elsewhere, not for fed" in given.reason


@pytest.mark.parametrize(
    ("silos", "agreed", "why"),
    [
        ((*ALL, Silo("mallory")), None, "added silo mallory, which the job does not allow"),
        ((Silo("b"), Silo("c")), None, "silo a is not among the silos"),
        ((Silo("a"),), None, "named 1 silos, the job needs 2"),
        ((Silo("a"), Silo("a")), None, "named 1 silos, the job needs 2"),
        (ALL, (*ALL, Silo("mallory")), "added silo mallory"),
        (ALL, (Silo("a"),), "named 1 silos, the job needs 2"),
    ],
)
def test_silos_that_the_job_does_not_allow_are_refused(
    victim: Victim,
    ann: FileIdentity,
    silos: tuple[Silo, ...],
    agreed: tuple[Silo, ...] | None,
    why: str,
) -> None:
    job = sign_job(spec(), ann)
    if agreed is None:
        given = victim.assign(job, silos)
        assert isinstance(given, Declined)
        assert why in given.reason
    else:
        with pytest.raises(InvalidJob, match=why):
            victim.assign(job, silos, agreed=agreed)


def test_an_expired_job_is_declined_by_the_agents_clock(victim: Victim, ann: FileIdentity) -> None:
    job = sign_job(spec(), ann, days=2.0)
    assert isinstance(victim.assign(job), Acceptance)
    victim.days = 1.9
    assert isinstance(victim.assign(job, attempt=2), Acceptance)
    victim.days = 2.1
    given = victim.assign(job, attempt=3)
    assert isinstance(given, Declined)
    assert given.reason.endswith("of operator ann has expired")
    # Now the nonce may be forgotten: the job is refused by its own end.
    victim.assign(sign_job(spec(), ann, days=3.0))
    kept = victim.state.accepted.read("jobs")
    assert kept is not None
    assert statement_of(job).job_id.encode() not in kept


def test_no_job_outlives_its_signers_certificate(ann: FileIdentity) -> None:
    job = sign_job(spec(), ann, days=30.0)
    assert statement_of(job).not_after <= ann.subject.not_after
    with pytest.raises(InvalidJob, match="at most 30 days"):
        sign_job(spec(), ann, days=31.0)


def test_a_finished_job_is_not_repeated_not_even_after_a_restart(
    victim: Victim, ann: FileIdentity
) -> None:
    job = sign_job(spec(), ann)
    job_id = statement_of(job).job_id
    assert isinstance(victim.assign(job), Acceptance)
    assert isinstance(victim.assign(job, attempt=2), Acceptance)
    victim.parts.accepted.end({job_id, "unknown"})
    for attempt in (3, 1):
        victim.restart()
        given = victim.assign(job, attempt=attempt)
        assert given == Declined(f"job {job_id} has ended; it is not repeated")
    given = victim.assign(job, job_id="another-name")
    assert isinstance(given, Declined)
    assert f"ann signed job {job_id}; the coordinator assigned it as another-name" in given.reason


def test_a_coordinator_that_keeps_the_end_to_itself_repeats_a_job_no_more_than_its_attempts(
    victim: Victim, ann: FileIdentity
) -> None:
    job = sign_job(spec() + job_file.parse("max_attempts = 2"), ann)
    for attempt in range(1, 4):
        assert isinstance(victim.assign(job, attempt=attempt), Acceptance)
        victim.parts.accepted.done(statement_of(job).job_id)
        victim.restart()
    given = victim.assign(job, attempt=4)
    assert isinstance(given, Declined)
    assert given.reason.endswith("has ended; it is not repeated")


def test_a_nonce_that_its_operator_used_twice_is_one_job(victim: Victim, ann: FileIdentity) -> None:
    first = sign_job(spec(), ann)
    second = altered(sign_job(spec(rounds=9), ann), nonce=statement_of(first).nonce)
    second = replace(second, signature=ann.sign(LABEL + second.statement))
    assert isinstance(victim.assign(first), Acceptance)
    given = victim.assign(second, attempt=2)
    assert isinstance(given, Declined)
    assert "is not the one that this silo accepted under this nonce" in given.reason


def test_a_damaged_or_older_list_of_accepted_jobs_stops_the_agent(
    victim: Victim, ann: FileIdentity
) -> None:
    """Else a job that has ended could be repeated unseen."""
    folder = victim.state.path / "accepted"
    victim.assign(sign_job(spec(), ann))
    older = {file.name: file.read_bytes() for file in folder.iterdir()}
    for _ in range(2):
        victim.assign(sign_job(spec(), ann))
    newest = {file.name: file.read_bytes() for file in folder.iterdir()}
    flipped = {name: data[:70] + b"!" + data[71:] for name, data in newest.items()}
    for damaged in (older, flipped, dict.fromkeys(newest, b""), {}):
        for file in folder.iterdir():
            file.unlink()
        for name, data in damaged.items():
            (folder / name).write_bytes(data)
        with pytest.raises(RecordDamaged, match="the record accepted/jobs is damaged"):
            ReplayGuard(victim.state.accepted)


def test_the_coordinator_itself_refuses_what_the_silos_would(
    people: People, ann: FileIdentity
) -> None:
    coordinator = people.identity(Role.COORDINATOR, "coordinator")
    job = sign_job(spec(), ann)
    assert open_job(job, coordinator).operator == "ann"
    with pytest.raises(SignatureInvalid, match="not that of the job's operator"):
        open_job(altered(job, spec=spec(rounds=3)), coordinator)
    for changes, why in (
        ({"nonce": b"short"}, "a nonce of 16 bytes"),
        ({"view_version": 2}, "has view version 2; this version knows 1"),
    ):
        other = altered(job, **changes)
        other = replace(other, signature=ann.sign(LABEL + other.statement))
        with pytest.raises(InvalidJob, match=why):
            open_job(other, coordinator)
    garbage = SignedJob(b"\xff", ann.sign(LABEL + b"\xff"), ann.certificate)
    with pytest.raises(InvalidJob, match="is no JobStatement"):
        open_job(garbage, coordinator)
