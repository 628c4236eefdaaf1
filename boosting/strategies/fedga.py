"""FedGA: a readable tree for every silo, its structure found together by genetic search."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boosting import metrics
from boosting.dataset import Schema, Task
from boosting.decision_tree import DecisionTree
from boosting.evolution import (
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
from boosting.genetics import (
    LEAF,
    MAX_DEPTH,
    Genes,
    Operators,
    decision_nodes,
    depth_of,
    gene_count,
)
from boosting.personal_trees import OBJECTIVES, SMALLEST, UNIT, LocalTrees, TreeSettings, tree_files
from boosting.ports import (
    Artefact,
    Call,
    CoordinatorStart,
    Forecast,
    Hub,
    InvalidJob,
    Link,
    OfferRejected,
    Place,
    PlacePassed,
    QuorumLost,
    Receipt,
    RoundResult,
    Silo,
    SiloStart,
    Step,
)
from boosting.structures import CATEGORICAL_ORDERS
from crypto.noise import discrete_laplace_part

if TYPE_CHECKING:
    from boosting.job import JobParameters
    from crypto.vault import Vault


class Phase(IntEnum):
    """What a silo is to do next."""

    VOTE = 0
    PROPOSE = 1
    SCORE = 2
    END = 3


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What a silo is to do next, and with what.

    Parameters
    ----------
    phase : Phase
    round : int
        Generation whose scores are due; at the end, the last one.
    depth : int
        Decision levels of every structure; 0 before the silos have voted on it.
    active : bool
        Whether this silo is drawn for this generation (in the opening: whether it votes).
    full : bool
        Fit and score on all rows; else fit on one part, score on the other.
    structures : ndarray of shape (n_structures, n_genes), int16
        What an active silo scores; at the end, the finalists.
    """

    phase: Phase
    round: int
    depth: int
    active: bool
    full: bool
    structures: Genes


@dataclass(frozen=True, slots=True)
class DepthVote:
    """A silo's best depth (0 abstains) and its noisy row count (0 when it takes no part)."""

    depth: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A silo's own structure, shape (n_genes,) or empty, and its votes of a regression."""

    structure: Genes
    full: bool
    elite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A silo's scores of one brood, and its introduction when it is asked for the first time.

    Parameters
    ----------
    thousandths : ndarray of shape (n_structures,), uint16
        F1, or mean squared error over the silo's label variance, times 1000; empty when not asked.
    rows : int
        Noisy row count; 0 when introduced before.
    structure : ndarray of shape (n_genes,) or (0,), int16
        The silo's own structure; empty when introduced before.
    """

    thousandths: NDArray[np.uint16]
    rows: int
    structure: Genes


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A silo's test scores: its federated tree, its own tree; empty without test rows.

    Both are float64 of shape (n_metrics,), in the order of :func:`reported_metrics`.
    """

    federated: NDArray[np.float64]
    own: NDArray[np.float64]


STANDING = Step("standing", Call.SCORES, Receipt, Standing, "that the silo is there")
DEPTHS = Step(
    "depths", Call.SCORES, DepthVote, Standing,
    "best tree depth by cross-validation; row count with discrete Laplace noise",
)  # fmt: skip
PROPOSALS = Step(
    "proposals", Call.SCORES, Proposal, Standing,
    "features of the silo's own tree, without thresholds and leaves; two votes of a regression",
)  # fmt: skip
SCORES = Step(
    "scores", Call.SCORES, Scores, Standing,
    "score of each structure on the silo's rows, three decimals; the first time also row count "
    "with noise and the features of the silo's own tree",
)  # fmt: skip
REPORTS = Step(
    "reports", Call.SCORES, Comparison, Receipt,
    "test scores of the silo's federated and of its own tree, where it has test rows",
)  # fmt: skip


_FRAMES_UP, _FRAMES_DOWN = 67, 109
"""Bytes of an exchange beside genes and scores, measured."""


def reported_metrics(job: JobParameters) -> tuple[str, ...]:
    """Return the metrics that silos report: F1 or mean squared error, then the job's own."""
    primary = "mse" if job.task is Task.REGRESSION else "f1"
    return tuple(dict.fromkeys((primary, *job.metrics)))


@dataclass(frozen=True, slots=True)
class FedGA:
    """One tree a silo: structures evolve at the coordinator, thresholds stay in the silos.

    The coordinator breeds *structures* (which feature each node asks). Silos fit thresholds and
    leaves of every new structure to their rows and send its score; the score of a structure is the
    mean over the generation's active silos, weighted by noisy row counts. At the end each silo
    gets the finalists, scores them on its own rows and keeps the best structure, fitted to all
    its rows: a tree that no other party has seen.

    ===========  ==========  ====================================  ===============================
    step         place       a silo offers                         and gets
    ===========  ==========  ====================================  ===============================
    standing     served      nothing                               what to do next
    depths       round 0     best depth, noisy row count           median depth
    proposals    round 0     its CART structure, two votes         first brood
    scores       each round  scores of the brood (when active)     next brood, or finalists
    reports      last round  test scores of federated and own      nothing
    ===========  ==========  ====================================  ===============================

    All steps travel by ExchangeScores. Every present silo meets at every round; one that is not
    drawn offers nothing and gets nothing to score. A silo that comes late, or was restarted, asks
    for the standing and goes on with the present or the next generation; when it is drawn for the
    first time it sends row count and structure, which joins the next brood and is scored by all.

    Differences from the paper: scores of regressions are divided by the silo's label variance,
    which makes three decimals mean the same everywhere, keeps the variance itself at home and lets
    no silo dominate; a late silo's structure is not ranked by that silo's score alone; children
    that were scored before are bred again; and every decision node costs ``node_cost``, without
    which structures grow to their full depth, since scores are those of the rows that were fitted;
    and a silo chooses among the ``finalists``.

    **Reveals**: see :attr:`reveals`.

    Parameters
    ----------
    generations : int, 1 to 1000
    population : int, 4 to 1000
    min_depth, max_depth : int, 1 to 10
        Depths tried in cross-validation.
    folds : int, 2 to 20
        3 at most below 50 rows.
    tournament, crossover_rate, mutation_rate, flip_share, swap_share
        See :class:`boosting.genetics.Operators`.
    leaf_share : float
        Share of leaves in random structures.
    epsilon_rows : float
        Budget of the row count's noise. It covers nothing else.
    validation_share : float
        Rows that score instead of fit, in regressions whose silos do not vote for all rows.
    noise_limit, complexity_limit, distinct_limit : float
        Thresholds of the votes.
    participation : float in (0, 1]
        Share of silos drawn for each generation.
    patience : int
        Ends the search after so many generations without a better best structure; 0 never.
    min_leaf : int
        Least rows on either side of a split.
    rescore_parents : bool
        Score parents again with each brood, on that generation's active silos.
    categorical_order : {"target", "ordinal"}
        See :func:`boosting.structures.rank_table`.
    node_cost : float in [0, 1]
        What a decision node must be worth, in F1 or as a share of the mean squared error; in the
        search, and when a silo chooses among the finalists.
    finalists : int, 1 to 1000
        Fittest structures of the last population, of which each silo chooses one. Among all of
        the population a silo would find the one that suits its rows by chance.

    References
    ----------
    FedGA-Tree: Federated Decision Tree using Genetic Algorithm, algorithm 1. Its table of
    hyper-parameters is not available to us: the defaults are ours.
    """

    name: ClassVar[str] = "fedga"
    # Only a silo has its tree: test rows go to the silos, `hedgerow local` sees to it.
    scores_in_silos: ClassVar[bool] = True
    reveals: ClassVar[str] = (
        "Coordinator: each silo's best tree depth, its row count with discrete Laplace noise "
        "(budget epsilon_rows, once), the features of its own CART tree in their places without "
        "thresholds and leaves, the score of every structure on its rows to three decimals, two "
        "votes of a regression, and test scores where the silo has test rows. Silos: median depth "
        "and all structures that were bred, no other silo's scores or thresholds. The scores are "
        "statistics of the training rows without formal privacy: whoever sees them (the "
        "coordinator, and any silo that it colludes with) and knows a silo's other rows can test "
        "whether a row is among them; docs/threat-model.md tells how well. Colluding "
        "silos without the coordinator learn nothing of the others but the structures. The tree "
        "itself never leaves its silo."
    )

    generations: int = 40
    population: int = 60
    min_depth: int = 2
    max_depth: int = 6
    folds: int = 5
    tournament: int = 3
    crossover_rate: float = 0.8
    mutation_rate: float = 0.3
    flip_share: float = 0.1
    swap_share: float = 0.1
    leaf_share: float = 0.2
    epsilon_rows: float = 1.0
    validation_share: float = 0.3
    noise_limit: float = 0.15
    complexity_limit: float = 0.05
    distinct_limit: float = 0.9
    participation: float = 1.0
    patience: int = 15
    min_leaf: int = 1
    rescore_parents: bool = False
    categorical_order: str = "target"
    node_cost: float = 0.002
    finalists: int = 10

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        ranges: dict[str, tuple[float, float]] = {
            "generations": (1, 1000),
            "population": (4, 1000),
            "min_depth": (1, MAX_DEPTH),
            "max_depth": (self.min_depth, MAX_DEPTH),
            "folds": (2, 20),
            "tournament": (1, 100),
            "crossover_rate": (0, 1),
            "mutation_rate": (0, 1),
            "flip_share": (1e-9, 1),
            "swap_share": (1e-9, 1),
            "leaf_share": (0, 0.9),
            "epsilon_rows": (1e-4, math.inf),
            "validation_share": (0.05, 0.95),
            "noise_limit": (0, math.inf),
            "complexity_limit": (0, math.inf),
            "distinct_limit": (0, 1),
            "participation": (1e-9, 1),
            "patience": (0, math.inf),
            "min_leaf": (1, math.inf),
            "node_cost": (0, 1),
            "finalists": (1, 1000),
        }
        for key, (least, most) in ranges.items():
            value = getattr(self, key)
            if not least <= value <= most:
                raise InvalidJob(
                    f"fedga.{key}: expected a value from {least:g} to {most:g}, {value:g} came"
                )
        if self.categorical_order not in CATEGORICAL_ORDERS:
            raise InvalidJob(
                f"fedga.categorical_order: expected one of {', '.join(CATEGORICAL_ORDERS)}, "
                f"{self.categorical_order!r} came"
            )
        if job.objective != OBJECTIVES[job.task]:
            raise InvalidJob(
                f"booster.objective: trees of fedga are not boosted, expected "
                f"{OBJECTIVES[job.task]}, {job.objective} came"
            )
        metrics.check(job.metrics, job.task)

    async def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half."""
        search = _Search(self, hub, start)
        hub.serve(STANDING, search.standing)
        if start.checkpoint is None:
            await search.open()
        while True:
            result = await search.advance()
            yield result
            if result.final:
                return

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; returns the silo's tree in four forms, which stay here."""
        side = _SiloSide(self, link, start)
        moves = {Phase.VOTE: side.vote, Phase.PROPOSE: side.propose, Phase.SCORE: side.score}
        syncs = 0
        standing = link.exchange(STANDING, Place(start.first_round), Receipt())
        while standing.phase is not Phase.END:
            try:
                side.heed(standing)
                standing = moves[standing.phase](standing)
            except PlacePassed:
                syncs += 1
                at = Place(max(standing.round, start.first_round), 0, syncs)
                standing = link.exchange(STANDING, at, Receipt())
        side.heed(standing)
        tree = side.trees.best_of(standing.structures)
        # The report may come too late for the job; the tree is this silo's all the same.
        with contextlib.suppress(PlacePassed):
            link.exchange(REPORTS, Place(standing.round, 3), side.compare(tree))
        return None if tree is None else tree_files(tree, start.job)

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return the final structures with their scores; the trees are in the silos."""
        arrays = from_bytes(checkpoint)
        generation, _ = unpack(arrays)
        scores = _scores_of(generation, self.node_cost, job.task)
        names = schema.names
        document = {
            "format": 1,
            "strategy": self.name,
            "depth": depth_of(generation.population.shape[1]),
            "score": "mse over label variance" if job.task is Task.REGRESSION else "f1",
            "structures_scored": generation.n_scored,
            "structures": [
                {
                    "score": round(float(score), 6),
                    "genes": [None if gene == LEAF else names[gene] for gene in genes],
                }
                for genes, score in zip(generation.population, scores, strict=True)
            ],
            "test": json.loads(bytes(np.asarray(arrays["test"], dtype=np.uint8)).decode()),
        }
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        return Artefact({"structures.json": text.encode()}, "structures.json")

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return what a silo exchanges in a search of the largest depth that does not stop early.

        Each generation a drawn silo gets ``population`` new structures, in as many bits a gene as
        the number of features has, and answers two bytes each; at the end come the finalists.
        """
        gene_bits = max(schema.n_features, 1).bit_length()
        structure = gene_count(self.max_depth) * gene_bits / 8
        exchanges = self.generations + 4
        asked = self.participation * self.generations * self.population
        finalists = min(self.finalists, self.population)
        down = (asked + finalists) * structure + exchanges * _FRAMES_DOWN
        up = asked * 2 + 2 * structure + exchanges * _FRAMES_UP
        return Forecast(
            rounds=self.generations,
            steps={Call.SCORES.value: (exchanges, round(up), round(down))},
            reveals=self.reveals,
            notes=(
                f"for trees of depth {self.max_depth}, the largest that silos may vote for: each "
                "level less halves the bytes down",
                *(
                    [f"the search ends before, after {self.patience} rounds without progress"]
                    if 0 < self.patience < self.generations
                    else []
                ),
                "each silo's tree stays in the silo",
            ),
            cpu_class="seconds",
        )


def _scores_of(generation: Generation, node_cost: float, task: Task) -> NDArray[np.float64]:
    """Return the mean scores of a population, F1 or relative errors: fitness without costs."""
    fitness = generation.fitness + node_cost * decision_nodes(generation.population)
    return np.asarray(np.exp(-fitness) if task is Task.REGRESSION else fitness)


def _check_structures(structures: Genes, depth: int, n_features: int, who: str) -> None:
    """Refuse genes that would address columns that are not there."""
    n_genes = structures.shape[-1] if structures.size else gene_count(depth)
    if n_genes != gene_count(depth) or structures.min(initial=LEAF) < LEAF:
        raise OfferRejected(f"{who}: expected structures of depth {depth}")
    if structures.max(initial=LEAF) >= n_features:
        raise OfferRejected(f"{who}: a structure asks feature {structures.max()} of {n_features}")


class _SiloSide:
    """A silo's moves: each takes the standing and returns the next one."""

    def __init__(self, strategy: FedGA, link: Link, start: SiloStart) -> None:
        self._strategy = strategy
        self._link = link
        self._start = start
        self._depth = 0
        self._introduced = False
        self.trees = LocalTrees(
            start.dataset,
            TreeSettings(
                strategy.min_depth,
                strategy.max_depth,
                strategy.folds,
                strategy.min_leaf,
                strategy.categorical_order,
                strategy.validation_share,
                strategy.noise_limit,
                strategy.complexity_limit,
                strategy.distinct_limit,
                strategy.node_cost,
            ),
            self._rng,
        )

    def _rng(self, purpose: str) -> np.random.Generator:
        word = {"folds": 401, "split": 402}[purpose]
        place = self._start.silos.index(self._start.silo)
        seed = [self._start.job.seed, place + 1, 0, word]
        return np.random.default_rng(np.random.SeedSequence(seed))

    def heed(self, standing: Standing) -> None:
        """Take over what the coordinator has settled; refuse structures that do not fit."""
        if standing.depth == 0 and not standing.structures.size:
            return
        if not 1 <= standing.depth <= MAX_DEPTH:
            raise OfferRejected(f"from the coordinator: depth {standing.depth}")
        n_features = self._start.dataset.schema.n_features
        _check_structures(standing.structures, standing.depth, n_features, "from the coordinator")
        self._depth = standing.depth
        self.trees.full = standing.full

    def _takes_part(self, standing: Standing) -> bool:
        return standing.active and self.trees.n_rows > 0

    def _noisy_rows(self) -> int:
        """Return the row count with its noise, drawn once in the life of the job."""
        stored = self._link.recall("fedga-rows")
        if stored is None:
            noise = discrete_laplace_part(1, self._strategy.epsilon_rows)
            stored = str(max(1, self.trees.n_rows + int(noise[0]))).encode()
            self._link.remember("fedga-rows", stored)
        return int(stored)

    def vote(self, standing: Standing) -> Standing:
        """Vote on the depth; a silo that is not drawn abstains."""
        vote = DepthVote(0, 0)
        if self._takes_part(standing):
            vote = DepthVote(self.trees.depth_vote(), self._noisy_rows())
        return self._link.exchange(DEPTHS, Place(0, 0), vote)

    def propose(self, standing: Standing) -> Standing:
        """Propose a structure; a silo that is not drawn abstains."""
        proposal = Proposal(np.empty(0, dtype=np.int16), full=False, elite=False)
        if self._takes_part(standing):
            full, elite = self.trees.votes(self._depth)
            proposal = Proposal(self._own_structure(), full, elite)
            self._introduced = True
        return self._link.exchange(PROPOSALS, Place(0, 1), proposal)

    def _own_structure(self) -> Genes:
        return self.trees.cart(self._depth).structure(self._depth)

    def score(self, standing: Standing) -> Standing:
        """Score what this generation asks for, with an introduction the first time."""
        rows, structure = 0, np.empty(0, dtype=np.int16)
        thousandths = np.empty(0, dtype=np.uint16)
        if self._takes_part(standing):
            if not self._introduced:
                rows, structure = self._noisy_rows(), self._own_structure()
                self._introduced = True
            thousandths = self.trees.thousandths(standing.structures)
        self._link.check()
        scores = Scores(thousandths, rows, structure)
        return self._link.exchange(SCORES, Place(standing.round, 2), scores)

    def compare(self, tree: DecisionTree | None) -> Comparison:
        """Return test scores of the federated tree and of the silo's own at its own depth."""
        test = self._start.test
        if tree is None or test is None or not test.n_samples:
            return Comparison(np.empty(0), np.empty(0))
        own = self.trees.cart(self.trees.own_depth())
        names = reported_metrics(self._start.job)
        found = [
            metrics.evaluate(
                names,
                test.labels,
                one.margins(test.X),
                objective=OBJECTIVES[self._start.job.task],
                weight=test.weight,
            )
            for one in (tree, own)
        ]
        federated, alone = (np.array([scores[name] for name in names]) for scores in found)
        return Comparison(federated, alone)


class _Search:
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

    def standing(self, silo: Silo, at: Place, offer: Receipt) -> Standing:
        """Tell a silo that has just come where to go on."""
        if self._phase is Phase.END or silo in self._awaited:
            return self._standing_of(silo)
        self._sent_on |= {silo}
        due = self._round + 1 if self._phase is Phase.SCORE else 0
        nothing = self._brood.to_score[:0]
        return Standing(Phase.SCORE, due, self._depth, False, self._full, nothing)

    def _standing_of(self, silo: Silo) -> Standing:
        """Return what a silo of the open barrier is to do."""
        active = silo in self._active
        structures = self._brood.to_score if active else self._brood.to_score[:0]
        if self._phase is Phase.END:
            structures = self._generation.population[: self._strategy.finalists]
        return Standing(self._phase, self._round, self._depth, active, self._full, structures)

    def _draw(self, present: tuple[Silo, ...]) -> frozenset[Silo]:
        """Draw the silos that the current round asks."""
        count = math.ceil(self._strategy.participation * len(present) - 1e-9)
        chosen = self._rng(403, self._round).permutation(len(present))[: max(1, count)]
        return frozenset(present[i] for i in chosen)

    def _rng(self, purpose: int, of_round: int) -> np.random.Generator:
        seed = [self._start.job.seed, 0, of_round, purpose]
        return np.random.default_rng(np.random.SeedSequence(seed))

    def _await_next(self, offers: Mapping[Silo, Any]) -> None:
        """Wait at the next barrier for the silos of this one and for those sent on to it."""
        self._awaited = frozenset(offers) | self._sent_on | frozenset(self._hub.silos)
        self._sent_on = frozenset()

    def _answer(self, step: Step[Any, Standing], at: Place, offers: Mapping[Silo, Any]) -> None:
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
            self._rng(404, 0), proposed, strategy.population, self._n_features, self._depth,
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
                next_brood, self._rng(404, done + 1), generation, operators, strategy.population,
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
        _check_structures(structure, self._depth, self._n_features, "own structure")

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
        found = _scores_of(self._generation, self._strategy.node_cost, self._start.job.task)
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
