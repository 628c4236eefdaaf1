"""Small FedXGBllr jobs for tests: tables, parameters, runs in memory."""

from __future__ import annotations

import numpy as np

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedxgbllr.checkpoint import Checkpoint
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import StackedModel
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.wire import codec_of
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation import memory
from tests.federation.memory import run_in_memory
from tests.oracles import PLAIN_TASKS

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
    """Return parameters of a short job; without held-out rows the last round is the result."""
    return FedXGBllr(
        **{"trees": 12, "rounds": 3, "epochs": 2, "channels": 8, "validation": 0.0, **given}
    )


def of_task(task: Task) -> list[str]:
    linear = "ridge" if task is Task.REGRESSION else "logit_ridge"
    return ["cnn", "conv3", "dense", "mean", linear, "leaves"]


CASES = [(task, combiner) for task in PLAIN_TASKS for combiner in of_task(task)]


def record_of(task: JobParameters, outcome) -> Checkpoint:
    """Return the coordinator's state after the last round."""
    schema = table(task.task, 0, 0).schema
    return Checkpoint.decode(task.parameters, task, schema, outcome.rounds[-1].checkpoint)


def margins_of(outcome, X):
    return StackedModel.load(outcome.artefact.files).margins(X)


def traffic(task: JobParameters, data, **rest):
    """Return the outcome and the bytes of all payloads, up and down."""
    moved = []  # of all silos' threads: a sum would lose what two add at a time
    original = memory.through_wire

    def counted(payload):
        moved.extend(len(m.SerializeToString()) for m in codec_of(type(payload)).encode(payload))
        return original(payload)

    memory.through_wire = counted
    try:
        outcome = run_in_memory(task, data, through_wire=True, **rest)
    finally:
        memory.through_wire = original
    return outcome, sum(moved)


def secure_run(task: JobParameters, data, **rest):
    authority = Authority()
    return run_in_memory(
        task,
        data,
        vaults=lambda _: LocalVault(),
        identities=lambda silo: TestIdentity(authority, silo),
        **rest,
    )
