"""One tree at a passive party, exchange by exchange; the active half is in ``active_tree``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.partition import RowPartition, Splits
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import OfferRejected, VaultForgot
from hedgerow.boosting.strategies.secureboost.bitmaps import pack_masks, unpack_masks
from hedgerow.boosting.strategies.secureboost.candidates import DivisionTable
from hedgerow.boosting.strategies.secureboost.category_sets import (
    CategoryOrder,
    places_right,
)
from hedgerow.boosting.strategies.secureboost.divisions import leaf_order
from hedgerow.boosting.strategies.secureboost.model import PassivePart
from hedgerow.boosting.strategies.secureboost.parameters import Turn
from hedgerow.boosting.strategies.secureboost.party import TreeSetup
from hedgerow.boosting.strategies.secureboost.refusals import REFUSED, public_text
from hedgerow.boosting.strategies.secureboost.steps import (
    BITMAPS,
    GRADIENTS,
    HISTOGRAMS,
    SPLITS,
    CandidateCount,
    CandidateSums,
    LeftRows,
    LevelDivisions,
    NodeDivision,
    Sources,
    StepName,
    TreeGradients,
    batches,
    size_class,
    source_bytes,
)

if TYPE_CHECKING:
    from hedgerow.crypto.ciphers.packing import PairLayout
    from hedgerow.crypto.ciphers.roles import Bins


@dataclass(frozen=True, slots=True)
class PassiveFeatures:
    """What a passive party brings to every tree."""

    has_missing: NDArray[np.bool_]
    """Of shape (n_features,), bool."""
    names: NDArray[np.int32]
    """Of shape (n_features,), int32. Anonymous numbers of the features, for the active party's
    importance."""
    fit: NDArray[np.int64]
    """Of shape (n_fit,), int64. Rows that count for ``min_leaf``; the others are held back, or
    evaluation rows."""
    min_leaf: int
    parameters: TreeParameters
    check: Callable[[PairLayout], None]
    """Raises :class:`OfferRejected` for a layout of gradients that the job cannot have."""
    fewest: int
    """Rows of ``fit`` that a sample has at least."""
    least_rows: int
    """Rows that any two sums of a feature at a node differ by, unless they are the same."""
    groups: NDArray[np.bool_]
    """Of shape (n_groups, n_features), bool. Features of each group of the job's interaction
    constraints."""
    whole: bool
    """Whether the active party gets all sums of a column in their order, and no divisions."""
    orders: CategoryOrder
    """Of the categories that are divided into sets; the rows' bins are places in these."""

    @property
    def least_of_sets(self) -> int:
        """Rows that a group of categories has at least: its rows may become a side as they are."""
        return max(self.least_rows, self.min_leaf)


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """An own division of a node."""

    feature: int
    left: NDArray[np.bool_]
    """Of shape (n_bins + 1,), bool. Which bins go left; that of missing values is the last."""
    picked: int
    """Which of those that tie it is."""
    last_left: int
    """Last bin that goes left, of a number."""
    codes: tuple[int, ...] | None
    """Codes that go right, of a set of categories."""


class PassiveTree:
    """One tree.

    Parameters
    ----------
    part : PassivePart
        Gets this party's divisions.
    number : int
        Of the tree, for the part.
    rng : numpy Generator
        Secret: order of the candidates, sampling of columns.
    """

    def __init__(
        self,
        setup: TreeSetup,
        own: PassiveFeatures,
        turn: Turn,
        part: PassivePart,
        number: int,
        rng: np.random.Generator,
    ) -> None:
        self._setup = setup
        self._own = own
        self._courier = setup.courier
        self._active = setup.parties[0]
        self._me = setup.parties.index(setup.courier.party)
        self._involved = (self._active, *turn.passive)
        self._limit = turn.passive_depth or own.parameters.max_depth
        self._counted = np.zeros((setup.binned.n_samples, 2), np.int64)
        self._counted[own.fit] = 1
        self._part = part
        self._number = number
        self._columns: ColumnSampler | None = None
        n_features = setup.cuts.n_features
        features = np.arange(n_features)
        if own.parameters.samples_columns:
            self._columns = ColumnSampler(n_features, own.parameters, rng)
            features = self._columns.of_tree
        self._table = DivisionTable.of(
            setup.cuts, features, own.has_missing, own.parameters.monotone, whole=own.whole
        )
        self._order = self._table.shuffled(rng)
        self._chains = self._table.chains(self._order)
        self._binned = setup.binned
        self._partition = RowPartition(np.arange(setup.binned.n_samples, dtype=np.int32))
        self._depths = [0]
        self._n_leaves = 1
        self._request: tuple[int, ...] = (0,)
        """Nodes whose sums are owed to the active party."""
        self._known = {0: self._may_know()}
        """By node: the divisions whose sums the active party knows, or for the root may know."""
        self._allowed: dict[int, NDArray[np.bool_]] = {}
        """Per node: splits offered to the active party."""
        self._parents: dict[int, int] = {}
        self._alone: int | None = None
        """The feature that divides the root, if it is this party's and may go with no other."""

    @property
    def chained_features(self) -> list[int]:
        """The column of each chain, in the order in which the active party has them."""
        return [int(self._table.feature[self._order[own.start]]) for own in self._chains]

    def begin(self, public_key: bytes) -> StepName:
        """Take the gradients; return the next step."""
        active, setup = self._active, self._setup
        offer = CandidateCount(
            len(self._table), *self._sides_bound(), self._groups(),
            tuple(chain.size for chain in self._chains),
            pack_masks([np.array([chain.missing for chain in self._chains], np.bool_)]),
        )  # fmt: skip
        received = self._courier.send(GRADIENTS, boxes={active: offer})
        content = received.read(active, TreeGradients)
        self._own.check(content.layout)
        (sampled,) = unpack_masks(content.sampled, [self._binned.n_samples], active)
        rows = np.flatnonzero(sampled)
        fit = self._own.fit
        if not sampled[fit].sum() == len(rows) >= self._own.fewest:
            raise OfferRejected(
                f"{active}: expected gradients of at least {self._own.fewest} rows of training, "
                f"received those of {int(sampled[fit].sum())}, and of {len(rows)} rows in all"
            )
        self._position = np.cumsum(sampled) - 1
        self._sampled = sampled
        self._summed = np.repeat(sampled.astype(np.int64)[:, None], 2, axis=1)
        if not len(self._table):
            return received.then
        bins = self._binned.of(self._table.features, rows, self._table.n_bins)
        n_padded = size_class(len(rows))
        sent = received.ciphertexts.get(active, ())
        if any(len(part) % n_padded for part in sent):
            raise OfferRejected(f"{active}: expected ciphertexts of {n_padded} rows")
        parts = [memoryview(part)[: len(part) // n_padded * len(rows)] for part in sent]
        try:
            setup.vault.hold_rows(
                setup.session, public_key, content.layout, parts, cast("Bins", bins),
                self._table.n_bins, self._own.least_rows,
            )  # fmt: skip
        except REFUSED as error:
            raise OfferRejected(
                f"{active} sent gradients that cannot be used: {public_text(error)}"
            ) from error
        return received.then

    def _may_know(self) -> NDArray[np.bool_]:
        """Return the divisions that separate enough training rows, sampled or not."""
        own, known = self._own, np.ones(len(self._table), np.bool_)
        for j in self._table.features[self._table.chained].tolist():
            at = np.flatnonzero(self._table.feature == j)
            if j in own.orders.ends:
                known[at] = own.orders.ends[j][: len(at)]
        if own.least_rows <= 1:
            return known
        return self._table.large_enough(
            self._setup.cuts, self._binned, self._partition, (0,), self._counted, known,
            own.least_rows, own.least_of_sets,
        )  # fmt: skip

    def _sides_bound(self) -> tuple[bytes, bytes]:
        """Return which candidates' sides must weigh no more, and no less, than the others."""
        monotone = np.array(self._own.parameters.monotone, np.int64)
        if not monotone.any():
            return b"", b""
        # The sums of a division that sends missing values left are those of its right side.
        side = monotone[self._table.feature] * np.where(self._table.default_left, -1, 1)
        ordered = side[self._order]
        return pack_masks([ordered == 1]), pack_masks([ordered == -1])

    def _groups(self) -> bytes:
        """Return which candidates are in each group that has features of this party."""
        own = self._own.groups[self._own.groups.any(axis=1)]
        return pack_masks([group[self._table.feature][self._order] for group in own])

    def answer(self) -> StepName:
        """Send the sums of the requested nodes."""
        if not self._request:
            raise OfferRejected(f"{self._active} asks for sums of nodes that it has already")
        fresh = sorted({n for node in self._request for n in _siblings(node)})
        self._merge_bins()
        parts, sources = self._sums()
        allowed = ~self._table.too_few(
            self._setup.cuts, self._binned, self._partition, fresh, self._counted,
            self._own.min_leaf,
        )  # fmt: skip
        allowed &= np.stack([self._known[node] for node in fresh])
        if self._alone is not None and fresh != [0]:
            allowed &= self._table.feature == self._alone
        if self._columns is not None:
            for k, node in enumerate(fresh):
                columns = self._columns.of_node(self._depths[node])
                allowed[k] &= np.isin(self._table.feature, columns)
        self._allowed.update(zip(fresh, allowed, strict=True))
        content = CandidateSums(pack_masks([allowed[:, self._order].reshape(-1)]), sources)
        self._request = ()
        received = self._courier.send(
            HISTOGRAMS, boxes={self._active: content}, ciphertexts={self._active: parts}
        )
        return received.then

    def divide(self) -> StepName:
        """Take the divisions of a level, add the own ones, move rows; return the next step."""
        active = self._active
        received = self._courier.send(SPLITS)
        then = received.then
        content = received.read(active, LevelDivisions)
        self._check(content.divisions)
        nodes = [d.node for d in content.divisions]
        of = {k: [d.node for d in content.divisions if d.owner == k] for k in self._numbers}
        masks = self._unpacked(content.left, of[0], active)
        mine = {d.node: self._chosen(d) for d in content.divisions if d.owner == self._me}
        if 0 in mine and len(self._own.groups):
            feature = mine[0].feature
            self._alone = None if self._own.groups[:, feature].any() else feature
        for d in content.divisions:
            if d.owner not in (0, self._me):
                self._part.next_owner[f"{self._number}:{d.node}"] = self._setup.parties[d.owner]
        for node, own in mine.items():
            masks[node] = own.left[self._binned.column(own.feature)[self._partition.rows(node)]]
        if len(of[0]) < len(nodes):
            received = self._courier.send(BITMAPS, boxes=self._left_rows(mine, masks))
            then = received.then
            for k in self._numbers:
                if k not in (0, self._me) and of[k]:
                    party = self._setup.parties[k]
                    rows_left = received.read(party, LeftRows).left
                    masks |= self._unpacked(rows_left, of[k], party)
        self._move(nodes, masks, mine)
        return then

    @property
    def _numbers(self) -> range:
        """Numbers of the parties."""
        return range(len(self._setup.parties))

    def _merge_bins(self) -> None:
        """Note whose sums the active party will know of the requested nodes and their siblings."""
        for node in self._request:
            pair, parent = _siblings(node), self._known[self._parents.get(node, 0)]
            least = self._own.least_rows
            of_sets = self._own.least_of_sets if self._chains else least
            if max(least, of_sets) > 1:
                parent = self._table.large_enough(
                    self._setup.cuts, self._binned, self._partition, pair, self._summed, parent,
                    least, of_sets,
                )  # fmt: skip
            self._known.update(dict.fromkeys(pair, parent))

    def _sums(self) -> tuple[tuple[NDArray[np.uint8], ...], Sources]:
        """Return the ciphertext sums of the requested nodes, and which sum each candidate has."""
        table, n, setup = self._table, len(self._table), self._setup
        sources = np.empty((len(self._request), n), np.int32)
        if not n:
            return (), _narrowed(sources)
        parts: tuple[NDArray[np.uint8], ...] = ()
        nodes: list[NDArray[np.integer]] = []
        order: list[NDArray[np.int64]] = []
        known = np.stack([self._known[node] for node in self._request])
        same = table.sides(
            setup.cuts, self._binned, self._partition, self._request, self._summed, known
        )[:, self._order]
        place = np.empty(n, np.int64)
        for k, node in enumerate(self._request):
            rows = self._partition.rows(node)
            nodes.append(self._position[rows[self._sampled[rows]]])
            sent = self._order[same[k] == self._order]
            place[sent] = np.arange(len(sent))
            sources[k] = np.where(same[k] < 0, same[k], place[same[k]])
            order.append(table.at[sent])
        try:
            for batch in batches(len(self._request), n, setup.most_nodes):
                at = [k * table.n_sums + own for k, own in enumerate(order[batch])]
                if not any(len(own) for own in at):
                    continue
                parts += setup.vault.sum_bins(
                    setup.session,
                    nodes[batch],
                    cumulative=True,
                    missing=table.missing.tolist(),
                    order=np.concatenate(at),
                )
        except REFUSED as error:
            raise VaultForgot(
                f"the crypto process of {self._courier.party} has lost the gradients: "
                f"{public_text(error)}"
            ) from error
        return parts, _narrowed(sources)

    def _check(self, divisions: Sequence[NodeDivision]) -> None:
        nodes = {d.node for d in divisions}
        fits = len(nodes) == len(divisions) and nodes <= set(self._partition.nodes)
        if not fits or any(d.owner not in self._numbers for d in divisions):
            raise OfferRejected(f"{self._active} divides nodes that do not exist")
        if self._limit and any(self._depths[node] >= self._limit for node in nodes):
            raise OfferRejected(
                f"{self._active} divides nodes deeper than the {self._limit} levels of the job"
            )
        most = self._own.parameters.max_leaves
        if most and self._n_leaves + len(nodes) > most:
            raise OfferRejected(f"{self._active} grows a tree of more than {most} leaves")

    def _chosen(self, asked: NodeDivision) -> SplitChoice:
        """Return the division of an own node: the first in order among those that tie."""
        n_chained = sum(chain.size for chain in self._chains)
        if not (asked.tied or asked.sets):
            raise OfferRejected(f"{self._active} chose no candidate for a node")
        offered = all(n_chained <= k < len(self._table) for k in asked.tied)
        if not offered or any(own.chain >= len(self._chains) for own in asked.sets):
            raise OfferRejected(f"{self._active} chose candidates that were not offered")
        allowed = self._allowed.get(asked.node)
        if allowed is None:
            raise OfferRejected(f"{self._active} chose a division of a node before it had its sums")
        first = [int(self._order[k]) for k in asked.tied]
        if not allowed[first].all():
            raise OfferRejected(
                f"{self._active} chose candidates that {self._courier.party} did not allow at the "
                "node: they separate too few rows, or columns are not used there"
            )
        chains = [self._chains[own.chain] for own in asked.sets]
        first += [int(self._order[chain.start]) for chain in chains]
        picked = int(np.argmin(first))
        feature = int(self._table.feature[first[picked]])
        n_bins = int(self._setup.cuts.n_bins[feature])
        if picked < len(asked.tied):
            left = self._table.bins_left(first[picked], n_bins)
            return SplitChoice(
                feature, left, picked, int(self._table.last_left[first[picked]]), None
            )
        k = picked - len(asked.tied)
        chain = chains[k]
        right = places_right(
            asked.sets[k],
            chain,
            allowed[self._order[chain.start : chain.start + chain.size]],
            n_bins,
            self._own.least_of_sets > 1,
            self._active,
        )
        codes = tuple(np.sort(self._own.orders.codes[feature][right[:-1]]).tolist())
        return SplitChoice(feature, ~right, picked, 0, codes)

    def _unpacked(
        self, bits: bytes, nodes: Sequence[int], sender: str
    ) -> dict[int, NDArray[np.bool_]]:
        sizes = [len(self._partition.rows(node)) for node in nodes]
        return dict(zip(nodes, unpack_masks(bits, sizes, sender), strict=True))

    def _left_rows(
        self,
        mine: Mapping[int, SplitChoice],
        masks: Mapping[int, NDArray[np.bool_]],
    ) -> dict[str, LeftRows]:
        """Return what each other party of the tree receives of own divisions."""
        if not mine:
            return {}
        left = pack_masks([masks[node] for node in mine])
        names = tuple(int(self._own.names[own.feature]) for own in mine.values())
        picked: tuple[int, ...] = ()
        if any(self._own.parameters.monotone) or self._own.groups.any():
            picked = tuple(own.picked for own in mine.values())
        others = (party for party in self._involved if party != self._courier.party)
        return {
            p: LeftRows(left, names, picked) if p == self._active else LeftRows(left)
            for p in others
        }

    def leaf_order(self) -> list[int]:
        """Return the leaves of the finished tree by number."""
        return leaf_order(self._partition)

    def _move(
        self,
        nodes: Sequence[int],
        masks: Mapping[int, NDArray[np.bool_]],
        mine: Mapping[int, SplitChoice],
    ) -> None:
        """Divide rows, note own divisions, and see whose sums are requested next."""
        p = self._own.parameters
        lefts = [len(self._depths) + 2 * k for k in range(len(nodes))]
        nothing = np.zeros(len(nodes), np.int32)
        splits = Splits(
            np.array(nodes, np.int32), np.array(lefts, np.int32), nothing, nothing,
            nothing.astype(np.bool_),
        )  # fmt: skip
        counts = {}
        for node in nodes:
            sampled = self._sampled[self._partition.rows(node)]
            counts[node] = (int((sampled & masks[node]).sum()), int((sampled & ~masks[node]).sum()))
        self._partition.split_by_masks(splits, [masks[node] for node in nodes])
        self._n_leaves += len(nodes)
        full = bool(p.max_leaves) and self._n_leaves >= p.max_leaves
        request = []
        for node, left in zip(nodes, lefts, strict=True):
            depth = self._depths[node] + 1
            self._depths += [depth, depth]
            self._parents[left] = self._parents[left + 1] = node
            self._known.setdefault(node, self._known[self._parents.get(node, 0)])
            if not full and not (self._limit and depth >= self._limit):
                request.append(left + 1 if counts[node][1] < counts[node][0] else left)
            if node in mine:
                own, place = mine[node], f"{self._number}:{node}"
                threshold = 0.0
                if own.codes is None:
                    threshold = float(self._setup.cuts.threshold(own.feature, own.last_left))
                else:
                    self._part.sets[place] = list(own.codes)
                self._part.nodes[place] = [left, own.feature, threshold, bool(own.left[-1])]
        self._request = tuple(request)


def _narrowed(sources: NDArray[np.int32]) -> Sources:
    return sources if source_bytes(sources.shape[1]) == 4 else sources.astype(np.int16)


def _siblings(node: int) -> tuple[int, ...]:
    if node == 0:
        return (0,)
    return (node, node + 1 if node % 2 else node - 1)
