"""The report of an explore job: its columns, and how they go together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hedgerow
from hedgerow.coordinator.operator.report import page_of
from hedgerow.coordinator.operator.report.explored import explored
from hedgerow.coordinator.operator.report.runs import RunUnusable, read_runs

pytestmark = pytest.mark.process


def table(seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    a = draws.normal(size=800)
    gaps = np.where(draws.random(800) < 0.2, np.nan, draws.normal(size=800))
    sex = draws.choice(["f", "m"], 800)
    return pd.DataFrame({
        "age": a, "height": 0.9 * a + 0.3 * draws.normal(size=800), "dose": gaps, "sex": sex,
        "ward": np.where(sex == "f", "u", draws.choice(["u", "v"], 800)),
        "ill": (a + draws.normal(size=800) > 0).astype(int),
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hedgerow.Run:
    job = hedgerow.Job("explore", label="ill", silos=list("abc"), min_silos=3)
    tables = {silo: table(k) for k, silo in enumerate("abc")}
    return hedgerow.local(job, tables, out=tmp_path_factory.mktemp("report") / "look")


def test_the_report_has_every_column_and_the_pairs_that_go_most(run: hedgerow.Run) -> None:
    figures = {one.title: one for one in explored(read_runs((run.folder,)))}
    assert list(figures) == ["Columns", "Correlation", "Correlation of ranks", "Association"]
    rows = {row[0].text: [cell.text for cell in row] for row in figures["Columns"].rows}
    assert set(rows) == {"age", "height", "dose", "sex", "ward"}
    told = {one["name"]: one for one in run.statistics["columns"]}
    assert rows["age"][8] == f"{told['age']['against_label']['iv']:.3f}"
    assert rows["dose"][2] == str(told["dose"]["missing"])
    first = [cell.text for cell in figures["Correlation"].rows[0]]
    assert {*first[:2]} == {"age", "height"}
    assert float(first[2]) == pytest.approx(run.statistics["pearson"]["age"]["height"], abs=5e-4)
    assert {cell.text for cell in figures["Association"].rows[0][:2]} == {"sex", "ward"}
    page = run.report().read_text()
    assert "Information value of each column about ill" in page


def test_beside_a_run_that_chose_from_it_an_exploration_says_what_was_taken(
    run: hedgerow.Run, tmp_path: Path
) -> None:
    chosen = {"explored": str(run.folder), "select": "iv > 0.1"}
    job = hedgerow.Job("bagging", label="ill", min_silos=3, rounds=2, features=chosen)
    tables = {silo: table(k) for k, silo in enumerate("abc")}
    trained = hedgerow.local(job, tables, out=tmp_path / "train")
    runs = read_runs((trained.folder, run.folder))
    columns = next(one for one in explored(runs) if one.title == "Columns of look")
    taken = {row[0].text for row in columns.rows if row[-1].text == "train"}
    assert taken == {*job.parameters.features} >= {"age", "height"}
    assert f"train was trained on {len(taken)} of these 5 columns" in columns.lead
    assert "Columns of look" in page_of((trained.folder, run.folder))


def test_damaged_statistics_are_named(run: hedgerow.Run) -> None:
    path = Path(run.folder) / "statistics.json"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:100])
        with pytest.raises(RunUnusable, match="expected the statistics of an explore job"):
            read_runs((run.folder,))
    finally:
        path.write_bytes(whole)
