"""The coordinator half: one secure sum a batch of public trees, and the leaf values from it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.rounds.coordinator import scores_by_set
from hedgerow.boosting.strategies.private_boost.artefact import Boosted
from hedgerow.boosting.strategies.private_boost.mechanism import Integers, Mechanism
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.private_boost.steps import (
    STANDING,
    BatchValues,
    BoostedTrees,
    leaf_sums,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums


async def coordinate(
    parameters: PrivateBoost, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    booster = await asyncio.to_thread(_Booster, parameters, hub, start)
    hub.serve(STANDING, booster.standing)
    plan, first = booster.plan, booster.state.batches
    if first == plan.n_batches:
        return  # the coordinator was restarted before it had stored the result
    sums = CoordinatorSums.of(hub, start, parameters.sum_parameters(start.job, len(start.silos)))
    booster.members = frozenset(await sums.setup(ExchangeKey(first)))
    steps, ring = leaf_sums(noisy=plan.noisy), plan.ring_bits(booster.row_bits)
    for batch in range(first, plan.n_batches):
        at, n_values = ExchangeKey(batch), plan.n_values(batch)
        outcome = await sums.sum(steps, at, n_values, ring=ring)
        assert outcome.total is not None, "only whole sums are abandoned"
        total = outcome.total.view(np.int32 if ring == 32 else np.int64).astype(np.int64)
        values = await asyncio.to_thread(booster.boost, batch, total, len(outcome.present))
        sums.answer(steps, outcome, values)
        yield await asyncio.to_thread(booster.result, outcome.present)


class _Booster:
    """The coordinator's state: the trees so far, and the scores of its test rows."""

    def __init__(
        self, parameters: PrivateBoost, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        parameters.validate_cohort(len(start.silos))
        self._hub, self._start = hub, start
        self.plan = plan = Mechanism(parameters, start.job, start.schema, len(start.silos))
        self.members: frozenset[Silo] = frozenset()
        self._synced: set[Silo] = set()
        self.row_bits = math.ceil(math.log2(max(1, sum(start.n_samples.values()))))
        self.state = Boosted(0, np.empty(0, np.uint16), np.empty(0), np.empty(0))
        if start.checkpoint is not None:
            self.state = Boosted.decode(start.checkpoint)
        if start.test is not None:
            self._codes = plan.domain.codes(start.test.X)
            self._margins = plan.start_margins(start.test.n_samples)
            for batch, own in enumerate(self.state.values_by_batch(plan)):
                plan.add(batch, plan.leaves(batch, self._codes), self._margins, own)

    def standing(self, silo: Silo, at: ExchangeKey, offer: Receipt) -> BoostedTrees:
        """Return the trees so far; a silo that joins after the silos were settled is late."""
        over = self.state.batches == self.plan.n_batches
        if self.members and not over and (silo not in self.members or silo in self._synced):
            self._hub.drop(silo, "joined after the silos of the attempt were settled")
            raise OfferRejected("the trees are under way: their silos were settled before")
        self._synced.add(silo)
        return BoostedTrees(self.state.batches, self.row_bits, self.state.values)

    def boost(self, batch: int, total: Integers, n_parts: int) -> BatchValues:
        """Return the leaf values of a batch, and keep them."""
        plan, state = self.plan, self.state
        sums = plan.read(batch, total)
        values = plan.leaf_values(batch, sums, n_parts)
        self.state = Boosted(
            batch + 1,
            np.concatenate([state.values, values]),
            np.concatenate([state.sums, sums.reshape(-1)]),
            np.append(state.parts, n_parts / plan.honest),
        )
        if self._start.test is not None:
            plan.add(batch, plan.leaves(batch, self._codes), self._margins, values)
        return BatchValues(values)

    def result(self, silos: tuple[Silo, ...]) -> RoundResult:
        """Return the result of the batch before."""
        job, batch = self._start.job, self.state.batches - 1
        scores: dict[str, dict[str, float]] = {}
        if self._start.test is not None:
            names = job.metrics or metrics.defaults(job.task)
            margins = self._margins if self.plan.n_outputs > 1 else self._margins[:, 0]
            scores = scores_by_set(self._start, names, margins)
        final = self.state.batches == self.plan.n_batches
        return RoundResult(batch, self.state.encode(), scores, silos, final=final, best_round=batch)
