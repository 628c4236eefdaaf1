"""FedXGBllr: trees once, then what combines them is learnt on all silos' rows.

Round 0: each silo trains M = trees / silos boosting steps on its rows from a base score that all
share, and every silo receives all ensembles. Rounds 1 to R: the combination of the trees' outputs
is learnt on all silos' rows (:mod:`.combiners`).

| step | RPC | round, level | silo offers | silo gets |
|---|---|---|---|---|
| ``base`` | ExchangeSums | 0 | count, sum, sum of squares of labels | mean and spread |
| ``cuts`` | ExchangeSketches | 0 | quantile summaries (``shared_cuts``) | cut points |
| ``trees`` | ExchangeTrees | 0 | its packed trees | the other silos' |
| ``weights`` | ExchangeWeights | t | its network's weights and row count | their mean |
| ``sums`` | ExchangeSums | t | normal equations, or loss gradient | the next point |
| ``scores`` | ExchangeScores | t, 1 | metrics of validation rows | what was chosen |
| ``rates`` | ExchangeScores | last, 2 | mean derivative by tree; secure: rows by hidden unit | – |
| ``turn`` | ExchangeTrees | t | – | nothing: it waits for the round's end |
| ``sync`` | ExchangeTrees | – | – | the state of the job: all trees, the point |

``base`` is for regression only, ``scores`` with held-out rows only (networks have them unless
``validation`` is 0), ``rates`` with a network
only. With ``secure`` each of ``base``, ``weights``, ``sums``, ``scores`` and ``rates`` is a secure
sum, ``weights`` (:mod:`hedgerow.boosting.sums.floats`) and ``sums`` (:mod:`.row_sums`) after that
of their bounds, and silos agree on fresh keys in each round.
Without, ``base`` and ``scores`` are masked sums all the same among three silos or more, with keys
of their own; of two silos each tells its sums of labels, and its metrics to four digits.

Round 0 is the mean of the ensembles; every combiner starts there. With held-out rows the result is
the best round on them, round 0 included. A round's mean is over the silos present in
it; the trees of an absent silo stay. A silo that is absent in round 0 has no trees in the result: K
is the number of ensembles received. A silo that arrives (again) later synchronises, and trains on
its rows from the next round on. A silo without rows sends no trees.

Who learns what is in :data:`.steps.REVEALS`.

References
----------
Ma, Qiu, Beutel, Lane, "Gradient-less federated gradient boosting trees with learnable learning
rates", EuroMLSys 2023, algorithm 1. The combiners beside ``cnn`` are ours.
"""

from __future__ import annotations

from hedgerow.boosting.exchange import Call
from hedgerow.boosting.ports import Horizontal, Strategy, least_of_sums
from hedgerow.boosting.strategies.fedxgbllr.checkpoint import artefact
from hedgerow.boosting.strategies.fedxgbllr.coordinator import coordinate
from hedgerow.boosting.strategies.fedxgbllr.forecast import allowances, forecast, tree_sizes
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.silo import participate
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import margins_of_files
from hedgerow.boosting.strategies.fedxgbllr.steps import REVEALS

STRATEGY = Strategy(
    parameters=FedXGBllr,
    layout=Horizontal(validate_for=FedXGBllr.validate_for, unweighted=""),
    reveals=REVEALS,
    sizes=tree_sizes,
    sized_calls=frozenset({Call.TREES, Call.SUMS}),
    stock_trees=True,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    least_silos=least_of_sums,
    result=margins_of_files,
    first_round=0,
    starts_anew="its head is chosen on rows that the trees of its own run never saw",
)
