"""Payloads of the tree under a privacy budget."""

from __future__ import annotations

from hedgerow.api.federation.v1 import budget_pb2
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree
from hedgerow.boosting.strategies.dp_tree.steps import GrowthState
from hedgerow.services.wire import family

CODECS = family("budget", budget_pb2.BudgetPart, {"growth": GrowthState, "tree": BinnedTree})
