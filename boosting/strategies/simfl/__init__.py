"""SimFL: trees grown in turn, from gradients that silos add up over similar rows.

Locality-sensitive hashes of all rows tell each silo which row of another silo is most like its own.
In each round one silo, by its place in the roster, grows one boosting step on its own rows; each
row's gradient has those of the other silos' similar rows added to it. XGBoost grows the tree, and
the result is a stock XGBoost model.

| step | RPC | when | silo offers | silo receives |
|---|---|---|---|---|
| ``sync`` | ExchangeTrees | start, restart, left out | rounds it holds | what it missed |
| ``sum-*`` | ExchangeSums and its kind | before round 0 of a regression | label sums | totals |
| ``ranges`` | ExchangeSketches | before round 0 | least and largest values | those of all |
| ``hashes`` | ExchangeSketches | before round 0 | hashes of its rows | the others' hashes |
| ``gradients`` | ExchangeGradients | each round | sums by row of one silo | that silo: totals |
| ``trees`` | ExchangeTrees | each round | its tree, if it is its turn | the tree |

Rounds of a silo that is not there, or that has no hashes, pass without a tree. A silo that was not
there when rows were hashed follows the model and adds nothing. The similar rows are kept by the
silo for the job, so a restart repeats no hashes once a round has ended.

References
----------
Li, Wen, He, "Practical federated gradient boosting decision trees", AAAI 2020, algorithms 1 and 2.
Datar et al., "Locality-sensitive hashing scheme based on p-stable distributions", SoCG 2004.
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy
from hedgerow.boosting.strategies.simfl.coordinator import artefact, coordinate
from hedgerow.boosting.strategies.simfl.forecast import allowances, forecast
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.strategies.simfl.silo import participate
from hedgerow.boosting.strategies.simfl.steps import REVEALS

STRATEGY = Strategy(
    parameters=SimFL,
    layout=Horizontal(
        validate_for=SimFL.validate_for,
        unweighted="sends gradients of single rows, which would tell their weights as well",
    ),
    reveals=REVEALS,
    stock_trees=True,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    draws=lambda _, job: True,  # whose turn it is
)
