"""A network over the trees' outputs, trained by federated averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checks import MOST_ROWS
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.strategies.fedxgbllr.combiners import (
    CombinerState,
    TrainingRows,
    WholePoints,
)
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, active_units, head_margins
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    Points,
    QuantisedChange,
    RoundVector,
    TrainedWeights,
)
from hedgerow.boosting.strategies.fedxgbllr.training import RoundSchedule, fit_head
from hedgerow.boosting.strategies.fedxgbllr.weight_changes import pack_change, unpack_change

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeadCombiner(WholePoints):
    """A network over the trees' outputs, trained by federated averaging.

    References
    ----------
    McMahan et al. 2017 (FedAvg).
    """

    parameters: FedXGBllr
    head: Head
    task: Task
    groups: NDArray[np.int64]
    """Of shape (n_trees,), int64. Output that each tree adds to."""
    seed: int
    """Of the start weights."""

    @property
    def n_rounds(self) -> int:
        """Rounds of averaging."""
        return self.parameters.rounds

    def initial(self) -> CombinerState:
        """Return the start weights, which predict the mean of the ensembles, or the paper's."""
        rng = np.random.default_rng(self.seed)
        paper = self.parameters.paper
        weights = self.head.random(rng) if paper else self.head.initial(rng, self.groups)
        return CombinerState(weights[None], weights)

    def width(self, round_: int) -> int:
        """Return weights, and one for the rows."""
        return 1 + self.head.n_parameters

    def local(
        self,
        candidates: NDArray[Any],
        rows: TrainingRows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Train on the silo's rows; return its weights times its rows, and its rows."""
        if rows.leaves.n_samples == 0:
            return np.zeros(self.width(round_))
        given, start = self.parameters, np.asarray(candidates[0], np.float32)
        schedule = RoundSchedule(
            given.local_epochs, given.batch_size, given.learning_rate, (given.beta1, given.beta2)
        )
        point = fit_head(self.head, start, rows, self.task, schedule, rng, check)
        n = rows.leaves.n_samples
        return np.append(float(n), n * point.astype(np.float64))

    def write(
        self, vector: Floats, round_: int, known: NDArray[Any], rng: np.random.Generator
    ) -> RoundVector:
        """Return rows, and weights or their quantised changes."""
        rows, bits = int(vector[0]), self.parameters.weight_bits
        weights = (vector[1:] / max(vector[0], 1.0)).astype(np.float32)
        if bits == 32:
            return RoundVector(network=TrainedWeights(rows, weights))
        change = pack_change(weights - known, bits, rng)
        return RoundVector(network=TrainedWeights(rows, change=change))

    def read(self, offer: RoundVector, round_: int, known: NDArray[Any]) -> Floats:
        """Return rows, and weights times rows."""
        given, n, bits = offer.network, self.width(round_) - 1, self.parameters.weight_bits
        if given is None or given.rows >= MOST_ROWS:
            raise OfferRejected("vector: expected network weights and a number of rows")
        if bits == 32 and given.weights is not None:
            weights = checked("weights", given.weights, (n,))
        elif bits != 32 and given.change is not None:
            change = unpack_change(given.change, n, bits)
            weights = (known + change).astype(np.float32)
        else:
            raise OfferRejected(f"vector: expected weights in {bits} bits")
        return np.append(given.rows, given.rows * weights.astype(np.float64))

    def write_points(
        self, state: CombinerState, known: NDArray[Any], rng: np.random.Generator
    ) -> tuple[Points, CombinerState]:
        """Return the candidates, or their quantised changes and the state that these give."""
        bits = self.parameters.weight_bits
        if bits == 32:
            return WholePoints.write_points(self, state, known, rng)
        change = pack_change(state.solution - known, bits, rng)
        points = self._changed(change, known)
        return Points(change=change), replace(state, candidates=points, solution=points[0])

    def read_points(self, points: Points, known: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates."""
        if points.change is None:
            return WholePoints.read_points(self, points, known)
        return self._changed(points.change, known)

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Average by rows."""
        if total[0] <= 0:
            return replace(state, candidates=state.solution[None])
        point = (total[1:] / total[0]).astype(np.float32)
        return CombinerState(point[None], point)

    def choose(self, state: CombinerState, choice: int) -> CombinerState:
        """Return the state as it is: there is one candidate."""
        return state

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the network's margins."""
        return head_margins(self.head, np.asarray(point, np.float32), leaves)

    def active(self, point: NDArray[Any], leaves: LeafOrdinals) -> NDArray[np.int64]:
        """Return how many rows each hidden unit lets through, then the rows; exact counts."""
        found = active_units(self.head, np.asarray(point, np.float32), leaves)
        return np.append(found, leaves.n_samples)

    def rates(self, point: NDArray[Any], active: NDArray[np.int64] | None) -> Floats:
        """Return the mean derivative of the prediction by each tree's output."""
        counts = np.zeros(self.head.n_units + 1) if active is None else active.astype(np.float64)
        return self.head.rates(np.asarray(point, np.float32), counts[:-1] / max(1.0, counts[-1]))

    def _changed(self, change: QuantisedChange, known: NDArray[Any]) -> NDArray[np.float32]:
        found = unpack_change(change, len(known), self.parameters.weight_bits)
        return (known + found).astype(np.float32)[None]
