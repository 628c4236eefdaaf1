"""Exploring: what the silos' tables are like together, before anyone trains.

The coordinator relays sums that only the silos open (``blind_coordinator``), and checks by the
silos find what it would change of them. Every silo decides the same from the same totals: cut
points by the bisection of counts, centres and scales of columns, what is summed next. At the end
each derives the table that may be told, without small counts
(:mod:`hedgerow.boosting.engine.cells`), and sends it; the coordinator takes it where all
silos' tables are the same bytes.

=========  ===========  ====================================================  ===============
step       place        a silo offers                                         and receives
=========  ===========  ====================================================  ===============
length     each sum     how many numbers it would add, 0 at the end           nothing
sum        each sum     masked: counts, sums, powers and products             masked totals
release    the end      counts, means and correlations over all silos         nothing
=========  ===========  ====================================================  ===============

All numbers are integers, so totals are the same for any division of the rows over silos.
"""

from __future__ import annotations

from hedgerow.boosting.ports import Horizontal, Result, Strategy
from hedgerow.boosting.strategies.explore.coordinator import coordinate
from hedgerow.boosting.strategies.explore.forecast import allowances, forecast
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.explore.silo import participate
from hedgerow.boosting.strategies.explore.statistics import artefact
from hedgerow.boosting.strategies.explore.steps import REVEALS

STRATEGY = Strategy(
    parameters=Explore,
    layout=Horizontal(exact_rows=False, unweighted="counts rows, and each counts once"),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    result=Result.TABLE,
    least_silos=lambda _: 3,
    starts_anew="it trains no model",
)
