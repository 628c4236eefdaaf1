"""What a job of private_boost gives away: epsilon as an attacker measures it, and membership.

``python -m benchmarks.private_audit [--runs N] [--data DIR [--set NAME]] [--quick]``.

*A whole job.* An attacker knows all rows but one, of which it knows everything but whether it is in
the table: the row that changes the sums most. It sees the noisy sums of every batch, follows the
model that they make, and adds up the logarithms of the likelihood ratios. Noise so
wide is normal, and the mean score with the row is apart from that without it by a number of
deviations, whose epsilon at the job's delta is exact (Balle and Wang 2018; Nasr et al. 2023). The
distance less 2.6 of its standard errors gives a bound that holds with 99 %. Beside it the same job
with half of its noise, which has to be above epsilon: the exit code is 1 where a sound mechanism is
caught, or the broken one is not.

*Membership.* With ``--data``: models of a set's rows, and how well the loss tells rows that trained
from those that did not (Yeom et al. 2018): AUC, 0.5 is chance. ``private_boost`` at epsilon 1
beside histogram and bagging without a budget, on the same 4,000 rows of four silos: means over
seeds, within the interval of 95 % that chance has with so many rows (Mann and Whitney 1947).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

import hedgerow
from benchmarks.private_boost import RANGES, TASKS, domain
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.private_boost.mechanism import Mechanism
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.sums.answers import noisy
from hedgerow.crypto.masking.key_agreement import Entropy

CONFIDENCE = 0.99
EPSILON, DELTA = 1.0, 1e-5
MEMBERS = 4000
"""Rows that train a model whose members are told, and as many others."""
Scores = NDArray[np.float64]
SCHEMA = Schema(tuple(map(Feature, "abc")), "label", Task.BINARY, 2)


class Placed:
    """Rows as a job sees them: leaves by batch, and what rounds them, the same in every run."""

    def __init__(self, plan: Mechanism, rows: Dataset) -> None:
        codes = plan.domain.codes(rows.X)
        self.labels, self.keys = rows.labels, plan.keys(codes, rows.labels)
        self.leaves = [plan.leaves(batch, codes) for batch in range(plan.n_batches)]


def job_scores(
    plan: Mechanism, rows: Placed, one: Placed, present: bool, share: float, entropy: Entropy
) -> float:
    """Return the attacker's log likelihood ratio after a whole job.

    Parameters
    ----------
    one : Placed
        The row at stake.
    share : float
        Of the noise's deviation that is added.
    """
    margins, margin = plan.start_margins(len(rows.labels)), plan.start_margins(1)
    found = 0.0
    for batch, (leaves, leaf) in enumerate(zip(rows.leaves, one.leaves, strict=True)):
        without = plan.sums(batch, leaves, margins, rows.labels, rows.keys)
        change = plan.sums(batch, leaf, margin, one.labels, one.keys)
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

    def above(epsilon: float) -> float:
        a, b = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) - delta

    if above(0.0) <= 0.0:
        return 0.0
    most = distance**2 / 2 + distance * math.sqrt(2 * math.log(1 / delta))
    return float(brentq(above, 0.0, most))


def played(runs: int, share: float, entropy: Entropy = os.urandom) -> list[Scores]:
    """Return the scores of ``runs`` jobs without the row at stake, and with it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    plan = mechanism()
    rows = Placed(plan, Dataset(SCHEMA, X, (X[:, 0] > 0).astype(np.float64)))
    # Far from the others' labels, so that its gradient stays long.
    one = Placed(plan, Dataset(SCHEMA, np.array([[0.9, 0.0, 0.0]], np.float32), np.zeros(1)))
    return [
        np.array([job_scores(plan, rows, one, present, share, entropy) for _ in range(runs)])
        for present in (False, True)
    ]


def mechanism() -> Mechanism:
    """Return the job that is audited."""
    parameters = PrivateBoost(EPSILON, DELTA, trees=60, depth=3, secure=False)
    columns = ColumnRules(ranges=tuple((name, (-1.0, 1.0)) for name in "abc"))
    return Mechanism(
        parameters, JobParameters("audit", parameters, columns=columns, seed=1), SCHEMA, 1
    )


def charged_distance() -> float:
    """Return the distance of a row of the greatest length in every tree of the job."""
    plan = mechanism()
    square, _ = plan.sensitivities(plan.rule.trees_per_exchange)
    return math.sqrt(plan.n_batches * square / plan.variance)


def distance(scores: Sequence[Scores]) -> float:
    """Return how many deviations the scores with the row are apart from those without it."""
    without, present = scores
    spread = math.sqrt((without.var(ddof=1) + present.var(ddof=1)) / 2)
    return float((present.mean() - without.mean()) / spread)


def least_epsilon(scores: Sequence[Scores]) -> float:
    """Return a lower bound of epsilon, at :data:`CONFIDENCE`."""
    found, runs = distance(scores), len(scores[0])
    error = math.sqrt(2 / runs + found**2 / (4 * runs))
    return epsilon_of_distance(found - float(norm.ppf(CONFIDENCE)) * error, DELTA)


def losses(model: hedgerow.Model, table: pa.Table) -> tuple[Scores, Scores]:
    """Return the logistic loss of each row, and its probability of class 1."""
    p = model.predictions(model.margins(model.rows(table))).clip(1e-7, 1 - 1e-7)
    return -np.where(np.asarray(table["label"]) == 1, np.log(p), np.log(1 - p)), p


def membership(data: Path, name: str, seed: int) -> dict[str, tuple[float, float]]:
    """Return, by strategy, how well losses tell members, and the AUC on the other rows."""
    table = pq.read_table(data / f"{name}.parquet")
    order = np.random.default_rng(seed).permutation(table.num_rows)[: 2 * MEMBERS]
    inside, outside = table.take(order[:MEMBERS]), table.take(order[MEMBERS:])
    about: dict[str, Any] = {"label": "label", "task": "binary", "seed": seed, "min_silos": 3}
    columns = domain(name, table)
    jobs = {
        "private_boost": hedgerow.Job(
            "private_boost", columns=columns, epsilon=EPSILON, delta=MEMBERS**-1.1, **about
        ),
        "private_boost, no budget": hedgerow.Job("private_boost", columns=columns, **about),
        "histogram": hedgerow.Job("histogram", rounds=100, max_depth=6, eta=0.1, **about),
        "bagging": hedgerow.Job("bagging", rounds=50, max_depth=6, eta=0.1, **about),
    }
    found = {}
    for strategy, job in jobs.items():
        run = hedgerow.simulate(job, inside, 4, test=0.0, seed=seed)
        (lost, _), (others, predicted) = (losses(run.model, part) for part in (inside, outside))
        is_member = np.repeat([1, 0], [len(lost), len(others)])
        attack = roc_auc_score(is_member, -np.concatenate([lost, others]))
        found[strategy] = (
            float(attack), float(roc_auc_score(np.asarray(outside["label"]), predicted))
        )  # fmt: skip
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
    sound, broken = (least_epsilon(played(runs, share)) for share in (1.0, 0.5))
    print(f"whole job, {runs} runs on either table   epsilon stated   at least, 99 %", flush=True)
    print(f"as it is                                {EPSILON:10.2f} {sound:14.3f}")
    print(f"half of the noise                       {EPSILON:10.2f} {broken:14.3f}", flush=True)
    if given.data:
        scores = [membership(given.data, given.set, seed) for seed in range(seeds)]
        within = 1.96 * math.sqrt((2 * MEMBERS + 1) / (12 * MEMBERS**2) / seeds)
        print("released model             membership AUC  95 %     its AUC on other rows")
        for strategy in scores[0]:
            attack, auc = np.mean([one[strategy] for one in scores], axis=0)
            print(f"{strategy:26} {attack:14.4f} ±{within:.4f} {auc:23.4f}")
    if sound > EPSILON or (broken <= EPSILON and not given.quick):
        sys.exit(1)


if __name__ == "__main__":
    main()
