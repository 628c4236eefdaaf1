"""Cross-validation in the form of ``xgboost.cv``, with folds inside silos.

Every fold is a federation in memory (:mod:`memory`): each silo holds its own share of rows back,
and the job runs over the others with the masks and sums that it has anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics as scoring
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Result
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.coordinator.operator.library.arguments import checked
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.library.jobs import Job, JobLike
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.operator.library.searching import HeldBack
from hedgerow.services.wire import job as job_wire

Scores = list[dict[str, float]]


@checked
def cv(
    job: JobLike,
    silos: Mapping[str, Tabular],
    *,
    nfold: int = 3,
    stratified: bool = False,
    metrics: str | Sequence[str] = (),
    early_stopping_rounds: int = 0,
    seed: int | None = None,
    crypto: bool = True,
    workers: int = 0,
) -> Frame:
    """Return scores by round over folds, in the form of ``xgboost.cv``.

    Parameters
    ----------
    job : Job, mapping or path
    silos : Mapping
        Each silo's table; every silo cuts its own rows into folds.
    nfold : int
        Folds; as many federations run.
    stratified : bool
        Whether each fold has each class's share of a silo's rows.
    metrics : str or sequence of str
        In place of the job's.
    early_stopping_rounds : int
        The result ends at the round with the best mean, of the last metric on the held-out rows,
        that this many rounds did not improve; 0 for never.
    seed : int, optional
        Of the folds; the job's where it is not given.
    crypto : bool
        Whether masks and encryption are those of the job; else what a job may leave out is left
        out. The scores are the same.
    workers : int
        Silos that compute at the same time; 0 for one a core.

    Returns
    -------
    Frame
        A row a round: ``train-auc-mean``, ``train-auc-std`` and so on for each metric, then
        ``test-auc-mean``, ``test-auc-std`` and so on.

    Raises
    ------
    InvalidJob
        The job cannot run with these silos, or makes no common model of them.
    RunFailed
        A fold did not succeed.
    """
    base = Job.of(job)
    if metrics:
        spec = job_wire.parse(base.spec)
        asked = [metrics] if isinstance(metrics, str) else metrics
        spec.metrics[:] = [scoring.canonical(name, base.parameters.task) for name in asked]
        base = Job.from_spec(spec.SerializeToString(deterministic=True))
    parameters = base.parameters
    if parameters.vertical or parameters.strategy.result in (Result.PERSONAL, Result.TABLE):
        raise InvalidJob(f"strategy {parameters.strategy.name} does not make one model of rows")
    if nfold < 2:
        raise InvalidJob(f"nfold: expected at least 2, received {nfold}")
    rows = HeldBack(
        silos, 1.0 / nfold, parameters.seed if seed is None else seed, stratified=stratified
    )
    base = rows.job(base)
    parameters = base.parameters
    conditions = Conditions(crypto=crypto, workers=workers)
    folds = [_scores(base, rows.turned(k / nfold), conditions) for k in range(nfold)]
    n_rounds = min(map(len, folds))
    found = {
        key: np.array([[fold[at][key] for fold in folds] for at in range(n_rounds)])
        for key in folds[0][0]
    }
    if early_stopping_rounds:
        name = (parameters.metrics or scoring.defaults(parameters.task))[-1]
        n_rounds = _best(name, found[f"test-{name}"].mean(axis=1), early_stopping_rounds) + 1
    columns = {}
    for key, values in found.items():
        columns[f"{key}-mean"] = values[:n_rounds].mean(axis=1)
        columns[f"{key}-std"] = values[:n_rounds].std(axis=1)
    return Frame(columns, f"{parameters.name}: {nfold} folds")


def _scores(job: Job, rows: HeldBack, conditions: Conditions) -> Scores:
    """Return the scores of one fold by round: of the rows trained on, and of those held back."""
    parameters = job.parameters
    training, held = rows.training(parameters, 1.0), rows.held(parameters)[0]
    assert held is not None
    sets = {"train": rows.together(parameters, training), "test": held}
    names = parameters.metrics or scoring.defaults(parameters.task)
    view = federate(job, training, conditions, sets).view
    return [
        {f"{data}-{name}": one.metrics[data][name] for data in sets for name in names}
        for one in view.rounds
    ]


def _best(metric: str, means: NDArray[np.float64], patience: int) -> int:
    """Return the round that ``patience`` rounds after it did not improve."""
    best = BestRound(best_round=0)
    for at, value in enumerate(means):
        best.note(metric, at, value)
        if best.ends(at, patience):
            break
    return best.best_round
