"""FedGA at the coordinator: a search, and who is to score what."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import Hub, Place, Receipt, Silo, Step
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.strategies.fedga.evolution import (
    Brood,
    Generation,
    absorb,
    empty_generation,
    first_brood,
    from_bytes,
    next_brood,
    pack,
    to_bytes,
    unpack,
)
from hedgerow.boosting.strategies.fedga.steps import (
    DEPTHS,
    PROPOSALS,
    REPORTS,
    SCORES,
    Phase,
    Scores,
    SearchTask,
    check_structures,
    reported_metrics,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.genetics import MAX_DEPTH, Genes, Operators, decision_nodes, gene_count
from hedgerow.boosting.trees.personal import SMALLEST, UNIT

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.fedga.parameters import FedGA


def scores_of(generation: Generation, node_cost: float, task: Task) -> NDArray[np.float64]:
    """Return the mean scores of a population, F1 or relative errors: fitness without costs."""
    fitness = generation.fitness + node_cost * decision_nodes(generation.population)
    return np.asarray(np.exp(-fitness) if task is Task.REGRESSION else fitness)


class Search:
    """The coordinator's state: a search, and who is to score what."""

    def __init__(self, strategy: FedGA, hub: Hub, start: CoordinatorStart) -> None:
        self._strategy = strategy
        self._hub = hub
        self._start = start
        self._n_features = start.schema.n_features
        self._regression = start.schema.task is Task.REGRESSION
        self._phase = Phase.VOTE
        self._round = 0
        self._depth = 0
        self._full = True
        self._rows: dict[Silo, int] = {}
        # Silos of the open barrier; one that comes meanwhile is sent on to the next.
        self._awaited: frozenset[Silo] = frozenset(hub.silos)
        self._sent_on: frozenset[Silo] = frozenset()
        self._active: frozenset[Silo] = frozenset()
        self._newcomers: list[Genes] = []
        self._generation = empty_generation(1)
        self._brood = Brood(self._generation.population)
        self._test: dict[str, float] = {}
        if start.checkpoint is None:
            self._active = self._draw(hub.silos)
        else:
            self._restore(from_bytes(start.checkpoint))

    def standing(self, silo: Silo, at: Place, offer: Receipt) -> SearchTask:
        """Tell a silo that has just come where to go on."""
        if self._phase is Phase.END or silo in self._awaited:
            return self._standing_of(silo)
        self._sent_on |= {silo}
        due = self._round + 1 if self._phase is Phase.SCORE else 0
        nothing = self._brood.to_score[:0]
        return SearchTask(Phase.SCORE, due, self._depth, False, self._full, nothing)

    def _standing_of(self, silo: Silo) -> SearchTask:
        """Return what a silo of the open barrier is to do."""
        active = silo in self._active
        structures = self._brood.to_score if active else self._brood.to_score[:0]
        if self._phase is Phase.END:
            structures = self._generation.population[: self._strategy.finalists]
        return SearchTask(self._phase, self._round, self._depth, active, self._full, structures)

    def _draw(self, present: tuple[Silo, ...]) -> frozenset[Silo]:
        """Draw the silos that the current round asks."""
        count = math.ceil(self._strategy.participation * len(present) - 1e-9)
        chosen = self._rng(Purpose.ASKED_SILOS, self._round).permutation(len(present))[
            : max(1, count)
        ]
        return frozenset(present[i] for i in chosen)

    def _rng(self, purpose: Purpose, of_round: int) -> np.random.Generator:
        return generator(self._start.job.seed, 0, of_round, purpose)

    def _await_next(self, offers: Mapping[Silo, Any]) -> None:
        """Wait at the next barrier for the silos of this one and for those sent on to it."""
        self._awaited = frozenset(offers) | self._sent_on | frozenset(self._hub.silos)
        self._sent_on = frozenset()

    def _answer(self, step: Step[Any, SearchTask], at: Place, offers: Mapping[Silo, Any]) -> None:
        self._hub.answer(step, at, {silo: self._standing_of(silo) for silo in offers})

    async def open(self) -> None:
        """Settle depth and votes, and draw up the first brood."""
        least, at = self._start.job.min_silos, Place(0, 0)
        silos = tuple(sorted(self._awaited))
        votes = await self._hub.collect(DEPTHS, at, silos=silos, quorum=least)
        for silo, vote in list(votes.items()):
            if vote.rows < 0 or not 0 <= vote.depth <= MAX_DEPTH:
                self._hub.reject(DEPTHS, at, silo, "a depth or row count out of range")
                del votes[silo]
        self._rows = {silo: vote.rows for silo, vote in votes.items() if vote.rows > 0}
        if not self._rows:
            raise QuorumLost("no silo with rows takes part in the opening")
        # The lower median; silos of a single class have no vote.
        depths = sorted(vote.depth for vote in votes.values() if vote.depth > 0)
        depth = depths[(len(depths) - 1) // 2] if depths else self._strategy.min_depth
        self._depth = min(max(depth, self._strategy.min_depth), self._strategy.max_depth)
        self._brood = Brood(np.empty((0, gene_count(self._depth)), dtype=np.int16))
        self._phase, self._awaited = Phase.PROPOSE, frozenset(votes)
        self._answer(DEPTHS, at, votes)
        await self._gather_proposals(tuple(votes), least)

    async def _gather_proposals(self, silos: tuple[Silo, ...], least: int) -> None:
        strategy, at = self._strategy, Place(0, 1)
        offers = await self._hub.collect(PROPOSALS, at, silos=silos, quorum=least)
        for silo, offer in list(offers.items()):
            try:
                self._check_structure(offer.structure)
            except OfferRejected as error:
                self._hub.reject(PROPOSALS, at, silo, str(error))
                del offers[silo]
        votes = [offer for offer in offers.values() if offer.structure.size]
        elite = False
        if self._regression:
            self._full = 2 * sum(vote.full for vote in votes) > len(votes)
            elite = 2 * sum(vote.elite for vote in votes) > len(votes)
        n_genes = gene_count(self._depth)
        proposed = np.array([vote.structure for vote in votes], dtype=np.int16)
        proposed = proposed.reshape(-1, n_genes)
        self._generation = empty_generation(n_genes, proposed if elite else None)
        self._brood = first_brood(
            self._rng(Purpose.BREEDING, 0),
            proposed, strategy.population, self._n_features, self._depth,
            strategy.leaf_share,
        )  # fmt: skip
        self._phase = Phase.SCORE
        self._await_next(offers)
        self._answer(PROPOSALS, at, offers)

    async def advance(self) -> RoundResult:
        """Collect one generation's scores and answer with the next brood, or the end."""
        hub, strategy, done = self._hub, self._strategy, self._round
        at = Place(done, 2)
        offers = await hub.collect(
            SCORES, at, silos=tuple(sorted(self._awaited)), quorum=self._start.job.min_silos
        )
        offers = self._proper(offers, at)
        contributed = tuple(silo for silo, offer in offers.items() if offer.thousandths.size)
        generation = await asyncio.to_thread(
            absorb, self._generation, self._brood, self._aggregate(offers), strategy.population
        )
        if not generation.population.size:
            raise QuorumLost("no silo has scored any structure of the first generation")
        is_stale = 0 < strategy.patience <= generation.stale
        if done + 1 >= strategy.generations or is_stale:
            self._generation, self._phase = generation, Phase.END
            self._answer(SCORES, at, offers)
            await self._gather_reports(tuple(offers) + await self._release_late())
        else:
            operators = Operators(
                strategy.tournament, strategy.crossover_rate, strategy.mutation_rate,
                strategy.flip_share, strategy.swap_share,
            )  # fmt: skip
            newcomers = np.array(self._newcomers, dtype=np.int16)
            brood = await asyncio.to_thread(
                next_brood, self._rng(Purpose.BREEDING, done + 1),
                generation, operators, strategy.population,
                self._n_features, newcomers.reshape(-1, gene_count(self._depth)),
                strategy.rescore_parents,
            )  # fmt: skip
            self._generation, self._brood, self._newcomers = generation, brood, []
            self._round = done + 1
            self._active = self._draw(tuple(offers))
            self._await_next(offers)
            self._answer(SCORES, at, offers)
        checkpoint = await asyncio.to_thread(self._checkpoint)
        return RoundResult(
            done, checkpoint, self._metrics(), contributed or tuple(offers),
            final=self._phase is Phase.END, best_round=done,
        )  # fmt: skip

    async def _release_late(self) -> tuple[Silo, ...]:
        """Give the final population to silos that were sent on to a round that does not come."""
        at, late = Place(self._round + 1, 2), tuple(sorted(self._sent_on))
        if not late:
            return ()
        offers = await self._hub.collect(SCORES, at, silos=late, quorum=0)
        self._answer(SCORES, at, offers)
        return tuple(offers)

    def _proper(self, offers: dict[Silo, Scores], at: Place) -> dict[Silo, Scores]:
        """Return the offers that fit what was asked; refuse the others."""
        proper: dict[Silo, Scores] = {}
        for silo, offer in offers.items():
            asked = self._brood.to_score.shape[0] if silo in self._active else 0
            try:
                self._check_structure(offer.structure)
                if offer.thousandths.shape[0] not in (0, asked) or offer.rows < 0:
                    raise OfferRejected(
                        f"expected {asked} scores, {offer.thousandths.shape[0]} came"
                    )
            except OfferRejected as error:
                self._hub.reject(SCORES, at, silo, str(error))
                continue
            if offer.rows > 0 and offer.structure.size and silo not in self._rows:
                self._rows[silo] = offer.rows
                self._newcomers.append(offer.structure)
            proper[silo] = offer
        return proper

    def _check_structure(self, structure: Genes) -> None:
        if structure.ndim != 1:
            raise OfferRejected("own structure: expected one")
        check_structures(structure, self._depth, self._n_features, "own structure")

    def _aggregate(self, offers: Mapping[Silo, Scores]) -> NDArray[np.float64]:
        """Return the structures' fitness, greater is better: mean score less what nodes cost.

        The mean is over the silos that have scored, weighted by noisy rows. Of errors it is the
        logarithm that counts, so that a node must take off the same share of any error.
        """
        total = np.zeros(self._brood.to_score.shape[0])
        weight = 0
        for silo, offer in offers.items():
            if offer.thousandths.size:
                rows = self._rows.get(silo, 0)
                total += rows * offer.thousandths.astype(np.float64) / UNIT
                weight += rows
        if weight == 0:
            return np.full_like(total, np.nan)
        mean = -np.log(np.maximum(total / weight, SMALLEST)) if self._regression else total / weight
        cost = self._strategy.node_cost * decision_nodes(self._brood.to_score)
        return np.asarray(mean - cost, dtype=np.float64)

    async def _gather_reports(self, silos: tuple[Silo, ...]) -> None:
        at, job = Place(self._round, 3), self._start.job
        # A silo that is lost here has its tree; only its test scores are missing.
        reports = await self._hub.collect(REPORTS, at, silos=silos, quorum=0)
        self._hub.answer(REPORTS, at, dict.fromkeys(reports, Receipt()))
        names = reported_metrics(job)
        shape = (len(names),)
        given = [r for r in reports.values() if r.federated.shape == r.own.shape == shape]
        if not given:
            return
        federated = np.array([report.federated for report in given])
        own = np.array([report.own for report in given])
        sign = 1.0 if metrics.higher_is_better(names[0]) else -1.0
        for k, name in enumerate(names):
            self._test[name] = float(np.mean(federated[:, k]))
            self._test[f"own_{name}"] = float(np.mean(own[:, k]))
        self._test["share_gaining"] = float(np.mean(sign * (federated - own)[:, 0] > 0.0))

    def _metrics(self) -> dict[str, dict[str, float]]:
        found = scores_of(self._generation, self._strategy.node_cost, self._start.job.task)
        train = {"relative_mse" if self._regression else "f1": float(found[0])}
        return {"train": train} | ({"test": dict(self._test)} if self._test else {})

    def _checkpoint(self) -> bytes:
        roster = self._start.silos
        arrays: dict[str, NDArray[Any]] = dict(pack(self._generation, self._brood))
        arrays["state"] = np.array(
            [self._phase, self._round, self._depth, self._full], dtype=np.int64
        )
        arrays["rows"] = np.array([self._rows.get(silo, 0) for silo in roster], dtype=np.int64)
        arrays["active"] = np.array([silo in self._active for silo in roster], dtype=np.bool_)
        finite = {name: value for name, value in self._test.items() if math.isfinite(value)}
        arrays["test"] = np.frombuffer(json.dumps(finite).encode(), dtype=np.uint8)
        return to_bytes(arrays)

    def _restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        roster = self._start.silos
        self._generation, self._brood = unpack(arrays)
        phase, self._round, self._depth, full = arrays["state"].tolist()
        self._phase, self._full = Phase(phase), bool(full)
        rows = zip(roster, arrays["rows"].tolist(), strict=True)
        self._rows = {silo: count for silo, count in rows if count > 0}
        drawn = zip(roster, arrays["active"].tolist(), strict=True)
        self._active = frozenset(silo for silo, is_drawn in drawn if is_drawn)
