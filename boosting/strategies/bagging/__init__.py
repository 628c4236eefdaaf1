"""Strategy bagging."""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.bagging.parameters import Bagging

STRATEGY = Strategy(
    parameters=Bagging,
    layout=Horizontal(validate_for=Bagging.validate_for),
    reveals=Bagging.reveals,
    coordinate=Bagging.coordinate,
    participate=Bagging.participate,
    artefact=Bagging.artefact,
    forecast=Bagging.forecast,
)
