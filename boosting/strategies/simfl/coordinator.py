"""The coordinator half of SimFL; the package's docstring has the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.ports import Artefact, CoordinatorStart, RoundResult
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.coordinator import ScoredTest, Upload, read_offer, stock_artefact
from hedgerow.boosting.rounds.log import History, TreeLog
from hedgerow.boosting.rounds.steps import (
    SYNC,
    TREES,
    TreeCatchUp,
    TreeOffer,
    TreeRound,
    TreeStanding,
)
from hedgerow.boosting.strategies.simfl.similarity import check_hashes
from hedgerow.boosting.strategies.simfl.steps import (
    GRADIENTS,
    HASHES,
    RANGES,
    FeatureRanges,
    GradientSums,
    OtherHashes,
    RowHashes,
)
from hedgerow.boosting.streams import round_drawn
from hedgerow.boosting.sums.label_mean import label_means
from hedgerow.boosting.trees.ensemble import blank

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.simfl.parameters import SimFL


async def coordinate(
    parameters: SimFL, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    half = _SimFLRounds(parameters, hub, start)
    hub.serve(SYNC, half.catch_up)
    await half.begin()
    while half.log.version < parameters.rounds:
        yield await half.play()


def artefact(parameters: SimFL, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
    """Return the stock XGBoost model and where each of its trees is from."""
    log, history = TreeLog.decode(checkpoint)
    start = blank(schema, job.objective, job.booster, history.base_score)
    return stock_artefact(log, log.ensemble(start), log.version)


class _SimFLRounds:
    """The half's state within an attempt."""

    def __init__(
        self, parameters: SimFL, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        self.parameters, self.hub, self.start = parameters, hub, start
        self.job, self.schema = start.job, start.schema
        parameters.validate_for(self.job, self.schema)
        self.log = TreeLog()
        self.history: History | None = None
        fixed = base_score.fixed(self.job)
        if start.checkpoint is not None:
            self.log, self.history = TreeLog.decode(start.checkpoint)
        elif fixed is not None:
            self.history = History(fixed)
        self.roster = sorted(start.silos)
        self.rows = dict(start.n_samples)
        self.synced: set[Silo] = set(hub.silos)
        self.limits = parameters.limits(self.job, self.schema)
        self.test: ScoredTest | None = None

    @property
    def present(self) -> tuple[Silo, ...]:
        """Silos that are there and have the model."""
        return tuple(silo for silo in self.hub.silos if silo in self.synced)

    def turn(self, round: int) -> Silo:
        """Return the silo that grows a round's tree."""
        return self.roster[round_drawn(self.job, round) % len(self.roster)]

    async def begin(self) -> None:
        """Agree on the base score, and have rows hashed before the first round."""
        if self.history is None:
            secure = len(self.start.silos) >= 3
            means = await label_means(self.hub, self.start, secure=secure)
            self.history = History(base_score.of_means(self.job, means))
        score = self.history.base_score
        self.test = await asyncio.to_thread(ScoredTest, self.start, self.log, score)
        if self.log.version:
            return
        at, quorum = ExchangeKey(0), self.job.min_silos
        ranges = await self.hub.collect(
            RANGES, at, silos=self.present, quorum=quorum, read=self._read_ranges
        )
        low = np.min([each.low for each in ranges.values()], axis=0)
        high = np.max([each.high for each in ranges.values()], axis=0)
        self.hub.answer(RANGES, at, dict.fromkeys(ranges, FeatureRanges(low, high)))
        hashes = await self.hub.collect(
            HASHES, at, silos=tuple(ranges), quorum=quorum, read=self._read_hashes
        )
        replies = {
            silo: OtherHashes(tuple(hashes[other] for other in hashes if other != silo))
            for silo in hashes
        }
        self.hub.answer(HASHES, at, replies)

    async def play(self) -> RoundResult:
        """Play one round: sums of gradients, then the tree of the silo whose turn it is."""
        assert self.history is not None
        assert self.test is not None
        at, quorum = ExchangeKey(self.log.version), self.job.min_silos
        turn = self.turn(at.round)
        sums = await self.hub.collect(
            GRADIENTS, at, silos=self.present, quorum=quorum, read=self._read_sums
        )
        total = await asyncio.to_thread(self._total, turn, [sums[silo] for silo in sorted(sums)])
        none = np.zeros(0, np.float32)
        replies = dict.fromkeys(sums, GradientSums(none, none))
        self.hub.answer(GRADIENTS, at, replies | ({turn: total} if turn in sums else {}))
        uploads = await self.hub.collect(
            TREES, at, silos=self.present, quorum=quorum, read=self._read_tree
        )
        added = {silo: upload for silo, upload in uploads.items() if upload.trees}
        packs = [(silo, 1.0, upload.data) for silo, upload in added.items()]
        self.log.add(TreeRound.of(1, packs))
        self.synced.update(uploads)
        standings = {silo: self._standing(silo, uploads[silo].version) for silo in uploads}
        self.hub.answer(TREES, at, standings)
        new = [tree for upload in added.values() for tree in upload.trees]
        scores = await asyncio.to_thread(self.test.add, new, len(added))
        return RoundResult(
            round=at.round,
            checkpoint=self.log.encode(self.history),
            metrics=scores,
            silos=tuple(added),
            final=self.log.version >= self.parameters.rounds,
            best_round=at.round,
        )

    def catch_up(self, silo: Silo, at: ExchangeKey, offer: TreeCatchUp) -> TreeStanding:
        """Answer a silo that starts, restarts or was left out."""
        if self.rows.setdefault(silo, offer.n_samples) != offer.n_samples:
            raise OfferRejected(
                f"expected {self.rows[silo]} rows of {silo} as at the start, received "
                f"{offer.n_samples}"
            )
        self.synced.add(silo)
        standing = self._standing(silo, offer.version, restarted=True)
        return replace(standing, round=max(offer.first_round, standing.round))

    def _standing(self, silo: Silo, version: int, restarted: bool = False) -> TreeStanding:
        grows = self.turn(self.log.version) == silo
        return TreeStanding(
            round=self.log.version,
            eta=self.job.booster.eta if grows else 0.0,
            base_score=None if self.history is None else self.history.base_score,
            version=self.log.version,
            digest=self.log.digest,
            rounds=self.log.since(version, None if restarted else silo),
        )

    def _total(self, turn: Silo, sums: list[GradientSums]) -> GradientSums:
        """Return the sums over all silos, added in the order of their names."""
        g = np.zeros(self.rows.get(turn, 0) * self.schema.n_outputs)
        h = np.zeros_like(g)
        for each in sums:
            if len(each.gradients):
                g += each.gradients
                h += each.hessians
        return GradientSums(g.astype(np.float32), h.astype(np.float32))

    def _read_ranges(self, silo: Silo, offer: FeatureRanges) -> FeatureRanges:
        for name, values in (("low", offer.low), ("high", offer.high)):
            checked(name, values, (self.schema.n_features,))
        return offer

    def _read_hashes(self, silo: Silo, offer: RowHashes) -> RowHashes:
        if offer.silo != silo:
            raise OfferRejected(f"expected hashes of {silo}, received those of {offer.silo}")
        check_hashes(offer.values, self.rows[silo], self.parameters.n_hashes(self.schema), silo)
        return offer

    def _read_sums(self, silo: Silo, offer: GradientSums) -> GradientSums:
        turn = self.turn(self.log.version)
        length = self.rows.get(turn, 0) * self.schema.n_outputs
        if len(offer.gradients) == len(offer.hessians) == 0:
            return offer
        if silo == turn:
            raise OfferRejected(f"{silo} offers gradients for its own rows")
        for name, values in (("gradients", offer.gradients), ("hessians", offer.hessians)):
            checked(name, values, (length,))
        if (offer.hessians < 0).any():
            raise OfferRejected("hessians: expected numbers from zero up")
        return offer

    def _read_tree(self, silo: Silo, offer: TreeOffer) -> Upload:
        grows = silo == self.turn(self.log.version)
        return read_offer(self.log, silo, offer, 1, self.limits if grows else None)
