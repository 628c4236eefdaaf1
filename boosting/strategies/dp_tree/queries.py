"""What is asked at each step, and what it costs: known to all parties beforehand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hedgerow.boosting.budget import BudgetLedger, Spending, portion
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.payloads import Float32s
from hedgerow.boosting.strategies.dp_tree.bins import CELLS, STAGES, EdgeSearch
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree, bin_counts, cuts_of
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.steps import Query
from hedgerow.crypto.masking.noise import discrete_laplace_epsilon, discrete_laplace_variance

LARGEST_SCALE = 90_000
"""Of the noise of one count; the sampler's tables end there."""


class Queries:
    """Sizes, sensitivities and budgets of a job's queries.

    Parameters
    ----------
    n_silos : int
        On the roster.

    Raises
    ------
    InvalidJob
        The budget leaves a count with more noise than can be drawn.
    """

    def __init__(self, parameters: DPTree, schema: Schema, n_silos: int) -> None:
        self.parameters = parameters
        self.schema = schema
        self.honest = parameters.honest_of(n_silos)
        self.coordinator_only = parameters.secure and self.honest == n_silos
        self.n_classes = max(2, schema.n_classes)
        self.numeric = [
            at for at, feature in enumerate(schema.features) if not feature.is_categorical
        ]
        private = parameters.binning == "private" and bool(self.numeric)
        share = Fraction(parameters.binning_share) if private else Fraction(0)
        epsilon = parameters.epsilon
        self.stage_epsilon = portion(epsilon, share / STAGES) if private else math.inf
        self.level_epsilon = portion(epsilon, (1 - share) / (2 * parameters.depth + 1))
        self._check_scale()

    def _check_scale(self) -> None:
        sensitivity = self.split_sensitivity(bin_counts(self.schema, self.any_edges()))
        for epsilon, share in (
            (self.level_epsilon, sensitivity), (self.stage_epsilon, len(self.numeric)),
        ):  # fmt: skip
            if not math.isinf(epsilon) and share / epsilon > LARGEST_SCALE:
                raise InvalidJob(
                    f"[dp_tree] epsilon: {self.parameters.epsilon:g} gives the noise of a count "
                    f"the scale {share / epsilon:.0f}, expected at most {LARGEST_SCALE}"
                )

    def any_edges(self) -> tuple[Float32s, ...]:
        """Return edges of the right number, for sizes."""
        own = np.arange(self.parameters.bins - 1, dtype=np.float32)
        none = np.empty(0, dtype=np.float32)
        return tuple(none if feature.is_categorical else own for feature in self.schema.features)

    def cell_sensitivity(self, search: EdgeSearch) -> int:
        """Return how many counts of a stage one row changes: one in each feature asked about."""
        return sum(1 for own in search.intervals if len(own))

    def split_sensitivity(self, n_bins: list[int]) -> int:
        """Return how many counts of a split query one row changes."""
        if self.parameters.query == "histogram":
            return len(n_bins)
        return max(1, sum(cuts_of(self.schema, n_bins)))

    def values_per_node(self, edges: tuple[Float32s, ...], level: int) -> int:
        """Return the number of counts of an open node: by class, and for the split."""
        if level >= self.parameters.depth:
            return self.n_classes
        n_bins = bin_counts(self.schema, edges)
        by_histogram = self.parameters.query == "histogram"
        cells = sum(n_bins) if by_histogram else 2 * sum(cuts_of(self.schema, n_bins))
        return self.n_classes * (1 + cells)

    def n_cells(self, search: EdgeSearch) -> int:
        """Return the length of a stage's sum."""
        return CELLS * sum(len(own) for own in search.intervals)

    def n_counts(self, tree: BinnedTree) -> int:
        """Return the length of a level's sum."""
        return len(tree.open_nodes) * self.values_per_node(tree.edges, tree.level)

    def spendings(self, query: Query) -> list[Spending]:
        """Return what a query costs, part by part."""
        if isinstance(query, EdgeSearch):
            if self.parameters.binning != "private":
                return []
            sensitivity = self.cell_sensitivity(query)
            what = f"bin edges, stage {query.stage}"
            return [self._spending(what, self.stage_epsilon, sensitivity, self.n_cells(query))]
        n_open, level = len(query.open_nodes), query.level
        what = f"level {level}: class counts of {n_open} nodes"
        found = [self._spending(what, self.level_epsilon, 1, n_open * self.n_classes)]
        if level < self.parameters.depth:
            sensitivity = self.split_sensitivity(bin_counts(self.schema, query.edges))
            rest = self.n_counts(query) - n_open * self.n_classes
            what = f"level {level}: splits of {n_open} nodes"
            found.append(self._spending(what, self.level_epsilon, sensitivity, rest))
        return found

    def _spending(self, what: str, epsilon: float, sensitivity: int, values: int) -> Spending:
        only = self.coordinator_only and math.isfinite(epsilon)
        return Spending(what, epsilon, sensitivity, values, only)

    def epsilon_against(self, parts: int) -> float:
        """Return the whole job's epsilon against who knows all but ``parts`` parts of the noise.

        Of a full tree; it does not cover ``binning = "quantile"``.
        """
        if parts >= self.honest:
            return self.parameters.epsilon
        n_splits = self.split_sensitivity(bin_counts(self.schema, self.any_edges()))
        asked = (
            (STAGES, self.stage_epsilon, len(self.numeric)),
            (self.parameters.depth + 1, self.level_epsilon, 1),
            (self.parameters.depth, self.level_epsilon, n_splits),
        )
        return math.fsum(
            times * discrete_laplace_epsilon(
                epsilon, sensitivity=sensitivity, parts=parts, honest=self.honest
            )
            for times, epsilon, sensitivity in asked
            if math.isfinite(epsilon)
        )  # fmt: skip

    def enter(self, ledger: BudgetLedger, query: Query) -> None:
        """Spend what a query costs."""
        costs = enumerate(self.spendings(query))
        ledger.charge({f"{query.digest.hex()}/{number}": cost for number, cost in costs})

    def deviation(self, epsilon: float, sensitivity: int, n_parts: int) -> float:
        """Return the standard deviation of a summed count's noise."""
        if math.isinf(epsilon):
            return 0.0
        variance = discrete_laplace_variance(
            epsilon, sensitivity=sensitivity, parts=n_parts, honest=self.honest
        )
        return math.sqrt(variance)
