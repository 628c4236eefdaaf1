"""Attacks on a run's model, each beside what a random guess and a model of one silo reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import xgboost
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.trees.ensemble import first_line
from hedgerow.coordinator.operator.library import baselines
from hedgerow.coordinator.operator.library.audit import membership as tests
from hedgerow.coordinator.operator.library.audit import reconstruction as leaves
from hedgerow.coordinator.operator.library.audit.subject import Audited, AuditRefused

Floats = NDArray[np.float64]
MOST_ROWS = 300
"""Rows of a silo that are guessed, and rows of the adversary's own; of more rows, those drawn."""
MOST_ROUNDS = 5
"""Rounds whose leaves are inferred; later ones make no guess better."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attack reaches against a silo; measures by name."""

    attack: str
    silo: str
    measures: dict[str, tests.Estimate]
    rows: int
    """Rows of the silo that were attacked."""
    baseline: bool = False
    """Whether it is not of the run's model, but what it is compared with."""
    note: str = ""
    """Why there are no measures."""


def membership(run: Audited) -> Iterator[Attack]:
    """Yield the attacks on the membership of each silo's rows."""
    for silo, table in run.silos.items():
        of = tests.targets(table, run.test, run.seed)
        n = int(of.member.sum())
        sure = partial(
            tests.certainty, y=of.rows.labels, objective=run.model.objective, task=run.model.task
        )
        certain = sure(run.model.margins(of.rows))

        def found(name: str, score: Floats, *, baseline: bool = False) -> Attack:
            got = tests.told(score, of.member, run.seed)  # noqa: B023
            measures = {"auc": got.auc, "caught": got.caught}
            return Attack(f"membership: {name}", silo, measures, n, baseline)  # noqa: B023

        yield found("loss threshold", certain)
        alone = _trained(run, table, of.rows, run.seed)
        yield found("loss threshold, model of the silo alone", sure(alone), baseline=True)
        seen = tests.shadows(of, partial(_trained, run), sure, run.seed)
        ratio = tests.likelihood_ratio(certain, seen, run.share(silo))
        yield found("likelihood ratio", ratio)
        yield found(
            "likelihood ratio, model of the silo alone",
            tests.likelihood_ratio(sure(alone), seen, 1.0),
            baseline=True,
        )
        try:
            trees = run.trees_of
        except AuditRefused as why:
            yield Attack("membership: own trees", silo, {}, n, note=str(why))
            continue
        if len(trees) < 2:
            continue
        base = np.asarray(run.model.ensemble.base_margins(2 * n), np.float64)
        own = run.added_by(trees[silo], of.rows)
        rest = sum(run.added_by(trees[name], of.rows) for name in trees if name != silo)
        share = run.share(silo)
        yield found("own trees", sure(base + own / share) - sure(base + rest / (1.0 - share)))


def reconstruction(run: Audited) -> Iterator[Attack]:
    """Yield the attacks that guess the numeric features of each silo's rows from its trees."""
    name = "reconstruction"
    numeric = np.array([not f.is_categorical for f in run.test.schema.features], bool)
    for silo, table in run.silos.items():
        try:
            trees = run.trees_of
            if run.model.task is not Task.BINARY:
                raise AuditRefused(f"expected two classes, received {run.model.task.value}")
            if not numeric.any():
                raise AuditRefused("expected numeric features, received categories only")
        except AuditRefused as why:
            yield Attack(name, silo, {}, 0, note=str(why))
            continue
        rng = np.random.default_rng(run.seed)
        n = min(MOST_ROWS, table.n_samples, run.test.n_samples)
        own, own_y = _filled(run.test.take(rng.permutation(run.test.n_samples)[:n]))
        X, y = _filled(table.take(rng.permutation(table.n_samples)[:n]))
        ensemble = run.model.ensemble
        mine = [
            leaves.Leaves.read(ensemble.trees[k], X.shape[1], covers=False) for k in trees[silo]
        ]

        def near(guess: Floats, label: Floats) -> dict[str, tests.Estimate]:
            close = leaves.apart(guess, label, X, y)[:, numeric] <= 0.1  # noqa: B023
            return {"within 0.1": tests.estimated(close.mean(axis=1), run.seed)}

        yield Attack(f"{name}: own rows, no tree", silo, near(own, own_y), n, baseline=True)
        best = leaves.best_case(mine, X, y, own, own_y)
        yield Attack(f"{name}: every leaf known", silo, near(best, y), n)
        inferred = f"{name}: leaves inferred, {MOST_ROUNDS} rounds"
        why_not = _why_not_inferred(run, table)
        if why_not:
            yield Attack(inferred, silo, {}, 0, note=why_not)
            continue
        by_round = [
            [leaves.Leaves.read(ensemble.trees[of[t]], X.shape[1], covers=False)
             for of in trees.values()]
            for t in range(min(MOST_ROUNDS, len(mine)))
        ]  # fmt: skip
        (p,) = ensemble.about.base_score
        penalty, rate = run.job.booster.lambda_, run.rates[silo]
        knows = leaves.Adversary(own, own_y, p, rate, table.n_samples, penalty)
        counts, guess, label = leaves.reconstruct(by_round, list(trees).index(silo), knows)
        at = mine[0].of(np.asarray(table.X, np.float64))
        true = [(int((at == leaf).sum()), int(table.labels[at == leaf].sum()))
                for leaf in range(len(counts))]  # fmt: skip
        exact = np.array([a == b for a, b in zip(counts, true, strict=True)], np.float64)
        counted = {"leaves counted exactly": tests.estimated(exact, run.seed)}
        yield Attack(inferred, silo, near(guess, label) | counted, n)


def _filled(rows: Dataset) -> tuple[Floats, Floats]:
    """Return features and labels; missing values are the median of their feature."""
    X = np.asarray(rows.X, np.float64)
    known = np.isfinite(X).any(axis=0)
    medians = np.zeros(X.shape[1])
    medians[known] = np.nanmedian(X[:, known], axis=0)
    return np.where(np.isfinite(X), X, medians), np.asarray(rows.labels, np.float64)


def _why_not_inferred(run: Audited, table: Dataset) -> str:
    """Return why the leaves of a silo's rows cannot be inferred here; empty: they can."""
    own, booster = run.job.parameters, run.job.booster
    assert isinstance(own, Bagging)
    if table.n_samples > MOST_ROWS:
        return f"expected at most {MOST_ROWS} rows of the silo, received {table.n_samples:,}"
    if own.trees_per_round > 1 or booster.num_parallel_tree > 1 or booster.draws:
        return "expected one tree a round, of all rows and columns"
    if run.model.objective != "binary:logistic" or booster.alpha or booster.max_delta_step:
        return "expected binary:logistic, without alpha and max_delta_step"
    if own.lr_mode == "gain":
        return 'expected rates that follow from the job, received lr_mode "gain"'
    if own.validation or table.weight is not None:
        return "expected trees of all rows of the silo, without weights"
    if any(tree.categories for tree in run.model.ensemble.trees):
        return "expected splits by numbers only, received splits by categories"
    return "" if np.isfinite(table.X).all() else "expected no missing values, received some"


def _trained(run: Audited, rows: Dataset, targets: Dataset, seed: int) -> Floats:
    """Return margins of the targets by a model of some rows, of the job's booster and steps."""
    parameters = baselines.parameters_of(run.job, rows.schema, 1) | {"seed": seed}
    n_steps = run.job.parameters.n_steps
    try:
        booster = baselines.trained(run.job, rows, n_steps, parameters)
    except xgboost.core.XGBoostError as error:
        raise AuditRefused(
            f"expected an objective of stock XGBoost's for shadow models: {first_line(error)}"
        ) from error
    found = booster.predict(baselines.matrix_of(targets), output_margin=True)
    return np.asarray(found, dtype=np.float64)
