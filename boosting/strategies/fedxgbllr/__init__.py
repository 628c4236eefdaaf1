"""Strategy fedxgbllr."""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr

STRATEGY = Strategy(
    parameters=FedXGBllr,
    layout=Horizontal(),
    reveals=FedXGBllr.reveals,
    coordinate=FedXGBllr.coordinate,
    participate=FedXGBllr.participate,
    artefact=FedXGBllr.artefact,
    forecast=FedXGBllr.forecast,
    result=FedXGBllr.margins,
)
