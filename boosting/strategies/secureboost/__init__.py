"""Strategy secureboost."""

from __future__ import annotations

from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Result, Strategy, Vertical
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost

STRATEGY = Strategy(
    parameters=SecureBoost,
    layout=Vertical(
        active=lambda parameters: Silo(parameters.active),
        scores_only=lambda parameters: bool(parameters.predict_from),
        starts_from=lambda parameters: parameters.predict_from or parameters.warm_start,
        forecasts=SecureBoost.forecasts,
    ),
    reveals=SecureBoost.reveals,
    coordinate=SecureBoost.coordinate,
    participate=SecureBoost.participate,
    artefact=SecureBoost.artefact,
    forecast=SecureBoost.forecast,
    result=Result.PARTS,
)
