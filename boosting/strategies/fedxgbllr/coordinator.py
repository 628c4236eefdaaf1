"""The coordinator half of FedXGBllr."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.checks import MOST_ROWS
from hedgerow.boosting.engine.summaries import QuantileSummaries, Summary, merge_summaries
from hedgerow.boosting.errors import OfferRejected, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.rounds.coordinator import scores_by_set
from hedgerow.boosting.rounds.scores import (
    CoordinatorScores,
    masks_scores,
    mean_of_values,
    total_scores,
)
from hedgerow.boosting.strategies.fedxgbllr.agreement import (
    AgreedTerms,
    Floats,
    job_metrics,
    validation_metrics,
)
from hedgerow.boosting.strategies.fedxgbllr.checkpoint import Checkpoint
from hedgerow.boosting.strategies.fedxgbllr.combiners import RowCombiner
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.row_sums import RowBounds, n_bounds
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    BASE,
    CUTS,
    RATES,
    SCORES,
    SUMS,
    SYNC,
    TREES,
    TURN,
    WEIGHTS,
    EnsembleOffer,
    Ensembles,
    MetricSums,
    NextPoints,
    PackedEnsemble,
    PointChoice,
    ProgressQuery,
    RateSums,
    RoundVector,
    StackingProgress,
)
from hedgerow.boosting.strategies.fedxgbllr.uploads import with_fences
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.exact import LIMBS, exact_sums
from hedgerow.boosting.sums.floats import FloatSum, SecureTotal, total_securely
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.maximum import total_maximum
from hedgerow.boosting.trees.ensemble import Tree

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr


Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


async def coordinate(
    parameters: FedXGBllr, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half from the beginning or from a checkpoint."""
    half = _StackingCoordinator(parameters, hub, start)
    if start.checkpoint is not None:
        await asyncio.to_thread(half.restore, start.checkpoint)
    hub.serve(SYNC, half.progress)
    if start.checkpoint is None:
        yield await half.gather_trees()
    while not half.record.final:
        yield await half.take_round()


@dataclass(frozen=True, slots=True)
class _Collected(Generic[Reply]):
    """A sum over silos, the silos in it, and what releases them."""

    total: Floats
    present: tuple[Silo, ...]
    answer: Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class _SoundUpload:
    """A silo's rows and its trees, read and as they were received."""

    rows: int
    trees: list[Tree]
    ensemble: PackedEnsemble | None


class _StackingCoordinator:
    """The coordinator's run."""

    def __init__(
        self, parameters: FedXGBllr, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        self.parameters, self.hub, self.start = parameters, hub, start
        self.job, self.quorum = start.job, max(1, start.job.min_silos)
        self.terms = AgreedTerms.start(parameters, start.job, start.schema, len(start.silos))
        self.is_agreed = not (parameters.needs_label_sums(start.job) or parameters.shared_cuts)
        self.record: Checkpoint
        self.has_trees = False
        self.test_leaves: LeafOrdinals | None = None
        self.sums = CoordinatorSums.of(hub, start, self.terms.sums)
        self.labels = self.sums
        self.scores: CoordinatorScores[MetricSums, PointChoice] | None = None
        if not parameters.secure and masks_scores(len(start.silos)):
            least = mean_parameters(self.job.min_silos, secure=True)
            self.labels = CoordinatorSums.of(hub, start, least)
            self.scores = CoordinatorScores(hub, start, SCORES, 1)

    def restore(self, checkpoint: bytes) -> None:
        """Continue from a checkpoint."""
        self._begin(Checkpoint.decode(self.parameters, self.job, self.start.schema, checkpoint))

    def progress(self, silo: Silo, at: ExchangeKey, offer: ProgressQuery) -> StackingProgress:
        """Return the state of the job, for a silo that arrives (again)."""
        if self.has_trees:
            return self.record.progress
        if self.is_agreed:
            return StackingProgress(self.terms.labels, self.terms.shared_cuts)
        return StackingProgress()

    # round 0

    async def gather_trees(self) -> RoundResult:
        """Agree on labels and cuts, collect all silos' trees, give each silo the others'."""
        at = ExchangeKey(0)
        if self.parameters.needs_label_sums(self.job):
            await self._agree_on_labels(at)
        if self.parameters.shared_cuts:
            await self._agree_on_cuts(at)
        self.is_agreed = True
        sound = await self.hub.collect(TREES, at, read=self._read_upload, quorum=self.quorum)
        uploads = {
            silo: given.ensemble for silo, given in sound.items() if given.ensemble is not None
        }
        if not uploads:
            raise QuorumLost("step 'trees': expected the trees of a silo with rows, received none")
        rows = {silo: given.rows for silo, given in sound.items()}
        trees = [sound[silo].trees for silo in uploads]
        record = await asyncio.to_thread(Checkpoint.begin, self.terms, uploads, rows, trees)
        await asyncio.to_thread(self._begin, record)
        for silo in rows:
            others = {other: uploads[other] for other in uploads if other != silo}
            self.hub.answer(TREES, at, {silo: Ensembles(others)})
        return await self._result(0, tuple(rows), {})

    def _read_upload(self, silo: Silo, offer: EnsembleOffer) -> _SoundUpload:
        if (offer.rows > 0) != (offer.ensemble is not None):
            raise OfferRejected(f"expected trees where there are rows, received {offer.rows} rows")
        if offer.rows >= MOST_ROWS:
            raise OfferRejected(f"rows: expected fewer than {MOST_ROWS}, received {offer.rows}")
        trees = [] if offer.ensemble is None else self.terms.decode(offer.ensemble, silo)
        return _SoundUpload(offer.rows, trees, offer.ensemble)

    def _begin(self, record: Checkpoint) -> None:
        if self.start.test is not None:
            every = [tree for trees in record.trees for tree in trees]
            self.test_leaves = LeafOrdinals.of(every, self.start.test.X)
        self.record, self.terms, self.has_trees = record, record.terms, True

    async def _agree_on_labels(self, at: ExchangeKey) -> None:
        await self.labels.setup(at)
        outcome = await self.labels.sum(BASE, at, 3 * LIMBS)
        assert outcome.total is not None, "only sums over a fixed set are abandoned"
        count, first, second = exact_sums(outcome.total)
        if count > 0:
            mean = first / count
            spread = math.sqrt(max(float(second / count - mean * mean), 0.0))
            if self.parameters.center_target and self.job.booster.base_score is None:
                self.terms = replace(self.terms, center=float(mean))
            if self.parameters.scale_target and spread > 0:
                self.terms = replace(self.terms, scale=spread)
        self.labels.answer(BASE, outcome, self.terms.labels)

    async def _agree_on_cuts(self, at: ExchangeKey) -> None:
        features = self.start.schema.features
        numeric = [j for j, feature in enumerate(features) if not feature.is_categorical]

        def read(silo: Silo, offer: QuantileSummaries) -> list[Summary]:
            return offer.read(len(numeric))

        summaries = await self.hub.collect(CUTS, at, read=read, quorum=self.quorum)

        def merge() -> list[NDArray[np.float32]]:
            inner = [np.empty(0, np.float32)] * len(features)
            for place, feature in enumerate(numeric):
                of_feature = [given[place] for given in summaries.values()]
                inner[feature] = merge_summaries(of_feature, self.parameters.shared_cuts)
            return with_fences(inner)

        self.terms = replace(self.terms, cuts=await asyncio.to_thread(merge))
        cuts = self.terms.shared_cuts
        assert cuts is not None
        self.hub.answer(CUTS, at, dict.fromkeys(summaries, cuts))

    # rounds 1 to R

    async def take_round(self) -> RoundResult:
        """Collect and combine vectors; choose on validation rows where there are any."""
        record, parameters, round_ = self.record, self.parameters, self.record.round
        combiner, known = record.combiner, record.state.candidates[0]
        await self.sums.setup(ExchangeKey(round_))
        updates = await self._collect_updates(ExchangeKey(round_), known)
        state = await asyncio.to_thread(combiner.advance, record.state, updates.total, round_)
        last = round_ >= combiner.n_rounds
        rng = generator(self.job.seed, len(self.start.silos), round_, Purpose.NETWORK_ROUNDING)
        points, record.state = combiner.write_points(state, known, rng)
        final = last and not parameters.held_out
        updates.answer(NextPoints(points, final))
        scores: dict[str, dict[str, float]] = {}
        if parameters.held_out:
            scores, final = await self._choose(ExchangeKey(round_, 1), updates.present, last)
        else:
            record.best, record.best_round = record.state.solution, round_
        scored = bool(scores) or not parameters.held_out
        if final and scored and isinstance(combiner, HeadCombiner):
            await self._gather_rates(ExchangeKey(round_, 2), updates.present, combiner)
        record.round, record.final = round_ + 1, final
        await self.hub.collect(TURN, ExchangeKey(round_), silos=(), quorum=0)
        return await self._result(round_, updates.present, scores)

    async def _collect_updates(
        self, at: ExchangeKey, known: NDArray[Any]
    ) -> _Collected[NextPoints]:
        combiner = self.record.combiner

        def read(silo: Silo, offer: RoundVector) -> Floats:
            return combiner.read(offer, at.round, known)

        if self.parameters.secure and isinstance(combiner, RowCombiner):
            return await self._sum_rows(at, combiner, combiner.n_sums(at.round))
        kind = WEIGHTS if self.parameters.is_network else SUMS
        return await self._collect(kind, at, combiner.width(at.round), read)

    async def _sum_rows(
        self, at: ExchangeKey, combiner: RowCombiner, width: int
    ) -> _Collected[NextPoints]:
        """Return the exact sum over all silos' rows."""
        found, _ = await total_maximum(self.sums, at, n_bounds(self.job), SUMS.bound)
        outcome = await self.sums.sum(SUMS.secure, at, width)
        assert outcome.total is not None, "only sums over a fixed set are abandoned"
        candidates = self.record.state.candidates
        bounds = RowBounds.of(self.job, len(self.start.silos), found)
        total = combiner.read_sums(candidates, outcome.total, at.round, bounds)
        secure = SecureTotal(total, outcome, self.sums, SUMS.secure)
        return _Collected(total, secure.present, secure.answer)

    async def _choose(
        self, at: ExchangeKey, silos: tuple[Silo, ...], last: bool
    ) -> tuple[dict[str, dict[str, float]], bool]:
        """Choose by the scores of held-out rows, where enough silos are there to add them up."""
        record, names = self.record, validation_metrics(self.job)
        n_outputs, first_round = self.start.schema.n_outputs, at.round == 1
        n_points = len(record.state.candidates) + first_round  # round 1 scores round 0 too
        if self.parameters.secure or self.scores is not None:
            sums = await self._summed_scores(at, names, n_points, silos)
            if sums is None:
                record.best, record.best_round = record.state.solution, at.round
                return {}, last
            found = [
                metrics.combine(names, part, n_outputs=n_outputs)
                for part in sums.total.reshape(n_points, -1)
            ]
            answer: Callable[[PointChoice], None] = sums.answer
        else:
            found, answer = await self._told_scores(at, n_points, silos)
        choice, first = 0, names[0]
        if first_round:
            record.best, record.best_round = record.combiner.initial().solution, 0
            record.best_score = found.pop(0)[first]
        for number, scores in enumerate(found):
            if metrics.better(first, scores[first], found[choice][first]):
                choice = number
        if len(found) > 1:
            record.choice = choice
        record.state = record.combiner.choose(record.state, choice)
        score = found[choice][first]
        if record.note(first, at.round, score):
            record.best = record.state.solution
        final = last or record.ends(at.round, self.parameters.early_stopping_rounds)
        earlier = record.best_round < at.round and self.parameters.is_network
        best = record.best if final and earlier else None
        answer(PointChoice(choice, len(record.state.candidates) > 1, final, best))
        return {"valid": found[choice]}, final

    async def _summed_scores(
        self, at: ExchangeKey, names: Sequence[str], n_points: int, silos: tuple[Silo, ...]
    ) -> SecureTotal[PointChoice] | None:
        if self.scores is not None:
            return await self.scores.total(at, silos, names, n_points)
        return await total_scores(self.sums, SCORES, at, names, n_points, self.start)

    async def _told_scores(
        self, at: ExchangeKey, n_points: int, silos: tuple[Silo, ...]
    ) -> tuple[list[dict[str, float]], Callable[[PointChoice], None]]:
        """Return by point the mean of what each silo tells, and what releases them."""
        names, rows = validation_metrics(self.job), self.record.rows

        def read(silo: Silo, offer: MetricSums) -> Floats:
            told = checked("sums", offer.sums, (len(names) * n_points,))
            return told.reshape(n_points, len(names))

        silos = tuple(silo for silo in silos if silo in self.hub.silos)
        told = await self.hub.collect(SCORES.plain, at, read=read, silos=silos, quorum=self.quorum)
        found = [
            mean_of_values(names, {silo: own[k] for silo, own in told.items()}, rows)
            for k in range(n_points)
        ]

        def answer(choice: PointChoice) -> None:
            self.hub.answer(SCORES.plain, at, dict.fromkeys(told, choice))

        return found, answer

    async def _gather_rates(
        self, at: ExchangeKey, silos: tuple[Silo, ...], combiner: HeadCombiner
    ) -> None:
        try:
            if self.parameters.secure:
                await self._sum_active(at, combiner)
            else:
                await self._told_rates(at, silos, combiner)
        except QuorumLost:
            return  # the model is complete without its learnt rates

    async def _sum_active(self, at: ExchangeKey, combiner: HeadCombiner) -> None:
        outcome = await self.sums.sum(RATES.secure, at, combiner.head.n_units + 1)
        assert outcome.total is not None, "only sums over a fixed set are abandoned"
        active = outcome.total.view(np.int64)
        if (active < 0).any() or (active > active[-1]).any():
            raise SumCorrupt(f"sum {RATES.name!r} of round {at.round}: counts of no rows")
        if active[-1] > 0:
            self.record.rates = combiner.rates(self.record.point, active)
        self.sums.answer(RATES.secure, outcome, Receipt())

    async def _told_rates(
        self, at: ExchangeKey, silos: tuple[Silo, ...], combiner: HeadCombiner
    ) -> None:
        shape = combiner.head.n_outputs, combiner.head.n_inputs
        n_rates = math.prod(shape)

        def read(silo: Silo, offer: RateSums) -> Floats:
            sums = checked("sums", offer.sums, (n_rates,))
            return np.append(sums.astype(np.float64), offer.rows)

        sums = await self._collect(RATES, at, n_rates + 1, read, silos)
        if sums.total[-1] > 0:
            self.record.rates = (sums.total[:-1] / sums.total[-1]).reshape(shape)
        sums.answer(Receipt())

    async def _collect(
        self,
        kind: FloatSum[Offer, Reply],
        at: ExchangeKey,
        width: int,
        read: Callable[[Silo, Offer], Floats],
        silos: tuple[Silo, ...] | None = None,
    ) -> _Collected[Reply]:
        """Return the sum of the silos' vectors of ``width`` numbers, masked or in the clear."""
        if self.parameters.secure:
            secure = await total_securely(self.sums, kind, at, width)
            return _Collected(secure.total, secure.present, secure.answer)
        if silos is not None:
            silos = tuple(silo for silo in silos if silo in self.hub.silos)
        vectors = await self.hub.collect(kind.plain, at, read=read, silos=silos, quorum=self.quorum)

        def add_up() -> Floats:
            total = np.zeros(width)
            for silo in sorted(vectors):  # in this order the sum is the same bits in every run
                total += vectors[silo]
            return total

        def answer(reply: Reply) -> None:
            self.hub.answer(kind.plain, at, dict.fromkeys(vectors, reply))

        return _Collected(await asyncio.to_thread(add_up), tuple(sorted(vectors)), answer)

    async def _result(
        self, round_: int, silos: tuple[Silo, ...], scores: dict[str, dict[str, float]]
    ) -> RoundResult:
        record = self.record

        def encode() -> bytes:
            if self.start.test is not None and self.test_leaves is not None:
                combined = record.combiner.margins(record.state.solution, self.test_leaves)
                margins = record.terms.margins(combined)
                scores.update(scores_by_set(self.start, job_metrics(self.job), margins))
            return record.encode()

        checkpoint = await asyncio.to_thread(encode)
        return RoundResult(round_, checkpoint, scores, silos, record.final, record.best_round)
