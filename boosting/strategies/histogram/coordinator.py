"""The coordinator half of histogram boosting; the package's docstring has the protocol."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hedgerow.boosting.engine.bounds import Largest
from hedgerow.boosting.engine.cox import RiskSets
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.quantising import bound_of_exponents
from hedgerow.boosting.errors import QuorumLost
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.strategies.histogram.admission import Membership
from hedgerow.boosting.strategies.histogram.decided_sums import decided, total_counts
from hedgerow.boosting.strategies.histogram.opening import CoordinatorOpening
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.rings import START_SPARE
from hedgerow.boosting.strategies.histogram.round_trees import RoundTrees
from hedgerow.boosting.strategies.histogram.scoring import RoundScores, Scores
from hedgerow.boosting.strategies.histogram.steps import (
    GROWN,
    HISTOGRAMS,
    LEAVES,
    QUANTILES,
    RISK,
    ROWS_PASS,
    SAMPLE_PASS,
    SCORES,
    SYNC,
    THRESHOLDS,
    WITNESS_PASS,
    ClosedTrees,
    DecidedSum,
    GrownTrees,
    LevelDecision,
    RelayedTotal,
    RowsScored,
    TrainingState,
)
from hedgerow.boosting.strategies.histogram.stored import (
    BegunRound,
    CountedTimes,
    Interval,
    RoundCheckpoint,
    UnwitnessedRound,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.maximum import total_maximum
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.trees.ensemble import Ensemble, Tree

_BEGUN, _UNWITNESSED = "histogram/begun", "histogram/unwitnessed"


async def coordinate(
    parameters: Histogram, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    half = _Coordinator(parameters, hub, start)
    admission = half.admission
    begun = await asyncio.to_thread(half.restore)
    if admission.over:  # the coordinator was restarted before it had stored the result
        half.tell()
    hub.serve(SYNC, admission.invite)
    if admission.over:
        return
    known = await admission.gather()
    if begun is not None and not half.can_repeat(begun, known):
        yield await asyncio.to_thread(half.close_begun, begun)
    await half.let_in(known)
    while not admission.over:
        yield await half.take_round()
        if admission.opens:
            await half.let_in(await admission.gather())


class _Coordinator:
    """The half's state within an attempt."""

    def __init__(
        self, parameters: Histogram, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        self.parameters, self.hub, self.start = parameters, hub, start
        self.plan = HistogramPlan.of(parameters, start.job, start.schema)
        self.sums = CoordinatorSums.of(hub, start, parameters.sum_parameters(start.job))
        drawn = parameters.silos_per_round
        self.round_sums = self.sums.beside(self.plan.round_parameters) if drawn else self.sums
        self.playing: tuple[Silo, ...] = ()  # who takes part in rounds, drawn or not
        self.levels: list[LevelDecision] = []
        proportional = parameters.bins_policy == "proportional"
        n_largest = max(start.n_samples.values()) if proportional else None
        least = self.plan.least_silos
        self.admission = Membership(hub, self.sums, parameters.rounds, least, n_largest)
        self.scores = RoundScores(self.plan, start)
        self.opening: Setup | None = None
        self.ensemble: Ensemble | None = None
        self.spare = START_SPARE
        self.largest: Largest | None = None
        self.times: CountedTimes | None = None
        self.interval: Interval | None = None

    @property
    def at(self) -> ExchangeKey:
        """The round's place."""
        return ExchangeKey(self.admission.round)

    # before rounds

    def restore(self) -> BegunRound | None:
        """Go on from the last checkpoint; return what was decided in the round after it."""
        if self.start.checkpoint is not None:
            last = RoundCheckpoint.decode(self.start.checkpoint)
            self.admission.resume(last.round)
            self.scores.best_round, self.scores.best_score = last.best_round, last.best_score
            self.times = last.times
            n_rounds = last.round
            if self._take_unwitnessed() == n_rounds:
                n_rounds -= 1
                self.admission.resume(n_rounds)
            if last.state is not None and n_rounds:
                opening = Setup.of(last.state.terms, self.plan.schema, self.plan.n_outputs)
                model = last.state.model.tobytes()
                known = self.plan.read_model(model, opening, "the checkpoint")
                self._begin(opening, known.slice(n_rounds))
        record = self.start.journal.recall(_BEGUN) if self.start.journal is not None else None
        begun = BegunRound.decode(record) if record is not None else None
        return begun if begun is not None and begun.round == self.admission.round else None

    def _take_unwitnessed(self) -> int:
        """Return after how many rounds no silo has the trees, as an attempt before has found."""
        journal = self.start.journal
        record = None if journal is None else journal.recall(_UNWITNESSED)
        if journal is None or record is None:
            return 0
        journal.remember(_UNWITNESSED, UnwitnessedRound(0).encode())  # the round is played again
        return UnwitnessedRound.decode(record).rounds

    async def find_witness(self) -> None:
        """Let silos find out that one of them has checked the trees so far.

        Raises
        ------
        QuorumLost
            Nobody has checked the last round's, whose end was lost with an earlier process: it is
            played again.
        """
        at, r = replace(self.at, passing=WITNESS_PASS), self.at.round
        outcome = await self.sums.total(at, 2, check=self.plan.integers_check)
        assert outcome.total is not None
        n_all, n_before = outcome.total.tolist()
        if n_all or not n_before:
            return  # silos go on, or refuse
        journal = self.start.journal
        if journal is not None:
            record = UnwitnessedRound(r).encode()
            await asyncio.to_thread(journal.remember, _UNWITNESSED, record)
        raise QuorumLost(f"no silo has received the end of round {r - 1}, which is played again")

    def can_repeat(self, begun: BegunRound, known: Collection[Silo]) -> bool:
        """Return whether a round that an earlier process began can be played again.

        With all silos of its sums these are the same sums. Otherwise the trees are roots: some
        silos may have finished the round, and refuse other trees than those that they checked.
        """
        return set(begun.present) <= set(self.sums.usable(known))

    def close_begun(self, begun: BegunRound) -> RoundResult:
        """End a round that an earlier process began and that cannot be played again."""
        if begun.terms is not None:
            opening = Setup.of(begun.terms, self.plan.schema, self.plan.n_outputs)
            self._begin(opening, self.plan.blank(opening))
        assert self.opening is not None
        model = begun.model.tobytes()
        part = self.plan.read_model(model, self.opening, "the round's record")
        scores = self._add_trees(part.trees)
        r = self.admission.round
        self.admission.resume(r + 1)
        return self._result(r, begun.present, scores)

    async def let_in(self, known: Mapping[Silo, int]) -> None:
        """Let silos enter; before the first round agree on what precedes it."""
        state = await asyncio.to_thread(self._state)
        await self.admission.let_in(known, self.scores.scored, state)
        if self.at.round == 0 and self.opening is None:
            opening = await CoordinatorOpening(
                self.plan, self.hub, self.sums, self.start.journal
            ).agree()
            if opening is not None:
                await asyncio.to_thread(self._begin, opening, self.plan.blank(opening))
        elif self.plan.checks_totals and self.at.round:
            await self.find_witness()
        self.playing = self.sums.participants
        self.largest = None

    def _begin(self, opening: Setup, ensemble: Ensemble) -> None:
        self.opening, self.ensemble = opening, ensemble
        self.scores.begin(ensemble)

    def _state(self) -> TrainingState | None:
        if self.ensemble is None or self.opening is None:
            return None
        return TrainingState(np.frombuffer(self.ensemble.save(), np.uint8), self.opening.terms)

    def tell(self) -> None:
        """Give silos that come after the last round its model."""
        self.admission.tell(self.scores.scored, self._state())

    # a round

    async def take_round(self) -> RoundResult:
        """Play a round: grow its trees, answer the silos, score it."""
        at, parameters, rule = self.at, self.parameters, self.plan.bounds
        if rule.is_due(self.largest, at.round):
            self.largest = await self._largest(self.sums, replace(at, passing=ROWS_PASS))
            there = self.sums.participants
            self.playing = tuple(silo for silo in self.playing if silo in there)
        cohort = self.plan.cohort(at.round)
        others = tuple(silo for silo in self.playing if cohort and silo not in cohort)
        if cohort:
            here = tuple(silo for silo in self.playing if silo in cohort)
            await self.round_sums.setup(replace(at, passing=1), here)
        threshold = sampled = risk = None
        if self.plan.objective.by_risk_sets:
            risk = await self._risk(at)
        if parameters.shares_threshold:
            threshold = await self._threshold(at, risk)
        if rule.asks_sample:
            sampled = await self._largest(self.round_sums, replace(at, passing=SAMPLE_PASS))
        scores: Scores = {}
        if self.opening is None:
            await self._relay_round(at)
        else:
            rows = self.plan.row_bound(self.opening, self.largest, risk)
            found = None if sampled is None else bound_of_exponents(sampled.grad, sampled.hess)
            bound = rule.of_sample(rows, found, threshold)
            trees, closed, there = await self._grow(at, self.opening, bound)
            self.largest = (
                None
                if self.largest is None
                else self.largest.after(closed.values * self.plan.parallel)
            )
            self.playing = (*there, *await self._tell(at, others, closed))
            scores = await asyncio.to_thread(self._add_trees, trees)
        present = self.round_sums.participants
        if self.scores.scored is not RowsScored.NONE:
            assert self.opening is not None
            summed, outcome = await self.scores.sum(self.sums, self.opening, at.round)
            scores |= summed
            end = self.admission.end_round(
                stop=self.scores.ends(at.round, self.parameters.early_stopping_rounds)
            )
            self.sums.answer(SCORES, outcome, end)
        self.admission.round += 1
        if self.admission.over and parameters.interval:
            ending = CoordinatorOpening(self.plan, self.hub, self.sums, self.start.journal)
            self.interval = await ending.interval(at.round)
        if self.admission.over:
            self.tell()
        return await asyncio.to_thread(self._result, at.round, present, scores)

    def _result(self, round_: int, silos: tuple[Silo, ...], scores: Scores) -> RoundResult:
        if math.isnan(self.scores.best_score):
            self.scores.best_round = round_
        checkpoint = RoundCheckpoint(
            self.admission.round,
            self.scores.best_round,
            self.scores.best_score,
            self._state(),
            self.times,
            self.interval,
        )
        return RoundResult(
            round_,
            checkpoint.encode(),
            scores,
            silos,
            self.admission.over,
            self.scores.best_round if self.parameters.early_stopping_rounds else round_,
        )

    async def _tell(
        self, at: ExchangeKey, silos: tuple[Silo, ...], closed: ClosedTrees
    ) -> tuple[Silo, ...]:
        """Give a round's trees to silos that were not drawn for it; return who has them."""
        if not silos:
            return ()
        waiting = await self.hub.collect(GROWN, at, silos=silos, quorum=0)
        self.hub.answer(GROWN, at, dict.fromkeys(waiting, GrownTrees(tuple(self.levels), closed)))
        return tuple(waiting)

    async def _largest(self, sums: CoordinatorSums, at: ExchangeKey) -> Largest:
        """Return the largest gradients over silos; of a blind job what nobody reads here."""
        (grad, hess), _ = await total_maximum(sums, at, 2)
        return Largest(grad, hess)

    async def _risk(self, at: ExchangeKey) -> RiskSets:
        """Return what silos compare their rows by."""
        assert self.opening is not None
        assert self.opening.labels is not None
        n = self.plan.n_risk_values(self.opening)
        check = self.plan.integers_check
        outcome = await self.sums.total(at, n, steps=RISK, check=check)
        assert outcome.total is not None
        there = self.sums.participants
        self.playing = tuple(silo for silo in self.playing if silo in there)
        read = partial(RiskSets.of, n_cells=self.opening.labels.n_cells)
        risk = await asyncio.to_thread(decided, at, read, outcome.total)
        if at.round == 0:
            self.times = CountedTimes(risk.events, risk.rows)
        return risk

    async def _threshold(self, at: ExchangeKey, risk: RiskSets | None) -> float:
        """Find all silos' sampling threshold."""
        assert self.opening is not None
        bound = self.plan.row_bound(self.opening, self.largest, risk)
        search = self.plan.threshold_search(self.opening, bound)
        for passing in range(search.N_PASSES):
            place = replace(at, passing=passing)
            n = search.n_values
            outcome, told = await total_counts(self.round_sums, THRESHOLDS, place, n)
            await asyncio.to_thread(decided, place, search.take, told.rows[-n:])
            self.round_sums.answer(THRESHOLDS.decided, outcome, told)
        return search.mu

    async def _grow(
        self, at: ExchangeKey, opening: Setup, bound: tuple[float, float]
    ) -> tuple[Sequence[Tree], ClosedTrees, tuple[Silo, ...]]:
        """Grow a round's trees from the silos' sums; return who was there at their end."""
        plan = self.plan.of_round(at.round)
        scales = plan.scales(plan.quantiser(opening, bound))
        trees = RoundTrees(plan.shape(opening, at.round), *scales)
        trees.spare = self.spare
        closed: ClosedTrees | None = None
        self.levels = []
        level = passing = 0
        while not trees.done and closed is None:
            place = replace(at, level=level, passing=passing)
            rings = await asyncio.to_thread(trees.rings, passing)
            outcome = await self.round_sums.sum(
                HISTOGRAMS.decided, place, rings.fields.n_words, ring=rings.fields, whole=level > 0
            )
            decision = await asyncio.to_thread(
                decided, place, partial(trees.decide_packed, rings), outcome.total
            )
            self.spare, passing = trees.spare, passing + 1 if decision.overflowed else 0
            if decision.overflowed:
                self.round_sums.answer(HISTOGRAMS.decided, outcome, decision)
                continue
            closed = decision.closed
            if level == 0:
                await asyncio.to_thread(self._keep, outcome, trees, opening)
            if closed is not None:
                closed = self._with_end(closed)
                decision = replace(decision, closed=self._for_silos(closed))
            self.round_sums.answer(HISTOGRAMS.decided, outcome, decision)
            plain = tuple(replace(splits, rings=None) for splits in decision.trees)
            self.levels.append(LevelDecision(plain, None))
            level += 1
        if closed is not None and closed.cut:
            self.levels.pop()
        if closed is None:
            outcome = await self.round_sums.sum(
                LEAVES.decided,
                at,
                trees.n_leaf_values,
                ring=self.parameters.ring_bits,
                whole=True,
            )
            close = partial(trees.close_summed, ring_bits=outcome.ring_bits)
            closed = await asyncio.to_thread(decided, at, close, outcome.total)
            closed = self._with_end(closed)
            self.round_sums.answer(LEAVES.decided, outcome, self._for_silos(closed))
        grown = trees.finished
        if plan.objective.renews:
            grown, outcome = await self._quantiles(at, opening, grown, closed, outcome)
        return plan.trees(grown, opening), replace(closed, totals=None), outcome.answering

    async def _quantiles(
        self,
        at: ExchangeKey,
        opening: Setup,
        trees: Sequence[GrownTree],
        closed: ClosedTrees,
        outcome: SumOutcome,
    ) -> tuple[list[GrownTree], SumOutcome]:
        """Return the trees with quantiles of residuals as leaf values, and the last outcome."""
        plan, sums = self.plan.of_round(at.round), self.round_sums
        if closed.cut:
            return plan.renewed(trees, None, opening, at.round), outcome
        search = plan.leaf_search(opening, trees)
        passing = 0
        while n := search.n_asked:
            place = replace(at, passing=passing)
            outcome, told = await total_counts(sums, QUANTILES, place, n, whole=True)
            if told.rows.shape[0]:
                await asyncio.to_thread(decided, place, search.take, told.rows[-n:])
            sums.answer(QUANTILES.decided, outcome, told)
            if not told.rows.shape[0]:
                break
            passing += 1
        return plan.renewed(trees, search, opening, at.round), outcome

    def _for_silos(self, closed: ClosedTrees) -> ClosedTrees:
        """Return the end of trees as silos receive it that derive leaf values themselves."""
        if not self.plan.checks_totals:
            return closed
        return replace(closed, values=np.empty(0, np.float32))

    def _with_end(self, closed: ClosedTrees) -> ClosedTrees:
        """Say what follows the round, unless the silos score it first."""
        if self.scores.scored is not RowsScored.NONE:
            return closed
        return replace(closed, end=self.admission.end_round(stop=False))

    def _keep(self, outcome: SumOutcome, trees: RoundTrees, opening: Setup) -> None:
        """Note the set of the round's first sum before silos learn what it gives.

        That sum must not be opened over other silos. If one of them never returns after a restart,
        the round's trees are roots, whose children no silo has checked; else it is played again.
        """
        journal, r = self.start.journal, self.admission.round
        if journal is None or not self.plan.checks_totals or outcome.total is None:
            return
        roots, plan = trees.roots, self.plan.of_round(r)
        if plan.objective.renews:  # gradients do not give their values
            roots = plan.renewed(roots, None, opening, r)
        model = np.frombuffer(self._part(plan.trees(roots, opening)).save(), np.uint8)
        terms = opening.terms if r == 0 else None
        journal.remember(_BEGUN, BegunRound(r, outcome.present, model, terms).encode())

    async def _relay_round(self, at: ExchangeKey) -> None:
        """Pass masked totals on, padded so that their lengths reveal nothing of the trees."""
        plan, coarse = self.plan.of_round(at.round), bool(self.parameters.coarse_bits)
        for level in range(plan.n_levels):
            outcome = await self.sums.sum(
                HISTOGRAMS.relayed,
                replace(at, level=level),
                plan.n_padded(at.round, level),
                ring=plan.blind_ring,
                whole=level > 0,
            )
            last = outcome.total is None or (level == plan.n_levels - 1 and not coarse)
            self._relay(HISTOGRAMS, outcome, last=last)
            if last:
                return
        outcome = await self.sums.sum(
            LEAVES.relayed,
            at,
            plan.n_padded_leaves,
            ring=self.parameters.ring_bits,
            whole=True,
        )
        self._relay(LEAVES, outcome, last=True)

    def _relay(
        self,
        kind: DecidedSum[LevelDecision] | DecidedSum[ClosedTrees],
        outcome: SumOutcome,
        *,
        last: bool,
    ) -> None:
        end = self.admission.end_round(stop=False) if last else None
        total = RelayedTotal.of(outcome.total, outcome.ring_bits, outcome.present, end)
        self.sums.answer(kind.relayed, outcome, total)

    def _add_trees(self, trees: Sequence[Tree]) -> Scores:
        """Add a round's trees to the ensemble; return the scores on the coordinator's rows."""
        part = self._part(trees)
        assert self.ensemble is not None
        self.ensemble = self.ensemble.extend(trees, n_steps=1)
        return self.scores.add(part)

    def _part(self, trees: Sequence[Tree]) -> Ensemble:
        """Return an ensemble that has one round's trees only."""
        assert self.ensemble is not None
        return self.ensemble.slice(0).extend(trees, n_steps=1)
