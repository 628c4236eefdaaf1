"""Scores and explanations from direction bits: one answer of each party to each row.

A party's *directions* of a row are one bit for each of its divisions, in the order of trees and
nodes: whether the row goes left there. With the directions of all parties the active party walks
every tree itself, so that a row takes one exchange, however deep the trees are. With the covers of
the nodes they also give the exact Shapley values of the trees (path-dependent), for they say where
a row would go at every node and not only where it went.

References
----------
S. Lundberg et al., From local explanations to global understanding with explainable AI for trees,
2020 (algorithm 2; here leaf by leaf over all features of a path).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.divisions import Bits
from hedgerow.boosting.strategies.secureboost.model import ActivePart, TreeStructure
from hedgerow.crypto.native.kernels import kernel

Player = tuple[str, int]
"""Party and feature; of another party than the active one, its anonymous number, or
:data:`~.model.WHOLE` for what the party's features together do in trees kept by their leaves."""


def packed(directions: Bits) -> bytes:
    """Return directions eight to a byte, most significant first, each row from a new byte."""
    return np.packbits(directions, axis=1).tobytes()


def unpacked(data: bytes, n_rows: int, n_divisions: int, sender: str) -> Bits:
    """Return the directions of :func:`packed`.

    Raises
    ------
    OfferRejected
        They do not have this shape; names the sender.
    """
    row_bytes = -(-n_divisions // 8)
    if len(data) != n_rows * row_bytes:
        raise OfferRejected(
            f"{sender}: expected directions of {n_rows} rows in {n_rows * row_bytes} bytes, "
            f"received {len(data)}"
        )
    rows = np.frombuffer(data, np.uint8).reshape(n_rows, row_bytes)
    return np.unpackbits(rows, axis=1, count=n_divisions).astype(np.bool_)


@dataclass(frozen=True, slots=True)
class ActiveTrees:
    """The active party's trees, flat: all nodes one after the other."""

    base_margin: float
    parties: tuple[str, ...]
    n_divisions: tuple[int, ...]
    roots: NDArray[np.int32]
    """Of shape (n_trees,), int32."""
    left: NDArray[np.int32]
    """Of shape (n_nodes,), int32. The left child, -1 at leaves; the right one is the next."""
    bit: NDArray[np.int32]
    """Of shape (n_nodes,), int32. Column of the node's direction; 0 at leaves."""
    value: NDArray[np.float32]
    """Of shape (n_nodes, n_outputs), float32."""
    fraction: NDArray[np.float64]
    """Of shape (n_nodes,), float64. A node's share of its parent's cover."""
    player: NDArray[np.int32]
    """Of shape (n_directions,), int32. Which feature divides, by column of directions."""
    players: tuple[Player, ...]

    @classmethod
    def of(cls, part: ActivePart, *, own: bool = False) -> ActiveTrees:
        """Return the trees that score.

        Parameters
        ----------
        own : bool
            Only the leading trees that no other party divides.

        Raises
        ------
        DataError
            ``own`` and there is no such tree.
        """
        trees = part.used_trees
        if own:
            shared = (k for k, tree in enumerate(trees) if max(tree.owner) > 0)
            trees = trees[: next(shared, len(trees))]
            if not trees:
                raise DataError(
                    "the model has no trees of the active party alone: train with complete_secure"
                )
        divided: list[list[tuple[int, int, int]]] = [[] for _ in part.parties]
        starts = np.cumsum([0, *(len(tree.left) for tree in trees)])
        for start, tree in zip(starts, trees, strict=False):
            for node, owner in enumerate(tree.owner):
                if owner >= 0:
                    divided[owner].append((int(start) + node, owner, tree.feature[node]))
        ordered = [division for own_ones in divided for division in own_ones]
        known = sorted({(owner, feature) for _, owner, feature in ordered})
        place = {key: k for k, key in enumerate(known)}
        bit = np.zeros(starts[-1], np.int32)
        for column, (node, _, _) in enumerate(ordered):
            bit[node] = column
        left = [np.array(tree.left, np.int32) for tree in trees]
        left = [
            np.where(own < 0, -1, own + start).astype(np.int32)
            for own, start in zip(left, starts, strict=False)
        ]
        empty = np.zeros((0, part.n_outputs), np.float32)
        return cls(
            base_margin=part.base_margin,
            parties=tuple(part.parties[1:]),
            n_divisions=tuple(map(len, divided)),
            roots=starts[:-1].astype(np.int32),
            left=np.concatenate([np.zeros(0, np.int32), *left]),
            bit=bit,
            value=np.concatenate([empty, *(_values(part, tree) for tree in trees)]),
            fraction=np.concatenate([np.zeros(0), *map(_fractions, trees)]),
            player=np.array([place[owner, feature] for _, owner, feature in ordered], np.int32),
            players=tuple((part.parties[owner], feature) for owner, feature in known),
        )

    def joined(self, own: Bits, others: Mapping[str, Bits]) -> Bits:
        """Return the directions of all parties side by side.

        Parameters
        ----------
        own : ndarray of shape (n_rows, n_divisions), bool
            The active party's.
        others : Mapping
            By passive party; one that divides nothing may be left out.

        Raises
        ------
        OfferRejected
            A party has another number of divisions than the active party knows of.
        """
        found = [own]
        for party, n_divisions in zip(self.parties, self.n_divisions[1:], strict=True):
            bits = others.get(party, np.zeros((len(own), 0), np.bool_))
            if bits.shape != (len(own), n_divisions):
                raise OfferRejected(
                    f"{party}: expected {n_divisions} directions of {len(own)} rows, received "
                    f"{bits.shape[1]} of {bits.shape[0]}"
                )
            found.append(bits)
        return np.concatenate(found, axis=1)

    def margins(
        self, directions: Bits, start: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return margins, leaf values added tree by tree in float32 as in training.

        Parameters
        ----------
        start : ndarray of shape (n_rows, n_outputs), float32, optional
            Base margins of the rows, where the model was trained from some.

        Returns
        -------
        ndarray of shape (n_rows, n_outputs)
        """
        out = np.full((len(directions), self.value.shape[1]), self.base_margin, np.float32)
        if start is not None:
            out += start
        _walk(np.ascontiguousarray(directions), self.roots, self.left, self.bit, self.value, out)
        return out

    def contributions(
        self, directions: Bits, start: NDArray[np.float32] | None = None
    ) -> NDArray[np.float64]:
        """Return what each feature adds to the margin of each row, and the bias as last column.

        Exact Shapley values of the path-dependent value function, in which a feature that is
        not known sends a row both ways by the nodes' covers. A row's values sum to its margin.

        Returns
        -------
        ndarray of shape (n_rows, n_outputs, n_players + 1), float64
            Columns in the order of ``players``.
        """
        paths = self._paths()
        shape = (len(directions), self.value.shape[1], len(self.players) + 1)
        out = np.zeros(shape)
        _attribute(np.ascontiguousarray(directions), *paths, out)
        out[:, :, -1] += self.base_margin if start is None else self.base_margin + start
        return out

    def _paths(self) -> tuple[NDArray[np.generic], ...]:
        """Return the leaves, and by leaf the nodes above it and the features that these divide.

        Of each node: column of its direction, which direction leads to the leaf, and which of the
        leaf's features divides. Of each feature: its player, and the product of fractions.
        """
        steps: list[tuple[int, bool, int]] = []
        slots: list[tuple[int, float]] = []
        step_ends, slot_ends, leaves = [0], [0], []
        paths: list[tuple[int, tuple[tuple[int, bool, float], ...]]]
        paths = [(int(root), ()) for root in self.roots]
        while paths:
            node, above = paths.pop()
            left = int(self.left[node])
            if left >= 0:
                column = int(self.bit[node])
                for child, goes_left in ((left + 1, False), (left, True)):
                    step = (column, goes_left, float(self.fraction[child]))
                    paths.append((child, (*above, step)))
                continue
            here: dict[int, int] = {}
            fractions: list[float] = []
            for column, goes_left, fraction in above:
                slot = here.setdefault(int(self.player[column]), len(here))
                if slot == len(fractions):
                    fractions.append(1.0)
                fractions[slot] *= fraction
                steps.append((column, goes_left, slot))
            slots += zip(here, fractions, strict=True)
            step_ends.append(len(steps))
            slot_ends.append(len(slots))
            leaves.append(node)
        columns = np.array(steps, np.int64).reshape(-1, 3)
        return (
            np.array(step_ends, np.int64),
            np.ascontiguousarray(columns[:, 0]),
            columns[:, 1].astype(np.bool_),
            np.ascontiguousarray(columns[:, 2]),
            np.array(slot_ends, np.int64),
            np.array([player for player, _ in slots], np.int64),
            np.array([fraction for _, fraction in slots], np.float64),
            self.value[leaves].astype(np.float64),
        )


def by_party(
    contributions: NDArray[np.float64], players: Sequence[Player]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return contributions summed by party, the bias as last column, and the parties."""
    parties = tuple(dict.fromkeys(party for party, _ in players))
    of = np.array([parties.index(party) for party, _ in players], np.intp)
    shape = (*contributions.shape[:-1], len(parties) + 1)
    out = np.zeros(shape)
    np.add.at(np.moveaxis(out, -1, 0), of, np.moveaxis(contributions[..., :-1], -1, 0))
    out[..., -1] = contributions[..., -1]
    return out, parties


def _values(part: ActivePart, tree: TreeStructure) -> NDArray[np.float32]:
    values = np.zeros((len(tree.left), part.n_outputs), np.float32)
    values[:, tree.groups] = np.array(tree.value, np.float32)
    return values


def _fractions(tree: TreeStructure) -> NDArray[np.float64]:
    """Return each node's share of its parent's cover; covers add up from the leaves."""
    cover = np.array(tree.cover, np.float64)
    fraction = np.ones(len(cover))
    for node in range(len(cover) - 1, -1, -1):
        left = tree.left[node]
        if left >= 0:
            cover[node] = cover[left] + cover[left + 1]
            for child in (left, left + 1):
                fraction[child] = cover[child] / cover[node] if cover[node] > 0.0 else 0.5
    return fraction


@kernel("boosting/trees", "walk_directions")
def _walk(directions, roots, left, bit, value, out):
    for row in range(directions.shape[0]):
        for tree in range(roots.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                node = left[node] + (0 if directions[row, bit[node]] else 1)
            for k in range(out.shape[1]):
                out[row, k] += value[node, k]


@kernel("boosting/trees", "attribute")
def _attribute(directions, step_ends, column, way, slot, slot_ends, player, zero, value, out):
    """Add every leaf's part.

    Of a leaf with d features, z the share of rows that a feature would send there and o whether it
    sends this one, feature j gets value * (o_j - z_j) * sum over k of k! (d-1-k)! / d! times the
    coefficient of t^k in the product of (z_i + o_i t) over the other features.
    """
    bias = out.shape[2] - 1
    n_most = 0
    for leaf in range(value.shape[0]):
        n_most = max(n_most, slot_ends[leaf + 1] - slot_ends[leaf])
    one = np.empty(n_most, np.bool_)
    poly = np.empty(n_most + 1)
    rest = np.empty(n_most + 1)
    for row in range(directions.shape[0]):
        for leaf in range(value.shape[0]):
            first = slot_ends[leaf]
            d = slot_ends[leaf + 1] - first
            one[:d] = True
            for k in range(step_ends[leaf], step_ends[leaf + 1]):
                if directions[row, column[k]] != way[k]:
                    one[slot[k]] = False
            everyone = 1.0
            degree = 0
            poly[0] = 1.0
            for j in range(d):
                z = zero[first + j]
                everyone *= z
                if one[j]:
                    degree += 1
                    poly[degree] = poly[degree - 1]
                    for k in range(degree - 1, 0, -1):
                        poly[k] = poly[k - 1] + z * poly[k]
                    poly[0] *= z
            for c in range(out.shape[1]):
                out[row, c, bias] += value[leaf, c] * everyone
            for j in range(d):
                z = zero[first + j]
                others = 1.0
                for i in range(d):
                    if not one[i] and i != j:
                        others *= zero[first + i]
                if others == 0.0:
                    continue
                n = degree
                if one[j]:
                    n = degree - 1
                    rest[n] = poly[degree]
                    for k in range(n - 1, -1, -1):
                        rest[k] = poly[k + 1] - z * rest[k + 1]
                else:
                    rest[: n + 1] = poly[: n + 1]
                weight, total = 1.0 / d, 0.0  # 0! (d-1)! / d!
                for k in range(n + 1):
                    total += rest[k] * weight
                    if k < d - 1:
                        weight *= (k + 1.0) / (d - 1.0 - k)
                part = total * others * ((1.0 if one[j] else 0.0) - z)
                for c in range(out.shape[1]):
                    out[row, c, player[first + j]] += value[leaf, c] * part
