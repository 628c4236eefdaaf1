"""What each silo's trees add to a bagging model's score, from the stored trees alone.

A coalition's model is that of its silos' trees, at the rates that bagging gives them without the
others; no training is repeated, and later trees were grown beside those that are left out.

- **leave one out**: the score of all less that of all others.
- **Shapley**: what a silo adds to those before it, as a mean over the orders in which silos may
  come: all orders of up to five silos, else :data:`ORDERS` drawn ones and their reverses.
- **loss of all rows**: by how much its trees of the later half of the rounds lower the mean loss
  over the training rows of all silos, each where it was grown, from the model's covers and weights.
  With wrong labels or scaled trees it is below 0, and far below that of others.

Positive is better, also of errors. Intervals are of bootstrap samples of rows, and of orders
where those are drawn; the last one's over rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.engine.objective import max_delta_step_of
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import ADAPTIVE
from hedgerow.boosting.strategies.bagging.covers import falls
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.bagging.participation import factors
from hedgerow.coordinator.operator.library.audit.membership import Estimate
from hedgerow.coordinator.operator.library.audit.subject import Audited, AuditRefused

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Coalition = frozenset[int]
MOST_ROWS = 5_000
ORDERS = 20
_EVALUATIONS = 4_000
"""Scores of bootstrap samples, about."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a silo adds to the score of ``metric``; ``note`` says why nothing was measured."""

    silo: str
    metric: str
    measures: dict[str, Estimate]
    note: str = ""


def contributions(run: Audited) -> list[Contribution]:
    """Return what each silo of the run adds, on the test rows."""
    try:
        names, worth, metric, n_rows = _scored(run)
    except AuditRefused as why:
        return [Contribution("", "", {}, str(why))]
    rng = np.random.default_rng(run.seed)
    n = len(names)
    drawn = [tuple(rng.permutation(n).tolist()) for _ in range(ORDERS)]
    orders = (
        list(itertools.permutations(range(n)))
        if n <= 5
        else [one for order in drawn for one in (order, order[::-1])]
    )
    every = np.arange(n_rows)
    at = _measures(n, orders, lambda silos: worth(silos, every))
    n_coalitions = len({frozenset(order[:k]) for order in orders for k in range(n + 1)})
    samples = []
    for _ in range(min(100, max(20, _EVALUATIONS // n_coalitions))):
        rows = rng.choice(every, min(n_rows, MOST_ROWS))
        some = orders if n <= 5 else [orders[k] for k in rng.choice(len(orders), len(orders))]
        samples.append(_measures(n, some, lambda silos, rows=rows: worth(silos, rows)))  # type: ignore[misc]
    # A sample of fewer rows than there are varies more; where orders are drawn, that is kept.
    shrunk = (min(n_rows, MOST_ROWS) / n_rows) ** 0.5 if n <= 5 else 1.0
    spread = (np.array(samples) - np.mean(samples, axis=0)) * shrunk
    low, high = np.nanquantile(spread, (0.025, 0.975), axis=0)
    of_all = _losses(run)
    return [
        Contribution(
            name, metric,
            {what: Estimate(*(float(x) for x in (at[w, k], at[w, k] + low[w, k],
                                                 at[w, k] + high[w, k])))
             for w, what in enumerate(("leave one out", "shapley"))}
            | ({"loss of all rows": of_all[name]} if of_all else {}),
        )
        for k, name in enumerate(names)
    ]  # fmt: skip


def _losses(run: Audited) -> dict[str, Estimate]:
    """Return each silo's loss of all rows; empty where the model does not tell it."""
    own, job, n_rows = run.job.parameters, run.job, sum(s["rows"] for s in run.report["silos"])
    assert isinstance(own, Bagging)
    shifted = job.booster.alpha > 0 or max_delta_step_of(job.booster) > 0
    if shifted or job.objective in ADAPTIVE or not own.sums_covers(len(run.report["silos"])):
        return {}
    ensemble, found = run.model.ensemble, {}
    fall, ends = falls(ensemble.trees, job.booster) / n_rows, ensemble.round_ends
    if not fall.any():
        return {}
    rounds = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
    for name, trees in run.trees_of.items():
        steps = np.searchsorted(ensemble.steps, np.array(trees), side="right")
        by_round = np.bincount(rounds[steps], fall[list(trees)], len(ends))[len(ends) // 2 :]
        wide = 1.96 * len(by_round) ** 0.5 * float(by_round.std())
        value = float(by_round.sum())
        found[name] = Estimate(value, value - wide, value + wide)
    return found


def _measures(n: int, orders: Sequence[tuple[int, ...]], worth: Callable[[Coalition], float]) -> (
    Floats
):  # fmt: skip
    """Return leave-one-out and Shapley values, shape (2, n)."""
    known = cache(worth)
    found = np.zeros((2, n))
    whole = frozenset(range(n))
    for k in range(n):
        found[0, k] = known(whole) - known(whole - {k})
    for order in orders:
        for place, k in enumerate(order):
            before = frozenset(order[:place])
            found[1, k] += (known(before | {k}) - known(before)) / len(orders)
    return found


def _scored(run: Audited) -> tuple[list[str], Callable[[Coalition, Rows], float], str, int]:
    """Return silos, what scores a coalition on some test rows, the metric, and how many rows."""
    trees = run.trees_of
    names = list(trees)
    own = run.job.parameters
    assert isinstance(own, Bagging)
    if len(names) < 2:
        raise AuditRefused(f"expected two silos with rows or more, received {len(names)}")
    test = run.test
    base = np.asarray(run.model.ensemble.base_margins(test.n_samples), np.float64)
    added = [run.added_by(trees[name], test) for name in names]
    known = {one["name"]: one["rows"] for one in run.report["silos"]}
    rows = {Silo(name): known[name] for name in names}
    step = own.step(run.job)
    planned = {Silo(name): rate for name, rate in run.rates.items()}
    metric = (run.job.metrics or metrics.defaults(run.job.task))[0]
    sign = 1.0 if metrics.higher_is_better(metric) else -1.0

    def worth(silos: Coalition, at: Rows) -> float:
        margin = base[at].copy()
        left = {Silo(names[k]): rows[Silo(names[k])] for k in silos}
        scale = factors(own.lr_mode, planned, step, left, dict.fromkeys(left, 1.0)) if left else {}
        for k in silos:
            margin += scale[Silo(names[k])] * added[k][at]
        found = metrics.evaluate(
            (metric,), test.labels[at], margin, objective=run.model.objective,
            weight=None if test.weight is None else test.weight[at],
        )  # fmt: skip
        return sign * found[metric]

    if not np.isfinite(worth(frozenset(range(len(names))), np.arange(test.n_samples))):
        raise AuditRefused(f"{metric} is not defined on the test rows: expected all classes there")
    return names, worth, metric, test.n_samples
