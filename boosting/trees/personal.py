"""A silo's own trees: depths, structures, scores, and the tree that it keeps.

Nothing is sent from here; a strategy's package lists what it sends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import Artefact, JobParameters
from hedgerow.boosting.trees.decision_tree import (
    DecisionTree,
    best_depth,
    cross_validate,
    fit_structure,
    grow_cart,
)
from hedgerow.boosting.trees.ensemble import blank
from hedgerow.boosting.trees.genetics import Genes, decision_nodes
from hedgerow.boosting.trees.ranked import RankedTable, rank_table
from hedgerow.boosting.trees.structures import fitness_of

UNIT = 1000
"""Scores are rounded to thousandths."""

SMALLEST = 0.5 / UNIT
"""Errors below count as equal."""

OBJECTIVES = {
    Task.BINARY: "binary:logistic",
    Task.MULTICLASS: "multi:softprob",
    Task.REGRESSION: "reg:squarederror",
}
"""Objectives of exported trees, which are not boosted: predictions are the trees' votes."""

_LARGEST_SCORE = 65535


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How a silo fits and scores trees; fields as in the ``[fedga]`` table of a job."""

    min_depth: int
    max_depth: int
    folds: int
    min_leaf: int
    categorical_order: str
    validation_share: float
    noise_limit: float
    complexity_limit: float
    distinct_limit: float
    node_cost: float = 0.0

    @property
    def depths(self) -> range:
        """Depths tried in cross-validation."""
        return range(self.min_depth, self.max_depth + 1)


@dataclass(slots=True, eq=False)
class LocalTrees:
    """A silo's rows, ranked once, and results that are computed once.

    Parameters
    ----------
    dataset : Dataset
    settings : TreeSettings
    rng : callable
        Returns the generator of a purpose, ``"folds"`` or ``"split"``, always in the same state.
    full : bool
        Fit and score on all rows; else fit on one part, score on the other.
    """

    dataset: Dataset
    settings: TreeSettings
    rng: Callable[[str], np.random.Generator]
    full: bool = True
    table: RankedTable = field(init=False)
    _spread: float = field(init=False, default=1.0)
    _validated: NDArray[np.float64] | None = field(init=False, default=None)
    _parts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.table = rank_table(self.dataset, self.settings.categorical_order)
        total = float(self.table.weight.sum())
        if self.table.is_regression and total > 0.0:
            error = self.table.sums[:, 0] ** 2 / np.maximum(self.table.weight, 1e-300)
            self._spread = float(error.sum()) / total

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.table.n_samples

    def _cross_validated(self) -> NDArray[np.float64] | None:
        """Return scores by depth and fold; None with too few rows for folds."""
        settings = self.settings
        n_folds = min(settings.folds, 3) if self.n_rows < 50 else settings.folds
        if self.n_rows < 2 * n_folds:
            return None
        if self._validated is None:
            self._validated = cross_validate(
                self.rng("folds"), self.table, settings.depths, n_folds, settings.min_leaf
            )
        return self._validated

    def own_depth(self) -> int:
        """Return the depth with the best cross-validated score, the least with too few rows."""
        scores = self._cross_validated()
        if scores is None:
            return self.settings.min_depth
        return best_depth(
            scores, self.settings.depths, higher_is_better=not self.table.is_regression
        )

    def depth_vote(self) -> int:
        """Return the vote on the depth; 0, an abstention, where only one class is known."""
        single = not self.table.is_regression and len(np.unique(self.dataset.labels)) < 2
        return 0 if single else self.own_depth()

    def cart(self, depth: int) -> DecisionTree:
        """Return the tree that CART grows on the silo's rows."""
        return grow_cart(self.table, self.table.all_rows, depth, self.settings.min_leaf)

    def votes(self, depth: int) -> tuple[bool, bool]:
        """Return the votes of a regression: score on all rows, and never lose own structures.

        The first is for tables whose score at the common depth varies little between folds and
        much between depths; the second for labels with many distinct values.
        """
        if not self.table.is_regression:
            return False, False
        settings = self.settings
        elite = len(np.unique(self.dataset.labels)) / self.n_rows > settings.distinct_limit
        scores = self._cross_validated()
        if scores is None or depth not in settings.depths:
            return False, elite
        noise = variation(scores[settings.depths.index(depth)])
        complexity = float(np.mean([variation(scores[:, k]) for k in range(scores.shape[1])]))
        return noise < settings.noise_limit and complexity > settings.complexity_limit, elite

    def _rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the rows to fit and the rows to score, None for the same ones."""
        held_out = math.floor(self.settings.validation_share * self.n_rows)
        if self.full or not self.table.is_regression or held_out < 1:
            return self.table.all_rows, None
        if self._parts is None:
            shuffled = self.rng("split").permutation(self.n_rows)
            self._parts = np.sort(shuffled[held_out:]), np.sort(shuffled[:held_out])
        return self._parts

    def fitness(self, structures: Genes) -> NDArray[np.float64]:
        """Return F1, or the mean squared error, of each structure on this silo's rows."""
        fit, scored = self._rows()
        return fitness_of(self.table, structures, fit, scored, self.settings.min_leaf)

    def worth(self, structures: Genes) -> NDArray[np.float64]:
        """Return how well each structure fits these rows, less the cost of its nodes.

        Returns
        -------
        ndarray of shape (n_structures,), float64
            F1, or minus the logarithm of the mean squared error over the label variance, less
            ``node_cost`` a node.
        """
        found = self.fitness(structures)
        if self.table.is_regression:
            found = -np.log(np.maximum(self._relative(found), SMALLEST))
        return found - self.settings.node_cost * decision_nodes(structures)

    def _relative(self, error: NDArray[np.float64]) -> NDArray[np.float64]:
        return error / self._spread if self._spread > 0.0 else np.sign(error)

    def thousandths(self, structures: Genes) -> NDArray[np.uint16]:
        """Return rounded scores: F1, or the mean squared error over the label variance.

        Returns
        -------
        ndarray of shape (n_structures,), uint16
            In thousandths, 65535 at most.
        """
        if not structures.shape[0]:
            return np.empty(0, dtype=np.uint16)
        found = self.fitness(structures)
        if self.table.is_regression:
            found = self._relative(found)
        return np.clip(np.rint(found * UNIT), 0, _LARGEST_SCORE).astype(np.uint16)

    def best_of(self, population: Genes) -> DecisionTree | None:
        """Return the structure that fits these rows best, the first of equals, fitted to them."""
        if not self.n_rows or not population.shape[0]:
            return None
        best = int(np.argmax(self.worth(population)))
        rows = self.table.all_rows
        return fit_structure(self.table, population[best], rows, self.settings.min_leaf)


def variation(values: NDArray[np.float64]) -> float:
    """Return the coefficient of variation; infinite for a mean of zero with spread."""
    spread, mean = float(np.std(values)), abs(float(np.mean(values)))
    if mean == 0.0:
        return 0.0 if spread == 0.0 else math.inf
    return spread / mean


def tree_files(tree: DecisionTree, job: JobParameters) -> Artefact:
    """Return a tree's files: stock XGBoost model, drawing, graph, plain values."""
    # Base scores that make a margin of 0 before the tree.
    base = 0.5 if job.task is Task.BINARY else 0.0
    header = blank(tree.schema, OBJECTIVES[job.task], Booster(), base)
    model = header.extend(tree.trees(), n_steps=1)
    return Artefact(
        {
            "model.ubj": model.save(),
            "tree.txt": tree.draw().encode(),
            "tree.dot": tree.graph().encode(),
            "tree.json": (json.dumps(tree.document(), indent=1) + "\n").encode(),
        },
        "model.ubj",
    )
