"""Vertical SecureBoost: CPU time, wall time, bytes, memory and accuracy of whole jobs, by phase.

``python -m benchmarks.vertical [--quick] [--only PART ...] [--data DIR] [--json FILE]``. Parts:

* ``credit``: FATE's default-credit, 24,000 training and 6,000 test rows, 13 + 10 features, depth 5,
  32 bins, eta 0.3, as ``hedgerow local`` runs it: coordinator, agents and crypto processes. CPU
  seconds are of all these processes from start to end; a tree's wall time is the median round's;
  bytes are of serialised messages, counted once (up); memory is the largest sum of proportional set
  sizes of all processes, sampled.
* ``python``: three of its trees without compiled kernels.
* ``breast``: the same for 455 rows, with and without compiled kernels.
* ``coordinator``: the coordinator's largest resident set for 24,000 and for 240,000 rows.
* ``gates``: FATE's data sets against XGBoost on the joined table with the same parameters: one
  whole job, and the mean relative difference over 20 splits into training and test rows with its
  standard error (unencrypted, in this process: the trees are the same).
* ``bins``: for some numbers of bins and with the default guards (``min_bin_rows`` 5), the test
  metric beside XGBoost's on the active party's columns alone (256 bins), mean relative difference
  over the splits; one tree's bytes and CPU seconds with Paillier, in this process.
* ``equality``: margins on these sets against those of the pooled engine.
* ``scaling``: CPU seconds and bytes of one tree by phase (``compress`` has re-randomising in it,
  ``split`` is all that is in no other phase, keys included), 50 passive features, without a
  network: both halves in this process, through the real barrier and codecs.
* ``sparse``: one tree with ElGamal over tables most of whose values are missing: CPU seconds, bytes
  and each process's largest resident set.
* ``inference``: 6,000 rows through 10 trees, exchanges and seconds.
* ``peers``: SecretFlow on the same rows, in the environment of the interpreter that ``--peers``
  names (``pip install --pre secretflow-lite``, Python 3.10); left out without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import xgboost as xgb

from benchmarks import add_data
from benchmarks._vertical_parties import (
    datasets,
    in_process,
    parts_of,
    read_tables,
    routed,
    synthetic,
)
from benchmarks._vertical_processes import Row, coordinator_peak, measured
from benchmarks._vertical_sparse import sparse
from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.routing import margins, n_exchanges
from tests.pooled import Training, train_pooled

GATES = {
    "fate_breast_hetero": ("binary", "auc", 0.01),
    "fate_default_credit_hetero": ("binary", "auc", 0.01),
    "fate_ionosphere_scale_hetero": ("binary", "auc", 0.01),
    "fate_epsilon_5k": ("binary", "auc", 0.01),
    "fate_student_hetero": ("regression", "rmse", 0.05),
    "fate_motor_hetero": ("regression", "rmse", 0.05),
}
ROWS = [10_000, 30_000, 100_000]
SPLITS = [20]
PEERS: list[str] = []
BINS = (16, 32, 64, 256)
PLAIN = {"encryption": "plain", "allow_insecure": True, "alignment": "digest"}
LIMITS = PartyLimits(least_bin_rows=5)
"""A policy's defaults."""
JOB = """
name = "benchmark"
strategy = "secureboost"
label = "{label}"
task = "{task}"
seed = 7
min_silos = 2
[secureboost]
active = "guest"
rounds = {rounds}
{more}
[booster]
max_depth = {depth}
max_bin = 32
eta = 0.3
"""


def pooled_metric(
    pieces: Mapping[str, Any],
    task: str,
    metric: str,
    rounds: int,
    depth: int,
    max_bin: int = 32,
    *,
    alone: bool = False,
) -> float:
    """Return XGBoost's test metric on the joined table, or on the active party's columns."""
    tables = {}
    for prefix in ("", "test-"):
        guest, host = pieces[f"{prefix}guest"], pieces[f"{prefix}host"]
        label = guest.column_names[1]
        columns = [
            *(guest.column(n).to_numpy() for n in guest.column_names[2:]),
            *(host.column(n).to_numpy() for n in host.column_names[1:] if not alone),
        ]
        X = np.stack([np.asarray(c, np.float32) for c in columns], axis=1)
        tables[prefix] = xgb.DMatrix(X, np.asarray(guest.column(label).to_numpy(), np.float64))
    objective = "binary:logistic" if task == "binary" else "reg:squarederror"
    parameters = {
        "objective": objective, "max_depth": depth, "max_bin": max_bin, "eta": 0.3, "nthread": 2,
        "tree_method": "hist", "eval_metric": metric,
    }  # fmt: skip
    found: dict[str, Any] = {}
    xgb.train(
        parameters, tables[""], rounds, evals=[(tables["test-"], "test")],
        evals_result=found, verbose_eval=False,
    )  # fmt: skip
    return float(found["test"][metric][-1])


def credit(data: Path, quick: bool) -> list[Row]:
    """Return the rows of the default-credit table."""
    pieces = read_tables(data / "fate_default_credit_hetero.parquet", "label")

    def job(rounds: int, more: str = "") -> str:
        return JOB.format(label="label", task="binary", rounds=rounds, depth=5, more=more)

    rows, _ = measured("credit_paillier_3", "native", pieces, job(3))
    found, _ = measured("credit_elgamal_10", "native", pieces, job(10, 'encryption = "elgamal"'))
    rows += found
    if not quick:
        found, _ = measured("credit_paillier_10", "native", pieces, job(10))
        rows += found
    auc = pooled_metric(pieces, "binary", "auc", 10, 5)
    rows.append(
        {"metric": "credit_test_auc", "who": "xgboost-pooled", "value": round(auc, 5), "unit": ""}
    )
    return rows


def python(data: Path, quick: bool) -> list[Row]:
    """Return the rows of the default-credit table without compiled kernels."""
    pieces = read_tables(data / "fate_default_credit_hetero.parquet", "label")
    job = JOB.format(label="label", task="binary", rounds=1 if quick else 3, depth=5, more="")
    return measured("credit_paillier_3", "python", pieces, job, kernels=False)[0]


def breast(data: Path, quick: bool) -> list[Row]:
    """Return the rows of the breast table."""
    pieces = read_tables(data / "fate_breast_hetero.parquet", "label")
    job = JOB.format(label="label", task="binary", rounds=10, depth=5, more="")
    rows = measured("breast_paillier_10", "native", pieces, job)[0]
    if not quick:
        rows += measured("breast_paillier_10", "python", pieces, job, kernels=False)[0]
    return rows


def gates(data: Path, quick: bool) -> list[Row]:
    """Return our test metric and XGBoost's on each of FATE's data sets; ten trees of depth 3."""
    rows: list[Row] = []
    names = list(GATES)[:1] if quick else list(GATES)
    for name in names:
        task, metric, _ = GATES[name]
        label = _label(data / f"{name}.parquet")
        pieces = read_tables(data / f"{name}.parquet", label)
        job = JOB.format(label=label, task=task, rounds=10, depth=3, more="")
        _, report = measured(name, "native", pieces, job)
        values = {
            "native": report["rounds"][-1]["metrics"]["test"][metric],
            "xgboost-pooled": pooled_metric(pieces, task, metric, 10, 3),
        }
        for who, value in values.items():
            rows.append(
                {"metric": f"{name}_{metric}", "who": who, "value": round(value, 5), "unit": ""}
            )
        differences = [
            _difference(data / f"{name}.parquet", label, task, metric, seed)
            for seed in range(1, 1 + (2 if quick else SPLITS[0]))
        ]
        mean = statistics.fmean(differences)
        error = statistics.stdev(differences) / len(differences) ** 0.5
        for kind, share in (("mean", mean), ("standard_error", error)):
            rows.append(
                {"metric": f"{name}_{metric}_to_xgboost_{kind}", "who": "native",
                 "value": round(100 * share, 3), "unit": "%"}
            )  # fmt: skip
    return rows


def bins(data: Path, quick: bool) -> Iterator[Row]:
    """Give our test metric beside the active party's own model, for some numbers of bins."""
    for name, (task, metric, _) in list(GATES.items())[: 1 if quick else None]:
        path = data / f"{name}.parquet"
        label = _label(path)
        seeds = range(1, 1 + (2 if quick else SPLITS[0]))
        tables = {seed: read_tables(path, label, seed) for seed in seeds}
        own = {
            seed: pooled_metric(pieces, task, metric, 10, 3, 256, alone=True)
            for seed, pieces in tables.items()
        }
        for max_bin in BINS:
            job = _gate(task, metric, max_bin, PLAIN)
            ours = {seed: _test_metric(job, tables[seed], label) for seed in seeds}
            shares = [ours[seed] / own[seed] - 1 for seed in seeds]
            one = _gate(task, metric, max_bin, {"alignment": "digest", "rounds": 1})
            cpu = time.process_time()
            phases, _, _ = in_process(one, datasets(tables[1], label, Task(task)), limits=LIMITS)
            for kind, value, unit in (
                (metric, statistics.fmean(ours.values()), ""),
                (f"{metric}_alone", statistics.fmean(own.values()), ""),
                (f"{metric}_to_alone_mean", 100 * statistics.fmean(shares), "%"),
                (
                    f"{metric}_to_alone_standard_error",
                    100 * statistics.stdev(shares) / len(shares) ** 0.5,
                    "%",
                ),
                ("tree_bytes", sum(phases.bytes.values()) / 1e6, "MB"),
                ("tree_cpu", time.process_time() - cpu, "s"),
            ):
                yield {
                    "metric": f"{name}_{kind}", "who": f"{max_bin} bins", "value": round(value, 4),
                    "unit": unit,
                }  # fmt: skip


def _label(path: Path) -> str:
    columns = pq.read_schema(path).names
    return next(c for c in ("label", "y", "motor_speed") if c in columns)


def _gate(task: str, metric: str, max_bin: int, more: Mapping[str, Any]) -> JobParameters:
    return JobParameters(
        name="gate",
        parameters=SecureBoost("guest", **{"rounds": 10, **more}),
        task=Task(task),
        seed=7,
        metrics=(metric,),
        booster=Booster(max_depth=3, max_bin=max_bin),
    )


def _test_metric(
    job: JobParameters, pieces: Mapping[str, Any], label: str, limits: PartyLimits | None = LIMITS
) -> float:
    tests = {party: pieces[f"test-{party}"] for party in ("guest", "host")}
    ours, _, _ = in_process(
        job, datasets(pieces, label, job.task), datasets(tests, label, job.task), limits=limits
    )
    return ours.scores["test"][job.metrics[0]]


def _difference(path: Path, label: str, task: str, metric: str, seed: int) -> float:
    """Return how far our test metric is from XGBoost's on one split, as a share of the latter."""
    pieces = read_tables(path, label, seed)
    ours = _test_metric(_gate(task, metric, 32, PLAIN), pieces, label, None)
    return ours / pooled_metric(pieces, task, metric, 10, 3) - 1


def equality(data: Path, quick: bool) -> list[Row]:
    """Return the largest difference of a training margin to the pooled engine's.

    Ten trees of depth 5 without guards; gradients as integers of the precision that Paillier has,
    unencrypted.
    """
    rows: list[Row] = []
    for name in list(GATES)[:1] if quick else list(GATES):
        task = Task(GATES[name][0])
        parties = datasets(read_tables(data / f"{name}.parquet", "label"), "label", task)
        guest, host = parties["guest"], parties["host"]
        assert guest.ids is not None
        order = np.argsort(guest.ids.astype(str), kind="stable").astype(np.intp)
        whole = Dataset(
            Schema(
                guest.schema.features + host.schema.features, "label", task, guest.schema.n_classes
            ),
            np.ascontiguousarray(np.concatenate([guest.X, host.X], axis=1)[order]),
            guest.labels[order],
        )
        for variant, sampling in {"standard": "none", "goss": "goss"}.items():
            strategy = SecureBoost(
                "guest", encryption="plain", allow_insecure=True, min_leaf=1, max_purity=1.0,
                sampling=sampling,
            )  # fmt: skip
            job = JobParameters(
                name="b", parameters=strategy, task=task, seed=3,
                booster=Booster(max_depth=5, max_bin=32),
            )  # fmt: skip
            _, _, kept = in_process(job, parties)
            active, passive = parts_of(kept, "host")
            router = routed(active, passive, guest.X[order], host.X[order])
            got = margins(router, active.trees, active.start(len(router.X), None))
            ensemble = train_pooled(job, whole, 10, Training(sampler=strategy.sampler(job.booster)))
            expected = ensemble.margins(xgb.DMatrix(whole.X)).reshape(got.shape)
            rows.append(
                {"metric": f"{name}_margin_difference", "who": variant,
                 "value": float(np.abs(got - expected).max()), "unit": ""}
            )  # fmt: skip
    return rows


def scaling(data: Path, quick: bool) -> list[Row]:
    """Return seconds and bytes by phase."""
    rows: list[Row] = []
    # Compiles what is compiled at its first use.
    in_process(
        JobParameters(name="warm", parameters=SecureBoost("guest", rounds=1, alignment="digest")),
        synthetic(400, [3, 3]),
    )
    modes: dict[str, dict[str, Any]] = {
        "standard": {},
        "goss": {"sampling": "goss"},
        "mix": {"mode": "mix", "rounds": 2},
        "layered": {"mode": "layered"},
        "elgamal": {"encryption": "elgamal"},
        "two hosts": {"hosts": 2},
        "nine zeros in ten": {"zeros": 0.9},
    }
    for n in (3_000,) if quick else ROWS:
        for mode, changes in modes.items():
            options = {"rounds": 1, "alignment": "digest", "active": "guest", **changes}
            hosts, zeros = int(options.pop("hosts", 1)), float(options.pop("zeros", 0.0))
            widths = [10, *([50 // hosts] * hosts)]
            strategy = SecureBoost(**options)
            job = JobParameters(
                name="b", parameters=strategy, booster=Booster(max_depth=5, max_bin=32)
            )
            parties = synthetic(n, widths, zeros)
            cpu = time.process_time()
            phases, wall, _ = in_process(job, parties)
            who = f"{mode}, {n} rows"
            total = time.process_time() - cpu
            rest = total - sum(phases.seconds.values())
            seconds = {**phases.seconds, "split": rest, "cpu": total, "wall": wall}
            for phase, value in seconds.items():
                rows.append(
                    {
                        "metric": f"{phase}_seconds",
                        "who": who,
                        "value": round(value, 3),
                        "unit": "s",
                    }
                )
            for call, moved in phases.bytes.items():
                rows.append(
                    {"metric": f"{call}_bytes", "who": who, "value": round(moved / 1e6, 3),
                     "unit": "MB"}
                )  # fmt: skip
    return rows


def inference(data: Path, quick: bool) -> list[Row]:
    """Return the seconds of scoring 6,000 rows with 10 trees, once keys and rows have met."""
    parties = synthetic(6_000, [10, 10])
    strategy = SecureBoost(
        "guest", rounds=10, encryption="plain", allow_insecure=True, alignment="digest"
    )
    job = JobParameters(name="b", parameters=strategy, booster=Booster(max_depth=5, max_bin=32))
    _, _, kept = in_process(job, parties)
    active, passive = parts_of(kept, "host-1")
    times = []
    for _ in range(3 if quick else 9):
        began = time.perf_counter()
        router = routed(active, passive, parties["guest"].X, parties["host-1"].X)
        margins(router, active.trees, active.start(len(router.X), None))
        times.append(time.perf_counter() - began)
    # The whole of it, through barrier and codecs: from the first exchange of rows to the scores.
    scoring = SecureBoost(
        "guest", encryption="plain", allow_insecure=True, alignment="digest", predict_from="model"
    )
    wall = []
    for _ in range(3 if quick else 9):
        phases, _, _ = in_process(replace(job, parameters=scoring), parties, model=kept)
        wall.append(phases.began["scores"] - phases.began["margins"])
    return [
        {
            "metric": "inference_wall", "who": "native",
            "value": round(statistics.median(wall), 4), "unit": "s",
        },
        {
            "metric": "inference_exchanges", "who": "native",
            "value": n_exchanges(active.trees), "unit": "",
        },
        {
            "metric": "inference_compute", "who": "native",
            "value": round(statistics.median(times), 4), "unit": "s",
        },
    ]  # fmt: skip


def peers(data: Path, quick: bool) -> Iterator[Row]:
    """Give SecretFlow's rows as they come; CPU seconds are of its whole process."""
    wanted = [("breast", "fate_breast_hetero", "ou", 10)]
    if not quick:
        wanted += [
            ("credit", "fate_default_credit_hetero", "ou", 10),
            ("breast", "fate_breast_hetero", "zpaillier", 10),
            ("credit", "fate_default_credit_hetero", "zpaillier", 3),
        ]
    script = Path(__file__).with_name("_vertical_peers.py")
    for name, table, scheme, rounds in wanted if PEERS else ():
        with tempfile.TemporaryDirectory() as folder:
            for party, piece in read_tables(data / f"{table}.parquet", "label").items():
                pa_csv.write_csv(piece, f"{folder}/{party}.csv")
            done = subprocess.run(
                [PEERS[0], script, folder, "--scheme", scheme, "--rounds", str(rounds)],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
        result = json.loads(done.stdout.strip().splitlines()[-1])
        who = f"secretflow-lite {result['version']}, {scheme}"
        for metric, unit in (("cpu", "s"), ("wall_tree", "s"), ("peak_rss", "GB"), ("auc", "")):
            yield {
                "metric": f"{name}_{rounds}_{metric}", "who": who,
                "value": round(result[metric], 4), "unit": unit,
            }  # fmt: skip


def coordinator(data: Path, quick: bool) -> list[Row]:
    """Return the coordinator's largest resident set for few and for many rows."""
    rows: list[Row] = []
    for n in (2_000, 20_000) if quick else (24_000, 240_000):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n, 4)).astype(np.float32)
        y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
        ids = np.arange(n)
        pieces = {
            "guest": pa.table({"_id": ids, "label": y, "a": X[:, 0], "b": X[:, 1]}),
            "host": pa.table({"_id": ids, "c": X[:, 2], "d": X[:, 3]}),
        }
        more = 'encryption = "elgamal"\nalignment = "digest"'
        job = JOB.format(label="label", task="binary", rounds=2, depth=3, more=more)
        with tempfile.TemporaryDirectory() as folder:
            peak = coordinator_peak(Path(folder), pieces, job)
        rows.append(
            {"metric": f"coordinator_rss_{n}_rows", "who": "native",
             "value": round(peak / 1e6, 1), "unit": "MB"}
        )  # fmt: skip
    return rows


PARTS: dict[str, Callable[[Path, bool], Iterable[Row]]] = {
    "credit": credit,
    "python": python,
    "breast": breast,
    "inference": inference,
    "scaling": scaling,
    "gates": gates,
    "bins": bins,
    "equality": equality,
    "coordinator": coordinator,
    "sparse": sparse,
    "peers": peers,
}


def main() -> None:
    """Print a table, and JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    add_data(parser)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="for scaling")
    parser.add_argument("--peers", default="", help="interpreter that has secretflow")
    parser.add_argument("--splits", type=int, default=SPLITS[0], help="for gates and bins")
    parser.add_argument(
        "--sets", nargs="+", default=list(GATES), help="for gates, bins and equality"
    )
    arguments = parser.parse_args()
    SPLITS[:] = [arguments.splits]
    for name in set(GATES) - set(arguments.sets):
        del GATES[name]
    ROWS[:] = arguments.rows
    PEERS[:] = [arguments.peers] if arguments.peers else []
    rows: list[Row] = []
    for name in arguments.only:
        for row in PARTS[name](arguments.data, arguments.quick):
            value = row["value"]
            print(f"{row['metric']:<44} {row['who']:<24} {value!s:>12} {row['unit']}", flush=True)
            rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
