"""Seconds that a plan tells of six jobs, against those that they take.

``python -m benchmarks.plan_seconds [--quick] [--repeats N] [--job NAME] [--json FILE]``. Before
each run this machine is calibrated anew and the job planned for its tables, as ``hedgerow plan
--silo`` does; then ``hedgerow local`` runs it: coordinator, three agents and three crypto
processes. A plan is for a machine with nothing else to do, so ``measured`` is from the CPU seconds
of the processes while the job runs: the coordinator's, and the silos' spread over the cores.
``wall`` is what passed, with a load of ``load`` before it began. Medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._histogram_runs import Samples, children
from hedgerow.boosting.calibration import rates_here
from hedgerow.coordinator.operator.library.jobs import Job, plan_here
from hedgerow.crypto.threads import usable_cores

SILOS = ("a", "b", "c")
TREES: dict[str, Any] = {"max_depth": 6, "max_bin": 64}
JOBS: dict[str, tuple[str, dict[str, Any], int]] = {
    # strategy, keys of the job, rows of a silo
    "bagging": ("bagging", {"rounds": 40, **TREES}, 50_000),
    "histogram, secure": ("histogram", {"rounds": 20, **TREES}, 50_000),
    "histogram, plain": (
        "histogram",
        {"rounds": 20, "secure": False, "binning": "summary", **TREES},
        50_000,
    ),
    "fedxgbllr": ("fedxgbllr", {"rounds": 4}, 5_000),
    "dp_tree": ("dp_tree", {"depth": 6, "epsilon": 1.0}, 50_000),
    "vertical": ("secureboost", {"rounds": 2, "active": "a", "max_depth": 4, "max_bin": 32}, 2_000),
}
N_FEATURES = 20


def tables(folder: Path, n_rows: int, *, vertical: bool) -> dict[str, str]:
    """Write the silos' tables, and return their paths."""
    rng = np.random.default_rng(0)
    paths = {}
    for k, silo in enumerate(SILOS):
        if not vertical or not k:
            features = rng.normal(size=(n_rows, N_FEATURES)).astype(np.float32)
            noise = rng.normal(size=n_rows)
            score = features[:, :6].sum(axis=1) + features[:, 0] * features[:, 6] + noise
        mine = range(k, N_FEATURES, 3) if vertical else range(N_FEATURES)
        columns: dict[str, Any] = {f"f{j}": features[:, j] for j in mine}
        if vertical:
            columns["_id"] = [str(row) for row in range(n_rows)]
        if not vertical or not k:
            columns["label"] = (score > 0.0).astype(np.int8)
        paths[silo] = str(folder / f"{silo}.parquet")
        pq.write_table(pa.table(columns), paths[silo])
    return paths


def run(name: str, rows_share: float) -> dict[str, Any]:
    """Calibrate, plan and run a job once."""
    strategy, keys, n_rows = JOBS[name]
    job = Job(strategy, label="label", task="binary", **keys)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        paths = tables(folder, int(n_rows * rows_share), vertical=strategy == "secureboost")
        job.save(folder / "job.toml")
        rates_here.cache_clear()
        plan = plan_here(job.spec, paths, rates_here())
        command = [sys.executable, "-m", "hedgerow", "local", str(folder / "job.toml")]
        for silo, path in paths.items():
            command += ["--silo", f"{silo}={path}"]
        load, samples = os.getloadavg()[0], Samples()
        with (folder / "log").open("wb") as log:
            command += ["--out", str(folder / "run")]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            while process.poll() is None:
                samples.take(children(process.pid))
                time.sleep(0.1)
        report = json.loads((folder / "run/report.json").read_text())
    if report["state"] != "SUCCEEDED":
        raise SystemExit(f"{name}: {report['detail']}")
    kinds = ["coordinator", *["crypto"] * len(SILOS), *["agents"] * len(SILOS)]
    end = samples.whole_until - 0.5
    cpu = samples.between(kinds, end - report["seconds"], end)
    silos = (cpu["agents"] + cpu["crypto"]) / min(usable_cores(), len(SILOS))
    return {
        "planned": plan.seconds,
        "wall": report["seconds"],
        "measured": cpu["coordinator"] + silos,
        "cpu": cpu,
        "load": load,
        "steps": {
            method: sum(s.seconds or 0.0 for s in plan.steps if s.method == method) / len(SILOS)
            for method in {s.method for s in plan.steps}
        },
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each, fewer rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = []
    print(f"{'job':18} {'planned':>8} {'measured':>8} {'ratio':>6} {'wall':>6} {'load':>6}")
    for name in given.job or JOBS:
        repeats = 1 if given.quick else given.repeats
        runs = [run(name, 0.2 if given.quick else 1.0) for _ in range(repeats)]
        row: dict[str, Any] = {
            key: statistics.median(one[key] for one in runs)
            for key in ("planned", "measured", "wall", "load")
        }
        row |= {"job": name, "ratio": row["planned"] / row["measured"], "runs": runs}
        found.append(row)
        print(
            f"{name:18} {row['planned']:8.1f} {row['measured']:8.1f} {row['ratio']:6.2f} "
            f"{row['wall']:6.1f} {row['load']:6.1f}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
