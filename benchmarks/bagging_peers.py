"""FLeXGBoost here, NVIDIA FLARE's and Flower's: AUC, bytes and CPU of the same rows and parameters.

``python -m benchmarks.bagging_peers --peers PYTHON --data DIR [--set higgs_26k] [--silos 5]
[--rounds 36] [--seeds 3] [--quick] [--json FILE]``, where ``PYTHON`` is the interpreter of ``make
peers``. A quarter of the rows tests, the rest is dealt to equal silos; numeric columns only. One
tree a silo and round, depth 8, step 0.1 a round, one thread. FLARE runs in its simulator, a process
a client, Flower in its own; ours is ``hedgerow local``, all processes, TLS and all. Bytes are up
and down, of all silos: FLARE's by its server's own statistics, Flower's of the models in its
messages (nothing moves in its simulation), ours of the job and, apart, of the control plane.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost

from hedgerow.boosting import metrics
from hedgerow.boosting.job import is_feature
from hedgerow.boosting.tables import read_table
from hedgerow.coordinator.operator.tables import cut

DEPTH, STEP = 8, 0.1
"""FLARE 2.9's recipe takes a ``learning_rate`` and does not hand it on: its clients have 0.1."""

PEERS = ("nvflare", "flower")


def spent(*words: str) -> float:
    """Run a command; return the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compared(
    folder: Path, table: Any, silos: int, rounds: int, seed: int, peers: str
) -> Iterator[tuple[str, str, float]]:
    """Yield metric, who and value."""
    numeric = [
        field.name
        for field in table.schema
        if is_feature(field.name, "label") and not pa.types.is_string(field.type)
    ]
    pieces = cut(
        table.select(["label", *numeric]), silos, "iid", None, 0.25, seed, "label", stratify=False
    )
    for piece in pieces:
        pq.write_table(piece.table, folder / f"{piece.name}.parquet")
    names = [piece.name for piece in pieces if piece.name != "test"]
    test = pq.read_table(folder / "test.parquet")
    for number, name in enumerate(names):
        (site := folder / f"site-{number + 1}").mkdir()
        rows = pq.read_table(folder / f"{name}.parquet")
        for file, part in (("train", rows), ("valid", rows.slice(0, 100))):
            np.savetxt(site / f"{file}.csv", _numbers(part), delimiter=",", fmt="%.9g")
    (folder / "job.toml").write_text(
        f'strategy = "bagging"\nlabel = "label"\nmin_silos = 2\nseed = {seed}\nmetrics = ["auc"]\n'
        f'[bagging]\nrounds = {rounds}\nlr_mode = "plain"\n'
        f"[booster]\neta = {STEP / silos}\nmax_depth = {DEPTH}\n"
    )
    given = [f"--silo={name}={folder / name}.parquet" for name in names]
    yield "cpu_seconds", "hedgerow", spent(
        sys.executable, "-m", "hedgerow", "local", str(folder / "job.toml"), *given,
        f"--test={folder / 'test.parquet'}", f"--out={folder / 'run'}", "--threads=1",
    )  # fmt: skip
    report = json.loads((folder / "run/report.json").read_text())
    yield "auc", "hedgerow", report["rounds"][-1]["metrics"]["test"]["auc"]
    yield "best_auc", "hedgerow", max(r["metrics"]["test"]["auc"] for r in report["rounds"])
    moved, control = report["bytes"], report["bytes"]["control"]
    yield "megabytes", "hedgerow", (moved["up"] + moved["down"]) / 1e6
    yield "control_megabytes", "hedgerow", (control["up"] + control["down"]) / 1e6
    numbers = _numbers(test)
    rows = xgboost.DMatrix(numbers[:, 1:], nthread=1)
    for who in PEERS:
        script = Path(__file__).with_name(f"_bagging_{who}.py")
        used = spent(
            peers, str(script), str(folder), str(silos), str(rounds), str(DEPTH), str(STEP)
        )
        found = json.loads((folder / f"{who}.json").read_text())
        yield "cpu_seconds", who, used + found.get("cpu_seconds_apart", 0.0)
        yield "megabytes", who, found["megabytes"]
        booster = xgboost.Booster({"nthread": 1}, model_file=found["model"])
        curve = [
            metrics.evaluate(
                ["auc"], numbers[:, 0],
                booster.predict(rows, output_margin=True, iteration_range=(0, silos * (done + 1))),
                objective="binary:logistic",
            )["auc"]
            for done in range(rounds)
        ]  # fmt: skip
        yield "auc", who, curve[-1]
        yield "best_auc", who, max(curve)


def _numbers(table: Any) -> np.ndarray[Any, Any]:
    """Return a table as it is: the label, then the features."""
    return np.stack([column.to_numpy().astype(np.float32) for column in table.columns], axis=1)


def main() -> None:
    """Print what each seed gives; write rows to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="folder of Parquet files")
    parser.add_argument("--peers", required=True, help="interpreter that has both")
    parser.add_argument("--set", default="higgs_26k")
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two silos, three rounds, one seed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.silos, given.rounds, given.seeds = 2, 3, 1
    table, rows = read_table(str(given.data / f"{given.set}.parquet")), []
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as name:
            found = compared(Path(name), table, given.silos, given.rounds, seed, str(given.peers))
            for metric, who, value in found:
                rows.append({"metric": metric, "who": who, "value": value, "seed": seed})
                print(f"seed {seed} {metric:20} {who:10} {value:10.4f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
