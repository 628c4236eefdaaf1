"""What models over public structures reach under a budget, and without one in fifty exchanges.

``python -m benchmarks.private_boost --data DIR [--set NAME ...] [--epsilon E ...] [--seeds N]
[--interpret PYTHON] [--link RTT:MBIT] [--quick]``. Each run is a whole job: rows are dealt to five
silos, which add their parts of the noise to masked integers; a quarter of the rows is the
coordinator's test table. Defaults only; delta is ``rows ** -1.1`` of the training rows. ``none`` is
a job without a budget. Beside it, XGBoost with 150 rounds (eta .1, depth 6) on the same training
rows, pooled. Ranges are round numbers that codebooks of the sets have, not of the rows. Of two
classes the error at even chances is beside the AUC: S-BDT publishes 17.1 % on Adult at epsilon .54
(arXiv 2309.12041). Bytes are of one silo, up and down.

``--link 200:20`` runs each job once, as processes of ``hedgerow local`` over a user-space proxy of
200 ms there and back and 20 Mbit/s each way and silo: seconds of the job, scores of the test table
included, by default and with ``dropout_recovery = false``; bytes as the lines carried them.

``--interpret`` names a Python that has ``interpret-core`` (``python -m venv .venv-interpret &&
.venv-interpret/bin/pip install interpret-core==0.7.8 pyarrow scikit-learn``). Jobs then have
``structure = "cyclic"``, and in place of XGBoost's stand the scores of InterpretML's explainable
boosting machine of the same rows, pooled: without a budget, or private within the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import xgboost
from sklearn.metrics import roc_auc_score

import hedgerow
from benchmarks._histogram_runs import Link, Samples, federated
from benchmarks._histogram_tables import silo_names

SILOS = 5
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "a9a": {"": (0, 1)},
    "adult": {
        "age": (17, 90), "fnlwgt": (0, 500_000), "education-num": (1, 16),
        "capital-gain": (0, 20_000), "capital-loss": (0, 3_000), "hours-per-week": (1, 99),
    },
    "default_credit": {
        "LIMIT_BAL": (0, 500_000), "SEX": (1, 2), "EDUCATION": (0, 6), "MARRIAGE": (0, 3),
        "AGE": (20, 80), "PAY_AMT": (0, 20_000), "BILL_AMT": (0, 300_000), "PAY_": (-2, 8),
    },
    "higgs_26k": {
        "lepton_eta": (-3, 3), "jet_1_eta": (-3, 3), "jet_2_eta": (-3, 3), "jet_3_eta": (-3, 3),
        "jet_4_eta": (-3, 3), "phi": (-1.75, 1.75), "b_tag": (0, 3.2), "": (0, 3),
    },
    "cpusmall": {
        "label": (0, 100), "runqsz": (0, 20), "freeswap": (0, 2_500_000), "freemem": (0, 12_500),
        "rchar": (0, 1_000_000), "wchar": (0, 500_000), "fork": (0, 10), "exec": (0, 20),
        "scall": (0, 6_000), "sread": (0, 1_000), "swrite": (0, 1_000), "l": (0, 200),
    },
    "nursery": {},
}  # fmt: skip
"""By set: ranges by (part of) a column's name, the first that fits."""
TASKS = {"cpusmall": "regression", "nursery": "multiclass"}


def domain(name: str, table: pa.Table) -> dict[str, Any]:
    """Return a set's ``[columns]``; lists of categories are those of the codebook: the table's."""
    ranges, levels, known = {}, {}, RANGES[name]
    for field in table.schema:
        if field.name.startswith(("label", "_")) and field.name not in known:
            continue
        if pa.types.is_dictionary(field.type):
            words = table.column(field.name).combine_chunks().dictionary_decode().unique()
            levels[field.name] = sorted(word for word in words.to_pylist() if word is not None)
        else:
            ends = next(ends for part, ends in known.items() if part in field.name)
            ranges[field.name] = list(map(float, ends))
    return {"ranges": ranges, "levels": levels}


def pooled(name: str, train: pa.Table, test: pa.Table) -> float:
    """Return the score of XGBoost on all training rows."""
    frames = [part.to_pandas() for part in (train, test)]
    X = [frame[[c for c in frame if not c.startswith(("label", "_"))]] for frame in frames]
    y = [frame["label"] for frame in frames]
    objective: dict[str, Any] = {"objective": "binary:logistic"}
    if TASKS.get(name) == "regression":
        objective = {"objective": "reg:squarederror"}
    elif name in TASKS:
        objective = {"objective": "multi:softprob", "num_class": int(y[0].max()) + 1}
    rows = [xgboost.DMatrix(a, b, enable_categorical=True) for a, b in zip(X, y, strict=True)]
    given = {"max_depth": 6, "eta": 0.1, "nthread": 1, **objective}
    return score(name, np.asarray(y[1]), xgboost.train(given, rows[0], 150).predict(rows[1]))


def score(name: str, y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the AUC, or the share of a constant's loss that predictions take away."""
    if name not in TASKS:
        return float(roc_auc_score(y, predicted))
    if TASKS[name] == "regression":
        return float(1 - ((y - predicted) ** 2).mean() / y.var())
    chance = np.bincount(y.astype(int)) / len(y)
    constant = -(chance[chance > 0] * np.log(chance[chance > 0])).sum()
    own = np.clip(predicted[np.arange(len(y)), y.astype(int)], 1e-15, 1)
    return float(1 + np.log(own).mean() / constant)


def frame_of(table: pa.Table, names: Sequence[str], levels: Mapping[str, list[str]]) -> Any:
    """Return a table's features as a frame that a model of the sets reads."""
    frame = table.to_pandas()[list(names)]
    known = {name: pd.Categorical(frame[name], own) for name, own in levels.items()}
    return frame.assign(**known)


def interpret(python: Path, train: pa.Table, test: pa.Table, about: Mapping[str, Any]) -> float:
    """Return the AUC of an explainable boosting machine, trained by another Python."""
    with tempfile.TemporaryDirectory() as folder:
        for part, rows in (("train", train), ("test", test)):
            pq.write_table(rows, Path(folder) / f"{part}.parquet")
        (Path(folder) / "domain.json").write_text(json.dumps(about))
        command = [str(python), str(Path(__file__).with_name("_interpret.py")), folder]
        return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def run(
    name: str, table: pa.Table, epsilon: float | None, seed: int, python: Path | None = None
) -> dict[str, float]:
    """Return the scores of one job and of a pooled model, bytes of a silo, and seconds."""
    order = np.random.default_rng(seed).permutation(table.num_rows)
    test, train = table.take(order[: len(order) // 4]), table.take(order[len(order) // 4 :])
    budget: dict[str, Any] = {}
    if epsilon is not None:
        budget = {"epsilon": epsilon, "delta": train.num_rows**-1.1}
    task = TASKS.get(name, "binary")
    about: dict[str, Any] = {"label": "label", "task": task, "columns": domain(name, table)}
    form = {"structure": "cyclic"} if python else {}
    job = hedgerow.Job("private_boost", min_silos=3, seed=seed, **about, **budget, **form)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        found = hedgerow.simulate(job, train, SILOS, test=0.0, seed=seed, out=Path(out) / "run")
        model = xgboost.Booster(model_file=str(Path(out) / "run" / "model.ubj"))
    seconds = time.monotonic() - began
    y = np.asarray(test["label"])
    X = frame_of(test, model.feature_names or [], about["columns"]["levels"])
    predicted = model.predict(xgboost.DMatrix(X, enable_categorical=True))
    moved = sum(found.bytes["up"]) + sum(found.bytes["down"])
    if python:
        told = {**about["columns"], "epsilon": None, "delta": None, "seed": seed, **budget}
        other = interpret(python, train, test, told)
    else:
        other = pooled(name, train, test)
    scores = {"ours": score(name, y, predicted), "pooled": other}
    scores["error"] = float(((predicted > 0.5) != y).mean()) if name not in TASKS else np.nan
    return {**scores, "kB": moved / 1e3 / SILOS, "s": seconds}


def over_link(name: str, table: pa.Table, epsilon: float | None, link: Link) -> None:
    """Print the seconds of a job over slow lines, with exchanges of shares and without."""
    order = np.random.default_rng(0).permutation(table.num_rows)
    test, train = order[: len(order) // 4], order[len(order) // 4 :]
    about = domain(name, table)
    lines = [
        *(f"{key} = {json.dumps(value)}" for key, value in (
            ("name", name), ("strategy", "private_boost"), ("label", "label"), ("seed", 0),
            ("task", TASKS.get(name, "binary")), ("min_silos", 3),
        )),
        *(
            line
            for key, told in about.items()
            for line in (f"[columns.{key}]", *(f'"{k}" = {json.dumps(v)}' for k, v in told.items()))
        ),
        "[private_boost]",
    ]  # fmt: skip
    if epsilon is not None:
        lines += [f"epsilon = {epsilon}", f"delta = {len(train) ** -1.1}"]
    for recovery in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            for k in range(SILOS):
                own = table.take(train[k::SILOS])
                pq.write_table(own, Path(folder) / f"{silo_names(SILOS)[k]}.parquet")
            pq.write_table(table.take(test), Path(folder) / "test.parquet")
            text = "\n".join([*lines, f"dropout_recovery = {json.dumps(recovery)}\n"])
            samples = Samples()
            report, carried = federated(Path(folder), text, SILOS, link, samples)
        assert carried is not None
        kilobytes = sum(carried.values()) / 1e3 / SILOS
        batches = sum(one["seconds"] for one in report["rounds"])
        print(
            f"{name}{link}, dropout_recovery = {json.dumps(recovery)}: {report['seconds']:.1f} s, "
            f"of these {len(report['rounds'])} batches {batches:.1f} s; {kilobytes:.0f} kB a silo",
            flush=True,
        )


def main() -> None:
    """Print a line a set and budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", action="append", choices=list(RANGES))
    parser.add_argument("--epsilon", action="append", help="a number, or none")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--interpret", type=Path, help="a Python that has interpret-core")
    parser.add_argument("--quick", action="store_true", help="one set, one seed, 4,000 rows")
    parser.add_argument("--link", type=Link.of, metavar="RTT:MBIT")
    given = parser.parse_args()
    names = given.set or (["a9a"] if given.quick else list(RANGES))
    budgets = given.epsilon or (["1"] if given.quick else ["none", "1", "0.5", "0.1"])
    head = "set             epsilon  score         pooled          error  kB a silo  seconds"
    if not given.link:
        print(head, flush=True)
    for name in names:
        table = pq.read_table(given.data / f"{name}.parquet")
        table = table.slice(0, 4_000) if given.quick else table
        for told in budgets:
            epsilon = None if told == "none" else float(told)
            if given.link:
                over_link(name, table, epsilon, given.link)
                continue
            seeds = range(1 if given.quick else given.seeds)
            runs = [run(name, table, epsilon, s, given.interpret) for s in seeds]
            mean = {key: np.mean([one[key] for one in runs]) for key in runs[0]}
            spread = {key: np.std([one[key] for one in runs]) for key in runs[0]}
            print(
                f"{name:15} {told:>7}  {mean['ours']:.4f} ±{spread['ours']:.4f} "
                f"{mean['pooled']:.4f} ±{spread['pooled']:.4f} "
                f"{mean['error']:6.4f} {mean['kB']:9.0f} {mean['s']:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
