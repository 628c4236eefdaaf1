"""What the ledger costs: a line's CPU time and disk flush, and its share of whole jobs.

``python -m benchmarks.ledger [--quick] [--repeats N] [--json FILE]``. Jobs are ``hedgerow local``
with five silos on one disk: the Adult data of the examples, whose rounds are tens of milliseconds
and which is the worst case; 50,000 rows a silo with bagging, the same with histograms under secure
sums, and FedXGBllr. Each runs with the ledger and without it in turn.

``share_cpu`` is the ledger's part of the agents' CPU time. ``share`` is its part of the silos' own
clocks: on a machine with less than a core for each process most of that is not the disk but the
wait for a core after it, while others use it. ``extra`` compares medians of whole trainings,
in which a silo that waits for others anyway loses nothing by a line, and in which other load of the
machine is noise of several per cent. ``flush`` is what the disk takes for 700 bytes into a file
that has room for them, without anything of ours: no ledger can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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

from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Step
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.services.process import ledgers

ROOT = Path(__file__).resolve().parent.parent
STEP: Step[Any, Any] = Step(
    "trees", Call.TREES, bytes, bytes, "a line of usual length " * 4, Discloses.TREES
)
JOB = """
strategy = "{strategy}"
seed = 7
min_silos = 5
metrics = ["auc"]
[{strategy}]
{parameters}
[booster]
max_depth = {depth}
"""
JOBS = {
    "bagging": ("bagging", "rounds = 10", 8),
    "histogram": ("histogram", 'rounds = 20\nbinning = "summary"', 6),
    "fedxgbllr": ("fedxgbllr", "trees = 100\nrounds = 5", 6),
}
"""Jobs of usual length, by name: strategy, its parameters, depth."""
Row = dict[str, Any]


def lines(sizes: tuple[int, ...], repeats: int) -> list[Row]:
    """Measure single lines: their CPU time and seconds, beside what the disk alone takes."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        bare = os.open(Path(folder) / "bare", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
        os.pwrite(bare, b" " * (701 * repeats), 0)
        ledger = SiloLedger(Path(folder) / "ledger.jsonl", "north", "coordinator", time.time)
        for size in sizes:
            frames = [os.urandom(size)]
            spent: dict[str, list[float]] = {"cpu": [], "seconds": [], "flush": []}
            for k in range(repeats):
                began, cpu = time.perf_counter(), time.thread_time()
                ledger.record(
                    job_id="job", step=STEP, at=ExchangeKey(k), kind="Trees", frames=frames
                )
                spent["seconds"].append(time.perf_counter() - began)
                spent["cpu"].append(time.thread_time() - cpu)
                began = time.perf_counter()
                os.pwrite(bare, b"x" * 700 + b"\n", 701 * k)
                spent["flush"].append(time.perf_counter() - began)
            for what, values in spent.items():
                name = f"{'line_' * (what != 'flush')}{what}_{size // 1000}kB"
                rows.append(_row(name, statistics.median(values) * 1e3, "ms"))
        ledger.close()
        os.close(bare)
    return rows


def jobs(quick: bool, repeats: int) -> list[Row]:
    """Measure whole jobs with and without the ledger."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        sets = {"adult": _adult(folder / "adult")}
        if not quick:
            tables = _synthetic(folder / "big", 50_000)
            sets |= {
                name: _job(tables / name, strategy, parameters, depth)
                for name, (strategy, parameters, depth) in JOBS.items()
            }
        for what, job in sets.items():
            seconds: dict[str, list[float]] = {"with": [], "without": []}
            shares: list[float] = []
            each: list[float] = []
            on_cpu: list[float] = []
            n_lines = 0
            for _ in range(repeats):
                for way in ("with", "without"):
                    out = job.with_name(f"{what}-{way}")
                    subprocess.run(
                        [sys.executable, "-m", "benchmarks.ledger", "--one", way, str(job),
                         str(out)],
                        check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                    )  # fmt: skip
                    report = json.loads((out / "report.json").read_text())
                    seconds[way].append(sum(r["seconds"] for r in report["rounds"]))
                    if way == "with":
                        share, spent, n_lines = _spent(out)
                        shares.append(share)
                        each.append(spent / n_lines)
                        on_cpu.append(_on_cpu(out))
            took = {way: statistics.median(values) for way, values in seconds.items()}
            rows.append(_row(f"share_cpu_{what}", 100 * statistics.median(on_cpu), "%"))
            rows.append(_row(f"share_{what}", 100 * statistics.median(shares), "%"))
            rows.append(_row(f"lines_{what}", n_lines / 5, "a silo"))
            rows.append(_row(f"line_{what}", 1e3 * statistics.median(each), "ms"))
            rows.append(_row(f"training_{what}", took["with"], "s"))
            rows.append(_row(f"training_without_{what}", took["without"], "s"))
            rows.append(_row(f"extra_{what}", 100 * (took["with"] / took["without"] - 1), "%"))
    return rows


def _spent(out: Path) -> tuple[float, float, int]:
    """Return the ledger's part of all silos' seconds, its seconds, and its lines."""
    times = [json.loads(path.read_text()) for path in out.glob("silos/*/times.json")]
    spent = float(sum(t["ledger"] for t in times))
    entries = [e for path in out.glob("ledger-*.jsonl") for e in ledgers.read(path)]
    n_lines = sum(not entry.is_control for entry in entries)
    return spent / float(sum(t["seconds"] for t in times)), spent, n_lines


def _on_cpu(out: Path) -> float:
    """Return the ledger's part of the CPU seconds that the agents had until their last line."""
    last = [json.loads(path.read_text()) for path in out.glob("cpu-*.json")]
    assert len(last) == 5, f"{out}: {len(last)} agents have written down their CPU time"
    return float(sum(recording for recording, _ in last) / sum(spent for _, spent in last))


def _timed(out: Path) -> None:
    """Let each agent write down the CPU time of its lines, and its own in all."""
    record, recording = SiloLedger.record, 0.0

    def timed(self: SiloLedger, **payload: Any) -> None:
        nonlocal recording
        began = time.thread_time()
        record(self, **payload)
        recording += time.thread_time() - began
        told = json.dumps([recording, time.process_time()])
        (out / f"cpu-{os.getpid()}.json").write_text(told)

    SiloLedger.record = timed  # type: ignore[method-assign]


def _adult(folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "hedgerow", "split",
         str(ROOT / "examples/data/adult.parquet"), "--silos", "5", "--out", str(folder)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return _job(folder / "adult", "bagging", "rounds = 10", 6)


def _synthetic(folder: Path, n_rows: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(7)
    for k in range(5):
        X = rng.normal(size=(n_rows, 28)).astype(np.float32)
        y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=n_rows) > 0).astype(np.int8)
        columns = {f"x{j}": X[:, j] for j in range(28)} | {"label": y}
        pq.write_table(pa.table(columns), folder / f"silo-{k}.parquet")
    return folder


def _job(name: Path, strategy: str, parameters: str, depth: int) -> Path:
    path = name.with_suffix(".toml")
    path.write_text(JOB.format(strategy=strategy, parameters=parameters, depth=depth))
    return path


def one(way: str, job: Path, out: Path) -> None:
    """Run a job in this process' children, whose ledgers keep nothing if ``way`` is without."""
    from rich.console import Console

    from hedgerow.coordinator.operator.commands import local

    if way == "without":
        SiloLedger.record = lambda self, **payload: None  # type: ignore[method-assign]
    else:
        shutil.rmtree(out, ignore_errors=True)
        _timed(out)
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
