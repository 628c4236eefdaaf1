"""Strategy fedga."""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Result, Strategy
from hedgerow.boosting.strategies.fedga.parameters import FedGA

STRATEGY = Strategy(
    parameters=FedGA,
    layout=Horizontal(exact_rows=False),
    reveals=FedGA.reveals,
    coordinate=FedGA.coordinate,
    participate=FedGA.participate,
    artefact=FedGA.artefact,
    forecast=FedGA.forecast,
    result=Result.PERSONAL,
)
