"""TimberStrike on bagging's trees: how much of a silo's table its shared trees give away.

``python -m benchmarks.timberstrike [--data DIR] [--sets NAME ...] [--rounds 1,5,20] [--json FILE]``

Di Gennaro, De Lucia, Longari, Zanero and Carminati, *TimberStrike: Dataset reconstruction attack
revealing privacy leakage in federated tree-based systems*, arXiv:2506.07605. Three silos train by
``hedgerow local``; the adversary reads the shared model, knows the job, the silos' numbers of rows
(the coordinator does) and the rows of one other silo. Its target is the first silo.

The method is :mod:`hedgerow.coordinator.operator.library.audit.reconstruction`.

Guessed rows are paired with true ones at the least distance. ``features_0.1`` and ``features_0.3``
are the share of all features of all rows within 0.1 and 0.3 standard deviations, ``rows_half`` that
of the rows of which half of the features are within 0.1. ``counts`` is the share of leaves of the
first tree whose rows and positives are found exactly. Variant ``own rows`` is what the adversary
has without any tree: rows of its own, paired in the same way; ``all leaves known`` is what the
thresholds give an adversary that makes no mistake in step 2.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import hedgerow
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.coordinator.operator.library.audit.reconstruction import (
    Adversary,
    Leaves,
    best_case,
    reconstruct,
    score,
)

Floats = NDArray[np.float64]
SILOS = ("north", "south", "west")
ETA, LAMBDA = 0.3, 1.0


def train(tables: list[pa.Table], rounds: int, scrub: str) -> tuple[tuple[Tree, ...], float]:
    """Return the shared model's trees, and its base score."""
    job = hedgerow.Job(
        "bagging", label="label", rounds=rounds, scrub=scrub, evaluate="none", min_silos=3,
        eta=ETA, **{"lambda": LAMBDA}, max_depth=6, leaf_bound=0,
    )  # fmt: skip
    run = hedgerow.local(job, dict(zip(SILOS, tables, strict=True)))
    model = run.model.ensemble
    return model.trees, model.about.base_score[0]


def medical(name: str, folder: Path | None, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return features and label of a table of the sets."""
    if name == "breast_cancer":
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
    else:
        assert folder is not None, f"{name} needs --data"
        table = pq.read_table(folder / f"{name}.parquet")
        names = [n for n in table.column_names if n[0] != "_" and n != "label"]
        X = np.stack([table[n].to_numpy().astype(float) for n in names], axis=1)
        y = table["label"].to_numpy().astype(float)
        # As many of both classes, and a silo of two hundred rows: a ward, not a country.
        drawn = np.r_[
            rng.choice(np.flatnonzero(y == 1), 300, False),
            rng.choice(np.flatnonzero(y == 0), 300, False),
        ]
        X, y = X[drawn], y[drawn]
    order = rng.permutation(y.shape[0])
    return X[order].astype(np.float32).astype(float), y[order].astype(float)


def main() -> None:
    """Run the attack and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the tables' Parquet files")
    parser.add_argument("--sets", nargs="+", default=["breast_cancer", "lumpy_skin"])
    parser.add_argument("--rounds", default="1,5,20")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = [int(r) for r in options.rounds.split(",")]
    rows = []
    for name in options.sets:
        rng = np.random.default_rng(7)
        X, y = medical(name, options.data, rng)
        parts = np.array_split(np.arange(y.shape[0]), len(SILOS))
        tables = [
            pa.table({f"x{k}": X[p, k].astype(np.float32) for k in range(X.shape[1])})
            .append_column("label", pa.array(y[p].astype(np.int64)))
            for p in parts
        ]  # fmt: skip
        target, own = parts[0], parts[1]
        drawn = rng.choice(own, target.shape[0])
        found = [(0, "own rows", np.nan, score(X[drawn], y[drawn], X[target], y[target]))]
        for scrub in ("none", "stats"):
            trees, p = train(tables, max(rounds), scrub)
            leaves = [Leaves.read(t, X.shape[1], covers=scrub == "none") for t in trees]
            rate = ETA * target.shape[0] / y.shape[0]
            at = leaves[0].of(X[target])
            true = [
                (int((at == leaf).sum()), int(y[target][at == leaf].sum()))
                for leaf in range(leaves[0].value.shape[0])
            ]
            for n in rounds:
                by_round = [leaves[t * len(SILOS) : (t + 1) * len(SILOS)] for t in range(n)]
                counts, guess, label = reconstruct(
                    by_round, 0, Adversary(X[own], y[own], p, rate, target.shape[0], LAMBDA)
                )
                exact = float(np.mean([a == b for a, b in zip(counts, true, strict=True)]))
                scores = score(guess, label, X[target], y[target])
                found.append((n, f'scrub = "{scrub}"', exact, scores))
                if scrub == "stats":
                    mine = leaves[: n * len(SILOS) : len(SILOS)]
                    guess = best_case(mine, X[target], y[target], X[own], y[own])
                    scores = score(guess, y[target], X[target], y[target])
                    found.append((n, "all leaves known", np.nan, scores))
        for n, variant, exact, scores in found:
            row = {"set": name, "rows": target.shape[0], "features": X.shape[1], "rounds": n,
                   "variant": variant, "counts": exact} | scores  # fmt: skip
            rows.append(row)
            shown = "  ".join(f"{k} {row[k]:6.3f}" for k in ("counts", *scores))
            print(f"{name:14} {target.shape[0]:4} x {X.shape[1]:2}  rounds {n:3}  "
                  f"{variant:16} {shown}", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
