"""The result of a job: the model or, where the coordinator was blind, a note of where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.stored import RoundCheckpoint

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram


def artefact(
    parameters: Histogram, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return ``model.ubj``, a stock XGBoost model; of a blind job ``job.json``.

    A job that stops early gives the model of the best round.
    """
    last = RoundCheckpoint.decode(checkpoint)
    if last.state is not None:
        model = last.state.model.tobytes()
        if parameters.early_stopping_rounds:
            plan = HistogramPlan.of(parameters, job, schema)
            ensemble = plan.read_model(model, Setup.of(last.state.terms, schema), "the checkpoint")
            model = ensemble.slice(last.best_round + 1).save()
        return Artefact({"model.ubj": model}, "model.ubj")
    text = {
        "strategy": parameters.name,
        "rounds": last.round,
        "model": "kept by the silos: the coordinator was blind",
    }
    return Artefact({"job.json": json.dumps(text).encode()}, "job.json")
