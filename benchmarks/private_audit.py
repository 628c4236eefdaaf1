"""What a job of private_boost gives away: epsilon as an attacker measures it, and membership.

``python -m benchmarks.private_audit [--runs N] [--data DIR [--set NAME]] [--quick]``.

*A whole job.* An attacker knows all rows but one, of which it knows everything but whether it is in
the table: the row that changes the sums most. It sees the noisy sums of every batch, follows the
model that they make, and adds up the logarithms of the likelihood ratios. By the threshold that
serves it best on one half of the runs, true and false alarms on the other half bound the trade-off
between both, which of so wide a noise is that of two normal distributions; their distance is an
epsilon at the job's delta (Balle and Wang 2018; Nasr et al. 2023). The bound holds with 99 %.
Beside it the same job with half of its noise, which has to be above epsilon: the exit code is 1
where a sound mechanism is caught, or the broken one is not.

*Membership.* With ``--data``: models of a set's rows, and how well the loss tells rows that trained
from those that did not (Yeom et al. 2018): AUC, 0.5 is chance. ``private_boost`` at epsilon 1
beside histogram and bagging without a budget, on the same 4,000 rows of four silos.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xgboost
from numpy.typing import NDArray
from scipy.stats import beta, norm
from sklearn.metrics import roc_auc_score

import hedgerow
from benchmarks.private_boost import RANGES, TASKS, domain, frame_of
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.private_boost.mechanism import Mechanism
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.sums.answers import noisy
from hedgerow.crypto.key_agreement import Entropy

CONFIDENCE = 0.99
EPSILON, DELTA = 1.0, 1e-5
SCHEMA = Schema(tuple(map(Feature, "abc")), "label", Task.BINARY, 2)


def job_scores(
    plan: Mechanism, rows: Dataset, one: Dataset, present: bool, share: float, entropy: Entropy
) -> float:
    """Return the attacker's log likelihood ratio after a whole job.

    Parameters
    ----------
    one : Dataset
        The row at stake.
    share : float
        Of the noise's deviation that is added.
    """
    codes, own = plan.domain.codes(rows.X), plan.domain.codes(one.X)
    margins, margin = plan.start_margins(rows.n_samples), plan.start_margins(1)
    found = 0.0
    for batch in range(plan.n_batches):
        leaves, leaf = plan.leaves(batch, codes), plan.leaves(batch, own)
        without = plan.sums(leaves, margins, rows.labels)
        change = plan.sums(leaf, margin, one.labels)
        cost = replace(plan.cost(batch), variance=round(plan.variance * share**2))
        seen = noisy(without + change * present, cost, honest=1, entropy=entropy)
        noise = (seen - without).astype(np.float64)
        found += float((noise**2 - (noise - change) ** 2).sum()) / (2 * cost.variance)
        values = plan.leaf_values(batch, plan.read(batch, seen), 1)
        plan.add(batch, leaves, margins, values)
        plan.add(batch, leaf, margin, values)
    return found


def epsilon_of_distance(distance: float, delta: float) -> float:
    """Return the epsilon at ``delta`` of two normal distributions at a distance of deviations."""
    if distance <= 0.0:
        return 0.0
    low, high = 0.0, 1.0

    def exceeds(epsilon: float) -> bool:
        a, b = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) > delta

    while exceeds(high):
        high *= 2
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def distance(trues: int, falses: int, n: int) -> float:
    """Return a lower bound of the distance from true and false alarms of ``n`` runs each."""
    wrong = (1 - CONFIDENCE) / 2
    least = float(beta.ppf(wrong, trues, n - trues + 1)) if trues else 0.0
    most = float(beta.ppf(1 - wrong, falses + 1, n - falses)) if falses < n else 1.0
    if least == 0.0 or most == 1.0:
        return 0.0
    return max(0.0, float(norm.ppf(least) - norm.ppf(most)))


def audit(runs: int, share: float, entropy: Entropy = os.urandom) -> float:
    """Return a lower bound of a whole job's epsilon, from ``runs`` jobs on either table."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    rows = Dataset(SCHEMA, X, (X[:, 0] > 0).astype(np.float64))
    # Far from the others' labels, so that its gradient stays long.
    one = Dataset(SCHEMA, np.array([[0.9, 0.0, 0.0]], np.float32), np.zeros(1))
    parameters = PrivateBoost(EPSILON, DELTA, trees=60, depth=3, secure=False)
    columns = ColumnRules(ranges=tuple((name, (-1.0, 1.0)) for name in "abc"))
    job = JobParameters("audit", parameters, columns=columns, seed=1)
    plan = Mechanism(parameters, job, SCHEMA, 1)
    scores = [
        np.array([job_scores(plan, rows, one, present, share, entropy) for _ in range(runs)])
        for present in (False, True)
    ]
    half = runs // 2
    steps = np.unique(np.concatenate(scores))

    def alarms(threshold: float, part: slice) -> tuple[int, int]:
        return int((scores[1][part] >= threshold).sum()), int((scores[0][part] >= threshold).sum())

    best = max(steps.tolist(), key=lambda t: distance(*alarms(t, slice(half)), half))
    return epsilon_of_distance(distance(*alarms(best, slice(half, None)), runs - half), DELTA)


def losses(model: xgboost.Booster, frame: Any, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logistic loss of each row."""
    p = model.predict(xgboost.DMatrix(frame, enable_categorical=True)).clip(1e-7, 1 - 1e-7)
    return np.asarray(-np.where(y == 1, np.log(p), np.log(1 - p)))


def membership(data: Path, name: str, seed: int) -> dict[str, tuple[float, float]]:
    """Return, by strategy, how well losses tell members, and the AUC on the other rows."""
    table = pq.read_table(data / f"{name}.parquet")
    order = np.random.default_rng(seed).permutation(table.num_rows)[:8000]
    inside, outside = table.take(order[:4000]), table.take(order[4000:])
    about: dict[str, Any] = {"label": "label", "task": "binary", "seed": seed, "min_silos": 3}
    columns = domain(name, table)
    jobs = {
        "private_boost": hedgerow.Job(
            "private_boost", columns=columns, epsilon=EPSILON, delta=4000**-1.1, **about
        ),
        "private_boost, no budget": hedgerow.Job("private_boost", columns=columns, **about),
        "histogram": hedgerow.Job("histogram", rounds=100, max_depth=6, eta=0.1, **about),
        "bagging": hedgerow.Job("bagging", rounds=50, max_depth=6, eta=0.1, **about),
    }
    found = {}
    for strategy, job in jobs.items():
        run = hedgerow.simulate(job, inside, 4, test=0.0, seed=seed)
        model = run.model.to_xgboost()
        levels = columns["levels"]
        frames = [frame_of(part, model.feature_names or [], levels) for part in (inside, outside)]
        y = [np.asarray(part["label"], np.float64) for part in (inside, outside)]
        lost = [losses(model, *pair) for pair in zip(frames, y, strict=True)]
        is_member = np.repeat([1, 0], [len(own) for own in lost])
        attack = roc_auc_score(is_member, -np.concatenate(lost))
        predicted = model.predict(xgboost.DMatrix(frames[1], enable_categorical=True))
        found[strategy] = (float(attack), float(roc_auc_score(y[1], predicted)))
    return found


def main() -> None:
    """Print a table of each; exit code 1 where the audit of a whole job is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="jobs on either table")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", choices=sorted(RANGES.keys() - TASKS), default="adult")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="100 jobs, one seed")
    given = parser.parse_args()
    runs, seeds = (100, 1) if given.quick else (given.runs, given.seeds)
    sound, broken = audit(runs, 1.0), audit(runs, 0.5)
    print(f"whole job, {runs} runs on either table   epsilon stated   at least, 99 %", flush=True)
    print(f"as it is                                {EPSILON:10.2f} {sound:14.3f}")
    print(f"half of the noise                       {EPSILON:10.2f} {broken:14.3f}", flush=True)
    if given.data:
        scores = [membership(given.data, given.set, seed) for seed in range(seeds)]
        print("released model             membership AUC     its AUC on other rows")
        for strategy in scores[0]:
            attack, auc = np.mean([one[strategy] for one in scores], axis=0)
            print(f"{strategy:26} {attack:14.4f} {auc:25.4f}")
    if sound > EPSILON or (broken <= EPSILON and not given.quick):
        sys.exit(1)


if __name__ == "__main__":
    main()
