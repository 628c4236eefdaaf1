"""FedGA: a readable tree for every silo, its structure found together by genetic search.

The coordinator breeds *structures* (the feature that each node tests). Silos fit thresholds and
leaves of every new structure to their rows and send its score; the score of a structure is the
mean over the generation's active silos, weighted by noisy row counts. At the end each silo
receives the finalists, scores them on its own rows and keeps the best structure, fitted to all its
rows: a tree that no other party sees.

===========  ==========  ====================================  ===============================
step         place       a silo offers                         and receives
===========  ==========  ====================================  ===============================
standing     served      nothing                               what to do next
depths       round 0     best depth, noisy row count           median depth
proposals    round 0     its CART structure, two votes         first brood
scores       each round  scores of the brood (when active)     next brood, or finalists
reports      last round  test scores of federated and own      nothing
===========  ==========  ====================================  ===============================

All steps travel by ExchangeScores. Every present silo takes part in every round; one that is not
drawn offers nothing and has nothing to score. A silo that joins late, or was restarted, asks for
the standing and continues with the present or the next generation; when it is drawn for the first
time it sends row count and structure, which joins the next brood and is scored by all. A job that
goes on from an earlier run has that run's fittest structures in its first brood, in place of random
ones, cut off or with leaves below where the silos vote for another depth.

Differences from the paper: scores of regressions are divided by the silo's label variance, which
makes three decimals mean the same everywhere, keeps the variance itself in the silo and lets no
silo dominate; a late silo's structure is not ranked by that silo's score alone; children that were
scored before are bred again; every decision node costs ``node_cost``, without which structures
grow to their full depth, since scores are those of the fitted rows; and a silo chooses among the
``finalists``.

References
----------
FedGA-Tree: Federated Decision Tree using Genetic Algorithm, algorithm 1. Its table of
hyper-parameters is not available to us: the defaults are ours.
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Result, Strategy
from hedgerow.boosting.strategies.fedga.checkpoint import STRUCTURES, artefact
from hedgerow.boosting.strategies.fedga.coordinator import coordinate
from hedgerow.boosting.strategies.fedga.forecast import allowances, forecast
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.silo import participate
from hedgerow.boosting.strategies.fedga.steps import REVEALS

STRATEGY = Strategy(
    parameters=FedGA,
    layout=Horizontal(exact_rows=False, unweighted=""),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    result=Result.PERSONAL,
    starts_with=STRUCTURES,
)
