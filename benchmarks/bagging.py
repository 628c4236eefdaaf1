"""Bagging beside the plain in-process loop that it must equal: trees, bytes, CPU, rounds.

``python -m benchmarks.bagging [--data FILE] [--quick] [--json FILE]``. The table is any with a
column ``_split`` (``train``, ``test``), or the Adult data of the examples, of which every fourth
row tests. Five equal silos, depth 8, eta 0.1/5, 36 rounds. The federation is ``hedgerow local``:
coordinator, agents and crypto processes over mTLS on loopback; its CPU time is that of all its
processes, imports included. Its model must be the loop's to the byte.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.metrics import exact_auc
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.streams import Purpose, xgboost_seed
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.packing import Shrinkage, pack, unpack

ROOT = Path(__file__).resolve().parent.parent
ADULT = ROOT / "examples/data/adult.parquet"
N_SILOS, DEPTH, ETA = 5, 8, 0.1
Watch = Callable[[int, xgb.Booster], None]


def in_process(
    silos: Sequence[Dataset],
    parameters: Mapping[str, Any],
    *,
    rounds: int,
    steps: int,
    etas: Sequence[float],
    seed: int,
    watch: Watch | None = None,
) -> bytes:
    """Return the model of the plain loop: XGBoost continues, JSON documents are merged.

    The oracle of the federation. It shares no code with it but the seeds.

    Parameters
    ----------
    silos : sequence of Dataset
        In the order of the silos' names.
    parameters : Mapping
        XGBoost's, ``base_score`` included, ``eta`` and ``seed`` not.
    etas : sequence of float
        Learning rate of each silo.
    watch : callable, optional
        Called with the round and its booster, which holds the round's trees only.
    """
    kinds = silos[0].schema.feature_types
    tables = [
        xgb.DMatrix(
            silo.X, silo.labels, weight=silo.weight, feature_types=kinds, enable_categorical=True
        )
        for silo in silos
    ]
    whole: dict[str, Any] | None = None
    ends: list[int] = []
    margins: list[Any] = [None] * len(silos)
    for round in range(rounds):
        documents = []
        for index, table in enumerate(tables):
            if margins[index] is not None:
                table.set_base_margin(margins[index])
            booster = xgb.train(
                {
                    **parameters,
                    "eta": etas[index],
                    "seed": xgboost_seed(seed, index, round, Purpose.XGBOOST),
                },
                table,
                steps,
            )
            documents.append(json.loads(bytes(booster.save_raw("json"))))
        added = _merged(None, documents)
        whole = _merged(whole, documents)
        ends.append(len(_model(whole)["iteration_indptr"]) - 1)
        step = xgb.Booster({"nthread": 1}, model_file=bytearray(json.dumps(added).encode()))
        for index, table in enumerate(tables):
            margins[index] = step.predict(table, output_margin=True)
        if watch is not None:
            watch(round, step)
    assert whole is not None
    model = xgb.Booster(model_file=bytearray(json.dumps(whole).encode()))
    model.feature_names = list(silos[0].schema.names)
    model.feature_types = kinds
    model.set_attr(fed_round_ends=json.dumps(ends, separators=(",", ":")))
    return bytes(model.save_raw("ubj"))


def _model(document: Mapping[str, Any]) -> dict[str, Any]:
    model: dict[str, Any] = document["learner"]["gradient_booster"]["model"]
    return model


def _merged(whole: dict[str, Any] | None, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a document with the trees of others behind its own."""
    if whole is None:
        whole = json.loads(json.dumps(documents[0]))
        documents = documents[1:]
    assert whole is not None
    model = _model(whole)
    for document in documents:
        new = _model(document)
        start = len(model["trees"])
        for tree in new["trees"]:
            model["trees"].append({**tree, "id": len(model["trees"])})
        model["tree_info"] += new["tree_info"]
        model["iteration_indptr"] += [start + end for end in new["iteration_indptr"][1:]]
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    return whole


def tables_of(path: Path) -> tuple[Dataset, Dataset]:
    """Return training and test rows of a table."""
    job = JobParameters("benchmark", Bagging())
    table = read_table(str(path))
    rows = for_job(table, job, path.name)
    test = np.arange(rows.n_samples) % 4 == 3
    if "_split" in table.column_names:
        test = np.array(table.column("_split").to_pylist()) == "test"
    return rows.take(np.flatnonzero(~test)), rows.take(np.flatnonzero(test))


def parted(rows: Dataset, n_silos: int) -> dict[Silo, Dataset]:
    """Return equal silos, rows in file order; a remainder goes to the first."""
    parts = np.array_split(np.arange(rows.n_samples), n_silos)
    return {Silo(f"silo-{k}"): rows.take(part) for k, part in enumerate(parts)}


def packed_bytes(model: bytes, per_round: int, eta: float) -> dict[str, int]:
    """Return bytes of a model's trees: one upload each, and one download by all other silos."""
    trees = load(model).trees
    totals = {"as they are": 0, "scrubbed": 0}
    for tree in trees:
        for name, form in (("as they are", tree), ("scrubbed", tree.scrubbed())):
            data = pack([form], Shrinkage(eta))
            assert pack(unpack(data), Shrinkage(eta)) == data
            totals[name] += len(data) * per_round
    return totals


JOB = """
name = "bagging-benchmark"
strategy = "bagging"
task = "binary"
seed = 7
min_silos = {n_silos}
metrics = ["auc"]
[bagging]
rounds = {rounds}
trees_per_round = {steps}
lr_mode = "uniform"
scrub = "{scrub}"
[booster]
eta = {eta}
max_depth = {depth}
"""


def federation(
    silos: Mapping[Silo, Dataset], test: Dataset, *, rounds: int, steps: int, scrub: str
) -> tuple[dict[str, Any], bytes, float]:
    """Return the report, model and CPU seconds of ``hedgerow local``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = []
        for silo, rows in silos.items():
            write_table(rows, folder / f"{silo}.parquet")
            arguments += ["--silo", f"{silo}={folder}/{silo}.parquet"]
        write_table(test, folder / "test.parquet")
        (folder / "job.toml").write_text(
            JOB.format(
                n_silos=len(silos), rounds=rounds, steps=steps, scrub=scrub, eta=ETA, depth=DEPTH
            )
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "hedgerow", "local", str(folder / "job.toml")]
        arguments += ["--test", str(folder / "test.parquet"), "--out", str(folder / "run")]
        subprocess.run(
            [*command, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads((folder / "run/report.json").read_text())
        model = (folder / "run/model.ubj").read_bytes()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report, model, cpu


def write_table(rows: Dataset, path: Path) -> None:
    """Write rows as a table that a silo can read; category codes as their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    for index, feature in enumerate(rows.schema.features):
        values = rows.X[:, index]
        if feature.categories is None:
            columns[feature.name] = values
        else:
            words = feature.categories
            columns[feature.name] = [None if np.isnan(v) else words[int(v)] for v in values]
    columns["label"] = rows.labels.astype(np.int64)
    pq.write_table(pa.table(columns), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ADULT)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds = 6 if given.quick else 36
    train, test = tables_of(given.data)
    silos = parted(train, N_SILOS)
    parameters = {
        "objective": "binary:logistic",
        "base_score": 0.5,
        "max_depth": DEPTH,
        "nthread": 1,
        "verbosity": 0,
    }
    shown: list[dict[str, Any]] = []

    def show(metric: str, who: str, value: float, unit: str) -> None:
        shown.append({"metric": metric, "who": who, "value": value, "unit": unit})
        print(f"{metric:<44} {who:<10} {value:>12.4f} {unit}", flush=True)

    test_rows = xgb.DMatrix(
        test.X, feature_types=test.schema.feature_types, enable_categorical=True
    )
    curves: dict[int, list[float]] = {}

    def loop(steps: int, rounds: int) -> tuple[bytes, float, float]:
        margin = np.zeros(test.n_samples, np.float32)
        curves[steps] = []

        def watch(round: int, booster: xgb.Booster) -> None:
            nonlocal margin
            test_rows.set_base_margin(margin)
            margin = booster.predict(test_rows, output_margin=True)
            curves[steps].append(exact_auc(test.labels == 1, margin))

        start, started = time.process_time(), time.perf_counter()
        model = in_process(
            list(silos.values()),
            parameters,
            rounds=rounds,
            steps=steps,
            etas=[ETA / N_SILOS] * N_SILOS,
            seed=7,
            watch=watch,
        )
        return model, time.process_time() - start, time.perf_counter() - started

    model, cpu, wall = loop(1, rounds)
    show(
        f"test AUC after {rounds} rounds",
        "native",
        curves[1][-1],
        "",
    )
    show(f"CPU of {rounds} rounds, loop in one process", "native", cpu, "s")
    for name, total in packed_bytes(model, N_SILOS, ETA / N_SILOS).items():
        show(f"packed trees up and down, {name}", "hedgerow", total / 1e6, "MB")
    show("UBJSON of the same trees up and down", "native", len(model) * N_SILOS / 1e6, "MB")
    start = time.process_time()
    packs = [pack([tree], Shrinkage(ETA / N_SILOS)) for tree in load(model).trees]
    show("CPU to pack a tree", "hedgerow", (time.process_time() - start) / len(packs) * 1e3, "ms")
    for stats in (True, False):
        start = time.process_time()
        for data in packs:
            unpack(data, stats=stats)
        spent = (time.process_time() - start) / len(packs)
        what = "with" if stats else "without"
        show(f"CPU to unpack a tree {what} statistics", "hedgerow", spent * 1e3, "ms")
    loop(3, rounds)
    reached = next((r + 1 for r, auc in enumerate(curves[3]) if auc >= curves[1][-1]), -1)
    show(f"tree plus n=3: rounds to the n=1 AUC of {rounds}", "hedgerow", reached, "rounds")
    for scrub in ("none", "stats"):
        report, federated, spent = federation(silos, test, rounds=rounds, steps=1, scrub=scrub)
        moved = report["bytes"]
        total = (moved["up"] + moved["down"]) / 1e6
        show(f"protobuf bytes up and down, scrub {scrub}", "hedgerow", total, "MB")
        if scrub == "stats":
            continue
        control = (moved["control"]["up"] + moved["control"]["down"]) / 1e6
        show("control plane bytes", "hedgerow", control, "MB")
        auc = report["rounds"][-1]["metrics"]["test"]["auc"]
        show(f"test AUC after {rounds} rounds", "hedgerow", auc, "")
        show("model equals the loop's to the byte", "hedgerow", float(federated == model), "")
        seconds = [entry["seconds"] for entry in report["rounds"]]
        show("wall a round, median", "hedgerow", statistics.median(seconds), "s")
        show("wall a round of the loop, mean", "native", wall / rounds, "s")
        each = [entry["bytes_up"] + entry["bytes_down"] for entry in report["rounds"]]
        third = max(1, rounds // 3)
        growth = statistics.mean(each[-third:]) / statistics.mean(each[:third])
        show("bytes a round, last third over first", "hedgerow", growth, "")
        show("CPU of the job, all processes", "hedgerow", spent, "s")
    if given.json:
        given.json.write_text(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
