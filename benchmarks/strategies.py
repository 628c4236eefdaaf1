"""Strategies and baselines on one table, dealt evenly and unevenly to five silos.

``python -m benchmarks.strategies --data DIR [--sets NAME ...] [--schemes SCHEME ...] [--seeds N]
[--quick] [--json FILE]``. A quarter of the rows tests; ``hedgerow.simulate`` runs each strategy at
its defaults, 50 rounds of bagging and histogram: model and bytes are those of ``hedgerow local``.
The baselines are 50 rounds of stock XGBoost: each silo alone, the mean of these models, all rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pyarrow as pa
import pyarrow.parquet as pq

import hedgerow
from hedgerow.boosting.errors import DataWarning
from hedgerow.coordinator.operator.baselines import baselines, cohort

SILOS = 5
SETS = ("adult", "default_credit", "tb_electricity")
SCHEMES = ("iid", "dirichlet:0.1")
ROUNDS = {"bagging": 50, "histogram": 50, "fedxgbllr": 0}  # 0: its own


def job(strategy: str, quick: bool) -> hedgerow.Job:
    """Return a job at its defaults."""
    rounds = 2 if quick else ROUNDS[strategy]
    own = f"[{strategy}]\n" + (f"rounds = {rounds}\n" if rounds else "")
    shared = f'label = "label"\nseed = 7\nmin_silos = {SILOS}\nmetrics = ["auc"]\n'
    return hedgerow.Job.from_toml(f'strategy = "{strategy}"\n{shared}{own}')


def one(table: pa.Table, scheme: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """Return, by who, test AUC, MB up and down of all silos, and CPU seconds."""
    found: dict[str, dict[str, float]] = {}
    for strategy in ROUNDS:
        if quick and strategy == "fedxgbllr":
            continue
        began = time.process_time()
        run = hedgerow.simulate(
            job(strategy, quick), table, SILOS, scheme=scheme, test=0.25, seed=seed, workers=1
        )
        moved, last = run.document["bytes"], run.document["rounds"][-1]
        found[strategy] = {
            "auc": last["metrics"]["test"]["auc"],
            "mb": (moved["up"] + moved["down"]) / 1e6,
            "exchanges": float(sum(run.plan["exchanges"])),
            "cpu_seconds": time.process_time() - began,
        }
    with tempfile.TemporaryDirectory() as name:
        paths = {}
        for piece, rows in hedgerow.split(
            table, SILOS, scheme=scheme, test=0.25, seed=seed
        ).items():
            paths[piece] = f"{name}/{piece}.parquet"
            pq.write_table(rows, paths[piece])
        test = paths.pop("test")
        parameters = job("bagging", quick).parameters
        curves = baselines(parameters, cohort(parameters, paths, test), 2 if quick else 50)
    by_kind = defaultdict(list)
    for curve in curves:
        by_kind[curve.kind].append(float(curve.rounds[-1]["auc"] or 0.0))
    return found | {kind: {"auc": mean(own)} for kind, own in by_kind.items()}


def main() -> None:
    """Print a row a strategy, baseline and metric; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two rounds, no FedXGBllr")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    rows = []
    for name in given.sets:
        table = pq.read_table(given.data / f"{name}.parquet")
        table = table.drop([each for each in ("_split",) if each in table.column_names])
        for scheme in given.schemes:
            runs = [one(table, scheme, seed, given.quick) for seed in range(given.seeds)]
            for who, own in runs[0].items():
                for metric in own:
                    values = [run[who][metric] for run in runs]
                    sd = stdev(values) if len(values) > 1 else 0.0
                    rows.append({
                        "metric": metric, "who": who, "value": mean(values), "sd": sd,
                        "n": len(values), "set": name, "scheme": scheme,
                    })  # fmt: skip
                    print(name, scheme, who, metric, f"{mean(values):.4f} ± {sd:.4f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
