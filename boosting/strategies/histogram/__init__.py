"""Histogram boosting: on the same cuts pooled boosting's trees, bit for bit, by summed histograms.

Silos sum the gradients of their rows by tree node, feature and bin. The coordinator adds the silos'
histograms, by secure sums unless the job turns them off, finds the splits and sends them back. A
row's gradients become integers before they are summed (fixed point with a range proof), so sums
are exact in any order and under masks. A blind coordinator passes masked totals on instead, and
every silo finds the same splits.

| step | RPC | round, level | silo offers | silo receives |
|---|---|---|---|---|
| ``sync`` | ExchangeSketches | – | – | the round at which it may enter |
| ``enter`` | ExchangeSketches | at entries | the rounds it knows | cut points and trees |
| ``sum-keys``, … | see :mod:`hedgerow.boosting.sums` | at entries | – | – |
| ``sum`` | ExchangeSums | 0 | row count and largest weight; label sums | totals |
| ``median`` | ExchangeSums | 0, pass | labels below proposed values | the next, or what follows |
| ``cuts`` | ExchangeSketches | 0 | quantile summaries | cut points |
| ``proposals`` | ExchangeSketches | 0, pass | number of values (blind) | – |
| ``counts`` | ExchangeSketches | 0, pass | rows below proposed values | the next, or cut points |
| ``sum`` | ExchangeSums | r, pass | largest gradients (no static bound) | the largest of all |
| ``sum`` | ExchangeSums | at entries | whether it has checked the trees | how many silos have |
| ``risk-sets`` | ExchangeSums | r | events, exponentials of margins by cell of times | totals |
| ``thresholds`` | ExchangeSums | r, pass | gradient sizes (global MVS) | the threshold |
| ``histograms`` | ExchangeHistograms | r, level | sums by node, feature, bin | splits |
| ``leaves`` | ExchangeHistograms | r | a word; lossless leaf sums (coarse search) | node sums |
| ``leaf-quantiles`` | ExchangeHistograms | r, pass | rows by leaf below residuals | totals |
| ``grown`` | ExchangeHistograms | r | – (not drawn) | the round's trees |
| ``errors`` | ExchangeSums | last, pass | rows held back with errors below values | totals |
| ``scores-sum`` | ExchangeSums | r | metric sums | what follows the round |

``histograms``, ``leaves``, ``leaf-quantiles``, ``risk-sets``, ``thresholds``, ``counts``,
``median``, ``scores-sum`` and ``sum`` are secure sums of :mod:`hedgerow.boosting.sums`; no silo
says a number of its rows beside them. Level 0
sums each tree's totals and its root's histogram, level l the lighter child of each pair; the
heavier one is parent minus child. The trees of all classes of a round share its sums. Numbers
travel in as few bits as they need (:mod:`.rings`); where a guessed width was too narrow, the level
is summed again in a second pass.

Masked vectors begin with a word by which silos check the totals that they receive
(:mod:`hedgerow.crypto.masking.totals`): node sums, from which they derive leaf values, counts below
values, label sums, the largest weight and gradients. The trees' last nodes have a sum of their own,
``leaves``. Only scores and thresholds are not checked.

Leaves of a median or quantile are quantiles of residuals, label minus margin, as XGBoost's. All
parties search them from counts of rows by leaf (:mod:`hedgerow.boosting.engine.leaf_quantiles`).
Labels are replaced once by values of cells that ``min_cell`` rows or more share, for counts and
gradients of rows change from round to round by few rows: without that, their differences were
single labels.

Gradients of Cox's partial likelihood compare a row with those at risk in all silos, by sums over
cells of event times (:mod:`hedgerow.boosting.engine.cox`).

With ``silos_per_round`` a round is over a cohort that every party draws alike from the signed job
(:mod:`.cohorts`). Its silos agree on keys of their own; each refuses a group with a silo outside of
the cohort, or fewer than the cohort's threshold. The others receive the trees when they are grown.

A silo lost in a round is missing from the next sums. Inside a tree that sum stays masked, divisions
whose children were in no sum are taken back, and the next round starts without the silo. A silo
that starts late or returns enters before a round, when all silos agree on fresh keys. The
coordinator stores what it decided from a sum before it answers, so that a restart never asks for
the sum over another set.

References
----------
Cheng et al., SecureBoost, 2021 (its horizontal form in FATE, whose profile is 200 rounds of depth 3
to 8 with eta from .001 to .1; ``[booster]`` has XGBoost's defaults). docs/strategies/histogram.md;
docs/threat-model.md for the secure sums.
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Strategy, least_of_sums
from hedgerow.boosting.strategies.histogram.artefact import artefact
from hedgerow.boosting.strategies.histogram.coordinator import coordinate
from hedgerow.boosting.strategies.histogram.forecast import allowances, forecast
from hedgerow.boosting.strategies.histogram.memory import memory
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.removal import first_rounds, why_from_start
from hedgerow.boosting.strategies.histogram.silo import participate
from hedgerow.boosting.strategies.histogram.steps import REVEALS

STRATEGY = Strategy(
    parameters=Histogram,
    layout=Horizontal(
        unweighted="",
        validates=lambda parameters: parameters.validation_tables,
        survival=True,
        ranking=True,
        several_labels=True,
        base_margin=lambda parameters: parameters.base_margin,
    ),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    least_silos=least_of_sums,
    validate_cohort=Histogram.validate_cohort,
    memory=memory,
    draws=Histogram.draws,
    why_from_start=why_from_start,
    first_rounds=first_rounds,
)
