"""The result of a job: the model or, where the coordinator was blind, a note of where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.histogram.stored import RoundCheckpoint

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram


def artefact(
    parameters: Histogram, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return ``model.ubj``, a stock XGBoost model; of a blind job ``job.json``."""
    last = RoundCheckpoint.decode(checkpoint)
    if last.state is not None:
        return Artefact({"model.ubj": last.state.model.tobytes()}, "model.ubj")
    text = {
        "strategy": parameters.name,
        "rounds": last.round,
        "model": "kept by the silos: the coordinator was blind",
    }
    return Artefact({"job.json": json.dumps(text).encode()}, "job.json")
