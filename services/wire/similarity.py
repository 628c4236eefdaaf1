"""Payloads of SimFL: ranges of columns, hashes of rows, sums of gradients."""

from __future__ import annotations

from hedgerow.api.federation.v1 import similarity_pb2
from hedgerow.boosting.strategies.simfl.steps import (
    FeatureRanges,
    GradientSums,
    OtherHashes,
    RowHashes,
)
from hedgerow.services.wire import family

CODECS = family(
    "similarity",
    similarity_pb2.SimilarityPart,
    {
        "ranges": FeatureRanges,
        "hashes": RowHashes,
        "others": OtherHashes,
        "sums": GradientSums,
    },
)
