"""Histogram boosting between five silos beside pooled XGBoost: AUC, bytes, time.

``python -m benchmarks.histogram [--quick] [--data DIR] [--rounds 36] [--tables NAMES] [--variants
NAMES] [--json FILE]``. Tables: a seeded ``make_classification`` of 1,000,000 x 28 rows
(``synthetic``), and ``flights_3m.parquet`` (``flights``) where ``DIR`` has it; 200,000 further rows
test. Each federated row is a whole ``hedgerow local`` run: coordinator,
five agents and five crypto processes over mTLS on this machine's cores. XGBoost ``hist`` trains on
all rows in one process with as many threads as there are cores, before and after the federated
runs; the shorter time counts. ``tree_wall`` is the median round's wall time; ``tree_cpu`` the CPU
time of one more tree in all processes, by ``/proc``, which other load disturbs less.
``equals_pooled`` is 1 where all trees of the federated model are those of the engine trained on all
rows with the same cut points.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost as xgb
from sklearn.datasets import make_classification

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.cuts import merged_cuts, numeric_features
from hedgerow.boosting.engine.pooled import Training, train_pooled
from hedgerow.boosting.engine.summaries import summarise
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metrics import exact_auc
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load

SILOS = 5
TEST_ROWS = 200_000
BOOSTER = Booster(max_depth=8, eta=0.1)
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
Row = dict[str, object]


@dataclass(frozen=True)
class Variant:
    """A federated run: its name, bins a feature and parameters; ``scored`` runs take all rounds."""

    name: str
    max_bin: int
    fields: dict[str, Any]
    scored: bool = True


VARIANTS = (
    Variant("lossless, 256 bins", 256, {}),
    Variant("coarse 5 bits, 256 bins", 256, {"coarse_bits": 5}),
    Variant("lossless, 64 bins", 64, {}),
    Variant("coarse 5 bits, 64 bins", 64, {"coarse_bits": 5}),
    Variant("48-bit ring, 256 bins", 256, {"ring_bits": 48}, scored=False),
    Variant("MVS 10 %, 256 bins", 256, {"sampling": "mvs", "sampling_rate": 0.1}, scored=False),
    Variant("no recovery, 256 bins", 256, {"dropout_recovery": False}, scored=False),
    Variant("recursive, 256 bins", 256, {"binning": "recursive"}, scored=False),
    Variant("without masks, 256 bins", 256, {"secure": False}, scored=False),
)


class Report:
    """Rows, printed when they are measured."""

    def __init__(self, table: str, rows: list[Row]) -> None:
        self.table, self.rows = table, rows

    def note(self, metric: str, who: str, value: float, unit: str, variant: str = "") -> None:
        """Add a row."""
        row: Row = {"metric": metric, "who": who, "value": value, "unit": unit, "table": self.table}
        if variant:
            row["variant"] = variant
        if who.startswith("xgboost"):
            row["version"] = xgb.__version__
        self.rows.append(row)
        print(
            f"{self.table:10s} {variant:26s} {metric:22s} {who:15s} {value:14.6g} {unit}",
            flush=True,
        )


def synthetic(folder: Path, n: int) -> None:
    """Write the synthetic table's silos and test rows."""
    X, y = make_classification(
        n + TEST_ROWS, 28, n_informative=14, n_redundant=4, flip_y=0.05, random_state=7
    )
    columns = {f"f{j}": X[:, j].astype(np.float32) for j in range(28)}
    deal(pa.table({**columns, "label": y.astype(np.int8)}), folder)


def flights(folder: Path, source: Path, n: int) -> None:
    """Write flights as silos of random rows, delays in minutes left out."""
    table = read_table(str(source)).drop_columns(["label_delay"])
    order = np.random.default_rng(7).permutation(table.num_rows)[: n + TEST_ROWS]
    deal(table.take(pa.array(order)), folder)


def deal(table: pa.Table, folder: Path) -> None:
    """Give each silo an equal part; the last rows test."""
    n = table.num_rows - TEST_ROWS
    edges = np.linspace(0, n, SILOS + 1).astype(int)
    for k in range(SILOS):
        part = table.slice(edges[k], edges[k + 1] - edges[k])
        pq.write_table(part, folder / f"silo-{k}.parquet")
    pq.write_table(table.slice(n), folder / "test.parquet")


def job_of(variant: Variant, rounds: int) -> JobParameters:
    booster = replace(BOOSTER, max_bin=variant.max_bin)
    strategy = Histogram(rounds=rounds, **{"binning": "summary", **variant.fields})
    return JobParameters("benchmark", strategy, task=Task.BINARY, seed=7, booster=booster)


def toml(variant: Variant, rounds: int) -> str:
    lines = [
        'name = "benchmark"',
        'strategy = "histogram"',
        'label = "label"',
        'task = "binary"',
        "seed = 7",
        "min_silos = 3",
        'metrics = ["auc"]',
        "[histogram]",
        f"rounds = {rounds}",
        *(
            f"{name} = {json.dumps(value)}"
            for name, value in {"binning": "summary", **variant.fields}.items()
        ),
        "[booster]",
        f"max_depth = {BOOSTER.max_depth}",
        f"eta = {BOOSTER.eta}",
        f"max_bin = {variant.max_bin}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Run:
    """Report, model and times of a federated run."""

    report: dict[str, Any]
    model: Ensemble
    cpu: dict[str, float]
    seconds: float


def local(folder: Path, variant: Variant, rounds: int) -> Run:
    """Run a federation; measure its processes' CPU time over the last two thirds of its rounds."""
    job, out = folder / "job.toml", folder / "run"
    job.write_text(toml(variant, rounds))
    code = "import sys; from hedgerow.coordinator.cli import run; sys.argv[0] = 'hedgerow'; run()"
    command = [sys.executable, "-c", code, "local", str(job), "--out", str(out)]
    for k in range(SILOS):
        command += ["--silo", f"silo-{k}={folder / f'silo-{k}.parquet'}"]
    command += ["--test", str(folder / "test.parquet")]
    samples: list[tuple[float, dict[int, float]]] = []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        while process.poll() is None:
            samples.append((time.monotonic(), {p: spent(p) for p in children(process.pid)}))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit((folder / "log").read_text())
    report = json.loads((out / "report.json").read_text())
    whole = [s for s in samples if len(s[1]) == 1 + 2 * SILOS]
    counted = max(2 * rounds // 3, 1)
    seconds = [r["seconds"] for r in report["rounds"]]
    end = whole[-1][0] - 0.5
    begin = end - sum(seconds[-counted:])
    first = min(whole, key=lambda s: abs(s[0] - begin))
    last = min(whole, key=lambda s: abs(s[0] - end))
    cpu: dict[str, float] = defaultdict(float)
    kinds = ["coordinator", *["crypto"] * SILOS, *["agents"] * SILOS]
    for kind, pid in zip(kinds, sorted(last[1]), strict=True):
        cpu[kind] += (last[1][pid] - first[1][pid]) / counted
    model = load((out / "model.ubj").read_bytes())
    return Run(report, model, dict(cpu), statistics.median(seconds[-counted:]))


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def spent(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK


class Pooled:
    """All silos' rows in one place."""

    def __init__(self, folder: Path) -> None:
        names = [f"silo-{k}" for k in range(SILOS)]
        tables = [read_table(str(folder / f"{name}.parquet")) for name in names]
        job = job_of(VARIANTS[0], 1)
        self.train = for_job(pa.concat_tables(tables, promote_options="default"), job, "train")
        test = for_job(read_table(str(folder / "test.parquet")), job, "test")
        self.test = recoded(test, self.train)
        self.sizes = [table.num_rows for table in tables]
        self.threads = os.cpu_count() or 1

    def matrix(self, data: Dataset) -> xgb.DMatrix:
        """Return rows as XGBoost takes them."""
        return xgb.DMatrix(
            data.X,
            data.labels,
            feature_types=data.schema.feature_types,
            enable_categorical=True,
        )

    def xgboost(self, max_bin: int, rounds: int) -> tuple[float, float, float]:
        """Return AUC after ``rounds``, and wall and CPU seconds of one more tree."""
        parameters = {
            "objective": "binary:logistic",
            "max_depth": BOOSTER.max_depth,
            "eta": BOOSTER.eta,
            "max_bin": max_bin,
            "tree_method": "hist",
            "nthread": self.threads,
        }
        data = xgb.QuantileDMatrix(
            self.train.X,
            self.train.labels,
            feature_types=self.train.schema.feature_types,
            enable_categorical=True,
            max_bin=max_bin,
        )
        walls, spents = [], []
        for n in (1, rounds):
            wall, cpu = time.monotonic(), time.process_time()
            booster = xgb.train(parameters, data, n)
            walls.append(time.monotonic() - wall)
            spents.append(time.process_time() - cpu)
        scores = booster.predict(self.matrix(self.test), output_margin=True)
        more = max(rounds - 1, 1)
        return (
            exact_auc(self.test.labels > 0, scores.astype(np.float64)),
            (walls[1] - walls[0]) / more,
            (spents[1] - spents[0]) / more,
        )

    def engine(self, variant: Variant, rounds: int) -> Ensemble:
        """Return the engine's model of all rows, with the cut points that the silos agree on."""
        edges = np.cumsum([0, *self.sizes])
        numeric = numeric_features(self.train.schema)
        summaries = [
            [summarise(self.train.X[a:b, j], 4 * variant.max_bin) for j in numeric]
            for a, b in itertools.pairwise(edges)
        ]
        job = job_of(variant, rounds)
        strategy = job.parameters
        assert isinstance(strategy, Histogram)
        return train_pooled(
            job,
            self.train,
            rounds,
            Training(
                cuts=merged_cuts(self.train.schema, summaries, variant.max_bin),
                sampler=strategy.sampler,
                blocks=self.sizes,
                coarse_bits=strategy.coarse_bits,
                ring_bits=strategy.ring_bits,
                fraction_bits=strategy.fraction_bits,
                n_threads=self.threads,
            ),
        )

    def auc(self, model: Ensemble) -> float:
        """Return a model's AUC on the test rows."""
        margins = model.margins(self.matrix(self.test), n_threads=self.threads)
        return exact_auc(self.test.labels > 0, margins.reshape(-1).astype(np.float64))


def recoded(data: Dataset, like: Dataset) -> Dataset:
    """Return a table whose categories are numbered as in another."""
    X = data.X.copy()
    for j, (own, theirs) in enumerate(zip(data.schema.features, like.schema.features, strict=True)):
        if own.categories is not None and theirs.categories is not None:
            place = {name: k for k, name in enumerate(theirs.categories)}
            codes = np.array([place.get(name, np.nan) for name in own.categories], np.float32)
            known = ~np.isnan(X[:, j])
            X[known, j] = codes[X[known, j].astype(int)]
    return Dataset(like.schema, X, data.labels, data.weight)


def same(a: Ensemble, b: Ensemble) -> bool:
    names = ("left", "feature", "threshold", "default_left", "gain", "cover", "weight")
    return len(a.trees) == len(b.trees) and all(
        np.array_equal(getattr(x, name), getattr(y, name))
        for x, y in zip(a.trees, b.trees, strict=True)
        for name in names
    )


def measure(folder: Path, report: Report, rounds: int, variants: Sequence[Variant]) -> None:
    """Fill a table's rows."""
    pooled = Pooled(folder)
    reference: dict[int, list[tuple[float, float, float]]] = {}
    for max_bin in sorted({v.max_bin for v in variants}):
        reference[max_bin] = [pooled.xgboost(max_bin, rounds)]
    found: list[tuple[Variant, Run]] = []
    for variant in variants:
        n = rounds if variant.scored else max(rounds // 3, 3)
        run = local(folder, variant, n)
        found.append((variant, run))
        name, total = variant.name, run.report["bytes"]
        report.note("bytes_up_a_silo_a_tree", "hedgerow", total["up"] / SILOS / n, "B", name)
        report.note("bytes_down_a_silo_a_tree", "hedgerow", total["down"] / SILOS / n, "B", name)
        report.note("tree_wall", "hedgerow", run.seconds, "s", name)
        for kind, seconds in run.cpu.items():
            report.note(f"tree_cpu, {kind}", "hedgerow", seconds, "s", name)
        own = pooled.engine(variant, n)
        report.note("equals_pooled", "hedgerow", float(same(own, run.model)), "", name)
        if variant.scored:
            report.note("auc", "hedgerow", pooled.auc(run.model), "", name)
            report.note("auc, engine on all rows", "hedgerow", pooled.auc(own), "", name)
    for max_bin, tries in reference.items():
        tries.append(pooled.xgboost(max_bin, rounds))
        name = f"{max_bin} bins"
        report.note("auc", "xgboost-pooled", tries[0][0], "", name)
        report.note("tree_wall", "xgboost-pooled", min(t[1] for t in tries), "s", name)
        report.note("tree_cpu", "xgboost-pooled", min(t[2] for t in tries), "s", name)
    for variant, run in found:
        tries = reference[variant.max_bin]
        wall, cpu = (min(t[k] for t in tries) for k in (1, 2))
        report.note("tree_wall_ratio", "hedgerow", run.seconds / wall, "ratio", variant.name)
        total_cpu = sum(run.cpu.values())
        report.note("tree_cpu_ratio", "hedgerow", total_cpu / cpu, "ratio", variant.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50,000 rows, 6 rounds, two variants")
    parser.add_argument("--data", type=Path, help="folder with flights_3m.parquet")
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--tables", default="synthetic,flights", help="which, by commas")
    parser.add_argument("--variants", default="", help="how their names begin, by commas")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = 6 if arguments.quick else arguments.rounds
    n = 50_000 if arguments.quick else 1_000_000
    wanted = tuple(name.strip() for name in arguments.variants.split(","))
    variants = [v for v in VARIANTS if v.name.startswith(wanted)]
    if not variants:
        parser.error(f"--variants: known are {'; '.join(v.name for v in VARIANTS)}")
    if arguments.quick:
        variants = variants[:2]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as temporary:
        if "synthetic" in arguments.tables:
            folder = Path(temporary) / "synthetic"
            folder.mkdir()
            synthetic(folder, n)
            measure(folder, Report("synthetic", rows), rounds, variants)
        source = arguments.data / "flights_3m.parquet" if arguments.data else None
        if "flights" not in arguments.tables:
            pass
        elif source is not None and source.is_file():
            folder = Path(temporary) / "flights"
            folder.mkdir()
            flights(folder, source, n if arguments.quick else 2_800_000)
            measure(folder, Report("flights", rows), rounds, variants)
        else:
            print("flights: no flights_3m.parquet in --data, skipped")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
