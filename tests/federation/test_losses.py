"""Jobs with a loss of their own: the built-in one's model, and a stock file that says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

import hedgerow
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.coordinator.operator.library.baselines import matrix_of, parameters_of, trained
from tests import oracles
from tests.federation.histograms import job_of

pytestmark = pytest.mark.process
ASYMMETRIC = "where(label > margin, 4 * (label - margin)**2, (label - margin)**2)"


def rows(n: int) -> pd.DataFrame:
    draws = np.random.default_rng(1)
    a = draws.normal(size=n)
    return pd.DataFrame({"a": a, "b": draws.normal(size=n), "label": 2 * a + draws.normal(size=n)})


@pytest.mark.parametrize(
    ("task", "loss"),
    [
        ("regression", "(margin - label)**2 / 2"),
        ("binary", "log(1 + exp(margin)) - label * margin"),
    ],
)
def test_the_formula_of_a_built_in_loss_gives_its_model(task: str, loss: str) -> None:
    table = rows(2400)
    if task == "binary":
        table["label"] = (table["label"] > 0).astype(int)
    told = []
    for own in ({}, {"loss": loss}):
        job = hedgerow.Job(
            "histogram", label="label", task=task, min_silos=3, rounds=8, max_depth=4, **own
        )
        model = hedgerow.simulate(job, table, 3, crypto=False, test=0.0).model
        stock = model.to_xgboost()
        told.append(stock.predict(xgb.DMatrix(table[["a", "b"]])))
        given = model.predict(table.drop(columns="label"))
        if task == "regression":
            np.testing.assert_array_equal(given, told[-1])
    np.testing.assert_allclose(*told, atol=1e-6)


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.BINARY])
def test_baselines_are_trained_by_the_jobs_own_loss(task: Task) -> None:
    data = oracles.generated(task, 800, weighted=True)
    built_in = {
        Task.REGRESSION: "(margin - label)**2 / 2",
        Task.BINARY: "log(1 + exp(margin)) - label * margin",
    }[task]
    told = []
    for loss in ("", built_in, ASYMMETRIC):
        job = job_of(Histogram(rounds=8), task, Booster(max_depth=3, loss=loss))
        model = trained(job, data, 8, parameters_of(job, data.schema, 1))
        told.append(model.predict(matrix_of(data), output_margin=True))
    np.testing.assert_allclose(told[0], told[1], atol=2e-5)
    assert told[2].mean() > told[1].mean() + 0.05


def test_a_job_file_has_a_loss_and_its_model_leans_to_the_dearer_side(tmp_path: Path) -> None:
    text = (
        'strategy = "histogram"\ntask = "regression"\nmin_silos = 3\n[histogram]\nrounds = 15\n'
        '[booster]\nmax_depth = 3\nloss = "{}"\n'
    )
    table = rows(1500)
    command = [sys.executable, "-m", "hedgerow", "local", str(tmp_path / "job.toml")]
    for k in range(3):
        table[k::3].to_csv(tmp_path / f"s{k}.csv", index=False)
        command += ["--silo", f"s{k}={tmp_path / f's{k}.csv'}"]
    for loss, said in ((ASYMMETRIC, ""), ("open('x')", "loss: expected a formula of margin")):
        (tmp_path / "job.toml").write_text(text.format(loss))
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == bool(said), done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    model = hedgerow.Run(tmp_path / "run").model
    over = (model.predict(table[["a", "b"]]) > table["label"]).mean()
    assert 0.6 < over < 0.9


def test_a_rows_weight_takes_no_others_gradients_away() -> None:
    objective = objective_of(
        "reg:squarederror", Task.REGRESSION,
        Booster(loss="where(label > 2, 1e36 * margin, 0) + (margin - label) ** 2"),
    )  # fmt: skip
    y, weight = np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 1000.0])
    g, h = objective.gradients(np.zeros((3, 1), np.float32), y, weight)
    np.testing.assert_array_equal(g[:, 0], [0.0, -4.0, 0.0])
    np.testing.assert_array_equal(h[:, 0], [2.0, 4.0, 0.0])
