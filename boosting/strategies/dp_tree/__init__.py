"""One classification tree under epsilon-differential privacy for every row of every silo.

The tree grows level by level. Silos count their rows by class in every open node, and by bin in
every feature of it, add their part of discrete Laplace noise and enter the counts into a secure
sum: only noisy totals are ever seen. The parts of ``honest`` silos make up the whole noise, so all
others of a sum may collude with the coordinator: one at least, unless ``honest`` is all silos. The
coordinator takes the best Gini gain,
makes leaves of nodes whose counts do not exceed the noise, and sends the tree to the silos.

============  ================  =====================================  ====================
step          place             a silo offers                          and receives
============  ================  =====================================  ====================
standing      served            nothing                                tree so far
cells         round 0, 3 times  masked noisy counts by interval        next intervals
counts        each level        masked noisy counts of the open nodes  splits of the level
============  ================  =====================================  ====================

**Budget.** Rows are added or removed one at a time. Private bin edges spend ``binning_share`` of
epsilon (numeric features only), equally over 3 stages and all features. The rest is spent equally
on ``depth + 1`` queries of class counts and ``depth`` queries of splits; nodes of one level have
disjoint rows and are asked together. A split query is divided among the features (``query =
"histogram"``: all cuts of a feature are read from one histogram) or among all cuts
(``"candidates"``: counts on both sides of each, as in Truex et al.). Every silo charges a query to
the account of its table before it answers, and refuses one that does not fit; the same query over
the same silos gets the same noise and costs nothing (:mod:`hedgerow.boosting.sums.answers`).

References
----------
Truex et al., A Hybrid Approach to Privacy-Preserving Federated Learning, AISec 2019.
FedGA-Tree: Federated Decision Tree using Genetic Algorithm, section IV-A2 (binary form).
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy, least_of_sums
from hedgerow.boosting.strategies.dp_tree.checkpoint import artefact
from hedgerow.boosting.strategies.dp_tree.coordinator import coordinate
from hedgerow.boosting.strategies.dp_tree.forecast import allowances, forecast
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.silo import participate
from hedgerow.boosting.strategies.dp_tree.steps import REVEALS

STRATEGY = Strategy(
    parameters=DPTree,
    layout=Horizontal(
        exact_rows=False,
        unweighted="draws its noise for rows that count one each: a heavier one would need more",
    ),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    least_silos=least_of_sums,
    validate_cohort=DPTree.validate_cohort,
    colluders=DPTree.colluders,
    starts_anew="its result is one tree; a further one would spend a further epsilon",
)
