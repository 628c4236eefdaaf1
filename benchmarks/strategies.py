"""Strategies and baselines on one table, dealt to silos evenly, unevenly, and with one bad silo.

``python -m benchmarks.strategies --data DIR [--sets NAME ...] [--schemes SCHEME ...] [--silos N]
[--seeds N] [--quick] [--json FILE]``. A quarter of the rows tests; ``hedgerow.simulate`` runs each
strategy at its defaults, 50 rounds of bagging, histogram and SimFL: model and bytes are those of
``hedgerow local``. The baselines are 50 rounds of stock XGBoost: each silo alone, the mean of these
models, all rows. Scores are AUC, of several classes accuracy.

Schemes are those of ``hedgerow split`` and

- ``shift``: equal silos by the ranks of one column of the set, so that features differ;
- ``flipped``, ``random``, ``units``: dealt evenly, but the first silo has its labels the other way
  round (of several classes, the next class), at random, or all its numbers times 1000.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import hedgerow
from hedgerow.boosting.errors import DataWarning
from hedgerow.coordinator.operator.library.baselines import baselines, cohort

SETS = {
    "adult": "education-num", "default_credit": "LIMIT_BAL", "tb_electricity": "nswdemand",
    "nursery": "",
}  # fmt: skip
"""Sets, with the column that ``shift`` deals by."""
BAD = ("flipped", "random", "units")
SCHEMES = ("iid", "dirichlet:0.3", "dirichlet:0.1", "square", "shift", *BAD)
ROUNDS = {"bagging": 50, "fedxgbllr": 0, "histogram": 50, "simfl": 50}  # 0: its own


def dealt(table: pa.Table, scheme: str, silos: int, seed: int, column: str) -> dict[str, pa.Table]:
    """Return the silos' tables, and the test rows as ``test``."""
    if scheme not in ("shift", *BAD):
        return hedgerow.split(table, silos, scheme=scheme, test=0.25, seed=seed)
    pieces = hedgerow.split(table, silos, test=0.25, seed=seed)
    test, [first, *others] = pieces.pop("test"), list(pieces.values())
    if scheme == "shift":
        rows = pa.concat_tables([first, *others]).sort_by(column)
        parts = np.array_split(np.arange(len(rows)), silos)
        own = [rows.slice(part[0], len(part)) for part in parts]
    else:
        own = [damaged(first, scheme, seed), *others]
    return {"test": test} | {f"silo-{k}": rows for k, rows in enumerate(own)}


def damaged(table: pa.Table, how: str, seed: int) -> pa.Table:
    """Return a silo's table with wrong labels or numbers."""
    if how == "units":
        for at, field in enumerate(table.schema):
            if field.name != "label" and (
                pa.types.is_floating(field.type) or pa.types.is_integer(field.type)
            ):
                scaled = pc.multiply(table.column(at).cast(pa.float64()), 1000.0)
                table = table.set_column(at, field.name, scaled)
        return table
    codes = table.column("label").combine_chunks().dictionary_encode()
    n = len(codes.dictionary)
    wrong = np.asarray(codes.indices) + 1
    if how == "random":
        wrong = np.random.default_rng(seed).integers(0, n, len(codes))
    labels = codes.dictionary.take(pa.array(wrong % n))
    return table.set_column(table.column_names.index("label"), "label", labels)


def job(strategy: str, table: pa.Table, silos: int, quick: bool) -> hedgerow.Job:
    """Return a job at its defaults."""
    rounds = 2 if quick else ROUNDS[strategy]
    own = f"[{strategy}]\n" + (f"rounds = {rounds}\n" if rounds else "")
    own += "trees = 10\nepochs = 1\n" if quick and strategy == "fedxgbllr" else ""
    several = pc.count_distinct(table["label"]).as_py() > 2
    task, metric = ("multiclass", "accuracy") if several else ("binary", "auc")
    shared = f'label = "label"\ntask = "{task}"\nseed = 7\nmin_silos = {silos}\n'
    return hedgerow.Job.from_toml(f'strategy = "{strategy}"\n{shared}metrics = ["{metric}"]\n{own}')


def one(
    table: pa.Table, scheme: str, silos: int, seed: int, column: str, quick: bool
) -> dict[str, dict[str, float]]:
    """Return, by who, test score, MB up and down of all silos, and CPU seconds."""
    found: dict[str, dict[str, float]] = {}
    pieces = dealt(table, scheme, silos, seed, column)
    test = pieces.pop("test")
    pieces = {name: own for name, own in pieces.items() if len(own)}  # others have nothing to do
    silos = len(pieces)
    rows = pa.concat_tables(
        [own.append_column("_silo", pa.array([name] * len(own))) for name, own in pieces.items()],
        promote_options="permissive",
    )
    for strategy in ROUNDS:
        if strategy == "histogram" and silos < 3:
            continue  # no sum hides one of two silos
        given = job(strategy, table, silos, quick)
        [metric] = given.parameters.metrics
        began = time.process_time()
        run = hedgerow.simulate(given, rows, scheme="column:_silo", test=0.0, workers=1)
        spent, moved = time.process_time() - began, run.document["bytes"]
        found[strategy] = {
            metric: run.model.evaluate(test)[metric],
            "mb": (moved["up"] + moved["down"]) / 1e6,
            "exchanges": float(sum(run.plan["exchanges"])),
            "cpu_seconds": spent,
        }
    with tempfile.TemporaryDirectory() as name:
        paths = {piece: f"{name}/{piece}.parquet" for piece in (*pieces, "test")}
        for piece, own in (*pieces.items(), ("test", test)):
            pq.write_table(own, paths[piece])
        held = paths.pop("test")
        parameters = job("bagging", table, silos, quick).parameters
        curves = baselines(parameters, cohort(parameters, paths, held), 2 if quick else 50)
    by_kind = defaultdict(list)
    for curve in curves:
        by_kind[curve.kind].append(float(curve.rounds[-1][metric] or 0.0))
    return found | {kind: {metric: mean(own)} for kind, own in by_kind.items()}


def main() -> None:
    """Print a row a strategy, baseline and metric; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two rounds, ten trees")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    rows = []
    for name in given.sets:
        table = pq.read_table(given.data / f"{name}.parquet")
        table = table.drop([each for each in ("_split",) if each in table.column_names])
        for scheme in given.schemes:
            runs = [
                one(table, scheme, given.silos, seed, SETS[name], given.quick)
                for seed in range(given.seeds)
            ]
            for who, own in runs[0].items():
                for metric in own:
                    values = [run[who][metric] for run in runs]
                    sd = stdev(values) if len(values) > 1 else 0.0
                    rows.append({
                        "metric": metric, "who": who, "value": mean(values), "sd": sd,
                        "n": len(values), "set": name, "scheme": scheme, "silos": given.silos,
                    })  # fmt: skip
                    print(name, scheme, who, metric, f"{mean(values):.4f} ± {sd:.4f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
