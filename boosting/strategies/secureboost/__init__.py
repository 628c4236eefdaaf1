"""Vertical SecureBoost: lossless boosting over parties with different columns of the same rows.

The *active* party holds the labels, *passive* parties hold features only. The active
party encrypts each row's gradient; passive parties sum ciphertexts over the rows below each of
their bin edges; the active party decrypts these sums, picks the best division among its own and
theirs, and the owner of the division reports which rows go left. All messages travel through the
coordinator, which sees ciphertexts, lengths and the names of steps, and scores where the active
party's policy allows them; what else parties send each other is sealed between two of them.

===========  ===============  ===============================  ==============================
step         RPC              active party offers              passive party offers
===========  ===============  ===============================  ==============================
keys         ExchangeKeys     signed keys, also for Paillier   signed keys
identifiers  ..Identifiers    blinded ids, sealed              blinded ids, sealed
gradients    ..Gradients      encrypted gradients; sampled     number of its candidates
                              rows, sealed
histograms   ..Histograms     nothing                          encrypted sums of candidates,
                                                               shuffled and re-randomised
splits       ..Splits         who divides which node, and its  nothing
                              own row bitmaps, sealed
bitmaps      ..Splits         nothing                          its row bitmaps, sealed
margins      ..Scores         rows at nodes of others, sealed  the same
leaves       ..Gradients      encrypted leaf values (EINI)     encrypted sums of them
scores       ..Scores         digest of structures, scores     nothing
===========  ===============  ===============================  ==============================

Every party takes part in every exchange, and every reply names the next step, which the active
party decides. A level of a tree takes two exchanges, or three where a passive party divides a node.
Of two children only the one with fewer rows is summed; the other one is parent minus child, in
plaintext at the active party.

**Equality.** With the same cuts the trees are those that the engine grows on the joined table,
columns of the active party first, rows sorted by id; guards (``min_leaf``, ``max_purity``, a
policy's ``min_bin_rows``) can make a difference where they reject a division. Columns of text are
divided by the position of their category in alphabetical order, or into sets. Default parameters of
the booster are XGBoost's.

References
----------
K. Cheng et al., SecureBoost: a lossless federated learning framework, 2021. W. Chen et al.,
SecureBoost+, 2021. X. Chen et al., EINI: efficient and interpretable inference, 2021.
"""

from __future__ import annotations

from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Result, Strategy, Vertical
from hedgerow.boosting.strategies.secureboost.coordinator import artefact, coordinate
from hedgerow.boosting.strategies.secureboost.forecast import allowances, forecast, forecasts
from hedgerow.boosting.strategies.secureboost.memory import memory
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.reveals import REVEALS
from hedgerow.boosting.strategies.secureboost.silo import participate

STRATEGY = Strategy(
    parameters=SecureBoost,
    layout=Vertical(
        active=lambda parameters: Silo(parameters.active),
        validates=lambda parameters: parameters.validation_tables and not parameters.predict_from,
        scores_only=lambda parameters: bool(parameters.predict_from),
        starts_from=lambda parameters: parameters.predict_from or parameters.warm_start,
        row_columns=lambda parameters: (parameters.weight, parameters.base_margin),
        forecasts=forecasts,
    ),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=allowances,
    result=Result.PARTS,
    validate_cohort=SecureBoost.validate_cohort,
    memory=memory,
    starts_anew="each party has its own part; set warm_start in [secureboost] to the run's job",
)
