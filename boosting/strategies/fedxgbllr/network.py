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
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, head_margins
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    Points,
    QuantisedChange,
    RoundVector,
    TrainedWeights,
)
from hedgerow.boosting.strategies.fedxgbllr.training import RoundSchedule, fit_head_by_epoch
from hedgerow.boosting.strategies.fedxgbllr.weight_changes import pack_change, unpack_change

Floats = NDArray[np.float64]

_RATE_ROWS = 4096  # rows that a silo averages a network's learnt rates over, at most
_FEDADAM_BETAS = (0.9, 0.99)
_FEDADAM_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class HeadCombiner(WholePoints):
    """A network over the trees' outputs, trained by federated averaging.

    References
    ----------
    McMahan et al. 2017 (FedAvg); Hsu et al. 2019 (FedAvgM); Reddi et al., "Adaptive federated
    optimization", 2021, algorithm 2 (FedAdam).
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
        """Return the start weights, which predict the mean of the ensembles."""
        weights = self.head.initial(np.random.default_rng(self.seed), self.groups)
        return CombinerState(weights[None], weights)

    def width(self, round_: int) -> int:
        """Return weights, once a candidate number of epochs, and one for the rows."""
        return 1 + self._n_candidates(round_) * self.head.n_parameters

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
        epochs = self._epochs(round_, choice)
        found: list[NDArray[np.float32]] = []
        points = fit_head_by_epoch(
            self.head,
            np.asarray(candidates[0], np.float32),
            rows,
            self.task,
            self._schedule(max(epochs)),
            rng,
            check,
        )
        for epoch, point in enumerate(points, start=1):
            found += [point.copy() for number in epochs if number == epoch]
        n = rows.leaves.n_samples
        return np.concatenate([[float(n)], *(n * point.astype(np.float64) for point in found)])

    def write(
        self, vector: Floats, round_: int, known: NDArray[Any], rng: np.random.Generator
    ) -> RoundVector:
        """Return rows, and weights or their quantised changes."""
        rows, bits = int(vector[0]), self.parameters.weight_bits
        weights = (vector[1:] / max(vector[0], 1.0)).astype(np.float32)
        if bits == 32:
            return RoundVector(network=TrainedWeights(rows, weights))
        change = pack_change(weights - self._repeated(known, round_), bits, rng)
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
            weights = (self._repeated(known, round_) + change).astype(np.float32)
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
        change = pack_change((state.candidates - known).reshape(-1), bits, rng)
        points = self._changed(change, len(state.candidates), known)
        return Points(change=change), replace(state, candidates=points, solution=points[0])

    def read_points(self, points: Points, known: NDArray[Any]) -> NDArray[Any]:
        """Return the candidates."""
        if points.change is None:
            return WholePoints.read_points(self, points, known)
        per_byte = 2 if self.parameters.weight_bits == 4 else 1
        n_points = max(1, len(points.change.steps) * per_byte // len(known))
        return self._changed(points.change, n_points, known)

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Average by rows, and move the weights by the optimiser's rule."""
        if total[0] <= 0:
            return replace(state, candidates=state.solution[None])
        means = (total[1:] / total[0]).reshape(self._n_candidates(round_), -1)
        optimiser, rate = self.parameters.server_optimiser, self.parameters.server_rate
        if optimiser == "fedavg" and rate == 1.0:
            points = means.astype(np.float32)
            return CombinerState(points, points[0], state.memory)
        memory = dict(state.memory)
        old = state.solution.astype(np.float64)
        moved = []
        for number, mean in enumerate(means):
            change = mean - old
            if optimiser != "fedavg":
                zeros = np.zeros_like(old)
                momentum = memory.get(f"momentum.{number}", memory.get("momentum.0", zeros))
                if optimiser == "fedavgm":
                    momentum = self.parameters.server_momentum * momentum + change
                    change = momentum
                else:
                    first, second = _FEDADAM_BETAS
                    square = memory.get(f"square.{number}", memory.get("square.0", zeros))
                    momentum = first * momentum + (1 - first) * change
                    square = second * square + (1 - second) * change**2
                    memory[f"square.{number}"] = square
                    change = momentum / (np.sqrt(square) + _FEDADAM_FLOOR)
                memory[f"momentum.{number}"] = momentum
            moved.append((old + rate * change).astype(np.float32))
        return CombinerState(np.array(moved), moved[0], memory)

    def choose(self, state: CombinerState, choice: int) -> CombinerState:
        """Keep one candidate's weights and its share of the optimiser's memory."""
        memory = {}
        for key, value in state.memory.items():
            name, _, number = key.partition(".")
            if number == str(choice):
                memory[f"{name}.0"] = value
        point = state.candidates[choice]
        return CombinerState(point[None], point, memory)

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the network's margins."""
        return head_margins(self.head, np.asarray(point, np.float32), leaves)

    def rates(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the mean derivative of the prediction by each tree's output."""
        n = min(leaves.n_samples, _RATE_ROWS)
        if n == 0:
            return np.zeros((self.head.n_outputs, self.head.n_inputs))
        weights = np.asarray(point, np.float32)
        total = np.zeros((self.head.n_outputs, self.head.n_inputs))
        for rows in np.array_split(np.arange(n), -(-n // 256)):
            total += len(rows) * self.head.rates(weights, leaves.outputs(rows))
        return total / n

    def _schedule(self, epochs: int) -> RoundSchedule:
        given = self.parameters
        return RoundSchedule(
            epochs,
            given.batch_size,
            given.learning_rate,
            (given.beta1, given.beta2),
            given.proximal,
        )

    def _n_candidates(self, round_: int) -> int:
        return max(1, len(self.parameters.epoch_choices)) if round_ == 1 else 1

    def _epochs(self, round_: int, choice: int) -> tuple[int, ...]:
        """Return the numbers of epochs after which a round's weights are taken."""
        choices = self.parameters.epoch_choices
        if not choices:
            return (self.parameters.epochs,)
        return choices if round_ == 1 else (choices[choice],)

    def _repeated(self, known: NDArray[Any], round_: int) -> NDArray[Any]:
        return np.tile(known, self._n_candidates(round_))

    def _changed(
        self, change: QuantisedChange, n_points: int, known: NDArray[Any]
    ) -> NDArray[np.float32]:
        n = len(known)
        found = unpack_change(change, n_points * n, self.parameters.weight_bits)
        return (known + found.reshape(n_points, n)).astype(np.float32)
