"""FedXGBllr from end to end: both halves, the real rendezvous, payloads through their codecs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from boosting.dataset import Dataset, Feature, Schema, Task
from boosting.job import Booster, JobParameters
from boosting.stacked_model import StackedModel
from boosting.strategies.fedxgbllr import FedXGBllr
from tests.federation.memory import run_in_memory

CATEGORIES = ("red", "green", "blue", "grey", "black", "white")


def table(task: Task, n: int, seed: int, *, n_classes: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    X[:, 4] = rng.integers(0, len(CATEGORIES), n)
    signal = X[:, 0] + np.abs(X[:, 1]) + X[:, 2] * (X[:, 4] > 2) + rng.normal(0, 0.3, n)
    X[rng.random(X.shape) < 0.05] = np.nan
    if task is Task.REGRESSION:
        y = 50 + 4 * signal
    elif task is Task.BINARY:
        y = (signal > 1).astype(np.float64)
    else:
        y = np.digitize(signal, np.linspace(0, 2, n_classes - 1)).astype(np.float64)
    names = [Feature(f"f{i}") for i in range(4)]
    size = {Task.REGRESSION: 0, Task.BINARY: 2, Task.MULTICLASS: n_classes}[task]
    schema = Schema((*names, Feature("colour", CATEGORIES)), "label", task, size)
    return Dataset(schema, X, y.astype(np.float64))


def silos(task: Task, n_silos: int, n: int = 120) -> dict[str, Dataset]:
    return {f"s{i:02d}": table(task, n + 7 * i, i) for i in range(n_silos)}


def job(task: Task, strategy: FedXGBllr, **rest) -> JobParameters:
    booster = Booster(eta=0.3, max_depth=3, subsample=0.8)
    return JobParameters("t", strategy, task=task, seed=3, **{"booster": booster, **rest})


def small(**given) -> FedXGBllr:
    return FedXGBllr(**{"trees": 12, "rounds": 3, "epochs": 2, "channels": 8, **given})


def of_task(task: Task) -> list[str]:
    linear = "ridge" if task is Task.REGRESSION else "logit_ridge"
    return ["cnn", "conv3", "dense", "mean", linear, "leaves"]


CASES = [(task, combiner) for task in Task for combiner in of_task(task)]


@pytest.mark.parametrize(("task", "combiner"), CASES)
def test_a_job_ends_with_a_model_that_predicts_as_its_last_round_scored(task, combiner):
    test = table(task, 200, 99)
    outcome = run_in_memory(
        job(task, small(combiner=combiner)), silos(task, 3), test=test, through_wire=True
    )
    assert outcome.error is None
    assert not outcome.errors
    assert outcome.rounds[-1].final
    assert outcome.open_places <= 2
    assert outcome.artefact is not None
    files = outcome.artefact.files
    model = StackedModel.load(files)
    from boosting import metrics

    names = metrics.defaults(task)
    scored = metrics.evaluate(
        names, test.labels, model.margins(test.X), objective=job(task, small()).objective
    )
    assert scored == pytest.approx(outcome.rounds[-1].metrics["test"], rel=1e-5)
    manifest = json.loads(files["manifest.json"])
    assert [silo["silo"] for silo in manifest["silos"]] == ["s00", "s01", "s02"]
    assert sum(silo["share"] for silo in manifest["silos"]) == pytest.approx(1.0)
