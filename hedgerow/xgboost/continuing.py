"""``xgb_model``: training that goes on from a booster that ``train`` has returned."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import xgboost

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import FOREIGN, DataError, InvalidJob
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.coordinator.operator.library.jobs import start_of

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.running import Run

_ATTRIBUTE = "hedgerow_run"


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """The run that grew a booster; an attribute of the booster, which its files keep, too."""

    run: str
    """Its job."""
    model: str
    """SHA-256 of its ``model.ubj`` in hex, which silos and coordinator have kept."""
    schema: str
    """Digest of its schema."""
    rounds: int
    trees: str
    """SHA-256 of the booster's trees as XGBoost writes them: a booster that was cut, or trained on
    alone, is another one."""


def mark(booster: xgboost.Booster, run: Run) -> None:
    """Write into a booster which run has grown it."""
    own = start_of(run.folder, MODEL_FILE)
    told = ContinuedRun(
        own.run, own.model, own.schema, booster.num_boosted_rounds(), _trees_of(booster)
    )
    booster.set_attr(**{_ATTRIBUTE: json.dumps(asdict(told))})


def told_by(xgb_model: Any) -> ContinuedRun:
    """Return the run of what a script gives as ``xgb_model``: a booster, its file or its bytes.

    Raises
    ------
    InvalidJob
        No training of a federation has returned it, or it has other trees since.
    """
    if isinstance(xgb_model, xgboost.XGBModel):
        xgb_model = xgb_model.get_booster()
    booster = xgb_model
    if not isinstance(booster, xgboost.Booster):
        file = os.fspath(booster) if isinstance(booster, os.PathLike) else booster
        file = bytearray(file) if isinstance(file, bytes) else file
        booster = xgboost.Booster(model_file=file)
    try:
        told: ContinuedRun = read_as(ContinuedRun, json.loads(booster.attr(_ATTRIBUTE) or ""))
    except (*FOREIGN, DataError) as error:
        raise InvalidJob(
            "xgb_model: expected a booster that train has returned in a federation: what one "
            "site's script has made is not known to the others"
        ) from error
    if told.trees != _trees_of(booster):
        raise InvalidJob(
            f"xgb_model: the booster has other trees than run {told.run} grew; rounds go on from "
            "all of them, as train returned them"
        )
    return told


def _trees_of(booster: xgboost.Booster) -> str:
    grown = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    return hashlib.sha256(json.dumps(grown, sort_keys=True).encode()).hexdigest()
