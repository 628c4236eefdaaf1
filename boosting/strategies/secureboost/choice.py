"""The active party's tree: its own candidates beside anonymous ones of other parties.

A node's histogram is the party's own bins, then for each passive party the sums of its candidates.
A candidate's sums are those of one side of a division; the active party learns which side only when
it is chosen, since the gain is the same. All sums are integers, so siblings follow by subtraction.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import ColumnSampler, Grower
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import (
    MIN_GAIN,
    Scale,
    TreeParameters,
    gains_of_candidates,
    gains_under_constraints,
)
from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.strategies.secureboost.category_sets import Chain, divisions
from hedgerow.boosting.strategies.secureboost.interactions import Interactions
from hedgerow.boosting.strategies.secureboost.steps import CategorySet

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PurityGuard:
    """Rules out divisions that separate rows of mostly one label.

    The label share of a side is estimated from its sums: exactly where all rows of the node have
    the same margin, as in the first tree.
    """

    most: float
    """Largest share of one label; 1 rules nothing out."""
    positive: float = 1.0
    """``scale_pos_weight``: a share is of rows (and of their weights, where they have any)."""

    def allows(
        self, sides: Integers, totals: Integers, share: float, rows: float
    ) -> NDArray[np.bool_]:
        """Return which candidates may be chosen.

        Parameters
        ----------
        sides : ndarray of shape (n_candidates, 2), int64
        totals : ndarray of shape (2,), int64
        share : float
            Share of label 1 in the node's weight, ``positive`` included.
        rows : float
            Weight of the node's rows, in units of the sums of g.
        """
        ok = np.ones(sides.shape[0], np.bool_)
        if self.most >= 1 or rows <= 0 or totals[1] <= 0:
            return ok
        for part in (sides, totals - sides):
            size = rows * part[:, 1] / float(totals[1])
            with np.errstate(divide="ignore", invalid="ignore"):
                estimate = share + float(totals[0]) / rows - part[:, 0] / size
            ok &= (estimate <= self._weighed(self.most)) | (size <= 0)
            ok &= (estimate >= self._weighed(1 - self.most)) | (size <= 0)
        return ok

    def _weighed(self, share: float) -> float:
        """Return the share of weight of label 1 that this share of rows has."""
        return self.positive * share / (self.positive * share + 1 - share)


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """A node to be divided: by its own party (0), or by the passive party of that number.

    ``tied`` are the candidates of the greatest gain, ``sides`` their sums; their owner takes the
    first in its order. ``sets`` are its divisions of categories with this gain; the last of
    ``sides`` are theirs, of the rows that go left.
    """

    node: int
    owner: int
    tied: NDArray[np.int32]
    sides: Integers
    sets: tuple[CategorySet, ...] = ()


class PartyGrower(Grower):
    """Decides the splits of one tree over all parties' candidates.

    Parameters
    ----------
    own : bool
        Whether the active party's own features may be used.
    n_candidates : sequence of int
        Of each passive party.
    sides_bound : Mapping[int, ndarray of shape (n_candidates,), int8]
        By number of a passive party under monotone constraints: 1 where the side that a candidate's
        sums are of must weigh no more than the other one, -1 where no less, else 0.
    interactions : Interactions or None
        None where every feature may follow every other one.
    chains : Mapping
        By number of a passive party: its columns of categories that are divided into sets.
    """

    def __init__(
        self,
        cuts: Cuts,
        parameters: TreeParameters,
        scale: Scale,
        totals: Integers,
        columns: ColumnSampler | None,
        n_threads: int,
        *,
        guard: PurityGuard,
        n_candidates: Sequence[int] = (),
        sides_bound: Mapping[int, NDArray[np.int8]] | None = None,
        interactions: Interactions | None = None,
        chains: Mapping[int, tuple[Chain, ...]] | None = None,
    ) -> None:
        super().__init__(cuts, parameters, scale, totals, columns, n_threads)
        edges = np.cumsum([self.layout.n_bins, *n_candidates])
        self._edges = [int(e) for e in edges]
        self._n_own = cuts.n_features
        self._guard = guard
        self._sides_bound = sides_bound or {}
        self._interactions = interactions
        self._chains = chains or {}
        self._directions: Mapping[int, int] = {}
        self._wanted: dict[int, SplitRequest] = {}
        self.own_features = True
        self.allowed: dict[int, list[NDArray[np.bool_]]] = {}
        self.labels: dict[int, tuple[float, float]] = {}
        self.owners: dict[int, int] = {}

    @property
    def width(self) -> int:
        """Entries of a node's histogram."""
        return self._edges[-1]

    def depth(self, node: int) -> int:
        """Return a node's depth."""
        return self._nodes[node].depth

    def division(self, node: int) -> tuple[int, int, bool]:
        """Return feature, last left bin and default of an own division that was chosen."""
        found, position = self._found[node]
        return (
            int(found.feature[position]),
            int(found.bin[position]),
            bool(found.default_left[position]),
        )

    def codes_right(self, node: int) -> NDArray[np.int32] | None:
        """Return the codes that an own division of categories sends right; None for a number."""
        found, position = self._found[node]
        return found.categories[position]

    @property
    def is_full(self) -> bool:
        """Whether the tree has as many leaves as it may."""
        return self._full

    def fresh(self) -> list[int]:
        """Return the nodes that the next histograms decide on: those requested and siblings."""
        nodes = set(self.request)
        for node in self.request:
            if node:
                nodes.add(node + 1 if node % 2 else node - 1)
        return sorted(nodes)

    def choose(self, histograms: Integers | None) -> list[SplitRequest]:
        """Take the histograms of :attr:`request`, if any, and return the nodes to be divided."""
        if histograms is not None:
            self._evaluate(self._with_siblings(histograms))
        return [self._wanted[node] for node in self._choose()]

    def settle(
        self,
        wanted: Sequence[SplitRequest],
        left: Mapping[int, Integers],
        n_rows: Mapping[int, tuple[int, int]],
        directions: Mapping[int, int],
    ) -> Splits:
        """Divide nodes, once it is known which rows go left.

        Parameters
        ----------
        left : Mapping[int, ndarray]
            Sums of the rows that go left, by node.
        n_rows : Mapping[int, (int, int)]
            Sampled rows on either side; the child with fewer is asked for.
        directions : Mapping[int, int]
            Monotone constraint of the division, of nodes that a passive party divides.
        """
        chosen = [w.node for w in wanted]
        for w in wanted:
            found, position = self._found[w.node]
            found.left[position] = left[w.node]
            self.owners[w.node] = w.owner
        self._directions = directions
        self._open_children(chosen)
        deepest = self._parameters.max_depth
        request = []
        for node in chosen:
            child = self._nodes[node].left
            if not (self._full or (deepest and self._nodes[child].depth >= deepest)):
                few_right = n_rows[node][1] < n_rows[node][0]
                request.append(child + 1 if few_right else child)
        self.request = tuple(request)
        return self._splits(chosen)

    @property
    def unfinished(self) -> bool:
        """Whether nodes wait that need no histogram."""
        return bool(self._open) and not self._full

    def _check(self, histograms: dict[int, Integers]) -> None:
        """Raise SumCorrupt if rows cannot have them.

        Those of a passive party's candidates are over one side each, so none is above the node's;
        where a candidate is ruled out, its sum need not be the node's own.
        """
        own = self._edges[0]
        super()._check({node: each[:own] for node, each in histograms.items()})
        for node, histogram in histograms.items():
            total = self._nodes[node].sums
            for party, mask in enumerate(self.allowed.get(node, ()), start=1):
                hess = histogram[self._edges[party - 1] : self._edges[party], 1::2][mask]
                if (hess < 0).any() or (hess > total[1::2]).any():
                    raise SumCorrupt(
                        f"passive party {party}: expected sums over some of a node's rows, "
                        "received some that are above the node's, or below nothing"
                    )

    def _evaluate(self, nodes: list[int]) -> None:
        found = self._candidates(nodes)
        for position, node in enumerate(nodes):
            gain = np.float32(found.gain[position])
            wanted = SplitRequest(
                node, 0, np.empty(0, np.int32), found.left[position : position + 1]
            )
            if found.feature[position] < 0 or not self.own_features:
                gain = np.float32(0.0)
            for party, mask in enumerate(self.allowed.get(node, ()), start=1):
                best, ways = self._best_of(node, party, mask)
                if best > gain:
                    gain, wanted = best, ways
            if gain <= MIN_GAIN or gain < self._parameters.gamma:
                del self._histograms[node]
                continue
            if wanted.owner:
                found.gain[position] = gain
                found.feature[position] = self._n_own + wanted.owner - 1
                found.bin[position] = 0
                found.default_left[position] = False
            self._found[node] = (found, position)
            self._wanted[node] = wanted
            key = -float(gain) if self._parameters.loss_guided else 0.0
            heapq.heappush(self._open, (key, node))

    def _allowed(self, nodes: list[int]) -> NDArray[np.bool_] | None:
        allowed = super()._allowed(nodes)
        if self._interactions is None:
            return allowed
        may = np.stack([self._interactions.allowed(node, 0) for node in nodes])
        may = may[:, self.layout.features]
        return may if allowed is None else allowed & may

    def _direction(self, node: int, feature: int) -> int:
        if feature < self._n_own:
            return super()._direction(node, feature)
        return self._directions[node]

    def _best_of(
        self, node: int, party: int, mask: NDArray[np.bool_]
    ) -> tuple[np.float32, SplitRequest]:
        """Return the greatest gain of a passive party's candidates, and which have it."""
        sums = self._histograms[node][self._edges[party - 1] : self._edges[party]]
        chains = self._chains.get(party, ())
        first = sum(chain.size for chain in chains)
        at, sides, sets = [np.arange(first, len(sums))], [sums[first:]], []
        for chain in chains:
            span = slice(chain.start, chain.start + chain.size)
            left, own = divisions(
                chain, sums[span], mask[span], self._nodes[node].sums, self._parameters,
                self._scale, party,
            )  # fmt: skip
            at.append(np.full(len(left), chain.start))
            sides.append(left)
            sets.append(own)
        candidates = np.concatenate(at)
        gains = self._gains(node, party, np.concatenate(sides), candidates, mask)
        best = np.float32(gains.max(initial=-np.inf))
        n = len(sums) - first
        tied = np.flatnonzero(gains[:n] == best)
        chosen, picked = [sums[first:][tied]], []
        for own, left in zip(sets, sides[1:], strict=True):
            ties = np.flatnonzero(gains[n : n + len(left)] == best)[:1]
            picked += [own[int(k)] for k in ties]
            chosen.append(left[ties])
            n += len(left)
        return best, SplitRequest(
            node, party, (first + tied).astype(np.int32), np.concatenate(chosen), tuple(picked)
        )

    def _gains(
        self, node: int, party: int, sides: Integers, at: Integers, mask: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Return the gains of divisions with these sums on a side, of the candidates ``at``."""
        totals, bounds = self._nodes[node].sums, self._tree.bounds([node])
        if bounds is None:
            gains = gains_of_candidates(
                np.ascontiguousarray(sides), totals, self._parameters, self._scale
            )
        else:
            bound = self._sides_bound.get(party, np.zeros(len(mask), np.int8))[at]
            gains = gains_under_constraints(
                sides, totals, self._parameters, self._scale, bound, bounds
            )
        first = sum(chain.size for chain in self._chains.get(party, ()))
        ok = mask[at] | (at < first)  # of a chain's divisions, all are of allowed candidates
        if self._interactions is not None and len(sides):
            ok = ok & self._interactions.allowed(node, party)[at]
        if node in self.labels and totals.shape[0] == 2:
            ok = ok & self._guard.allows(sides, totals, *self.labels[node])
        return np.where(ok & (gains < np.inf), gains, np.float32(-np.inf)).astype(np.float32)
