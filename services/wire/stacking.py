"""Payloads of FedXGBllr."""

from __future__ import annotations

from typing import Any

from hedgerow.api.federation.v1 import stacking_pb2 as pb
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    EnsembleOffer,
    Ensembles,
    LabelScale,
    MetricSums,
    NextPoints,
    PointChoice,
    ProgressQuery,
    RateSums,
    RoundVector,
    SharedCuts,
    StackingProgress,
)
from hedgerow.services.wire import Codec, family

CODECS: tuple[Codec[Any], ...] = family(
    "stacking",
    pb.StackingPart,
    {
        "labels": LabelScale,
        "cuts": SharedCuts,
        "ensemble": EnsembleOffer,
        "ensembles": Ensembles,
        "vector": RoundVector,
        "points": NextPoints,
        "metrics": MetricSums,
        "choice": PointChoice,
        "rates": RateSums,
        "query": ProgressQuery,
        "progress": StackingProgress,
    },
)
