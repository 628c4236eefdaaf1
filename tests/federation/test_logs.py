"""Lines of processes' logs: of whom, of which job, and how much of them an operator asks for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.federation.processes import Federation, federation, wait_until, write_table

# A silo with so few test rows says, in the middle of its part, that it does not score them.
JOB = (
    'name = "l"\nstrategy = "bagging"\nlabel = "label"\ntask = "binary"\nseed = 1\n'
    'min_silos = 2\nsilos = ["s0", "s1"]\n[bagging]\nrounds = 2\n'
    'evaluate = "none"\n[booster]\nmax_depth = 2\n'
)


def lines(federation: Federation, name: str) -> list[dict[str, Any]]:
    said = federation.log(name).splitlines()
    return [json.loads(line) for line in said if line.startswith("{")]


def said(federation: Federation, name: str, event: str) -> list[dict[str, Any]]:
    return [line for line in lines(federation, name) if line["event"] == event]


def test_lines_say_of_which_silo_and_job_they_are_and_a_signal_shows_more(tmp_path: Path) -> None:
    tables = {f"s{k}": write_table(tmp_path / f"s{k}.parquet", 200, k) for k in range(2)}
    few = write_table(tmp_path / "few.parquet", 5, 9)
    federation = Federation(tmp_path, tables, log_json=True)
    try:
        federation.start_coordinator()
        for silo in tables:
            federation.start_agent(silo, log_json=True, test={"path": str(few)})
        job_id = federation.submit(JOB)
        assert federation.end(job_id).state == "SUCCEEDED"
        for silo in tables:
            agent = f"agent-{silo}"
            wait_until(lambda agent=agent: bool(said(federation, agent, "done")), 60, "done")  # type: ignore[misc]
            assert {line["silo"] for line in lines(federation, agent)} == {silo}
            for event in ("taking part", "scores of test rows kept", "done"):
                (line,) = said(federation, agent, event)
                assert (line["job"], line["attempt"]) == (job_id, 1)
        federation.kill("agent-s0", signal.SIGUSR1)
        wait_until(lambda: bool(said(federation, "agent-s0", "log level")), 60, "the signal works")
        federation.kill("coordinator")
        wait_until(lambda: bool(said(federation, "agent-s0", "coordinator away")), 60, "more")
        federation.kill("agent-s0", signal.SIGUSR1)
        wait_until(lambda: len(said(federation, "agent-s0", "log level")) == 2, 60, "and less")
        federation.start_coordinator()
        assert [line["least"] for line in said(federation, "agent-s0", "log level")] == [
            "debug",
            "info",
        ]
        levels = [line["level"] for line in lines(federation, "agent-s0")]
        assert "debug" in levels
        assert "debug" not in [line["level"] for line in lines(federation, "agent-s1")]
        assert federation.end(federation.submit(JOB)).state == "SUCCEEDED"
    finally:
        federation.stop()


ENDS = {
    "coordinator": {"listen": "127.0.0.1:0", "database": "sqlite:///d.db", "artefacts": "a"},
    "client_agent": {"coordinator": "127.0.0.1:1", "state": "s", "data": {"path": "t.csv"}},
    "crypto": {"listen": "127.0.0.1:0", "silo": "s0", "state": "k"},
}


@pytest.mark.parametrize("log_json", [True, False])
@pytest.mark.parametrize("module", ENDS)
def test_the_last_line_of_a_process_is_as_all_its_lines(
    module: str, log_json: bool, tmp_path: Path
) -> None:
    config = {**ENDS[module], "identity": "none", "log_json": log_json}
    text = "\n".join(
        f"{key} = {{{', '.join(f'{k} = {json.dumps(v)}' for k, v in value.items())}}}"
        if isinstance(value, dict)
        else f"{key} = {json.dumps(value)}"
        for key, value in config.items()
    )
    (tmp_path / "config.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", f"hedgerow.{module}", "--config", "config.toml"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    if log_json:
        line = json.loads(last)
        assert (line["event"], line["level"]) == ("ended", "critical")
        assert "none" in line["why"]
        assert all(json.loads(one) for one in done.stderr.splitlines())
    else:
        assert "none" in last
        assert not last.startswith("{")


def test_a_job_that_fails_is_an_error_in_the_log_and_one_that_ends_well_is_not(
    tmp_path: Path,
) -> None:
    with federation(tmp_path, 2, log_json=True) as fed:
        assert fed.end(fed.submit(JOB)).state == "SUCCEEDED"
        bad = JOB.replace('l"\nstrategy', 'f"\nstrategy').replace('"label"', '"lable"')
        assert fed.end(fed.submit("start_timeout_seconds = 5\n" + bad)).state == "FAILED"
        levels = [line["level"] for line in said(fed, "coordinator", "job ended")]
        assert levels == ["info", "error"]
