"""Vertical jobs as processes: agents, crypto processes and the coordinator, keys of 2048 bits."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost as xgb
from pyarrow import csv as csv_file

from hedgerow import Job, RunFailed, local
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.coordinator.operator.library.models import load
from tests.federation import forked, vertical

JOB = """
name = "vertical"
strategy = "secureboost"
seed = 3
min_silos = 2
[secureboost]
active = "guest"
rounds = {rounds}
min_leaf = 1
max_purity = 1.0
{more}
[booster]
max_depth = 3
max_bin = 8
"""
WIDTHS = [3, 3]


def write_parties(
    parties: Mapping[str, Dataset], folder: Path, prefix: str = ""
) -> dict[str, Path]:
    """Write parties' tables as files."""
    paths = {}
    for name, party in parties.items():
        columns: dict[str, Any] = {
            f.name: np.array([*f.categories, None])[np.nan_to_num(own, nan=-1).astype(int)]
            if f.categories
            else own
            for f, own in zip(party.schema.features, party.X.T, strict=True)
        }
        assert party.ids is not None
        columns["_id"] = party.ids.tolist()
        if party.y is not None:
            columns["label"] = party.y.astype(int)
        if party.base_margin is not None:
            columns |= {f"m{k}": own for k, own in enumerate(party.base_margin.T)}
        paths[name] = folder / f"{prefix}{name}.parquet"
        pq.write_table(pa.table(columns), paths[name])
    return paths


def hedgerow(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.hedgerow(*arguments, cwd=folder)


TEXT = {1: 4, 4: 6}
"""Columns that are text, divided into sets; how many categories they have."""
OF_SETS = {"max_cat_to_onehot": 3, "max_cat_threshold": 32}


@pytest.fixture(scope="module")
def whole() -> Dataset:
    return vertical.with_text(vertical.table(200, sum(WIDTHS)), TEXT)


@pytest.fixture(scope="module")
def new() -> Dataset:
    return vertical.with_text(vertical.table(80, sum(WIDTHS), seed=5), TEXT)


def matrix(rows: Dataset) -> xgb.DMatrix:
    return xgb.DMatrix(rows.X, feature_types=rows.schema.feature_types, enable_categorical=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, whole: Dataset, new: Dataset) -> Path:
    folder = tmp_path_factory.mktemp("vertical")
    text = JOB.format(rounds=2, more='categories = "sets"')
    more = "\n".join(f"{name} = {value}" for name, value in OF_SETS.items())
    (folder / "job.toml").write_text(text + more)
    arguments = []
    for name, path in write_parties(vertical.cut_by_columns(whole, WIDTHS), folder).items():
        arguments += ["--silo", f"{name}={path}"]
    for name, path in write_parties(
        vertical.cut_by_columns(new, WIDTHS), folder, prefix="test-"
    ).items():
        arguments += ["--test", f"{name}={path}"]
    done = hedgerow(folder, "local", "job.toml", *arguments, "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def read_parts(run: Path) -> tuple[ActivePart, dict[str, PassivePart]]:
    active = ActivePart.load((run / "silos/guest/part.json").read_bytes())
    return active, {"host-1": PassivePart.load((run / "silos/host-1/part.json").read_bytes())}


def test_processes_make_the_trees_of_the_joined_table(run: Path, whole: Dataset) -> None:
    ensemble: Ensemble = vertical.pooled(vertical.job(booster=OF_SETS), whole, 2)
    active, passive = read_parts(run)
    assert passive["host-1"].sets
    for own, pooled in zip(joined(active, passive)[0].trees, ensemble.trees, strict=True):
        assert own.left.tolist() == pooled.left.tolist()
        assert own.feature.tolist() == pooled.feature.tolist()
        assert own.threshold.tolist() == pooled.threshold.tolist()
        sets = [[(k, c.tolist()) for k, c in tree.categories] for tree in (own, pooled)]
        assert sets[0] == sets[1]


def test_the_report_has_scores_of_each_round_and_no_model_file(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    assert report["state"] == "SUCCEEDED"
    assert [set(r["metrics"]) for r in report["rounds"]] == [{"test", "train"}] * 2
    assert 0.5 < report["rounds"][-1]["metrics"]["test"]["auc"] <= 1
    assert report["model"] == "vertical.json"
    alignment = json.loads((run / "silos/guest/part.json").read_text())["alignment"]
    assert report["alignment"]["common"] == alignment["rows"]
    assert set(report["alignment"]["rows"]) == {"guest", "host-1"}
    assert min(report["alignment"]["rows"].values()) >= alignment["rows"]
    assert {"ExchangeGradients", "ExchangeHistograms", "ExchangeSplits"} <= set(
        report["bytes"]["by_step"]
    )


def test_parts_hold_only_what_is_their_partys(run: Path, whole: Dataset) -> None:
    guest = (run / "silos/guest/part.json").read_text()
    host = (run / "silos/host-1/part.json").read_text()
    assert "host-1_" not in guest
    assert "guest_" not in host
    _, passive = read_parts(run)
    assert not {"value", "gain", "cover"} & set(json.loads(host))
    assert all(len(node) == 4 for node in passive["host-1"].nodes.values())


def test_predict_and_evaluate_score_with_the_parts_of_all_parties(
    run: Path, whole: Dataset, new: Dataset
) -> None:
    folder = run.parent
    tables = [f"{name}={folder / f'test-{name}.parquet'}" for name in ("guest", "host-1")]
    more = ["--shap", "features", "--keep", "host-1_0,label", "--threshold", "0.8"]
    done = hedgerow(folder, "predict", "run", *tables, "--out", "scores.csv", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    ensemble = vertical.pooled(vertical.job(booster=OF_SETS), whole, 2)
    margins = ensemble.margins(matrix(new)).astype(np.float64).reshape(-1)
    assert new.ids is not None
    expected = dict(zip(new.ids.tolist(), 1 / (1 + np.exp(-margins)), strict=True))
    rows = list(csv.DictReader((folder / "scores.csv").open()))
    assert {row["_id"] for row in rows} == set(expected)
    assert all(abs(float(row["probability"]) - expected[row["_id"]]) < 1e-6 for row in rows)
    known = dict(zip(new.ids.tolist(), np.asarray(new.X)[:, 3].tolist(), strict=True))
    for row in rows:
        assert float(row["host-1_0"]) == pytest.approx(known[row["_id"]], rel=1e-6)
        assert row["prediction"] == str(int(float(row["probability"]) >= 0.8))
    assert {row["label"] for row in rows} == {"0", "1"}
    shap = ensemble.booster(n_threads=1).predict(
        matrix(new), pred_contribs=True, validate_features=False
    )
    names = [f"guest_{k}" for k in range(3)] + [f"host-1_{k}" for k in range(3)] + ["bias"]
    found = {row["_id"]: [float(row[f"shap_{name}"]) for name in names] for row in rows}
    np.testing.assert_allclose([found[i] for i in new.ids], shap, atol=1e-5)
    model = load(run)
    own = {name: folder / f"test-{name}.parquet" for name in ("guest", "host-1")}
    totals = model.shap(own, by_party=True)
    np.testing.assert_allclose(totals.sum(axis=1), model.shap(own).sum(axis=1), atol=1e-5)
    assert totals.shape == (80, 3)
    done = hedgerow(folder, "evaluate", "run", *tables, "--json")
    told = json.loads(done.stdout)
    report = json.loads((run / "report.json").read_text())
    assert told["rows"] == 80
    assert told["metrics"]["auc"] == pytest.approx(
        report["rounds"][-1]["metrics"]["test"]["auc"], abs=1e-9
    )


def test_predict_refuses_a_run_without_a_partys_table(run: Path) -> None:
    done = hedgerow(run.parent, "predict", "run", "host-1=test-host-1.parquet", "--out", "x.csv")
    assert done.returncode != 0
    assert "expected guest=FILE" in done.stderr


def test_a_party_can_print_what_its_part_reveals(run: Path) -> None:
    done = hedgerow(run.parent, "part", "run/silos/host-1/part.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("passive party host-1, model ")
    assert "host-1_0" in done.stdout
    assert "No labels, leaf values or gains" in done.stdout
    told = json.loads(hedgerow(run.parent, "part", "run/silos/guest/part.json", "--json").stdout)
    assert told["role"] == "active"
    assert told["trees"] == 2
    assert any(name.startswith("host-1:") for name in told["importance"])
    done = hedgerow(run.parent, "part", "run/report.json")
    assert done.returncode == 2
    assert "a part of a vertical model" in done.stderr


def test_the_plan_foretells_the_bytes_of_gradients_and_bounds_those_of_sums(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    done = hedgerow(
        run.parent, "plan", "job.toml", "--silo", "guest=guest.parquet",
        "--silo", "host-1=host-1.parquet", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["steps"]
    planned = {
        name: sum(s["bytes_up"] for s in steps if s["method"] == name)
        for name in ("ExchangeGradients", "ExchangeHistograms")
    }
    moved = report["bytes"]["by_step"]
    gradients = moved["ExchangeGradients"]["up"]
    assert abs(planned["ExchangeGradients"] - gradients) < 0.1 * gradients
    # Boxes and frames beside the sums are a few kB.
    assert moved["ExchangeHistograms"]["up"] < planned["ExchangeHistograms"] + 20_000


def test_parties_name_their_rows_by_columns_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    keys = [f"{k:03d}" for k in range(200)]
    a, b = rng.normal(size=(2, 200))
    label = (a + b > 0).astype(int)
    bank = pa.table({"cust": keys, "a": a, "label": label})
    shop = pa.table({"client": keys[::-1], "b": b[::-1], "town": ["x"] * 200})
    pq.write_table(bank, tmp_path / "bank.parquet")
    csv_file.write_csv(shop, tmp_path / "shop.csv")
    silos = {"bank": tmp_path / "bank.parquet", "shop": tmp_path / "shop.csv"}
    ids = {"bank": "cust", "shop": "client"}
    job = Job("secureboost", active="bank", rounds=2, max_depth=2, min_silos=2,
              encryption="plain", allow_insecure=True, metrics=["auc"])  # fmt: skip
    run = local(job, silos, silos, ids=ids, out=tmp_path / "run", quiet=True)
    assert run.document["alignment"] == {"common": 200, "rows": {"bank": 200, "shop": 200}}
    assert set(run.model.features) == {"a", "b", "town"}
    assert (run.folder / "evaluation.json").is_file()
    with pytest.raises(RunFailed, match="column '_id' that names the rows; another name is"):
        local(job, silos, quiet=True)
    words = [f"--id={party}={column}" for party, column in ids.items()]
    tables = [f"{party}={path}" for party, path in silos.items()]
    more = ["--keep", "town,label", "--shap", "parties"]
    done = hedgerow(tmp_path, "predict", "run", *tables, *words, *more, "--out", "scores.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((tmp_path / "scores.csv").open()))
    assert {row["_id"]: row["label"] for row in rows} == {
        key: str(own) for key, own in zip(keys, label.tolist(), strict=True)
    }
    done = hedgerow(tmp_path, "evaluate", "run", *tables, *words, "--json")
    assert json.loads(done.stdout)["metrics"]["auc"] == pytest.approx(
        run.document["rounds"][-1]["metrics"]["test"]["auc"], abs=1e-9
    )
