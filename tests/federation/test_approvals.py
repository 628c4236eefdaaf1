"""Jobs that people must approve, and models that leave only after a signed audit."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from click.testing import CliRunner, Result

import hedgerow
from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    InvalidJob,
    JobStopped,
    OfferRejected,
    SignatureInvalid,
    Unauthorised,
)
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import client_for, fetch, release_run
from hedgerow.coordinator.operator.verifying import VerifiedPart, findings
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.store import Store
from hedgerow.services.identity.certificates import IdentityPaths, Role, read
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.errors import NotFound, NotReleased
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.provenance import FILE as PROVENANCE
from hedgerow.services.wire.release import AUDIT, FILE
from hedgerow.services.wire.signed_job import FILE as SIGNED
from hedgerow.services.wire.signed_job import JobApproval, SignedJob, approve_job
from tests.adversary.people import People
from tests.federation.consoles import JOB, asked, console
from tests.federation.processes import Federation, wait_until, write_table
from tests.federation.test_audit_trail import lines_of
from tests.federation.test_faults import succeeded
from tests.federation.test_silos_that_left import three_silos

pytestmark = [pytest.mark.process, pytest.mark.slow]

APPROVED = 'approvers = ["bob", "dpo", "root"]\nmin_approvals = 2\n'
GATE = '[audit]\napprovers = ["dpo", "board"]\nmin_approvals = {n}\nmembership_auc_max = {most}\n'


@dataclass
class Office:
    """A federation with an operator, and those who are asked."""

    fed: Federation
    folder: Path

    def client(self, name: str) -> JobClient:
        return client_for(self.fed.address, self.folder / "pki" / name, None)

    def run(self, name: str, *words: str, **more: Any) -> Result:
        where = ("--coordinator", self.fed.address, "--identity", str(self.folder / "pki" / name))
        return CliRunner().invoke(main, [*words, *where], **more)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    people = People(folder / "pki")
    for name, role in (("dpo", Role.VIEWER), ("board", Role.VIEWER), ("vera", Role.VIEWER)):
        people.make(name, role, name)
    people.make("bob", Role.OPERATOR, "bob")
    people.make("carl", Role.OPERATOR, "carl")
    with three_silos(folder, people, audit=str(folder / "audit.jsonl")) as fed:
        yield Office(fed, folder)


def test_a_job_waits_until_enough_approvers_have_signed_it(office: Office) -> None:
    fed = office.fed
    job_id = fed.submit(APPROVED + JOB.format(name="asked", rounds=2))
    waits = "for approvals (nobody has signed, 2 more of bob, dpo, root must)"
    assert waits in fed.client.get(job_id).detail
    assert waits in " ".join(office.run("operator", "status").output.split())

    # Nobody else may, an operator who is not asked sees no such job, and a viewer may not.
    for name, kind in (("carl", NotFound), ("vera", Unauthorised), ("operator", Unauthorised)):
        client = office.client(name)
        with pytest.raises(kind):
            client.approve(fed.client.signed(job_id))
    # An approver reads what it signs, and may refuse.
    done = office.run("bob", "approve", job_id, input="n\n")
    assert done.exit_code == 2, done.output
    assert 'approvers = ["bob", "dpo", "root"]' in done.output
    assert f"job {job_id}, signed by ann" in " ".join(done.output.split())
    done = office.run("bob", "approve", job_id, input="y\n")
    assert done.exit_code == 0, done.output
    assert fed.client.get(job_id).approved == ("bob",)
    assert "bob has signed, 1 more of dpo, root must" in fed.client.get(job_id).detail
    # An approver may look, and neither cancel nor download.
    bob = office.client("bob")
    assert bob.get(job_id).job_id == job_id
    with pytest.raises(NotFound, match="operator bob has no job"):
        bob.cancel(job_id)
    # What is given outlives the coordinator.
    fed.kill("coordinator")
    fed.start_coordinator()
    assert office.client("operator").get(job_id).approved == ("bob",)
    done = office.run("dpo", "approve", job_id, "--yes", "--json")
    assert json.loads(done.stdout) == {"job": job_id, "signed": ["bob", "dpo"], "missing": 0}
    succeeded(fed.end(job_id))
    assert fed.client.get(job_id).approved == ("bob", "dpo")
    with pytest.raises(NotFound, match="operator bob has no job"):
        bob.download(job_id)
    with pytest.raises(JobStopped, match="there is nothing to approve"):
        office.client("admin").approve(fed.client.signed(job_id))
    trail = office.folder / "audit.jsonl"
    wait_until(lambda: acted(trail, "job-approve", job_id) == ["bob", "dpo"], 60, "on record")
    assert "vera" in acted(trail, "job-approve", job_id, "failure")


def acted(trail: Path, action: str, job_id: str, outcome: str = "success") -> list[str]:
    """Who did something to a job; the second line of an action comes after its answer."""
    return [
        line["user.name"]
        for line in lines_of(trail)
        if (line["event.action"], line["event.outcome"]) == (action, outcome)
        and line.get("hedgerow.job") == job_id
    ]


def test_an_operator_does_not_approve_the_own_job(office: Office) -> None:
    with pytest.raises(InvalidJob, match="expected 2 other than ann, who submits the job"):
        office.fed.submit('approvers = ["ann", "dpo"]\n' + JOB.format(name="own", rounds=2))
    job_id = office.fed.submit(
        'approvers = ["ann", "dpo"]\nmin_approvals = 1\n' + JOB.format(name="own", rounds=2)
    )
    with pytest.raises(Unauthorised, match=r"^ann has submitted job "):
        office.client("operator").approve(office.fed.client.signed(job_id))
    gate = GATE.format(n=2, most=0.5).replace('"board"', '"ann"')
    with pytest.raises(InvalidJob, match=r"\[audit\] approvers: expected 2 other than ann"):
        office.fed.submit(JOB.format(name="own", rounds=2) + gate)
    wait_until(lambda: "approvals" in office.fed.client.get(job_id).detail, 30, "it waits")
    dpo = hedgerow.connect(office.fed.address, office.folder / "pki/dpo")
    with pytest.raises(InvalidJob, match="read what you sign first"):
        dpo.approve(job_id)
    assert dpo.signed_job(job_id).parameters.approvals.approvers == ("ann", "dpo")
    assert dpo.approve(job_id) == ("dpo",)
    succeeded(office.fed.end(job_id))


def test_an_approver_reads_and_signs_at_the_console(office: Office) -> None:
    fed = office.fed
    one = fed.submit('approvers = ["dpo"]\n' + JOB.format(name="seen & read", rounds=2))
    two = fed.submit('approvers = ["dpo"]\n' + JOB.format(name="other", rounds=2) + GATE.format(
        n=1, most=0.5
    ))  # fmt: skip
    with console(fed, "--identity", str(office.folder / "pki/dpo"), "--listen", "127.0.0.1:0") as (
        address, _,
    ):  # fmt: skip
        to = urlsplit(address)
        entered = asked(address, "GET", f"/?{to.query}")
        own = {"Cookie": entered.headers["set-cookie"].split(";")[0]}
        page = asked(address, "GET", f"/jobs/{one}", **own).body
        assert "Approval of the job: nobody has signed, 1 more of dpo must" in page
        assert "name = &#34;seen &amp; read&#34;" in page
        token, digest = (
            re.search(rf'name="{name}" value="(\w+)"', page)[1]  # type: ignore[index]
            for name in ("token", "digest")
        )

        def approve(job_id: str, **fields: str) -> tuple[int, str]:
            own["Origin"] = f"http://{to.netloc}"
            answer = asked(address, "POST", f"/jobs/{job_id}/approve", urlencode(fields), **own)
            return answer.status, answer.body

        assert approve(one, digest=digest)[0] == 403
        status, said = approve(two, token=token, digest=digest)
        assert (status, "is not the one that the page has shown" in said) == (502, True)
        assert approve(one, token=token, digest=digest)[0] == 303
        succeeded(fed.end(one))
        page = asked(address, "GET", f"/jobs/{one}", **own).body
        assert "Approval of the job: dpo has signed" in page
        assert "Approve the job" not in page
        page = asked(address, "GET", f"/jobs/{two}", **own).body
        said = "Release of the model, by an audit with membership_auc_max = 0.5: nobody has signed"
        assert said in page
    fed.client.cancel(two)


def test_an_approval_for_another_job_is_refused(office: Office) -> None:
    asked = 'approvers = ["dpo"]\n' + JOB.format(name="one", rounds=2)
    one, other = office.fed.submit(asked), office.fed.submit(asked)
    dpo = office.client("dpo")
    signed = dpo.signed(one)
    moved = replace(signed, statement=dpo.signed(other).statement)
    with pytest.raises(SignatureInvalid, match="not that of an approver"):
        dpo.approve(moved)
    dpo._identity._certificate *= 60
    with pytest.raises(OfferRejected, match="expected a certificate of at most 16384 bytes"):
        dpo.approve(signed)
    for job_id in (one, other):
        office.fed.client.cancel(job_id)


def test_silos_decline_what_a_coordinator_starts_without_approvals(office: Office) -> None:
    """The coordinator's own database says that the approver has signed."""
    fed = office.fed
    job_id = fed.submit('approvers = ["dpo"]\n' + JOB.format(name="forged", rounds=2))
    fed.kill("coordinator")
    store = Store(f"sqlite:///{office.folder / 'state.db'}")
    store.approve(job_id, JobApproval(b"forged", read(office.folder / "pki/dpo/tls.crt")))
    store.close()
    fed.start_coordinator()
    view = fed.end(job_id)
    assert (view.state, view.approved) == ("FAILED", ("dpo",))
    assert view.silos, "the first that declines ends the job"
    for silo in view.silos:
        assert "is not approved: nobody has signed, 1 more of dpo must" in silo.detail


class Held:
    """A run whose model is held back, and its folder as an approver has downloaded it."""

    def __init__(self, office: Office, folder: Path, n: int = 2, most: float = 1.0) -> None:
        self.office, self.folder = office, folder
        fed = office.fed
        text = JOB.format(name="held", rounds=3) + GATE.format(n=n, most=most)
        self.job_id = fed.submit(text)
        succeeded(fed.end(self.job_id))

        def all_signed() -> bool:
            return fed.client.download(self.job_id, PROVENANCE)[1].count(b"\n") == 3

        wait_until(all_signed, 60, "all silos have signed")
        self.run = folder / "run"
        self.test = write_table(folder / "test.parquet", 60, 9)
        fetch(office.client("dpo"), self.job_id, self.run)

    def audit(self) -> dict[str, Any]:
        own = {"s0": str(self.office.fed.silos["s0"])}
        found: dict[str, Any] = hedgerow.Run(self.run).audit(own, str(self.test))
        return found

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.run, self.folder / name))

    def wrong(self, folder: Path) -> dict[str, VerifiedPart]:
        found = findings(folder, read(self.office.folder / "pki/operator/ca.crt"))
        return {one.part: one for one in found if one.state != "right"}


def test_a_model_leaves_once_enough_approvers_have_signed_its_audit(
    office: Office, tmp_path: Path
) -> None:
    held, fed = Held(office, tmp_path), office.fed
    done = office.run("operator", "download", held.job_id, "--out", str(tmp_path / "own"))
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert "is not released: nobody has signed, 2 more of board, dpo must" in said
    assert not (tmp_path / "own").exists()
    for name in ("", "model.ubj", "schema.json"):
        with pytest.raises(NotReleased):
            fed.client.download(held.job_id, name)
    with pytest.raises(NotReleased):
        office.client("admin").download(held.job_id)
    for name, kind in (("carl", NotFound), ("vera", Unauthorised)):
        with pytest.raises(kind):
            office.client(name).download(held.job_id)
    # Nor does a job that goes on from it bring it to silos.
    with pytest.raises(NotReleased):
        hedgerow.connect(fed.address, office.folder / "pki/operator").submit(
            hedgerow.Job.from_toml(JOB.format(name="next", rounds=2)), model=held.run
        )

    with pytest.raises(DataError, match=r"there is no audit\.json"):
        release_run(office.client("dpo"), held.run)
    assert held.audit()["passed"]
    assert held.wrong(held.run)[FILE].said == "nobody has signed, 2 more of board, dpo must"
    with pytest.raises(Unauthorised, match="is for board, dpo to release, not ann"):
        release_run(fed.client, held.run)
    done = office.run("dpo", "approve", str(held.run), "--release")
    assert "membership_auc_max = 1: found 0." in done.output, "what is signed is shown, and asked"
    assert fed.client.get(held.job_id).released == ()
    done = office.run("dpo", "approve", str(held.run), "--release", "--yes")
    assert done.stdout.strip() == "dpo has signed, 1 more of board must"
    assert fed.client.get(held.job_id).released == ("dpo",)
    with pytest.raises(NotReleased, match="dpo has signed, 1 more of board must"):
        fed.client.download(held.job_id)
    board = hedgerow.connect(fed.address, office.folder / "pki/board")
    assert board.release(held.run) == ("board", "dpo")

    done = office.run("operator", "download", held.job_id, "--out", str(tmp_path / "own"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "own/model.ubj").read_bytes() == (held.run / "model.ubj").read_bytes()
    assert not held.wrong(tmp_path / "own")
    done = CliRunner().invoke(
        main, ["verify", str(tmp_path / "own"), "--ca", str(office.folder / "pki/dpo/ca.crt")]
    )
    assert done.exit_code == 0, done.output
    assert "audit of board" in done.output
    trail = office.folder / "audit.jsonl"
    named = ["dpo", "board"]
    wait_until(lambda: acted(trail, "model-release", held.job_id) == named, 60, "on record")


def test_a_client_refuses_what_a_lenient_coordinator_hands_out(
    office: Office, tmp_path: Path
) -> None:
    """The coordinator keeps words of approvers that are not theirs, and counts them."""
    held, fed = Held(office, tmp_path), office.fed
    held.audit()
    release_run(office.client("dpo"), held.run)
    line = (held.run / FILE).read_bytes().splitlines()[0]
    stored = Artefacts(str(office.folder / "artefacts"))
    lies = {
        "dpo's in the name of board": line,
        "altered": line.replace(b'"sig":"M', b'"sig":"N'),
        "none": b"{}",
    }
    for lie in lies.values():
        stored.write_checked(held.job_id, "released/board", lie)
        assert fed.client.download(held.job_id)[1], "the coordinator hands it out"
        with pytest.raises(NotReleased, match="dpo has signed, 1 more of board must"):
            fetch(fed.client, held.job_id, tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_release_is_of_these_files_and_of_an_audit_within_the_limits(
    office: Office, tmp_path: Path
) -> None:
    held, dpo = Held(office, tmp_path, n=1, most=0.3), office.client("dpo")
    assert not held.audit()["passed"]
    with pytest.raises(DataError, match=r"membership_auc_max 0.3 does not hold: 0\.[0-9]{3}"):
        release_run(dpo, held.run)

    def changed(name: str, change: Callable[[Path], None]) -> str:
        folder = held.copy(name)
        change(folder)
        with pytest.raises(FederationError) as refused:
            release_run(dpo, folder)
        return str(refused.value)

    def loosened(folder: Path) -> None:  # the folder's own job says so, the coordinator's does not
        _edit(folder / "job.toml", "membership_auc_max = 0.3", "membership_auc_max = 1.0")
        _audit(folder, passed=True)

    assert "0.3 does not hold" in changed("loosened", loosened)
    document = json.loads((held.run / AUDIT).read_text())
    good = [{**document["limits"][0], "found": 0.2, "passed": True}]

    def other_model(folder: Path) -> None:
        (folder / "model.ubj").write_bytes(b"another")
        _audit(folder, passed=True, limits=good)

    assert "the audit is of another model" in changed("other", other_model)
    assert "has not passed" in changed("failed", lambda f: _audit(f, limits=good))
    assert "not measured" in changed(
        "unmeasured", lambda f: _audit(f, passed=True, limits=[{**good[0], "found": None}])
    )
    assert "expected an audit.json" in changed("none", lambda f: _put(f / AUDIT, "[]"))

    def other_job(folder: Path) -> None:
        _report(folder, job_digest="00")
        _audit(folder, passed=True, limits=good)

    assert "expected the signed job 00…, received another" in changed("job", other_job)
    # An approver that makes numbers up is believed: it is the approver who signs.
    _audit(held.run, passed=True, limits=good)
    assert release_run(dpo, held.run) == ("dpo",)
    fetch(office.fed.client, held.job_id, tmp_path / "own")
    for name, change in {
        "model": lambda f: (f / "model.ubj").write_bytes(b"another"),
        "line": lambda f: (f / FILE).write_bytes(b"{}\n"),
        "gone": lambda f: (f / FILE).unlink(),
        "job": lambda f: _edit(f / "job.toml", '["dpo", "board"]', '["board"]'),
    }.items():
        folder = Path(shutil.copytree(tmp_path / "own", tmp_path / f"own-{name}"))
        change(folder)  # type: ignore[no-untyped-call]
        assert FILE in held.wrong(folder), name


def _put(path: Path, text: str) -> None:
    path.write_text(text)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _audit(folder: Path, **changes: Any) -> None:
    path = folder / AUDIT
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _report(folder: Path, **changes: Any) -> None:
    path = folder / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_job_of_the_how_to_is_approved_trained_and_released(
    office: Office, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/approvals.md").read_text()
    job, policy = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    asked = job_wire.decode(job_file.parse(job)).approvals
    Policy.model_validate(tomllib.loads(policy)["policy"]).check_approvers(asked, "ann")
    (tmp_path / "job.toml").write_text(job)
    done = office.run("operator", "submit", str(tmp_path / "job.toml"))
    assert done.exit_code == 0, done.output
    assert "its silos wait for approvals: nobody has signed" in " ".join(done.output.split())
    job_id, run = done.stdout.strip(), str(tmp_path / "run")
    for name in ("dpo", "board"):
        done = office.run(name, "approve", job_id, "--yes")
        assert done.exit_code == 0, done.output
    succeeded(office.fed.end(job_id))
    done = office.run("board", "download", job_id, "--out", run)
    assert "for your audit, not released: nobody has signed" in " ".join(done.output.split())
    own, test = office.fed.silos["s0"], write_table(tmp_path / "test.parquet", 60, 9)
    done = CliRunner().invoke(main, ["audit", run, f"--silo=s0={own}", "--test", str(test)])
    assert "membership_auc_max 0.95: holds" in done.output
    done = office.run("board", "approve", run, "--release", "--yes")
    assert done.stdout.strip() == "board has signed"
    done = office.run("operator", "download", job_id, "--out", str(tmp_path / "own"))
    assert done.exit_code == 0, done.output
    found = findings(tmp_path / "own", read(office.folder / "pki/operator/ca.crt"))
    right = [(one.part, one.said) for one in found if one.state == "right"]
    assert {("signature of the job", "by ann"), ("approval of board", "")} <= {*right}
    # One approval is taken out of the folder, and one that nobody asked for is added.
    path = tmp_path / "own" / SIGNED
    signed = SignedJob.parse(path.read_bytes())
    carl = FileIdentity(IdentityPaths.of(office.folder / "pki/carl"))
    one_only = replace(signed, approvals=(signed.approvals[0], approve_job(signed, carl)))
    path.write_bytes(one_only.serialise())
    found = findings(tmp_path / "own", read(office.folder / "pki/operator/ca.crt"))
    bad = {one.part: one for one in found if one.state != "right" and "silo" not in one.said}
    assert {"approval of carl", "approvals"} <= bad.keys()
    assert bad["approvals"].said == "dpo has signed, 1 more of board, root must"


def test_on_one_machine_nobody_approves(tmp_path: Path) -> None:
    table = str(write_table(tmp_path / "a.parquet", 60, 0))
    for more in ({"approvers": ["dpo"]}, {"audit": {"approvers": ["dpo"]}}):
        with pytest.raises(InvalidJob, match="nobody signs a job whose silos are on one machine"):
            hedgerow.local(
                {"strategy": "bagging", **more}, {"a": table, "b": table}, out=tmp_path / "run"
            )
