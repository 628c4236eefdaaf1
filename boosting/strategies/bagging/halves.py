"""The two halves of bagging: what coordinator and silo do in each step of the protocol.

The protocol's table is in :class:`hedgerow.boosting.strategies.bagging.parameters.Bagging`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import FederationError, OfferRejected, PlacePassed, QuorumLost
from hedgerow.boosting.exchange import Call, Hub, Link, Place, Silo, Step
from hedgerow.boosting.ports import CoordinatorStart, RoundResult, SiloStart
from hedgerow.boosting.strategies.bagging.participation import factors, participants, rates
from hedgerow.boosting.strategies.bagging.steps import (
    GENESIS,
    CatchUp,
    ScoreSums,
    Standing,
    TreeBlock,
    TreeLog,
    TreeOffer,
    Verdict,
    extend_digest,
)
from hedgerow.boosting.streams import Purpose, xgboost_seed
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import validate_upload
from hedgerow.boosting.trees.local import ScoredRows, booster_parameters, roster_index, split_rows
from hedgerow.boosting.trees.packing import Shrinkage, pack, unpack

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.bagging.parameters import Bagging
    from hedgerow.crypto.vault import Vault

SYNC = Step("sync", Call.TREES, CatchUp, Standing, "how many rounds of the model it holds")
TREES = Step(
    "trees",
    Call.TREES,
    TreeOffer,
    Standing,
    "to all silos: new trees, whose thresholds are values of its rows and whose leaves are "
    "statistics of small groups of them",
)
SCORES = Step(
    "scores",
    Call.SCORES,
    ScoreSums,
    Verdict,
    "to the coordinator: sums of losses and counts of scores over its rows, by class",
)

_POSITIVE = ("reg:gamma", "reg:tweedie", "count:poisson")  # objectives whose mean must be


@dataclass(frozen=True, slots=True)
class History:
    """What a checkpoint keeps beside the trees.

    Parameters
    ----------
    base_score : float
        On the label's scale; NaN while it is not agreed on.
    best_round : int
        Round with the best validation score, -1 without one.
    best_score : float
    """

    base_score: float
    best_round: int = -1
    best_score: float = math.nan

    @classmethod
    def of(cls, about: Mapping[str, object]) -> History:
        """Return what a checkpoint says."""
        return cls(**about)  # type: ignore[arg-type]


class CoordinatorHalf:
    """The coordinator half's state within an attempt."""

    def __init__(self, strategy: Bagging, hub: Hub, start: CoordinatorStart) -> None:
        self.strategy, self.hub, self.start = strategy, hub, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.log = TreeLog()
        self.history = History(_fixed_base_score(self.job))
        if start.checkpoint is not None:
            self.log, about = TreeLog.decode(start.checkpoint)
            self.history = History.of(about)
        strategy.validate_for(self.job, self.schema)
        self.rows = dict(start.n_samples)
        self.synced: set[Silo] = set(hub.silos)
        self.asked: frozenset[Silo] = frozenset()  # whose scores are awaited
        self.stopped = False
        self.rates: dict[Silo, float] = {}
        self.blank: Ensemble | None = None
        self.test: ScoredRows | None = None
        without_test = start.test is None and strategy.evaluate == "auto"
        self.scored: tuple[str, ...] = ()
        if strategy.evaluate == "silos" or without_test:
            self.scored += ("train",)
        if strategy.validation > 0:
            self.scored += ("valid",)
        self._plan(hub.silos)

    @property
    def over(self) -> bool:
        """Whether there is no further round."""
        return self.stopped or self.log.version >= self.strategy.rounds

    async def begin(self) -> None:
        """Agree on the base score and load the test rows."""
        if math.isnan(self.history.base_score):
            from hedgerow.boosting.sums.label_mean import label_mean

            mean = await label_mean(self.hub, self.start, secure=self._secure)
            self.history = replace(self.history, base_score=_start_of(self.job, mean))
        await asyncio.to_thread(self._load)

    async def play(self) -> RoundResult:
        """Play one round."""
        at = Place(self.log.version)
        expected = tuple(silo for silo in self.hub.silos if silo in self.synced)
        quorum = self.job.min_silos
        offers = await self.hub.collect(TREES, at, silos=expected, quorum=quorum)
        trees, faults = await asyncio.to_thread(self._checked, offers)
        for silo, reason in faults.items():
            self.hub.reject(TREES, at, silo, reason)
        there = [silo for silo in offers if silo not in faults]
        if len(there) < quorum:
            raise QuorumLost(
                f"round {at.round} needs {quorum} silos; refused: "
                + "; ".join(f"{silo}: {reason}" for silo, reason in faults.items())
            )
        scale = factors(
            self.strategy.lr_mode,
            self.rates,
            self.strategy.step(self.job),
            {silo: self.rows[silo] for silo in trees},
            {silo: offers[silo].gain for silo in trees},
        )
        blocks = [
            TreeBlock(silo, at.round, offers[silo].steps, scale[silo], offers[silo].data)
            for silo in sorted(trees)
        ]
        self.log.end_round(blocks)
        self.synced.update(there)
        self._plan(there)
        self.asked = frozenset(there) if self.scored else frozenset()
        replies = {silo: self._standing(silo, offers[silo].version) for silo in there}
        self.hub.answer(TREES, at, replies)
        scores = await asyncio.to_thread(self._test_scores, blocks, trees)
        if self.scored:
            scores |= await self._silo_scores(at, there)
        return RoundResult(
            round=at.round,
            checkpoint=self.log.encode(asdict(self.history)),
            metrics=scores,
            silos=tuple(sorted(trees)),
            final=self.over,
            best_round=self.history.best_round if self.strategy.validation else at.round,
        )

    def catch_up(self, silo: Silo, at: Place, offer: CatchUp) -> Standing:
        """Answer a silo that starts, restarts or was left out."""
        self.synced.add(silo)
        self.rows[silo] = offer.n_samples
        standing = self._standing(silo, offer.version, restarted=True)
        if offer.first_round <= standing.round:
            return standing
        return replace(standing, round=offer.first_round, eta=0.0)

    @property
    def _secure(self) -> bool:
        return _secure_mean(self.strategy, self.start.silos)

    def _standing(self, silo: Silo, version: int, restarted: bool = False) -> Standing:
        return Standing(
            round=self.log.version,
            eta=self.rates.get(silo, 0.0),
            base_score=self.history.base_score,
            version=self.log.version,
            digest=self.log.digest,
            blocks=self.log.since(version, None if restarted else silo),
            scored=self.scored if silo in self.asked else (),
        )

    def _plan(self, present: tuple[Silo, ...] | list[Silo]) -> None:
        """Settle who takes part in the next round, and with which learning rates."""
        drawn = participants(
            {silo: self.rows.get(silo, 0) for silo in present},
            self.log.version,
            seed=self.job.seed,
            count=self.strategy.silos_per_round,
            cyclic=self.strategy.mode == "cyclic",
        )
        step = self.strategy.step(self.job)
        self.rates = rates(self.strategy.lr_mode, step, {s: self.rows[s] for s in drawn})

    def _checked(
        self, offers: Mapping[Silo, TreeOffer]
    ) -> tuple[dict[Silo, list[Tree]], dict[Silo, str]]:
        """Return the trees of sound offers that have some, and what is wrong with the others."""
        trees: dict[Silo, list[Tree]] = {}
        faults: dict[Silo, str] = {}
        for silo, offer in offers.items():
            try:
                if offer.steps == 0 and not offer.data:
                    continue
                if silo not in self.rates:
                    raise OfferRejected(f"{silo} offers trees in a round that it has no part in")
                if offer.version != self.log.version:
                    raise OfferRejected("trees that were trained on another model")
                if offer.steps != self.strategy.trees_per_round:
                    raise OfferRejected(
                        f"expected {self.strategy.trees_per_round} steps, {offer.steps} came"
                    )
                if not (math.isfinite(offer.gain) and offer.gain >= 0):
                    raise OfferRejected("a total gain that is no number from zero up")
                mine = unpack(offer.data)
                limits = self.strategy.limits(self.job, self.schema, offer.steps, self.rates[silo])
                validate_upload(mine, limits)
                trees[silo] = mine
            except OfferRejected as error:
                faults[silo] = str(error)
        return trees, faults

    def _load(self) -> None:
        self.blank = blank(
            self.schema, self.job.objective, self.job.booster, self.history.base_score
        )
        if self.start.test is not None and self.start.test.n_samples:
            self.test = ScoredRows(self.start.test, self.blank, 1)
            self.test.add(self.log.ensemble(self.blank))

    def _test_scores(
        self, blocks: list[TreeBlock], trees: Mapping[Silo, list[Tree]]
    ) -> dict[str, dict[str, float]]:
        if self.test is None:
            return {}
        assert self.blank is not None
        new = [tree.scaled(block.factor) for block in blocks for tree in trees[block.silo]]
        steps = sum(block.steps for block in blocks)
        self.test.add(self.blank.extend(new, n_steps=steps))
        rows = self.test.dataset
        return {
            "test": metrics.evaluate(
                self.names,
                rows.labels,
                self.test.margins,
                objective=self.job.objective,
                weight=rows.weight,
            )
        }

    async def _silo_scores(self, at: Place, silos: list[Silo]) -> dict[str, dict[str, float]]:
        """Collect the silos' score sums, and decide whether to stop."""
        offers = await self.hub.collect(
            SCORES, at, silos=tuple(silos), quorum=min(len(silos), self.job.min_silos)
        )
        self.asked = frozenset()
        outputs = self.schema.n_outputs
        size = metrics.width(self.names, outputs)
        scores = {}
        for part in ("train", "valid"):
            found = [getattr(offer, part) for offer in offers.values()]
            found = [sums for sums in found if sums.shape == (size,)]
            if found:
                scores[part] = metrics.combine(self.names, sum(found), n_outputs=outputs)
        if "valid" in scores:
            value = scores["valid"][self.names[0]]
            if metrics.better(self.names[0], value, self.history.best_score):
                self.history = replace(self.history, best_round=at.round, best_score=value)
            patience = self.strategy.early_stopping_rounds
            self.stopped = 0 < patience <= at.round - self.history.best_round
        self.hub.answer(SCORES, at, dict.fromkeys(offers, Verdict(self.stopped)))
        return scores


class SiloHalf:
    """The silo half's state within an attempt: rows with their margins, nothing of the trees."""

    def __init__(
        self, strategy: Bagging, link: Link, vault: Vault | None, start: SiloStart
    ) -> None:
        self.strategy, self.link, self.vault, self.start = strategy, link, vault, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.index = roster_index(start.silo, start.silos)
        self.parameters = booster_parameters(self.job, self.schema.n_outputs, start.n_threads)
        self.version = 0
        self.digest = GENESIS
        self.offered = TreeOffer(0, 0, 0.0, b"")
        self.blank: Ensemble | None = None
        self.parts: dict[str, ScoredRows] = {}

    def catch_up(self, first_round: int) -> Standing:
        """Synchronise; agree on the base score first where that is still to do."""
        at = Place(max(first_round, 0))
        request = CatchUp(self.version, first_round, self.start.dataset.n_samples)
        standing = self.hold(self.link.exchange(SYNC, at, request))
        if first_round >= 0 or not math.isnan(standing.base_score):
            return standing
        from hedgerow.boosting.sums.label_mean import offered_mean

        try:
            secure = _secure_mean(self.strategy, self.start.silos)
            mean = offered_mean(self.link, self.vault, self.start, secure=secure)
        except PlacePassed:
            return self.catch_up(first_round=0)
        self._begin(_start_of(self.job, mean))
        return standing

    def train(self, standing: Standing) -> TreeOffer:
        """Return this silo's trees for a round; none where it only looks on."""
        self.link.check()
        self.offered = TreeOffer(self.version, 0, 0.0, b"")
        rows = self.parts.get("train")
        looks_on = standing.eta <= 0 or self.version != standing.round
        if looks_on or rows is None or rows.dataset.n_samples == 0:
            return self.offered
        seed = xgboost_seed(self.job.seed, self.index, standing.round, Purpose.XGBOOST)
        parameters = self.parameters | {"eta": standing.eta, "seed": seed}
        n_steps = self.strategy.trees_per_round
        if self.start.trainer is None:
            trees = rows.train(parameters, n_steps, check=self.link.check)
        else:
            trees = self.start.trainer(rows.dataset, rows.margins, parameters, n_steps)
            self.link.check()
        gain = sum(tree.total_gain for tree in trees)
        if self.strategy.scrub == "stats":
            trees = [tree.scrubbed() for tree in trees]
        limits = self.strategy.limits(self.job, self.schema, n_steps, standing.eta)
        trees = [tree.clipped(limits.leaf_bound) for tree in trees]
        booster = self.job.booster
        eta = standing.eta / booster.num_parallel_tree
        data = pack(trees, Shrinkage(eta, booster.lambda_, booster.alpha))
        self.offered = TreeOffer(self.version, n_steps, gain, data)
        return self.offered

    def hold(self, standing: Standing) -> Standing:
        """Take in what the others added; the silo's own trees are not sent back to it."""
        if not math.isnan(standing.base_score):
            self._begin(standing.base_score)
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
            assert self.blank is not None, "there are no trees before the base score"
            added = self.blank
            for block in blocks:
                added = added.extend(self._checked(block), n_steps=block.steps)
            for rows in self.parts.values():
                rows.add(added)
        self.version, self.digest = standing.version, digest
        return standing

    def _checked(self, block: TreeBlock) -> list[Tree]:
        """Return the trees of a block; the coordinator is not trusted with XGBoost's memory."""
        if block.steps != self.strategy.trees_per_round:
            raise OfferRejected(f"a block of {block.steps} steps came from the coordinator")
        trees = unpack(block.data, stats=False)
        limits = self.strategy.limits(self.job, self.schema, block.steps, math.inf)
        validate_upload(trees, limits)
        return [tree.scaled(block.factor) for tree in trees]

    def scores(self, parts: tuple[str, ...]) -> ScoreSums:
        """Return the metrics of this silo's rows in their additive form."""
        sums = {part: np.zeros(0) for part in ("train", "valid")}
        for part in parts:
            rows = self.parts.get(part)
            if rows is None or rows.dataset.n_samples == 0:
                continue
            assert self.blank is not None
            sums[part] = metrics.sums(
                self.names,
                rows.dataset.labels,
                rows.margins,
                objective=self.job.objective,
                weight=rows.dataset.weight,
                center=float(self.blank.base_margins(1).reshape(-1)[0]),
            )
        return ScoreSums(sums["train"], sums["valid"])

    def _begin(self, base_score: float) -> None:
        """Load the rows, once the base score is known."""
        if self.blank is not None:
            return
        self.blank = blank(self.schema, self.job.objective, self.job.booster, base_score)
        dataset = self.start.dataset
        threads = self.start.n_threads
        seed = xgboost_seed(self.job.seed, self.index, 0, Purpose.SPLIT)
        share = self.strategy.validation
        if share == 0.0:
            self.parts = {"train": ScoredRows(dataset, self.blank, threads)}
            return
        kept, held = split_rows(dataset.n_samples, share, np.random.default_rng(seed))
        self.parts = {
            "train": ScoredRows(dataset.take(kept), self.blank, threads),
            "valid": ScoredRows(dataset.take(held), self.blank, threads),
        }


def _fixed_base_score(job: JobParameters) -> float:
    """Return the base score that needs no agreement, or NaN where silos must agree on a mean.

    It is never left to XGBoost, which estimates it from the rows of one silo.
    """
    if job.booster.base_score is not None:
        return job.booster.base_score
    return {Task.BINARY: 0.5, Task.MULTICLASS: 0.0, Task.REGRESSION: math.nan}[job.task]


def _start_of(job: JobParameters, mean: float) -> float:
    """Return the base score of a regression from the mean label."""
    if job.objective in _POSITIVE and not mean > 0.0:
        raise FederationError(f"{job.objective} needs labels with a positive mean")
    return mean


def _secure_mean(strategy: Bagging, roster: tuple[Silo, ...]) -> bool:
    return strategy.secure_mean and len(roster) >= 3
