"""Row samplers on the sets of the FedTab paper: our figures beside the published ones.

``python -m benchmarks.histogram_samplers --data DIR [--what table|local] [--sets NAME ...]
[--seeds 5] [--rounds 200] [--quick] [--json FILE]``. ``DIR`` has ``ai4i_machine_failure.parquet``,
``insurance.parquet`` and ``lumpy_skin.parquet``; FEMNIST, Synthetic and Heart are not available and
are listed as such. Silos are the key columns (machine type, region, country); of the skin set the
3,039 positives and 2,000 of the negatives, whose country is unknown and drawn at random: the
paper's selection is not published. A fifth of each silo's rows tests, a fifth of the rest validates
(``local``: a tenth and two tenths, as in the paper's Figure 5); all samplers are scored on the same
rows. Depth 6, eta 0.1, lambda 1, 256 bins, 200 rounds. The models are the engine's on all rows with
each silo's own random stream, which the federated ones equal bit for bit
(``tests/federation/test_histogram.py``). ``last``: last round; ``selected``: the round that is best
on validation rows; ``top 1 %``: mean of the best two of 200 rounds on the test rows, which is what
the paper reports, an optimistic figure. ``local``: the selected round's accuracy or RMSE on each
silo's own test rows less that on all. Mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from hedgerow.boosting.trees.local import matrix
from tests.pooled import Training, train_pooled

Row = dict[str, Any]
Floats = NDArray[np.float64]
SHARES = (10, 20, 30, 40, 50)
SAMPLERS = {
    "none": Sampler(),
    **{
        f"{method} {share} %": Sampler(method, share / 100)
        for method in ("mvs", "uniform")
        for share in SHARES
    },
}
LOCAL = ("none", "mvs 50 %", "uniform 50 %")
"""Samplers whose models each silo scores on its own rows."""

PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    name: dict(zip((*SAMPLERS, "central"), scores, strict=True))
    for name, scores in {
        "machine": (
            (0.982, 0.983),
            *((0.989, 0.985), (0.985, 0.983), (0.987, 0.980), (0.987, 0.977), (0.984, 0.965)),
            *((0.971, 0.965), (0.972, 0.965), (0.987, 0.977), (0.983, 0.975), (0.982, 0.972)),
            (0.990, 0.986),
        ),
        "skin": (
            (0.980, 0.995),
            *((0.974, 0.996), (0.975, 0.996), (0.970, 0.995), (0.979, 0.998), (0.980, 0.998)),
            *((0.956, 0.992), (0.964, 0.992), (0.965, 0.992), (0.978, 0.998), (0.978, 0.998)),
            (0.976, 0.979),
        ),
        "insurance": (
            (4496, 0.829),
            *((4788, 0.847), (4082, 0.889), (4480, 0.858), (4896, 0.831), (4429, 0.861)),
            *((4705, 0.851), (4310, 0.882), (4451, 0.869), (4122, 0.856), (4630, 0.820)),
            (4002, 0.889),
        ),
    }.items()
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
    """A set with one seed: rows of silos one after another, and the part that each is in.

    ``sizes`` and ``test_sizes`` are the silos' rows that train and test.
    """

    name: str
    job: JobParameters
    train: Dataset
    valid: Dataset
    test: Dataset
    sizes: tuple[int, ...]
    test_sizes: tuple[int, ...]


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


def study(name: str, folder: Path, seed: int, shares: tuple[float, float] = (0.2, 0.16)) -> Study:
    """Split a set: shares of each silo's rows test and validate."""
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
        n_test, n_valid = (int(share * len(rows) + 1e-9) for share in shares)
        parts["test"].append(rows[:n_test])
        parts["valid"].append(rows[n_test : n_test + n_valid])
        parts["train"].append(np.sort(rows[n_test + n_valid :]))
    taken = {part: data.take(np.concatenate(rows)) for part, rows in parts.items()}
    sizes, tested = (tuple(map(len, parts[part])) for part in ("train", "test"))
    return Study(name, job, taken["train"], taken["valid"], taken["test"], sizes, tested)


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
    best = selected(valid)
    ordered = np.sort(np.array(test) * sign, axis=0)[-2:]
    return {"last": test[-1], "selected": test[best], "top 1 %": ordered.mean(axis=0) * sign}


def selected(valid: list[Floats]) -> int:
    """Return the round that is best on validation rows, by AUC or R²."""
    return int(np.argmax([scores[-1] for scores in valid]))


def local_and_global(data: Study, rounds: int) -> Iterator[tuple[str, float, list[float]]]:
    """Yield, by sampler, the score of all test rows and the silos' scores of their own.

    Of the round that validation rows select; accuracy, or RMSE.
    """
    name, starts = NAMES[data.name][0], np.cumsum((0, *data.test_sizes[:-1]))
    for who in LOCAL:
        training = Training(sampler=SAMPLERS[who], blocks=data.sizes)
        model = train_pooled(data.job, data.train, rounds, training)
        margins = model.slice(selected(curves(data, model)[0]) + 1).margins(matrix(data.test, 1))
        whole, *own = (
            metrics.evaluate(
                (name,), data.test.labels[part], margins[part], objective=data.job.objective
            )[name]
            for part in (
                slice(None),
                *(slice(a, a + n) for a, n in zip(starts, data.test_sizes, strict=True) if n),
            )
        )
        yield who, whole, own


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


def table(name: str, folder: Path, seeds: int, rounds: int) -> Iterator[Row]:
    """Yield Table V's rows of a set: each sampler's readings beside the published ones."""
    readings: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for seed in range(seeds):
        data = study(name, folder, seed)
        for who, model in trainings(data, rounds).items():
            for reading, scores in summarised(data, model).items():
                readings[who, reading].append(scores)
    for (who, reading), found in readings.items():
        for k, metric in enumerate(NAMES[name]):
            yield {
                **_row(f"{name} {metric}, {reading}", who, [float(s[k]) for s in found], metric),
                "published": PUBLISHED[name][who][k],
            }


def local(name: str, folder: Path, seeds: int, rounds: int) -> Iterator[Row]:
    """Yield Figure 5's rows of a set: 70 % train, 20 % validate and 10 % test, of each silo."""
    unit, found = NAMES[name][0], defaultdict(list)
    for seed in range(seeds):
        for who, whole, own in local_and_global(study(name, folder, seed, (0.1, 0.2)), rounds):
            apart = np.array(own) - whole
            better = apart > 0 if metrics.higher_is_better(unit) else apart < 0
            found["global", who, unit].append(whole)
            found["local less global", who, unit].append(float(apart.mean()))
            found["spread of silos", who, unit].append(float(apart.std()))
            found["silos better than global", who, "%"].append(100 * float(better.mean()))
    for (metric, who, of), values in found.items():
        yield _row(f"{name} {metric}", who, values, of)


def _row(metric: str, sampler: str, values: Sequence[float], unit: str) -> Row:
    return {
        "metric": metric,
        "who": "xgboost-pooled" if sampler == "central" else "hedgerow",
        "value": statistics.mean(values),
        "unit": unit,
        "sampler": sampler,
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sets", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--what", choices=["table", "local"], default="table")
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
        measure = {"table": table, "local": local}[arguments.what]
        for row in measure(name, arguments.data, seeds, rounds):
            rows.append(row)
            print(
                f"{row['metric']:32s} {row['sampler']:14s} {row['value']:10.4f} ± {row['sd']:8.4f}",
                flush=True,
            )
    for name in ("FEMNIST", "Synthetic", "Heart"):
        print(f"{name}: not used: there is no such file")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
