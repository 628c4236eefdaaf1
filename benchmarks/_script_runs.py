"""A script of ``hedgerow.xgboost`` in every silo beside ``hedgerow local``: the same job and rows.

Both are whole federations of processes on loopback. A script's seconds are those of its call of
``train``, from all sites' agreement until its booster is there; those of ``hedgerow local`` are the
job's, without the start of its processes. Those of rounds are the coordinator's in both; the first,
before which cut points are found, is left out. Runs take turns, and of each kind the least counts.
Walls depend on what else the machine does; CPU seconds of all processes over the same rounds do
less. ``local`` sees a round up to half a second late, so rounds should be many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hedgerow
from benchmarks._cpu import seconds_below
from tests.federation.scripts import Scripts

SCRIPT = """
import json, os, sys, time
import pyarrow.parquet as pq
import hedgerow
import hedgerow.xgboost as xgb
from benchmarks._cpu import seconds_of

folder, table, silos, rounds, coordinator = json.loads(sys.argv[1])
rows = pq.read_table(table).to_pandas()
dtrain = xgb.DMatrix(rows.drop(columns="label"), rows["label"])


class Times(xgb.callback.TrainingCallback):
    spent = []

    def after_iteration(self, model, epoch, evals_log):
        self.spent.append((time.process_time(), seconds_of(coordinator)))


with hedgerow.join(folder, silos=silos, wait=120.0) as site:
    own, runs = site.train, []
    site.train = lambda *given, **named: runs.append(own(*given, **named)) or runs[-1]
    began = time.perf_counter()
    param = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.3, "seed": 7}
    booster = xgb.train(
        param, dtrain, rounds, callbacks=[Times()], evals=[(dtrain, "train")], verbose_eval=False
    )
    whole = time.perf_counter() - began
cpu = [b - a for a, b in zip(Times.spent[0], Times.spent[-1])]
seconds = sum(one["seconds"] for one in runs[0].document["rounds"][1:])
print(json.dumps([whole, seconds, booster.get_dump(), cpu]))
"""


WHAT = ("whole", "rounds", "cpu")


def compare(rows: int, silos: int, rounds: int, times: int) -> dict[str, float]:
    """Return the least seconds of both, and their ratios; prints each run."""
    rng = np.random.default_rng(7)
    found: dict[str, list[float]] = {}
    names = [f"silo-{k}" for k in range(silos)]
    for turn in range(times):
        with tempfile.TemporaryDirectory(prefix="hedgerow-scripts-") as place:
            tables = {name: Path(place) / f"{name}.parquet" for name in names}
            for path in tables.values():
                X = rng.normal(size=(rows // silos, 28)).astype(np.float32)
                label = (X[:, :6].sum(axis=1) + rng.normal(size=len(X)) > 0).astype(np.int8)
                pq.write_table(
                    pa.table({f"x{j}": X[:, j] for j in range(28)} | {"label": label}), path
                )
            script, trees, spent = _scripts(Path(place), tables, rounds)
            local, own_trees, own_spent = _local(tables, rounds)
        if trees != own_trees:
            raise SystemExit("the script's trees are not those of hedgerow local")
        print(f"run {turn}: script {script[0]:.2f} s, {script[1]:.2f} s of rounds; local "
              f"{local[0]:.2f} s, {local[1]:.2f} s of rounds", flush=True)  # fmt: skip
        for who, each in (("script", spent), ("local", own_spent)):
            told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in each.items())
            print(f"  CPU s of rounds, {who}: {told}", flush=True)
        script, local = (*script, sum(spent.values())), (*local, sum(own_spent.values()))
        for who, own in (("script", script), ("local", local)):
            for what, seconds in zip(WHAT, own, strict=True):
                found.setdefault(f"{who}_{what}", []).append(seconds)
    least = {name: min(each) for name, each in found.items()}
    for what in WHAT:
        least[f"ratio_{what}"] = least[f"script_{what}"] / least[f"local_{what}"]
    return least


def _scripts(
    place: Path, tables: dict[str, Path], rounds: int
) -> tuple[tuple[float, float], list[str], dict[str, float]]:
    fed = Scripts(place / "fed", tables)
    fed.fresh = True  # a forked one would import the benchmark again
    fed.start_coordinator()
    try:
        running = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT,
                 json.dumps([str(fed.folder_of(silo)), str(table), [*tables], rounds,
                             fed.processes["coordinator"].pid])],
                stdout=subprocess.PIPE, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for silo, table in tables.items()
        ]  # fmt: skip
        said = [json.loads(one.communicate(timeout=900)[0].splitlines()[-1]) for one in running]
    finally:
        fed.stop()
    spent = {silo: own[3][0] for silo, own in zip(tables, said, strict=True)}
    spent["coordinator"] = said[0][3][1]
    return (min(own[0] for own in said), min(own[1] for own in said)), said[0][2], spent


def _local(
    tables: dict[str, Path], rounds: int
) -> tuple[tuple[float, float], list[str], dict[str, float]]:
    job = hedgerow.Job(
        "histogram", rounds=rounds, seed=7, metrics=["logloss"], min_silos=len(tables),
        booster={"objective": "binary:logistic", "max_depth": 6, "eta": 0.3},
    )  # fmt: skip
    seen: list[dict[int, float]] = []
    run = hedgerow.local(
        job,
        tables,
        quiet=True,
        threads=1,
        watch=lambda done: seen.append(seconds_below(os.getpid())),
    )
    report = run.document
    trees = run.model.to_xgboost().get_dump()
    own = [one["seconds"] for one in report["rounds"]]
    # In the order in which hedgerow local starts them.
    names = ["command", "coordinator", *(f"crypto of {n}" for n in sorted(tables)), *tables]
    spent = [seen[-1][pid] - seen[0][pid] for pid in sorted(seen[0])]
    return (report["seconds"], sum(own[1:])), trees, dict(zip(names, spent, strict=True))
