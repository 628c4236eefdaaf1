"""Several strategies on one cohort, beside what the cohort reaches without a federation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost as xgb
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library import baselines
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests.federation.forked import hedgerow
from tests.federation.processes import write_table
from tests.late import Late

oracle: Any = Late("sklearn.metrics")

JOB = """
strategy = "{strategy}"
seed = 1
min_silos = 3
metrics = ["auc", "logloss"]
[{strategy}]
rounds = {rounds}
[booster]
max_depth = 3
eta = 0.3
base_score = 0.5
"""

STARTED = f"""
[warm_start]
run = "earlier"
model = "{"0" * 64}"
schema = "{"0" * 64}"
"""


def tables(folder: Path) -> list[str]:
    arguments = []
    for k in range(3):
        arguments += ["--silo", f"s{k}={write_table(folder / f's{k}.parquet', 300, k)}"]
    return [*arguments, "--test", str(write_table(folder / "test.parquet", 300, 9))]


def compared(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return hedgerow("compare", *arguments, "--out", folder / "out")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A comparison of two strategies: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("compare")
    for strategy, rounds in (("bagging", 4), ("histogram", 3)):
        path = folder / f"{strategy}.toml"
        path.write_text(JOB.format(strategy=strategy, rounds=rounds))
    jobs = [str(folder / f"{s}.toml") for s in ("bagging", "histogram")]
    ran = compared(folder, *jobs, *tables(folder), "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder, json.loads(ran.stdout)


def matrix(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pq.read_table(path)
    return (
        np.column_stack([table.column(f"x{j}").to_numpy() for j in range(4)]),
        table.column("label").to_numpy(),
    )


def test_each_job_has_a_row_that_says_what_its_report_says(done: tuple[Path, dict]) -> None:  # type: ignore[type-arg]
    folder, told = done
    rows = {row["name"]: row for row in told["rows"]}
    for name, rounds in (("bagging", 4), ("histogram", 3)):
        report = json.loads((folder / "out" / name / "report.json").read_text())
        row = rows[name]
        assert (row["state"], row["strategy"], row["rounds"]) == ("SUCCEEDED", name, rounds)
        assert row["metrics"] == report["rounds"][report["best_round"] - 1]["metrics"]["test"]
        assert (row["bytes_up"], row["bytes_down"]) == (
            report["bytes"]["up"], report["bytes"]["down"],
        )  # fmt: skip
        assert row["seconds"] == report["seconds"]
        assert row["reveals"] == report["reveals"]


def test_baselines_are_those_of_stock_xgboost(done: tuple[Path, dict]) -> None:  # type: ignore[type-arg]
    folder, told = done
    rows = {row["name"]: row for row in told["rows"] if row["state"] == "baseline"}
    test_X, test_y = matrix(folder / "test.parquet")
    silos = [matrix(folder / f"s{k}.parquet") for k in range(3)]
    settings = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.3, "base_score": 0.5}

    def margins(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        booster = xgb.train(settings, xgb.DMatrix(X, y), 4)
        return np.asarray(booster.predict(xgb.DMatrix(test_X), output_margin=True), np.float64)

    def scores(margin: np.ndarray) -> tuple[float, float]:
        p = 1 / (1 + np.exp(-margin))
        return oracle.roc_auc_score(test_y, margin), oracle.log_loss(test_y, p)

    alone = [margins(X, y) for X, y in silos]
    pooled = margins(*(np.concatenate(parts) for parts in zip(*silos, strict=True)))
    expected = {
        "all rows pooled": scores(pooled),
        "mean of the silos' models": scores(np.mean(alone, axis=0)),
        "each silo alone, mean of 3": tuple(np.mean([scores(m) for m in alone], axis=0)),
    }
    for name, (auc, logloss) in expected.items():
        assert rows[name]["metrics"]["auc"] == pytest.approx(auc, abs=1e-6)
        assert rows[name]["metrics"]["logloss"] == pytest.approx(logloss, abs=1e-6)
        assert rows[name]["rounds"] == 4


@pytest.mark.parametrize(
    ("table", "settings", "later"),
    [
        ("[histogram]\nrounds = 2\netas = [0.5, 0.1]", {"eta": 0.5}, 0.1),
        (
            "[fedxgbllr]\npaper = 'code'",
            {"eta": 0.1, "max_depth": 8, "subsample": 0.8, "alpha": 5, "gamma": 5, "seed": 1},
            0.1,
        ),
    ],
)
def test_baselines_have_the_step_sizes_and_the_booster_of_the_strategy(
    table: str, settings: dict[str, float], later: float, tmp_path: Path
) -> None:
    head = f'strategy = "{table[1 : table.index("]")]}"\nseed = 1\nmin_silos = 3\n'
    job = job_wire.decode(job_file.parse(head + table))
    paths = {f"s{k}": str(write_table(tmp_path / f"s{k}.parquet", 300, k)) for k in range(3)}
    test = str(write_table(tmp_path / "test.parquet", 300, 9))
    pooled = baselines.baselines(job, baselines.cohort(job, paths, test), 4)[-1]
    parts = [matrix(Path(path)) for path in paths.values()]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    rows = xgb.DMatrix(X, y)
    booster = xgb.Booster({"objective": "binary:logistic", **settings}, [rows])
    for k in range(4):
        booster.update(rows, k)
        booster.set_param("eta", later)
    test_X, test_y = matrix(Path(test))
    for k, scores in enumerate(pooled.rounds):
        p = booster.predict(xgb.DMatrix(test_X), iteration_range=(0, k + 1))
        assert scores["logloss"] == pytest.approx(oracle.log_loss(test_y, p), abs=1e-6)


def test_run_folders_get_curves_of_baselines_and_of_each_silo(done: tuple[Path, dict]) -> None:  # type: ignore[type-arg]
    folder, told = done
    kept = json.loads((folder / "out/bagging/baselines.json").read_text())
    found = {(c["who"], c["data"]): c["rounds"] for c in kept["curves"]}
    assert set(found) == {
        *(("model", f"s{k}") for k in range(3)), *((f"s{k} alone", "test") for k in range(3)),
        ("mean of the silos' models", "test"), ("all rows pooled", "test"),
    }  # fmt: skip
    assert all(len(rounds) == 4 for rounds in found.values())
    # The model after its last round, on a silo's rows, by stock XGBoost.
    X, y = matrix(folder / "s1.parquet")
    booster = xgb.Booster(model_file=str(folder / "out/bagging/model.ubj"))
    rows = xgb.DMatrix(X, feature_names=booster.feature_names)
    auc = oracle.roc_auc_score(y, booster.predict(rows, output_margin=True))
    assert found["model", "s1"][-1]["auc"] == pytest.approx(auc, abs=1e-6)
    page = (folder / "out/report.html").read_text()
    assert told["report"] == str(folder / "out/report.html")
    assert "auc at each silo" in page
    assert "all rows pooled" in page


def test_the_table_has_a_line_for_each_job_and_names_what_it_reveals(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(JOB.format(strategy="bagging", rounds=1))
    ran = compared(tmp_path, str(tmp_path / "a.toml"), *tables(tmp_path)[:-2])
    assert ran.returncode == 0, ran.stderr
    shown = " ".join(ran.stdout.split())
    assert "no baselines: they are scored on the rows of --test" in shown
    assert "The coordinator" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 1", 'seed = 1\ntask = "regression"\n'), "task is regression, in"),
        (("seed = 1", 'label = "wage"'), "label is wage, in"),
        (('["auc", "logloss"]', '["accuracy"]'), "no metric in common with"),
        (("rounds", "round"), "unknown key bagging.round; did you mean rounds?"),
        (("rounds = 2", "rounds = 0"), "rounds"),
        (("[bagging]", f"{STARTED}[bagging]"), "[warm_start]: compared jobs start from nothing"),
    ],
)
def test_jobs_that_cannot_be_compared_are_refused_before_anything_runs(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = JOB.format(strategy="bagging", rounds=2)
    (tmp_path / "a.toml").write_text(text)
    changed = text.replace(*change)
    if "regression" in changed:
        changed = changed.replace('["auc", "logloss"]', '["rmse"]')
    (tmp_path / "b.toml").write_text(changed)
    silo = write_table(tmp_path / "s.parquet", 20, 0)
    done = CliRunner().invoke(
        main, ["compare", str(tmp_path / "a.toml"), str(tmp_path / "b.toml"),
               "--silo", f"s={silo}", "--out", str(tmp_path / "out")],
    )  # fmt: skip
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


VERTICAL = """
strategy = "secureboost"
seed = 1
min_silos = 2
metrics = ["auc"]
[secureboost]
active = "bank"
rounds = 2
[booster]
max_depth = 3
max_bin = 16
"""


def write_parties(folder: Path, prefix: str, n: int, seed: int) -> dict[str, Path]:
    """Two parties' tables; the shop's rows are in another order, and some are missing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + X[:, 2] > 0.3 * rng.normal(size=n)).astype(int)
    ids = np.array([f"{prefix}{k}" for k in range(n)])
    there = rng.permutation(n)[: n - n // 10]
    bank = {"_id": ids, "age": X[:, 0], "debt": X[:, 1], "label": y}
    shop = {"_id": ids[there], "age": X[there, 2], "visits": X[there, 3]}
    paths = {}
    for name, columns in (("bank", bank), ("shop", shop)):
        paths[name] = folder / f"{prefix}{name}.parquet"
        pq.write_table(pa.table(columns), paths[name])
    return paths


def test_baselines_of_a_vertical_job_are_the_guest_alone_and_all_columns_joined_by_id(
    tmp_path: Path,
) -> None:
    tables, tests = write_parties(tmp_path, "a", 400, 1), write_parties(tmp_path, "t", 300, 2)
    job = job_wire.decode(job_file.parse(VERTICAL))
    guest, pooled = baselines.of_parties(
        job, "bank", {k: str(v) for k, v in tables.items()},
        {k: str(v) for k, v in tests.items()}, 2,
    )  # fmt: skip

    def joined(paths: dict[str, Path], how: str) -> tuple[np.ndarray, np.ndarray]:
        bank, shop = (pq.read_table(paths[name]) for name in ("bank", "shop"))
        both = bank.join(shop, "_id", join_type=how, right_suffix="_shop").sort_by("_id")
        names = ["age", "debt", "age_shop", "visits"]
        X = np.column_stack([both.column(name).to_numpy() for name in names])
        return X.astype(np.float32), both.column("label").to_numpy()

    test_X, test_y = joined(tests, "inner")
    for curve, how, columns in ((guest, "left outer", 2), (pooled, "inner", 4)):
        X, y = joined(tables, how)
        settings = {"objective": "binary:logistic", "max_depth": 3, "max_bin": 16}
        booster = xgb.train(settings, xgb.DMatrix(X[:, :columns], y), 2)
        margin = booster.predict(xgb.DMatrix(test_X[:, :columns]), output_margin=True)
        # The order of the rows may move a quantile by one value.
        auc = oracle.roc_auc_score(test_y, margin)
        assert curve.rounds[-1]["auc"] == pytest.approx(auc, abs=0.01)
    assert (guest.who, guest.kind) == ("bank alone", "local")
    assert (pooled.who, pooled.kind) == ("all columns pooled", "pooled")
    assert pooled.rounds[-1]["auc"] > guest.rounds[-1]["auc"] + 0.1  # type: ignore[operator]


def test_a_vertical_comparison_has_its_baselines_and_each_partys_plan(tmp_path: Path) -> None:
    (tmp_path / "vertical.toml").write_text(VERTICAL)
    arguments = [f"--silo={k}={v}" for k, v in write_parties(tmp_path, "a", 300, 1).items()]
    arguments += [f"--test={k}={v}" for k, v in write_parties(tmp_path, "t", 200, 2).items()]
    ran = compared(tmp_path, str(tmp_path / "vertical.toml"), *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "bank alone reveals: nothing" in ran.stdout
    assert "all columns pooled reveals: all rows" in ran.stdout
    folder = tmp_path / "out/vertical"
    report = json.loads((folder / "report.json").read_text())
    plan, moved = report["plan"]["by_silo"], report["bytes"]["by_silo"]
    for party in ("bank", "shop"):
        for way in ("up", "down"):
            planned = sum(step[way] for step in plan[party].values())
            assert planned == pytest.approx(moved[party][way], rel=0.35)
    page = (tmp_path / "out/report.html").read_text()
    for shown in ("all columns pooled", "bank alone", "shop #", "Bytes of each party, by step"):
        assert shown in page


def test_two_job_files_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "job.toml")
        paths[-1].write_text(JOB.format(strategy="bagging", rounds=2))
    silo = write_table(tmp_path / "s.parquet", 20, 0)
    done = CliRunner().invoke(
        main, ["compare", *map(str, paths), "--silo", f"s={silo}", "--out", str(tmp_path / "o")]
    )
    assert done.exit_code == 2
    assert "another job file is called job too" in done.stderr
