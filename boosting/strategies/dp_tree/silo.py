"""The private tree in a silo: counts with its part of the noise, within its own budget."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Link, Place, Receipt
from hedgerow.boosting.ports import Artefact, SiloStart
from hedgerow.boosting.strategies.dp_tree.bins import STAGES, EdgeSearch, count_cells
from hedgerow.boosting.strategies.dp_tree.budget import BudgetLedger, noisy, replayable
from hedgerow.boosting.strategies.dp_tree.noisy_tree import (
    BinnedTree,
    bin_counts,
    count_bins,
    count_candidates,
    count_classes,
    nodes_of,
    to_bins,
)
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.steps import STANDING, Query, sums_of
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.key_agreement import encode_fields

if TYPE_CHECKING:
    from hedgerow.crypto.vault import Vault

Counts = NDArray[np.int64]


def participate(
    parameters: DPTree, link: Link, vault: Vault | None, start: SiloStart
) -> Artefact | None:
    """Run the silo half; the tree is the coordinator's, nothing stays here."""
    n_silos = len(start.silos)
    counter = Counter(Queries(parameters, start.schema, n_silos), link, start)
    query = link.exchange(STANDING, Place(start.first_round), Receipt()).query
    sums = SiloSums.of(link, vault, start, parameters.sum_parameters(start.job, n_silos))
    cell_sums, count_sums = sums_of(parameters.epsilon, parameters.binning)
    sums.setup(Place(0 if isinstance(query, EdgeSearch) else query.level))
    while isinstance(query, EdgeSearch):
        cells = counter.cells(query).view(np.uint64)
        state = state_digest(start.schema, query)
        query = sums.sum(cell_sums, Place(0, query.stage), cells, state=state).query
    while query.open_nodes.size:
        counts = counter.counts(query).view(np.uint64)
        state = state_digest(start.schema, query)
        query = sums.sum(count_sums, Place(query.level), counts, state=state)
    return None


class Counter:
    """A silo's rows and its ledger: answers queries with its part of the noise."""

    def __init__(self, queries: Queries, link: Link, start: SiloStart) -> None:
        self._queries = queries
        self._link = link
        self._dataset = start.dataset
        self._job_id = start.job_id
        self._labels = start.dataset.labels.astype(np.int64)
        self._bins: NDArray[np.int32] | None = None
        secret, kept = link.recall("dp-noise"), link.recall("dp-ledger")
        if secret is None:
            secret = os.urandom(32)
            link.remember("dp-noise", secret)
        self._secret = secret
        epsilon = queries.parameters.epsilon
        self._ledger = BudgetLedger(epsilon) if kept is None else BudgetLedger.decode(kept)

    def _enter(self, query: Query) -> None:
        """Make the spending durable before anything is sent."""
        self._queries.enter(self._ledger, query)
        self._link.remember("dp-ledger", self._ledger.encode())

    def _noisy(self, counts: Counts, query: Query, number: int) -> Counts:
        spending = self._queries.spendings(query)[number]
        context = encode_fields("dp_tree", self._job_id, query.digest, number)
        return noisy(
            counts, spending.epsilon, sensitivity=spending.sensitivity,
            honest=self._queries.honest, entropy=replayable(self._secret, context),
        )  # fmt: skip

    def cells(self, search: EdgeSearch) -> Counts:
        """Return noisy counts by interval, one vector."""
        check_search(search, self._queries.schema)
        self._enter(search)
        parts = [
            count_cells(self._dataset.X[:, feature], own.tolist(), search.stage).reshape(-1)
            for feature, own in enumerate(search.intervals)
            if len(own)
        ]
        counts = np.concatenate(parts)
        if self._queries.parameters.binning != "private":
            return counts
        return self._noisy(counts, search, 0)

    def counts(self, tree: BinnedTree) -> Counts:
        """Return noisy class counts of the open nodes and those of their splits, one vector."""
        queries = self._queries
        check_tree(tree, queries.schema)
        self._enter(tree)
        if self._bins is None:
            self._bins = to_bins(queries.schema, tree.edges, self._dataset.X)
        nodes, Q = nodes_of(tree, self._bins), queries.n_classes
        classes = count_classes(nodes, tree.open_nodes, self._labels, Q)
        vector = self._noisy(classes, tree, 0).reshape(-1)
        if tree.level >= queries.parameters.depth:
            return vector
        n_bins = bin_counts(queries.schema, tree.edges)
        split = count_bins(nodes, tree.open_nodes, self._bins, n_bins, self._labels, Q)
        if queries.parameters.query == "candidates":
            split = count_candidates(split, n_bins)
        return np.concatenate([vector, self._noisy(split, tree, 1).reshape(-1)])


def check_search(search: EdgeSearch, schema: Schema) -> None:
    """Refuse intervals that do not fit the schema, or count a row twice.

    The budget of bin edges covers one count for each numeric feature.
    """
    asked = [len(own) > 0 for own in search.intervals]
    fits = len(asked) == schema.n_features and any(asked) and 0 <= search.stage < STAGES
    for feature, own in zip(schema.features, search.intervals, strict=False):
        fits &= not (feature.is_categorical and len(own))
        fits &= bool((own[1:] > own[:-1]).all())
    if not fits:
        raise OfferRejected("from the coordinator: intervals that do not fit the schema")


def check_tree(tree: BinnedTree, schema: Schema) -> None:
    """Refuse a tree that does not fit the schema, or counts a row twice."""
    n_nodes = len(tree.feature)
    fits = len(tree.edges) == schema.n_features and tree.level >= 0
    if fits:
        most = max(bin_counts(schema, tree.edges), default=1)
        splits = tree.feature >= 0
        children = np.concatenate([tree.left[splits], tree.right[splits]])
        fits = (
            tree.goes_left.shape == (n_nodes, most)
            and int(tree.feature.max()) < schema.n_features
            and len(np.unique(children)) == len(children)
            and bool(((children > 0) & (children < n_nodes)).all())
            and all(bool((np.diff(own) > 0).all()) for own in tree.edges)
        )
    if not fits:
        raise OfferRejected("from the coordinator: a tree that does not fit the schema")
