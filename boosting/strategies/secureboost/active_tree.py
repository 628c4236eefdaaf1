"""One tree at the active party, exchange by exchange; the passive half is in ``passive_tree``.

A level is: passive parties send encrypted sums (``histograms``); the active party decides who
divides which node (``splits``); owners report which rows go left (``bitmaps``, where a passive
party owns one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.sampling import Sample
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost.bitmaps import (
    pack_masks,
    unpack_candidates,
    unpack_masks,
)
from hedgerow.boosting.strategies.secureboost.category_sets import Chain, chains_of, groups_of
from hedgerow.boosting.strategies.secureboost.choice import PartyGrower, PurityGuard, SplitRequest
from hedgerow.boosting.strategies.secureboost.courier import Delivery
from hedgerow.boosting.strategies.secureboost.interactions import Interactions
from hedgerow.boosting.strategies.secureboost.model import TreeStructure, numbers
from hedgerow.boosting.strategies.secureboost.parameters import Turn
from hedgerow.boosting.strategies.secureboost.party import TreeSetup
from hedgerow.boosting.strategies.secureboost.refusals import REFUSED, public_text
from hedgerow.boosting.strategies.secureboost.steps import (
    ALL_ROWS,
    BITMAPS,
    EVERYONE,
    GRADIENTS,
    HISTOGRAMS,
    SPLITS,
    CandidateCount,
    CandidateSums,
    LeftRows,
    LevelDivisions,
    NodeDivision,
    StepName,
    TreeGradients,
    batches,
    size_class,
    source_bytes,
)
from hedgerow.crypto.ciphers.packing import PairLayout

Integers = NDArray[np.int64]
MAX_DIVISIONS = 1 << 24
"""Most candidates of a node that a passive party may offer."""
MAX_CHAINS = 1 << 12
"""Most columns of categories that a passive party may divide into sets: each is searched apart."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """A tree's gradients, ready for sums."""

    layout: PairLayout
    grad: NDArray[np.float64]
    hess: NDArray[np.float64]
    """Of shape (n_sampled, n_outputs), float64. ``grad`` and ``hess``: weighted; of the sampled
    rows."""
    searched: Integers
    """Of shape (n_samples, 2 * n_outputs), int64. In units of the layout; zero for rows outside of
    the sample."""
    exact: Integers
    """Ndarray of the same shape, int64. In units of ``exact_scale``, for leaf values."""
    exact_scale: Scale
    labels: NDArray[np.float64] | None
    """Of shape (n_samples, 2), float64, or None. Weight, ``scale_pos_weight`` included, and weight
    times label, for the guard; None where it has no meaning."""

    @property
    def scale(self) -> Scale:
        """Unit of ``searched``."""
        unit = 2.0**-self.layout.fraction_bits
        return Scale(unit, unit)


class ActiveTree:
    """One tree.

    Parameters
    ----------
    columns : ColumnSampler or None
        Of the active party's own columns.
    constrained : Mapping
        Passive parties of whose features the job constrains some: whether by monotone constraints,
        and the groups of interaction constraints in which it names some.
    interactions : Interactions or None
        New ones; None where every feature may follow every other one.
    """

    def __init__(
        self,
        setup: TreeSetup,
        turn: Turn,
        parameters: TreeParameters,
        columns: ColumnSampler | None,
        guard: PurityGuard,
        constrained: Mapping[str, tuple[bool, tuple[int, ...]]] = MappingProxyType({}),
        interactions: Interactions | None = None,
    ) -> None:
        self._setup = setup
        self._courier = setup.courier
        self._parties = setup.parties
        self._turn = turn
        self._binned = setup.binned
        self._parameters = parameters
        self._columns = columns
        self._guard = guard
        self._constrained = constrained
        self._interactions = interactions
        self._n_candidates: list[int] = [0] * (len(setup.parties) - 1)
        self._sides_bound: dict[int, NDArray[np.int8]] = {}
        self._chains: dict[int, tuple[Chain, ...]] = {}
        self._sets: dict[int, list[int]] = {}
        self._picked: dict[int, int] = {}
        self._anonymous: dict[int, int] = {}
        self.partition = RowPartition(np.arange(setup.binned.n_samples, dtype=np.int32))

    def grow(
        self,
        sample: Sample,
        gradients: Gradients,
        groups: Sequence[int],
        round: int,
        then: StepName,
    ) -> TreeStructure:
        """Grow the tree; ``then`` is the step after it."""
        self._then = then
        self._begin(sample, gradients)
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

    def columns_of_others(
        self, sample: Sample, gradients: Gradients, then: StepName
    ) -> dict[str, list[Integers]]:
        """Return by party and column the sums of its groups of rows, missing ones last.

        Each is of shape (n_groups, 2 * n_outputs); missing values that are a group of their own are
        told as the last one, all zero where there is none. ``then`` is the step after it.
        """
        self._begin(sample, gradients)
        (sums,) = self._histograms(True, then)
        total, at = self._grower.sums(0), self._grower.width - sum(self._n_candidates)
        found: dict[str, list[Integers]] = {}
        for k, party in enumerate(self._parties[1:]):
            n, allowed = self._n_candidates[k], self._grower.allowed[0][k]
            own, at = sums[at : at + n], at + n
            if sum(chain.size for chain in self._chains[k + 1]) != n:
                raise OfferRejected(f"{party}: expected sums by column, received some of none")
            found[party] = []
            for chain in self._chains[k + 1]:
                here = slice(chain.start, chain.start + chain.size)
                groups = absent = np.zeros((0, len(total)), np.int64)
                if allowed[here].any():
                    groups, absent = groups_of(chain, own[here], allowed[here], total, k + 1)
                    groups = np.vstack([groups, absent])
                found[party].append(groups)
        return found

    def _begin(self, sample: Sample, gradients: Gradients) -> None:
        """Share the gradients; get ready for the sums of the root."""
        self._gradients = gradients
        self._sampled = np.zeros(self._binned.n_samples, np.int64)
        self._sampled[sample.rows] = 1
        if self._turn.passive:
            self._announce_gradients()
        root = node_sums(self.partition, [0], gradients.searched)[0]
        self._grower = PartyGrower(
            self._setup.cuts, self._parameters, gradients.scale, root, self._columns,
            self._setup.n_threads,
            guard=self._guard, n_candidates=self._n_candidates, sides_bound=self._sides_bound,
            interactions=self._interactions, chains=self._chains,
        )  # fmt: skip

    # --- exchanges ---

    def _announce_gradients(self) -> None:
        """Send encrypted gradients, and which rows they belong to."""
        g, setup = self._gradients, self._setup
        content = TreeGradients(pack_masks([self._sampled.astype(bool)]), g.layout)
        # Zeros up to a size class: the number of ciphertexts must not show the number of rows.
        more = ((0, size_class(len(g.grad)) - len(g.grad)), (0, 0))
        rows = setup.vault.encrypt_gradients(
            setup.session, g.layout, np.pad(g.grad, more), np.pad(g.hess, more)
        )
        whole = set(self._turn.passive) == set(self._parties[1:])
        receivers = (EVERYONE,) if whole else self._turn.passive
        received = self._courier.send(
            GRADIENTS,
            boxes=dict.fromkeys(self._turn.passive, content),
            ciphertexts=dict.fromkeys(receivers, rows),
            then=StepName.HISTOGRAMS,
        )
        for k, party in enumerate(self._parties[1:]):
            if party in self._turn.passive:
                said = received.read(party, CandidateCount)
                self._n_candidates[k] = said.n_candidates
                if self._n_candidates[k] > MAX_DIVISIONS:
                    raise OfferRejected(
                        f"{party}: expected at most {MAX_DIVISIONS} candidates, "
                        f"received {self._n_candidates[k]}"
                    )
                self._take_sides(k + 1, party, said)
                self._take_groups(k + 1, party, said)
                self._take_chains(k + 1, party, said)

    def _take_chains(self, number: int, party: str, said: CandidateCount) -> None:
        """Note which candidates of a party are running sums over categories."""
        if (said.chains or said.missing) and not self._setup.sets:
            raise OfferRejected(f"{party} sent sets of categories, the job divides them in order")
        if len(said.chains) > MAX_CHAINS:
            raise OfferRejected(
                f"{party}: expected at most {MAX_CHAINS} columns of categories, "
                f"received {len(said.chains)}"
            )
        if not all(said.chains) or sum(said.chains) > said.n_candidates:
            raise OfferRejected(f"{party}: expected chains of its candidates, received others")
        (missing,) = unpack_masks(said.missing, [len(said.chains)], party)
        self._chains[number] = chains_of(said.chains, missing.tolist())

    def _take_groups(self, number: int, party: str, said: CandidateCount) -> None:
        """Note which candidates of a party are in which groups of interaction constraints."""
        _, groups = self._constrained.get(party, (False, ()))
        if said.groups and not groups:
            raise OfferRejected(
                f"{party} sent groups of its candidates, the job has none of its features in any"
            )
        if self._interactions is not None:
            n = said.n_candidates
            masks = unpack_masks(said.groups, [n] * len(groups), party)
            self._interactions.note(number, dict(zip(groups, masks, strict=True)), n)

    def _take_sides(self, number: int, party: str, said: CandidateCount) -> None:
        """Note which candidates of a party are under a monotone constraint."""
        monotone, _ = self._constrained.get(party, (False, ()))
        if not monotone:
            if said.no_more or said.no_less:
                raise OfferRejected(
                    f"{party} sent monotone constraints, the job has none of its features"
                )
            return
        n = [said.n_candidates]
        (no_more,), (no_less,) = (unpack_masks(b, n, party) for b in (said.no_more, said.no_less))
        if (no_more & no_less).any():
            raise OfferRejected(f"{party} sent a candidate that is bound both ways")
        self._sides_bound[number] = no_more.astype(np.int8) - no_less.astype(np.int8)

    def _histograms(self, passive: bool, then: StepName = StepName.SPLITS) -> Integers:
        """Return the sums of all requested nodes: own bins, then candidates of each party."""
        grower = self._grower
        g = self._gradients.searched
        nodes, fresh = grower.request, grower.fresh()
        out = np.zeros((len(nodes), grower.width, g.shape[1]), np.int64)
        own = build_histograms(
            self._binned, self.partition, nodes, g, grower.layout, self._setup.n_threads
        )
        out[:, : own.shape[1]] = own
        grower.allowed = {}
        if not passive:
            return out
        received = self._courier.send(HISTOGRAMS, then=then)
        at = own.shape[1]
        masks: dict[int, list[NDArray[np.bool_]]] = {node: [] for node in fresh}
        for k, party in enumerate(self._parties[1:]):
            n = self._n_candidates[k]
            if party not in self._turn.passive:
                for node in fresh:
                    masks[node].append(np.zeros(n, np.bool_))
                continue
            said = received.read(party, CandidateSums)
            out[:, at : at + n] = self._answer(received, party, said, nodes, n)
            at += n
            allowed = unpack_candidates(said.allowed, len(fresh), n, party)
            for node, mask in zip(fresh, allowed, strict=True):
                masks[node].append(mask)
        grower.allowed = masks
        self._label_shares(fresh)
        return out

    def _answer(
        self, received: Delivery, party: str, said: CandidateSums, nodes: Sequence[int], n: int
    ) -> Integers:
        """Decrypt a party's candidates: shape (n_nodes, n, 2 * n_outputs)."""
        n_classes = self._gradients.layout.n_classes
        out = np.zeros((len(nodes), n, 2 * n_classes), np.int64)
        if n == 0:
            return out
        fits = said.sources.shape == (len(nodes), n) and said.sources.itemsize == source_bytes(n)
        if not fits or said.sources.min() < ALL_ROWS or said.sources.max() >= n:
            raise OfferRejected(f"{party} sent no sums for some of its candidates")
        sources = said.sources.astype(np.int64)
        sent = np.maximum(sources.max(axis=1) + 1, 0)
        parts = received.ciphertexts.get(party, ())
        each = [b for b in batches(len(nodes), n, self._setup.most_nodes) if sent[b].any()]
        n_parts = len(parts) // max(len(each), 1)
        grads = [np.empty((0, n_classes), np.int64)]
        hesses = [np.empty((0, n_classes), np.int64)]
        try:
            for b, batch in enumerate(each):
                # Surplus parts go to the last batch, where they are refused.
                end = None if b == len(each) - 1 else (b + 1) * n_parts
                block = parts[b * n_parts : end]
                grad, hess = self._setup.vault.decrypt_histograms(
                    self._setup.session, self._gradients.layout, block, int(sent[batch].sum())
                )
                grads.append(grad.astype(np.int64))
                hesses.append(hess.astype(np.int64))
        except REFUSED as error:
            raise OfferRejected(
                f"{party} sent sums that cannot be used: {public_text(error)}"
            ) from error
        all_grad, all_hess = np.concatenate(grads), np.concatenate(hesses)
        first = np.cumsum([0, *sent])
        for k, node in enumerate(nodes):
            own = sources[k] >= 0
            at = first[k] + sources[k][own]
            out[k, own, 0::2], out[k, own, 1::2] = all_grad[at], all_hess[at]
            out[k, sources[k] == ALL_ROWS] = self._grower.sums(node)
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

    def _divide(self, chosen: Sequence[SplitRequest], passive: bool) -> None:
        """Agree on the rows that go left, and move them."""
        masks = {w.node: self._own_mask(w) for w in chosen if w.owner == 0}
        if passive:
            masks |= self._announce_divisions(chosen, masks)
        left, n_rows, directions = {}, {}, {}
        taken = {w.node: self._grower.division(w.node)[0] for w in chosen if w.owner == 0}
        for w in chosen:
            rows = self.partition.rows(w.node)
            mask = masks[w.node]
            left[w.node] = self._gradients.searched[rows[mask]].sum(axis=0)
            if w.owner:
                taken[w.node], directions[w.node] = self._check(w, left[w.node])
            n_left = int(self._sampled[rows[mask]].sum())
            n_rows[w.node] = (n_left, int(self._sampled[rows].sum()) - n_left)
        splits = self._grower.settle(chosen, left, n_rows, directions)
        if self._interactions is not None:
            for w, child in zip(chosen, splits.left.tolist(), strict=True):
                self._interactions.divide(w.node, child, w.owner, taken[w.node])
        self.partition.split_by_masks(splits, [masks[w.node] for w in chosen])

    def _own_mask(self, w: SplitRequest) -> NDArray[np.bool_]:
        j, last_left, default = self._grower.division(w.node)
        bins = self._binned.column(j)[self.partition.rows(w.node)]
        codes = self._grower.codes_right(w.node)
        if codes is None:
            left = bins.astype(np.int64) <= last_left
        else:
            left = ~np.isin(bins, codes)
            self._sets[w.node] = codes.tolist()
        return np.asarray(np.where(bins == self._binned.n_bins[j], default, left))

    def _announce_divisions(
        self, chosen: Sequence[SplitRequest], own: Mapping[int, NDArray[np.bool_]]
    ) -> dict[int, NDArray[np.bool_]]:
        """Send passive parties what is divided; return the masks of their own nodes."""
        then = self._after(chosen)
        left = pack_masks([own[w.node] for w in chosen if w.owner == 0])
        boxes = {}
        for k, party in enumerate(self._parties[1:], start=1):
            if party in self._turn.passive:
                divisions = tuple(
                    NodeDivision(w.node, w.owner, tuple(w.tied.tolist()), w.sets)
                    if w.owner == k
                    else NodeDivision(w.node, w.owner)
                    for w in chosen
                )
                boxes[party] = LevelDivisions(divisions, left)
        owned = any(w.owner for w in chosen)
        self._courier.send(SPLITS, boxes=boxes, then=StepName.BITMAPS if owned else then)
        if not owned:
            return {}
        received = self._courier.send(BITMAPS, then=then)
        found: dict[int, NDArray[np.bool_]] = {}
        for k, party in enumerate(self._parties[1:], start=1):
            nodes = [w.node for w in chosen if w.owner == k]
            if nodes:
                rows = received.read(party, LeftRows)
                sizes = [len(self.partition.rows(node)) for node in nodes]
                found |= dict(zip(nodes, unpack_masks(rows.left, sizes, party), strict=True))
                if len(rows.features) != len(nodes):
                    raise OfferRejected(
                        f"{party}: expected the features of {len(nodes)} divisions, "
                        f"received {len(rows.features)}"
                    )
                self._anonymous |= dict(zip(nodes, rows.features, strict=True))
                if len(rows.picked) != (len(nodes) if party in self._constrained else 0):
                    raise OfferRejected(
                        f"{party}: expected which candidates it took where its features are "
                        f"constrained, received {len(rows.picked)} of {len(nodes)} divisions"
                    )
                self._picked |= dict(zip(nodes, rows.picked, strict=False))
        return found

    def _after(self, chosen: Sequence[SplitRequest]) -> StepName:
        """Return the step after these divisions, as far as passive parties are concerned."""
        p = self._parameters
        if not chosen:
            return self._then
        limit = self._turn.passive_depth or p.max_depth
        deeper = [w for w in chosen if not limit or self._grower.depth(w.node) + 1 < limit]
        if deeper and not self._grower.is_full:
            return StepName.HISTOGRAMS
        return StepName.SPLITS if self._grower.unfinished else self._then

    def _check(self, w: SplitRequest, left: Integers) -> tuple[int, int]:
        """Refuse a division whose rows do not have the sums that were sent for it.

        Returns
        -------
        candidate : int
        direction : int
            Its monotone constraint: 1 where the left side weighs no more, -1 where it weighs no
            less, 0 for none.
        """
        first = [self._chains[w.owner][own.chain].start for own in w.sets]
        tied, sides = np.append(w.tied, first).astype(np.int64), w.sides
        if (at := self._picked.pop(w.node, None)) is not None:
            if at >= len(tied):
                raise OfferRejected(
                    f"{self._parties[w.owner]} took a candidate that is none of those that tie"
                )
            tied, sides = tied[at : at + 1], sides[at : at + 1]
        is_left = (sides == left).all(axis=1)
        is_right = (sides == self._grower.sums(w.node) - left).all(axis=1)
        if not (is_left | is_right).any():
            raise OfferRejected(
                f"{self._parties[w.owner]} sent rows that do not have the sums it sent before"
            )
        candidate = int(tied[0])
        if w.owner not in self._sides_bound:
            return candidate, 0
        # Sides of the same sums are no division that gains.
        direction = int(self._sides_bound[w.owner][candidate])
        return candidate, direction if is_left[0] else -direction

    def _finish(self, groups: Sequence[int], round: int) -> TreeStructure:
        grower = self._grower
        leaf_sums = node_sums(self.partition, grower.leaves, self._gradients.exact)
        tree = grower.finish(leaf_sums, self._gradients.exact_scale)
        self.values = tree.value
        self.leaves = [int(leaf) for leaf in tree.leaves]
        owner = np.array([grower.owners.get(node, -1) for node in range(tree.n_nodes)], np.int64)
        own, cuts = owner == 0, self._setup.cuts
        thresholds = [
            float(cuts.threshold(int(tree.feature[k]), int(tree.bin[k])))
            if own[k] and k not in self._sets
            else 0.0
            for k in range(tree.n_nodes)
        ]
        return TreeStructure(
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
            sets={str(node): codes for node, codes in sorted(self._sets.items())},
            value=numbers(tree.value),
            gain=numbers(tree.gain),
            cover=numbers(tree.cover),
        )
