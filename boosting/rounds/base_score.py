"""Where margins start; it is never left to XGBoost, which estimates it from one silo's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.engine.start import Score, score_of
from hedgerow.boosting.errors import FederationError, InvalidJob, OfferRejected

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

_POSITIVE = (  # of positive means
    "reg:gamma", "reg:tweedie", "count:poisson", "survival:aft", "survival:cox",
)  # fmt: skip
_CHANCES = ("binary:logistic", "reg:logistic")


def fixed(job: JobParameters) -> float | None:
    """Return the base score that needs no agreement; None where silos must agree on a mean."""
    if job.booster.base_score is not None:
        return job.booster.base_score
    return {
        Task.BINARY: 0.5, Task.MULTICLASS: 0.0, Task.REGRESSION: None, Task.SURVIVAL: 0.5,
        Task.RANKING: 0.0,
    }[job.task]  # fmt: skip


def check(job: JobParameters) -> None:
    """Raise :class:`InvalidJob` for a base score that the objective's margins do not have."""
    told = job.booster.base_score
    if told is None:
        return
    if not abs(told) <= float(np.finfo(np.float32).max):
        raise InvalidJob(f"[booster] base_score: expected a number of float32, received {told}")
    told = float(np.float32(told))  # what the model holds
    if job.objective in _CHANCES and not 0.0 < told < 1.0:
        raise InvalidJob(f"[booster] base_score: expected above 0 and below 1, received {told}")
    if job.objective in _POSITIVE and not told > 0.0:
        raise InvalidJob(f"[booster] base_score: expected a float32 above 0, received {told}")


def of_means(job: JobParameters, means: tuple[float, ...]) -> Score:
    """Return the base score of a regression from the mean of each label over all silos."""
    if job.objective in _POSITIVE and not min(means) > 0.0:
        raise FederationError(f"{job.objective} needs labels with a positive mean")
    return score_of(means)


def checked(told: Score, schema: Schema, n_outputs: int = 1) -> Score:
    """Return the base score that the coordinator tells; raises OfferRejected for an unsound one.

    Parameters
    ----------
    n_outputs : int
        Of one label, that each have a score.
    """
    n_scores = max(len(schema.labels), n_outputs)
    scores = np.atleast_1d(told)
    if not (np.abs(scores) <= float(np.finfo(np.float32).max)).all():
        raise OfferRejected(
            "the coordinator's base score: expected a number that is finite as float32"
        )
    if len(scores) not in (1, n_scores):
        raise OfferRejected(
            f"the coordinator's base score: expected one, or one of each of {n_scores} "
            f"outputs, received {len(scores)}"
        )
    return told
