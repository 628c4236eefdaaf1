"""What the ledger costs: a line's CPU time and disk flush, and its share of whole jobs.

``python -m benchmarks.ledger [--quick] [--repeats N] [--json FILE]``. Jobs are ``hedgerow local``
with five silos on one disk: the Adult data of the examples, whose rounds are tens of
milliseconds, and 50,000 rows a silo. Each runs with the ledger and without it in turn. ``share``
is the ledger's part of the silos' own clocks; ``extra`` compares medians of whole trainings, in
which a silo that waits for others anyway loses nothing by a line, and in which other load of the
machine is noise of several per cent.
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

from boosting.ports import Call, Place, Step
from client_agent.ledger import SiloLedger

ROOT = Path(__file__).resolve().parent.parent
STEP: Step[Any, Any] = Step(
    "trees", Call.TREES, bytes, bytes, reveals="a line of usual length " * 4
)
JOB = """
strategy = "bagging"
seed = 7
min_silos = 5
metrics = ["auc"]
[bagging]
rounds = {rounds}
[booster]
max_depth = {depth}
"""
Row = dict[str, Any]


def lines(sizes: tuple[int, ...], repeats: int) -> list[Row]:
    """Measure single lines: CPU time of each, and seconds with and without the flush."""
    rows: list[Row] = []
    real = os.fsync
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        ledger = SiloLedger(Path(folder) / "ledger.jsonl", "north", "coordinator", time.time)
        for size in sizes:
            frames = [os.urandom(size)]

            def once(number: int, frames: list[bytes] = frames) -> tuple[float, float]:
                began, cpu = time.perf_counter(), time.thread_time()
                ledger.record(
                    job_id="job", step=STEP, at=Place(number), kind="Trees", frames=frames
                )
                return time.perf_counter() - began, time.thread_time() - cpu

            flushed = [once(k) for k in range(repeats)]
            os.fsync = lambda descriptor: None
            try:
                written = [once(k) for k in range(repeats)]
            finally:
                os.fsync = real
            name = f"{size // 1000}kB"
            for metric, values in (
                (f"line_cpu_{name}", [cpu for _, cpu in flushed]),
                (f"line_seconds_{name}", [seconds for seconds, _ in flushed]),
                (f"line_unflushed_seconds_{name}", [seconds for seconds, _ in written]),
            ):
                rows.append(_row(metric, statistics.median(values) * 1e3, "ms"))
        ledger.close()
    return rows


def jobs(quick: bool, repeats: int) -> list[Row]:
    """Measure whole jobs with and without the ledger."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        sets = {"adult": _adult(folder / "adult", 10)}
        if not quick:
            sets["50k_rows"] = _synthetic(folder / "big", 50_000, 10)
        for what, job in sets.items():
            seconds: dict[str, list[float]] = {"with": [], "without": []}
            shares: list[float] = []
            for _ in range(repeats):
                for way in ("with", "without"):
                    out = job.parent / way
                    subprocess.run(
                        [sys.executable, "-m", "benchmarks.ledger", "--one", way, str(job),
                         str(out)],
                        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                    )  # fmt: skip
                    report = json.loads((out / "report.json").read_text())
                    seconds[way].append(sum(r["seconds"] for r in report["rounds"]))
                    if way == "with":
                        shares.append(_share(out))
            took = {way: statistics.median(values) for way, values in seconds.items()}
            rows.append(_row(f"share_{what}", 100 * statistics.median(shares), "%"))
            rows.append(_row(f"training_{what}", took["with"], "s"))
            rows.append(_row(f"training_without_{what}", took["without"], "s"))
            rows.append(_row(f"extra_{what}", 100 * (took["with"] / took["without"] - 1), "%"))
    return rows


def _share(out: Path) -> float:
    """Return the ledger's part of all silos' seconds."""
    times = [json.loads(path.read_text()) for path in out.glob("silos/*/times.json")]
    return float(sum(t["ledger"] for t in times) / sum(t["seconds"] for t in times))


def _adult(folder: Path, rounds: int) -> Path:
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "split",
         str(ROOT / "examples/data/adult.parquet"), "--silos", "5", "--out", str(folder)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    job = folder / "job.toml"
    job.write_text(JOB.format(rounds=rounds, depth=6))
    return job


def _synthetic(folder: Path, n_rows: int, rounds: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(7)
    for k in range(5):
        X = rng.normal(size=(n_rows, 28)).astype(np.float32)
        y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=n_rows) > 0).astype(np.int8)
        columns = {f"x{j}": X[:, j] for j in range(28)} | {"label": y}
        pq.write_table(pa.table(columns), folder / f"silo-{k}.parquet")
    job = folder / "job.toml"
    job.write_text(JOB.format(rounds=rounds, depth=8))
    return job


def one(way: str, job: Path, out: Path) -> None:
    """Run a job in this process' children, whose ledgers keep nothing if ``way`` is without."""
    from rich.console import Console

    from coordinator.commands import local

    if way == "without":
        SiloLedger.record = lambda self, **payload: None  # type: ignore[method-assign]
    silos = {path.stem: str(path) for path in sorted(job.parent.glob("silo-*.parquet"))}
    report = local.run(job, silos, (), out, Console(quiet=True))
    if report["state"] != "SUCCEEDED":
        sys.exit(f"{job}: {report['detail']}")


def _row(metric: str, value: float, unit: str) -> Row:
    return {"metric": metric, "who": "hedgerow", "value": value, "unit": unit}


def main() -> None:
    """Print the rows, and write them as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small job only, once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("WAY", "JOB", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one[0], Path(given.one[1]), Path(given.one[2]))
        return
    (ROOT / "build").mkdir(exist_ok=True)
    rows = lines((1_000, 100_000, 1_000_000), 20 if given.quick else 200)
    rows += jobs(given.quick, 1 if given.quick else given.repeats)
    for row in rows:
        print(f"{row['metric']:36}{row['who']:12}{row['value']:12.4g} {row['unit']}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
