"""What a model loses by where its features are divided: pooled XGBoost and Hedgerow's own cuts.

``python -m benchmarks.cut_points --data DIR [--sets NAME ...] [--first-seed N] [--exchange]
[--quick] [--json FILE]``. All train 50 rounds of depth 6, ``eta`` 0.1, on three quarters of a
table's rows:

* ``xgboost-pooled``: XGBoost on its own sketch of all training rows;
* ``xgboost-other``: XGBoost on its own sketch of nine in ten of them. Nobody would call these cuts
  worse; what they change is what any choice of cuts changes;
* ``engine``: our engine on the cuts of ``xgboost-pooled``;
* ``histogram``: our engine on what ``binning = "recursive"`` finds over five silos, which is what
  a ``histogram`` job gives, bit for bit;
* ``summary``: the same with ``binning = "summary"``;
* ``vertical``: our engine on a party's cuts of its own columns, as in ``secureboost``;
* ``even``: our engine on even ranks, of which equal ones are merged: what all of ours did once.

``--exchange`` has, in place of the last four, ``vertical``'s cuts in one column alone, in those of
which a value has a fifth of the rows (``heavy``) and in the others (``light``), and the cuts of
``xgboost-pooled`` elsewhere.

``--gate NAME`` compares ``histogram`` with pooled XGBoost on a table of FATE's with its own silos:
ten trees of depth 3, ``eta`` 0.3, 32 bins, a fifth of each silo's rows tests, twenty splits.

``amounts`` is made: nine in ten values of a column are 0. ``claims`` is the RAND Health Insurance
Experiment, as the package statsmodels has it (``pip install --no-deps statsmodels``): a year's
costs and visits, by which the next year's costs are above their median or not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks import tables_folder
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.cuts import (
    Cuts,
    cuts_from_thresholds,
    local_cuts,
    merged_cuts,
    numeric_features,
)
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.engine.summaries import summarise
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metrics import evaluate
from hedgerow.boosting.ports import JobParameters
from tests.oracles import quantile_matrix, xgboost_cuts
from tests.pooled import Training, train_pooled

BINS = (32, 64, 256)
N_SILOS = 5


def search(data: Dataset, max_bin: int, parts: Sequence[Dataset] = ()) -> Cuts:
    """Return what the silos' search finds; five silos' where no other ones are given."""
    numeric = numeric_features(data.schema)
    silos = [[SortedColumn.of(own.X[:, j]) for j in numeric] for own in parts or _silos(data)]
    found = Bisector(len(numeric), max_bin)
    while not found.done:
        counts = [count_below(columns, found.column, found.key) for columns in silos]
        found.take(np.sum(counts, axis=0))
    return cuts_from_thresholds(data.schema, found.thresholds)


def summary(data: Dataset, max_bin: int) -> Cuts:
    """Return what the silos' summaries give."""
    numeric = numeric_features(data.schema)
    silos = [[summarise(own.X[:, j], 4 * max_bin) for j in numeric] for own in _silos(data)]
    return merged_cuts(data.schema, silos, max_bin)


def even(data: Dataset, max_bin: int) -> Cuts:
    """Return even ranks, equal ones once."""
    ranks = np.arange(1, max_bin) / max_bin
    columns = data.X.T[numeric_features(data.schema)]
    found = [np.unique(np.nanquantile(own, ranks, method="higher")) for own in columns]
    return cuts_from_thresholds(data.schema, found)


WAYS: dict[str, Callable[[Dataset, int], Cuts]] = {
    "engine": xgboost_cuts, "histogram": search, "summary": summary, "vertical": local_cuts,
    "even": even,
}  # fmt: skip


def _silos(data: Dataset) -> list[Dataset]:
    return [data.take(np.arange(k, data.n_samples, N_SILOS)) for k in range(N_SILOS)]


def amounts(n_rows: int, seed: int) -> Dataset:
    """Return a made table of amounts that are mostly 0, ages, and a smooth column."""
    rng = np.random.default_rng(seed)
    amount = np.where(rng.random(n_rows) < 0.9, 0.0, np.round(rng.lognormal(7, 1.5, n_rows)))
    age, other = rng.integers(18, 90, n_rows), rng.normal(size=n_rows)
    z = 0.8 * np.sin(amount / 400) * (amount > 0) + 1.2 * (amount > 3000)
    z += 0.02 * (age - 50) + 0.5 * other - 0.5
    label = rng.random(n_rows) < 1 / (1 + np.exp(-z))
    return of_frame(pd.DataFrame({"amount": amount, "age": age, "other": other, "label": label}))


def claims() -> Dataset:
    """Return a year of the RAND experiment; the label is whether the next year costs more."""
    package = find_spec("statsmodels")
    if package is None or package.origin is None:
        raise SystemExit("claims: needs statsmodels; run pip install --no-deps statsmodels")
    path = Path(package.origin).parent / "datasets/randhie/src/randhie.csv"
    frame = pd.read_csv(path).drop(columns=["plan", "site", "time", "lnum", "ghindx", "lnmeddol"])
    later = frame[["zper", "year", "meddol"]].assign(year=frame.year - 1)
    frame = frame.merge(later, on=["zper", "year"], suffixes=("", "_next"))
    following = frame.pop("meddol_next")
    return of_frame(frame.drop(columns="zper").assign(label=following > following.median()))


def of_frame(frame: pd.DataFrame, task: Task = Task.BINARY) -> Dataset:
    """Return a frame's rows; a label of numbers is above its median or not, but in regressions."""
    label = next((name for name in ("label", "target") if name in frame), frame.columns[-1])
    y = frame[label]
    coded = pd.factorize(y, sort=True)[0] if y.nunique() == 2 else (y > y.median()).to_numpy()
    if task is Task.REGRESSION:
        coded = y.to_numpy()
    frame = frame.drop(columns=[label, "_split", "_silo", "_id"], errors="ignore")
    features, columns = [], []
    for name, own in frame.items():
        categories: tuple[str, ...] | None = None
        if not pd.api.types.is_numeric_dtype(own):
            codes, found = pd.factorize(own, sort=True)
            categories, own = tuple(map(str, found)), np.where(codes < 0, np.nan, codes)
        features.append(Feature(str(name), categories))
        columns.append(np.asarray(own, np.float32))
    schema = Schema(tuple(features), "label", task, 2 if task is Task.BINARY else 0)
    return Dataset(schema, np.stack(columns, 1), coded.astype(np.float64))


def exchanged(data: Dataset, max_bin: int) -> dict[str, Cuts]:
    """Return XGBoost's cuts, and with a party's in some columns."""
    theirs, ours = xgboost_cuts(data, max_bin), local_cuts(data, max_bin)
    numeric = numeric_features(data.schema)
    most = {j: np.unique(data.X[:, j], return_counts=True)[1].max() for j in numeric}
    heavy = [j for j in numeric if most[j] > data.n_samples / 5]
    some = {f"only {data.schema.names[j]}": [j] for j in numeric} | {
        "heavy": heavy, "light": [j for j in numeric if j not in heavy], "vertical": numeric,
    }  # fmt: skip
    return {"engine": theirs} | {
        who: cuts_from_thresholds(
            data.schema, [(ours if j in columns else theirs).of(j)[:-1] for j in numeric]
        )
        for who, columns in some.items()
    }


def areas(
    data: Dataset, max_bin: int, seed: int, rounds: int = 50, exchange: bool = False
) -> dict[str, float]:
    """Return the area under the curve on a quarter of the rows, by who trained."""
    rng = np.random.default_rng(seed)
    own, test = (
        data.take(rows)
        for rows in np.split(rng.permutation(data.n_samples), [data.n_samples * 3 // 4])
    )
    booster = Booster(max_depth=6, eta=0.1, max_bin=max_bin, base_score=0.5)
    job = JobParameters("benchmark", None, booster=booster)  # type: ignore[arg-type]
    rows = xgb.DMatrix(test.X, feature_types=data.schema.feature_types, enable_categorical=True)
    native = booster.native() | {
        "objective": "binary:logistic", "base_score": 0.5, "tree_method": "hist", "nthread": 1,
        "max_bin": max_bin,
    }  # fmt: skip

    def score(margins: NDArray[np.float32]) -> float:
        return float(roc_auc_score(test.labels, margins))

    most = np.sort(rng.permutation(own.n_samples)[: own.n_samples * 9 // 10])
    others = xgb.QuantileDMatrix(
        own.X, own.y, max_bin=max_bin, feature_types=data.schema.feature_types, nthread=1,
        enable_categorical=True, ref=quantile_matrix(own.take(most), max_bin),
    )  # fmt: skip
    found = {
        who: score(xgb.train(native, matrix, rounds).predict(rows, output_margin=True))
        for who, matrix in (
            ("xgboost-pooled", quantile_matrix(own, max_bin)), ("xgboost-other", others),
        )
    }  # fmt: skip
    every = exchanged(own, max_bin) if exchange else {who: way(own, max_bin)
                                                      for who, way in WAYS.items()}  # fmt: skip
    for who, cuts in every.items():
        assert np.all(cuts.n_bins[~cuts.categorical] <= max_bin)
        model = train_pooled(job, own, rounds, Training(cuts=cuts))
        found[who] = score(np.ravel(model.margins(rows)))
    return found


def gate(path: Path) -> list[dict[str, object]]:
    """Return scores of the first split, and the mean difference of all, of FATE's own silos."""
    frame = pd.read_parquet(path)
    task = Task.REGRESSION if frame["label"].nunique() > 2 else Task.BINARY
    metric, objective = {
        Task.BINARY: ("auc", "binary:logistic"), Task.REGRESSION: ("rmse", "reg:squarederror"),
    }[task]  # fmt: skip
    data, silo = of_frame(frame, task), frame["_silo"].to_numpy()
    booster = Booster(max_depth=3, eta=0.3, max_bin=32, base_score=0.5)
    job = JobParameters("benchmark", None, task=task, booster=booster)  # type: ignore[arg-type]
    found = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(data.n_samples)
        shares = {name: order[silo[order] == name] for name in np.unique(silo)}
        tested = np.concatenate([rows[: len(rows) // 5] for rows in shares.values()])
        parts = [data.take(rows[len(rows) // 5 :]) for rows in shares.values()]
        own = data.take(np.concatenate([rows[len(rows) // 5 :] for rows in shares.values()]))
        test = data.take(tested)
        training = Training(cuts=search(own, booster.max_bin, parts))
        rows = xgb.DMatrix(test.X)
        margins = np.ravel(train_pooled(job, own, 10, training).margins(rows))
        native = booster.native() | {
            "objective": objective, "base_score": 0.5, "tree_method": "hist", "nthread": 1,
            "max_bin": booster.max_bin,
        }  # fmt: skip
        pooled = xgb.train(native, quantile_matrix(own, booster.max_bin), 10)
        both = (margins, pooled.predict(rows, output_margin=True))
        found.append(
            [evaluate([metric], test.labels, m, objective=objective)[metric] for m in both]
        )
    name = f"fate_silos_{metric}"
    off = [100 * (ours / theirs - 1) for ours, theirs in found]
    return [
        {"metric": metric, "who": who, "value": value, "unit": unit}
        for metric, who, value, unit in (
            (name, "native", found[0][0], ""), (name, "xgboost-pooled", found[0][1], ""),
            (f"{name}_to_xgboost_mean", "native", mean(off), "%"),
            (f"{name}_to_xgboost_standard_error", "native", stdev(off) / len(off) ** 0.5, "%"),
        )
    ]  # fmt: skip


def main() -> None:
    """Print a line a table and number of bins; write all areas to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=tables_folder, help="folder of tables")
    parser.add_argument("--gate", help="a table of FATE's with its own silos, instead")
    parser.add_argument("--sets", nargs="+", default=["amounts"])
    parser.add_argument("--bins", nargs="+", type=int, default=BINS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--exchange", action="store_true", help="our cuts in some columns")
    parser.add_argument("--quick", action="store_true", help="the made table, 32 bins, one seed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.sets, given.bins, given.seeds = ["amounts"], [32], 1
    rows = gate(given.data / f"{given.gate}.parquet") if given.gate else []
    for row in rows:
        print(given.gate, *row.values(), flush=True)
    for name in () if given.gate else given.sets:
        table = claims() if name == "claims" else None
        if name not in ("amounts", "claims"):
            table = of_frame(pd.read_parquet(given.data / f"{name}.parquet"))
        for max_bin in given.bins:
            runs = [
                areas(table or amounts(40_000, seed), max_bin, seed, exchange=given.exchange)
                for seed in range(given.first_seed, given.first_seed + given.seeds)
            ]
            for who in runs[0]:
                off = [run[who] - run["xgboost-pooled"] for run in runs]
                rows.append({
                    "set": name, "bins": max_bin, "metric": "auc", "who": who, "n": len(runs),
                    "value": mean(run[who] for run in runs), "off": mean(off),
                    "off_sd": stdev(off) if len(off) > 1 else 0.0,
                })  # fmt: skip
                print(name, max_bin, who, "{value:.4f} {off:+.5f} {off_sd:.5f}".format(**rows[-1]),
                      flush=True)  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
