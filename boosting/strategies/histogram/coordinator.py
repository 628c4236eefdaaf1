"""The coordinator half of histogram boosting; the protocol is told in ``histogram``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.engine.bisection import Bisector
from hedgerow.boosting.engine.cuts import Cuts, merged_cuts
from hedgerow.boosting.engine.objective import StartRule
from hedgerow.boosting.engine.quantising import Quantiser, bound_of_exponents
from hedgerow.boosting.engine.start import found_median, median_search
from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import Place, Silo, Step
from hedgerow.boosting.ports import Artefact, RoundResult
from hedgerow.boosting.strategies.histogram.growth import Growth
from hedgerow.boosting.strategies.histogram.state import (
    Agreed,
    Plan,
    as_bytes,
    cut_arrays,
    given_cuts,
    pack,
    unpack,
)
from hedgerow.boosting.strategies.histogram.steps import (
    BOUNDS,
    COUNTS,
    CUTS,
    ENTER,
    HISTOGRAMS,
    LEAVES,
    MEDIAN,
    NOT_SCORED,
    OPENING,
    PROPOSALS,
    SCORED_ON_TRAIN,
    SCORED_ON_VALID,
    SCORES,
    SYNC,
    THRESHOLDS,
    Decide,
    Integers,
    blank_ensemble,
    cuts_of,
    decide_counts,
    decide_level,
    decide_threshold,
    leaf_values,
    matrix_of,
    metric_names,
    read_summaries,
    round_alone,
    trees_of_round,
    write_total,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.exact import N_LABEL_VALUES, mean_label
from hedgerow.boosting.sums.floats import total_securely
from hedgerow.boosting.sums.steps import SumSteps
from hedgerow.boosting.tensors import Tensors, scalar
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, load
from hedgerow.crypto.fixed_point import signed

if TYPE_CHECKING:
    from hedgerow.boosting.exchange import Hub
    from hedgerow.boosting.ports import CoordinatorStart
    from hedgerow.boosting.strategies.histogram.parameters import Histogram

Read = TypeVar("Read")

_BEGUN = "histogram/begun"


async def coordinate(
    strategy: Histogram, hub: Hub, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    half = _CoordinatorHalf(strategy, hub, start)
    await asyncio.to_thread(half.restore)
    hub.serve(SYNC, half.tell_round)
    at, offers = await half.gather()
    closed = await asyncio.to_thread(half.close_begun, frozenset(offers))
    if closed is not None:
        yield closed
    await half.let_in(at, offers)
    while not half.final:
        yield await half.take_round()
        if half.setup_next:
            await half.let_in(*await half.gather())


@dataclass(slots=True)
class _CoordinatorHalf:
    strategy: Histogram
    hub: Hub
    start: CoordinatorStart
    plan: Plan = field(init=False)
    sums: CoordinatorSums = field(init=False)
    agreed: Agreed | None = field(init=False, default=None)
    ensemble: Ensemble | None = field(init=False, default=None)
    test_rows: Any = field(init=False, default=None)
    test_margins: NDArray[np.float32] | None = field(init=False, default=None)
    evaluate: int = field(init=False, default=NOT_SCORED)
    round: int = field(init=False, default=0)
    entering: bool = field(init=False, default=True)
    closed_round: int = field(init=False, default=-1)
    scored: int = field(init=False, default=-1)
    final: bool = field(init=False, default=False)
    setup_next: bool = field(init=False, default=False)
    begun: Tensors | None = field(init=False, default=None)
    wanted: set[int] = field(init=False, default_factory=set)
    best_round: int = field(init=False, default=0)
    best_score: float = field(init=False, default=float("nan"))

    def __post_init__(self) -> None:
        self.plan = Plan.of(self.strategy, self.start.job, self.start.schema)
        parameters = self.strategy.sum_parameters(self.start.job)
        self.sums = CoordinatorSums(
            self.hub,
            job_id=self.start.job_id,
            attempt=self.start.attempt,
            parameters=parameters,
        )
        if not self.strategy.blind_coordinator:
            if self.strategy.validation:
                self.evaluate = SCORED_ON_VALID
            elif self.start.test is None:
                self.evaluate = SCORED_ON_TRAIN

    @property
    def quorum(self) -> int:
        return self.strategy.sum_parameters(self.start.job).least_silos

    def restore(self) -> None:
        """Take up the last round's checkpoint, and what is known of the round after it."""
        if self.start.journal is not None:
            raw = self.start.journal.recall(_BEGUN)
            self.begun = None if raw is None else unpack(raw)
        if self.start.checkpoint is None:
            return
        kept = unpack(self.start.checkpoint)
        self.round = int(kept.get("round", "<i8", (1,))[0])
        self.closed_round = self.round - 1
        self.best_round = int(kept.get("best_round", "<i8", (1,))[0])
        self.best_score = float(kept.get("best_score", "<f8", (1,), finite=False)[0])
        if kept.has("model"):
            self.agreed = Agreed.read(kept)
            self.ensemble = load(kept.get("model", "|u1", (None,)).tobytes())
            if self.start.test is not None:
                self.test_rows = matrix_of(self.start.test)
                self.test_margins = self.ensemble.margins(self.test_rows)

    def checkpoint(self) -> bytes:
        """Return all that is needed to go on from the next round."""
        state: dict[str, NDArray[Any]] = {
            "round": np.array([self.round], np.int64),
            "best_round": np.array([self.best_round], np.int64),
            "best_score": scalar(self.best_score),
        }
        if self.ensemble is not None and self.agreed is not None:
            state |= {"model": as_bytes(self.ensemble.save()), **self.agreed.arrays()}
        return pack(state)

    # silos that come

    def tell_round(self, silo: Silo, at: Place, offer: Tensors) -> Tensors:
        """Answer a silo that synchronises: the round at whose start it may enter, or -1."""
        target = self.round
        if not self.entering:
            target = self.closed_round + 2
            self.wanted.add(target)
        if self.final or target >= self.strategy.rounds:
            target = -1
        return Tensors({"round": np.array([target], np.int64)})

    async def gather(self) -> tuple[Place, dict[Silo, int]]:
        """Wait for all silos present to enter; return where, who does, and the rounds they know."""
        at = Place(self.round)
        self.entering = True
        offers = await self.hub.collect(ENTER, at, quorum=self.quorum)
        self.entering = False
        self.wanted.discard(self.round)
        for silo in self.hub.silos:
            if silo not in offers:
                self.hub.drop(silo, "it came when the others had begun; it may enter later")
        return at, self._sound(ENTER, at, offers, _known)

    def _sound(
        self,
        step: Step[Tensors, Tensors],
        at: Place,
        offers: Mapping[Silo, Tensors],
        read: Callable[[Tensors], Read],
    ) -> dict[Silo, Read]:
        """Return what is read from offers; refuse malformed ones while the others are enough."""
        sound: dict[Silo, Read] = {}
        faults: dict[Silo, str] = {}
        for silo, offer in offers.items():
            try:
                sound[silo] = read(offer)
            except OfferRejected as error:
                faults[silo] = str(error)
        self._refuse(step, at, faults, len(sound))
        return sound

    def _refuse(
        self, step: Step[Tensors, Tensors], at: Place, faults: Mapping[Silo, str], n_left: int
    ) -> None:
        for silo, reason in faults.items():
            self.hub.reject(step, at, silo, reason)
        if n_left < max(self.quorum, 1):
            reasons = "; ".join(f"{silo}: {reason}" for silo, reason in faults.items())
            raise QuorumLost(
                f"step {step.name!r} of round {at.round} needs {max(self.quorum, 1)} silos, "
                f"{n_left} are left; refused {reasons or 'none'}"
            )

    def close_begun(self, present: frozenset[Silo]) -> RoundResult | None:
        """End a round that an earlier process began, if a silo of its sums is missing.

        With all of them the round is made again, from the same sums; without one the trees are
        closed with what was decided before the restart.
        """
        begun, self.begun = self.begun, None
        if begun is None or int(begun.get("round", "<i8", (1,))[0]) != self.round:
            return None
        members = begun.get("present", "|u1", (None,)).tobytes().decode().split("\n")
        if set(members) <= present:
            return None
        if self.ensemble is None:
            self._begin(Agreed.read(begun))
        trees = load(begun.get("model", "|u1", (None,)).tobytes()).trees
        scores = self._take_trees(trees)
        r = self.closed_round = self.round
        if self.evaluate != SCORED_ON_VALID:
            self.best_round = r
        self.round += 1
        self.final = self.round >= self.strategy.rounds
        silos = tuple(Silo(name) for name in members)
        return RoundResult(r, self.checkpoint(), scores, silos, self.final, self.best_round)

    async def let_in(self, at: Place, known: Mapping[Silo, int]) -> None:
        """Give silos what they lack, and agree on fresh keys with them."""
        told: dict[str, NDArray[Any]] = {
            "evaluate": np.array([self.evaluate], np.int64),
            "round": np.array([-1 if self.final else self.round], np.int64),
        }
        state: dict[str, NDArray[Any]] = {}
        if self.ensemble is not None and self.agreed is not None:
            model = await asyncio.to_thread(self.ensemble.save)
            state = {"model": as_bytes(model), **self.agreed.arrays()}
        for silo, round_known in known.items():
            missing = state if round_known != self.round else {}
            self.hub.answer(ENTER, at, {silo: Tensors({**told, **missing})})
        if self.final:
            return
        at = Place(self.round)
        await self.sums.setup(at)
        if self.round == 0 and self.agreed is None:
            await self._open(at)

    def _begin(self, agreed: Agreed) -> None:
        self.agreed = agreed
        self.ensemble = blank_ensemble(self.plan, agreed)
        if self.start.test is not None:
            self.test_rows = matrix_of(self.start.test)
            self.test_margins = self.ensemble.base_margins(self.start.test.n_samples)

    # the opening

    async def _open(self, at: Place) -> None:
        plan, blind = self.plan, self.strategy.blind_coordinator
        (weight_exponent,) = await self._largest(OPENING, at, 1)
        outcome = await self.sums.total(at, 1)
        assert outcome.total is not None
        n_rows = int(signed(outcome.total, 64)[0])
        base_score = plan.job.booster.base_score
        rule = plan.objective.start_rule
        if base_score is None and rule is StartRule.MEAN:
            outcome = await self.sums.total(Place(at.round, 0, 1), N_LABEL_VALUES)
            assert outcome.total is not None
            if not blind:
                base_score = plan.objective.start_of(mean_label(outcome.total))
        elif base_score is None and rule is StartRule.MEDIAN:
            base_score = await self._median(at)
        elif base_score is None:
            base_score = plan.objective.default_base_score
        cuts = await self._agree_on_cuts(at)
        if not blind:
            assert base_score is not None
            assert cuts is not None
            agreed = Agreed(n_rows, weight_exponent, base_score, cuts)
            await asyncio.to_thread(self._begin, agreed)

    async def _largest(self, step: Step[Tensors, Tensors], at: Place, n: int = 2) -> list[int]:
        """Collect exponents and tell all silos the largest."""
        offers = await self.hub.collect(step, at, silos=self.sums.participants, quorum=self.quorum)
        given = self._sound(step, at, offers, lambda offer: _exponents(offer, n))
        largest = np.max(list(given.values()), axis=0)
        told: dict[str, NDArray[Any]] = {"exponents": largest}
        if step is OPENING and self.strategy.bins_policy == "proportional":
            told["largest"] = np.array([max(self.start.n_samples.values())], np.int64)
        self.hub.answer(step, at, dict.fromkeys(given, Tensors(told)))
        return [int(exponent) for exponent in largest]

    async def _median(self, at: Place) -> float:
        search = median_search()

        def finished() -> dict[str, NDArray[Any]]:
            return {"median": scalar(found_median(search))}

        await self._bisect(MEDIAN, at, search, finished)
        return float(finished()["median"][0])

    async def _agree_on_cuts(self, at: Place) -> Cuts | None:
        strategy, plan = self.strategy, self.plan
        if strategy.binning == "given":
            return given_cuts(plan.schema, strategy.cut_points)
        if strategy.binning == "summary":
            return await self._merge_summaries(at)
        n_columns, max_bin = len(plan.numeric), plan.job.booster.max_bin
        search = Bisector(n_columns, max_bin, strategy.binning_error)
        await self._bisect(COUNTS, at, search, lambda: cut_arrays(cuts_of(plan, search)))
        return None if strategy.blind_coordinator else cuts_of(plan, search)

    async def _merge_summaries(self, at: Place) -> Cuts:
        plan = self.plan
        offers = await self.hub.collect(CUTS, at, silos=self.sums.participants, quorum=self.quorum)
        summaries = self._sound(CUTS, at, offers, lambda o: read_summaries(o, len(plan.numeric)))
        cuts = await asyncio.to_thread(
            merged_cuts, plan.schema, list(summaries.values()), plan.job.booster.max_bin
        )
        self.hub.answer(CUTS, at, dict.fromkeys(summaries, Tensors(cut_arrays(cuts))))
        return cuts

    async def _bisect(
        self,
        kind: SumSteps[Tensors],
        at: Place,
        search: Bisector,
        finished: Callable[[], dict[str, NDArray[Any]]],
    ) -> None:
        passing = 0
        while True:
            place = Place(at.round, 0, passing)
            size = search.column.shape[0]
            if self.strategy.blind_coordinator:
                size = await self._proposed(place)
            if not size:
                return

            def decide(sums: Integers | None) -> dict[str, NDArray[Any]]:
                arrays = decide_counts(search, sums)
                return {**arrays, **finished()} if search.done else arrays

            await self._sum(kind, place, size, 64, decide)
            passing += 1

    async def _proposed(self, at: Place) -> int:
        """Learn how many values silos count below: all must say the same."""
        offers = await self.hub.collect(
            PROPOSALS, at, silos=self.sums.participants, quorum=self.quorum
        )
        sizes = self._sound(PROPOSALS, at, offers, _size)
        most = max(sizes.values(), key=list(sizes.values()).count)
        agreeing = [silo for silo, size in sizes.items() if size == most]
        others = {
            silo: f"expected the size {most}, came {size}"
            for silo, size in sizes.items()
            if size != most
        }
        self._refuse(PROPOSALS, at, others, len(agreeing))
        self.hub.answer(PROPOSALS, at, dict.fromkeys(agreeing, Tensors()))
        return most

    async def _sum(
        self,
        kind: SumSteps[Tensors],
        at: Place,
        n_values: int,
        ring_bits: int,
        decide: Decide,
        *,
        whole: bool = False,
        closing: Callable[[dict[str, NDArray[Any]] | None], dict[str, NDArray[Any]]] | None = None,
        keep: Callable[[tuple[Silo, ...]], None] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Sum and answer what is decided; return it, or ``None`` of a sum left closed."""
        outcome = await self.sums.sum(kind, at, n_values, ring_bits=ring_bits, whole=whole)
        decided: dict[str, NDArray[Any]]
        if self.strategy.blind_coordinator:
            decided = write_total(outcome.total, ring_bits, outcome.present)
        else:
            sums = None if outcome.total is None else signed(outcome.total, ring_bits)
            decided = await asyncio.to_thread(decide, sums)
        abandoned = outcome.total is None
        if keep is not None and not abandoned:
            await asyncio.to_thread(keep, outcome.present)
        if closing is not None:
            decided |= closing(None if abandoned else decided)
        self.sums.answer(kind, outcome, Tensors(decided))
        return None if abandoned else decided

    # a round

    async def take_round(self) -> RoundResult:
        """Grow a round's trees with the participants; answer, score, sum up."""
        r, plan = self.round, self.plan
        quantiser: Quantiser | None = None
        growth: Growth | None = None
        bound = None
        if plan.strategy.needs_bounds(plan.job, plan.schema.n_outputs):
            bound = bound_of_exponents(*await self._largest(BOUNDS, Place(r)))
        if plan.strategy.shares_threshold:
            assert bound is not None
            bound = await self._threshold(r, bound)
        if self.agreed is not None:
            if bound is None:
                bound = plan.static_bound(self.agreed)
            assert bound is not None
            quantiser = plan.quantiser(self.agreed, bound)
            scale = quantiser.coarse_scale if self.strategy.coarse_bits else quantiser.scale
            growth = Growth(plan.shape(self.agreed.cuts, r), scale)
        if self.strategy.blind_coordinator:
            await self._relay_round(r)
        else:
            assert growth is not None
            assert quantiser is not None
            await self._grow(r, growth, quantiser)
        participants = self.sums.participants
        scores: dict[str, dict[str, float]] = {}
        if growth is not None:
            assert self.agreed is not None
            trees = trees_of_round(plan, growth, self.agreed)
            scores = await asyncio.to_thread(self._take_trees, trees)
        if self.evaluate:
            scores |= await self._score(r)
        if self.evaluate != SCORED_ON_VALID:
            self.best_round = r
        self.round += 1
        checkpoint = await asyncio.to_thread(self.checkpoint)
        return RoundResult(r, checkpoint, scores, participants, self.final, self.best_round)

    async def _threshold(self, r: int, bound: tuple[float, float]) -> tuple[float, float]:
        """Find all silos' sampling threshold; return bounds of the gradients it leaves."""
        assert self.agreed is not None
        search = self.plan.threshold_search(self.agreed, bound)
        for passing in range(search.N_PASSES):
            await self._sum(
                THRESHOLDS,
                Place(r, 0, passing),
                search.n_values,
                64,
                lambda sums: decide_threshold(search, sums),
            )
        return bound_of_exponents(*await self._largest(BOUNDS, Place(r, 0, 1)))

    async def _grow(self, r: int, growth: Growth, quantiser: Quantiser) -> None:
        assert self.agreed is not None
        coarse = bool(self.strategy.coarse_bits)
        ring_bits = self.plan.search_ring(self.agreed)
        level = 0
        while True:
            n_values = growth.n_values

            def closing(decided: dict[str, NDArray[Any]] | None) -> dict[str, NDArray[Any]]:
                return self._closing(r) if decided is None or "values" in decided else {}

            decided = await self._sum(
                HISTOGRAMS,
                Place(r, level),
                n_values,
                ring_bits,
                lambda sums: decide_level(growth, sums, coarse),
                whole=level > 0,
                closing=closing,
                keep=lambda present: self._keep(r, growth, present),
            )
            level += 1
            if decided is None or growth.done:
                break
        if coarse and decided is not None:
            await self._sum(
                LEAVES,
                Place(r),
                sum(len(leaves) for leaves in growth.leaves) * self.plan.width,
                self.strategy.ring_bits,
                lambda sums: leaf_values(growth, sums, None if sums is None else quantiser),
                whole=True,
                closing=lambda _: self._closing(r),
                keep=lambda present: self._keep(r, growth, present, renewed=True),
            )

    def _keep(
        self, r: int, growth: Growth, present: tuple[Silo, ...], *, renewed: bool = False
    ) -> None:
        """Make durable what was decided, before silos are told: the trees as if closed now."""
        if self.start.journal is None or not self.strategy.secure:
            return
        assert self.ensemble is not None
        assert self.agreed is not None
        if not renewed:
            growth.finish()
        part = round_alone(self.ensemble, trees_of_round(self.plan, growth, self.agreed))
        state: dict[str, NDArray[Any]] = {
            "round": np.array([r], np.int64),
            "present": as_bytes("\n".join(present).encode()),
            "model": as_bytes(part.save()),
        }
        if r == 0:
            state |= self.agreed.arrays()
        self.start.journal.remember(_BEGUN, pack(state))

    async def _relay_round(self, r: int) -> None:
        """Pass masked totals on, padded so that their lengths tell nothing of the trees."""
        plan, coarse = self.plan, bool(self.strategy.coarse_bits)
        ring_bits = plan.search_ring(None)
        for level in range(plan.n_levels):
            last = level == plan.n_levels - 1 and not coarse

            def closing(
                told: dict[str, NDArray[Any]] | None, last: bool = last
            ) -> dict[str, NDArray[Any]]:
                return self._closing(r) if last or told is None else {}

            relayed = await self._sum(
                HISTOGRAMS,
                Place(r, level),
                plan.n_padded(r, level),
                ring_bits,
                _nothing,
                whole=level > 0,
                closing=closing,
            )
            if relayed is None:
                return
        if coarse:
            await self._sum(
                LEAVES,
                Place(r),
                plan.n_padded_leaves,
                self.strategy.ring_bits,
                _nothing,
                whole=True,
                closing=lambda _: self._closing(r),
            )

    def _closing(self, r: int) -> dict[str, NDArray[Any]]:
        """Return what silos are told with the last reply of a round; once a round."""
        if self.evaluate and self.scored < r:
            return {}
        self.closed_round = r
        self.final = r + 1 >= self.strategy.rounds or (
            self.strategy.early_stopping_rounds > 0
            and r - self.best_round >= self.strategy.early_stopping_rounds
        )
        self.setup_next = not self.final and bool(self.sums.joining or r + 1 in self.wanted)
        return {
            "final": np.array([self.final], np.uint8),
            "setup": np.array([self.setup_next], np.uint8),
        }

    def _take_trees(self, trees: Sequence[Tree]) -> dict[str, dict[str, float]]:
        """Add a round's trees to the ensemble; score it on the coordinator's own rows."""
        assert self.ensemble is not None
        part = round_alone(self.ensemble, trees)
        self.ensemble = self.ensemble.extend(trees, n_steps=1)
        test = self.start.test
        if test is None or self.test_margins is None:
            return {}
        self.test_margins = part.margins(self.test_rows, start=self.test_margins)
        scores = metrics.evaluate(
            metric_names(self.plan),
            test.labels,
            self.test_margins,
            objective=self.plan.job.objective,
            weight=test.weight,
        )
        return {"test": scores}

    async def _score(self, r: int) -> dict[str, dict[str, float]]:
        plan = self.plan
        names, n_outputs = metric_names(plan), plan.schema.n_outputs
        width = metrics.width(names, n_outputs)
        total = await total_securely(self.hub, self.sums, SCORES, Place(r), width, self.quorum)
        scores = metrics.combine(names, total.total, n_outputs=n_outputs)
        self.scored = r
        if self.evaluate == SCORED_ON_VALID and metrics.better(
            names[0], scores[names[0]], self.best_score
        ):
            self.best_round, self.best_score = r, scores[names[0]]
        total.answer(Tensors(self._closing(r)))
        return {"valid" if self.evaluate == SCORED_ON_VALID else "train": scores}


def _known(offer: Tensors) -> int:
    return int(offer.get("known", "<i8", (1,))[0])


def _size(offer: Tensors) -> int:
    size = int(offer.get("size", "<i8", (1,))[0])
    if size < 0:
        raise OfferRejected("size: expected a count")
    return size


def _exponents(offer: Tensors, n: int) -> NDArray[np.int64]:
    own = offer.get("exponents", "<i8", (n,))
    if np.any(own < -1074) or np.any(own > 1023):
        raise OfferRejected("exponents: expected -1074 to 1023")
    return own


def artefact(strategy: Histogram, checkpoint: bytes) -> Artefact:
    """Return the result of a job from a checkpoint."""
    kept = unpack(checkpoint)
    if kept.has("model"):
        model = kept.get("model", "|u1", (None,)).tobytes()
        return Artefact({"model.ubj": model}, "model.ubj")
    text = {
        "strategy": strategy.name,
        "rounds": int(kept.get("round", "<i8", (1,))[0]),
        "model": "kept by the silos: the coordinator was blind",
    }
    return Artefact({"job.json": json.dumps(text).encode()}, "job.json")


def _nothing(_: Integers | None) -> dict[str, NDArray[Any]]:
    raise AssertionError("a blind coordinator decides nothing")
