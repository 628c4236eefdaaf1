"""FedGA: a readable tree for every silo, its structure found together by genetic search."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.errors import InvalidJob, PlacePassed
from hedgerow.boosting.exchange import Call, Hub, Link, Place, Receipt, Silo
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Forecast,
    RoundResult,
    Safeguards,
    SiloStart,
)
from hedgerow.boosting.strategies.fedga.evolution import from_bytes, unpack
from hedgerow.boosting.strategies.fedga.search import Search, scores_of
from hedgerow.boosting.strategies.fedga.silo import SiloSide
from hedgerow.boosting.strategies.fedga.steps import REPORTS, STANDING, Phase
from hedgerow.boosting.trees.genetics import LEAF, MAX_DEPTH, depth_of, gene_count
from hedgerow.boosting.trees.personal import OBJECTIVES, tree_files
from hedgerow.boosting.trees.ranked import CATEGORICAL_ORDERS

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.crypto.vault import Vault

_FRAMES_UP, _FRAMES_DOWN = 67, 109
"""Bytes of an exchange beside genes and scores, measured."""


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
        See :class:`hedgerow.boosting.trees.genetics.Operators`.
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
        See :func:`hedgerow.boosting.trees.structures.rank_table`.
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
    reveals: ClassVar[str] = (
        "Coordinator: each silo's best tree depth, its row count with discrete Laplace noise "
        "(budget epsilon_rows, once) and, without noise, rounded up to a power of two, the "
        "features of its own CART tree in their places without "
        "thresholds and leaves, the score of every structure on its rows to three decimals, two "
        "votes of a regression, and test scores where the silo has test rows. Silos: median depth "
        "and all structures that were bred, no other silo's scores or thresholds. The scores are "
        "statistics of the training rows without formal privacy: whoever sees them (the "
        "coordinator, and any silo that it colludes with) and knows a silo's other rows can test "
        "whether a row is among them; docs/threat-model.md tells how well. Colluding "
        "silos without the coordinator learn nothing of the others but the structures. The tree "
        "itself never leaves its silo. The schema is agreed in the clear: coordinator and silos "
        "learn all column names and the union of the silos' category and class lists, and the "
        "coordinator each silo's own."
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

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.generations

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 1

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        return Safeguards(self.max_depth)

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
        search = Search(self, hub, start)
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
        side = SiloSide(self, link, start)
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
        scores = scores_of(generation, self.node_cost, job.task)
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
