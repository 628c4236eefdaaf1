"""Parameters of FedGA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import (
    OneOf,
    Within,
    check_declared,
    follows,
    one_of,
    only_with,
    within,
)
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.trees.decision_tree import OBJECTIVES
from hedgerow.boosting.trees.genetics import MAX_DEPTH, Operators
from hedgerow.boosting.trees.ranked import CATEGORICAL_ORDERS
from hedgerow.boosting.trees.structures import CLASS_SCORES

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters


@dataclass(frozen=True, slots=True)
class FedGA:
    """The ``[fedga]`` table of a job; the proto says what those without a text are."""

    name: ClassVar[str] = "fedga"

    generations: Annotated[int, Within(1, 1000)] = 40
    population: Annotated[int, Within(4, 1000)] = 60
    min_depth: Annotated[int, Within(1, MAX_DEPTH)] = 2
    """Depths tried in cross-validation."""
    max_depth: int = 6
    """Depths tried in cross-validation."""
    folds: Annotated[int, Within(2, 20)] = 5
    """At most 3 are used below 50 rows."""
    tournament: Annotated[int, Within(1, 100)] = 3
    crossover_rate: Annotated[float, Within(0, 1)] = 0.8
    mutation_rate: Annotated[float, Within(0, 1)] = 0.3
    flip_share: Annotated[float, Within(1e-9, 1)] = 0.1
    swap_share: Annotated[float, Within(1e-9, 1)] = 0.1
    leaf_share: Annotated[float, Within(0, 0.9)] = 0.2
    """Share of leaves in random structures."""
    epsilon_rows: Annotated[float, Within(1e-4, math.inf)] = 1.0
    """Budget of the row count's noise. It covers nothing else."""
    validation_share: Annotated[float, Within(0.05, 0.95)] = 0.3
    """Share of rows that score instead of fit, in regressions whose silos do not vote for all
    rows."""
    noise_limit: Annotated[float, Within(0, math.inf)] = 0.15
    complexity_limit: Annotated[float, Within(0, math.inf)] = 0.05
    distinct_limit: Annotated[float, Within(0, 1)] = 0.9
    participation: Annotated[float, Within(1e-9, 1)] = 1.0
    """Share of silos drawn for each generation."""
    patience: Annotated[int, Within(0, math.inf)] = 15
    """Generations without a better best structure that end the search; 0 is never."""
    min_leaf: Annotated[int, Within(1, math.inf)] = 1
    """Least number of rows on either side of a split."""
    rescore_parents: bool = False
    """Score parents again with each brood, on that generation's active silos."""
    categorical_order: Annotated[str, OneOf(CATEGORICAL_ORDERS)] = "target"
    node_cost: Annotated[float, Within(0, 1)] = 0.002
    """Least improvement by a decision node, in ``metric`` or as a share of the mean squared error;
    in the search, and when a silo chooses among the finalists."""
    finalists: Annotated[int, Within(1, 1000)] = 10
    """Fittest structures of the last population, of which each silo chooses one. From all of the
    population a silo would choose one that fits its rows by chance."""
    metric: Annotated[str, OneOf(CLASS_SCORES)] = "f1"
    """What is searched for, of classes: F1 of class 1 of two and the mean of more, or accuracy."""
    paper: bool = False
    """Search as the paper does: decision nodes cost nothing, and each silo chooses from all of the
    last population."""

    @property
    def cost(self) -> float:
        """What a decision node costs."""
        return 0.0 if self.paper else self.node_cost

    @property
    def n_finalists(self) -> int:
        """Structures of which a silo chooses one, at most."""
        return self.population if self.paper else min(self.finalists, self.population)

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.generations

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 1

    @property
    def depths(self) -> range:
        """Depths tried in cross-validation."""
        return range(self.min_depth, self.max_depth + 1)

    @property
    def operators(self) -> Operators:
        """How structures are bred."""
        return Operators(
            self.tournament, self.crossover_rate, self.mutation_rate, self.flip_share,
            self.swap_share,
        )  # fmt: skip

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        return PrivacyProperties(self.max_depth, self.epsilon_rows, leaf_rows=self.min_leaf)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        check_declared(self.name, self)
        within(self.name, "max_depth", self.max_depth, self.min_depth, MAX_DEPTH)
        one_of("booster", "objective", job.objective, (OBJECTIVES[job.task],))
        only_with(
            job.task is Task.REGRESSION, "a regression", self.name, self,
            "validation_share", "noise_limit", "complexity_limit", "distinct_limit",
        )  # fmt: skip
        only_with(job.task is not Task.REGRESSION, "classes", self.name, self, "metric")
        only_with(not self.paper, "paper = false", self.name, self, "node_cost", "finalists")
        follows(self.name, job.booster, ())
        metrics.check(job.metrics, job.task)
