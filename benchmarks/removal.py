"""A row goes: the later rounds again beside the whole training, on Adult, five silos, 100 trees.

``python -m benchmarks.removal [--quick] [--json FILE]``. For each share of rows that a tree is
grown on (``sampling = "uniform"`` without ``reweight``, cut points and start score given, without
masks) five random rows of one silo go, ``--draws`` times. ``kept``: rounds before any of them was
drawn, the mean over the draws; ``time``: CPU seconds of training again from there, over those of
the whole training without the rows; ``equal``: whether both models have the same bytes. In the
first draw both are trained; the other draws give the mean of ``kept`` alone.

``--contributions``: seconds of leave-one-out and Shapley values of a bagging run of 100 rounds over
those of the training.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hedgerow
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.operator.library.audit.contribution import contributions
from hedgerow.coordinator.operator.library.audit.subject import opened
from hedgerow.coordinator.operator.library.jobs import Job, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.running import Run

ADULT = Path(__file__).parent.parent / "examples/data/adult.parquet"
SILOS, GONE, ROUNDS = 5, 5, 100
RATES = (1.0, 0.1, 0.02, 0.01, 0.005, 0.002)
Row = dict[str, Any]


def cut_points(table: pa.Table) -> list[str]:
    """Return cut points at the 32 quantiles of each numeric column."""
    found = []
    for name in table.column_names:
        if name != "label" and not pa.types.is_dictionary(kind := table.schema.field(name).type) \
                and not pa.types.is_string(kind):  # fmt: skip
            values = np.unique(np.nanquantile(table[name].to_numpy(), np.arange(1, 32) / 32))
            found.append(f"{name}: " + " ".join(f"{v:.7g}" for v in values))
    return found


def trained(job: Job, parts: dict[str, pa.Table], out: Path, **given: Any) -> tuple[Run, float]:
    """Return a run, and the CPU seconds that its training took."""
    job = job.on(parts, has_test=False)
    own = {name: table_of(job.parameters, name, part) for name, part in parts.items()}
    began = time.process_time()
    result = federate(job, own, Conditions(crypto=False, **given), None, {})
    spent = time.process_time() - began
    result.write(out)
    return Run(out), spent


def removals(n_draws: int, quick: bool) -> list[Row]:
    """Return what is kept, and the time that it saves, by share of drawn rows."""
    table = pq.read_table(ADULT)
    parts = hedgerow.split(table, SILOS, test=0.2, seed=1)
    test = parts.pop("test")
    rounds = 10 if quick else ROUNDS
    found = []
    for rate in RATES[:2] if quick else RATES:
        drawn = {"sampling": "uniform", "sampling_rate": rate, "reweight": False}
        if rate == 1:
            drawn = {}
        job = Job("histogram", rounds=rounds, min_silos=3, base_score=0.25, binning="given",
                  cut_points=cut_points(table), max_depth=6, eta=0.1, seed=7, **drawn)  # fmt: skip
        of = job.on(parts, has_test=False).parameters
        names = tuple(map(Silo, sorted(parts)))
        n = len(parts["silo-0"])
        own = of.strategy.first_rounds(of.parameters, of, names, names[0], of.seed, n)
        rng = np.random.default_rng(3)
        kept = [int(own[rng.choice(n, GONE, replace=False)].min()) for _ in range(n_draws)]
        first = int(own[-GONE:].min())  # rows that stand last, so that the others keep their places
        less = {**parts, "silo-0": parts["silo-0"].slice(0, n - GONE)}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run, _ = trained(job, parts, folder / "run")
            whole, all_seconds = trained(job, less, folder / "whole")
            raw = (run.folder / "model.ubj").read_bytes()
            last = min(first, rounds - 1)  # rows in no tree: one round again, to measure something
            again, seconds = trained(run.retraining(first=last + 1), less, folder / "again",
                                     **({"starting_model": raw} if last else {}))  # fmt: skip
            same = (again.folder / "model.ubj").read_bytes() == (
                whole.folder / "model.ubj"
            ).read_bytes()
            auc = run.model.score(test, "auc")
        share = float(np.mean(kept)) / rounds
        found.append({"rate": rate, "test auc": auc, "kept": float(np.mean(kept)),
                      "expected time": 1 - share, "kept here": last, "time": seconds / all_seconds,
                      "seconds": all_seconds, "equal": same})  # fmt: skip
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in found[-1].items()), flush=True)  # fmt: skip
    return found


def contribution(quick: bool) -> list[Row]:
    """Return what contributions cost beside one training."""
    parts = hedgerow.split(ADULT, SILOS, test=0.2, seed=1)
    test = parts.pop("test")
    job = Job("bagging", rounds=10 if quick else ROUNDS, min_silos=3, max_depth=6, eta=0.1)
    with tempfile.TemporaryDirectory() as name:
        run, seconds = trained(job, parts, Path(name) / "run")
        began = time.process_time()
        found = contributions(opened(run.folder, parts, test))
        spent = time.process_time() - began
    row = {"training": seconds, "contributions": spent, "ratio": spent / seconds,
           "silos": len(found)}  # fmt: skip
    print(row)
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contributions", action="store_true")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    quick = arguments.quick
    rows = contribution(quick) if arguments.contributions else removals(arguments.draws, quick)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
