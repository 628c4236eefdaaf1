"""Scoring rows over parties: every party moves rows through the nodes that are its own.

All trees and all rows are routed together. A row starts at the party that owns the root of a tree,
which need not be asked. A party that moves a row to a node of another party passes it to that
party, or to the active party where the node is a leaf. So there are as many exchanges as owners
change on the longest path, at most the depth of the trees; one, in the modes mix and layered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.divisions import (
    Node,
    NodeSplit,
    asked_of,
    divisions_of,
)
from hedgerow.boosting.strategies.secureboost.model import (
    ActivePart,
    PassivePart,
    TreeStructure,
    node_of,
)
from hedgerow.boosting.strategies.secureboost.steps import MARGINS, RowsAtNodes, StepName

Waiting = dict[Node, NDArray[np.int32]]
"""Rows at nodes."""
_MOST_READ = 1 << 26
"""Values of columns that are kept for nodes that divide by them again."""


def n_exchanges(trees: Sequence[TreeStructure]) -> int:
    """Return how often rows change hands on the longest path."""
    most = 0
    for tree in trees:
        paths = [(0, 0)]
        while paths:
            node, changes = paths.pop()
            own = max(tree.owner[node], 0)
            left = tree.left[node]
            if left < 0:
                most = max(most, changes)
                continue
            for child in (left, left + 1):
                paths.append((child, changes + (max(tree.owner[child], 0) != own)))
    return most


@dataclass(slots=True)
class Router:
    """One party's nodes, and rows on their way through them."""

    party: str
    active: str
    divisions: Mapping[Node, NodeSplit]
    """Of this party's nodes."""
    owners: Mapping[Node, str]
    """Who divides a node that is not this party's; the active party, or nobody, where it is not
    named."""
    X: NDArray[np.float32] | Columns
    """Of shape (n_rows, n_features), float32, or Columns. Columns in the order of the part; those
    that divide rows are kept a while."""
    n_trees: int
    at_leaves: Waiting = field(default_factory=dict)
    _read: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.X.n_samples if isinstance(self.X, Columns) else len(self.X)

    def column(self, feature: int) -> NDArray[np.float32]:
        """Return the values of a feature."""
        if not isinstance(self.X, Columns):
            return self.X[:, feature]
        if feature not in self._read:
            if len(self._read) * self.n_rows > _MOST_READ:
                self._read.clear()
            self._read[feature] = self.X.readers[feature]()
        return self._read[feature]

    def roots(self) -> Waiting:
        """Return all rows at every root that is this party's (active: also trees of one leaf)."""
        rows = np.arange(self.n_rows, dtype=np.int32)
        return {
            (tree, 0): rows
            for tree in range(self.n_trees)
            if (tree, 0) in self.divisions
            or (self.party == self.active and (tree, 0) not in self.owners)
        }

    def advance(self, waiting: Waiting) -> dict[str, Waiting]:
        """Move rows as far as own nodes go; return those for other parties."""
        out: dict[str, Waiting] = {}
        todo = list(waiting.items())
        while todo:
            (tree, node), rows = todo.pop()
            division = self.divisions.get((tree, node))
            if division is None:
                owner = self.owners.get((tree, node), self.active)
                place = self.at_leaves if owner == self.party else out.setdefault(owner, {})
                here = place.get((tree, node))
                place[tree, node] = rows if here is None else np.concatenate([here, rows])
                continue
            left = division.left
            goes_left = division.goes_left(self.column(division.feature)[rows])
            for child, chosen in ((left, rows[goes_left]), (left + 1, rows[~goes_left])):
                if len(chosen):
                    todo.append(((tree, child), chosen))
        return out


def router_of_active(part: ActivePart, n_trees: int, X: NDArray[np.float32] | Columns) -> Router:
    """Return the router of the active party."""
    owners = {
        (t, node): part.parties[owner]
        for t, tree in enumerate(part.trees[:n_trees])
        for node, owner in enumerate(tree.owner)
        if owner > 0
    }
    return Router(part.party, part.party, divisions_of(part, n_trees), owners, X, n_trees)


def router_of_passive(
    part: PassivePart, active: str, n_trees: int, X: NDArray[np.float32] | Columns
) -> Router:
    """Return the router of a passive party."""
    owners = {node_of(key): owner for key, owner in part.next_owner.items()}
    asked, leaves = asked_of(part, n_trees)
    return Router(part.party, active, asked, owners, leaves.appended(X), n_trees)


def hop(
    courier: SealedChannel, router: Router, waiting: Waiting, then: StepName | None = None
) -> tuple[Waiting, StepName]:
    """Advance rows, pass them on, and return those received with the step that follows."""
    boxes = {party: _packed(rows) for party, rows in router.advance(waiting).items()}
    received = courier.send(MARGINS, boxes=boxes, then=then)
    found: Waiting = {}
    for sender in received.boxes:
        for node, rows in _unpacked(received.read(sender, RowsAtNodes), sender, router).items():
            found[node] = np.concatenate([found[node], rows]) if node in found else rows
    return found, received.then


def route(
    courier: SealedChannel, router: Router, trees: Sequence[TreeStructure], then: StepName
) -> None:
    """Route all rows at the active party; :attr:`Router.at_leaves` has them afterwards.

    Raises
    ------
    OfferRejected
        Rows have not reached a leaf, or not all of them, or some twice.
    """
    waiting, n = router.roots(), n_exchanges(trees)
    for k in range(n):
        waiting, _ = hop(courier, router, waiting, StepName.MARGINS if k < n - 1 else then)
    if router.advance(waiting):
        raise OfferRejected("rows are still on their way after the last exchange")
    for t, tree in enumerate(trees):
        here = [rows for (at, _), rows in router.at_leaves.items() if at == t]
        leaves = {node for at, node in router.at_leaves if at == t}
        if any(tree.left[node] >= 0 for node in leaves) or not np.array_equal(
            np.sort(np.concatenate([np.empty(0, np.int32), *here])), np.arange(router.n_rows)
        ):
            raise OfferRejected("rows are missing at the leaves, or reached several")


def margins(
    router: Router, trees: Sequence[TreeStructure], start: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return margins of routed rows, leaf values added tree by tree in float32 as in training.

    Parameters
    ----------
    start : ndarray of shape (n_rows, n_outputs), float32
    """
    out = start.copy()
    by_tree: dict[int, list[tuple[int, NDArray[np.int32]]]] = {}
    for (t, node), rows in router.at_leaves.items():
        by_tree.setdefault(t, []).append((node, rows))
    for t, tree in enumerate(trees):
        for node, rows in by_tree.get(t, ()):
            out[rows[:, None], tree.groups] += np.array(tree.value[node], np.float32)
    return out


def _packed(waiting: Waiting) -> RowsAtNodes:
    at = sorted(waiting)
    trees_nodes = np.array(at, np.int32).reshape(-1, 2)
    return RowsAtNodes(
        trees=trees_nodes[:, 0],
        nodes=trees_nodes[:, 1],
        counts=np.array([len(waiting[node]) for node in at], np.int32),
        rows=np.concatenate([np.empty(0, np.int32), *(waiting[node] for node in at)]),
    )


def _unpacked(box: RowsAtNodes, sender: str, router: Router) -> Waiting:
    ends = np.cumsum(box.counts, dtype=np.int64)
    fits = (
        len(box.trees) == len(box.nodes) == len(box.counts)
        and bool((box.counts >= 0).all())
        and len(box.rows) == (ends[-1] if len(ends) else 0)
        and bool(((box.rows >= 0) & (box.rows < router.n_rows)).all())
        and bool(((box.trees >= 0) & (box.trees < max(router.n_trees, 1))).all())
        and bool((box.nodes >= 0).all())
    )
    if not fits:
        raise OfferRejected(f"{sender} sent malformed rows")
    at = zip(box.trees.tolist(), box.nodes.tolist(), strict=True)
    found = dict(zip(at, np.split(box.rows, ends[:-1]) if len(ends) else (), strict=True))
    if router.party != router.active and not found.keys() <= router.divisions.keys():
        raise OfferRejected(f"{sender} sent rows to nodes that are not of {router.party}")
    return found
