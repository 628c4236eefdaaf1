"""FedGA in a silo: votes, scores, and the tree that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Link, Place
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.strategies.fedga.steps import (
    DEPTHS,
    PROPOSALS,
    SCORES,
    Comparison,
    DepthVote,
    Proposal,
    Scores,
    SearchTask,
    check_structures,
    reported_metrics,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import MAX_DEPTH, Genes
from hedgerow.boosting.trees.personal import OBJECTIVES, LocalTrees, TreeSettings
from hedgerow.crypto.noise import discrete_laplace_part

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.fedga.parameters import FedGA


class SiloSide:
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
        drawn = {"folds": Purpose.FOLDS, "split": Purpose.FITTING_ROWS}[purpose]
        place = self._start.silos.index(self._start.silo)
        return generator(self._start.job.seed, place + 1, 0, drawn)

    def heed(self, standing: SearchTask) -> None:
        """Take over what the coordinator has settled; refuse structures that do not fit."""
        if standing.depth == 0 and not standing.structures.size:
            return
        if not 1 <= standing.depth <= MAX_DEPTH:
            raise OfferRejected(f"from the coordinator: depth {standing.depth}")
        n_features = self._start.dataset.schema.n_features
        check_structures(standing.structures, standing.depth, n_features, "from the coordinator")
        self._depth = standing.depth
        self.trees.full = standing.full

    def _takes_part(self, standing: SearchTask) -> bool:
        return standing.active and self.trees.n_rows > 0

    def _noisy_rows(self) -> int:
        """Return the row count with its noise, drawn once in the life of the job."""
        stored = self._link.recall("fedga-rows")
        if stored is None:
            noise = discrete_laplace_part(1, self._strategy.epsilon_rows)
            stored = str(max(1, self.trees.n_rows + int(noise[0]))).encode()
            self._link.remember("fedga-rows", stored)
        return int(stored)

    def vote(self, standing: SearchTask) -> SearchTask:
        """Vote on the depth; a silo that is not drawn abstains."""
        vote = DepthVote(0, 0)
        if self._takes_part(standing):
            vote = DepthVote(self.trees.depth_vote(), self._noisy_rows())
        return self._link.exchange(DEPTHS, Place(0, 0), vote)

    def propose(self, standing: SearchTask) -> SearchTask:
        """Propose a structure; a silo that is not drawn abstains."""
        proposal = Proposal(np.empty(0, dtype=np.int16), full=False, elite=False)
        if self._takes_part(standing):
            full, elite = self.trees.votes(self._depth)
            proposal = Proposal(self._own_structure(), full, elite)
            self._introduced = True
        return self._link.exchange(PROPOSALS, Place(0, 1), proposal)

    def _own_structure(self) -> Genes:
        return self.trees.cart(self._depth).structure(self._depth)

    def score(self, standing: SearchTask) -> SearchTask:
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
