"""The private tree at the coordinator: bin edges, then the tree, from noisy sums."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.rounds.coordinator import scores_by_set
from hedgerow.boosting.strategies.dp_tree.bins import (
    CELLS,
    STAGES,
    EdgeSearch,
    descend,
    edges_of,
    start_descent,
)
from hedgerow.boosting.strategies.dp_tree.checkpoint import PrivateTree
from hedgerow.boosting.strategies.dp_tree.noisy_tree import (
    BinnedTree,
    best_by_candidates,
    best_by_histogram,
    bin_counts,
    extend,
    open_root,
)
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.steps import (
    CELL_SUMS,
    COUNT_SUMS,
    STANDING,
    GrowthState,
    Query,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums

Counts = NDArray[np.int64]


async def coordinate(
    parameters: DPTree, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    grower = PrivateGrower(parameters, hub, start)
    hub.serve(STANDING, grower.standing)
    query = grower.query
    if isinstance(query, BinnedTree) and not query.open_nodes.size:
        return  # the coordinator was restarted before it had stored the result
    sums = CoordinatorSums.of(hub, start, parameters.sum_parameters(start.job, len(start.silos)))
    first = 0 if isinstance(query, EdgeSearch) else query.level
    grower.members = frozenset(await sums.setup(ExchangeKey(first)))
    while isinstance(query, EdgeSearch):
        n_values = grower.queries.n_cells(query)
        outcome = await sums.sum(CELL_SUMS, ExchangeKey(0, query.stage), n_values)
        assert outcome.total is not None, "only whole sums are abandoned"
        query = grower.refine(query, outcome.total.view(np.int64), len(outcome.present))
        sums.answer(CELL_SUMS, outcome, GrowthState.of(query))
    while query.open_nodes.size:
        level = query.level
        outcome = await sums.sum(COUNT_SUMS, ExchangeKey(level), grower.queries.n_counts(query))
        assert outcome.total is not None, "only whole sums are abandoned"
        total = outcome.total.view(np.int64)
        query = await asyncio.to_thread(grower.grow, query, total, len(outcome.present))
        sums.answer(COUNT_SUMS, outcome, query)
        yield await asyncio.to_thread(grower.result, query, outcome.present)


class PrivateGrower:
    """The coordinator's state: bin edges, then the tree."""

    def __init__(
        self, parameters: DPTree, hub: CoordinatorEndpoint, start: CoordinatorStart
    ) -> None:
        parameters.validate_cohort(len(start.silos))
        self._parameters = parameters
        self._hub = hub
        self._start = start
        self.queries = Queries(parameters, start.schema, len(start.silos))
        self.members: frozenset[Silo] = frozenset()
        self._synced: set[Silo] = set()
        self._ledger = BudgetLedger(parameters.epsilon)
        self._content = np.zeros((0, self.queries.n_classes))
        self._descents = {
            feature: start_descent(parameters.bins) for feature in self.queries.numeric
        }
        self.query: Query
        if start.checkpoint is not None:
            kept = PrivateTree.decode(start.checkpoint)
            self.query, self._content, self._ledger = kept.tree, kept.content, kept.ledger
        elif self._descents:
            self.query = self._search(0)
        else:
            self.query = self._root()

    def standing(self, silo: Silo, at: ExchangeKey, offer: Receipt) -> GrowthState:
        """Return the next query to a silo; one that joins after the silos were settled is late."""
        over = isinstance(self.query, BinnedTree) and not self.query.open_nodes.size
        if self.members and not over and (silo not in self.members or silo in self._synced):
            self._hub.drop(silo, "joined after the silos of the tree were settled")
            raise OfferRejected("this tree is under way: its silos were settled before")
        self._synced.add(silo)
        return GrowthState.of(self.query)

    def _search(self, stage: int) -> EdgeSearch:
        return EdgeSearch(
            stage,
            tuple(
                np.array(
                    self._descents[feature].intervals if feature in self._descents else (),
                    dtype=np.uint32,
                )
                for feature in range(self._start.schema.n_features)
            ),
        )

    def _root(self) -> BinnedTree:
        return open_root(
            self._start.schema,
            tuple(
                edges_of(self._descents[feature])
                if feature in self._descents
                else np.empty(0, dtype=np.float32)
                for feature in range(self._start.schema.n_features)
            ),
        )

    def refine(self, search: EdgeSearch, total: Counts, n_parts: int) -> Query:
        """Return the next query, with the bin edges known better by one stage."""
        queries = self.queries
        queries.enter(self._ledger, search)
        sensitivity = queries.cell_sensitivity(search)
        noise = queries.deviation(queries.stage_epsilon, sensitivity, n_parts)
        counts = total.reshape(-1, CELLS)
        at = 0
        for feature, descent in self._descents.items():
            count = len(descent.intervals)
            self._descents[feature] = descend(descent, counts[at : at + count], noise)
            at += count
        following = search.stage + 1
        self.query = self._search(following) if following < STAGES else self._root()
        return self.query

    def grow(self, tree: BinnedTree, total: Counts, n_parts: int) -> BinnedTree:
        """Return the tree with its open nodes split, or made leaves."""
        queries, Q = self.queries, self.queries.n_classes
        queries.enter(self._ledger, tree)
        n_open = len(tree.open_nodes)
        classes = total[: n_open * Q].reshape(n_open, Q)
        self._content = np.concatenate([self._content, classes.astype(np.float64)])
        splits: dict[int, tuple[int, NDArray[np.bool_]]] = {}
        if tree.level < self._parameters.depth:
            n_bins = bin_counts(self._start.schema, tree.edges)
            rest = total[n_open * Q :].reshape(n_open, -1, Q)
            sensitivity = queries.split_sensitivity(n_bins)
            noise = queries.deviation(queries.level_epsilon, sensitivity, n_parts)
            for at, node in enumerate(tree.open_nodes.tolist()):
                if self._drowns(classes[at], max(n_bins), n_parts):
                    continue
                found = (
                    best_by_histogram(rest[at], n_bins, noise)
                    if self._parameters.query == "histogram"
                    else best_by_candidates(rest[at].reshape(-1, 2, Q), n_bins)
                )
                if found is not None:
                    splits[node] = found
        self.query = extend(tree, splits)
        return self.query

    def _drowns(self, classes: Counts, most_bins: int, n_parts: int) -> bool:
        """Return whether a node has too few rows for its cells to exceed the noise."""
        rows = float(np.maximum(classes, 0).sum())
        noise = self.queries.deviation(self.queries.level_epsilon, 1, n_parts)
        return rows / (most_bins * self.queries.n_classes) < noise or rows < 2

    def result(self, tree: BinnedTree, silos: tuple[Silo, ...]) -> RoundResult:
        """Return the result of the level before the open nodes."""
        found = PrivateTree(tree, self._content, self._ledger)
        scores: dict[str, dict[str, float]] = {}
        job, test, level = self._start.job, self._start.test, tree.level - 1
        if test is not None:
            names = job.metrics or metrics.defaults(job.task)
            margins = found.closed(self._start.schema).margins(test.X)
            scores = scores_by_set(self._start, names, margins)
        final = not tree.open_nodes.size
        return RoundResult(level, found.encode(), scores, silos, final=final, best_round=level)
