"""F-XGB beside the binnings that it is compared with, and its search space, on sets that we have.

``python -m benchmarks.party_bins --data DIR [--what bins|search] [--sets NAME ...] [--seeds 3]
[--quick] [--json FILE]``. ``DIR`` has ``flights_3m.parquet``, ``default_credit.parquet``,
``ai4i_machine_failure.parquet`` and ``insurance.parquet``. Jobs run in this process
(:func:`hedgerow.simulate`: model of ``hedgerow local``). The source's airline, credit card and
firewall rows are not public or not here, and its partitions A to D are defined in another paper:
figures say how the methods compare on our rows, not whether the source's can be reached.

- ``bins`` (Tables III and IV): three silos of equal, linear and square sizes, and with labels drawn
  from Dirichlet(0.5). ``flights``: 4,000 flights drawn at random, ``flights, balanced``: as many
  late as punctual, each silo its share; ``credit``: all 30,000 customers. A quarter tests. Depth 6,
  eta 0.1, 256 bins, 50 rounds. ``none`` and ``mvs 50 %`` have summaries of equal size for all
  silos, ``pax`` is equation 1 (larger silos have fewer bins), ``proportional`` the reverse (FX);
  ``pax 16 bins`` has 16 bins between equal silos. F1 is that of class 1 at 0.5.
- ``search`` (Table II): silos by machine type or region, MVS; 12 random draws of the source's
  values, chosen on a fifth of each silo's training rows, then trained on all of them; beside it
  eta 0.1, lambda 1, depth 6 and MVS 50 %, the parameters of our other tables. 50 rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hedgerow
from hedgerow.boosting.tables import read_table

Row = dict[str, Any]
Values = Iterator[tuple[str, str, dict[str, float]]]
"""Case, who, and scores by metric."""

ROUNDS = 50
SCHEMES = ("iid", "linear", "square", "dirichlet:0.5")
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "mvs 50 %": {"sampling": "mvs", "sampling_rate": 0.5},
    "pax": {"bins_policy": "pax_printed"},
    "pax, 16 bins": {"bins_policy": "pax_printed", "pax_epsilon": 3 / 16},
    "proportional": {"bins_policy": "proportional"},
}
SPACE: dict[str, list[Any]] = {
    "booster.eta": [0.001, 0.01, 0.02, 0.05, 0.1],
    "booster.lambda": [0.001, 0.01, 0.02, 0.05, 0.1],
    "booster.max_depth": [3, 4, 5, 6, 7, 8],
    "histogram.sampling_rate": [0.1, 0.2, 0.3, 0.4, 0.5],
}
FILES = {
    "flights": "flights_3m",
    "flights, balanced": "flights_3m",
    "credit": "default_credit",
    "machine": "ai4i_machine_failure",
    "insurance": "insurance",
}
N_FLIGHTS = 4000


def table_of(name: str, folder: Path, seed: int) -> pa.Table:
    """Return a set's rows."""
    table = read_table(str(folder / f"{FILES[name]}.parquet"))
    if not name.startswith("flights"):
        return table
    rng = np.random.default_rng([seed, 5])
    order, late = rng.permutation(table.num_rows), np.asarray(table["label"]) == 1
    rows = order[:N_FLIGHTS]
    if name != "flights":
        half = N_FLIGHTS // 2
        rows = np.concatenate([order[late[order]][:half], order[~late[order]][:half]])
    return table.take(pa.array(np.sort(rows)))


def job_of(seed: int, rounds: int, task: str = "binary", **keys: Any) -> hedgerow.Job:
    """Return a job of unmasked sums, whose trees are those of masked ones."""
    chosen = ["rmse", "r2"] if task == "regression" else ["auc", "accuracy", "f1"]  # first: search
    return hedgerow.Job(
        "histogram", label="label", task=task, seed=seed, min_silos=2, metrics=chosen,
        secure=False, binning="summary", rounds=rounds, max_bin=256, eta=0.1, **keys,
    )  # fmt: skip


def last(run: hedgerow.Run) -> dict[str, float]:
    """Return the test scores of the last round."""
    return dict(run.document["rounds"][-1]["metrics"]["test"])


def bins(name: str, table: pa.Table, seed: int, rounds: int) -> Values:
    """Yield the scores of each method after the last round, by the silos' sizes or labels."""
    for scheme in SCHEMES:
        for who, keys in METHODS.items():
            run = hedgerow.simulate(
                job_of(seed, rounds, **keys), table, 3, scheme=scheme, test=0.25, seed=seed,
                stratify=scheme == "iid" and name.endswith("balanced"), workers=1,
            )  # fmt: skip
            yield scheme, who, last(run)


def search(name: str, table: pa.Table, seed: int, rounds: int) -> Values:
    """Yield the scores of fixed and of searched parameters."""
    task, key = ("regression", "region") if name == "insurance" else ("binary", "Type")
    cut: dict[str, Any] = {"scheme": f"column:{key}", "test": 0.2, "seed": seed}
    pieces = hedgerow.split(table, **cut)
    del pieces["test"]
    job = job_of(seed, rounds, task, sampling="mvs")
    found = hedgerow.search(job, pieces, SPACE, trials=12, workers=1)
    for who, chosen in (("fixed", job), ("searched", found.best)):
        yield "by key", who, last(hedgerow.simulate(chosen, table, workers=1, **cut))


WHAT: dict[str, tuple[Callable[[str, pa.Table, int, int], Values], tuple[str, ...]]] = {
    "bins": (bins, ("flights", "flights, balanced", "credit")),
    "search": (search, ("machine", "insurance")),
}


def main() -> None:
    """Print means and standard deviations over seeds; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--what", choices=list(WHAT), default="bins")
    parser.add_argument("--sets", nargs="+", choices=list(FILES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one set, one seed, 10 rounds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.data is None:
        print("no --data, nothing to measure: the sets are not part of this repository")
        return
    measure, names = WHAT[given.what]
    names, seeds, rounds = tuple(given.sets or names), given.seeds, ROUNDS
    if given.quick:
        names, seeds, rounds = names[:1], 1, 10
    rows: list[Row] = []
    for name in names:
        values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for seed in range(seeds):
            table = table_of(name, given.data, seed)
            for case, who, scores in measure(name, table, seed, rounds):
                for metric, value in scores.items():
                    values[case, who, metric].append(value)
        for (case, who, metric), found in values.items():
            row = {
                "metric": metric, "who": who, "value": statistics.fmean(found), "unit": "",
                "sd": statistics.stdev(found) if len(found) > 1 else 0.0, "set": name,
                "case": case,
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:18s} {case:14s} {who:14s} {metric:9s} {row['value']:10.4f} "
                f"± {row['sd']:8.4f}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
