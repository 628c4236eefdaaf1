"""FedGA at the coordinator: a search, and who is to score what."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.checks import MOST_ROWS
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo, Step
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.strategies.fedga.checkpoint import SearchState, structures_of
from hedgerow.boosting.strategies.fedga.evolution import (
    Floats,
    absorb,
    empty_generation,
    first_brood,
    fitness,
    next_brood,
    scores_of,
)
from hedgerow.boosting.strategies.fedga.packed import PackedStructures
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import (
    DEPTHS,
    PROPOSALS,
    REPORTS,
    SCORES,
    STANDING,
    UNIT,
    DepthVote,
    Proposal,
    SearchPhase,
    SearchTask,
    StructureScores,
    TreeComparison,
    opened,
    reported_metrics,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.genetics import MAX_DEPTH, Genes, gene_count

LEAST_OWN = 0.01
"""Own trees' least score in delta: an F1, or a share of the median of the silos' errors."""
MOST_ERROR = 1e100
"""Largest mean squared error that is taken; its inverse is the least floor of delta."""


async def coordinate(
    parameters: FedGA, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    search = GeneticSearch(parameters, hub, start)
    hub.serve(STANDING, search.standing)
    if start.checkpoint is None:
        await search.open()
    if search.ended:  # the coordinator was restarted before it had stored the result
        await search.release()
        return
    while True:
        result = await search.advance()
        yield result
        if result.final:
            return


class GeneticSearch:
    """A search, and the silos that it waits for."""

    def __init__(
        self, parameters: FedGA, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        self._parameters = parameters
        self._hub = hub
        self._start = start
        self._task = start.schema.task
        self._n_features = start.schema.n_features
        # Silos of the open barrier; one that joins meanwhile is sent on to the next.
        self._awaited: frozenset[Silo] = frozenset(hub.silos)
        self._sent_on: frozenset[Silo] = frozenset()
        self._newcomers: list[Genes] = []
        if start.checkpoint is None:
            self._state = SearchState()
            self._state.active = self._draw(hub.silos)
        else:
            self._state = SearchState.decode(start.checkpoint)

    @property
    def ended(self) -> bool:
        """Whether the last generation has its scores."""
        return self._state.phase is SearchPhase.END

    async def release(self) -> None:
        """Let silos that have no tree yet take the result of a search that has ended."""
        await self._gather_reports(self._hub.silos)

    def standing(self, silo: Silo, at: ExchangeKey, offer: Receipt) -> SearchTask:
        """Return where a silo that starts, restarts or was left out continues."""
        state = self._state
        if state.phase is SearchPhase.END or silo in self._awaited:
            return self._task_of(silo)
        self._sent_on |= {silo}
        due = state.round + 1 if state.phase is SearchPhase.SCORE else 0
        return SearchTask(SearchPhase.SCORE, due, state.depth, False, state.full, None)

    def _task_of(self, silo: Silo) -> SearchTask:
        """Return what a silo of the open barrier is to do."""
        state = self._state
        active = silo in state.active
        structures = state.brood if active else state.brood[:0]
        if state.phase is SearchPhase.END:
            structures = state.generation.population[: self._parameters.n_finalists]
        return SearchTask(
            state.phase, state.round, state.depth, active, state.full,
            PackedStructures.of(structures),
        )  # fmt: skip

    def _draw(self, present: tuple[Silo, ...]) -> frozenset[Silo]:
        """Draw the silos that the current round asks."""
        count = max(1, math.ceil(self._parameters.participation * len(present) - 1e-9))
        order = self._rng(Purpose.ASKED_SILOS, self._state.round).permutation(len(present))
        return frozenset(present[i] for i in order[:count])

    def _rng(self, purpose: Purpose, of_round: int) -> np.random.Generator:
        return generator(self._start.job.seed, 0, of_round, purpose)

    def _await_next(self, offers: Mapping[Silo, Any]) -> None:
        """Wait at the next barrier for the silos of this one and for those sent on to it."""
        self._awaited = frozenset(offers) | self._sent_on | frozenset(self._hub.silos)
        self._sent_on = frozenset()

    def _answer(
        self, step: Step[Any, SearchTask], at: ExchangeKey, silos: Mapping[Silo, Any]
    ) -> None:
        self._hub.answer(step, at, {silo: self._task_of(silo) for silo in silos})

    async def open(self) -> None:
        """Decide depth and votes, and make the first brood."""
        state, parameters, at = self._state, self._parameters, ExchangeKey(0, 0)
        least = self._start.job.min_silos
        silos = tuple(sorted(self._awaited))
        votes = await self._hub.collect(DEPTHS, at, read=_read_vote, silos=silos, quorum=least)
        state.rows = {silo: vote.rows for silo, vote in votes.items() if vote.rows > 0}
        if not state.rows:
            raise QuorumLost("no silo with rows takes part in the opening")
        # The lower median; silos of a single class have no vote.
        depths = sorted(vote.depth for vote in votes.values() if vote.depth > 0)
        depth = depths[(len(depths) - 1) // 2] if depths else parameters.min_depth
        state.depth = min(max(depth, parameters.min_depth), parameters.max_depth)
        state.brood = np.empty((0, gene_count(state.depth)), dtype=np.int16)
        state.phase, self._awaited = SearchPhase.PROPOSE, frozenset(votes)
        self._answer(DEPTHS, at, votes)
        await self._gather_proposals(tuple(votes), least)

    async def _gather_proposals(self, silos: tuple[Silo, ...], least: int) -> None:
        state, at = self._state, ExchangeKey(0, 1)
        offers = await self._hub.collect(
            PROPOSALS, at, read=self._read_proposal, silos=silos, quorum=least
        )
        votes = [(offer, own) for offer, own in offers.values() if own is not None]
        elite = False
        if self._task is Task.REGRESSION:
            state.full = 2 * sum(vote.full for vote, _ in votes) > len(votes)
            elite = 2 * sum(vote.elite for vote, _ in votes) > len(votes)
        proposed = self._stacked([own for _, own in votes])
        state.generation = empty_generation(proposed.shape[1], proposed if elite else None)
        rng = self._rng(Purpose.BREEDING, 0)
        room = max(0, self._parameters.population - len(proposed))
        first = np.concatenate([proposed, self._earlier()[:room]])
        state.brood = first_brood(rng, self._parameters, first, self._n_features, state.depth)
        state.phase = SearchPhase.SCORE
        self._await_next(offers)
        self._answer(PROPOSALS, at, offers)

    def _earlier(self) -> Genes:
        """Return the structures of the run that the job goes on from, the fittest first."""
        if self._start.job.warm_start is None:
            return self._stacked([])
        return structures_of(self._start.starting_model, self._start.schema, self._state.depth)

    async def advance(self) -> RoundResult:
        """Collect one generation's scores and answer with the next brood, or the end."""
        hub, parameters, state = self._hub, self._parameters, self._state
        done = state.round
        at = ExchangeKey(done, 2)
        offers = await hub.collect(
            SCORES, at, read=self._read_scores, silos=tuple(sorted(self._awaited)),
            quorum=self._start.job.min_silos,
        )  # fmt: skip
        self._introduce(offers)
        contributed = tuple(silo for silo, (offer, _) in offers.items() if offer.thousandths.size)
        state.generation = await asyncio.to_thread(
            absorb, state.generation, state.brood, self._fitness(offers), parameters.population
        )
        if not state.generation.population.size:
            raise QuorumLost("no silo has scored any structure of the first generation")
        is_stale = 0 < parameters.patience <= state.generation.stale
        if done + 1 >= parameters.generations or is_stale:
            state.phase = SearchPhase.END
            self._answer(SCORES, at, offers)
            await self._gather_reports(tuple(offers) + await self._release_late())
        else:
            state.brood = await asyncio.to_thread(
                next_brood, self._rng(Purpose.BREEDING, done + 1), parameters, state.generation,
                self._n_features, self._stacked(self._newcomers),
            )  # fmt: skip
            self._newcomers = []
            state.round = done + 1
            state.active = self._draw(tuple(offers))
            self._await_next(offers)
            self._answer(SCORES, at, offers)
        checkpoint = await asyncio.to_thread(state.encode)
        return RoundResult(
            done, checkpoint, self._metrics(), contributed or tuple(offers),
            final=state.phase is SearchPhase.END, best_round=done,
        )  # fmt: skip

    async def _release_late(self) -> tuple[Silo, ...]:
        """Answer silos that were sent on to a round that will not be."""
        at, late = ExchangeKey(self._state.round + 1, 2), tuple(sorted(self._sent_on))
        if not late:
            return ()
        offers = await self._hub.collect(SCORES, at, silos=late, quorum=0)
        self._answer(SCORES, at, offers)
        return tuple(offers)

    def _stacked(self, structures: list[Genes]) -> Genes:
        n_genes = gene_count(self._state.depth)
        return np.array(structures, dtype=np.int16).reshape(-1, n_genes)

    def _read_proposal(self, silo: Silo, offer: Proposal) -> tuple[Proposal, Genes | None]:
        own = None if offer.structure is None else self._one(offer.structure)
        return offer, own

    def _read_scores(
        self, silo: Silo, offer: StructureScores
    ) -> tuple[StructureScores, Genes | None]:
        asked = self._state.brood.shape[0] if silo in self._state.active else 0
        if offer.thousandths.shape[0] not in (0, asked):
            raise OfferRejected(f"expected {asked} scores, received {len(offer.thousandths)}")
        if offer.introduction is None:
            return offer, None
        if not 0 < offer.introduction.rows < MOST_ROWS:
            raise OfferRejected(f"expected a row count, received {offer.introduction.rows}")
        return offer, self._one(offer.introduction.structure)

    def _one(self, structure: PackedStructures) -> Genes:
        """Return a silo's own structure."""
        if structure.n_structures != 1:
            raise OfferRejected(f"own structure: expected one, received {structure.n_structures}")
        own: Genes = opened(structure, self._state.depth, self._n_features, "own structure")[0]
        return own

    def _introduce(self, offers: Mapping[Silo, tuple[StructureScores, Genes | None]]) -> None:
        """Take row counts and structures of silos that were drawn for the first time."""
        for silo, (offer, own) in offers.items():
            if offer.introduction is not None and own is not None and silo not in self._state.rows:
                self._state.rows[silo] = offer.introduction.rows
                self._newcomers.append(own)

    def _fitness(self, offers: Mapping[Silo, tuple[StructureScores, Genes | None]]) -> Floats:
        """Return the brood's fitness by the mean score, weighted by noisy rows; NaN without one."""
        state = self._state
        total = np.zeros(state.brood.shape[0])
        weight = 0
        for silo, (offer, _) in offers.items():
            if offer.thousandths.size:
                rows = state.rows.get(silo, 0)
                total += rows * offer.thousandths.astype(np.float64) / UNIT
                weight += rows
        if weight == 0:
            return np.full_like(total, np.nan)
        return fitness(total / weight, state.brood, self._parameters.cost, self._task)

    async def _gather_reports(self, silos: tuple[Silo, ...]) -> None:
        at, job, test = ExchangeKey(self._state.round, 3), self._start.job, self._state.test
        # A silo that is lost here has its tree; only its test scores are missing.
        reports = await self._hub.collect(
            REPORTS, at, read=self._read_report, silos=silos, quorum=0
        )
        self._hub.answer(REPORTS, at, dict.fromkeys(reports, Receipt()))
        names = reported_metrics(job, self._parameters.metric)
        given = [report for report in reports.values() if len(report.own)]
        if not given:
            return
        federated = np.array([report.federated for report in given])
        own = np.array([report.own for report in given])
        change, sign = federated[:, 0] - own[:, 0], 1 if metrics.higher_is_better(names[0]) else -1
        for k, name in enumerate(names):
            test[name] = float(np.mean(federated[:, k]))
            test[f"own_{name}"] = float(np.mean(own[:, k]))
        test["share_gaining"] = float(np.mean(sign * change > 0.0))
        # Next to a score of nearly nothing any change is large: one silo would decide the mean.
        typical = float(np.median(own[:, 0])) if self._task is Task.REGRESSION else 1.0
        floor = LEAST_OWN * typical
        scored = own[:, 0] >= floor
        if floor >= 1.0 / MOST_ERROR and scored.any():
            test["delta"] = 100.0 * float(np.mean(change[scored] / own[scored, 0]))

    def _read_report(self, silo: Silo, offer: TreeComparison) -> TreeComparison:
        names = reported_metrics(self._start.job, self._parameters.metric)
        if len(offer.own) not in (0, len(names)):
            raise OfferRejected(
                f"expected {len(names)} test scores or none, received {len(offer.own)}"
            )
        most = MOST_ERROR if self._task is Task.REGRESSION else 1.0
        for own, federated in zip(offer.own[:1], offer.federated[:1], strict=True):
            if not (0.0 <= own <= most and 0.0 <= federated <= most):
                raise OfferRejected(
                    f"expected {names[0]} from 0 to {most:g}, received {federated} of the "
                    f"federated tree and {own} of the silo's own"
                )
        if np.isinf((offer.own, offer.federated)).any():
            raise OfferRejected("expected finite test scores, received an infinite one")
        return offer

    def _metrics(self) -> dict[str, dict[str, float]]:
        state = self._state
        found = scores_of(state.generation, self._parameters.cost, self._task)
        best = "relative_mse" if self._task is Task.REGRESSION else self._parameters.metric
        train = {"train": {best: float(found[0])}}
        return train | ({"test": dict(state.test)} if state.test else {})


def _read_vote(silo: Silo, offer: DepthVote) -> DepthVote:
    if not (0 <= offer.rows < MOST_ROWS and 0 <= offer.depth <= MAX_DEPTH):
        raise OfferRejected(
            f"expected a depth of at most {MAX_DEPTH} and a row count, received {offer.depth} and "
            f"{offer.rows}"
        )
    return offer
