"""Federated bagging of boosted trees: FLeXGBoost's tree and tree plus, and cyclic boosting.

In each round every participant trains ``trees_per_round`` boosting steps of stock XGBoost on its
own rows, starting from the margins of the common model. The coordinator checks the trees and
appends them in the order of the silos' names; every silo receives those of the others.

| step | RPC | when | silo offers | silo receives |
|---|---|---|---|---|
| ``sync`` | ExchangeTrees | start, restart, left out | rounds it holds | what it missed |
| ``sum-*`` | ExchangeSums and its kind | before round 0 of a regression | label sums | totals |
| ``trees`` | ExchangeTrees | each round | its new trees | the others' new trees |
| ``scores`` | ExchangeScores | each round, two silos | its metrics, four digits | stop or go on |
| ``scores-*`` | ExchangeScores, its kind | each round, of three | sums, masked | stop or go on |
| ``covers-*`` | ExchangeSums and its kind | after the last round | sums by leaf, masked | nothing |

A round's trees are a pure function of the silo's draws, the round and the model before it;
so a round that is repeated after a restart gives the same bytes. A silo that is lost is left out
while ``min_silos`` remain; when it returns it catches up and adds no trees until the round is over.
Silos without rows never add trees. Silos agree on keys for scores every 32 rounds; one that comes
back meanwhile is scored again with the next keys.

References
----------
FLeXGBoost (OctaiPipe). ``[booster]`` has XGBoost's defaults, where the source uses ``max_depth`` 8
and ``eta`` 0.1 or 0.015. The source says that its normalised rate learns faster; at equal ``eta``
it is the smaller step, so compare modes at equal total step.
"""

from __future__ import annotations

from hedgerow.boosting.exchange import Call
from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.bagging.artefact import artefact
from hedgerow.boosting.strategies.bagging.coordinator import coordinate
from hedgerow.boosting.strategies.bagging.forecast import allowances, forecast, tree_sizes
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.bagging.silo import participate
from hedgerow.boosting.strategies.bagging.steps import REVEALS

STRATEGY = Strategy(
    parameters=Bagging,
    layout=Horizontal(
        validate_for=Bagging.validate_for,
        unweighted="",
        survival=True,
        ranking=True,
        several_labels=True,
    ),
    reveals=REVEALS,
    sizes=tree_sizes,
    sized_calls=frozenset({Call.TREES, Call.SUMS}),
    stock_trees=True,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    validate_cohort=Bagging.validate_cohort,
    draws=Bagging.draws,
)
