"""The operator's commands as a person types them, against a coordinator that runs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import xgboost as xgb
import yaml

from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import Role
from tests.federation.forked import hedgerow
from tests.federation.processes import ROOT, Federation, federation, toml, wait_until, write_table

JOB = """
name = "by hand"
strategy = "bagging"
seed = 5
min_silos = 3
metrics = ["auc", "logloss"]
[bagging]
rounds = {rounds}
[booster]
max_depth = 3
"""


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("commands"), lease_seconds=10.0) as made:
        yield made


def ask(fed: Federation, *arguments: object) -> subprocess.CompletedProcess[str]:
    connection = ("--coordinator", fed.address, "--identity", fed.folder / "pki/operator")
    return hedgerow(*arguments, *connection)


def job_file(folder: Path, rounds: int = 3, extra: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(extra + JOB.format(rounds=rounds))
    return path


def test_a_job_is_planned_submitted_watched_listed_downloaded_and_used(
    fed: Federation, tmp_path: Path
) -> None:
    job = job_file(tmp_path)
    planned = json.loads(ask(fed, "plan", job, "--json").stdout)
    assert planned["rounds"] == 3
    assert planned["reveals"]
    submitted = ask(fed, "submit", job)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    watched = ask(fed, "watch", job_id, "--json")
    assert watched.returncode == 0, watched.stderr
    report = json.loads(watched.stdout)
    assert report["state"] == "SUCCEEDED"
    assert report["bytes"]["up"] == pytest.approx(planned["bytes"]["up"], rel=0.25)
    rows = json.loads(ask(fed, "jobs", "--json").stdout)
    assert all(row["job"] in ask(fed, "jobs").stdout for row in rows)
    assert rows[0]["job"] == job_id
    assert rows[0]["operator"] == "local"

    run = tmp_path / "run"
    assert ask(fed, "download", job_id, "--out", run).returncode == 0
    assert json.loads((run / "report.json").read_text())["job"] == job_id
    data = write_table(tmp_path / "new.parquet", 200, 11)
    assert hedgerow("predict", run, data, "--out", tmp_path / "scores.csv").returncode == 0
    lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert len(lines) == 201
    table = pq.read_table(data)
    X = np.column_stack([table.column(f"x{j}").to_numpy() for j in range(4)])
    booster = xgb.Booster(model_file=run / "model.ubj")
    stock = booster.predict(xgb.DMatrix(X, feature_names=[f"x{j}" for j in range(4)]))
    at = lines[0].replace('"', "").split(",").index("probability")
    ours = [float(line.split(",")[at]) for line in lines[1:]]
    np.testing.assert_allclose(ours, stock, rtol=1e-6)
    evaluated = json.loads(hedgerow("evaluate", run, data, "--json").stdout)
    assert evaluated["rows"] == 200
    assert 0.5 < evaluated["metrics"]["auc"] <= 1


def test_a_coordinators_plan_knows_the_columns_of_its_silos(
    fed: Federation, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('strategy = "histogram"\nmin_silos = 3\n[histogram]\nrounds = 2\n')
    there = json.loads(ask(fed, "plan", job, "--json").stdout)
    tables = [f for silo, path in fed.silos.items() for f in ("--silo", f"{silo}={path}")]
    here = json.loads(hedgerow("plan", job, *tables, "--json").stdout)
    assert there["bytes"]["up"] == pytest.approx(here["bytes"]["up"], rel=0.1)
    assert any("power of two" in note for note in there["notes"])


def test_cancelling_ends_the_watch_with_exit_code_one(fed: Federation, tmp_path: Path) -> None:
    job_id = ask(fed, "submit", job_file(tmp_path, rounds=5000)).stdout.strip()
    fed.wait(job_id, lambda view: len(view.rounds) > 1)
    assert ask(fed, "cancel", job_id).stdout.strip() == "cancelled"
    watched = ask(fed, "watch", job_id)
    assert watched.returncode == 1
    assert "cancelled" in watched.stdout.lower()
    again = ask(fed, "cancel", job_id)
    assert again.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("watch", "nothing"), "nothing"),
        (("cancel", "nothing"), "nothing"),
        (("download", "nothing", "--out", "somewhere"), "nothing"),
    ],
)
def test_an_unknown_job_is_named(
    fed: Federation, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = ask(fed, *(str(tmp_path / a) if a == "somewhere" else a for a in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_for_more_silos_than_there_are_waits_and_then_says_who_is_missing(
    fed: Federation, tmp_path: Path
) -> None:
    extra = 'silos = ["s0", "s1", "s7"]\nstart_timeout_seconds = 2\n'
    job = job_file(tmp_path, extra=extra)
    # Without secure sums: those of the jobs before it were over other silos.
    plain = '[bagging]\nscrub = "none"\nevaluate = "none"'
    job.write_text(job.read_text().replace("[bagging]", plain))
    job_id = ask(fed, "submit", job).stdout.strip()
    watched = ask(fed, "watch", job_id)
    assert watched.returncode == 1
    assert "s7" in watched.stdout


def test_a_job_is_submitted_once_unless_it_failed_or_is_another(
    fed: Federation, tmp_path: Path
) -> None:
    def once(rounds: int) -> str:
        done = ask(fed, "submit", job_file(tmp_path, rounds), "--once")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    first = once(7)
    assert once(7) == first, "it is under way"
    assert fed.end(first).state == "SUCCEEDED"
    shown = ask(fed, "submit", job_file(tmp_path, 7), "--once", "--watch")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0] == first
    assert "succeeded" in shown.stdout
    other = once(5000)
    assert other != first, "it was edited"
    fed.client.cancel(other)
    assert fed.end(other).state == "CANCELLED"
    again = once(5000)
    assert again != other, "it was cancelled"
    fed.client.cancel(again)
    assert len({view.job_id for view in fed.client.list()} & {first, other, again}) == 3


def test_who_watches_is_told_that_an_interval_is_missing(fed: Federation, tmp_path: Path) -> None:
    """As with `hedgerow local`: a job that lacks what it asked for is no success."""
    (tmp_path / "job.toml").write_text(
        'strategy = "histogram"\ntask = "regression"\nmin_silos = 3\n'
        "[histogram]\nrounds = 1\nvalidation = 0.1\ninterval = 0.999\n"
    )
    shown = ask(fed, "submit", tmp_path / "job.toml", "--watch")
    assert shown.returncode == 1, shown.stderr
    assert "succeeded: 1 rounds" in shown.stdout
    why = "the job asked for an interval of 0.999, and there is none"
    assert f"warning: {why}" in shown.stdout
    watched = ask(fed, "watch", shown.stdout.split()[0], "--json")
    assert watched.returncode == 1
    assert json.loads(watched.stdout)["lacks"] == ["interval"]


def test_compose_submits_its_jobs_once() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    submitting = [one["command"] for one in services.values() if "submit" in one.get("command", "")]
    assert len(submitting) == 2
    assert all("--once" in command for command in submitting)


def test_a_silo_may_not_submit(fed: Federation, tmp_path: Path) -> None:
    done = hedgerow(
        "submit", job_file(tmp_path), "--coordinator", fed.address,
        "--identity", fed.folder / "pki/silo/s0",
    )  # fmt: skip
    assert done.returncode == 2
    assert "operator" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_without_certificates_is_told_which_file_lacks(
    fed: Federation, tmp_path: Path
) -> None:
    done = hedgerow("jobs", "--coordinator", fed.address, "--identity", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_is_told_that_no_server_is_at_the_address(fed: Federation) -> None:
    identity = fed.folder / "pki/operator"
    done = hedgerow("jobs", "--coordinator", "127.0.0.1:9", "--identity", identity)
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_agent_notices_a_frozen_coordinator_and_goes_on_after_it(
    tmp_path: Path,
) -> None:
    with federation(tmp_path, lease_seconds=60.0) as fed:
        job_id = fed.submit(JOB.format(rounds=5000))
        fed.wait(job_id, lambda view: len(view.rounds) >= 2)
        fed.kill("coordinator", signal.SIGSTOP)
        wait_until(lambda: "coordinator away" in fed.log("agent-s0"), 120, "the agent notices")
        fed.kill("coordinator", signal.SIGCONT)
        done = len(fed.client.get(job_id).rounds)
        view = fed.wait(job_id, lambda view: view.ended or len(view.rounds) >= done + 3)
        assert not view.ended, view.detail
        assert view.rounds[-1].silos == ("s0", "s1", "s2")
        fed.client.cancel(job_id)


def test_pki_makes_a_federation_that_works(tmp_path: Path) -> None:
    """A CA, then keys and requests where they stay, then certificates: all by the command."""
    ca = tmp_path / "ca"
    assert hedgerow("pki", "init", "--federation", "f", "--dir", ca).returncode == 0
    holders = {"coordinator": "coordinator", "operator": "ann", "silo": "s0"}
    for role, name in holders.items():
        folder = tmp_path / "pki" / (f"silo/{name}" if role == "silo" else role)
        made = hedgerow(
            "pki", "request", "--federation", "f", "--role", role, "--name", name, "--dir", folder
        )
        assert made.returncode == 0, made.stderr
        hosts = ("--host", "127.0.0.1") if role == "coordinator" else ()
        signed = hedgerow(
            "pki", "sign", folder / "tls.csr", "--ca", ca, "--role", role, "--name", name, *hosts
        )
        assert signed.returncode == 0, signed.stderr
        (folder / "ca.crt").write_bytes((ca / "ca.crt").read_bytes())
        shown = hedgerow("pki", "show", folder, "--json")
        assert shown.returncode == 0, shown.stdout
        assert json.loads(shown.stdout)["name"] == name
    fed = Federation(
        tmp_path, {"s0": write_table(tmp_path / "s0.parquet", 300, 0)}, make_certificates=False
    )
    try:
        fed.start()
        text = JOB.format(rounds=2).replace("min_silos = 3", "min_silos = 1")
        text = text.replace("[booster]", 'evaluate = "none"\n[booster]')
        assert fed.end(fed.submit(text)).state == "SUCCEEDED"
        assert fed.client.list().__next__().operator == "ann"
    finally:
        fed.stop()


def test_an_agent_whose_certificate_has_expired_is_told_to_renew_it(tmp_path: Path) -> None:
    with federation(tmp_path, n_silos=1) as fed:
        folder = tmp_path / "pki/old"
        now = time.time() - 3 * 86400
        ca = tmp_path / "pki-old-ca"
        authority.create_authority(ca, "local", now)
        request = authority.create_request(folder, "local", Role.SILO, "s0")
        pem = authority.sign_request(
            ca, certificates.read(request), Role.SILO, "s0", now=now, days=1
        )
        certificates.write(folder / "tls.crt", pem)
        certificates.write(folder / "ca.crt", (ca / "ca.crt").read_bytes())
        name = fed.start_agent("s0", name="late", identity="old")
        wait_until(lambda: not fed.alive(name), 20, "the agent ends")
        assert fed.processes[name].returncode == 2
        assert "expired" in fed.log(name)
        assert "Traceback" not in fed.log(name)


@pytest.mark.parametrize("process", ["coordinator", "agent", "crypto"])
def test_a_port_that_is_taken_is_named(fed: Federation, tmp_path: Path, process: str) -> None:
    pki, ports = fed.folder / "pki", fed.ports["coordinator"]
    taken = f"127.0.0.1:{ports['port']}"
    metrics = f"127.0.0.1:{ports['metrics_port']}"
    given: dict[str, dict[str, object]] = {
        "coordinator": {"listen": taken, "identity": str(pki / "coordinator"),
                        "database": "sqlite://", "artefacts": str(tmp_path / "artefacts")},
        "agent": {"coordinator": taken, "identity": str(pki / "silo/s0"), "metrics": metrics,
                  "state": str(tmp_path / "state"), "data": {"path": str(fed.silos["s0"])}},
        "crypto": {"listen": taken, "identity": str(pki / "crypto/s0"), "silo": "s0",
                   "state": str(tmp_path / "keys")},
    }  # fmt: skip
    path = tmp_path / "settings.toml"
    path.write_text(toml(given[process]))
    done = hedgerow(process, "--config", path, "--json")
    assert done.returncode == 2
    last = json.loads(done.stderr.splitlines()[-1])["error"]
    assert last.startswith(f"{process}: cannot")
    assert (metrics if process == "agent" else taken) in last
    assert "Traceback" not in done.stderr
