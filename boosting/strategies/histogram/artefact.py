"""The result of a job: the model or, where the coordinator was blind, a note of where it is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.metrics.survival import kaplan_meier
from hedgerow.boosting.payloads import Float32s
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.stored import CountedTimes, Interval, RoundCheckpoint
from hedgerow.boosting.trees.ensemble import INTERVAL
from hedgerow.boosting.trees.loading import load

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram


SURVIVAL = "survival.json"
"""The Kaplan-Meier curve of a job of hazards."""


def interval_text(share: float, found: Interval) -> str:
    """Return what a model's file says of its interval."""
    told = {"share": share, "width": round_up(found.width), "rows": found.rows}
    return json.dumps(told)


def round_up(width: float) -> float:
    """Return a width of float32 as the shortest number that is not below it."""
    return max(float(str(np.float32(width))), width)


def check_interval(model: bytes, share: float, known: Interval | None) -> None:
    """Raise :class:`ModelRejected` for another interval than the one that silos have found.

    Parameters
    ----------
    known : Interval or None
        None where the job has asked for none.
    """
    told = load(model, sender="the coordinator's result").attributes.get(INTERVAL)
    expected = None
    if known is not None and math.isfinite(known.width):
        expected = interval_text(share, known)
    if told != expected:
        raise ModelRejected(
            "the result's interval: expected the one that silos have found, received another"
        )


def survival_file(times: CountedTimes, thresholds: Float32s, min_cell: int) -> bytes:
    """Return the curve of the rows that the job was begun with, by cells of ``min_cell`` events."""
    curve = kaplan_meier(times.events, times.rows)
    ends = [0.0, *(float(end) for end in thresholds), None]
    cells = [
        {
            "from": first, "until": last, "events": int(times.events[k]),
            "rows": int(times.rows[k]), "survival": round(float(curve[0][k]), 6),
            "low": round(float(curve[1][k]), 6), "high": round(float(curve[2][k]), 6),
        }
        for k, (first, last) in enumerate(pairwise(ends))
    ]  # fmt: skip
    if min(times.events.tolist()) < min_cell:  # of a table with fewer events in all
        cells = []
    return json.dumps({"schema": 1, "min_cell": min_cell, "cells": cells}, indent=1).encode()


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
            ensemble = plan.read_model(
                model, Setup.of(last.state.terms, schema, plan.n_outputs), "the checkpoint"
            )
            model = ensemble.slice(last.best_round + 1).save()
        if last.interval is not None and math.isfinite(last.interval.width):
            told = interval_text(parameters.interval, last.interval)
            ensemble = load(model)
            noted = {**ensemble.attributes, INTERVAL: told}
            model = replace(ensemble, attributes=noted).save()
        files = {"model.ubj": model}
        if last.times is not None and last.state.terms.labels is not None:
            files[SURVIVAL] = survival_file(
                last.times, last.state.terms.labels.thresholds, parameters.min_cell
            )
        return Artefact(files, "model.ubj")
    text = {
        "strategy": parameters.name,
        "rounds": last.round,
        "model": "kept by the silos: the coordinator was blind",
    }
    return Artefact({"job.json": json.dumps(text).encode()}, "job.json")
