"""A job's ``[columns]`` from tables as people have them to predictions, and stock XGBoost's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xgboost
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.running import Run
from tests.late import Late

pd: Any = Late("pandas")
polars: Any = Late("polars")

RULES = {
    "dates": {"admitted": ["year", "month", "weekday", "days_since"]},
    "drop": ["name"],
    "categorical": ["ward"],
    "rename": {"Age (years)": "age", "Outcome": "label"},
    "positive": "healthy",
}


def patients(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1400, n), "D")
    age, ward = rng.integers(20, 90, n), rng.choice([1, 12, 30], n)
    ill = (ward == 12) * 2.0 + (days.day_of_week >= 5) * 2.0 + age / 50.0 > 3.0
    return pd.DataFrame(
        {
            "name": [f"p{k}" for k in range(n)],
            "admitted": days.date,
            "Age (years)": age,
            "ward": ward,
            "Outcome": np.where(ill, "ill", "healthy"),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three silos with the same facts in other forms: other names, orders and types."""
    folder = tmp_path_factory.mktemp("columns")
    north, south, west = (patients(200, seed) for seed in range(3))
    north.to_csv(folder / "north.csv", index=False, sep=";", encoding="utf-16")
    south["admitted"] = [f"{day:%d.%m.%Y}" for day in south["admitted"]]
    south = south.rename(columns={"Age (years)": "age"})[::-1]
    west["ward"] = west["ward"].astype(float)
    job = hedgerow.Job("bagging", rounds=3, eta=0.5, min_silos=3, metrics=["auc"], **RULES)
    silos = {"north": folder / "north.csv", "south": polars.DataFrame(south), "west": west}
    return hedgerow.local(job, silos, patients(150, 9), out=folder / "run", quiet=True)


def test_silos_with_other_forms_of_the_same_columns_agree(run: Run) -> None:
    schema = json.loads((run.folder / "schema.json").read_text())
    names = [feature["name"] for feature in schema["features"]]
    parts = ["admitted_year", "admitted_month", "admitted_weekday", "admitted_days_since"]
    assert names == [*parts, "age", "ward"]
    assert schema["features"][-1]["categories"] == ["1", "12", "30"]
    assert schema["classes"] == ["ill", "healthy"]
    assert run.metrics["test.auc"][-1] > 0.9


def test_every_way_to_predict_reads_columns_as_training_did(run: Run, tmp_path: Path) -> None:
    new = patients(50, 5)
    new.to_csv(tmp_path / "new.csv", index=False, decimal=",", sep=";")
    scored: list[Any] = []
    for model in (run.folder, run.folder / "model.ubj"):
        out = tmp_path / "out.parquet"
        call = CliRunner().invoke(
            main, ["predict", str(model), str(tmp_path / "new.csv"), "--out", str(out)]
        )
        assert call.exit_code == 0, call.output
        scored.append(pq.read_table(out))
    assert scored[0].column_names[1:4] == ["prediction", "probability", "probability_ill"]
    healthy = scored[0]["probability_healthy"].to_numpy()
    assert scored[0].equals(scored[1])
    assert np.array_equal(scored[0]["probability"], healthy)
    features = new.drop(columns=["Outcome", "name"])
    assert np.array_equal(run.model.predict_proba(features)["healthy"], healthy)
    assert run.model.shap(polars.from_pandas(features)).shape == (50, 7)
    told = CliRunner().invoke(
        main, ["evaluate", str(run.folder), str(tmp_path / "new.csv"), "--json"]
    )
    assert json.loads(told.output)["metrics"]["auc"] > 0.9


def test_stock_xgboost_needs_the_columns_that_the_rules_make(run: Run) -> None:
    new = patients(50, 5)
    day = pd.to_datetime(new["admitted"])
    frame = pd.DataFrame(
        {
            "admitted_year": day.dt.year,
            "admitted_month": day.dt.month,
            "admitted_weekday": day.dt.day_of_week,
            "admitted_days_since": (day - pd.Timestamp(0)).dt.days,
            "age": new["Age (years)"],
            "ward": new["ward"].astype(str).astype("category"),
        }
    )
    booster = xgboost.Booster(model_file=str(run.folder / "model.ubj"))
    stock = booster.predict(xgboost.DMatrix(frame, enable_categorical=True))
    np.testing.assert_allclose(stock, run.model.predict_proba(new)["healthy"], atol=1e-6)
    with pytest.raises(DataError, match="no feature 'admitted_year'"):
        run.model.predict(new.drop(columns="admitted"))


def test_parties_read_dates_and_categories_of_their_own_columns() -> None:
    table = patients(200, 3)
    table["_id"] = np.arange(200)
    rules = {**RULES, "drop": [], "rename": {"Outcome": "label"}}
    job = hedgerow.Job("secureboost", active="bank", rounds=2, max_depth=2, min_silos=2, **rules)
    run = hedgerow.simulate(
        job, table, parties="bank:Outcome,ward;clinic:admitted,Age (years)", crypto=False
    )
    assert run.metrics["test.auc"][-1] > 0.6
    parts = {
        "bank": table[["_id", "ward"]],
        "clinic": table[["_id", "admitted", "Age (years)"]],
    }
    assert set(run.model.predict(parts)) == {"ill", "healthy"}
