"""The silo half of histogram boosting; the package's docstring has the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from hedgerow.boosting.engine.bounds import Largest
from hedgerow.boosting.engine.cox import RiskSets
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.quantising import bound_of_exponents, exponents
from hedgerow.boosting.engine.sampling import Sample, mvs_scores
from hedgerow.boosting.engine.table import GrowingRows
from hedgerow.boosting.errors import JobStopped, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, SiloChannel
from hedgerow.boosting.ports import Artefact, ModelCheck, SiloStart
from hedgerow.boosting.strategies.histogram.artefact import check_interval
from hedgerow.boosting.strategies.histogram.decided_sums import (
    SiloDecisions,
    decided,
    residues_of,
)
from hedgerow.boosting.strategies.histogram.mirror import apply_level
from hedgerow.boosting.strategies.histogram.opening import SiloOpening
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup, way_of
from hedgerow.boosting.strategies.histogram.rings import PASSES
from hedgerow.boosting.strategies.histogram.round_trees import Integers, RoundTrees
from hedgerow.boosting.strategies.histogram.rows import (
    DividedRows,
    Floats,
    SiloRows,
    drawn_by_tree,
)
from hedgerow.boosting.strategies.histogram.steps import (
    ENTER,
    GROWN,
    HISTOGRAMS,
    LEAVES,
    RISK,
    ROWS_PASS,
    SAMPLE_PASS,
    SCORES,
    SYNC,
    THRESHOLDS,
    WITNESS_PASS,
    AfterRound,
    ClosedTrees,
    EntryRequest,
    KnownTrees,
    LevelDecision,
    NodeTotals,
    RowsScored,
    TrainingState,
)
from hedgerow.boosting.strategies.histogram.stored import CheckedModel, Interval, SiloCopy
from hedgerow.boosting.streams import Purpose, generator, round_drawn
from hedgerow.boosting.sums.maximum import add_maximum
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import check_trees
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.crypto.masking.totals import N_LIMBS
from hedgerow.crypto.vault.interface import Vault


def participate(
    parameters: Histogram, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> Artefact | ModelCheck | None:
    """Take part until the job is over; with a blind coordinator only silos have the model."""
    half = _Silo(parameters, link, vault, start)
    while True:
        try:
            if half.enter():
                while not half.over:
                    half.take_round()
                half.find_interval()
            return half.result()
        except PlacePassed:  # the others went on without this silo: it enters again
            link.check()


class _Silo:
    """The half's state within an attempt."""

    def __init__(
        self, parameters: Histogram, link: SiloChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters, self.link, self.start = parameters, link, start
        self.blind = parameters.blind_coordinator
        self.plan = HistogramPlan.of(parameters, start.job, start.schema)
        self.sums = SiloSums.of(link, vault, start, parameters.sum_parameters(start.job))
        drawn = parameters.silos_per_round
        self.round_sums = self.sums.beside(self.plan.round_parameters) if drawn else self.sums
        self.decisions = SiloDecisions(self.round_sums, blind=self.blind)
        self.rows = SiloRows(self.plan, start)
        self.opening: Setup | None = None
        self.ensemble: Ensemble | None = None  # of a blind job
        self.scored = RowsScored.NONE
        self.round = 0
        self.n_known = 0  # rounds whose trees are in the margins
        self.n_requests = 0
        self.largest: Largest | None = None
        self.over = False
        self.interval: Interval | None = None
        self.checked_rounds = -1  # of the model, by this silo or others for it; -1: unknown

    # entering: at the start, and again after this silo was left out

    def enter(self) -> bool:
        """Wait for the round at which this silo may enter; False when the job is over.

        What this silo has itself checked of a job that is over is in its own record: a coordinator
        that was restarted, or says so, sends the trees, and not their check.
        """
        answer = self.link.exchange(SYNC, ExchangeKey(0, 0, self.n_requests), EntryRequest())
        self.n_requests += 1
        if answer.round is None:
            return False
        if self.blind and self.opening is None and answer.round > 0:
            self._recall(answer.round)
        entry = self.link.exchange(ENTER, ExchangeKey(answer.round), KnownTrees(self.n_known))
        if entry.scored not in self.plan.scorable:
            raise OfferRejected(
                f"rows to score: expected {' or '.join(one.value for one in self.plan.scorable)} "
                f"by the job, received {entry.scored.value} of the coordinator"
            )
        self.scored = entry.scored
        if entry.state is not None:
            if entry.round == 0:
                raise OfferRejected(
                    "from the coordinator: expected no cut points, start scores or cells of labels "
                    "before the first round, which silos agree on themselves"
                )
            if self.blind:
                raise OfferRejected(
                    "from the coordinator: expected no model, which only silos have"
                )
            self._restore(entry.state, "the coordinator")
            # Its rows are divided by what the others have agreed on.
            assert self.opening is not None
            by_summaries = self.parameters.binning == "summary"
            self.start.telling(*([way_of(self.opening.cuts)] if by_summaries else []))
            if self.plan.checks_totals:
                self.checked_rounds = self._checked_model.checked_rounds(
                    self.rows.digests, self.rows.bare, "the coordinator"
                )
        if entry.round is None:
            self.over = not self.plan.checks_totals or bool(self._witness(0))
            self.interval = self._checked_model.interval
            return False
        self.round = entry.round
        if (self.round or self.opening is not None) and self.n_known != self.round:
            raise JobStopped("this silo has no copy of the trees that it has missed")
        self._setup()
        if self.opening is None:
            decisions = SiloDecisions(self.sums, blind=self.blind)
            opening = SiloOpening(
                self.plan,
                self.link,
                self.sums,
                decisions,
                self.start,
                self.rows.train,
                entry.largest_silo or 0,
            )
            self._begin(opening.agree())
            self._note_checked()
        return True

    def _setup(self) -> None:
        """Agree on keys with the silos that enter, whose rows have larger gradients perhaps."""
        self.sums.setup(ExchangeKey(self.round))
        self.largest = None
        if self.plan.checks_totals and self.round:
            self._find_witness()

    def _begin(self, opening: Setup) -> None:
        self.plan.check_bins(opening.cuts)
        self.opening = opening
        self.n_known = 0
        self.rows.begin(opening)
        if self.blind:
            self.ensemble = self.plan.blank(opening)

    def _restore(self, state: TrainingState, sender: str) -> None:
        self.plan.check_weight(state.terms.weight_exponent)
        opening = Setup.of(state.terms, self.plan.schema, self.plan.n_outputs)
        opening.check_labels(self.plan.objective)
        ensemble = self.plan.read_model(state.model.tobytes(), opening, sender)
        self._begin(opening)
        self.n_known = len(ensemble.round_ends)
        self.rows.restore(ensemble)
        if self.blind:
            self.ensemble = ensemble

    def _recall(self, round_: int) -> None:
        kept = self.link.recall(_memory(round_))
        copy = SiloCopy.decode(kept) if kept is not None else None
        if copy is None or copy.round != round_:
            raise JobStopped("this silo has no copy of the trees, and no other party can send one")
        self._restore(copy.state, "this silo's own record")

    @cached_property
    def _checked_model(self) -> CheckedModel:
        stored = self.link.recall(_CHECKED)
        return CheckedModel() if stored is None else CheckedModel.decode(stored)

    def _note_checked(self) -> None:
        """Make durable that the model so far is checked, so that no other one is taken for it."""
        if self.plan.checks_totals:
            self.checked_rounds = self.n_known
            self._checked_model = self._checked_model.then(self.n_known, self.rows.model)
            self.link.remember(_CHECKED, self._checked_model.encode())

    def _witness(self, n_left_out: int) -> int:
        """1 where this silo knows that the model so far, but for some last rounds, is checked."""
        start, end = self.checked_rounds, self.n_known - n_left_out
        return int(start >= 0 and all(self.rows.bare[start:end]))

    def _find_witness(self) -> None:
        """Go on only from trees that a silo of the group has checked; no sum precedes this one.

        Where the replies of the last round's sums reached no silo, and the coordinator's process
        ended, nobody has checked its trees: the coordinator then starts again from the round.

        Raises
        ------
        OfferRejected
            Nobody has checked them; names the coordinator.
        PlacePassed
            Somebody has checked all but those of the last round.
        """
        at = ExchangeKey(self.round, 0, WITNESS_PASS)
        own = np.array([self._witness(0), self._witness(1)], np.uint64)
        state, check = state_digest(self.rows.model), self.plan.integers_check
        total = self.sums.total(at, own, state=state, check=check, of_rows=False)
        n_all, n_before = total.values.tolist()
        if not n_all and n_before:
            raise PlacePassed(f"no silo has received the end of round {self.round - 1}")
        if not n_all:
            raise OfferRejected(
                f"round {self.round}: no silo has checked the trees that the coordinator has sent "
                "as those of the rounds before; if it was restored from a backup, submit the job "
                "again"
            )
        self._note_checked()

    def _remember(self) -> None:
        """Store the model of a blind job: only the silos have it."""
        assert self.ensemble is not None
        assert self.opening is not None
        model = np.frombuffer(self.ensemble.save(), np.uint8)
        state = TrainingState(model, self.opening.terms)
        self.link.remember(_memory(self.round), SiloCopy(self.round, state).encode())

    # a round

    def take_round(self) -> None:
        """Take part in a round: with this silo's rows unless it was not drawn for it."""
        at, cohort = ExchangeKey(self.round), self.plan.cohort(self.round)
        pairs = None
        if self.plan.bounds.is_due(self.largest, self.round):
            pairs = self.rows.gradients(self.round)
            everyone = Sample(np.arange(pairs.shape[0], dtype=np.int32))
            place = replace(at, passing=ROWS_PASS)
            self.largest = self._largest(self.sums, place, pairs, everyone)
        if cohort and self.start.silo not in cohort:
            del pairs
            closed = self._follow(at)
        else:
            if cohort:
                self.round_sums.setup(replace(at, passing=1), cohort)
            risk = self._risk(at) if self.plan.objective.by_risk_sets else None
            if pairs is None:
                pairs = self.rows.gradients(self.round, risk)
            closed = self._grow_round(pairs, risk)
        self._end_round(closed)

    def _follow(self, at: ExchangeKey) -> ClosedTrees:
        """Add the trees to the margins that the round's cohort has grown."""
        assert self.opening is not None
        plan = self.plan.of_round(at.round)
        shape = plan.shape(self.opening, at.round)
        mirrors = [shape.mirror() for _ in range(plan.n_trees)]
        grown = self.link.exchange(GROWN, at, KnownTrees(self.n_known))
        for level in grown.levels:
            apply_level(mirrors, level.trees)
        if grown.closed.cut:
            for mirror in mirrors:
                mirror.cut()
        self._add(self.rows.grown(mirrors, grown.closed.values, at.round), None)
        return grown.closed

    def _risk(self, at: ExchangeKey) -> RiskSets:
        """Return what rows are compared by: sums over rows at risk of all silos."""
        assert self.opening is not None
        assert self.opening.labels is not None
        own, check = self.rows.risk_parts(), self.plan.integers_check
        state = state_digest(self.rows.model)
        total = self.sums.total(at, own, state=state, steps=RISK, check=check)
        return decided(at, partial(RiskSets.of, n_cells=self.opening.labels.n_cells), total.values)

    def _grow_round(self, pairs: Floats, risk: RiskSets | None) -> ClosedTrees:
        """Grow a round's trees with the other silos and add them to the margins."""
        opening, r, rule = self.opening, self.round, self.plan.bounds
        plan = self.plan.of_round(r)
        assert opening is not None
        g, h = pairs[:, 0::2], pairs[:, 1::2]
        within = plan.row_bound(opening, self.largest, risk)
        threshold = None
        if self.parameters.shares_threshold:
            threshold = self._threshold(opening, within, g, h)
        drawn = round_drawn(plan.job, r)
        rng = generator(self.start.draws, self.rows.number, drawn, Purpose.SAMPLING)
        if plan.draws_by_tree:
            pairs, sample = drawn_by_tree(plan, pairs, rng, threshold)
        else:
            sample = self.parameters.sampler.draw(g, h, rng, threshold)
        found = None
        if rule.asks_sample:
            largest = self._largest(self.round_sums, ExchangeKey(r, 0, SAMPLE_PASS), pairs, sample)
            found = bound_of_exponents(largest.grad, largest.hess)
        bound = rule.of_sample(within, found, threshold)
        quantiser = plan.quantiser(opening, bound)
        shape = plan.shape(opening, r)
        compared = () if risk is None else (risk.events, risk.rows, risk.sums)
        state = state_digest(self.rows.model, threshold, bound, *compared)
        rows = DividedRows(plan, self.rows, shape, pairs, sample, quantiser, r)
        del pairs, g, h, sample  # what of them the trees do not need takes memory no longer
        trees = RoundTrees(shape, *plan.scales(quantiser), self.start.n_threads)
        closed = self._grow_blind(rows, trees, state) if self.blind else self._grow(rows, state)
        if closed is None and plan.checks_totals:
            closed = self._check_last(rows, state)
        elif closed is None:
            if not self.parameters.coarse_bits:
                raise OfferRejected("level: expected leaf values with the last one, received none")
            closed = self._renew(rows, trees, state)
        grown = (
            rows.derived()
            if plan.checks_totals
            else self.rows.grown(rows.mirrors, closed.values, r)
        )
        if plan.objective.renews:
            state = state_digest(state, *rows.state)
            grown = self.rows.renewed(grown, self.decisions, r, state, cut=closed.cut)
        self._add(grown, None if closed.cut else rows.division)  # rows lie in nodes that are gone
        rows.forget()
        if self.ensemble is not None:
            self.ensemble = self.ensemble.extend(plan.trees(trees.finished, opening), n_steps=1)
            self._remember()
        return closed

    def _add(self, trees: Sequence[GrownTree], division: GrowingRows | None) -> None:
        self.rows.add(trees, division, self.round)
        if self.largest is not None:
            leaves = [tree.value[tree.leaves].reshape(-1) for tree in trees]
            self.largest = self.largest.after(np.concatenate(leaves) * self.plan.parallel)
        self.round += 1
        self.n_known += 1
        self._note_checked()

    def _threshold(self, opening: Setup, bound: tuple[float, float], g: Floats, h: Floats) -> float:
        """Find the sampling threshold of all silos' rows together."""
        search = self.plan.threshold_search(opening, bound)
        scores = mvs_scores(g, h, self.parameters.mvs_lambda)
        for passing in range(search.N_PASSES):
            at = ExchangeKey(self.round, 0, passing)
            state = state_digest(self.rows.model, bound, search.mu, search.low)
            told = self.decisions.counts(THRESHOLDS, at, search.own(scores), state=state)
            decided(at, search.take, told)
        return search.mu

    def _largest(self, sums: SiloSums, at: ExchangeKey, pairs: Floats, sample: Sample) -> Largest:
        """Return the largest gradients of all silos' kept rows, weighted."""
        own = exponents(pairs[:, 0::2], pairs[:, 1::2], sample)
        return Largest(*add_maximum(sums, at, own, state=state_digest(self.rows.model)))

    def _grow(self, rows: DividedRows, state: bytes) -> ClosedTrees | None:
        """Grow the trees; return how they ended unless another sum follows."""
        level = 0
        while True:
            decision = self._level(rows, level, state)
            if self.plan.checks_totals and decision.closed is not None:
                rows.cut()
                return decision.closed
            rows.divide(decision)
            level += 1
            if rows.done:
                return decision.closed

    def _level(self, rows: DividedRows, level: int, state: bytes) -> LevelDecision:
        """Add to a level's sum; again with wider fields where narrow ones overflowed."""
        own = rows.level(level)
        totals = None
        if self.plan.checks_totals:
            totals = rows.totals(own, level)
        n_silos = len(self.round_sums.participants or self.start.silos)
        for passing in range(PASSES):
            sent = rows.packed(own, level, n_silos, passing)
            decision = self.round_sums.sum(
                HISTOGRAMS.decided,
                ExchangeKey(self.round, level, passing),
                sent.words,
                state=state_digest(state, *rows.state),
                ring=sent.fields,
                content=own,
                opens_tree=level == 0,
                whole=level > 0,
                totals=totals,
            )
            if not decision.overflowed:
                if totals is not None and level == 0 and decision.closed is not None:
                    raise OfferRejected(
                        f"round {self.round}: expected node sums of the roots from the "
                        "coordinator, received the end of the trees"
                    )
                if totals is not None and decision.closed is None:
                    nodes = [mirror.request for mirror in rows.mirrors]
                    self._checked(decision.totals, rows, nodes, level)
                return decision
            if not sent.guessed:
                break
        raise OfferRejected("level: expected a decision, received that proven widths overflowed")

    def _checked(
        self,
        totals: NodeTotals | None,
        rows: DividedRows,
        nodes: Sequence[Sequence[int]],
        level: int,
    ) -> Integers:
        """Check the totals of some nodes; return those that are of none of these."""
        if totals is None:
            raise OfferRejected(
                f"round {self.round}, level {level}: expected node totals of the coordinator, "
                "received none"
            )
        self.round_sums.check_totals(ExchangeKey(self.round, level), totals.sums, totals.word)
        return rows.take(nodes, totals.sums, level)

    def _check_last(self, rows: DividedRows, state: bytes) -> ClosedTrees:
        """Add to the last sum of the trees, of nodes that no histogram was asked of."""
        own, renewed = rows.last_totals()
        parts = np.concatenate([own, renewed])
        nodes = [sorted(mirror.unsummed) for mirror in rows.mirrors]
        level = max(max(mirror.depth) for mirror in rows.mirrors)
        word = np.zeros(N_LIMBS, np.int64)
        ring_bits = self.parameters.ring_bits
        closed = self.round_sums.sum(
            LEAVES.decided,
            ExchangeKey(self.round),
            residues_of(np.concatenate([word, renewed]), ring_bits),
            state=state_digest(state, *rows.state),
            ring=ring_bits,
            content=parts,
            whole=True,
            totals=parts,
        )
        if closed.cut:
            rows.cut()
        else:
            rows.take_leaves(self._checked(closed.totals, rows, nodes, level))
        return closed

    def _grow_blind(self, rows: DividedRows, trees: RoundTrees, state: bytes) -> ClosedTrees | None:
        """Grow the trees from relayed totals; return their leaf values unless renewed later.

        The sums go on after the trees are grown, so that their number hides how deep these are.
        """
        plan = self.plan.of_round(self.round)
        closed: ClosedTrees | None = None

        def decide(sums: Integers | None) -> LevelDecision:
            if trees.done and sums is not None:
                return LevelDecision((), closed)
            return trees.decide(sums)

        for level in range(plan.n_levels):
            own = rows.level(level)
            decision = self.decisions.add(
                HISTOGRAMS,
                ExchangeKey(self.round, level),
                np.pad(own, (0, plan.n_padded(self.round, level) - own.shape[0])),
                decide,
                state=state_digest(state, *rows.state),
                ring=plan.blind_ring,
                opens_tree=level == 0,
                whole=level > 0,
            )
            closed = decision.closed
            if decision.trees:
                rows.divide(decision)
            if self.decisions.end is not None:
                break
        return closed

    def _renew(self, rows: DividedRows, trees: RoundTrees, state: bytes) -> ClosedTrees:
        """Renew the leaf values from lossless sums."""
        own = rows.leaves()
        if self.blind:
            own = np.pad(own, (0, self.plan.n_padded_leaves - own.shape[0]))
        return self.decisions.add(
            LEAVES,
            ExchangeKey(self.round),
            own,
            trees.close,
            state=state_digest(state, *rows.state),
            ring=self.parameters.ring_bits,
            whole=True,
        )

    def _end_round(self, closed: ClosedTrees) -> None:
        """Score the round where silos do; go on, re-enter, or stop."""
        end = self.decisions.end if self.blind else closed.end
        if self.scored is not RowsScored.NONE:
            vector = self.rows.metric_sums(self.scored)
            state = state_digest(self.rows.model, self.scored)
            opens = bool(self.parameters.interval)
            at = ExchangeKey(self.round - 1)
            end = self.sums.sum(SCORES, at, vector, state=state, opens_tree=opens)
        if end is None:
            raise OfferRejected("end: expected what follows the round, received nothing")
        self.over = end.after is AfterRound.END
        if end.after is AfterRound.ENTRY:
            at = ExchangeKey(self.round)
            self.link.exchange(ENTER, at, KnownTrees(self.n_known))
            self._setup()

    def find_interval(self) -> None:
        """Find with the other silos how far errors of rows held back reach."""
        if self.parameters.interval:
            decisions = SiloDecisions(self.sums, blind=False)
            rows, errors = self.rows, self.rows.errors()
            ending = SiloOpening(
                self.plan, self.link, self.sums, decisions, self.start, rows.train, 0
            )
            self.interval = ending.interval(errors, rows.model, self.round - 1)
            self._checked_model = replace(self._checked_model, interval=self.interval)
            self.link.remember(_CHECKED, self._checked_model.encode())

    def result(self) -> Artefact | ModelCheck | None:
        """Return the model where only silos have it, or how this silo knows it."""
        if self.ensemble is not None:
            return Artefact({"model.ubj": self.ensemble.save()}, "model.ubj")
        if self.opening is None or not self.over:
            return None
        if self.parameters.interval and self.interval is None:  # other silos know the width
            return None
        known = self.rows.known
        a_round = self.plan.n_outputs * self.plan.parallel
        stops = self.parameters.early_stopping_rounds
        ends = range(a_round if stops else len(known), len(known) + 1, a_round)
        start, interval = self.plan.blank(self.opening), self.interval

        def check(files: Mapping[str, bytes]) -> None:
            check_trees(files, "model.ubj", start, known, ends)
            check_interval(files["model.ubj"], self.parameters.interval, interval)

        return check


_CHECKED = "histogram/checked"
"""Key of the record of the model that was checked."""


def _memory(round_: int) -> str:
    """Return the key of the record of a round; the last two are kept."""
    return f"histogram/{round_ % 2}"
