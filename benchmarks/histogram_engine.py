"""One engine thread beside one XGBoost thread: CPU time a tree, and of the parts of a tree.

``python -m benchmarks.histogram_engine [--quick] [--first-round] [--json FILE]``. CPU seconds,
medians of repeats, both in one process on the same table, one thread each. Cut points and binning
are timed separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import xgboost as xgb
from sklearn.datasets import make_classification

from hedgerow.boosting.dataset import Columns, Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.histogram import build_histograms, layout_of
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from tests.oracles import xgboost_cuts
from tests.pooled import Training, train_pooled

TREES = 10


def median_cpu(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def per_tree(train: Callable[[int], object], repeats: int) -> float:
    """Return the time of one more tree: start-up and binning cancel out."""
    train(1)
    return (
        median_cpu(lambda: train(1 + TREES), repeats) - median_cpu(lambda: train(1), repeats)
    ) / TREES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows instead of 1,000,000")
    parser.add_argument("--first-round", action="store_true", help="cut points and bins alone")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    n = 100_000 if arguments.quick else 1_000_000
    repeats = 3 if arguments.quick else 5
    rows: list[dict[str, object]] = []

    def note(metric: str, who: str, value: float, unit: str) -> None:
        rows.append({"metric": metric, "who": who, "value": value, "unit": unit})
        print(f"{metric:44s} {who:16s} {value:12.5g} {unit}", flush=True)

    X, y = make_classification(
        n, 28, n_informative=14, n_redundant=4, flip_y=0.05, random_state=7, shuffle=True
    )
    X = X.astype(np.float32)
    schema = Schema(tuple(Feature(f"f{j}") for j in range(28)), "label", Task.BINARY, 2)
    data = Dataset(schema, X, y.astype(np.float64))
    booster = Booster(max_depth=8, eta=0.1, base_score=0.5)
    job = JobParameters("benchmark", None, booster=booster)  # type: ignore[arg-type]
    native = {
        "objective": "binary:logistic",
        "max_depth": 8,
        "eta": 0.1,
        "base_score": 0.5,
        "nthread": 1,
        "tree_method": "hist",
        "max_bin": 256,
    }
    version = xgb.__version__
    matrix = xgb.QuantileDMatrix(X, y, max_bin=256, nthread=1)
    cuts = xgboost_cuts(data, 256)
    by_column = np.ascontiguousarray(X.T)
    columns = Columns(n, tuple(lambda column=column: column for column in by_column))
    data_by_column = replace(data, features=columns)

    def cut_and_bin(rows: Dataset) -> object:
        return bin_features(rows.features, local_cuts(rows, 256))

    cut_and_bin(data.take(np.arange(1000)))
    for who, run in {
        "xgboost-pooled": lambda: xgb.QuantileDMatrix(X, y, max_bin=256, nthread=1),
        "hedgerow": lambda: cut_and_bin(data_by_column),
        "hedgerow, from rows": lambda: cut_and_bin(data),
    }.items():
        seconds = median_cpu(run, 1 if who == "xgboost-pooled" else repeats)
        note("cuts_and_bins", who, seconds, "s")
        note("values_a_second", who, X.size / seconds, "1/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.first_round:
        return

    def ours(sampler: Sampler, coarse_bits: int = 0) -> Callable[[int], object]:
        return lambda trees: train_pooled(
            job, data, trees, Training(cuts=cuts, sampler=sampler, coarse_bits=coarse_bits)
        )

    theirs = per_tree(lambda trees: xgb.train(native, matrix, trees), repeats)
    note("tree", f"xgboost-pooled {version}", theirs, "s")
    for name, train in {
        "tree": ours(Sampler()),
        "tree, coarse gradients of 5 bits": ours(Sampler(), 5),
        "tree, mvs 10 %": ours(Sampler("mvs", 0.1)),
        "tree, goss 20 % + 10 %": ours(Sampler("goss")),
        "tree, uniform 50 %": ours(Sampler("uniform", 0.5)),
    }.items():
        seconds = per_tree(train, repeats)
        note(name, "hedgerow", seconds, "s")
        note(f"{name}, against XGBoost without sampling", "hedgerow", seconds / theirs, "ratio")

    binned = bin_features(X, cuts)
    gradients = np.random.default_rng(0).integers(-(2**41), 2**41, (n, 2))
    layout = layout_of(cuts)
    for share in (1, 16, 128):
        kept = np.sort(np.random.default_rng(1).permutation(n)[: n // share]).astype(np.int32)
        partition = RowPartition(kept)
        updates = kept.shape[0] * 28
        seconds = median_cpu(
            lambda p=partition: build_histograms(binned, p, [0], gradients, layout), 7
        )
        note(f"histogram add, 1/{share} of the rows", "hedgerow", seconds / updates * 1e9, "ns")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
