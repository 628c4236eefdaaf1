"""Row samplers on the sets of the FedTab paper: our figures beside the published ones.

``python -m benchmarks.histogram_samplers --data DIR [--sets NAME ...] [--seeds 5] [--rounds 200]
[--quick] [--json FILE]``. ``DIR`` has ``ai4i_machine_failure.parquet``, ``insurance.parquet`` and
``lumpy_skin.parquet``; FEMNIST, Synthetic and Heart are not available and are listed as such. Silos
are the key columns (machine type, region, country); of the skin set the 3,039 positives and 2,000
of the negatives, whose country is unknown and drawn at random: the paper's selection is not
published. A fifth of each silo's rows tests, a fifth of the rest validates; all samplers are scored
on the same rows. Depth 6, eta 0.1, lambda 1, 256 bins, 200 rounds. The models are the engine's on
all rows with each silo's own random stream, which the federated ones equal bit for bit
(``tests/federation/test_histogram.py``). ``last``: last round; ``selected``: the round that is best
on validation rows; ``top 1 %``: mean of the best two of 200 rounds on the test rows, which is what
the paper reports, an optimistic figure. Mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from tests.pooled import Training, train_pooled

Row = dict[str, object]
Floats = NDArray[np.float64]
SAMPLERS = {
    "none": Sampler(),
    "mvs 10 %": Sampler("mvs", 0.1),
    "mvs 20 %": Sampler("mvs", 0.2),
    "mvs 50 %": Sampler("mvs", 0.5),
    "uniform 50 %": Sampler("uniform", 0.5),
}
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "machine": {
        "none": (0.982, 0.983),
        "mvs 10 %": (0.989, 0.985),
        "mvs 20 %": (0.985, 0.983),
        "mvs 50 %": (0.984, 0.965),
        "uniform 50 %": (0.982, 0.972),
        "central": (0.990, 0.986),
    },
    "skin": {
        "none": (0.980, 0.995),
        "mvs 10 %": (0.974, 0.996),
        "mvs 20 %": (0.975, 0.996),
        "mvs 50 %": (0.980, 0.998),
        "uniform 50 %": (0.978, 0.998),
        "central": (0.976, 0.979),
    },
    "insurance": {
        "none": (4496, 0.829),
        "mvs 10 %": (4788, 0.847),
        "mvs 20 %": (4082, 0.889),
        "mvs 50 %": (4429, 0.861),
        "uniform 50 %": (4630, 0.820),
        "central": (4002, 0.889),
    },
}
NAMES = {"machine": ("accuracy", "auc"), "skin": ("accuracy", "auc"), "insurance": ("rmse", "r2")}
FILES = {
    "machine": "ai4i_machine_failure.parquet",
    "skin": "lumpy_skin.parquet",
    "insurance": "insurance.parquet",
}
NEGATIVES = 2000
COUNTRIES = 22


@dataclass(frozen=True)
class Study:
    """A set with one seed: rows of silos one after another, and the part that each is in."""

    name: str
    job: JobParameters
    train: Dataset
    valid: Dataset
    test: Dataset
    sizes: tuple[int, ...]


def keys_of(name: str, table: pa.Table, rng: np.random.Generator) -> NDArray[np.str_]:
    """Return each row's silo; an empty name leaves the row out."""
    if name == "machine":
        return np.array(table["Type"].to_pylist(), str)
    if name == "insurance":
        return np.array(table["region"].to_pylist(), str)
    keys = np.array([key or "" for key in table["_silo"].to_pylist()], str)
    positive = keys != ""
    known, counts = np.unique(keys[positive], return_counts=True)
    chosen = rng.permutation(len(known))[:COUNTRIES]
    keys[positive & ~np.isin(keys, known[chosen])] = ""
    share = counts[chosen] / counts[chosen].sum()
    negatives = rng.permutation(np.flatnonzero(~positive))[:NEGATIVES]
    keys[negatives] = rng.choice(known[chosen], NEGATIVES, p=share)
    return keys


def study(name: str, folder: Path, seed: int) -> Study:
    """Split a set: a fifth of each silo's rows tests, a fifth of the rest validates."""
    rng = np.random.default_rng([seed, 2])
    table = read_table(str(folder / FILES[name]))
    keys = keys_of(name, table, rng)
    task = Task.REGRESSION if name == "insurance" else Task.BINARY
    booster = Booster(max_depth=6, eta=0.1, max_bin=256)
    job = JobParameters("study", Histogram(), task=task, seed=seed, booster=booster)
    data = for_job(table, job, name)
    parts: dict[str, list[NDArray[np.intp]]] = defaultdict(list)
    for key in sorted(set(keys) - {""}):
        rows = rng.permutation(np.flatnonzero(keys == key))
        n_test = len(rows) // 5
        n_valid = (len(rows) - n_test) // 5
        parts["test"].append(rows[:n_test])
        parts["valid"].append(rows[n_test : n_test + n_valid])
        parts["train"].append(np.sort(rows[n_test + n_valid :]))
    taken = {part: data.take(np.concatenate(rows)) for part, rows in parts.items()}
    sizes = tuple(len(rows) for rows in parts["train"])
    return Study(name, job, taken["train"], taken["valid"], taken["test"], sizes)


def curves(data: Study, model: Ensemble) -> tuple[list[Floats], list[Floats]]:
    """Return the scores of every round on validation and on test rows."""
    booster = model.booster()
    found: tuple[list[Floats], list[Floats]] = ([], [])
    for part, scores in zip((data.valid, data.test), found, strict=True):
        rows = xgb.DMatrix(
            part.X, feature_types=part.schema.feature_types, enable_categorical=True, nthread=1
        )
        for end in range(1, len(model.round_ends) + 1):
            margins = booster.predict(
                rows, output_margin=True, iteration_range=(0, end), validate_features=False
            )
            scored = metrics.evaluate(
                NAMES[data.name], part.labels, margins, objective=data.job.objective
            )
            scores.append(np.array([scored[n] for n in NAMES[data.name]]))
    return found


def summarised(data: Study, model: Ensemble) -> dict[str, Floats]:
    """Return the three readings of a training, each of both metrics."""
    valid, test = curves(data, model)
    sign = np.array([1.0 if metrics.higher_is_better(n) else -1.0 for n in NAMES[data.name]])
    best = int(np.argmax([scores[-1] for scores in valid]))
    ordered = np.sort(np.array(test) * sign, axis=0)[-2:]
    return {"last": test[-1], "selected": test[best], "top 1 %": ordered.mean(axis=0) * sign}


def trainings(data: Study, rounds: int) -> dict[str, Ensemble]:
    """Train with every sampler, and XGBoost itself on all rows."""
    found = {
        name: train_pooled(
            data.job, data.train, rounds, Training(sampler=sampler, blocks=data.sizes)
        )
        for name, sampler in SAMPLERS.items()
    }
    binary = data.name != "insurance"
    native = xgb.train(
        {
            "objective": "binary:logistic" if binary else "reg:squarederror",
            "max_depth": 6,
            "eta": 0.1,
            "tree_method": "hist",
            "nthread": 1,
        },
        xgb.DMatrix(
            data.train.X,
            data.train.labels,
            feature_types=data.train.schema.feature_types,
            enable_categorical=True,
        ),
        rounds,
    )
    central = load(bytes(native.save_raw("ubj")))
    ends = tuple(range(1, rounds + 1))
    found["central"] = Ensemble(central.header, central.trees, central.steps, ends)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sets", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--quick", action="store_true", help="one set, one seed, 20 rounds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.data is None:
        print("no --data, nothing to measure: the sets are not part of this repository")
        return
    seeds, rounds = arguments.seeds, arguments.rounds
    names = arguments.sets
    if arguments.quick:
        seeds, rounds, names = 1, 20, names[:1]
    rows: list[Row] = []
    for name in names:
        if not (arguments.data / FILES[name]).is_file():
            print(f"{name}: no {FILES[name]} in --data, skipped")
            continue
        readings: dict[tuple[str, str], list[Floats]] = defaultdict(list)
        for seed in range(seeds):
            data = study(name, arguments.data, seed)
            for who, model in trainings(data, rounds).items():
                for reading, scores in summarised(data, model).items():
                    readings[who, reading].append(scores)
        for (who, reading), found in readings.items():
            for k, metric in enumerate(NAMES[name]):
                values = [float(scores[k]) for scores in found]
                row: dict[str, Any] = {
                    "metric": f"{name} {metric}, {reading}",
                    "who": "xgboost-pooled" if who == "central" else "hedgerow",
                    "value": statistics.mean(values),
                    "unit": metric,
                    "sampler": who,
                    "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
                    "published": PUBLISHED[name][who][k],
                }
                rows.append(row)
                print(
                    f"{row['metric']:32s} {who:14s} {row['value']:10.4f} ± {row['sd']:8.4f} "
                    f"published {row['published']:g}",
                    flush=True,
                )
    for name in ("FEMNIST", "Synthetic", "Heart"):
        print(f"{name}: the set is not to be had")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
