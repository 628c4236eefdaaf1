"""How far a table is from what an explore job has counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError
from hedgerow.coordinator import cli
from hedgerow.coordinator.operator import drifting

pytestmark = pytest.mark.process


def table(seed: int, shift: float = 0.0, women: float = 0.5, n: int = 1500) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    bmi = np.where(rng.random(n) < 0.1, np.nan, rng.normal(25 + shift, 4, n))
    sex = np.where(rng.random(n) < women, "f", "m")
    return pd.DataFrame({"bmi": bmi, "sex": sex, "outcome": rng.integers(0, 2, n)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hedgerow.Run:
    job = hedgerow.Job("explore", label="outcome", silos=list("abc"), min_silos=3, bins=10)
    out = tmp_path_factory.mktemp("drift") / "look"
    tables = {silo: table(k) for k, silo in enumerate("abc")}
    return hedgerow.local(job, tables, out=out)


def row(frame: hedgerow.Frame, column: str) -> dict[str, object]:
    at = list(frame["column"]).index(column)
    return {name: frame[name][at] for name in frame.columns}


def test_another_sample_of_the_same_people_has_not_drifted(run: hedgerow.Run) -> None:
    found = run.drift(table(9))
    assert list(found["column"]) == ["outcome", "bmi", "sex"]
    assert all(
        psi < 2 * chance for psi, chance in zip(found["psi"], found["by_chance"], strict=True)
    )


def test_the_index_is_that_of_the_counts(run: hedgerow.Run) -> None:
    now = table(9, shift=3.0)
    (bmi,) = [one for one in run.statistics["columns"] if one["name"] == "bmi"]
    cells = bmi["cells"]
    assert cells[0]["missing"]
    assert "below" not in cells[0]
    edges = [cell["below"] for cell in cells[1:-1]]
    counts = np.histogram(now.bmi.dropna().astype("f4"), [-np.inf, *edges, np.inf])[0]
    q = np.append(now.bmi.isna().sum(), counts) + 0.5
    p = np.array([cell["rows"] for cell in cells]) + 0.5
    p, q = p / p.sum(), q / q.sum()
    found = row(run.drift(now), "bmi")
    assert found["psi"] == pytest.approx(((q - p) * np.log(q / p)).sum())
    below = np.cumsum([cell["rows"] for cell in cells[1:]])
    distance = np.abs(below / below[-1] - np.cumsum(counts) / counts.sum()).max()
    assert found["ks"] == pytest.approx(distance)
    assert found["psi"] > 0.2


def test_new_categories_and_classes_are_counted(run: hedgerow.Run) -> None:
    now = table(9).replace({"sex": {"m": "männlich"}})
    found = row(run.drift(now), "sex")
    assert found["unknown"] == (now.sex == "männlich").sum()
    assert found["cell"] in ("unknown", "m")
    assert row(run.drift(table(9).assign(outcome=1)), "outcome")["psi"] > 0.2


def test_a_regression_has_its_label_among_the_numbers(tmp_path: Path) -> None:
    tables = {
        s: table(k).assign(outcome=lambda d: d.bmi.fillna(20) * 2) for k, s in enumerate("abc")
    }
    job = hedgerow.Job(
        "explore", label="outcome", task="regression", silos=list("abc"), min_silos=3
    )
    run = hedgerow.local(job, tables, out=tmp_path / "look")
    found = run.drift(table(9, shift=4.0).assign(outcome=lambda d: d.bmi.fillna(20) * 2))
    assert row(found, "outcome")["psi"] > 0.2
    assert row(found, "sex")["psi"] < 0.05


def test_what_is_no_table_of_the_run_is_refused(run: hedgerow.Run) -> None:
    with pytest.raises(DataError, match="received no sex"):
        run.drift(table(9).drop(columns="sex"))
    with pytest.raises(DataError, match="table: column 'bmi': expected numbers, received text"):
        run.drift(table(9).assign(bmi="heavy"))
    with pytest.raises(DataError, match="table: expected rows, received none"):
        run.drift(table(9).iloc[:0])


@pytest.mark.parametrize("gone", [None, float("nan")])
def test_columns_without_a_value_have_drifted(run: hedgerow.Run, gone: float | None) -> None:
    found = run.drift(table(9).assign(bmi=gone, sex=gone))
    for name in ("bmi", "sex"):
        assert row(found, name)["psi"] > 1.0


def test_statistics_of_another_version_are_refused(run: hedgerow.Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run/statistics.json"
    statistics = json.loads(path.read_text())
    del statistics["format"]
    path.write_text(json.dumps(statistics))
    with pytest.raises(DataError, match="of another version: explore the tables again"):
        hedgerow.Run(tmp_path / "run").drift(table(9))


def test_rows_without_a_label_are_compared_in_the_other_columns(run: hedgerow.Run) -> None:
    found = run.drift(table(9).drop(columns="outcome"))
    whole = run.drift(table(9))
    assert list(found["column"]) == ["bmi", "sex"]
    assert list(found["psi"]) == list(whole["psi"])[1:]


def test_text_that_is_numbers_today_is_named(run: hedgerow.Run) -> None:
    with pytest.raises(DataError, match="'sex': expected text, received numbers"):
        run.drift(table(9).assign(sex=1.0))


def test_chance_is_stayed_below_ninety_five_times_of_a_hundred() -> None:
    draws, shares = np.random.default_rng(0), np.full(8, 1 / 8)
    above = 0
    for _ in range(400):
        then, now = draws.multinomial(3000, shares), draws.multinomial(900, shares)
        cells = [{"name": str(k), "rows": int(n)} for k, n in enumerate(then)]
        one = drifting._drift(drifting.Counted("x", cells, now, 0, None))
        above += one.psi > one.by_chance
    assert 6 <= above <= 36  # of 400 about 20


def test_the_exit_code_says_whether_a_column_has_drifted(run: hedgerow.Run, tmp_path: Path) -> None:
    table(9).to_parquet(tmp_path / "same.parquet")
    table(9, women=0.1).to_csv(tmp_path / "other.csv", index=False)
    folder, invoke = str(run.folder), CliRunner().invoke
    same = invoke(cli.main, ["drift", folder, str(tmp_path / "same.parquet")])
    assert (same.exit_code, "drifted: none" in same.output) == (0, True), same.output
    other = invoke(cli.main, ["drift", folder, str(tmp_path / "other.csv")])
    assert (other.exit_code, "drifted: sex" in other.output) == (1, True), other.output
    assert [drifting.UNEVEN in one.output for one in (same, other)] == [False, True]
    wide = invoke(cli.main, ["drift", folder, str(tmp_path / "other.csv"), "--max-psi", "2"])
    assert wide.exit_code == 0
