"""Payloads of the search for tree structures."""

from __future__ import annotations

from hedgerow.api.federation.v1 import structure_pb2
from hedgerow.boosting.strategies.fedga.steps import (
    DepthVote,
    Proposal,
    SearchTask,
    StructureScores,
    TreeComparison,
)
from hedgerow.services.wire import family

CODECS = family(
    "structure",
    structure_pb2.StructurePart,
    {
        "task": SearchTask,
        "vote": DepthVote,
        "proposal": Proposal,
        "scores": StructureScores,
        "comparison": TreeComparison,
    },
)
