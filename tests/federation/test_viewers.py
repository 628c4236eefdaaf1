"""Who may look and change nothing, and how many jobs an operator may have at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import LimitReached, SignatureInvalid, Unauthorised
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.wire import job_file
from hedgerow.services.wire.signed_job import LABEL, open_job, sign_job
from tests.adversary.people import People
from tests.federation.consoles import JOB
from tests.federation.test_audit_trail import lines_of
from tests.federation.test_silos_that_left import three_silos


def test_a_viewer_reads_all_jobs_and_changes_nothing(tmp_path: Path) -> None:
    people, trail = People(tmp_path / "pki"), tmp_path / "audit.jsonl"
    with three_silos(tmp_path, people, audit=str(trail)) as fed:
        people.make("viewer", Role.VIEWER, "vera")
        vera = client_for(fed.address, tmp_path / "pki/viewer", None)
        job_id = fed.submit(JOB.format(name="seen", rounds=2))
        assert fed.end(job_id).state == "SUCCEEDED"
        view = vera.get(job_id)
        assert len(view.rounds) == 2
        assert [one.job_id for one in vera.list()] == [job_id]
        assert [one.ended for one in vera.watch(job_id)][-1]
        assert [one.name for one in vera.silos()] == ["s0", "s1", "s2"]
        assert vera.plan(view.spec).rounds == 2
        spec, refused = job_file.parse(JOB.format(name="x", rounds=2)), "of viewer vera"
        for call in (lambda: vera.create(spec), lambda: vera.preflight(spec),
                     lambda: vera.cancel(job_id), lambda: vera.delete(job_id),
                     lambda: vera.download(job_id), lambda: vera.forget_silo("s0")):  # fmt: skip
            with pytest.raises(Unauthorised, match=refused):
                call()
        words = ("--coordinator", fed.address, "--identity", str(tmp_path / "pki/viewer"))
        for command in (["status"], ["jobs"], ["silos"], ["watch", job_id]):
            done = CliRunner().invoke(main, [*command, *words])
            assert done.exit_code == 0, done.output
        done = CliRunner().invoke(main, ["jobs", "delete", job_id, *words])
        assert done.exit_code == 2
        assert refused in done.output
        assert fed.client.get(job_id).artefacts == view.artefacts
        # A silo, and a coordinator that lies, have nothing to start: the signature is a viewer's.
        signed = sign_job(spec, FileIdentity(IdentityPaths.of(tmp_path / "pki/viewer")))
        silo = FileIdentity(IdentityPaths.of(tmp_path / "pki/silo/s0"))
        with pytest.raises(SignatureInvalid, match="is of viewer vera"):
            open_job(signed, silo, LABEL)
    of_vera = [line for line in lines_of(trail) if line.get("user.name") == "vera"]
    assert {line["event.action"] for line in of_vera} == {"call-refused"}
    assert {line["error.code"] for line in of_vera} == {"UNAUTHORISED"}
    assert all(line["user.roles"] == ["viewer"] for line in of_vera)


def test_an_operator_has_no_more_unfinished_jobs_than_the_coordinator_allows(
    tmp_path: Path,
) -> None:
    people = People(tmp_path / "pki")
    with three_silos(tmp_path, people, max_unfinished_jobs=2) as fed:
        people.make("other", Role.OPERATOR, "bob")
        bob = client_for(fed.address, tmp_path / "pki/other", None)
        long = JOB.format(name="long", rounds=100_000)
        identity = FileIdentity(IdentityPaths.of(tmp_path / "pki/operator"))
        signed = sign_job(job_file.parse(long), identity)
        first, second = fed.client.submit(signed), fed.submit(long)
        with pytest.raises(LimitReached, match=rf"ann has 2 unfinished jobs, .*{first}, {second}"):
            fed.submit(long)
        assert fed.client.submit(signed) == first, "it is one job still"
        bob.cancel(bob.create(job_file.parse(long)))
        fed.client.cancel(first)
        third = fed.submit(long)
        for job_id in (second, third):
            fed.client.cancel(job_id)
