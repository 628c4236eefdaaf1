"""Lines of processes' logs: of whom, of which job, and how much of them an operator asks for."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hedgerow.services.identity.authority import throwaway
from tests.federation.processes import (
    PATIENCE_SECONDS,
    Federation,
    federation,
    toml,
    wait_until,
    write_table,
)

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


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The identity of each process."""
    folder = tmp_path_factory.mktemp("pki")
    throwaway(folder, ["s0"], time.time())
    (folder / "t.csv").write_text("x,label\n1,0\n2,1\n")
    names = {"coordinator": "coordinator", "client_agent": "silo/s0", "crypto": "crypto/s0"}
    return {module: str(folder / name) for module, name in names.items()}


def ended(module: str, folder: Path, **config: Any) -> tuple[str, dict[str, Any]]:
    """Return all that a process says that cannot start, and its last line."""
    (folder / "config.toml").write_text(toml({**ENDS[module], **config}))
    done = subprocess.run(
        [sys.executable, "-m", f"hedgerow.{module}", "--config", "config.toml"],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    if not config["log_json"]:
        return done.stderr, {}
    line = [json.loads(one) for one in done.stderr.splitlines()][-1]
    assert (line["event"], line["level"]) == ("ended", "critical")
    return done.stderr, line


@pytest.mark.parametrize("log_json", [True, False])
@pytest.mark.parametrize("module", ENDS)
def test_the_last_line_of_a_process_is_as_all_its_lines(
    module: str, log_json: bool, tmp_path: Path
) -> None:
    said, line = ended(module, tmp_path, identity="none", log_json=log_json)
    if log_json:
        assert "none" in line["why"]
    else:
        assert "none" in said.splitlines()[-1]
        assert not said.splitlines()[-1].startswith("{")


@pytest.mark.parametrize("module", ENDS)
def test_what_a_process_cannot_start_with_is_its_last_line_as_json(
    module: str, tmp_path: Path, pki: dict[str, str]
) -> None:
    other = pki["coordinator" if module == "crypto" else "crypto"]
    (tmp_path / "t.csv").write_text("x,label\n1,0\n2,1\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = [
            ({"nonsense": 1}, "unknown key nonsense"),
            ({"identity": other}, "needs a certificate of the role"),
            ({"metrics": f"127.0.0.1:{port}"}, str(port)),
            ({"metrics": "here"}, "key metrics: expected HOST:PORT, received 'here'"),
        ]
        if module == "client_agent":  # a name may come to be known later, and this is none
            wrong.append(({"coordinator": "nonsense"}, "key coordinator: expected HOST:PORT"))
        if module == "coordinator":
            wrong.append(({"artefacts": "config.toml/a"}, "opening the folder of artefacts"))
        if module == "crypto":
            wrong.append(({"silo": "s1"}, "`silo` is s1, and the certificate is of s0"))
        for config, why in wrong:
            given = {"metrics": "127.0.0.1:0", "identity": pki[module], **config}
            _, line = ended(module, tmp_path, log_json=True, **given)
            assert why in line["why"], line


def test_a_job_that_fails_is_an_error_in_the_log_and_one_that_ends_well_is_not(
    tmp_path: Path,
) -> None:
    with federation(tmp_path, 2, log_json=True) as fed:
        assert fed.end(fed.submit(JOB)).state == "SUCCEEDED"
        bad = JOB.replace('l"\nstrategy', 'f"\nstrategy').replace('"label"', '"lable"')
        assert fed.end(fed.submit("start_timeout_seconds = 5\n" + bad)).state == "FAILED"
        levels = [line["level"] for line in said(fed, "coordinator", "job ended")]
        assert levels == ["info", "error"]
