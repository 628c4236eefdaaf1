"""Run folders made up by members of a federation who were not in the job, or signed another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.coordinator.operator.verifying import findings
from hedgerow.services.identity.certificates import Role
from hedgerow.services.wire import job_file, provenance
from hedgerow.services.wire.provenance import RunStatement
from hedgerow.services.wire.signed_job import FILE, ITS_SILOS, SignedJob, sign_as_site, sign_job
from tests.adversary.people import People
from tests.adversary.test_joint_jobs import SITES, statement
from tests.adversary.test_signed_jobs import spec, statement_of

MEMBERS, OTHERS = ("a", "b", "c"), ("x", "y", "z")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people"))


def wrong_in(
    folder: Path,
    people: People,
    job: SignedJob,
    data: bytes,
    silos: Sequence[str],
    model: str = "model.ubj",
) -> dict[str, str]:
    """Write a run of a job file by silos that collude; return what is not right of it."""
    ann = people.identity(Role.OPERATOR, "ann")
    one = RunStatement(
        "", statement_of(job).job_id, job.digest.hex(), hashlib.sha256(data).hexdigest(),
        "ann" if job.signature else ITS_SILOS, tuple(silos),
        provenance.digests({"model.ubj": b"made up"}), "0" * 64, {},
    )  # fmt: skip
    signers = {silo: people.identity(Role.SILO, silo) for silo in silos}
    lines = [provenance.signed(replace(one, silo=silo), own) for silo, own in signers.items()]
    report = {
        "job": one.job, "job_digest": one.job_digest, "artefacts": ["model.ubj"], "model": model,
        "silos": [{"name": silo, "state": "present"} for silo in silos],
    }  # fmt: skip
    for name, written in {
        "report.json": json.dumps(report).encode(), "job.toml": job_file.dump(data).encode(),
        "model.ubj": b"made up", FILE: job.serialise(), provenance.FILE: provenance.lines(lines),
    }.items():  # fmt: skip
        (folder / name).write_bytes(written)
    found = findings(folder, ann.roots)
    return {part.part: part.said for part in reversed(found) if part.state != "right"}


def test_silos_that_the_job_does_not_have_make_up_no_run(people: People, tmp_path: Path) -> None:
    job = sign_job(data := spec(MEMBERS), people.identity(Role.OPERATOR, "ann"))
    assert not wrong_in(tmp_path, people, job, data, MEMBERS)
    wrong = wrong_in(tmp_path, people, job, data, OTHERS)
    assert wrong["signature of x"] == "the job does not have silo x"
    wrong = wrong_in(tmp_path, people, job, data, (*MEMBERS[:2], "x"))
    assert wrong["signature of a"] == "the job does not have silo x"


def test_a_job_file_that_its_operator_has_not_signed_is_wrong(
    people: People, tmp_path: Path
) -> None:
    """The attack: a job without its approvers, its audit or its silos, which its silos sign."""
    asked = spec(MEMBERS) + job_file.parse('approvers = ["dpo"]')
    job = sign_job(asked, people.identity(Role.OPERATOR, "ann"))
    assert wrong_in(tmp_path, people, job, asked, MEMBERS) == {
        "approvals": "nobody has signed, 1 more of dpo must"
    }
    wrong = wrong_in(tmp_path, people, job, spec(OTHERS), OTHERS)
    assert wrong == {FILE: "ann has signed another job.toml, or identifier"}


def test_a_report_names_no_other_model_than_the_signed_one(people: People, tmp_path: Path) -> None:
    """The attack: one file more, and its name in report.json, where commands look for the model."""
    job = sign_job(data := spec(MEMBERS), people.identity(Role.OPERATOR, "ann"))
    (tmp_path / "other.ubj").write_bytes(b"another model")
    wrong = wrong_in(tmp_path, people, job, data, MEMBERS, "other.ubj")
    assert wrong == {f"other.ubj, by {silo}": "the silo has not signed it" for silo in MEMBERS}


def test_a_job_of_scripts_is_signed_by_all_that_it_names(people: People, tmp_path: Path) -> None:
    """The attack: a statement that names one of the sites as the only one."""
    data = statement(sites=SITES[:1], spec=spec()).serialise()
    own = sign_as_site(data, people.identity(Role.SILO, SITES[0].silo))
    names = tuple(site.silo for site in SITES)
    wrong = wrong_in(tmp_path, people, SignedJob(data, b"", b"", (own,)), spec(), names)
    assert "expected at least 2 sites" in wrong[FILE]
