"""What a model loses by where its features are divided: Hedgerow's cut points beside XGBoost's own.

``python -m benchmarks.cut_points --data DIR`` trains XGBoost on a table's numeric
columns with ``max_bin`` bins, and again on the numbers of the bins that each way of Hedgerow puts
the same training rows in, so that nothing but the cut points differs:

* ``search``: the search on counts of five silos, ``binning = "recursive"``;
* ``summary``: quantile summaries of five silos, ``binning = "summary"``;
* ``local``: a party's own columns, as in vertical jobs;
* ``even ranks``: what all of these did before: even ranks, of which equal ones are merged.

The made table is :func:`amounts`: a column of which nine in ten values are 0. Prints the area under
the curve on a quarter of the rows and differences from it in ten-thousandths, with their standard
errors over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks import add_data
from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.engine.summaries import merge_summaries, summarise

TABLES = (
    "adult", "tb_default_credit", "tb_bank_marketing", "tb_electricity", "tb_california",
)  # fmt: skip
Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]
Thresholds = list[NDArray[np.float32]]
N_SILOS = 5


def search(x: Matrix, max_bin: int) -> Thresholds:
    """Return what the silos' search finds."""
    silos = [[SortedColumn.of(own[:, j]) for j in range(x.shape[1])] for own in _silos(x)]
    found = Bisector(x.shape[1], max_bin)
    while not found.done:
        counts = [count_below(columns, found.column, found.key) for columns in silos]
        found.take(np.sum(counts, axis=0))
    return found.thresholds


def summary(x: Matrix, max_bin: int) -> Thresholds:
    """Return what the silos' summaries give."""
    return [
        merge_summaries([summarise(own[:, j], 4 * max_bin) for own in _silos(x)], max_bin)
        for j in range(x.shape[1])
    ]


def local(x: Matrix, max_bin: int) -> Thresholds:
    """Return a party's cut points of its own columns."""
    return [merge_summaries([summarise(x[:, j], 8 * max_bin)], max_bin) for j in range(x.shape[1])]


def even(x: Matrix, max_bin: int) -> Thresholds:
    """Return even ranks, equal ones once."""
    ranks = np.arange(1, max_bin) / max_bin
    return [np.unique(np.nanquantile(own, ranks, method="higher")) for own in x.T]


WAYS: dict[str, Callable[[Matrix, int], Thresholds]] = {
    "search": search, "summary": summary, "local": local, "even ranks": even,
}  # fmt: skip


def _silos(x: Matrix) -> list[Matrix]:
    return [x[k::N_SILOS] for k in range(N_SILOS)]


def amounts(n_rows: int, seed: int) -> tuple[Matrix, Labels]:
    """Return a made table of amounts that are mostly 0, ages, and a smooth column."""
    rng = np.random.default_rng(seed)
    amount = np.where(rng.random(n_rows) < 0.9, 0.0, np.round(rng.lognormal(7, 1.5, n_rows)))
    age, other = rng.integers(18, 90, n_rows), rng.normal(size=n_rows)
    z = 0.8 * np.sin(amount / 400) * (amount > 0) + 1.2 * (amount > 3000)
    z += 0.02 * (age - 50) + 0.5 * other - 0.5
    y = rng.random(n_rows) < 1 / (1 + np.exp(-z))
    return np.stack([amount, age, other], 1).astype(np.float32), y.astype(np.int64)


def real(path: Path) -> tuple[Matrix, Labels]:
    """Return a table's numeric columns and its label; numbers are above their median or not."""
    frame = pd.read_parquet(path)
    label = next((c for c in ("label", "target") if c in frame), frame.columns[-1])
    y = frame.pop(label)
    coded = pd.factorize(y, sort=True)[0] if y.nunique() == 2 else (y > y.median()).to_numpy()
    return frame.select_dtypes("number").to_numpy(np.float32), coded.astype(np.int64)


def areas(x: Matrix, y: Labels, max_bin: int, seed: int) -> dict[str, float]:
    """Return the area under the curve on a quarter of the rows, of XGBoost and of each way."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [len(y) * 3 // 4])
    booster = {"objective": "binary:logistic", "eta": 0.1, "tree_method": "hist", "nthread": 1}

    def area(features: Matrix, bins: int) -> float:
        rows = xgb.DMatrix(features[train], y[train])
        model = xgb.train(booster | {"max_bin": bins}, rows, 50)
        return float(roc_auc_score(y[test], model.predict(xgb.DMatrix(features[test]))))

    found = {"xgboost": area(x, max_bin)}
    for name, way in WAYS.items():
        thresholds = way(x[train], max_bin)
        assert max(map(len, thresholds)) < max_bin
        bins = [np.searchsorted(t, own, "right") for t, own in zip(thresholds, x.T, strict=True)]
        binned = np.where(np.isnan(x), np.nan, np.stack(bins, 1)).astype(np.float32)
        found[name] = area(binned, 2 * max_bin)  # as many as there are values
    return found


def rows(data: Path, names: list[str], bins: list[int], seeds: int) -> Iterator[list[str]]:
    """Yield the table's lines."""
    for name in names:
        given = None if name == "amounts" else real(data / f"{name}.parquet")
        for max_bin in bins:
            runs = [
                areas(*(given or amounts(40_000, seed)), max_bin, seed) for seed in range(seeds)
            ]
            base = np.array([run["xgboost"] for run in runs])
            line = [name, str(max_bin), f"{base.mean():.4f}"]
            for way in WAYS:
                off = 1e4 * (np.array([run[way] for run in runs]) - base)
                line.append(f"{off.mean():+.1f} ± {off.std() / max(1, seeds - 1) ** 0.5:.1f}")
            yield line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data(parser)
    parser.add_argument("--tables", nargs="*", default=[*TABLES, "amounts"])
    parser.add_argument("--bins", nargs="*", type=int, default=[32, 64, 256])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    head = ["table", "bins", "XGBoost", *WAYS]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for line in rows(given.data, given.tables, given.bins, given.seeds):
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
