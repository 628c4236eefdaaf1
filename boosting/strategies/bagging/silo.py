"""The silo half of bagging; the package's docstring has the protocol."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected, PlacePassed, SumRefused
from hedgerow.boosting.exchange import ExchangeKey, SiloChannel
from hedgerow.boosting.job import ADAPTIVE
from hedgerow.boosting.metric_sums import SummedMetrics
from hedgerow.boosting.rounds.scores import SiloScores, masks_scores, values_of
from hedgerow.boosting.rounds.silo import SiloModel
from hedgerow.boosting.rounds.steps import TREES, TreeOffer, TreeStanding
from hedgerow.boosting.strategies.bagging.covers import add_covers
from hedgerow.boosting.strategies.bagging.steps import SCORES, ScoreSums, ScoreVerdict
from hedgerow.boosting.streams import Purpose, generator, round_drawn, xgboost_seed
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.local import (
    booster_parameters,
    constrained,
    roster_index,
    split_dataset,
)
from hedgerow.boosting.trees.packing import Shrinkage, pack

if TYPE_CHECKING:
    from hedgerow.boosting.ports import ModelCheck, SiloStart
    from hedgerow.boosting.strategies.bagging.parameters import Bagging
    from hedgerow.crypto.vault.interface import Vault


def participate(
    parameters: Bagging, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck | None:
    """Run the silo half; returns how this silo knows the model."""
    half = _BaggingSilo(parameters, link, vault, start)
    standing = half.model.catch_up(first_round=-1)
    while True:
        asked = standing.score_train or standing.score_valid
        if not asked and standing.round >= parameters.rounds:
            return half.end()
        resume_at = standing.round
        try:
            if asked:
                if half.score(standing).stop:
                    return half.end()
                standing = replace(standing, score_train=False, score_valid=False)
            else:
                resume_at += 1
                offer = half.train(standing)
                standing = half.model.receive(
                    link.exchange(TREES, ExchangeKey(standing.round), offer)
                )
        except PlacePassed:
            if half.sums is not None:
                half.sums.entered_anew()
            standing = half.model.catch_up(first_round=resume_at)


class _BaggingSilo:
    """The half's state within an attempt: rows with their margins, and all trees as packed."""

    def __init__(
        self, parameters: Bagging, link: SiloChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters, self.link, self.vault, self.start = parameters, link, vault, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.index = roster_index(start.silo, start.silos)
        self.sums: SiloScores[ScoreSums, ScoreVerdict] | None = None
        if masks_scores(len(start.silos)):
            self.sums = SiloScores(link, vault, start, SCORES, parameters.rounds_a_setup)
        self.native = booster_parameters(
            constrained(self.job.booster, self.schema),
            self.job.objective,
            self.schema.n_outputs,
            start.n_threads,
            start.device,
        )
        limits = parameters.limits(self.job, self.schema, parameters.trees_per_round, math.inf)
        tables = [start.dataset]
        if parameters.validation > 0.0:
            rng = generator(start.draws, self.index, 0, Purpose.SPLIT)
            parts = split_dataset(start.dataset, parameters.validation, rng)
            tables = [start.dataset.take(part) for part in parts]
        self.model = SiloModel(
            link,
            vault,
            start,
            limits,
            parameters.trees_per_round,
            secure=parameters.masks_mean(len(start.silos)),
            tables=tables,
        )

    def train(self, standing: TreeStanding) -> TreeOffer:
        """Return this silo's trees for a round; none where it takes no part."""
        self.link.check()
        model = self.model
        model.offered = TreeOffer(model.version, 0, 0.0, b"")
        idle = standing.eta <= 0 or model.version != standing.round
        if idle or not model.scored or model.tables[0].n_samples == 0:
            return model.offered
        rows = model.scored[0]
        drawn = round_drawn(self.job, standing.round)
        seed = xgboost_seed(self.start.draws, self.index, drawn, Purpose.XGBOOST)
        native = self.native | {"eta": standing.eta, "seed": seed}
        n_steps = self.parameters.trees_per_round
        if self.start.trainer is None:
            trees = rows.train(native, n_steps, check=self.link.check)
        else:
            trees = self.start.trainer(rows.dataset, rows.margins, native, n_steps)
            self.link.check()
        eta = standing.eta / self.job.booster.num_parallel_tree
        if self.job.objective in ADAPTIVE and model.blank is not None:
            own = self.job.objective == "reg:quantileerror"
            alpha = self.job.booster.quantile_alpha if own else 0.5
            trees = rows.smoothed(trees, model.blank.unnamed(), n_steps, alpha, eta)
        gain = sum(tree.total_gain for tree in trees)
        if self.parameters.scrub == "stats":
            trees = [tree.scrubbed() for tree in trees]
        limits = self.parameters.limits(self.job, self.schema, n_steps, standing.eta)
        trees = [tree.clipped(limits.leaf_bound) for tree in trees]
        booster = self.job.booster
        data = pack(trees, Shrinkage(eta, booster.lambda_, booster.alpha))
        model.offered = TreeOffer(model.version, n_steps, gain, data)
        return model.offered

    def end(self) -> ModelCheck | None:
        """Add this silo's part of the covers; return how it knows the model."""
        self.add_covers()
        return self.model.check(any_round=self.parameters.early_stopping_rounds > 0)

    def add_covers(self) -> None:
        """Add this silo's rows to the finished model's covers and gains, if the job sums them."""
        model = self.model
        if not self.parameters.sums_covers(len(self.start.silos)) or model.blank is None:
            return
        if model.version == self.start.first_round:  # the last round is stored, and they with it
            return
        # The model is whole without: a silo that missed the sum, or refuses it, has finished.
        with suppress(PlacePassed, SumRefused):
            at = ExchangeKey(model.version)
            given = at, model.state, model.blank, model.trees()
            add_covers(self.link, self.vault, self.start, *given)

    def score(self, standing: TreeStanding) -> ScoreVerdict:
        """Score this silo's rows as far as asked for; return whether the job ends."""
        at = ExchangeKey(standing.version - 1)
        asked = standing.score_train, standing.score_valid
        scored = self.parameters.scores_silos(self.job), self.parameters.validation > 0
        if any(one > own for one, own in zip(asked, scored, strict=True)):
            raise OfferRejected("scores were asked for of rows that the signed job does not score")
        if self.sums is None:
            told = (self._told(k) if asked[k] else np.zeros(0) for k in (0, 1))
            return self.link.exchange(SCORES.plain, at, ScoreSums(*told))

        def parts(summed: SummedMetrics) -> NDArray[np.uint64]:
            return np.concatenate([self._parts(summed, k) for k in (0, 1) if asked[k]])

        state = state_digest(*self.model.state, *map(int, asked))
        return self.sums.add(ExchangeKey(at.round, 1), self.names, parts, state)

    def _told(self, table: int) -> NDArray[np.float64]:
        if not self.model.tables[table].n_samples:
            return np.zeros(0)
        return values_of(self.names, lambda summed: self._parts(summed, table), self.start)

    def _parts(self, summed: SummedMetrics, table: int) -> NDArray[np.uint64]:
        """Return the metrics' additive forms over the rows of a table; zeros for no rows."""
        if not self.model.tables[table].n_samples:
            return np.zeros(summed.n_residues, np.uint64)
        assert self.model.blank is not None
        rows = self.model.scored[table]
        return summed.parts(
            rows.dataset.labels,
            rows.margins,
            objective=self.job.objective,
            weight=rows.dataset.weight,
            center=float(self.model.blank.base_margins(1).reshape(-1)[0]),
        )
