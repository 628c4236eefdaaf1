"""``hedgerow local`` as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost as xgb

from hedgerow.services.process import ledgers
from hedgerow.services.rpc.control_calls import REVEALS
from tests.federation.forked import hedgerow
from tests.federation.processes import OF_SCRIPTS, wait_until, write_table

JOB = """
name = "small"
strategy = "bagging"
seed = 1
min_silos = 3
metrics = ["auc", "logloss"]
[bagging]
rounds = {rounds}
[booster]
max_depth = 3
"""


def command(folder: Path, rounds: int, out: str = "run") -> list[str]:
    (folder / "job.toml").write_text(JOB.format(rounds=rounds))
    arguments = [sys.executable, "-m", "hedgerow", "local", str(folder / "job.toml")]
    for k in range(3):
        path = write_table(folder / f"s{k}.parquet", 400, k)
        arguments += ["--silo", f"s{k}={path}"]
    test = write_table(folder / "test.parquet", 300, 9)
    own = write_table(folder / "s1-test.parquet", 60, 7)
    tests = ["--test", str(test), "--test", f"s1={own}"]
    return [*arguments, *tests, "--out", str(folder / out)]


def leftovers(folder: Path) -> list[str]:
    return [
        " ".join(p.info["cmdline"] or [])
        for p in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(p.info["cmdline"] or [])
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    done = subprocess.run(command(folder, 4), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round   4/4" in done.stdout
    assert leftovers(folder) == []
    return folder / "run"


def test_the_run_folder_has_what_the_contract_names(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    assert report["schema"] == 2
    assert report["state"] == "SUCCEEDED"
    assert [r["round"] for r in report["rounds"]] == [1, 2, 3, 4]
    assert {s["name"]: s["rows"] for s in report["silos"]} == {"s0": 400, "s1": 400, "s2": 400}
    assert 0.5 < report["rounds"][-1]["metrics"]["test"]["auc"] <= 1.0
    assert report["reveals"]
    assert (run / "job.toml").read_text().startswith("name = ")
    assert len((run / "metrics.csv").read_text().splitlines()) == 5


def test_test_rows_of_all_and_of_one_silo_are_both_evaluated(run: Path) -> None:
    sets = json.loads((run / "evaluation.json").read_text())["sets"]
    assert {one["data"]: one["rows"] for one in sets} == {"s1": 60, "test": 300}


def test_bytes_add_up_by_round_by_step_and_by_silo(run: Path) -> None:
    moved = json.loads((run / "report.json").read_text())
    for way in ("up", "down"):
        total = moved["bytes"][way]
        assert total > 0
        assert total == sum(r[f"bytes_{way}"] for r in moved["rounds"])
        assert total == sum(step[way] for step in moved["bytes"]["by_step"].values())
        assert total == sum(silo[f"bytes_{way}"] for silo in moved["silos"])
        assert moved["bytes"]["control"][way] > 0


def test_ledgers_hold_every_byte_that_left(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    for silo in report["silos"]:
        entries = list(ledgers.read(run / f"ledger-{silo['name']}.jsonl"))
        assert sum(e.bytes for e in entries if not e.is_control) == silo["bytes_up"]
        assert all(entry.reveals for entry in entries)
        # Copied when the agents have ended: the control calls of the whole run are there.
        called = {e.call for e in entries if e.is_control}
        others = {"RenewLease", "AnswerPreflight", *OF_SCRIPTS}  # too short to renew
        assert called | others == set(REVEALS)


def test_stock_xgboost_scores_the_model_as_reported(run: Path) -> None:
    from sklearn.metrics import roc_auc_score

    booster = xgb.Booster(model_file=str(run / "model.ubj"))
    table = pq.read_table(run.parent / "test.parquet")
    X = np.column_stack([table.column(f"x{j}").to_numpy() for j in range(4)])
    names = booster.feature_names
    margin = booster.predict(xgb.DMatrix(X, feature_names=names), output_margin=True)
    report = json.loads((run / "report.json").read_text())
    auc = roc_auc_score(table.column("label").to_numpy(), margin)
    assert abs(auc - report["rounds"][-1]["metrics"]["test"]["auc"]) < 1e-6


def test_the_same_job_gives_the_same_bytes(run: Path) -> None:
    done = hedgerow(*command(run.parent, 4, "again")[3:])
    assert done.returncode == 0
    assert (run.parent / "again/model.ubj").read_bytes() == (run / "model.ubj").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command(tmp_path, 3000),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "round   2/" in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 7
    os.kill(process.pid, number)
    output = process.stdout.read()
    process.wait(200)
    process.stdout.close()
    wait_until(lambda: not any(p.is_running() for p in family), 10, "all processes are gone")
    if number is not signal.SIGKILL:
        assert process.returncode == 130, output
        assert "Traceback" not in output
        assert json.loads((tmp_path / "run/report.json").read_text())["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("s0.parquet=", "--silo takes NAME=FILE"),
        ("x=nowhere.parquet", "no file nowhere.parquet"),
    ],
)
def test_a_wrong_silo_option_is_one_clear_line(tmp_path: Path, change: str, message: str) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(rounds=1))
    job = tmp_path / "job.toml"
    done = hedgerow("local", job, "--silo", change, "--out", tmp_path / "o")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('strategy = "baging"', "did you mean bagging?"),
        ('strategy = "bagging"\nsed = 3', "unknown key sed; did you mean seed?"),
        (
            'strategy = "bagging"\n[bagging]\nround = 3',
            "unknown key bagging.round; did you mean rounds?",
        ),
        ('strategy = "bagging"\nseed = "x"', "seed: expected a whole number"),
        ("strategy = ", "not TOML"),
    ],
)
def test_a_wrong_job_file_names_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    table = write_table(tmp_path / "a.parquet", 50, 0)
    (tmp_path / "job.toml").write_text(text)
    job = tmp_path / "job.toml"
    done = hedgerow("local", job, "--silo", f"a={table}", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("strategy", "rows", "test", "said", "message"),
    [
        ("histogram", 0, 40, 2, "the job needs 2 silos (min_silos = 2), 1 accepted; b has no rows"),
        ("bagging", 0, 40, 2, "the job needs 2 silos (min_silos = 2), 1 accepted; b has no rows"),
        ("bagging", 0, 40, 0, "the job needs 2 silos (min_silos = 2), 1 accepted; b has no rows"),
        ("bagging", 40, 1, 1, "auc of test is not defined: all of its rows are of one class"),
    ],
)
def test_degenerate_tables_end_a_job_with_a_clear_word(
    tmp_path: Path, strategy: str, rows: int, test: int, said: int, message: str
) -> None:
    """A job that does not say how few silos it needs has, on one machine, all of them."""
    for name, n in (("a", 60), ("b", rows), ("test", test)):
        x = np.arange(float(n))
        table = pa.table({"y": x[::-1] % 2, "x": x} if name == "b" else {"x": x, "y": x % 2})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    job = f'strategy = "{strategy}"\nlabel = "y"\nmin_silos = {said}\n[{strategy}]\nrounds = 1\n'
    if strategy == "histogram":
        job += "secure = false\n"
    (tmp_path / "job.toml").write_text(job)
    done = hedgerow(
        "local", tmp_path / "job.toml", "--out", tmp_path / "o",
        *(f"--silo={p}={tmp_path / p}.parquet" for p in "ab"),
        "--test", tmp_path / "test.parquet",
    )  # fmt: skip
    assert done.returncode == 1
    assert message in done.stderr


def test_a_vertical_job_on_this_machine_says_what_is_wrong_with_a_table(tmp_path: Path) -> None:
    for party, column in (("a", "label"), ("b", "z")):
        table = pa.table({"_id": ["1", "2"], f"x{party}": [1.0, 2.0], column: [0, 1]})
        pq.write_table(table, tmp_path / f"{party}.parquet")
    job = 'strategy = "secureboost"\nlabel = "lable"\n[secureboost]\nactive = "a"\nrounds = 1\n'
    (tmp_path / "job.toml").write_text(job)
    done = hedgerow(
        "local", tmp_path / "job.toml", "--out", tmp_path / "o",
        *(f"--silo={p}={tmp_path / p}.parquet" for p in "ab"),
    )  # fmt: skip
    assert done.returncode == 1
    assert "silo a: \"a.parquet: there is no label column 'lable'; did you mean" in done.stdout


@pytest.mark.parametrize(
    ("victim", "message"),
    [("coordinator", "the coordinator has died"), ("agent-s1", "needs 3 silos, 2 are left")],
)
def test_a_dead_process_ends_the_command_at_once_and_is_named(
    tmp_path: Path, victim: str, message: str
) -> None:
    process = subprocess.Popen(
        command(tmp_path, 3000), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "round   2/" in line:
            break
    # Forked in this order: the coordinator, the crypto processes, the agents.
    family = sorted(psutil.Process(process.pid).children(), key=lambda p: p.pid)
    names = ("coordinator", *(f"{kind}-s{k}" for kind in ("crypto", "agent") for k in range(3)))
    os.kill(family[names.index(victim)].pid, signal.SIGKILL)
    output = process.stdout.read()
    process.stdout.close()
    assert process.wait(200) in (1, 2), output
    assert f"{victim} ended with code -9" in output
    assert message in output
    assert "Traceback" not in output
    wait_until(lambda: not any(p.is_running() for p in family), 10, "all processes are gone")
