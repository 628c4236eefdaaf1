"""Payloads of histogram boosting."""

from __future__ import annotations

from hedgerow.api.federation.v1 import histogram_pb2 as pb
from hedgerow.boosting.engine.summaries import QuantileSummaries
from hedgerow.boosting.strategies.histogram import steps
from hedgerow.services.wire import family

CODECS = family(
    "histogram",
    pb.HistogramPart,
    {
        "entry_request": steps.EntryRequest,
        "entry_round": steps.EntryRound,
        "known": steps.KnownTrees,
        "entry": steps.RoundEntry,
        "weight": steps.WeightExponent,
        "opening": steps.OpeningBounds,
        "summaries": QuantileSummaries,
        "cuts": steps.CutPoints,
        "proposal_count": steps.ProposalCount,
        "bisected": steps.Bisected,
        "gradients": steps.GradientExponents,
        "threshold": steps.SamplingThreshold,
        "level": steps.LevelDecision,
        "closed": steps.ClosedTrees,
        "relayed": steps.RelayedTotal,
        "end": steps.RoundEnd,
        "grown": steps.GrownTrees,
    },
)
