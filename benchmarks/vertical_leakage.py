"""What a passive party's view shows of labels: rows that share a leaf tend to share a label.

``python -m benchmarks.vertical_leakage [--quick] [--data DIR] [--json FILE]``. A passive party sees
which rows reach each leaf of the trees in which it takes part. Suppose it learns, from elsewhere,
the majority label of each leaf: ``label_guess`` is the share of rows whose label it then knows, and
``label_auc`` how well leaf means rank rows, for one tree and for the first three together.
``base rate`` guesses the more frequent label for all rows. With ``eta`` 1 a tree takes as much of
the label out of the gradients as it can, which hiding the first trees counts on; with 0.3 most of
it is still there afterwards.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import add_data
from benchmarks._vertical_parties import datasets, in_process, parts_of, read_tables, routed
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost

Row = dict[str, object]
ETAS = (0.3, 1.0)
GUARDS: dict[str, dict[str, Any]] = {
    "complete_secure 0": {},
    "complete_secure 1": {"complete_secure": 1},
    "complete_secure 3": {"complete_secure": 3},
    "no min_leaf, no max_purity": {"min_leaf": 1, "max_purity": 1.0},
    "min_leaf 20, max_purity 0.9": {"min_leaf": 20, "max_purity": 0.9},
}
SETS = ("fate_breast_hetero", "fate_default_credit_hetero")


def leaves(job: JobParameters, tables: dict[str, Dataset]) -> NDArray[np.int64]:
    """Return the leaf of every row in every tree: shape (n_rows, n_trees)."""
    _, _, kept = in_process(job, tables)
    active, passive = parts_of(kept, "host")
    router = routed(active, passive, tables["guest"].X, tables["host"].X)
    found = np.zeros((tables["guest"].n_samples, len(active.trees)), np.int64)
    for (tree, leaf), rows in router.at_leaves.items():
        found[rows, tree] = leaf
    return found


def guess(groups: NDArray[np.int64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return how many labels the majority of each group gives, and the AUC of group means."""
    _, place = np.unique(groups, axis=0, return_inverse=True)
    place = place.reshape(-1)
    share = (np.bincount(place, y) / np.bincount(place))[place]
    clipped = np.clip(share, 1e-6, 1 - 1e-6)
    auc = metrics.evaluate(
        ("auc",), y, np.log(clipped / (1 - clipped)), objective="binary:logistic"
    )["auc"]
    return float(((share >= 0.5) == y).mean()), auc


def measure(data: Path, name: str, rounds: int, eta: float) -> list[Row]:
    """Return the rows of one data set."""
    found = datasets(read_tables(data / f"{name}.parquet", "label"), "label", Task.BINARY)
    y = found["guest"].labels
    rows: list[Row] = [
        {
            "metric": f"{name}_label_guess", "who": "base rate",
            "value": round(float(max(y.mean(), 1 - y.mean())), 4), "unit": "",
        },
    ]  # fmt: skip
    for guard, changes in GUARDS.items():
        hidden = changes.get("complete_secure", 0)
        job = JobParameters(
            name="leakage",
            parameters=SecureBoost(
                "guest", rounds=rounds, encryption="plain", allow_insecure=True,
                alignment="digest", **changes,
            ),
            booster=Booster(max_depth=5, max_bin=32, eta=eta),
        )  # fmt: skip
        at = leaves(job, found)
        views: dict[str, Any] = {
            "first tree it sees": at[:, hidden : hidden + 1],
            "first three it sees": at[:, hidden : hidden + 3],
            "last tree": at[:, -1:],
        }
        for view, groups in views.items():
            share, auc = guess(groups, y)
            who = f"eta {eta:g}, {guard}, {view}"
            rows += [
                {"metric": f"{name}_label_guess", "who": who, "value": round(share, 4), "unit": ""},
                {"metric": f"{name}_label_auc", "who": who, "value": round(auc, 4), "unit": ""},
            ]
    return rows


def main() -> None:
    """Print a table, and JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    add_data(parser)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in SETS[:1] if arguments.quick else SETS:
        for eta in ETAS[:1] if arguments.quick else ETAS:
            for row in measure(arguments.data, name, 6 if arguments.quick else 20, eta):
                print(f"{row['metric']:<40} {row['who']:<52} {row['value']!s:>8}", flush=True)
                rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
