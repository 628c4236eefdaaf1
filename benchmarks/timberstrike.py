"""TimberStrike on bagging's trees: how much of a silo's table its shared trees give away.

``python -m benchmarks.timberstrike [--data DIR] [--sets NAME ...] [--rounds 1,5,20] [--json FILE]``

Di Gennaro, De Lucia, Longari, Zanero and Carminati, *TimberStrike: Dataset reconstruction attack
revealing privacy leakage in federated tree-based systems*, arXiv:2506.07605. Three silos train by
``hedgerow local``; the adversary reads the shared model, knows the job, the silos' numbers of rows
(the coordinator does) and the rows of one other silo. Its target is the first silo.

1. The first tree: each row has the gradient p - y and the hessian p (1 - p) of the base score p, so
   that a leaf's cover and value are its number of rows and of positives. **Without covers** the
   value alone, w = -rate G / (H + lambda), is that of few pairs of whole numbers: they are listed,
   and a choice over all leaves is made that adds up to the silo's rows.
2. Each later tree: rows of the leaves are assigned to its leaves, where their intervals meet, so
   that hessians and gradients add up to cover and value (a linear program); without covers there is
   one equation a leaf instead of two. Intervals become narrower with each tree.
3. A row is guessed as the adversary's nearest own row of the label, moved into the intervals.

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
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.special import expit, logit

import hedgerow

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SILOS = ("north", "south", "west")
ETA, LAMBDA = 0.3, 1.0


@dataclass(frozen=True)
class Leaves:
    """The leaves of a tree.

    Parameters
    ----------
    low, high : ndarray of shape (n_leaves, n_features)
        ``low <= x < high``.
    value : ndarray of shape (n_leaves,)
    cover : ndarray of shape (n_leaves,) or None
        Sums of hessians, where the tree has them.
    """

    low: Floats
    high: Floats
    value: Floats
    cover: Floats | None

    @classmethod
    def read(cls, tree: dict[str, list[float]], n_features: int, *, covers: bool) -> Leaves:
        """Return the leaves of a tree of XGBoost's JSON."""
        found: list[tuple[Floats, Floats, float, float]] = []
        low, high = np.full(n_features, -np.inf), np.full(n_features, np.inf)
        open_nodes = [(0, low, high)]
        while open_nodes:
            node, low, high = open_nodes.pop()
            left, right = int(tree["left_children"][node]), int(tree["right_children"][node])
            if left < 0:
                found.append((low, high, tree["split_conditions"][node], tree["sum_hessian"][node]))
                continue
            feature = int(tree["split_indices"][node])
            cut = float(np.float32(tree["split_conditions"][node]))
            below, above = high.copy(), low.copy()
            below[feature], above[feature] = min(high[feature], cut), max(low[feature], cut)
            open_nodes += [(left, low, below), (right, above, high)]
        lows, highs, values, sums = zip(*found, strict=True)
        return cls(
            np.array(lows), np.array(highs), np.array(values), np.array(sums) if covers else None
        )

    def of(self, X: Floats) -> Integers:
        """Return the leaf of each row."""
        inside = (self.low <= X[:, None]) & (X[:, None] < self.high)
        return np.argmax(inside.all(axis=2), axis=1)

    def meeting(self, low: Floats, high: Floats) -> NDArray[np.bool_]:
        """Return which leaves the boxes of rows meet, shape (n_rows, n_leaves)."""
        meets = (np.maximum(self.low, low[:, None]) < np.minimum(self.high, high[:, None])).all(2)
        return np.asarray(meets)


def count(leaves: Leaves, p: float, rate: float, n_rows: int) -> list[tuple[int, int]]:
    """Return rows and positives of each leaf of a first tree, as far as they can be told."""
    n, positive = (part.ravel() for part in np.mgrid[1 : n_rows + 1, 0 : n_rows + 1])
    n, positive = n[positive <= n], positive[positive <= n]
    value = (rate * (positive - n * p) / (n * p * (1 - p) + LAMBDA)).astype(np.float32)
    close = np.abs(value[None] - leaves.value[:, None]) <= 2e-6 * np.abs(leaves.value[:, None])
    if leaves.cover is not None:
        close &= np.abs(n * p * (1 - p) - leaves.cover[:, None]) < 1e-3 * leaves.cover[:, None]
    options = [sorted({(int(n[k]), int(positive[k])) for k in np.flatnonzero(c)}) for c in close]
    # By numbers of rows that are reached: the choices that reach them.
    reached: dict[int, list[tuple[int, int]]] = {0: []}
    for pairs in options:
        further: dict[int, list[tuple[int, int]]] = {}
        for total, chosen in reached.items():
            for pair in pairs or [(0, 0)]:
                if total + pair[0] <= n_rows:
                    further.setdefault(total + pair[0], [*chosen, pair])
        reached = further
    nearest = min(reached, key=lambda total: abs(total - n_rows))
    return reached[nearest]


def assign(leaves: Leaves, meets: NDArray[np.bool_], g: Floats, h: Floats, rate: float) -> Integers:
    """Return the leaf of each row that makes the leaves' sums right, as nearly as can be."""
    rows, cols = np.nonzero(meets)
    n_leaves, n_vars = leaves.value.shape[0], rows.shape[0]
    ratio = leaves.value / rate
    if leaves.cover is not None:
        weights = [h[rows], g[rows]]
        sums = [leaves.cover, -ratio * (leaves.cover + LAMBDA)]
    else:
        weights, sums = [g[rows] + ratio[cols] * h[rows]], [-ratio * LAMBDA]
    n_sums = len(sums) * n_leaves
    sides = np.zeros((n_sums, n_vars + 2 * n_sums))
    for k, weight in enumerate(weights):
        sides[k * n_leaves + cols, np.arange(n_vars)] = weight
    sides[:, n_vars : n_vars + n_sums] = np.eye(n_sums)
    sides[:, n_vars + n_sums :] = -np.eye(n_sums)
    once = np.zeros((meets.shape[0], n_vars + 2 * n_sums))
    once[rows, np.arange(n_vars)] = 1.0
    some = once.any(axis=1)
    cost = np.r_[np.zeros(n_vars), np.ones(2 * n_sums)]
    found = linprog(
        cost,
        A_eq=np.r_[sides, once[some]],
        b_eq=np.r_[np.concatenate(sums), np.ones(int(some.sum()))],
    )
    share = np.full(meets.shape, -1.0)
    if found.x is not None:
        share[rows, cols] = found.x[:n_vars]
    return np.where(some & (found.x is not None), share.argmax(axis=1), -1)


def guessed(low: Floats, high: Floats, label: Floats, own: Floats, own_label: Floats) -> Floats:
    """Return for each box a row of the adversary's, of the box's label, moved into the box.

    Each is the nearest one that is left; a feature outside its interval becomes the interval's
    middle, within the adversary's range.
    """
    scale = np.where(own.std(axis=0) > 0, own.std(axis=0), 1.0)
    out = np.empty_like(low)
    for y in (0.0, 1.0):
        boxes = np.flatnonzero(label == y)
        donors = np.flatnonzero(own_label == y)
        if not boxes.shape[0]:
            continue
        donors = np.resize(donors if donors.shape[0] else np.arange(own.shape[0]), boxes.shape[0])
        rows = own[donors][:, None]
        outside = np.maximum(low[boxes] - rows, 0) + np.maximum(rows - high[boxes], 0)
        chosen, box = linear_sum_assignment((outside / scale).sum(axis=2))
        out[boxes[box]] = own[donors[chosen]]
    least, most = np.maximum(low, own.min(axis=0)), np.minimum(high, own.max(axis=0))
    inside = (low <= out) & (out < high)
    beyond = np.where(np.isinf(low), most, least)
    both = np.isfinite(low) & np.isfinite(high)
    between = np.where(both, (np.where(both, low, 0.0) + np.where(both, high, 0.0)) / 2, beyond)
    return np.where(inside, out, between)


def reconstruct(
    trees: list[Leaves], own: Floats, own_label: Floats, p: float, rate: float, n_rows: int
) -> tuple[list[tuple[int, int]], Floats, Floats]:
    """Return the first tree's counts, and guessed rows and labels, from all silos' trees."""
    mine = trees[:: len(SILOS)]
    counts = count(mine[0], p, rate, n_rows)
    leaf = np.repeat(np.arange(len(counts)), [n for n, _ in counts])
    y = np.concatenate([np.repeat([1.0, 0.0], [pos, n - pos]) for n, pos in counts])
    low, high = mine[0].low[leaf], mine[0].high[leaf]
    margin = np.full(y.shape[0], logit(p))
    for t in range(1, len(mine)):
        guess = guessed(low, high, y, own, own_label)
        margin += mine[t - 1].value[leaf]
        for other in trees[(t - 1) * len(SILOS) + 1 : t * len(SILOS)]:
            margin += other.value[other.of(guess)]
        q = expit(margin)
        leaf = assign(mine[t], mine[t].meeting(low, high), q - y, q * (1 - q), rate)
        placed = leaf >= 0
        low[placed] = np.maximum(low[placed], mine[t].low[leaf[placed]])
        high[placed] = np.minimum(high[placed], mine[t].high[leaf[placed]])
        leaf = np.where(placed, leaf, mine[t].of(guess))
    return counts, guessed(low, high, y, own, own_label), y


def best_case(mine: list[Leaves], X: Floats, y: Floats, own: Floats, own_label: Floats) -> Floats:
    """Return the rows that are guessed where each row's leaf in each tree is known."""
    low, high = np.full(X.shape, -np.inf), np.full(X.shape, np.inf)
    for tree in mine:
        leaf = tree.of(X)
        low, high = np.maximum(low, tree.low[leaf]), np.minimum(high, tree.high[leaf])
    return guessed(low, high, y, own, own_label)


def score(guess: Floats, label: Floats, X: Floats, y: Floats) -> dict[str, float]:
    """Return how near guessed rows are to the true ones of the same label, in pairs."""
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    apart = np.abs(X[:, None] - guess) / scale
    pairs = linear_sum_assignment(np.minimum(apart, 1.0).mean(axis=2) + 2.0 * (y[:, None] != label))
    near = apart[pairs]
    missed = X.shape[0] - near.shape[0]
    near = np.r_[near, np.full((missed, X.shape[1]), np.inf)]
    return {
        "features_0.1": float((near <= 0.1).mean()),
        "features_0.3": float((near <= 0.3).mean()),
        "rows_half": float(((near <= 0.1).mean(axis=1) >= 0.5).mean()),
    }


def train(tables: list[pa.Table], rounds: int, scrub: str) -> tuple[list[dict], float]:  # type: ignore[type-arg]
    """Return the shared model's trees, in XGBoost's JSON, and its base score."""
    job = hedgerow.Job(
        "bagging", label="label", rounds=rounds, scrub=scrub, evaluate="none", min_silos=3,
        eta=ETA, **{"lambda": LAMBDA}, max_depth=6, leaf_bound=0,
    )  # fmt: skip
    run = hedgerow.local(job, dict(zip(SILOS, tables, strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        run.model.to_xgboost().save_model(file)
        learner = json.loads(file.read_text())["learner"]
    (base,) = np.atleast_1d(json.loads(learner["learner_model_param"]["base_score"]))
    return learner["gradient_booster"]["model"]["trees"], float(base)


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
                counts, guess, label = reconstruct(
                    leaves[: n * len(SILOS)], X[own], y[own], p, rate, target.shape[0]
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
