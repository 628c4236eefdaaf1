"""Strategy dp_tree."""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree

STRATEGY = Strategy(
    parameters=DPTree,
    layout=Horizontal(exact_rows=False),
    reveals=DPTree.reveals,
    coordinate=DPTree.coordinate,
    participate=DPTree.participate,
    artefact=DPTree.artefact,
    forecast=DPTree.forecast,
    validate_cohort=DPTree.validate_cohort,
)
