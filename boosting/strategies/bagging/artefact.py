"""A job's result: the model file and where each of its trees is from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.rounds.coordinator import stock_artefact
from hedgerow.boosting.rounds.log import TreeLog
from hedgerow.boosting.strategies.bagging.covers import with_covers
from hedgerow.boosting.trees.ensemble import blank

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import Artefact, JobParameters
    from hedgerow.boosting.strategies.bagging.parameters import Bagging


def artefact(
    parameters: Bagging, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return the stock XGBoost model (of the best round where rounds are selected)."""
    log, history = TreeLog.decode(checkpoint)
    n_rounds = log.version
    if parameters.early_stopping_rounds and history.best_round >= 0:
        n_rounds = history.best_round + 1
    start = blank(schema, job.objective, job.booster, history.base_score)
    ensemble = log.ensemble(start, n_rounds)
    if history.leaf_sums:
        totals = np.frombuffer(history.leaf_sums, "<f4")
        ensemble = with_covers(ensemble, totals, job.booster)
    return stock_artefact(log, ensemble, n_rounds)
