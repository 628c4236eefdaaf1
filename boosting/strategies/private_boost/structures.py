"""Trees whose structure is public: drawn from the job's seed within the declared domain.

Rows are *codes*: of a numeric feature the number of its range's thresholds that a value reaches, of
a categorical one the position in the job's list, and one more for missing values. No code depends
on another row, and no threshold on any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import streams
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.trees.ensemble import Tree

Codes = NDArray[np.uint16]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A complete tree without leaf values; inner nodes by level, the root first."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    """Of a numeric split; 0 of a categorical one."""
    right: NDArray[np.bool_]
    """By node, the codes that go right; the last is that of missing values."""

    def leaves(self, codes: Codes) -> NDArray[np.intp]:
        """Return each row's leaf, counted from the left."""
        rows, at = np.arange(len(codes)), np.zeros(len(codes), np.intp)
        first, n_inner = 0, len(self.feature)
        while first < n_inner:
            level = slice(first, 2 * first + 1)
            if (self.feature[level] == self.feature[first]).all():
                column = codes[:, self.feature[first]]
            else:
                column = codes[rows, self.feature[first + at]]
            same = (self.right[level] == self.right[first]).all()
            goes = self.right[first][column] if same else self.right[first + at, column]
            at = 2 * at + goes
            first = 2 * first + 1
        return at

    def tree(self, schema: Schema, values: NDArray[np.float32], sums: Floats, group: int) -> Tree:
        """Return the tree of XGBoost's form.

        Parameters
        ----------
        values : ndarray of shape (n_leaves,), float32
        sums : ndarray of shape (2, n_leaves)
            Gradients and hessians, as far as they are known.
        group : int
            The output that it adds to.
        """
        n_inner, n_leaves = len(self.feature), len(values)
        n_nodes = n_inner + n_leaves
        inner = np.arange(n_inner, dtype=np.int32)
        left = np.full(n_nodes, -1, np.int32)
        left[:n_inner] = 2 * inner + 1
        whole = np.zeros((2, n_nodes))
        whole[:, n_inner:] = sums
        for node in range(n_inner - 1, -1, -1):
            whole[:, node] = whole[:, 2 * node + 1] + whole[:, 2 * node + 2]
        cover = np.maximum(whole[1], 0.0).astype(np.float32)
        feature = np.zeros(n_nodes, np.int32)
        feature[:n_inner] = self.feature
        threshold = np.concatenate([self.threshold, values]).astype(np.float32)
        default_left = np.zeros(n_nodes, np.bool_)
        default_left[:n_inner] = ~self.right[:, -1]
        categories = tuple(
            (node, np.flatnonzero(self.right[node, :n]).astype(np.int32))
            for node in range(n_inner)
            if (n := schema.n_categories[self.feature[node]])
        )
        nothing = np.zeros(n_nodes, np.float32)
        return Tree(
            left,
            np.where(left < 0, -1, left + 1).astype(np.int32),
            feature,
            threshold,
            default_left,
            nothing,
            cover,
            nothing,
            categories,
            group,
        )


class Domain:
    """What the job declares of the features: thresholds of numbers, lists of categories.

    Parameters
    ----------
    schema : Schema
    columns : ColumnRules
        Has the ranges and lists of levels.
    bins : int
        Uniform bins of a range.

    Raises
    ------
    InvalidJob
        A numeric feature has no range, or a feature that is no number has no list; names them.
    """

    def __init__(self, schema: Schema, columns: ColumnRules, bins: int) -> None:
        ranges, levels = dict(columns.ranges), dict(columns.levels)
        numbers = [f.name for f in schema.features if not f.is_categorical]
        # A column without any value has no type; either declaration will do.
        words = [f.name for f in schema.features if f.categories or f.name not in ranges]
        for key, told, needed in (
            ("ranges", ranges, numbers),
            ("levels", levels, [name for name in words if name not in numbers]),
        ):
            if lacking := [name for name in needed if name not in told]:
                raise InvalidJob(
                    f"[columns.{key}] lacks {', '.join(lacking)}: private_boost takes the domain "
                    "of each feature from the job, never from rows"
                )
        self.schema = schema
        self._edges = [
            None if feature.is_categorical else _edges(ranges[feature.name], bins)
            for feature in schema.features
        ]
        sizes = [
            n if edges is None else len(edges) + 1
            for n, edges in zip(schema.n_categories, self._edges, strict=True)
        ]
        self._missing = max(sizes)
        self._usable = np.flatnonzero(np.array(sizes) > 1)
        if not len(self._usable):
            raise InvalidJob("features: none of them has two values that the job declares")

    def codes(self, X: NDArray[np.float32]) -> Codes:
        """Return each value's code, shape (n_samples, n_features), by columns."""
        out = np.empty(X.shape, np.uint16, order="F")
        for at, edges in enumerate(self._edges):
            column, missing = X[:, at], np.isnan(X[:, at])
            if edges is None:
                found = np.where(missing, 0, column).astype(np.uint16)
            else:
                found = np.searchsorted(edges, column, side="right").astype(np.uint16)
            out[:, at] = np.where(missing, self._missing, found)
        return out

    def structure(
        self, seed: int, number: int, depth: int, *, by_node: bool = False, cyclic: bool = False
    ) -> Structure:
        """Return the tree of a number, the same to all parties.

        Parameters
        ----------
        by_node : bool
            Whether each node has a split of its own; else all nodes of a level have the same.
        cyclic : bool
            Whether the tree is of one feature, features taking turns.
        """
        rng = streams.generator(seed, 0, number, streams.Purpose.STRUCTURES)
        if cyclic:
            return self._of_one_feature(rng, int(self._usable[number % len(self._usable)]), depth)
        feature, threshold, right = [], [], []
        for level in range(depth):
            drawn = [self._split(rng) for _ in range(1 << level if by_node else 1)]
            for node in range(1 << level):
                own = drawn[node if by_node else 0]
                feature.append(own[0])
                threshold.append(own[1])
                right.append(own[2])
        return Structure(
            np.array(feature, np.int32), np.array(threshold, np.float32), np.array(right)
        )

    def _of_one_feature(self, rng: np.random.Generator, feature: int, depth: int) -> Structure:
        """Return a tree whose leaves are intervals of a number, or groups of categories."""
        edges, n_leaves = self._edges[feature], 1 << depth
        n = self.schema.n_categories[feature] if edges is None else len(edges)
        group = np.zeros(self._missing + 1, np.intp)
        if edges is None:
            # The last group is never empty: a split in XGBoost's form sends some category right.
            few = np.append(rng.permutation(n_leaves - 1)[: n - 1], n_leaves - 1)
            group[rng.permutation(n)] = few if n < n_leaves else np.arange(n) * n_leaves // n
            cuts = np.zeros(n_leaves - 1, np.intp)
        else:
            n_cuts = min(n, n_leaves - 1)
            cuts = np.sort(rng.permutation(n)[:n_cuts])
            cuts = np.pad(cuts, (0, n_leaves - 1 - n_cuts), "edge")
            group[: self._missing] = np.searchsorted(cuts, np.arange(self._missing), "left")
        group[-1] = rng.integers(n_leaves)
        # The groups that a node of a level parts, counted from the left.
        middle = np.concatenate(
            [(2 * np.arange(1 << level) + 1) * (n_leaves >> level + 1) for level in range(depth)]
        )
        threshold = (np.zeros(1) if edges is None else edges)[cuts[middle - 1]]
        return Structure(
            np.full(len(middle), feature, np.int32),
            threshold.astype(np.float32),
            group >= middle[:, None],
        )

    def _split(self, rng: np.random.Generator) -> tuple[int, np.float32, NDArray[np.bool_]]:
        feature = int(self._usable[rng.integers(len(self._usable))])
        right = np.zeros(self._missing + 1, np.bool_)
        right[-1] = rng.integers(2)
        edges, threshold = self._edges[feature], np.float32(0)
        if edges is None:
            n = self.schema.n_categories[feature]
            order = rng.permutation(n)
            right[order[: rng.integers(1, n)]] = True
        else:
            cut = int(rng.integers(len(edges)))
            threshold = edges[cut]
            right[cut + 1 : self._missing] = True
        return feature, threshold, right


def _edges(ends: tuple[float, ...], bins: int) -> NDArray[np.float32]:
    """Return the thresholds of a range; a value below one goes left.

    Half of them are ends of uniform bins. The others crowd at the lower end, by the cube of their
    place: amounts and counts have most of their rows there, and a range says nothing of rows.
    """
    least, most = ends
    place = np.arange(1, bins // 2 + bins % 2) / (bins // 2 + bins % 2)
    cubes = np.arange(1, bins // 2) / (bins // 2)
    cuts = least + (most - least) * np.concatenate([place, cubes**3, [0.5]])
    return np.unique(cuts.astype(np.float32))
