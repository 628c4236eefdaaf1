"""A run is what its silos have signed: statements of real silos, and what is changed in them."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.clients import fetch
from hedgerow.coordinator.operator.verifying import VerifiedPart, findings
from hedgerow.services.identity.certificates import read
from hedgerow.services.wire.provenance import FILE
from hedgerow.services.wire.signed_job import FILE as JOB
from hedgerow.services.wire.signed_job import JobApproval, SignedJob
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_faults import job, succeeded

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Signed:
    """A run folder that its silos have signed, and where they have their ledgers."""

    def __init__(self, fed: Federation, folder: Path) -> None:
        self.folder, self.ca = folder, fed.folder / "pki/operator/ca.crt"
        self.ledgers = {s: fed.folder / f"state-agent-{s}/ledger.jsonl" for s in ("s0", "s1", "s2")}

    def findings(self, folder: Path | None = None) -> list[VerifiedPart]:
        return findings(folder or self.folder, read(self.ca), self.ledgers)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("provenance")
    with federation(folder) as fed:
        succeeded(fed.end(fed.submit(job())))
        job_id = fed.submit(job())
        succeeded(fed.end(job_id))

        def all_signed() -> bool:
            return fed.client.download(job_id, FILE)[1].count(b"\n") == 3

        wait_until(all_signed, 60, "all silos have signed")
        fetch(fed.client, job_id, folder / "run")
        fetch(fed.client, job_id, folder / "again")
        yield Signed(fed, folder / "run")


def test_a_run_that_nobody_has_changed_is_right_in_every_part(signed: Signed) -> None:
    found = signed.findings()
    assert {one.state for one in found} == {"right"}, found
    parts = {one.part for one in found}
    assert {"signature of s0", "signature of s1", "signature of s2"} <= parts
    assert {"model.ubj, by s0", "job.toml, by s1", "ledger of s2"} <= parts
    assert "signature of the job" in parts
    words = ["verify", str(signed.folder), "--ca", str(signed.ca)]
    ledgers = [f"--ledger={silo}={path}" for silo, path in signed.ledgers.items()]
    done = CliRunner().invoke(main, [*words, *ledgers])
    assert done.exit_code == 0, done.output


def _line(text: str, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> str:
    """Return the statements with a change of the first, whose signature stays."""
    first, *others = text.splitlines()
    envelope = json.loads(first)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(envelope, statement)
    payload = json.dumps(statement, separators=(",", ":")).encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    return "\n".join([json.dumps(envelope, separators=(",", ":")), *others]) + "\n"


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "the model": (lambda at: _put(at / "model.ubj", b"another model"), "model.ubj, by s0"),
    "a model that is gone": (lambda at: (at / "model.ubj").unlink(), "model.ubj, by s1"),
    "the job": (
        lambda at: _edit(at / "job.toml", "max_depth = 3", "max_depth = 4"), "job.toml, by s2",
    ),
    "the identifier": (lambda at: _report(at, job="another"), "the job's identifier, by s0"),
    "the signed job": (lambda at: _report(at, job_digest="00"), "the signed job, by s0"),
    "the job's signature": (lambda at: _job(at, signature=b"x"), JOB),
    "its operator": (
        lambda at: _job(at, certificate=json.loads(
            (at / FILE).read_text().splitlines()[1])["signatures"][0]["cert"].encode()), JOB,
    ),
    "its statement": (lambda at: _job(at, statement=b"x"), JOB),
    "approvals that nobody gave": (
        lambda at: _job(at, approvals=(JobApproval(b"x", _signed_job(at).certificate),)), JOB,
    ),
    "a signed job that is gone": (lambda at: (at / JOB).unlink(), JOB),
    "no signed job": (lambda at: _put(at / JOB, b"\xff"), JOB),
    "one more file": (lambda at: _report(at, artefacts=["x.txt"]), "x.txt, by s0"),
    "a silo more": (
        lambda at: _report(at, silos=[{"name": "s9", "state": "present"}]), "signature of s9",
    ),
    "a silo's line": (
        lambda at: _put(at / FILE, b"\n".join((at / FILE).read_bytes().splitlines()[1:])),
        "signature of s0",
    ),
    "too few lines": (
        lambda at: _put(at / FILE, (at / FILE).read_bytes().splitlines()[0]), FILE,
    ),
    "no line at all": (
        lambda at: (_put(at / FILE, b""), _report(at, **{"silos": None}))[0], FILE,
    ),
    "a line twice": (lambda at: _put(at / FILE, (at / FILE).read_bytes() * 2), "signature of s0"),
    "no lines": (lambda at: (at / FILE).unlink(), FILE),
    "another operator": (
        lambda at: _statement(at, lambda e, s: s["predicate"].update(operator="mallory")),
        f"{FILE} line 1",
    ),
    "another silo": (
        lambda at: _statement(at, lambda e, s: s["predicate"].update(silo="s1")), f"{FILE} line 1",
    ),
    "a field more": (
        lambda at: _statement(at, lambda e, s: s["predicate"].update(more=1)), f"{FILE} line 1",
    ),
    "another's key": (
        lambda at: _statement(at, lambda e, s: e["signatures"][0].update(
            cert=json.loads((at / FILE).read_text().splitlines()[1])["signatures"][0]["cert"]
        )), f"{FILE} line 1",
    ),
    "a second signature": (
        lambda at: _statement(at, lambda e, s: e["signatures"].append(e["signatures"][0])),
        f"{FILE} line 1",
    ),
}  # fmt: skip
"""What is changed in a run folder, and the part that must be named."""


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _signed_job(folder: Path) -> SignedJob:
    return SignedJob.parse((folder / JOB).read_bytes())


def _job(folder: Path, **changes: Any) -> None:
    _put(folder / JOB, replace(_signed_job(folder), **changes).serialise())


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _report(folder: Path, **own: Any) -> None:
    path = folder / "report.json"
    report = json.loads(path.read_text())
    for name, value in own.items():
        report[name] = report[name] + value if isinstance(value, list) else value or []
    path.write_text(json.dumps(report))


def _statement(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    path = folder / FILE
    path.write_text(_line(path.read_text(), change))


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_is_named(signed: Signed, what: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(signed.folder, folder)
    change, part = CHANGES[what]
    change(folder)
    wrong = {one.part for one in signed.findings(folder) if one.state != "right"}
    assert part in wrong
    done = CliRunner().invoke(main, ["verify", str(folder), "--ca", str(signed.ca)])
    assert done.exit_code == 1, done.output
    assert part in " ".join(done.output.split())


def test_any_changed_byte_of_a_statement_is_found(signed: Signed, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(signed.folder, folder)
    path = folder / FILE
    text = path.read_bytes()
    for at in range(0, len(text), 61):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        assert any(one.state != "right" for one in signed.findings(folder)), at


def test_a_run_of_another_federation_and_an_altered_ledger_are_found(
    signed: Signed, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with federation(tmp_path / "other", start=False):
        other = read(tmp_path / "other/pki/operator/ca.crt")
    found = findings(signed.folder, other)
    assert all(one.state != "right" for one in found if one.part.startswith(FILE))
    assert any("signed by a CA that is not the federation's" in one.said for one in found)
    ledger = tmp_path / "ledger.jsonl"
    lines = signed.ledgers["s0"].read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[: len(lines) // 2]))
    for path, said in ((ledger, "has not the line"), (signed.ledgers["s1"], "it is of s1")):
        found = findings(signed.folder, read(signed.ca), {"s0": path})
        assert said in next(one.said for one in found if one.part == "ledger of s0")
