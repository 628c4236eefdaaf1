"""How a federation's costs grow with its silos, by simulation in one process.

``python -m benchmarks.simulation [--quick] [--silos N,N,...] [--rounds N] [--case NAME]
[--data FILE] [--json FILE] [--plan]``. Rows of a table (made at random, or a Parquet file with a
column ``label``) are dealt to silos. ``--plan`` runs nothing: it prints the bytes of one silo, and
of all, that the strategies' own forecasts have for whole jobs on 26,048 rows of 123 columns. Each
row of the output otherwise is a run in a process of its own: wall seconds of the whole run, CPU
seconds of one round more (with those of the processes of silos, which there are from a hundred
silos), bytes a silo and round, and the most memory of the coordinator's process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hedgerow
from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.exchange import Silo

CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    # strategy, whether masked, keys of the job
    "bagging": ("bagging", False, {"scrub": "none"}),
    "bagging, covers": ("bagging", True, {}),
    "histogram, plain": ("histogram", False, {"max_bin": 64, "secure": False}),
    "histogram, secure": ("histogram", True, {"max_bin": 64}),
    "fedxgbllr": ("fedxgbllr", False, {}),
    "simfl": ("simfl", False, {}),
    "fedga": ("fedga", True, {}),
    "dp_tree": ("dp_tree", True, {"epsilon": 1.0}),
}
ROUNDS = {"fedga": "generations", "dp_tree": "depth"}
"""What the strategies that have no ``rounds`` have instead."""
MOST_ROUNDS = {"dp_tree": 10}


def table(path: Path | None) -> pa.Table:
    """Return the rows to deal."""
    if path is not None:
        return pq.read_table(path)
    rng = np.random.default_rng(0)
    x = (rng.random((32_561, 123)) < 0.11).astype(np.float32)
    label = (x[:, :9].sum(axis=1) + rng.normal(size=len(x)) > 1.5).astype(np.int8)
    return pa.table({"label": label} | {f"x{j}": x[:, j] for j in range(x.shape[1])})


def job_of(case: str, rounds: int) -> tuple[hedgerow.Job, bool]:
    """Return the job of a case, and whether it is masked."""
    strategy, masked, given = CASES[case]
    rounds = min(rounds, MOST_ROUNDS.get(strategy, rounds))
    keys = {ROUNDS.get(strategy, "rounds"): rounds, "min_silos": 2, "metrics": ["auc"]} | given
    if strategy not in ROUNDS:
        keys["max_depth"] = 1 if strategy == "bagging" else 5
    job = hedgerow.Job(strategy, label="label", task="binary", **keys)
    return job, masked


def planned(case: str, silos: int, rounds: int) -> tuple[float, float]:
    """Return the bytes up and down of one silo over a whole job, as its plan has them."""
    job = job_of(case, rounds)[0].parameters
    columns = tuple(Feature(f"x{j}") for j in range(123))
    roster = tuple(Silo(f"silo-{k}") for k in range(silos))
    schema = Schema(columns, "label", Task.BINARY, 2)
    rows = dict.fromkeys(roster, max(26_048 // silos, 1))
    found = warm_start.forecasts(replace(job, silos=roster), schema, rows, None)[roster[0]]
    return sum(up for _, up, _ in found.steps.values()), sum(d for _, _, d in found.steps.values())


def run(case: str, silos: int, rounds: int, path: Path | None) -> dict[str, Any]:
    """Simulate a job; for a process of its own."""
    job, masked = job_of(case, rounds)
    began, used = time.perf_counter(), _cpu_seconds()
    found = hedgerow.simulate(job, table(path), silos, crypto=masked)
    wall, spent = time.perf_counter() - began, _cpu_seconds()
    moved = found.bytes
    return {
        "case": case,
        "silos": silos,
        "rounds": rounds,
        "wall_seconds": wall,
        "cpu_seconds": spent - used,
        "bytes_up": sum(moved["up"]) / silos / rounds,
        "bytes_down": sum(moved["down"]) / silos / rounds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "auc": found.metrics["test.auc"][-1],
    }


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those of its silos, which have ended."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--silos", default="10,30,100,300,1000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args()
    sizes = [3, 6] if given.quick else [int(n) for n in given.silos.split(",")]
    rounds = 2 if given.quick else given.rounds
    if given.plan:
        print(f"{'case':<18} {'silos':>6} {'up kB':>12} {'down kB':>12} {'all silos GB':>14}")
        for case in given.case or CASES:
            for silos in sizes:
                up, down = planned(case, silos, rounds)
                total = silos * (up + down) / 1e9
                print(f"{case:<18} {silos:>6} {up / 1e3:>12.1f} {down / 1e3:>12.1f} {total:>14.3f}")
        return
    rows = []
    context = multiprocessing.get_context("spawn")
    print(
        f"{'case':<18} {'silos':>6} {'wall s':>8} {'CPU s':>8} {'CPU s a round':>14} "
        f"{'up kB':>9} {'down kB':>9} {'GB':>6} {'AUC':>7}"
    )
    for case in given.case or CASES:
        for silos in sizes:
            # Not a Pool: its processes may have none of their own, and a hundred silos have.
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                start = pool.submit(run, case, silos, 1, given.data).result()
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                row = pool.submit(run, case, silos, rounds, given.data).result()
            a_round = (row["cpu_seconds"] - start["cpu_seconds"]) / max(rounds - 1, 1)
            rows.append(row | {"cpu_seconds_a_round": a_round})
            print(
                f"{case:<18} {silos:>6} {row['wall_seconds']:>8.1f} {row['cpu_seconds']:>8.1f} "
                f"{a_round:>14.2f} {row['bytes_up'] / 1e3:>9.2f} {row['bytes_down'] / 1e3:>9.2f} "
                f"{row['gigabytes']:>6.2f} {row['auc']:>7.4f}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
