"""Both halves of FedXGBllr; :class:`strategies.fedxgbllr.FedXGBllr` tells the protocol."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.summaries import Summary, merge_summaries, summarise
from hedgerow.boosting.errors import DataError, OfferRejected, PlacePassed, QuorumLost
from hedgerow.boosting.exchange import Call, Hub, Link, Place, Silo, Step
from hedgerow.boosting.ports import CoordinatorStart, RoundResult, SiloStart
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, HeadCombiner, Rows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.record import (
    Agreed,
    Arrays,
    Floats,
    Record,
    job_metrics,
    named,
    silos_of,
    validation_metrics,
)
from hedgerow.boosting.strategies.fedxgbllr.uploads import (
    cut_columns,
    encode_trees,
    uncut,
    with_fences,
)
from hedgerow.boosting.strategies.fedxgbllr.vectors import (
    Form,
    read_points,
    read_update,
    update,
    update_form,
    write_points,
)
from hedgerow.boosting.streams import Purpose, generator, sequence
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.floats import FloatSum, add_securely, float_sum, total_securely
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.tensors import Tensors, scalar
from hedgerow.boosting.trees.ensemble import Tree, trees_of
from hedgerow.boosting.trees.local import booster_parameters, matrix, roster_index, split_rows

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
    from hedgerow.crypto.vault import Vault

BASE = float_sum(
    "base", Call.SUMS, Tensors, Tensors, "number of labels, their sum and the sum of their squares"
)
CUTS = Step("cuts", Call.SKETCHES, Tensors, Tensors, "weighted quantiles of each numeric feature")
TREES = Step(
    "trees",
    Call.TREES,
    Tensors,
    Tensors,
    "the silo's trees: thresholds and leaf values, statistics unless scrubbed; its row count",
)
WEIGHTS = float_sum(
    "weights",
    Call.WEIGHTS,
    Tensors,
    Tensors,
    "network weights after training on the silo's rows",
    ring_bits=48,
)
SUMS = float_sum(
    "sums",
    Call.SUMS,
    Tensors,
    Tensors,
    "normal equations of tree outputs, or loss gradient by leaf",
)
SCORES = float_sum(
    "scores", Call.SCORES, Tensors, Tensors, "sums of metrics over the silo's validation rows"
)
RATES = float_sum(
    "rates",
    Call.SCORES,
    Tensors,
    Tensors,
    "mean derivative of the prediction by each tree's output",
)
SYNC = Step("sync", Call.TREES, Tensors, Tensors, "nothing")

_POINTS_A_CUT = 4  # points of a quantile summary for each shared cut


def _sum_parameters(job: JobParameters) -> SumParameters:
    return SumParameters(secure=True, least_silos=max(3, job.min_silos))


def _kind(strategy: FedXGBllr) -> FloatSum[Tensors, Tensors]:
    return WEIGHTS if strategy.is_network else SUMS


# --- the silo's half ---------------------------------------------------------------------------


def participate(strategy: FedXGBllr, link: Link, vault: Vault | None, start: SiloStart) -> None:
    """Run the silo half to the end of the job."""
    _SiloHalf(strategy, link, vault, start).run()


class _SiloHalf:
    """A silo's run: grow trees, get everyone's, then a round at a time."""

    def __init__(
        self, strategy: FedXGBllr, link: Link, vault: Vault | None, start: SiloStart
    ) -> None:
        self.strategy, self.link, self.start = strategy, link, start
        self.job, self.number = start.job, roster_index(start.silo, start.silos)
        rng = generator(self.job.seed, self.number, 0, Purpose.NETWORK_SPLIT)
        rows, held = split_rows(start.dataset.n_samples, strategy.validation, rng)
        self.train: Dataset = start.dataset.take(rows) if len(held) else start.dataset
        self.valid: Dataset = start.dataset.take(held)
        self.agreed = Agreed.start(strategy, self.job, start.schema, len(start.silos))
        self.knows_labels = not strategy.needs_label_sums(self.job)
        self.knows_cuts = not strategy.shared_cuts
        self.sums: SiloSums | None = None
        if strategy.secure:
            self.sums = SiloSums(
                link,
                vault,
                start.identity,
                silo=start.silo,
                roster=start.silos,
                job_id=start.job_id,
                attempt=start.attempt,
                parameters=_sum_parameters(self.job),
            )
        self.upload: Arrays = {}
        self.combiner: Combiner
        self.rows: Rows
        self.valid_leaves: LeafOrdinals
        self.candidates: NDArray[Any]
        self.choice = 0
        self.round = 0
        self.final = False
        self.n_syncs = 0

    def run(self) -> None:
        """Take part until the job is over; a silo that was left out synchronises and goes on."""
        behind = self.start.first_round > 0
        while not self.final:
            try:
                if behind:
                    self._synchronise()
                    behind = False
                elif self.round == 0:
                    self._grow()
                else:
                    self._take_round()
            except PlacePassed:
                self.link.check()
                behind = True

    def _synchronise(self) -> None:
        told = self.link.exchange(SYNC, Place(0, 0, self.n_syncs), Tensors())
        self.n_syncs += 1
        if told.has("labels"):
            self.agreed = self.agreed.heard(told)
            self.knows_labels = self.knows_cuts = True
        self.round = int(told.get("round", "<i8", (1,))[0])
        if self.round:
            self._learn_trees(told)
            self.candidates = told.get("candidates", self.combiner.point_type, (None, None))
            self.choice = int(told.get("choice", "<i8", (1,))[0])
            self.final = bool(told.get("final", "|u1", (1,))[0])

    # round 0

    def _grow(self) -> None:
        at = Place(0)
        if not self.knows_labels:
            self._agree_on_labels(at)
        if not self.knows_cuts:
            self._agree_on_cuts(at)
        if not self.upload:
            trees = encode_trees(self._trees(), self.agreed.form) if self.train.n_samples else {}
            self.upload = {"rows": scalar(float(self.train.n_samples)), **trees}
        told = self.link.exchange(TREES, at, Tensors(self.upload))
        own = named(self.upload, self.start.silo)
        self._learn_trees(Tensors({**told.arrays, **own}))
        self.candidates = self.combiner.initial().candidates
        self.round = 1
        self.final = self.strategy.n_rounds == 0

    def _agree_on_labels(self, at: Place) -> None:
        if self.sums is not None:
            self.sums.setup(at)
        y = self.train.labels
        vector = np.array([float(len(y)), float(y.sum()), float((y * y).sum())])
        self.agreed = self.agreed.heard(self._add(BASE, at, vector))
        self.knows_labels = True

    def _agree_on_cuts(self, at: Place) -> None:
        size = _POINTS_A_CUT * self.strategy.shared_cuts
        points = [
            summarise(self.train.X[:, j], size, self.train.weight)
            for j, feature in enumerate(self.start.schema.features)
            if not feature.is_categorical
        ]
        offer = Tensors(
            {
                "counts": np.array([len(p.values) for p in points], np.int64),
                "values": np.concatenate([np.empty(0, np.float32), *(p.values for p in points)]),
                "weights": np.concatenate([np.empty(0), *(p.weights for p in points)]),
            }
        )
        self.agreed = self.agreed.heard(self.link.exchange(CUTS, at, offer))
        self.knows_cuts = True

    def _trees(self) -> list[Tree]:
        import xgboost

        start, cuts = self.start, self.agreed.cuts
        X = self.train.X if cuts is None else cut_columns(self.train.X, cuts, start.schema)
        table = replace(self.train, X=X, y=self.agreed.targets(self.train))
        rows = matrix(table, start.n_threads)
        seed = sequence(self.job.seed, self.number, 0, Purpose.SILO_TREES)
        parameters = {
            **booster_parameters(self.agreed.job, start.schema.n_outputs, start.n_threads),
            "base_score": 0.5 if self.job.task is Task.BINARY else 0.0,
            "seed": int(seed.generate_state(1)[0]) & 0x7FFFFFFF,
        }
        if cuts is not None:
            parameters["max_bin"] = max(2, *(len(of_feature) for of_feature in cuts))
        try:
            booster = xgboost.Booster(parameters, [rows])
            for step in range(self.agreed.n_steps):
                self.link.check()
                booster.update(rows, step)
        except xgboost.core.XGBoostError as error:
            # Its first line says what; the rest is a C++ stack.
            what = str(error).partition("\n")[0].rpartition("] ")[2]
            raise DataError(f"XGBoost cannot train on this silo's rows: {what}") from error
        trees = trees_of(booster)
        return trees if cuts is None else uncut(trees, cuts, start.schema)

    def _learn_trees(self, told: Tensors) -> None:
        """Take in everyone's trees, its own as they were sent."""
        trees = [self.agreed.decode(told, f".{silo}") for silo in silos_of(told)]
        self.combiner, every = self.agreed.combine(trees)
        leaves = LeafOrdinals.of(every, self.train.X)
        self.rows = Rows(leaves, self.agreed.targets(self.train), self.train.weight)
        self.valid_leaves = LeafOrdinals.of(every, self.valid.X)

    # rounds 1 to R

    def _take_round(self) -> None:
        at, known = Place(self.round), self.candidates[0]
        rng = generator(self.job.seed, self.number, self.round, Purpose.NETWORK_TRAINING)
        vector = self.combiner.local(
            self.candidates, self.rows, self.round, self.choice, rng, self.link.check
        )
        if self.sums is not None:
            self.sums.setup(at)
            told = add_securely(self.link, self.sums, _kind(self.strategy), at, vector)
        else:
            rng = generator(self.job.seed, self.number, self.round, Purpose.NETWORK_ROUNDING)
            arrays = update(self.strategy, self.combiner, vector, self.round, known, rng)
            told = self.link.exchange(_kind(self.strategy).plain, at, Tensors(arrays))
        self.candidates = read_points(self.strategy, self.combiner, told, known)
        self.final = bool(told.get("final", "|u1", (1,))[0])
        if self.strategy.validation:
            self._score(Place(self.round, 1))
        if self.final and isinstance(self.combiner, HeadCombiner):
            self._tell_rates(Place(self.round, 2))
        self.round += 1

    def _score(self, at: Place) -> None:
        names = validation_metrics(self.job)
        parts = [
            metrics.sums(
                names,
                self.valid.labels,
                self.agreed.margins(self.combiner.margins(point, self.valid_leaves)),
                objective=self.job.objective,
                weight=self.valid.weight,
                center=self.agreed.center,
            )
            for point in self.candidates
        ]
        told = self._add(SCORES, at, np.concatenate(parts))
        choice = int(told.get("choice", "<i8", (1,))[0])
        if not 0 <= choice < len(self.candidates):
            raise OfferRejected("the coordinator chose a candidate that does not exist")
        if len(self.candidates) > 1:
            self.choice = choice
        if told.has("solution"):
            self.candidates = told.get("solution", self.combiner.point_type, (1, None))
        elif not told.has("all"):
            self.candidates = self.candidates[choice : choice + 1]
        self.final = bool(told.get("final", "|u1", (1,))[0])

    def _tell_rates(self, at: Place) -> None:
        rates = self.combiner.rates(self.candidates[0], self.rows.leaves)
        n = float(self.train.n_samples)
        vector = np.append(n * rates.reshape(-1), n).astype(np.float32)
        if self.sums is not None:
            add_securely(self.link, self.sums, RATES, at, vector.astype(np.float64))
        else:
            self.link.exchange(RATES.plain, at, Tensors({"sum": vector}))

    def _add(self, kind: FloatSum[Tensors, Tensors], at: Place, vector: Floats) -> Tensors:
        if self.sums is not None:
            return add_securely(self.link, self.sums, kind, at, vector)
        return self.link.exchange(kind.plain, at, Tensors({"sum": vector}))


# --- the coordinator's half --------------------------------------------------------------------


async def coordinate(
    strategy: FedXGBllr, hub: Hub, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half from the beginning or from a checkpoint."""
    half = _CoordinatorHalf(strategy, hub, start)
    if start.checkpoint is not None:
        await asyncio.to_thread(half.restore, start.checkpoint)
    hub.serve(SYNC, half.standing)
    if start.checkpoint is None:
        yield await half.gather_trees()
    while not half.record.final:
        yield await half.take_round()


@dataclass(frozen=True, slots=True)
class _Collected:
    """A sum over silos, who is in it, and what releases them."""

    total: Floats
    present: tuple[Silo, ...]
    answer: Callable[[Tensors], None]


class _CoordinatorHalf:
    """The coordinator's run."""

    def __init__(self, strategy: FedXGBllr, hub: Hub, start: CoordinatorStart) -> None:
        self.strategy, self.hub, self.start = strategy, hub, start
        self.job, self.quorum = start.job, max(1, start.job.min_silos)
        self.agreed = Agreed.start(strategy, start.job, start.schema, len(start.silos))
        self.is_agreed = not (strategy.needs_label_sums(start.job) or strategy.shared_cuts)
        self.record: Record
        self.trees_came = False
        self.test_leaves: LeafOrdinals | None = None
        self.sums: CoordinatorSums | None = None
        if strategy.secure:
            self.sums = CoordinatorSums(
                hub,
                job_id=start.job_id,
                attempt=start.attempt,
                parameters=_sum_parameters(start.job),
            )

    def restore(self, checkpoint: bytes) -> None:
        """Take up the state of a checkpoint."""
        record = Record.decode(self.strategy, self.job, self.start.schema, checkpoint)
        self._begin(record)

    def standing(self, silo: Silo, at: Place, offer: Tensors) -> Tensors:
        """Tell a silo that comes (back) where the job is."""
        if self.trees_came:
            return Tensors(self.record.told())
        told = self.agreed.told() if self.is_agreed else {}
        return Tensors({**told, "round": np.zeros(1, np.int64)})

    # round 0

    async def gather_trees(self) -> RoundResult:
        """Agree on labels and cuts, collect everyone's trees, give them to the others."""
        at = Place(0)
        if self.strategy.needs_label_sums(self.job):
            await self._agree_on_labels(at)
        if self.strategy.shared_cuts:
            await self._agree_on_cuts(at)
        self.is_agreed = True
        offers = await self.hub.collect(TREES, at, quorum=self.quorum)
        rows: dict[Silo, int] = {}
        uploads: dict[Silo, Arrays] = {}
        trees: list[list[Tree]] = []
        for silo, offer in offers.items():
            try:
                count = offer.number("rows")
                if not (0 <= count < 2**53 and count == int(count)):
                    raise OfferRejected("array 'rows': expected a count")
                if count:
                    trees.append(await asyncio.to_thread(self.agreed.decode, offer))
                    uploads[silo] = {k: v for k, v in offer.arrays.items() if k != "rows"}
                rows[silo] = int(count)
            except OfferRejected as error:
                self.hub.reject(TREES, at, silo, str(error))
        if len(rows) < self.quorum or not trees:
            raise QuorumLost(
                f"step 'trees' needs {self.quorum} silos with sound trees, {len(trees)} have them"
            )
        record = await asyncio.to_thread(Record.begin, self.agreed, uploads, rows, trees)
        await asyncio.to_thread(self._begin, record)
        for silo in rows:
            reply: Arrays = {}
            for other, upload in uploads.items():
                if other != silo:
                    reply |= named(upload, other)
            self.hub.answer(TREES, at, {silo: Tensors(reply)})
        return await self._result(0, tuple(rows), {})

    def _begin(self, record: Record) -> None:
        if self.start.test is not None:
            every = [tree for trees in record.trees for tree in trees]
            self.test_leaves = LeafOrdinals.of(every, self.start.test.X)
        self.record, self.agreed, self.trees_came = record, record.agreed, True

    def _mean(self) -> Combiner:
        strategy = replace(self.strategy, combiner="mean")
        return replace(self.agreed, strategy=strategy).combine(self.record.trees)[0]

    async def _agree_on_labels(self, at: Place) -> None:
        if self.sums is not None:
            await self.sums.setup(at)
        labels = await self._collect(BASE, at, 3)
        count, first, second = labels.total
        if count > 0:
            mean = first / count
            spread = math.sqrt(max(second / count - mean * mean, 0.0))
            if self.strategy.center_target and self.job.booster.base_score is None:
                self.agreed = replace(self.agreed, center=float(mean))
            if self.strategy.scale_target and spread > 0:
                self.agreed = replace(self.agreed, scale=spread)
        labels.answer(Tensors(self.agreed.told()))

    async def _agree_on_cuts(self, at: Place) -> None:
        offers = await self.hub.collect(CUTS, at, quorum=self.quorum)
        features = self.start.schema.features
        numeric = [j for j, feature in enumerate(features) if not feature.is_categorical]
        summaries: dict[Silo, list[Summary]] = {}
        for silo, offer in offers.items():
            try:
                summaries[silo] = _summaries(offer, len(numeric))
            except OfferRejected as error:
                self.hub.reject(CUTS, at, silo, str(error))

        def merge() -> list[NDArray[np.float32]]:
            inner = [np.empty(0, np.float32)] * len(features)
            for place, feature in enumerate(numeric):
                of_feature = [given[place] for given in summaries.values()]
                inner[feature] = merge_summaries(of_feature, self.strategy.shared_cuts)
            return with_fences(inner)

        self.agreed = replace(self.agreed, cuts=await asyncio.to_thread(merge))
        self.hub.answer(CUTS, at, dict.fromkeys(summaries, Tensors(self.agreed.told())))

    # rounds 1 to R

    async def take_round(self) -> RoundResult:
        """Collect, combine, answer; choose on validation rows where there are any."""
        record, strategy, round_ = self.record, self.strategy, self.record.round
        combiner, known = record.combiner, record.state.candidates[0]
        if self.sums is not None:
            await self.sums.setup(Place(round_))
        updates = await self._collect_updates(Place(round_), known)
        state = await asyncio.to_thread(combiner.advance, record.state, updates.total, round_)
        last = round_ >= combiner.n_rounds
        rng = generator(self.job.seed, len(self.start.silos), round_, Purpose.NETWORK_ROUNDING)
        reply, record.state = write_points(strategy, combiner, state, known, rng)
        final = last and not strategy.validation
        updates.answer(Tensors({**reply, "final": np.array([final], np.uint8)}))
        scores: dict[str, dict[str, float]] = {}
        if strategy.validation:
            scores["valid"], final = await self._choose(Place(round_, 1), updates.present, last)
        else:
            record.best, record.best_round = record.state.solution, round_
        if final and isinstance(combiner, HeadCombiner):
            await self._gather_rates(Place(round_, 2), updates.present)
        record.round, record.final = round_ + 1, final
        return await self._result(round_, updates.present, scores)

    async def _choose(
        self, at: Place, silos: tuple[Silo, ...], last: bool
    ) -> tuple[dict[str, float], bool]:
        record, names = self.record, validation_metrics(self.job)
        n_outputs, n_points = self.start.schema.n_outputs, len(record.state.candidates)
        size = metrics.width(names, n_outputs)
        sums = await self._collect(SCORES, at, size * n_points, silos)
        found = [
            metrics.combine(names, part, n_outputs=n_outputs)
            for part in sums.total.reshape(n_points, size)
        ]
        choice, first = 0, names[0]
        for number, scores in enumerate(found):
            if metrics.better(first, scores[first], found[choice][first]):
                choice = number
        if n_points > 1:
            record.choice = choice
        record.state = record.combiner.choose(record.state, choice)
        score = found[choice][first]
        if record.best is None or metrics.better(first, score, record.best_score):
            record.best, record.best_round = record.state.solution, at.round
            record.best_score = score
        waited, patience = at.round - record.best_round, self.strategy.early_stopping_rounds
        final = last or bool(patience and waited >= patience)
        reply: Arrays = {
            "choice": np.array([choice], np.int64),
            "final": np.array([final], np.uint8),
        }
        if len(record.state.candidates) > 1:
            reply["all"] = np.ones(1, np.uint8)
        if final and waited and self.strategy.is_network:
            reply["solution"] = record.best[None].astype(record.combiner.point_type)
        sums.answer(Tensors(reply))
        return found[choice], final

    async def _gather_rates(self, at: Place, silos: tuple[Silo, ...]) -> None:
        n_outputs = self.start.schema.n_outputs
        n_trees = sum(len(trees) for trees in self.record.trees)
        try:
            sums = await self._collect(RATES, at, n_outputs * n_trees + 1, silos, "<f4")
        except QuorumLost:
            return  # the result stands without the page that explains it
        if sums.total[-1] > 0:
            self.record.rates = (sums.total[:-1] / sums.total[-1]).reshape(n_outputs, n_trees)
        sums.answer(Tensors())

    async def _collect_updates(self, at: Place, known: NDArray[Any]) -> _Collected:
        strategy, combiner = self.strategy, self.record.combiner

        def read(arrays: Arrays) -> Floats:
            return read_update(strategy, combiner, arrays, at.round, known)

        form = update_form(strategy, combiner, at.round)
        return await self._collect_as(
            _kind(strategy), at, combiner.width(at.round), form, read, None
        )

    async def _collect(
        self,
        kind: FloatSum[Tensors, Tensors],
        at: Place,
        width: int,
        silos: tuple[Silo, ...] | None = None,
        dtype: str = "<f8",
    ) -> _Collected:
        def read(arrays: Arrays) -> Floats:
            return arrays["sum"].astype(np.float64)

        return await self._collect_as(kind, at, width, {"sum": (dtype, (width,))}, read, silos)

    async def _collect_as(
        self,
        kind: FloatSum[Tensors, Tensors],
        at: Place,
        width: int,
        form: Form,
        read: Callable[[Arrays], Floats],
        silos: tuple[Silo, ...] | None,
    ) -> _Collected:
        if self.sums is not None:
            secure = await total_securely(self.hub, self.sums, kind, at, width, self.quorum)
            return _Collected(secure.total, secure.present, secure.answer)
        if silos is not None:
            silos = tuple(silo for silo in silos if silo in self.hub.silos)
        offers = await self.hub.collect(kind.plain, at, silos=silos, quorum=self.quorum)
        sound: dict[Silo, Arrays] = {}
        for silo, offer in offers.items():
            try:
                sound[silo] = {name: offer.get(name, *shape) for name, shape in form.items()}
                if "rows" in form and sound[silo]["rows"][0] < 0:
                    raise OfferRejected("array 'rows': expected a count")
            except OfferRejected as error:
                self.hub.reject(kind.plain, at, silo, str(error))
                sound.pop(silo, None)
        if len(sound) < self.quorum:
            raise QuorumLost(
                f"step {kind.name!r} of round {at.round} needs {self.quorum} silos with sound "
                f"offers, {len(sound)} have them"
            )

        def add_up() -> Floats:
            total = np.zeros(width)
            for silo in sorted(sound):  # in this order the sum is the same bits in every run
                total += read(sound[silo])
            return total

        def answer(reply: Tensors) -> None:
            self.hub.answer(kind.plain, at, dict.fromkeys(sound, reply))

        return _Collected(await asyncio.to_thread(add_up), tuple(sorted(sound)), answer)

    async def _result(
        self, round_: int, silos: tuple[Silo, ...], scores: dict[str, dict[str, float]]
    ) -> RoundResult:
        record = self.record

        def encode() -> bytes:
            if self.start.test is not None and self.test_leaves is not None:
                combiner, point = record.combiner, record.state.solution
                if round_ == 0:  # a network that has not been trained would say nothing
                    combiner = self._mean()
                    point = combiner.initial().solution
                combined = combiner.margins(point, self.test_leaves)
                scores["test"] = metrics.evaluate(
                    job_metrics(self.job),
                    self.start.test.labels,
                    record.agreed.margins(combined),
                    objective=self.job.objective,
                    weight=self.start.test.weight,
                )
            return record.encode()

        checkpoint = await asyncio.to_thread(encode)
        return RoundResult(round_, checkpoint, scores, silos, record.final, record.best_round)


def _summaries(offer: Tensors, n_features: int) -> list[Summary]:
    """Return each numeric feature's summary of a silo's offer, checked."""
    counts = offer.get("counts", "<i8", (n_features,))
    if (counts < 0).any():
        raise OfferRejected("array 'counts': expected counts")
    total = int(counts.sum())
    values = offer.get("values", "<f4", (total,))
    weights = offer.get("weights", "<f8", (total,))
    if (weights <= 0).any():
        raise OfferRejected("array 'weights': expected positive weights")
    ends = np.cumsum(counts)[:-1]
    found = [
        Summary(v, w) for v, w in zip(np.split(values, ends), np.split(weights, ends), strict=True)
    ]
    if any((np.diff(summary.values) <= 0).any() for summary in found):
        raise OfferRejected("array 'values': expected rising values in each feature")
    return found
