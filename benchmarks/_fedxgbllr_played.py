"""FedXGBllr federations played in one process: tables, silos, trees, and rounds of vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedxgbllr.agreement import combiner_of
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.parameters import PAPER_BOOSTERS, FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import NextPoints
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.local import booster_parameters, matrix
from hedgerow.services.wire import codec_of

ADULT = Path(__file__).resolve().parent.parent / "examples/data/adult.parquet"
REGRESSIONS = ("abalone", "cpusmall", "space_ga")
SETS = ("a9a", "cod_rna", "abalone", "cpusmall", "higgs_26k")
TREES = 500
BOOSTERS = {name: Booster(**given) for name, given in PAPER_BOOSTERS.items()}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """One data set, number of silos and seed: the rows of each silo, and the trees of all."""

    name: str
    job: JobParameters
    silos: tuple[Dataset, ...]
    test: Dataset
    center: float

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.job.task

    def score(self, margins: Floats) -> float:
        """Return the accuracy in percent, or the mean squared error."""
        if self.task is Task.BINARY:
            return float(100 * np.mean((margins >= 0) == (self.test.labels == 1)))
        return float(np.mean((margins + self.center - self.test.labels) ** 2))


def load_set(name: str, folder: Path | None) -> Dataset:
    """Return a table; of a set with published parts the one for training."""
    task = Task.REGRESSION if name in REGRESSIONS else Task.BINARY
    path = ADULT if folder is None else folder / f"{name}.parquet"
    table = read_table(str(path))
    if "_split" in table.column_names and folder is not None:
        parts = np.array(table["_split"].to_pylist())
        table = table.filter(parts == "train")
    return for_job(table, JobParameters("t", FedXGBllr(), task=task), path.name)


def studies(
    name: str, rows: Dataset, n_silos: int, seed: int, booster: Booster = BOOSTERS["code"]
) -> Study:
    """Return the set split by seed: a quarter tests, the rest is divided equally."""
    order = np.random.default_rng(seed).permutation(rows.n_samples)
    n_test = round(rows.n_samples / 4)
    test, train = order[:n_test], order[n_test:]
    job = JobParameters("t", FedXGBllr(), task=rows.schema.task, seed=seed, booster=booster)
    center = float(rows.labels[train].mean()) if job.task is Task.REGRESSION else 0.0
    parts = tuple(rows.take(part) for part in np.array_split(train, n_silos))
    return Study(name, job, parts, rows.take(test), center)


def grow(
    study: Study, rows: Dataset, n_steps: int, number: int, *, shared: bool = False
) -> xgb.Booster:
    """Return a booster as a silo grows it; ``shared`` with ``share_penalties``."""
    job = FedXGBllr(share_penalties=shared).silo_job(study.job, len(study.silos))
    parameters = {
        **booster_parameters(job.booster, job.objective, 1, 1),
        "base_score": 0.5 if study.task is Task.BINARY else 0.0,
        "seed": 1000 * study.job.seed + number,
    }
    table = rows if study.task is Task.BINARY else replace(rows, y=rows.labels - study.center)
    return xgb.train(parameters, matrix(table, 1), n_steps)


def margins_of(booster: xgb.Booster, rows: Dataset) -> Floats:
    """Return a booster's margins."""
    found = booster.predict(matrix(rows, 1), output_margin=True, validate_features=False)
    return np.asarray(found, np.float64)


@dataclass
class Played:
    """A federation in this process: all trees, and each silo's rows as ordinals."""

    study: Study
    trees: list[list[Tree]]
    rows: list[TrainingRows]
    test: LeafOrdinals

    @classmethod
    def of(cls, study: Study, boosters: Sequence[xgb.Booster], silos: Sequence[Dataset]) -> Played:
        """Return the federation after round 0."""
        trees = [trees_of(booster) for booster in boosters]
        every = [tree for part in trees for tree in part]
        rows = [
            TrainingRows(LeafOrdinals.of(every, part.X), part.labels - study.center)
            for part in silos
        ]
        return cls(study, trees, rows, LeafOrdinals.of(every, study.test.X))

    def combiner(self, strategy: FedXGBllr) -> Combiner:
        """Return the strategy's combiner of these trees."""
        task, seed = self.study.task, self.study.job.seed
        return combiner_of(strategy, self.test.table, task, len(self.trees), 1, seed)

    def rounds(
        self, strategy: FedXGBllr, *, seconds: list[float] | None = None
    ) -> Iterator[tuple[Combiner, Any, int]]:
        """Yield combiner, state and bytes of each round's vectors."""
        combiner = self.combiner(strategy)
        state, seed = combiner.initial(), self.study.job.seed
        yield combiner, state, 0
        for round_ in range(1, combiner.n_rounds + 1):
            total, sent, known = np.zeros(combiner.width(round_)), 0, state.candidates[0]
            for number, rows in enumerate(self.rows):
                rng = np.random.default_rng([seed, number, round_])
                started = time.process_time()
                vector = combiner.local(state.candidates, rows, round_, 0, rng, lambda: None)
                if seconds is not None:
                    seconds.append(time.process_time() - started)
                offer = combiner.write(vector, round_, known, rng)
                sent += wire_bytes(offer)
                total += combiner.read(offer, round_, known)
            state = combiner.advance(state, total, round_)
            rng = np.random.default_rng([seed, round_])
            points, state = combiner.write_points(state, known, rng)
            sent += wire_bytes(NextPoints(points, final=False)) * len(self.rows)
            yield combiner, state, sent


def wire_bytes(payload: object) -> int:
    """Return the bytes of a payload's protobuf frames."""
    return sum(len(m.SerializeToString()) for m in codec_of(type(payload)).encode(payload))


def linear_of(task: Task) -> str:
    """Return the name of the one-rate-a-tree combiner."""
    return "ridge" if task is Task.REGRESSION else "logit_ridge"


def combiners(task: Task) -> dict[str, FedXGBllr]:
    """Return the combiners that are no network, as a user would set them."""
    linear = linear_of(task)
    return {
        "linear": FedXGBllr(trees=TREES, combiner=linear),
        "leaves": FedXGBllr(trees=TREES, combiner="leaves", rounds=30),
    }
