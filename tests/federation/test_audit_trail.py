"""What a coordinator, a console and a CA put on record, and that nothing is done without."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import FederationError, Unauthorised
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.certificates import Role
from hedgerow.services.process import trail
from hedgerow.services.rpc.errors import NotFound
from tests.adversary.people import People
from tests.federation.consoles import JOB
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_silos_that_left import three_silos


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(path: Path, action: str) -> list[tuple[str, str, str]]:
    """Return who did an action, how it ended and why not, in order; of what is known so far."""
    return [
        (line.get("user.name", ""), line["event.outcome"], line.get("error.code", ""))
        for line in lines_of(path)
        if line["event.action"] == action
    ]


def test_who_did_what_at_a_coordinator_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    people = People(tmp_path / "pki")
    with three_silos(tmp_path, people, audit=str(path)) as fed:
        job_id = fed.submit(JOB.format(name="secretive", rounds=2))
        assert fed.end(job_id).state == "SUCCEEDED"
        fed.client.download(job_id)
        people.make("other", Role.OPERATOR, "bob")
        bob = client_for(fed.address, tmp_path / "pki/other", None)
        with pytest.raises(NotFound):
            bob.download(job_id)
        north = client_for(fed.address, tmp_path / "pki/silo/s0", None)
        for _ in range(5):
            with pytest.raises(Unauthorised):
                north.cancel(job_id)
        admin = client_for(fed.address, tmp_path / "pki/admin", None)
        fed.kill("agent-s2")
        wait_until(lambda: not fed.client.silos()[2].alive, 60, "s2 is away")
        admin.forget_silo("s2")
        long = fed.submit(JOB.format(name="long", rounds=2).replace("rounds = 2", "rounds = 2000"))
        assert admin.cancel(long) == "CANCELLED"
        assert fed.client.get(long).detail == "cancelled by root"
        _refused_where_it_cannot_be_written(fed, path)
    assert trail.verify([path]).lines == len(lines_of(path))
    assert told(path, "job-submit") == [("ann", "unknown", ""), ("ann", "success", "")] * 2
    assert told(path, "model-download") == [
        ("ann", "unknown", ""), ("ann", "success", ""),
        ("bob", "unknown", ""), ("bob", "failure", "NOT_FOUND"),
    ]  # fmt: skip
    assert told(path, "job-cancel")[:2] == [("root", "unknown", ""), ("root", "success", "")]
    assert told(path, "silo-forget") == [("root", "unknown", ""), ("root", "success", "")]
    assert told(path, "call-refused") == [("s0", "failure", "UNAUTHORISED")]
    assert {name for name, _, _ in told(path, "silo-join")} == {"s0", "s1", "s2"}
    from_where = {line.get("source.ip") for line in lines_of(path) if "user.name" in line}
    assert from_where == {"127.0.0.1"}
    submitted = [line for line in lines_of(path) if line["event.action"] == "job-submit"]
    assert [line.get("hedgerow.job") for line in submitted] == [None, job_id, None, long]
    assert "secretive" not in path.read_text()


def _refused_where_it_cannot_be_written(fed: Federation, path: Path) -> None:
    before = [job.job_id for job in fed.client.list()]
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    with pytest.raises(FederationError, match=r"cannot be written .*; nothing was done"):
        fed.submit(JOB.format(name="unseen", rounds=2))
    assert [job.job_id for job in fed.client.list()] == before
    path.rmdir()
    aside.rename(path)
    fed.client.cancel(before[0])


def test_a_silo_that_declines_is_on_record_with_its_rule(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with federation(tmp_path, start=False, audit=str(path)) as fed:
        fed.start_coordinator()
        fed.start_agent("s0", policy={"max_depth": 2})
        job = 'strategy = "bagging"\nmin_silos = 1\nsilos = ["s0"]\n[bagging]\nrounds = 1\n'
        job_id = fed.submit(job + "[booster]\nmax_depth = 6\n")
        assert fed.end(job_id).state == "FAILED"
    declined = [line for line in lines_of(path) if line["event.action"] == "job-decline"]
    assert [(line["user.name"], line["rule.name"]) for line in declined] == [("s0", "max_depth")]
    assert declined[0]["hedgerow.job"] == job_id


def test_a_roster_that_changes_and_a_silo_that_leaves_are_on_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with federation(tmp_path, start=False, audit=str(path), silos=["s0", "s1"]) as fed:
        fed.start_coordinator()
        for silo in ("s0", "s1"):
            fed.start_agent(silo)
        wait_until(lambda: len(told(path, "silo-join")) == 2, 60, "both have joined")
        fed.kill("agent-s1", signal.SIGTERM)
        wait_until(lambda: bool(told(path, "silo-leave")), 60, "one has left")
        settings = tmp_path / "coordinator.toml"
        settings.write_text(settings.read_text().replace('"s0", "s1"', '"s0"'))
        wait_until(lambda: bool(told(path, "roster-change")), 60, "the roster has changed")
    assert told(path, "silo-leave")[0][0] == "s1"
    (changed,) = [line for line in lines_of(path) if line["event.action"] == "roster-change"]
    assert changed["hedgerow.silos"] == ["s0"]
    assert "user.name" not in changed


def test_what_a_ca_signs_and_revokes_is_on_record(tmp_path: Path) -> None:
    def hedgerow(*words: str) -> None:
        done = CliRunner().invoke(main, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output

    ca, own = tmp_path / "ca", tmp_path / "own"
    named = ("--role", "operator", "--name", "ann")
    hedgerow("pki", "init", "--federation", "f", "--dir", str(ca))
    hedgerow("pki", "request", "--federation", "f", *named, "--dir", str(own))
    hedgerow("pki", "sign", str(own / "tls.csr"), "--ca", str(ca), *named)
    hedgerow("pki", "revoke", "ann", "--ca", str(ca))
    hedgerow("audit-log", "verify", str(ca / "audit.jsonl"))
    lines = lines_of(ca / "audit.jsonl")
    assert [(line["event.action"], line["event.outcome"]) for line in lines[1:]] == [
        ("certificate-sign", "unknown"), ("certificate-sign", "success"),
        ("certificate-revoke", "unknown"), ("certificate-revoke", "success"),
    ]  # fmt: skip
    assert lines[2]["hedgerow.holder"] == "operator/ann"
    assert lines[2]["hedgerow.serials"] == lines[4]["hedgerow.serials"]
    assert all(line["user.name"] for line in lines[1:])
    (ca / "audit.jsonl").rename(ca / "aside")
    (ca / "audit.jsonl").mkdir()
    done = CliRunner().invoke(main, ["pki", "revoke", "ann", "--ca", str(ca)])
    assert "nothing was done" in done.output
    assert done.exit_code == 2
