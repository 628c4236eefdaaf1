"""The audit: what it costs, and which option lowers which attack at what cost in accuracy.

``python -m benchmarks.audit [--options] [--quick] [--json FILE]``. Without ``--options`` Adult is
dealt to five silos, ``examples/adult-bagging.toml`` is run and audited with all tables and by two
columns; ``cpu_seconds`` are of the audit alone, its page included.

``--options`` audits jobs that differ in one option each, on five silos of 600 rows of Adult, on
which models know rows by heart. ``membership``: the mean over the silos of each attack's AUC, of
the loss threshold, the likelihood ratio and a silo's own trees, with half the spread of the silos;
``within 0.1``: share of numeric features that are guessed from a silo's trees where every leaf is
known, less that without a tree; ``test auc``: what it costs. ``alone`` is the same attack on models
of one silo alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import hedgerow
from benchmarks.private_boost import domain
from hedgerow.coordinator.operator.library.audit import audit

EXAMPLES = Path(__file__).parent.parent / "examples"
ADULT = EXAMPLES / "data/adult.parquet"
SILOS = 5
BOOSTER: dict[str, Any] = {"max_depth": 6, "eta": 0.3}
Row = dict[str, Any]

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "bagging": ("bagging", {"rounds": 20}),
    'scrub = "none"': ("bagging", {"rounds": 20, "scrub": "none"}),
    "rounds = 5": ("bagging", {"rounds": 5}),
    "rounds = 60": ("bagging", {"rounds": 60}),
    "max_depth = 3": ("bagging", {"rounds": 20, "max_depth": 3}),
    "max_depth = 10": ("bagging", {"rounds": 20, "max_depth": 10}),
    "min_child_weight = 10": ("bagging", {"rounds": 20, "min_child_weight": 10}),
    "subsample = 0.5": ("bagging", {"rounds": 20, "subsample": 0.5}),
    "histogram": ("histogram", {"rounds": 20}),
    "histogram, rounds = 60": ("histogram", {"rounds": 60}),
    "histogram, coarse_bits = 4": ("histogram", {"rounds": 20, "coarse_bits": 4}),
    "private_boost, epsilon = 8": ("private_boost", {"epsilon": 8.0, "delta": 1e-4}),
    "private_boost, epsilon = 1": ("private_boost", {"epsilon": 1.0, "delta": 1e-4}),
}
ATTACKS = {
    "loss": "membership: loss threshold",
    "ratio": "membership: likelihood ratio",
    "own trees": "membership: own trees",
    "alone": "membership: likelihood ratio, model of the silo alone",
}


def job(strategy: str, settings: dict[str, Any]) -> hedgerow.Job:
    own = BOOSTER
    if strategy == "private_boost":  # which takes the domain of each feature from the job
        own = domain("adult", pq.read_table(ADULT))
    return hedgerow.Job(strategy, min_silos=3, metrics=["auc"], **{**own, **settings})


def cost(quick: bool) -> list[Row]:
    """Return what the audit of the example's run takes."""
    parts = hedgerow.split(ADULT, SILOS, test=0.2, seed=1)
    if quick:
        parts = {name: table.slice(0, 800) for name, table in parts.items()}
    test = parts.pop("test")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        of = hedgerow.Job.load(EXAMPLES / "adult-bagging.toml")
        run = hedgerow.local(of, parts, test, out=folder, quiet=True)
        began, cpu = time.perf_counter(), time.process_time()
        found = run.audit(parts, test, group=["sex", "race"])
        run.report(folder / "audit.html")
        spent = {"cpu_seconds": time.process_time() - cpu,
                 "seconds": time.perf_counter() - began}  # fmt: skip
    ends = {
        name: [one["measures"]["auc"]["value"] for one in found["attacks"] if one["attack"] == key]
        for name, key in ATTACKS.items()
    }
    shown = {f"{name} auc": f"{min(v):.3f} to {max(v):.3f}" for name, v in ends.items()}
    return [{"rows": sum(len(t) for t in parts.values()), **spent, **shown}]


def options(quick: bool) -> list[Row]:
    """Return what attacks reach against each job."""
    whole = hedgerow.split(ADULT, 1, test=0.4, seed=3)
    silo, outside = (whole[name] for name in ("silo-0", "test"))
    n = 200 if quick else 600
    parts = {f"silo-{k}": silo.slice(k * n, n) for k in range(SILOS)}
    test = outside.slice(0, 1_000 if quick else 6_000)
    found = []
    for name, (strategy, settings) in list(JOBS.items())[: 2 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            run = hedgerow.local(job(strategy, settings), parts, test, quiet=True,
                                 out=Path(folder) / "run")  # fmt: skip
            attacks = audit(run.folder, parts, test)["attacks"]
            row: Row = {"job": name, "test auc": run.model.score(test, "auc")}
        for short, attack in ATTACKS.items():
            of = [one["measures"]["auc"]["value"] for one in attacks
                  if one["attack"] == attack and one["measures"]]  # fmt: skip
            row[short] = sum(of) / len(of) if of else None
            row[f"{short} ±"] = (max(of) - min(of)) / 2 if of else None
        near = {
            end: [one["measures"]["within 0.1"]["value"] for one in attacks
                  if one["attack"] == f"reconstruction: {end}"]
            for end in ("own rows, no tree", "every leaf known")
        }  # fmt: skip
        own, best = near.values()
        row["within 0.1"] = (sum(best) - sum(own)) / len(own) if own else None
        found.append(row)
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v or "–") for v in row.values()]
        print("| " + " | ".join(cells) + " |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--options", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a category of a held-out row that no silo has
    rows = (options if arguments.options else cost)(arguments.quick)
    for row in rows if not arguments.options else ():
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in row.items()))  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
