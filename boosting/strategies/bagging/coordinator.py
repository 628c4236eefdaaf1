"""The coordinator half of bagging; the package's docstring has the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.coordinator import ScoredTest, Upload, read_offer
from hedgerow.boosting.rounds.log import History, TreeLog
from hedgerow.boosting.rounds.scores import CoordinatorScores, masks_scores, mean_of_values
from hedgerow.boosting.rounds.steps import (
    SYNC,
    TREES,
    TreeCatchUp,
    TreeOffer,
    TreeRound,
    TreeStanding,
)
from hedgerow.boosting.strategies.bagging.covers import n_leaves, total_covers
from hedgerow.boosting.strategies.bagging.participation import factors, participants, rates
from hedgerow.boosting.strategies.bagging.steps import SCORES, ScoreSums, ScoreVerdict
from hedgerow.boosting.streams import round_drawn
from hedgerow.boosting.sums.label_mean import label_means

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.bagging.parameters import Bagging


async def coordinate(
    parameters: Bagging, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    half = _BaggingRounds(parameters, hub, start)
    hub.serve(SYNC, half.catch_up)
    await half.begin()
    while not half.over:
        yield await half.play()


class _BaggingRounds:
    """The half's state within an attempt."""

    def __init__(
        self, parameters: Bagging, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        self.parameters, self.hub, self.start = parameters, hub, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.log = TreeLog()
        self.history: History | None = None
        fixed = base_score.fixed(self.job)
        if start.checkpoint is not None:
            self.log, self.history = TreeLog.decode(start.checkpoint)
        elif fixed is not None:
            self.history = History(fixed)
        parameters.validate_for(self.job, self.schema)
        parameters.validate_cohort(len(start.silos))
        self.rows = dict(start.n_samples)
        self.synced: set[Silo] = set(hub.silos)
        self.asked: frozenset[Silo] = frozenset()  # whose scores are awaited
        self.stopped = False
        self.rates: dict[Silo, float] = {}
        self.test: ScoredTest | None = None
        without_test = start.test is None and parameters.evaluate == "auto"
        self.score_train = parameters.evaluate == "silos" or without_test
        self.score_valid = parameters.validation > 0
        self.sums: CoordinatorScores[ScoreSums, ScoreVerdict] | None = None
        if masks_scores(len(start.silos)):
            self.sums = CoordinatorScores(hub, start, SCORES, parameters.rounds_a_setup)
        self._plan(hub.silos)

    @property
    def over(self) -> bool:
        """Whether there is no further round."""
        return self.stopped or self.log.version >= self.parameters.rounds

    async def begin(self) -> None:
        """Agree on the base score and load the test rows."""
        if self.history is None:
            secure = self.parameters.masks_mean(len(self.start.silos))
            means = await label_means(self.hub, self.start, secure=secure)
            self.history = History(base_score.of_means(self.job, means))
        score = self.history.base_score
        self.test = await asyncio.to_thread(ScoredTest, self.start, self.log, score)

    async def play(self) -> RoundResult:
        """Play one round."""
        assert self.history is not None
        assert self.test is not None
        at = ExchangeKey(self.log.version)
        expected = tuple(silo for silo in self.hub.silos if silo in self.synced)
        uploads = await self.hub.collect(
            TREES, at, silos=expected, quorum=self.job.min_silos, read=self._read
        )
        added = {silo: upload for silo, upload in uploads.items() if upload.trees}
        scale = factors(
            self.parameters.lr_mode,
            self.rates,
            self.parameters.step(self.job),
            {silo: self.rows[silo] for silo in added},
            {silo: upload.gain for silo, upload in added.items()},
        )
        packs = [(silo, scale[silo], upload.data) for silo, upload in added.items()]
        self.log.add(TreeRound.of(self.parameters.trees_per_round, packs))
        self.synced.update(uploads)
        self._plan(uploads)
        asked = tuple(uploads) if self.score_train or self.score_valid else ()
        if asked and self.sums is not None:
            asked = self.sums.asked(at.round, asked)
        self.asked = frozenset(asked)
        replies = {silo: self._standing(silo, uploads[silo].version) for silo in uploads}
        self.hub.answer(TREES, at, replies)
        new = [tree.scaled(scale[silo]) for silo in added for tree in added[silo].trees]
        steps = self.parameters.trees_per_round * len(added)
        scores = await asyncio.to_thread(self.test.add, new, steps)
        if asked:
            scores |= await self._silo_scores(at, asked)
        if self.over and self.parameters.sums_covers(len(self.start.silos)):
            await self._sum_covers()
        return RoundResult(
            round=at.round,
            checkpoint=self.log.encode(self.history),
            metrics=scores,
            silos=tuple(added),
            final=self.over,
            best_round=self.history.best_round
            if self.parameters.early_stopping_rounds
            else at.round,
        )

    async def _sum_covers(self) -> None:
        """Ask the silos for the finished model's covers and gains over all of their rows."""
        assert self.history is not None
        assert self.test is not None
        trees = self.log.ensemble(self.test.blank).trees
        at = ExchangeKey(self.log.version)
        totals = await total_covers(self.hub, self.start, at, n_leaves(trees))
        if totals is not None:
            self.history.leaf_sums = totals.astype("<f4").tobytes()

    def catch_up(self, silo: Silo, at: ExchangeKey, offer: TreeCatchUp) -> TreeStanding:
        """Answer a silo that starts, restarts or was left out."""
        self.synced.add(silo)
        self.rows[silo] = offer.n_samples
        standing = self._standing(silo, offer.version, restarted=True)
        if offer.first_round <= standing.round:
            return standing
        return replace(standing, round=offer.first_round, eta=0.0)

    def _standing(self, silo: Silo, version: int, restarted: bool = False) -> TreeStanding:
        asked = silo in self.asked
        return TreeStanding(
            round=self.log.version,
            eta=self.rates.get(silo, 0.0),
            base_score=None if self.history is None else self.history.base_score,
            version=self.log.version,
            digest=self.log.digest,
            score_train=asked and self.score_train,
            score_valid=asked and self.score_valid,
            rounds=self.log.since(version, None if restarted else silo),
        )

    def _plan(self, present: Iterable[Silo]) -> None:
        """Settle who takes part in the next round, and with which learning rates."""
        drawn = participants(
            {silo: self.rows.get(silo, 0) for silo in present},
            round_drawn(self.job, self.log.version),
            seed=self.job.seed,
            count=self.parameters.silos_per_round,
            cyclic=self.parameters.mode == "cyclic",
        )
        step = self.parameters.step(self.job)
        self.rates = rates(self.parameters.lr_mode, step, {s: self.rows[s] for s in drawn})

    def _read(self, silo: Silo, offer: TreeOffer) -> Upload:
        """Return the trees of an offer after checking them."""
        steps, eta = self.parameters.trees_per_round, self.rates.get(silo)
        limits = None
        if eta is not None:
            limits = self.parameters.limits(self.job, self.schema, steps, eta)
        return read_offer(self.log, silo, offer, steps, limits)

    async def _silo_scores(
        self, at: ExchangeKey, silos: tuple[Silo, ...]
    ) -> dict[str, dict[str, float]]:
        """Collect the silos' scores, and decide whether to stop."""
        answer: Callable[[ScoreVerdict], None]
        if self.sums is None:
            scores, answer = await self._told_scores(at, silos)
        else:
            at = ExchangeKey(at.round, 1)
            tables = ["train"] * self.score_train + ["valid"] * self.score_valid
            found = await self.sums.total(at, silos, self.names, len(tables))
            self.asked = frozenset()
            if found is None:
                return {}
            scores, answer = {}, found.answer
            totals = found.total.reshape(len(tables), -1)
            for table, total in zip(tables, totals, strict=True):
                scores[table] = metrics.combine(self.names, total, n_outputs=self.schema.n_scored)
        self._choose(at.round, scores)
        answer(ScoreVerdict(self.stopped))
        return scores

    async def _told_scores(
        self, at: ExchangeKey, silos: tuple[Silo, ...]
    ) -> tuple[dict[str, dict[str, float]], Callable[[ScoreVerdict], None]]:
        """Return the mean of what each silo tells, and what releases them."""
        quorum = min(len(silos), self.job.min_silos)
        offers = await self.hub.collect(
            SCORES.plain, at, silos=silos, quorum=quorum, read=self._read_scores
        )
        self.asked = frozenset()
        parts = {
            "train": {silo: offer.train for silo, offer in offers.items() if len(offer.train)},
            "valid": {silo: offer.valid for silo, offer in offers.items() if len(offer.valid)},
        }
        scores = {
            part: mean_of_values(self.names, found, self.rows)
            for part, found in parts.items()
            if found
        }

        def answer(verdict: ScoreVerdict) -> None:
            self.hub.answer(SCORES.plain, at, dict.fromkeys(offers, verdict))

        return scores, answer

    def _choose(self, round_: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Note which round is the best so far, and whether too many were no better."""
        assert self.history is not None
        if "valid" in scores:
            self.history.note(self.names[0], round_, scores["valid"][self.names[0]])
            self.stopped = self.history.ends(round_, self.parameters.early_stopping_rounds)

    def _read_scores(self, silo: Silo, offer: ScoreSums) -> ScoreSums:
        """Return a silo's metrics after checking their number; empty where there are no rows."""
        for values in (offer.train, offer.valid):
            if len(values) not in (0, len(self.names)):
                raise OfferRejected(
                    f"expected scores by {len(self.names)} metrics, received {len(values)}"
                )
        return offer
