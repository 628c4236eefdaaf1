"""SecureBoost's faster modes against the standard one: test metric over splits, and CPU time.

``python -m benchmarks.vertical_modes [--data DIR] [--sets NAME ...] [--splits 20] [--json FILE]``.
Ten rounds of depth 5, 32 bins, ``eta`` 0.3, the default guards. Binary and regression sets are
FATE's vertical ones: standard, mix (parties take turns), layered (three levels of the passive
party, two of the active one). Sets of more than two classes, whose first half of columns is the
active party's: one tree a class (standard), and one tree with vector leaves (multi-output).

Metrics are of unencrypted jobs, whose trees are those of encrypted ones, on the same splits for
all modes. CPU seconds are of ``CPU_ROUNDS`` rounds of the first split with Paillier 2048 and rows
that are aligned already; both halves, the crypto included, are in this process on one thread. The
modes take turns, :data:`REPEATS` times, and the least is given.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import add_data
from benchmarks._vertical_parties import datasets, in_process, read_tables, synthetic
from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost

Row = dict[str, Any]
Parties = dict[str, Dataset]
SETS = {
    "fate_student_hetero": ("regression", "rmse"),
    "fate_breast_hetero": ("binary", "auc"),
    "fate_ionosphere_scale_hetero": ("binary", "auc"),
    "fate_motor_hetero": ("regression", "rmse"),
    "fate_epsilon_5k": ("binary", "auc"),
    "fate_default_credit_hetero": ("binary", "auc"),
    "tb_wine_quality": ("multiclass", "merror"),
    "nursery": ("multiclass", "merror"),
}
TWO: dict[str, dict[str, Any]] = {
    "standard": {},
    "mix": {"mode": "mix"},
    "layered": {"mode": "layered"},
}
MANY: dict[str, dict[str, Any]] = {"standard": {}, "multi-output": {"multi_output": True}}
PLAIN = {"encryption": "plain", "allow_insecure": True}
LIMITS = PartyLimits(least_bin_rows=5)
"""A policy's defaults."""
CPU_ROUNDS, REPEATS = 2, 2


def parties_of(path: Path, task: str, seed: int) -> tuple[Parties, Parties]:
    """Return the parties' training and test tables of one split."""
    names = pq.read_schema(path).names
    label = next(name for name in ("label", "y", "motor_speed") if name in names)
    read = divided if task == "multiclass" else read_tables
    pieces = read(path, label, seed)
    tests = {party: pieces[f"test-{party}"] for party in ("guest", "host")}
    found = [datasets(each, label, Task(task)) for each in (pieces, tests)]
    return found[0], found[1]


def divided(path: Path, label: str, seed: int) -> dict[str, Any]:
    """Return the tables of a set that is in one piece; categories and labels as whole numbers."""
    whole = pq.read_table(path)
    rng = np.random.default_rng(seed)
    order = rng.permutation(whole.num_rows)
    n_test = whole.num_rows // 5
    columns: dict[str, Any] = {}
    features = [name for name in whole.column_names if name != label]
    for place, name in enumerate(features):
        values = whole.column(name).combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.indices
        party = "guest" if 2 * place < len(features) else "host"
        columns[f"{party}__{name}"] = values.to_numpy(zero_copy_only=False)
    classes = np.unique(whole.column(label).to_numpy(), return_inverse=True)[1]
    found = {}
    for prefix, rows in (("test-", np.sort(order[:n_test])), ("", np.sort(order[n_test:]))):
        for party in ("guest", "host"):
            own = {"_id": rows, **({label: classes[rows]} if party == "guest" else {})}
            own |= {n: v[rows] for n, v in columns.items() if n.startswith(party)}
            found[f"{prefix}{party}"] = pa.table(own)
    return found


def job_of(task: str, metric: str, classes: int, options: Mapping[str, Any]) -> JobParameters:
    """Return a job of ten rounds."""
    booster = Booster(max_depth=5, max_bin=32, eta=0.3)
    if options.get("mode") == "layered":  # its levels replace the depth
        booster = replace(booster, max_depth=Booster().max_depth)
    parameters = SecureBoost("guest", **{"rounds": 10, "alignment": "digest", **options})
    return JobParameters(
        "modes", parameters, task=Task(task), seed=7, metrics=(metric,), booster=booster,
        classes=classes,
    )  # fmt: skip


def with_classes(tables: Parties, classes: int) -> Parties:
    """Return tables whose schema has the number of classes of a multi-class task."""
    if not classes:
        return tables
    return {
        party: replace(rows, schema=replace(rows.schema, n_classes=classes if rows.schema.label
                                            else 0))
        for party, rows in tables.items()
    }  # fmt: skip


def measured(data: Path, name: str, splits: int) -> Iterator[Row]:
    """Yield a set's scores by split and mode, and its CPU seconds by mode."""
    task, metric = SETS[name]
    modes = MANY if task == "multiclass" else TWO
    path = data / f"{name}.parquet"
    first: Parties = {}
    classes = 0
    for seed in range(1, splits + 1):
        train, tests = parties_of(path, task, seed)
        if task == "multiclass":
            both = np.concatenate([train["guest"].labels, tests["guest"].labels])
            classes = int(both.max()) + 1
        train, tests = with_classes(train, classes), with_classes(tests, classes)
        first = first or train
        for mode, options in modes.items():
            job = job_of(task, metric, classes, {**PLAIN, **options})
            phases, _, _ = in_process(job, train, tests, limits=LIMITS)
            value = phases.scores["test"][metric]
            yield {"metric": f"{name}_{metric}_seed_{seed}", "who": mode, "value": value,
                   "unit": ""}  # fmt: skip
    warm = JobParameters("warm", SecureBoost("guest", rounds=1, alignment="digest"))
    in_process(warm, synthetic(400, [3, 3]))
    spent: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(REPEATS):
        for mode, options in modes.items():
            job = job_of(task, metric, classes, {"rounds": CPU_ROUNDS, **options})
            before = time.process_time()
            in_process(job, first, limits=LIMITS)
            spent[mode].append(time.process_time() - before)
    for mode, seconds in spent.items():
        yield {"metric": f"{name}_cpu", "who": mode, "value": round(min(seconds), 3), "unit": "s"}


def main() -> None:
    """Print rows; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data(parser)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.sets:
        for row in measured(given.data, name, given.splits):
            print(f"{row['metric']:<44} {row['who']:<14} {row['value']:10.5f} {row['unit']}",
                  flush=True)  # fmt: skip
            rows.append(row)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
