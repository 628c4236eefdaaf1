"""Growing a tree over parties: the active and a passive party's halves, exchange by exchange.

Both follow the step that the active party has named in the exchange before. A level is: passive
parties send encrypted sums (``histograms``); the active party says who divides which node
(``splits``); owners tell which rows go left (``bitmaps``, where a passive party owns one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.partition import RowPartition, Splits
from hedgerow.boosting.engine.sampling import Sample
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost.bitmaps import (
    array_of,
    batches,
    narrow,
    pack_masks,
    unpack_candidates,
    unpack_masks,
)
from hedgerow.boosting.strategies.secureboost.candidates import ALL_ROWS, DivisionTable
from hedgerow.boosting.strategies.secureboost.choice import PartyGrower, PurityGuard, Wanted
from hedgerow.boosting.strategies.secureboost.courier import EVERYONE, Courier, Received, size_class
from hedgerow.boosting.strategies.secureboost.model import PassivePart, Skeleton, numbers
from hedgerow.boosting.strategies.secureboost.plain_vault import REFUSED, VaultForgot, said
from hedgerow.boosting.strategies.secureboost.steps import (
    BITMAPS,
    GRADIENTS,
    HISTOGRAMS,
    SPLITS,
    Turn,
)
from hedgerow.crypto.packing import PairLayout

if TYPE_CHECKING:
    from hedgerow.crypto.cipher_roles import Bins
    from hedgerow.crypto.vault import CipherVault

Integers = NDArray[np.int64]
MAX_DIVISIONS = 1 << 24
"""Most candidates of a node that a passive party may offer."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """A tree's gradients, ready for sums.

    Parameters
    ----------
    layout : PairLayout
    grad, hess : ndarray of shape (n_sampled, n_outputs), float64
        Weighted; of the sampled rows.
    searched : ndarray of shape (n_samples, 2 * n_outputs), int64
        In units of the layout; zero for rows outside of the sample.
    exact : ndarray of the same shape, int64
        In units of ``exact_scale``, for leaf values.
    labels : ndarray of shape (n_samples, 2), float64, or None
        Weight, and weight times label, for the guard; None where it has no meaning.
    """

    layout: PairLayout
    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    searched: Integers
    exact: Integers
    exact_scale: Scale
    labels: NDArray[np.float64] | None

    @property
    def scale(self) -> Scale:
        """Unit of ``searched``."""
        unit = 2.0**-self.layout.fraction_bits
        return Scale(unit, unit)


class ActiveTree:
    """One tree at the active party.

    Parameters
    ----------
    parties : tuple of str
        All parties, the active one first.
    most_nodes : int
        Whose sums are read at a time, see :func:`batches`.
    """

    def __init__(
        self,
        courier: Courier,
        cipher: CipherVault,
        session: str,
        parties: tuple[str, ...],
        turn: Turn,
        binned: BinnedFeatures,
        cuts: Cuts,
        parameters: TreeParameters,
        columns: ColumnSampler | None,
        guard: PurityGuard,
        n_threads: int,
        most_nodes: int = 0,
    ) -> None:
        self._courier = courier
        self._cipher = cipher
        self._session = session
        self._parties = parties
        self._turn = turn
        self._binned = binned
        self._cuts = cuts
        self._parameters = parameters
        self._columns = columns
        self._guard = guard
        self._n_threads = n_threads
        self._most_nodes = most_nodes
        self._n_candidates: list[int] = [0] * (len(parties) - 1)
        self._anonymous: dict[int, int] = {}
        self.partition = RowPartition(np.arange(binned.n_samples, dtype=np.int32))

    def grow(
        self, sample: Sample, gradients: Gradients, groups: Sequence[int], round: int, then: str
    ) -> Skeleton:
        """Grow the tree; ``then`` is the step after it."""
        self._gradients = gradients
        self._sampled = np.zeros(self._binned.n_samples, np.int64)
        self._sampled[sample.rows] = 1
        self._then = then
        if self._turn.passive:
            self._announce(sample)
        root = node_sums(self.partition, [0], gradients.searched)[0]
        self._grower = PartyGrower(
            self._cuts, self._parameters, gradients.scale, root, self._columns, self._n_threads,
            guard=self._guard, n_candidates=self._n_candidates,
        )  # fmt: skip
        passive = bool(self._turn.passive)
        while self._grower.request:
            if passive and self._turn.passive_depth:
                depth = self._grower.depth(self._grower.request[0])
                passive = depth < self._turn.passive_depth
            self._grower.own_features = self._turn.own or not passive
            chosen = self._grower.choose(self._histograms(passive))
            self._divide(chosen, passive)
            while not self._grower.request and self._grower.unfinished:
                self._divide(self._grower.choose(None), passive)
        return self._finish(groups, round)

    # --- exchanges ---

    def _announce(self, sample: Sample) -> None:
        """Send encrypted gradients, and which rows they belong to."""
        g = self._gradients
        bits = np.packbits(self._sampled.astype(bool))
        layout = g.layout
        about = np.array(
            [layout.fraction_bits, layout.largest_grad, layout.largest_hess, layout.n_rows,
             layout.n_classes, len(g.grad)], np.int64,
        )  # fmt: skip
        # Zeros up to a size class: the number of ciphertexts must not tell the number of rows.
        more = ((0, size_class(len(g.grad)) - len(g.grad)), (0, 0))
        rows = self._cipher.encrypt_gradients(
            self._session, layout, np.pad(g.grad, more), np.pad(g.hess, more)
        )
        whole = set(self._turn.passive) == set(self._parties[1:])
        receivers = (EVERYONE,) if whole else self._turn.passive
        received = self._courier.send(
            GRADIENTS,
            boxes={party: {"sample": bits, "layout": about} for party in self._turn.passive},
            ciphertexts=dict.fromkeys(receivers, rows),
            then=HISTOGRAMS.name,
        )
        for k, party in enumerate(self._parties[1:]):
            if party in self._turn.passive:
                box = received.boxes.get(party, {})
                told = array_of(box, "divisions", np.int64, party)
                if len(told) != 1 or not 0 <= told[0] <= MAX_DIVISIONS:
                    raise OfferRejected(f"{party} offers an impossible number of candidates")
                self._n_candidates[k] = int(told[0])

    def _histograms(self, passive: bool) -> Integers:
        """Return the sums of all requested nodes: own bins, then candidates of each party."""
        grower = self._grower
        g = self._gradients.searched
        nodes, fresh = grower.request, grower.fresh()
        out = np.zeros((len(nodes), grower.width, g.shape[1]), np.int64)
        own = build_histograms(
            self._binned, self.partition, nodes, g, grower.layout, self._n_threads
        )
        out[:, : own.shape[1]] = own
        grower.allowed = {}
        if not passive:
            return out
        received = self._courier.send(HISTOGRAMS, then=SPLITS.name)
        at = own.shape[1]
        masks: dict[int, list[NDArray[np.bool_]]] = {node: [] for node in fresh}
        for k, party in enumerate(self._parties[1:]):
            n = self._n_candidates[k]
            if party not in self._turn.passive:
                for node in fresh:
                    masks[node].append(np.zeros(n, np.bool_))
                continue
            out[:, at : at + n] = self._answer(received, party, nodes, n)
            at += n
            bits = array_of(received.boxes.get(party, {}), "allowed", np.uint8, party)
            for node, mask in zip(
                fresh, unpack_candidates(bits, len(fresh), n, party), strict=True
            ):
                masks[node].append(mask)
        grower.allowed = masks
        self._label_shares(fresh)
        return out

    def _answer(self, received: Received, party: str, nodes: Sequence[int], n: int) -> Integers:
        """Decrypt a party's candidates: shape (n_nodes, n, 2 * n_outputs)."""
        n_classes = self._gradients.layout.n_classes
        out = np.zeros((len(nodes), n, 2 * n_classes), np.int64)
        if n == 0:
            return out
        sources = array_of(received.boxes.get(party, {}), "sources", narrow(n), party)
        if sources.shape != (len(nodes) * n,) or sources.min() < ALL_ROWS or sources.max() >= n:
            raise OfferRejected(f"{party} sent no sums for some of its candidates")
        stands = sources.reshape(len(nodes), n).astype(np.int64)
        sent = np.maximum(stands.max(axis=1) + 1, 0)
        parts = received.ciphertexts.get(party, ())
        each = [b for b in batches(len(nodes), n, self._most_nodes) if sent[b].any()]
        n_parts = len(parts) // max(len(each), 1)
        grads = [np.empty((0, n_classes), np.int64)]
        hesses = [np.empty((0, n_classes), np.int64)]
        try:
            for b, batch in enumerate(each):
                # Whatever is too many goes to the last batch, where it is refused.
                end = None if b == len(each) - 1 else (b + 1) * n_parts
                own = parts[b * n_parts : end]
                grad, hess = self._cipher.decrypt_histograms(
                    self._session, self._gradients.layout, own, int(sent[batch].sum())
                )
                grads.append(grad.astype(np.int64))
                hesses.append(hess.astype(np.int64))
        except REFUSED as error:
            raise OfferRejected(f"{party} sent sums that cannot be used: {said(error)}") from error
        all_grad, all_hess = np.concatenate(grads), np.concatenate(hesses)
        first = np.cumsum([0, *sent])
        for k, node in enumerate(nodes):
            told = stands[k] >= 0
            at = first[k] + stands[k][told]
            out[k, told, 0::2], out[k, told, 1::2] = all_grad[at], all_hess[at]
            out[k, stands[k] == ALL_ROWS] = self._grower.sums(node)
        return out

    def _label_shares(self, nodes: Sequence[int]) -> None:
        labels = self._gradients.labels
        if labels is None:
            return
        for node in nodes:
            weight, positive = labels[self.partition.rows(node)].sum(axis=0)
            if weight > 0:
                unit = self._gradients.scale.grad
                self._grower.labels[node] = (float(positive / weight), float(weight / unit))

    def _divide(self, chosen: Sequence[Wanted], passive: bool) -> None:
        """Agree on the rows that go left, and move them."""
        masks = {w.node: self._own_mask(w) for w in chosen if w.owner == 0}
        if passive:
            masks |= self._tell(chosen, masks)
        left, n_rows = {}, {}
        for w in chosen:
            rows = self.partition.rows(w.node)
            mask = masks[w.node]
            left[w.node] = self._gradients.searched[rows[mask]].sum(axis=0)
            if w.owner:
                self._check(w, left[w.node])
            n_left = int(self._sampled[rows[mask]].sum())
            n_rows[w.node] = (n_left, int(self._sampled[rows].sum()) - n_left)
        splits = self._grower.settle(chosen, left, n_rows)
        self.partition.split_by_masks(splits, [masks[w.node] for w in chosen])

    def _own_mask(self, w: Wanted) -> NDArray[np.bool_]:
        j, last_left, default = self._grower.division(w.node)
        bins = self._binned.by_feature[j][self.partition.rows(w.node)]
        left = bins.astype(np.int64) <= last_left
        return np.asarray(np.where(bins == self._binned.n_bins[j], default, left))

    def _tell(
        self, chosen: Sequence[Wanted], own: Mapping[int, NDArray[np.bool_]]
    ) -> dict[int, NDArray[np.bool_]]:
        """Tell passive parties what is divided; return the masks of those that own some."""
        then = self._after(chosen)
        owners = [w for w in chosen if w.owner]
        boxes = {}
        for k, party in enumerate(self._parties[1:], start=1):
            if party not in self._turn.passive:
                continue
            mine = [w.tied for w in chosen if w.owner == k]
            boxes[party] = {
                "nodes": np.array([w.node for w in chosen], np.int32),
                "owners": np.array([w.owner for w in chosen], np.int32),
                "tied": np.concatenate([np.empty(0, np.int32), *mine]),
                "starts": np.cumsum([0, *(len(t) for t in mine)]).astype(np.int64),
                "masks": pack_masks([own[w.node] for w in chosen if w.owner == 0]),
            }
        self._courier.send(SPLITS, boxes=boxes, then=BITMAPS.name if owners else then)
        if not owners:
            return {}
        received = self._courier.send(BITMAPS, then=then)
        found: dict[int, NDArray[np.bool_]] = {}
        for k, party in enumerate(self._parties[1:], start=1):
            nodes = [w.node for w in chosen if w.owner == k]
            if nodes:
                bits = array_of(received.boxes.get(party, {}), "masks", np.uint8, party)
                sizes = [len(self.partition.rows(node)) for node in nodes]
                found |= dict(zip(nodes, unpack_masks(bits, sizes, party), strict=True))
                names = array_of(received.boxes[party], "features", np.int32, party)
                if len(names) != len(nodes):
                    raise OfferRejected(f"{party} named the features of {len(names)} divisions")
                self._anonymous |= dict(zip(nodes, names.tolist(), strict=True))
        return found

    def _after(self, chosen: Sequence[Wanted]) -> str:
        """Return the step after these divisions, as far as passive parties are concerned."""
        p = self._parameters
        if not chosen:
            return self._then
        limit = self._turn.passive_depth or p.max_depth
        deeper = [w for w in chosen if not limit or self._grower.depth(w.node) + 1 < limit]
        if deeper and not self._grower.is_full:
            return HISTOGRAMS.name
        return SPLITS.name if self._grower.unfinished else self._then

    def _check(self, w: Wanted, left: Integers) -> None:
        """Refuse a division whose rows do not have the sums that were sent for it."""
        right = self._grower.sums(w.node) - left
        if not ((w.sides == left).all(axis=1) | (w.sides == right).all(axis=1)).any():
            raise OfferRejected(
                f"{self._parties[w.owner]} sent rows that do not have the sums it sent before"
            )

    def _finish(self, groups: Sequence[int], round: int) -> Skeleton:
        grower = self._grower
        leaf_sums = node_sums(self.partition, grower.leaves, self._gradients.exact)
        tree = grower.finish(leaf_sums, self._gradients.exact_scale)
        self.values = tree.value
        self.leaves = [int(leaf) for leaf in tree.leaves]
        owner = np.array([grower.owners.get(node, -1) for node in range(tree.n_nodes)], np.int64)
        own = owner == 0
        thresholds = [
            float(self._cuts.threshold(int(tree.feature[k]), int(tree.bin[k]))) if own[k] else 0.0
            for k in range(tree.n_nodes)
        ]
        return Skeleton(
            round=round,
            groups=list(groups),
            left=numbers(tree.left),
            owner=numbers(owner),
            feature=[
                int(tree.feature[k]) if own[k] else self._anonymous.get(k, 0)
                for k in range(tree.n_nodes)
            ],
            threshold=thresholds,
            default_left=numbers(tree.default_left & own),
            value=numbers(tree.value),
            gain=numbers(tree.gain),
            cover=numbers(tree.cover),
        )


class PassiveTree:
    """One tree at a passive party.

    Parameters
    ----------
    number : int
        Of the tree, for the party's part.
    rng : numpy Generator
        Secret: order of the candidates, sampling of columns.
    involved : tuple of str
        Passive parties that take part in the tree.
    fit : ndarray of shape (n_fit,), int64
        Rows that count for the least number on either side; the others are held back, or evaluation
        rows.
    names : ndarray of shape (n_features,), int32
        Anonymous numbers of the features, for the active party's importance.
    most_nodes : int
        Whose sums are made at a time, see :func:`batches`.
    """

    def __init__(
        self,
        courier: Courier,
        parties: tuple[str, ...],
        binned: BinnedFeatures,
        cuts: Cuts,
        has_missing: NDArray[np.bool_],
        parameters: TreeParameters,
        passive_depth: int,
        min_leaf: int,
        fit: NDArray[np.int64],
        involved: tuple[str, ...],
        part: PassivePart,
        number: int,
        rng: np.random.Generator,
        names: NDArray[np.int32],
        most_nodes: int = 0,
    ) -> None:
        self._courier = courier
        self._parties = parties
        self._names = names
        self._involved = (parties[0], *involved)
        self._me = parties.index(courier.party)
        self._binned = binned
        self._cuts = cuts
        self._parameters = parameters
        self._limit = passive_depth or parameters.max_depth
        self._min_leaf = min_leaf
        self._most_nodes = most_nodes
        self._counted = np.zeros((binned.n_samples, 2), np.int64)
        self._counted[fit] = 1
        self._part = part
        self._number = number
        self._columns: ColumnSampler | None = None
        features = np.arange(cuts.n_features)
        if parameters.samples_columns:
            self._columns = ColumnSampler(cuts.n_features, parameters, rng)
            features = self._columns.of_tree
        self._table = DivisionTable.of(cuts, features, has_missing)
        self._order = rng.permutation(len(self._table))
        self._partition = RowPartition(np.arange(binned.n_samples, dtype=np.int32))
        self._depths = [0]
        self._n_leaves = 1
        self._request: tuple[int, ...] = (0,)

    def begin(self, cipher: CipherVault, session: str, public_key: bytes) -> str:
        """Take the gradients; return the next step."""
        offer = {"divisions": np.array([len(self._table)], np.int64)}
        received = self._courier.send(GRADIENTS, boxes={self._parties[0]: offer})
        active = self._parties[0]
        box = received.boxes.get(active, {})
        if not box:
            return received.then
        about = [int(v) for v in array_of(box, "layout", np.int64, active)]
        if len(about) != 6:
            raise OfferRejected(f"{active} sent a layout of {len(about)} numbers")
        try:
            layout = PairLayout(*about[:5])
        except ValueError as error:
            raise OfferRejected(f"{active}: {said(error)}") from error
        bits = array_of(box, "sample", np.uint8, active)
        (sampled,) = unpack_masks(bits, [self._binned.n_samples], active)
        rows = np.flatnonzero(sampled)
        if len(rows) != about[5]:
            raise OfferRejected(f"{active} sent gradients of {about[5]} rows, sampled {len(rows)}")
        self._position = np.cumsum(sampled) - 1
        self._sampled = sampled
        self._summed = np.repeat(sampled.astype(np.int64)[:, None], 2, axis=1)
        self._cipher, self._session = cipher, session
        if not len(self._table):
            return received.then
        bins = np.ascontiguousarray(self._binned.by_feature[self._table.features][:, rows].T)
        n_padded = size_class(len(rows))
        parts = [
            memoryview(part)[: len(part) // n_padded * len(rows)]
            for part in received.ciphertexts.get(active, ())
        ]
        try:
            cipher.hold_rows(
                session, public_key, layout, parts, cast("Bins", bins), self._table.n_bins
            )
        except REFUSED as error:
            raise OfferRejected(
                f"{active} sent gradients that cannot be used: {said(error)}"
            ) from error
        return received.then

    def answer(self) -> str:
        """Send the sums of the requested nodes."""
        request = self._request
        fresh = sorted({n for node in request for n in _pair(node)})
        n = len(self._table)
        parts: tuple[NDArray[np.uint8], ...] = ()
        sources = np.empty((len(request), n), np.int32)
        if n:
            nodes: list[NDArray[np.integer]] = []
            order: list[NDArray[np.int64]] = []
            stands = self._table.sides(
                self._cuts, self._binned, self._partition, request, self._summed
            )[:, self._order]
            place = np.empty(n, np.int64)
            for k, node in enumerate(request):
                rows = self._partition.rows(node)
                nodes.append(self._position[rows[self._sampled[rows]]])
                sent = self._order[stands[k] == self._order]
                place[sent] = np.arange(len(sent))
                sources[k] = np.where(stands[k] < 0, stands[k], place[stands[k]])
                order.append(self._table.at[sent])
            try:
                for batch in batches(len(request), n, self._most_nodes):
                    at = [k * self._table.n_sums + own for k, own in enumerate(order[batch])]
                    if not any(len(own) for own in at):
                        continue
                    parts += self._cipher.sum_bins(
                        self._session,
                        nodes[batch],
                        cumulative=True,
                        missing=self._table.missing.tolist(),
                        order=np.concatenate(at),
                    )
            except REFUSED as error:
                raise VaultForgot(
                    f"the crypto process of {self._courier.party} has lost the gradients: "
                    f"{said(error)}"
                ) from error
        allowed = ~self._table.too_few(
            self._cuts, self._binned, self._partition, fresh, self._counted, self._min_leaf
        )
        if self._columns is not None:
            for k, node in enumerate(fresh):
                allowed[k] &= np.isin(
                    self._table.feature, self._columns.of_node(self._depths[node])
                )
        active = self._parties[0]
        received = self._courier.send(
            HISTOGRAMS,
            boxes={
                active: {
                    "allowed": np.packbits(allowed[:, self._order].reshape(-1)),
                    "sources": sources.reshape(-1).astype(narrow(n)),
                }
            },
            ciphertexts={active: parts},
        )
        return received.then

    def divide(self) -> str:
        """Take the divisions of a level, add the own ones, move rows; return the next step."""
        received = self._courier.send(SPLITS)
        active = self._parties[0]
        box = received.boxes.get(active, {})
        nodes = [int(v) for v in array_of(box, "nodes", np.int32, active)]
        owners = [int(v) for v in array_of(box, "owners", np.int32, active)]
        self._check(nodes, owners)
        sizes = [
            len(self._partition.rows(node))
            for node, owner in zip(nodes, owners, strict=True)
            if owner == 0
        ]
        theirs = iter(unpack_masks(array_of(box, "masks", np.uint8, active), sizes, active))
        masks = {n: next(theirs) for n, o in zip(nodes, owners, strict=True) if o == 0}
        mine = [n for n, o in zip(nodes, owners, strict=True) if o == self._me]
        divisions = self._mine(box, mine)
        for node, owner in zip(nodes, owners, strict=True):
            if owner not in (0, self._me):
                self._part.next_owner[f"{self._number}:{node}"] = self._parties[owner]
        masks |= {
            node: self._table.goes_left(d, self._binned, self._partition.rows(node))
            for node, d in divisions.items()
        }
        then = received.then
        if any(owners):
            bits = {"masks": pack_masks([masks[node] for node in mine])}
            others = [p for p in self._involved if p != self._courier.party] if mine else []
            boxes: dict[str, dict[str, NDArray[Any]]] = dict.fromkeys(others, bits)
            if mine:
                own = [int(self._table.feature[divisions[node]]) for node in mine]
                boxes[active] = {**bits, "features": self._names[own]}
            received = self._courier.send(BITMAPS, boxes=boxes)
            then = received.then
            for k, party in enumerate(self._parties):
                theirs_nodes = [n for n, o in zip(nodes, owners, strict=True) if o == k]
                if k in (0, self._me) or not theirs_nodes:
                    continue
                rows = [len(self._partition.rows(node)) for node in theirs_nodes]
                found = array_of(received.boxes.get(party, {}), "masks", np.uint8, party)
                masks |= dict(zip(theirs_nodes, unpack_masks(found, rows, party), strict=True))
        self._move(nodes, masks, divisions)
        return then

    def _check(self, nodes: Sequence[int], owners: Sequence[int]) -> None:
        known = set(self._partition.nodes)
        fits = len(nodes) == len(owners) and len(set(nodes)) == len(nodes) and set(nodes) <= known
        if not fits or any(not 0 <= o < len(self._parties) for o in owners):
            raise OfferRejected(f"{self._parties[0]} divides nodes that are not there")

    def _mine(self, box: Mapping[str, NDArray[Any]], nodes: Sequence[int]) -> dict[int, int]:
        """Return the division of each own node: the first in order among those that tie."""
        active = self._parties[0]
        tied = array_of(box, "tied", np.int32, active)
        starts = array_of(box, "starts", np.int64, active)
        fits = len(starts) == len(nodes) + 1 and starts[0] == 0 and starts[-1] == len(tied)
        if not fits or np.any(tied < 0) or np.any(tied >= len(self._table)):
            raise OfferRejected(f"{active} chose candidates that were not offered")
        if np.any(np.diff(starts) < 1):
            raise OfferRejected(f"{active} chose no candidate for a node")
        return {
            node: int(self._order[tied[starts[k] : starts[k + 1]]].min())
            for k, node in enumerate(nodes)
        }

    def _move(
        self,
        nodes: Sequence[int],
        masks: Mapping[int, NDArray[np.bool_]],
        divisions: Mapping[int, int],
    ) -> None:
        p = self._parameters
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
            if not full and not (self._limit and depth >= self._limit):
                request.append(left + 1 if counts[node][1] < counts[node][0] else left)
            if node in divisions:
                d = divisions[node]
                feature, last = int(self._table.feature[d]), int(self._table.last_left[d])
                self._part.nodes[f"{self._number}:{node}"] = [
                    left,
                    feature,
                    float(self._cuts.threshold(feature, last)),
                    bool(self._table.default_left[d]),
                ]
        self._request = tuple(request)


def layered(parameters: TreeParameters, host_depth: int, guest_depth: int) -> TreeParameters:
    """Return tree parameters of layered mode: the sum of both depths."""
    return replace(parameters, max_depth=host_depth + guest_depth)


def _pair(node: int) -> tuple[int, ...]:
    if node == 0:
        return (0,)
    return (node, node + 1 if node % 2 else node - 1)
