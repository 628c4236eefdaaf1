"""Attacks on a run's model, each beside what a random guess and a model of one silo reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import xgboost
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.coordinator.operator.library import baselines
from hedgerow.coordinator.operator.library.audit import membership as tests
from hedgerow.coordinator.operator.library.audit.subject import Audited, AuditRefused

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attack reaches against a silo; measures by name."""

    attack: str
    silo: str
    measures: dict[str, tests.Estimate]
    rows: int
    """Rows of the silo that were attacked."""
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

        def found(name: str, score: Floats) -> Attack:
            got = tests.told(score, of.member, run.seed)  # noqa: B023
            measures = {"auc": got.auc, "caught": got.caught}
            return Attack(f"membership: {name}", silo, measures, n)  # noqa: B023

        yield found("loss threshold", certain)
        alone = _trained(run, table, of.rows, run.seed)
        yield found("loss threshold, model of the silo alone", sure(alone))
        seen = tests.shadows(of, partial(_trained, run), sure, run.seed)
        ratio = tests.likelihood_ratio(certain, seen, run.share(silo))
        yield found("likelihood ratio", ratio)
        yield found(
            "likelihood ratio, model of the silo alone",
            tests.likelihood_ratio(sure(alone), seen, 1.0),
        )
        try:
            trees = run.trees_of
        except AuditRefused as why:
            yield Attack("membership: own trees", silo, {}, n, str(why))
            continue
        if len(trees) < 2:
            continue
        base = np.asarray(run.model.ensemble.base_margins(2 * n), np.float64)
        own = run.added_by(trees[silo], of.rows)
        rest = sum(run.added_by(trees[name], of.rows) for name in trees if name != silo)
        share = run.share(silo)
        yield found("own trees", sure(base + own / share) - sure(base + rest / (1.0 - share)))


def _trained(run: Audited, rows: Dataset, targets: Dataset, seed: int) -> Floats:
    """Return margins of the targets by a model of some rows, of the job's booster and steps."""
    parameters = baselines.parameters_of(run.job, rows.schema, 1) | {"seed": seed}
    n_steps = run.job.parameters.n_steps
    booster = xgboost.train(parameters, baselines.matrix_of(rows), n_steps)
    found = booster.predict(baselines.matrix_of(targets), output_margin=True)
    return np.asarray(found, dtype=np.float64)
