"""The silo half of bagging; the package's docstring has the protocol."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import FederationError, OfferRejected, PlacePassed, SumRefused
from hedgerow.boosting.exchange import Link, Place
from hedgerow.boosting.strategies.bagging import base_score
from hedgerow.boosting.strategies.bagging.covers import add_covers, leaf_sums
from hedgerow.boosting.strategies.bagging.steps import (
    GENESIS,
    SCORES,
    SYNC,
    TREES,
    ScoreSums,
    TreeBlock,
    TreeCatchUp,
    TreeOffer,
    TreeStanding,
    extend_digest,
)
from hedgerow.boosting.streams import Purpose, xgboost_seed
from hedgerow.boosting.sums.label_mean import offered_mean
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import read_upload
from hedgerow.boosting.trees.local import ScoredRows, booster_parameters, roster_index, split_rows
from hedgerow.boosting.trees.packing import Shrinkage, pack

if TYPE_CHECKING:
    from hedgerow.boosting.ports import SiloStart
    from hedgerow.boosting.strategies.bagging.parameters import Bagging
    from hedgerow.crypto.vault import Vault


def participate(parameters: Bagging, link: Link, vault: Vault | None, start: SiloStart) -> None:
    """Run the silo half."""
    half = _BaggingSilo(parameters, link, vault, start)
    standing = half.catch_up(first_round=-1)
    while True:
        asked = standing.score_train or standing.score_valid
        if not asked and standing.round >= parameters.rounds:
            return half.add_covers()
        resume_at = standing.round
        try:
            if asked:
                scores = half.scores(standing)
                if link.exchange(SCORES, Place(standing.version - 1), scores).stop:
                    return half.add_covers()
                standing = replace(standing, score_train=False, score_valid=False)
            else:
                resume_at += 1
                offer = half.train(standing)
                standing = half.receive(link.exchange(TREES, Place(standing.round), offer))
        except PlacePassed:
            standing = half.catch_up(first_round=resume_at)


class _BaggingSilo:
    """The half's state within an attempt: rows with their margins, and all blocks as packed."""

    def __init__(
        self, parameters: Bagging, link: Link, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters, self.link, self.vault, self.start = parameters, link, vault, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.index = roster_index(start.silo, start.silos)
        self.native = booster_parameters(
            self.job.booster, self.job.objective, self.schema.n_outputs, start.n_threads
        )
        self.version = 0
        self.digest = GENESIS
        self.offered = TreeOffer(0, 0, 0.0, b"")
        self.blocks: list[TreeBlock] = []
        self.blank: Ensemble | None = None
        self.train_rows: ScoredRows | None = None
        self.valid_rows: ScoredRows | None = None

    def catch_up(self, first_round: int) -> TreeStanding:
        """Synchronise; agree on the base score first where there is none yet."""
        at = Place(max(first_round, 0))
        request = TreeCatchUp(self.version, first_round, self.start.dataset.n_samples)
        standing = self.receive(self.link.exchange(SYNC, at, request))
        if first_round >= 0 or standing.base_score is not None:
            return standing
        if base_score.fixed(self.job) is not None:
            raise OfferRejected("expected the base score that the job fixes, received none")
        try:
            secure = self.parameters.masks_mean(len(self.start.silos))
            mean = offered_mean(self.link, self.vault, self.start, secure=secure)
        except PlacePassed:
            return self.catch_up(first_round=0)
        self._load(base_score.of_mean(self.job, mean))
        return standing

    def train(self, standing: TreeStanding) -> TreeOffer:
        """Return this silo's trees for a round; none where it takes no part."""
        self.link.check()
        self.offered = TreeOffer(self.version, 0, 0.0, b"")
        rows = self.train_rows
        idle = standing.eta <= 0 or self.version != standing.round
        if idle or rows is None or rows.dataset.n_samples == 0:
            return self.offered
        seed = xgboost_seed(self.job.seed, self.index, standing.round, Purpose.XGBOOST)
        native = self.native | {"eta": standing.eta, "seed": seed}
        n_steps = self.parameters.trees_per_round
        if self.start.trainer is None:
            trees = rows.train(native, n_steps, check=self.link.check)
        else:
            trees = self.start.trainer(rows.dataset, rows.margins, native, n_steps)
            self.link.check()
        gain = sum(tree.total_gain for tree in trees)
        if self.parameters.scrub == "stats":
            trees = [tree.scrubbed() for tree in trees]
        limits = self.parameters.limits(self.job, self.schema, n_steps, standing.eta)
        trees = [tree.clipped(limits.leaf_bound) for tree in trees]
        booster = self.job.booster
        eta = standing.eta / booster.num_parallel_tree
        data = pack(trees, Shrinkage(eta, booster.lambda_, booster.alpha))
        self.offered = TreeOffer(self.version, n_steps, gain, data)
        return self.offered

    def receive(self, standing: TreeStanding) -> TreeStanding:
        """Add what the others added; the silo's own trees are not sent back to it."""
        if standing.base_score is not None:
            self._load(standing.base_score)
        blocks = []
        digest = self.digest
        for block in standing.blocks:
            own = block.silo == self.start.silo and not block.data and block.steps
            blocks.append(replace(block, data=self.offered.data) if own else block)
            digest = extend_digest(digest, blocks[-1])
        if digest != standing.digest:
            raise FederationError(
                f"the model of {self.start.silo} after {standing.version} rounds differs from "
                "the coordinator's"
            )
        if blocks:
            if self.blank is None:
                raise OfferRejected("expected a base score before the first trees, received none")
            added = self.blank
            for block in blocks:
                added = added.extend(self._trees_of(block), n_steps=block.steps)
            for rows in (self.train_rows, self.valid_rows):
                if rows is not None:
                    rows.add(added)
        self.blocks += blocks
        self.version, self.digest = standing.version, digest
        return standing

    def add_covers(self) -> None:
        """Add this silo's rows to the finished model's covers and gains, if the job sums them."""
        if not self.parameters.sums_covers(len(self.start.silos)) or self.blank is None:
            return
        rounds: list[list[tuple[int, list[Tree]]]] = [[] for _ in range(self.version)]
        for block in self.blocks:
            rounds[block.round].append((block.steps, self._trees_of(block)))
        sums = leaf_sums(self.start, self.blank, rounds, self.native)
        # The model is whole without: a silo that missed the sum, or refuses it, has finished.
        with suppress(PlacePassed, SumRefused):
            at = Place(self.version)
            add_covers(self.link, self.vault, self.start, at, self.digest, sums)

    def scores(self, standing: TreeStanding) -> ScoreSums:
        """Return the metrics of this silo's rows in their additive form, as far as asked for."""
        return ScoreSums(
            train=self._sums(self.train_rows if standing.score_train else None),
            valid=self._sums(self.valid_rows if standing.score_valid else None),
        )

    def _sums(self, rows: ScoredRows | None) -> NDArray[np.float64]:
        if rows is None or rows.dataset.n_samples == 0:
            return np.zeros(0)
        assert self.blank is not None
        return metrics.sums(
            self.names,
            rows.dataset.labels,
            rows.margins,
            objective=self.job.objective,
            weight=rows.dataset.weight,
            center=float(self.blank.base_margins(1).reshape(-1)[0]),
        )

    def _trees_of(self, block: TreeBlock) -> list[Tree]:
        """Return the trees of a block; the coordinator is not trusted with XGBoost's memory."""
        expected = self.parameters.trees_per_round
        if block.steps != expected:
            raise OfferRejected(f"expected a block of {expected} steps, received {block.steps}")
        limits = self.parameters.limits(self.job, self.schema, block.steps, math.inf)
        sender = f"the coordinator, as trees of {block.silo}"
        return read_upload(block.data, limits, stats=False, factor=block.factor, sender=sender)

    def _load(self, score: float) -> None:
        """Load the rows, once the base score is known."""
        if self.blank is not None:
            return
        self.blank = blank(self.schema, self.job.objective, self.job.booster, score)
        dataset = self.start.dataset
        threads = self.start.n_threads
        share = self.parameters.validation
        if share == 0.0:
            self.train_rows = ScoredRows(dataset, self.blank, threads)
            return
        seed = xgboost_seed(self.job.seed, self.index, 0, Purpose.SPLIT)
        kept, held = split_rows(dataset.n_samples, share, np.random.default_rng(seed))
        self.train_rows = ScoredRows(dataset.take(kept), self.blank, threads)
        self.valid_rows = ScoredRows(dataset.take(held), self.blank, threads)
