"""Strategy histogram."""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.histogram.parameters import Histogram

STRATEGY = Strategy(
    parameters=Histogram,
    layout=Horizontal(),
    reveals=Histogram.reveals,
    coordinate=Histogram.coordinate,
    participate=Histogram.participate,
    artefact=Histogram.artefact,
    forecast=Histogram.forecast,
    validate_cohort=Histogram.validate_cohort,
)
