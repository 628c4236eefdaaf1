"""FedGA in a silo: votes, scores, and the tree that it keeps."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.budget import Spending
from hedgerow.boosting.errors import OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, Receipt, SiloChannel
from hedgerow.boosting.own_scores import LEAST_ROWS
from hedgerow.boosting.ports import Artefact, SiloStart
from hedgerow.boosting.strategies.fedga.local_trees import LocalTrees
from hedgerow.boosting.strategies.fedga.packed import PackedStructures
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import (
    DEPTHS,
    INTRODUCED_SCORES,
    PROPOSALS,
    REPORTS,
    SCORES,
    STANDING,
    DepthVote,
    Introduction,
    Proposal,
    SearchPhase,
    SearchTask,
    StructureScores,
    TreeComparison,
    opened,
    reported_metrics,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.sums.answers import NoisyRelease
from hedgerow.boosting.trees.decision_tree import MODEL_FILE, OBJECTIVES, DecisionTree
from hedgerow.boosting.trees.genetics import Genes

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import Vault


def participate(
    parameters: FedGA, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> Artefact | None:
    """Run the silo half; returns the silo's tree in four forms, which stay here."""
    side = SiloSide(parameters, link, NoisyRelease.of(vault, start), start)
    moves = {
        SearchPhase.VOTE: side.vote,
        SearchPhase.PROPOSE: side.propose,
        SearchPhase.SCORE: side.score,
    }
    syncs = 0
    due = link.exchange(STANDING, ExchangeKey(start.first_round), Receipt())
    while due.phase is not SearchPhase.END:
        try:
            side.heed(due)
            due = moves[due.phase](due)
        except PlacePassed:
            syncs += 1
            at = ExchangeKey(max(due.round, start.first_round), 0, syncs)
            due = link.exchange(STANDING, at, Receipt())
    side.heed(due)
    tree = side.trees.best_of(side.structures)
    # The report may be too late for the job; the silo keeps its tree all the same.
    with contextlib.suppress(PlacePassed):
        link.exchange(REPORTS, ExchangeKey(due.round, 3), side.compare(tree))
    return None if tree is None else Artefact(tree.files(), MODEL_FILE)


def noisy_row_count(answers: NoisyRelease, n_rows: int, epsilon: float) -> int:
    """Return the row count with its noise: the same for all of the job; at least 1."""
    counts = np.array([n_rows], dtype=np.int64)
    cost = Spending("row count", epsilon, sensitivity=1, values=1)
    (noisy,) = answers.answer(b"row count", [(cost, counts)], silos=(), honest=1)
    return max(1, int(noisy[0]))


class SiloSide:
    """A silo's moves: each returns the next instruction."""

    def __init__(
        self, parameters: FedGA, link: SiloChannel, answers: NoisyRelease, start: SiloStart
    ) -> None:
        self._parameters = parameters
        self._link = link
        self._answers = answers
        self._start = start
        self._depth = 0
        self._introduced = False
        self._asked: tuple[int, Genes] = (-1, np.empty((0, 1), dtype=np.int16))
        self.structures: Genes = np.empty((0, 1), dtype=np.int16)
        self.trees = LocalTrees(start.dataset, parameters, self._rng)

    def _rng(self, purpose: Purpose) -> np.random.Generator:
        place = self._start.silos.index(self._start.silo)
        return generator(self._start.draws, place + 1, 0, purpose)

    def heed(self, due: SearchTask) -> None:
        """Take over what the coordinator has decided; refuse structures that do not fit."""
        self.structures = self.structures[:0]
        if due.depth == 0 and due.structures is None:
            if due.phase in (SearchPhase.PROPOSE, SearchPhase.SCORE) and self._takes_part(due):
                raise OfferRejected("from the coordinator: expected a depth, received none")
            return
        deepest = self._parameters.max_depth
        if not 1 <= due.depth <= deepest:
            raise OfferRejected(
                f"from the coordinator: expected a depth of 1 to {deepest}, received {due.depth}"
            )
        if due.structures is not None:
            n_features = self._start.dataset.schema.n_features
            self.structures = opened(due.structures, due.depth, n_features, "from the coordinator")
            if due.phase is SearchPhase.SCORE:
                self._check_asked(due.round)
        self._depth = due.depth
        self.trees.full = due.full

    def _check_asked(self, round_: int) -> None:
        """Refuse more structures than a brood has, or others for a round that was asked before."""
        most = 2 * self._parameters.population + len(self._start.silos)
        if self.structures.shape[0] > most:
            raise OfferRejected(
                f"from the coordinator: expected at most {most} structures, received "
                f"{self.structures.shape[0]}"
            )
        before, structures = self._asked
        if round_ < before or (
            round_ == before and not np.array_equal(structures, self.structures)
        ):
            raise OfferRejected(f"from the coordinator: other structures for round {round_}")
        self._asked = (round_, self.structures)

    def _takes_part(self, due: SearchTask) -> bool:
        return due.active and self.trees.n_rows > 0

    def _noisy_rows(self) -> int:
        return noisy_row_count(self._answers, self.trees.n_rows, self._parameters.epsilon_rows)

    def _own_structure(self) -> PackedStructures:
        genes = self.trees.cart(self._depth).structure(self._depth)
        packed = PackedStructures.of(genes[np.newaxis])
        assert packed is not None, "a structure was given"
        return packed

    def vote(self, due: SearchTask) -> SearchTask:
        """Vote on the depth; a silo that is not drawn abstains."""
        vote = DepthVote(0, 0)
        if self._takes_part(due):
            vote = DepthVote(self.trees.depth_vote(), self._noisy_rows())
        return self._link.exchange(DEPTHS, ExchangeKey(0, 0), vote)

    def propose(self, due: SearchTask) -> SearchTask:
        """Propose a structure; a silo that is not drawn abstains."""
        proposal = Proposal(None, full=False, elite=False)
        if self._takes_part(due):
            full, elite = self.trees.votes(self._depth)
            proposal = Proposal(self._own_structure(), full, elite)
            self._introduced = True
        return self._link.exchange(PROPOSALS, ExchangeKey(0, 1), proposal)

    def score(self, due: SearchTask) -> SearchTask:
        """Score what this generation asks for, with an introduction the first time."""
        introduction, thousandths = None, np.empty(0, dtype=np.uint16)
        if self._takes_part(due):
            if not self._introduced:
                introduction = Introduction(self._noisy_rows(), self._own_structure())
                self._introduced = True
            if self.structures.shape[0]:
                thousandths = self.trees.thousandths(self.structures)
        self._link.check()
        scores = StructureScores(thousandths, introduction)
        step = SCORES if introduction is None else INTRODUCED_SCORES
        return self._link.exchange(step, ExchangeKey(due.round, 2), scores)

    def compare(self, tree: DecisionTree | None) -> TreeComparison:
        """Return test scores of the federated tree and of the silo's own at its own depth."""
        test = self._start.test
        if tree is None or test is None or test.n_samples < LEAST_ROWS:
            return TreeComparison(np.empty(0), np.empty(0))
        own = self.trees.cart(self.trees.own_depth())
        names = reported_metrics(self._start.job, self.trees.parameters.metric)
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
        federated, alone = (
            np.array([metrics.rounded(scores[name]) for name in names]) for scores in found
        )
        return TreeComparison(federated, alone)
