"""The how-tos: jobs, programs and commands of each page run as they are, on one made table."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.coordinator.cli import main

PAGES = {
    path.stem: path.read_text()
    for path in (Path(__file__).resolve().parents[2] / "docs/how-to").glob("*.md")
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def people(n_rows: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    age = rng.integers(20, 80, n_rows).astype(float)
    table = pd.DataFrame({
        "age": age, "dose": np.where(rng.random(n_rows) < 0.2, -999.0, rng.random(n_rows)),
        "ward": rng.integers(1, 5, n_rows), "customer": [f"c{k}" for k in range(n_rows)],
        "note": [f"seen {k}" for k in range(n_rows)],
    })  # fmt: skip
    table["label"] = (rng.random(n_rows) < (age - 20) / 120).astype(int)
    return table


SIGNED = "approvals"
"""Page whose job people must sign: tests/federation/test_approvals.py runs it."""


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml") and p != SIGNED])
def test_the_job_of_a_page_trains(page: str) -> None:
    [text] = blocks(page, "toml")
    job, table = tomllib.loads(text), people()
    if page == "missing":
        table["label"] = table["label"].astype("Int64").mask(table.index % 9 == 0)
    if page == "survival":
        told = {"days": 30 + 9 * table["age"], "died": table.pop("label")}
        table = table.assign(**told)
    if page == "ranking":
        table = table.assign(grade=table.pop("label"), patient=table.index // 6)
    if page != "identifiers":
        table = table.drop(columns=["customer", "note"])
    run = hedgerow.simulate(job, table, 3, crypto=False)
    scores = [run.metrics[name] for name in run.metrics.columns if name.startswith("test.")]
    assert scores
    assert np.isfinite(scores).all()
    trees = run.model.trees()
    assert {"customer", "note", "days", "died", "grade", "patient"}.isdisjoint(trees["feature"])
    if page == "missing":
        pairs = zip(trees["feature"], trees["threshold"], strict=True)
        cuts = [cut for feature, cut in pairs if feature == "dose"]
        assert cuts
        assert min(cuts) > -1, "-999 is no value"


@pytest.mark.process
def test_a_threshold_and_a_key_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = people()
    for name, rows in (("north", table[:100]), ("south", table[100:200]), ("new", table[200:])):
        rows.to_csv(f"{name}.csv", index=False)
    Path("job.toml").write_text(blocks("identifiers", "toml")[0])
    program: dict[str, Any] = {}
    exec(blocks("thresholds", "python")[0], program)
    assert list(program["answers"] == 1) == list(program["probability"] >= 0.2)
    [line] = blocks("thresholds", "console")
    done = CliRunner().invoke(main, shlex.split(line)[2:])
    assert done.exit_code == 0, done.output
    written = pd.read_csv("answers.csv")
    assert list(written["customer"]) == list(table["customer"][200:])
    assert list(written["prediction"]) == list(program["answers"])


@pytest.mark.process
def test_a_score_card_of_the_page_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = people(320).drop(columns=["customer", "note"])
    for k, name in enumerate(("north", "south", "west", "new")):
        table[k::4].to_csv(f"{name}.csv", index=False)
    Path("job.toml").write_text(blocks("score-cards", "toml")[0])
    program: dict[str, Any] = {}
    exec(blocks("score-cards", "python")[0], program)
    odds = program["run"].model.predict_proba("new.csv")["1"].astype(float)
    odds = odds / (1 - odds)
    np.testing.assert_allclose(program["scores"], 600 + 20 * np.log2(odds), atol=1e-3)
    [line] = blocks("score-cards", "console")
    done = CliRunner().invoke(main, shlex.split(line)[2:])
    assert done.exit_code == 0, done.output
    assert pd.read_csv("points.csv")["column"].nunique() > 0


def test_a_pipeline_of_scikit_learn_trains_over_silos() -> None:
    X = people()
    program: dict[str, Any] = {
        "X": X[["age", "dose", "ward"]], "y": X["label"], "site": np.arange(len(X)) % 2,
    }  # fmt: skip
    exec(blocks("pipeline", "python")[0], program)
    assert program["model"].score(program["X"], program["y"]) > 0.6


@pytest.fixture(scope="module", params=["binary", "multiclass", "regression"])
def scored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a folder with model.ubj, rows, and what XGBoost says of them."""
    folder, table = tmp_path_factory.mktemp("elsewhere"), people()[["age", "dose", "ward"]]
    table.loc[::7, "age"] = np.nan
    table["label"] = {
        "binary": table["ward"] > 2, "multiclass": table["ward"] % 3, "regression": table["dose"],
    }[request.param].astype(float)  # fmt: skip
    job = hedgerow.Job("bagging", rounds=3, task=request.param)
    hedgerow.simulate(job, table, 3).model.save(folder / "model.ubj")
    rows = table[["age", "dose", "ward"]].to_numpy(np.float32)
    booster = xgb.Booster(model_file=folder / "model.ubj")
    return folder, rows, booster.inplace_predict(rows, validate_features=False)


@pytest.mark.process
def test_a_program_in_c_scores_as_xgboost_does(scored: Any) -> None:
    folder, rows, expected = scored
    (folder / "score.c").write_text(blocks("elsewhere", "c")[0])
    library = Path(xgb.__file__).parent / "lib"
    build, use = (line[2:] for line in blocks("elsewhere", "console")[0].splitlines())
    build = build.replace("libxgboost.so", str(library / "libxgboost.so"))
    build = build.replace("rpath,.", f"rpath,{library}")
    subprocess.run(shlex.split(f"{build} -Wall -Werror"), check=True, cwd=folder)
    for row, known in list(zip(rows, expected, strict=True))[:9]:
        told = subprocess.run(
            [*shlex.split(use)[:2], *map(str, row)], check=True, cwd=folder, capture_output=True
        )
        assert np.array(told.stdout.split(), np.float32) == pytest.approx(np.atleast_1d(known))


@pytest.mark.parametrize("block", [0, 1], ids=["onnx", "treelite"])
def test_other_formats_give_the_same_scores(
    scored: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rows, expected = scored
    monkeypatch.chdir(folder)
    program: dict[str, Any] = {"rows": rows}
    exec(blocks("elsewhere", "python")[block], program)
    found = np.squeeze(program["treelite_scores" if block else "onnx_scores"])
    if found.ndim == 2 and expected.ndim == 1:
        found = found[:, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
