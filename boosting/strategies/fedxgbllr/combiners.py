"""How K ensembles become one prediction: what silos compute in a round, and what follows from it.

A combiner learns one flat vector, the *point*: weights of a network (:mod:`.network`), learnt rates
of trees (:mod:`.tree_rates`) or leaf values (:mod:`.leaf_search`). In a round each silo gets one or
more candidate points and computes an additive vector from its rows. The sum over silos moves the
point, so plain and secure sums serve every combiner.

Margins are ``intercept[c] + Σ_t value(leaf of the row in tree t)`` over the trees of output c, but
for a network's. The prior of every linear combiner is the mean of the silos' ensembles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class CombinerState:
    """What the coordinator keeps of a combiner between rounds.

    Parameters
    ----------
    candidates : ndarray of shape (n_candidates, n_values)
        Points that silos get next; several where one is chosen on validation rows.
    solution : ndarray of shape (n_values,)
        The point that predicts now.
    memory : Mapping[str, ndarray]
        What else :meth:`Combiner.advance` needs.
    """

    candidates: NDArray[Any]
    solution: NDArray[Any]
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """A silo's training rows as a combiner sees them.

    Parameters
    ----------
    leaves : LeafOrdinals
    y : ndarray of shape (n_samples,), float64
        Class index, or the centred number.
    weight : ndarray of shape (n_samples,), float64, or None
    """

    leaves: LeafOrdinals
    y: Floats
    weight: Floats | None = None


class Combiner(Protocol):
    """One way of combining."""

    @property
    def n_rounds(self) -> int:
        """Rounds that it takes, at most."""
        ...

    def initial(self) -> CombinerState:
        """Return the state before the first round; all parties compute the same."""
        ...

    def width(self, round_: int) -> int:
        """Return the length of a silo's vector in a round (rounds count from 1)."""
        ...

    def local(
        self,
        candidates: NDArray[Any],
        rows: TrainingRows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return a silo's additive vector; ``choice`` is the candidate chosen earlier."""
        ...

    @property
    def point_type(self) -> str:
        """Element type of points on the wire."""
        ...

    def form(self, round_: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return element type and shape of the arrays of :meth:`compact`."""
        ...

    def compact(self, vector: Floats, round_: int) -> dict[str, NDArray[Any]]:
        """Return a silo's vector in as few bytes as possible, for a sum in the clear."""
        ...

    def expand(self, arrays: Arrays, round_: int) -> Floats:
        """Return the vector of :meth:`compact`'s arrays."""
        ...

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Return the state after the sum of all silos' vectors."""
        ...

    def choose(self, state: CombinerState, choice: int) -> CombinerState:
        """Return the state after a choice among its candidates on validation rows."""
        ...

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins (n_samples, n_outputs) at a point."""
        ...

    def rates(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return each tree's learnt rate by output, (n_outputs, n_trees), as some rows show it."""
        ...


def linear_margins(values: Floats, intercept: Floats, leaves: LeafOrdinals) -> Floats:
    """Return margins (n_samples, n_outputs) of leaf values and intercepts."""
    return leaves.margins(values, len(intercept)) + intercept


def rates_by_output(rates: Floats, table: LeafTable, n_outputs: int) -> Floats:
    """Return rates (n_trees,) as (n_outputs, n_trees): a tree adds to its own class only."""
    out = np.zeros((n_outputs, table.n_trees))
    out[table.groups, np.arange(table.n_trees)] = rates
    return out
