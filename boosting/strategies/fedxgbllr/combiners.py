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
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.strategies.fedxgbllr.row_sums import RowBounds
from hedgerow.boosting.strategies.fedxgbllr.steps import Points, RoundVector

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class CombinerState:
    """What the coordinator keeps of a combiner between rounds."""

    candidates: NDArray[Any]
    """Of shape (n_candidates, n_values). Points that silos get next; several where one is chosen on
    validation rows."""
    solution: NDArray[Any]
    """Of shape (n_values,). The point that predicts now."""
    memory: Arrays = field(default_factory=dict)
    """What else :meth:`Combiner.advance` needs."""


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """A silo's training rows as a combiner sees them."""

    leaves: LeafOrdinals
    y: Floats
    """Of shape (n_samples,), float64. Class index, or the centred number."""
    weight: Floats | None = None
    """Of shape (n_samples,), float64, or None."""


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

    def write(
        self, vector: Floats, round_: int, known: NDArray[Any], rng: np.random.Generator
    ) -> RoundVector:
        """Return a silo's vector as it travels in the clear.

        Parameters
        ----------
        known : ndarray of shape (n_values,)
            The round's first candidate, which all parties have.
        """
        ...

    def read(self, offer: RoundVector, round_: int, known: NDArray[Any]) -> Floats:
        """Return the vector of :meth:`write`.

        Raises
        ------
        OfferRejected
            A vector of another combiner, shape or range.
        """
        ...

    def exact_points(self, candidates: NDArray[Any]) -> Points:
        """Return candidate points as they travel."""
        ...

    def write_points(
        self, state: CombinerState, known: NDArray[Any], rng: np.random.Generator
    ) -> tuple[Points, CombinerState]:
        """Return the candidates in as few bytes as the job allows, and the state that silos get."""
        ...

    def read_points(self, points: Points, known: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates of :meth:`write_points` or :meth:`exact_points`.

        Raises
        ------
        OfferRejected
            Points of another combiner or shape.
        """
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

    def rates(self, point: NDArray[Any], active: NDArray[np.int64] | None) -> Floats:
        """Return each tree's learnt rate by output, shape (n_outputs, n_trees).

        Parameters
        ----------
        active : ndarray or None
            Of a network: the silos' :meth:`~.network.HeadCombiner.active`, added up.
        """
        ...


@runtime_checkable
class RowCombiner(Protocol):
    """A combiner whose vectors are sums over rows: these are exact, masked or not."""

    def n_sums(self, round_: int) -> int:
        """Return the length of :meth:`row_sums`."""
        ...

    def row_sums(
        self, candidates: NDArray[Any], rows: TrainingRows, round_: int, bounds: RowBounds
    ) -> NDArray[np.int64]:
        """Return :meth:`Combiner.local` as exact sums of integers of the rows."""
        ...

    def read_sums(
        self, candidates: NDArray[Any], total: NDArray[np.uint64], round_: int, bounds: RowBounds
    ) -> Floats:
        """Return the sum of all silos' :meth:`row_sums` as that of their :meth:`Combiner.local`.

        Raises
        ------
        SumCorrupt
            A total that no rows have.
        """
        ...


class WholePoints:
    """Points that travel whole, in float32 or, as those of normal equations lose digits, float64.

    A combiner is one of these where it has no shorter form of its points.
    """

    __slots__ = ()
    doubles: ClassVar[bool] = False

    def exact_points(self, candidates: NDArray[Any]) -> Points:
        """Return candidate points as they travel."""
        if self.doubles:
            return Points(doubles=np.asarray(candidates, np.float64))
        return Points(singles=np.asarray(candidates, np.float32))

    def write_points(
        self, state: CombinerState, known: NDArray[Any], rng: np.random.Generator
    ) -> tuple[Points, CombinerState]:
        """Return the exact candidates."""
        return self.exact_points(state.candidates), state

    def read_points(self, points: Points, known: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates."""
        return sound_points(points.doubles if self.doubles else points.singles, len(known))


def sound_points(points: NDArray[Any] | None, n_values: int) -> NDArray[Any]:
    """Return a peer's candidates of the element type that its combiner has."""
    if points is None or not len(points):
        raise OfferRejected("points: expected those of the job's combiner, received none")
    return checked("points", points, (None, n_values))


def linear_margins(values: Floats, intercept: Floats, leaves: LeafOrdinals) -> Floats:
    """Return margins (n_samples, n_outputs) of leaf values and intercepts."""
    return leaves.margins(values, len(intercept)) + intercept


def rates_by_output(rates: Floats, table: LeafTable, n_outputs: int) -> Floats:
    """Return rates (n_trees,) as (n_outputs, n_trees): a tree adds to its own class only."""
    out = np.zeros((n_outputs, table.n_trees))
    out[table.groups, np.arange(table.n_trees)] = rates
    return out
