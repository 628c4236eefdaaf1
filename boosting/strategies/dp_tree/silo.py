"""The private tree in a silo: counts with its part of the noise, within its own budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Receipt, Silo, SiloChannel
from hedgerow.boosting.payloads import Float32s
from hedgerow.boosting.ports import ModelCheck, SiloStart
from hedgerow.boosting.strategies.dp_tree.bins import STAGES, EdgeSearch, count_cells
from hedgerow.boosting.strategies.dp_tree.noisy_tree import (
    BinnedTree,
    bin_counts,
    close,
    count_bins,
    count_candidates,
    count_classes,
    nodes_of,
    to_bins,
)
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.steps import STANDING, Query, sums_of
from hedgerow.boosting.sums.answers import Counts, NoisyRelease
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import check_trees, fingerprint
from hedgerow.boosting.trees.decision_tree import MODEL_FILE

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import Vault


def participate(
    parameters: DPTree, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck | None:
    """Run the silo half; returns how this silo knows the tree: its splits, not its leaves."""
    n_silos = len(start.silos)
    counter = Counter(
        Queries(parameters, start.schema, n_silos), NoisyRelease.of(vault, start), start
    )
    query = link.exchange(STANDING, ExchangeKey(start.first_round), Receipt()).query
    if isinstance(query, BinnedTree) and not query.open_nodes.size:
        return _check_of(query, start)
    sums = SiloSums.of(link, vault, start, parameters.sum_parameters(start.job, n_silos))
    cell_sums, count_sums = sums_of(parameters.epsilon, parameters.binning)
    honest = parameters.honest_of(n_silos)  # a silo with smaller parts of the noise opens nothing
    sums.setup(ExchangeKey(0 if isinstance(query, EdgeSearch) else query.level))
    while isinstance(query, EdgeSearch):
        cells = counter.cells(query, sums.participants).view(np.uint64)
        state = state_digest(start.schema, query, honest)
        query = sums.sum(cell_sums, ExchangeKey(0, query.stage), cells, state=state).query
    while query.open_nodes.size:
        counts = counter.counts(query, sums.participants).view(np.uint64)
        state = state_digest(start.schema, query, honest)
        query = sums.sum(count_sums, ExchangeKey(query.level), counts, state=state)
    return _check_of(query, start)


def _check_of(tree: BinnedTree, start: SiloStart) -> ModelCheck:
    """Return the check of a result against a tree without the noisy counts of its leaves."""
    check_tree(tree, start.schema)
    counts = np.zeros((len(tree.feature), max(2, start.schema.n_outputs)))
    grown = close(tree, start.schema, counts)
    known = [fingerprint(one.by_level(), leaves=False) for one in grown.trees()]

    def check(files: Mapping[str, bytes]) -> None:
        check_trees(files, MODEL_FILE, grown.header(), known, (len(known),), leaves=False)

    return check


class Counter:
    """A silo's rows: answers queries with its part of the noise, within its budget."""

    def __init__(self, queries: Queries, answers: NoisyRelease, start: SiloStart) -> None:
        self._queries = queries
        self._answers = answers
        self._dataset = start.dataset
        self._labels = start.dataset.labels.astype(np.int64)
        self._binned: tuple[tuple[Float32s, ...], NDArray[np.int32]] | None = None

    def cells(self, search: EdgeSearch, silos: tuple[Silo, ...]) -> Counts:
        """Return noisy counts by interval, one vector, for a sum over ``silos``."""
        check_search(search, self._queries.schema)
        self._check_bins(search.intervals)
        parts = [
            count_cells(self._dataset.X[:, feature], own.tolist(), search.stage).reshape(-1)
            for feature, own in enumerate(search.intervals)
            if len(own)
        ]
        counts = np.concatenate(parts)
        if self._queries.parameters.binning != "private":
            return counts
        return self._answer(search, [counts], silos)

    def counts(self, tree: BinnedTree, silos: tuple[Silo, ...]) -> Counts:
        """Return noisy class counts of the open nodes and those of their splits, one vector."""
        queries = self._queries
        check_tree(tree, queries.schema)
        self._check_bins(tree.edges)
        bins = self._bins_of(tree.edges)
        nodes, Q = nodes_of(tree, bins), queries.n_classes
        parts = [count_classes(nodes, tree.open_nodes, self._labels, Q)]
        if tree.level < queries.parameters.depth:
            n_bins = bin_counts(queries.schema, tree.edges)
            split = count_bins(nodes, tree.open_nodes, bins, n_bins, self._labels, Q)
            if queries.parameters.query == "candidates":
                split = count_candidates(split, n_bins)
            parts.append(split)
        return self._answer(tree, parts, silos)

    def _check_bins(self, asked: tuple[NDArray[Any], ...]) -> None:
        """Refuse more edges, or intervals that contain some, than the job's bins have."""
        most = self._queries.parameters.bins - 1
        if max(map(len, asked), default=0) > most:
            raise OfferRejected(f"from the coordinator: expected at most {most} edges a feature")

    def _bins_of(self, edges: tuple[Float32s, ...]) -> NDArray[np.int32]:
        # Of this query's edges, not of earlier ones: noise covers what the query says.
        kept = self._binned
        if kept is None or not all(map(np.array_equal, kept[0], edges)):
            kept = self._binned = (edges, to_bins(self._queries.schema, edges, self._dataset.X))
        return kept[1]

    def _answer(self, query: Query, parts: list[Counts], silos: tuple[Silo, ...]) -> Counts:
        priced = list(zip(self._queries.spendings(query), parts, strict=True))
        honest = self._queries.honest
        noisy = self._answers.answer(state_digest(query), priced, silos=silos, honest=honest)
        return np.concatenate([part.reshape(-1) for part in noisy])


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
        n_bins = bin_counts(schema, tree.edges)
        most = max(n_bins, default=1)
        splits = tree.feature >= 0
        children = np.concatenate([tree.left[splits], tree.right[splits]])
        fits = (
            tree.goes_left.shape == (n_nodes, most)
            and int(tree.feature.max()) < schema.n_features
            and len(np.unique(children)) == len(children)
            and bool((np.stack([tree.left, tree.right])[:, ~splits] < 0).all())
            and len(tree.open_nodes) <= 1 << tree.level
            and bool(((children > 0) & (children < n_nodes)).all())
            and all(bool((np.diff(own) > 0).all()) for own in tree.edges)
            and all(  # a threshold has values on its left
                tree.goes_left[node, : n_bins[feature] - 1].any()
                for node, feature in zip(np.flatnonzero(splits), tree.feature[splits], strict=True)
                if not schema.features[feature].is_categorical
            )
        )
    if not fits:
        raise OfferRejected("from the coordinator: a tree that does not fit the schema")
