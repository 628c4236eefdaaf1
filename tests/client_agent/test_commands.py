"""``hedgerow ledger`` as an auditor uses it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hedgerow.boosting.budget import Spending
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.coordinator.cli import main
from hedgerow.services.process.ledgers import head_of
from tests.client_agent.test_ledger import filled, write


def hedgerow(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["ledger", *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run folder of a job with two silos."""
    for silo in ("north", "south"):
        head_of(filled(tmp_path / f"ledger-{silo}.jsonl", 4, silo)).unlink()
    silos = [{"name": silo, "bytes_up": 10 + 11 + 12 + 13} for silo in ("north", "south")]
    (tmp_path / "report.json").write_text(json.dumps({"job": "job-1", "silos": silos}))
    return tmp_path


def test_a_run_folders_ledgers_hold_and_agree_with_the_report(run: Path) -> None:
    done = hedgerow("verify", run, "--json")
    assert done.exit_code == 0, done.output
    told = {row["silo"]: row for row in json.loads(done.stdout)}
    assert {silo: (row["lines"], row["bytes"]) for silo, row in told.items()} == {
        "north": (4, 46),
        "south": (4, 46),
    }
    assert all(row["agrees"] for row in told.values())
    assert hedgerow("verify", run).exit_code == 0


@pytest.mark.parametrize("drop", [0, 1, 3])
def test_a_line_taken_out_of_a_copy_is_found_wherever_it_was(run: Path, drop: int) -> None:
    path = run / "ledger-south.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:drop] + lines[drop + 1 :]))
    done = hedgerow("verify", run)
    assert done.exit_code == 1
    assert "ledger-south.jsonl" in done.stderr
    missing = "the coordinator received 46 bytes from south for job job-1, the ledger has 33"
    assert (missing if drop == 3 else f"line {drop + 1}: the chain does not hold") in done.stderr


def test_another_silos_ledger_in_a_run_folder_is_refused(run: Path) -> None:
    (run / "ledger-south.jsonl").write_bytes((run / "ledger-north.jsonl").read_bytes())
    done = hedgerow("verify", run)
    assert done.exit_code == 1
    assert "line 1: of silo north, not of south" in done.stderr


def test_a_ledger_of_a_silo_outside_the_job_is_refused(run: Path, tmp_path: Path) -> None:
    stranger = filled(tmp_path / "state" / "ledger.jsonl", silo="west")
    done = hedgerow("verify", stranger, "--report", run / "report.json")
    assert done.exit_code == 1
    assert "west is not a silo of job job-1, whose silos are north, south" in done.stderr


def test_payloads_that_were_sent_again_are_no_damage(run: Path) -> None:
    path = run / "ledger-north.jsonl"
    ledger = SiloLedger(path, "north", "coordinator", lambda: 0.0)
    write(ledger, 13)
    ledger.close()
    done = hedgerow("verify", path, "--json")
    assert done.exit_code == 0
    (told,) = json.loads(done.stdout)
    assert told["agrees"] is False
    assert told["note"].startswith("13 bytes more than the coordinator counted")


def test_an_agents_state_folder_has_its_ledger_and_a_noted_head_is_checked(tmp_path: Path) -> None:
    filled(tmp_path / "ledger.jsonl")
    (told,) = json.loads(hedgerow("verify", tmp_path, "--json").stdout)
    assert (told["lines"], told["agrees"]) == (6, None)
    assert hedgerow("verify", tmp_path, "--head", told["head"]).exit_code == 0
    assert hedgerow("verify", tmp_path, "--head", "ab" * 32).exit_code == 1
    assert hedgerow("verify", tmp_path, "--silo", "south").exit_code == 1


def test_show_tells_what_left_and_what_it_tells_its_reader(run: Path) -> None:
    done = hedgerow("show", run / "ledger-north.jsonl")
    assert done.exit_code == 0
    assert "trees tells: trees that fit this silo's rows" in done.stdout
    (told,) = json.loads(hedgerow("show", run / "ledger-north.jsonl", "--json").stdout)
    assert (told["payloads"], told["bytes"], told["kind"]) == (4, 46, "Words")
    lines = json.loads(hedgerow("show", run, "--lines", "--json").stdout)
    assert [line["bytes"] for line in lines] == [10, 11, 12, 13] * 2
    assert json.loads(hedgerow("show", run, "--job", "other", "--json").stdout) == []


def test_job_names_and_calls_are_shown_whole_whatever_the_terminal(tmp_path: Path) -> None:
    job = "20261104-101500-1a2b3c"
    path = tmp_path / "ledger.jsonl"
    made = SiloLedger(path, "north", "coordinator", lambda: 1_700_000_000.0)
    made.record_call("RegisterSilo", b"who", "", True)
    made.record_call("AcceptAssignment", b"columns", job, True)
    made.close()
    shown = hedgerow("show", path).stdout
    assert f"silo north, job {job}" in shown
    assert "silo north, of no job" in shown
    assert "AcceptAssignment" in shown
    lines = hedgerow("show", path, "--lines").stdout.splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["–", job]
    told = json.loads(hedgerow("verify", path, "--json").stdout)
    assert [(row["bytes"], row["control"], row["jobs"]) for row in told] == [(0, 10, 1)]


def test_a_damaged_ledger_is_not_shown_or_exported(run: Path) -> None:
    path = run / "ledger-north.jsonl"
    path.write_text(path.read_text().replace('"bytes":11', '"bytes":12'))
    assert hedgerow("show", path).exit_code == 1
    assert hedgerow("export", path, "--out", run / "out.csv").exit_code == 1
    assert not (run / "out.csv").exists()


def test_exports_hold_every_line(run: Path) -> None:
    lines = json.loads(hedgerow("show", run, "--lines", "--json").stdout)
    for name in ("out.csv", "out.parquet", "out.json"):
        assert hedgerow("export", run, "--out", run / name).exit_code == 0
    assert json.loads((run / "out.json").read_text()) == lines
    assert pq.read_table(run / "out.parquet").to_pylist() == lines
    with (run / "out.csv").open() as file:
        assert [row["sha256"] for row in csv.DictReader(file)] == [li["sha256"] for li in lines]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "nowhere.jsonl"), "nowhere.jsonl: no such ledger"),
        (("verify", "."), "no ledger.jsonl of an agent and no ledger-SILO.jsonl of a run"),
        (("export", "a.jsonl", "--out", "a.xls"), "the ending should be .csv, .parquet or .json"),
        (("verify", "a.jsonl", "--report", "b.json"), "b.json is no report of a run"),
        (("verify", "a.jsonl", "--report", "c.json"), "c.json: No such file or directory"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "empty").mkdir()
    filled(tmp_path / "data" / "a.jsonl")
    (tmp_path / "data" / "b.json").write_text('{"job": 1}')
    monkeypatch.chdir(tmp_path / ("empty" if arguments == ("verify", ".") else "data"))
    done = hedgerow(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_privacy_lists_what_was_spent_by_table_and_job(tmp_path: Path) -> None:
    account = TableAccount(tmp_path, "people", max_epsilon=3.0, max_epsilon_job=1.5)
    account.admit("job-1", 1.0).charge({"a": Spending("level 0", 0.25, 1, 8)})
    account.admit("job-2", 2.0).charge({"a": Spending("row count", 0.5, 1, 1, True)})
    arguments = ["privacy", str(tmp_path)]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)
    assert (told["table"], told["spent"], told["max_epsilon"], told["delta"]) == (
        "people", 0.75, 3.0, 0.0,
    )  # fmt: skip
    jobs = [(job["job"], job["spent"], job["max_epsilon"]) for job in told["jobs"]]
    assert jobs == [("job-1", 0.25, 1.0), ("job-2", 0.5, 1.5)]
    shown = CliRunner().invoke(main, [*arguments, "--queries"])
    assert all(word in shown.stdout for word in ("all jobs", "0.75", "level 0", "row count"))
    against = [line.partition("coordinator ")[2].strip(" │") for line in shown.stdout.splitlines()]
    assert [one for one in against if one] == ["and silos"] * 2 + ["only"] * 3


def test_privacy_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    TableAccount(tmp_path, "t").admit("j", 1.0).charge({"a": Spending("counts", 0.25, 1, 8)})
    assert CliRunner().invoke(main, ["privacy", str(tmp_path / "nowhere")]).exit_code == 2
    (tmp_path / "privacy" / "accounts.copy.json").unlink()
    (tmp_path / "privacy" / "accounts.json").write_bytes(b"{}")
    done = CliRunner().invoke(main, ["privacy", str(tmp_path)])
    assert done.exit_code == 1
    assert "accounts.json is damaged" in done.stderr
    assert "Traceback" not in done.output
