"""A silo's own trees: depths, structures, scores, and the tree that it keeps.

All of it stays in the silo; :mod:`hedgerow.boosting.strategies.fedga.silo` says what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.strategies.fedga.evolution import Floats, fitness
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import UNIT
from hedgerow.boosting.streams import Purpose
from hedgerow.boosting.trees.cart import best_depth, cross_validate, fit_structure, grow_cart
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import Genes
from hedgerow.boosting.trees.ranked import RankedTable, rank_table
from hedgerow.boosting.trees.structures import fitness_of

_LARGEST_SCORE = 65535


@dataclass(slots=True, eq=False)
class LocalTrees:
    """A silo's rows, ranked once, and what was found out about them."""

    dataset: Dataset
    parameters: FedGA
    rng: Callable[[Purpose], np.random.Generator]
    """Returns the generator of a purpose, always in the same state."""
    full: bool = True
    """Fit and score on all rows; else fit on one part, score on the other."""
    table: RankedTable = field(init=False)
    _spread: float = field(init=False, default=1.0)
    _validated: Floats | None = field(init=False, default=None)
    _parts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.table = rank_table(self.dataset, self.parameters.categorical_order)
        total = float(self.table.weight.sum())
        if self.table.is_regression and total > 0.0:
            error = self.table.sums[:, 0] ** 2 / np.maximum(self.table.weight, 1e-300)
            self._spread = float(error.sum()) / total

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.table.n_samples

    def _cross_validated(self) -> Floats | None:
        """Return scores by depth and fold; None with too few rows for folds."""
        parameters = self.parameters
        n_folds = min(parameters.folds, 3) if self.n_rows < 50 else parameters.folds
        if self.n_rows < 2 * n_folds:
            return None
        if self._validated is None:
            self._validated = cross_validate(
                self.rng(Purpose.FOLDS), self.table, parameters.depths, n_folds,
                parameters.min_leaf, parameters.metric,
            )  # fmt: skip
        return self._validated

    def own_depth(self) -> int:
        """Return the depth with the best cross-validated score, the least with too few rows."""
        scores = self._cross_validated()
        if scores is None:
            return self.parameters.min_depth
        better = not self.table.is_regression
        return best_depth(scores, self.parameters.depths, higher_is_better=better)

    def depth_vote(self) -> int:
        """Return the vote on the depth; 0, an abstention, where only one class is known."""
        single = not self.table.is_regression and len(np.unique(self.dataset.labels)) < 2
        return 0 if single else self.own_depth()

    def cart(self, depth: int) -> DecisionTree:
        """Return the tree that the silo grows by itself."""
        return grow_cart(self.table, self.table.all_rows, depth, self.parameters.min_leaf)

    def votes(self, depth: int) -> tuple[bool, bool]:
        """Return the votes of a regression: score on all rows, and keep own structures always.

        The first is for tables whose score at the common depth varies little between folds and
        much between depths; the second for labels with many distinct values.
        """
        if not self.table.is_regression:
            return False, False
        limits = self.parameters
        elite = len(np.unique(self.dataset.labels)) / self.n_rows > limits.distinct_limit
        scores = self._cross_validated()
        if scores is None or depth not in limits.depths:
            return False, elite
        noise = variation(scores[limits.depths.index(depth)])
        complexity = float(np.mean([variation(scores[:, k]) for k in range(scores.shape[1])]))
        return noise < limits.noise_limit and complexity > limits.complexity_limit, elite

    def _rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the rows to fit and the rows to score, None for the same ones."""
        held_out = math.floor(self.parameters.validation_share * self.n_rows)
        if self.full or not self.table.is_regression or held_out < 1:
            return self.table.all_rows, None
        if self._parts is None:
            shuffled = self.rng(Purpose.FITTING_ROWS).permutation(self.n_rows)
            self._parts = np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out])
        return self._parts

    def scores(self, structures: Genes) -> Floats:
        """Return each structure's F1 or accuracy, or its squared error over the variance."""
        fit, scored = self._rows()
        own = self.parameters
        found = fitness_of(self.table, structures, fit, scored, own.min_leaf, own.metric)
        if not self.table.is_regression:
            return found
        return found / self._spread if self._spread > 0.0 else np.sign(found)

    def thousandths(self, structures: Genes) -> NDArray[np.uint16]:
        """Return the scores in thousandths, at most 65535.

        Returns
        -------
        ndarray of shape (n_structures,), uint16
        """
        found = np.rint(self.scores(structures) * UNIT)
        return np.clip(found, 0, _LARGEST_SCORE).astype(np.uint16)

    def best_of(self, population: Genes) -> DecisionTree | None:
        """Return the structure that fits these rows best, the first of equals, fitted to them."""
        if not self.n_rows or not population.shape[0]:
            return None
        node_cost, task = self.parameters.cost, self.dataset.schema.task
        best = int(np.argmax(fitness(self.scores(population), population, node_cost, task)))
        rows = self.table.all_rows
        return fit_structure(self.table, population[best], rows, self.parameters.min_leaf)


def variation(values: Floats) -> float:
    """Return the coefficient of variation; infinite for a mean of zero with spread."""
    spread, mean = float(np.std(values)), abs(float(np.mean(values)))
    if mean == 0.0:
        return 0.0 if spread == 0.0 else math.inf
    return spread / mean
