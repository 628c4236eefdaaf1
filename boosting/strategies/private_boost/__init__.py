"""Boosting over public structures: differentially private, or in few exchanges.

Features, thresholds and default sides of all trees are drawn from the job's seed within the ranges
and lists that the job declares: no row has a say in them. Rows decide leaf values only. So a batch
of trees, all over the same margins, is one secure sum of gradients and hessians by leaf, in which
one row changes a known length of integers; with a budget the parts of ``honest`` silos make up
Skellam noise on it. Leaf values are public arithmetic on the noisy sums.

============  ================  =====================================  ====================
step          place             a silo offers                          and receives
============  ================  =====================================  ====================
standing      served            nothing                                leaf values so far
leaf-sums     each batch        masked noisy sums by tree and leaf     leaf values
============  ================  =====================================  ====================

**Budget.** Rows are added or removed one at a time. Each batch costs the same ``rho``, a bound of
the Renyi divergences of Skellam noise (:func:`~hedgerow.crypto.masking.noise.skellam_rho`); all
together have ``epsilon`` at ``delta``. Silos charge a batch to the account of their table before
they answer.

References
----------
Maddock, Cormode, Wang, Maple, Jha, Federated boosted decision trees with differential privacy, CCS
2022: random splits, batched updates.
Geurts, Ernst, Wehenkel, Extremely randomized trees, 2006.
Agarwal, Kairouz, Liu, The Skellam mechanism for differentially private federated learning, 2021.
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy, least_of_sums
from hedgerow.boosting.strategies.private_boost.artefact import artefact
from hedgerow.boosting.strategies.private_boost.coordinator import coordinate
from hedgerow.boosting.strategies.private_boost.forecast import allowances, forecast
from hedgerow.boosting.strategies.private_boost.mechanism import check_domain
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.private_boost.silo import participate
from hedgerow.boosting.strategies.private_boost.steps import REVEALS

STRATEGY = Strategy(
    parameters=PrivateBoost,
    layout=Horizontal(
        exact_rows=False,
        validate_for=check_domain,
        unweighted="bounds what one row adds: a heavier one would need more noise",
    ),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    least_silos=least_of_sums,
    validate_cohort=PrivateBoost.validate_cohort,
    colluders=PrivateBoost.colluders,
    starts_anew="its trees are within one budget; a further job would spend a further one",
)
