"""A network over the trees' outputs, trained by federated averaging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.combiners import CombinerState, TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, head_margins
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.training import Schedule, fit_head_by_epoch

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]

_RATE_ROWS = 4096  # rows that a silo averages a network's learnt rates over, at most
_FEDADAM_BETAS = (0.9, 0.99)
_FEDADAM_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class HeadCombiner:
    """A network over the trees' outputs, trained by federated averaging.

    Parameters
    ----------
    seed : int
        Of the start weights.
    epoch_choices : tuple[int, ...]
        Numbers of local epochs tried in the first round; the best on validation rows is kept.
        Empty: ``schedule.epochs``.
    optimiser : str
        ``fedavg``, ``fedavgm`` or ``fedadam``: what moves the weights by the silos' mean change.
    server_rate, server_momentum : float
        Step and momentum of the optimiser; plain averaging is rate 1.

    References
    ----------
    McMahan et al. 2017 (FedAvg); Hsu et al. 2019 (FedAvgM); Reddi et al., "Adaptive federated
    optimization", 2021, algorithm 2 (FedAdam).
    """

    head: Head
    task: Task
    rounds: int
    schedule: Schedule
    seed: int
    epoch_choices: tuple[int, ...] = ()
    optimiser: str = "fedavg"
    server_rate: float = 1.0
    server_momentum: float = 0.9

    @property
    def n_rounds(self) -> int:
        """Rounds of averaging."""
        return self.rounds

    def initial(self) -> CombinerState:
        """Return start weights from the seed."""
        weights = self.head.initial(np.random.default_rng(self.seed))
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
        wanted = self._epochs(round_, choice)
        found: list[NDArray[np.float32]] = []
        points = fit_head_by_epoch(
            self.head,
            np.asarray(candidates[0], np.float32),
            rows,
            self.task,
            replace(self.schedule, epochs=max(wanted)),
            rng,
            check,
        )
        for epoch, point in enumerate(points, start=1):
            found += [point.copy() for number in wanted if number == epoch]
        n = rows.leaves.n_samples
        return np.concatenate([[float(n)], *(n * point.astype(np.float64) for point in found)])

    @property
    def point_type(self) -> str:
        """Float32, as the network computes."""
        return "<f4"

    def form(self, round_: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return weights in float32 and the number of rows."""
        return {"rows": ("<f8", (1,)), "weights": ("<f4", (self.width(round_) - 1,))}

    def compact(self, vector: Floats, round_: int) -> dict[str, NDArray[Any]]:
        """Return the silo's weights and its rows."""
        weights = vector[1:] / max(vector[0], 1.0)
        return {"rows": vector[:1], "weights": weights.astype(np.float32)}

    def expand(self, arrays: Arrays, round_: int) -> Floats:
        """Return rows, and weights times rows."""
        n = float(arrays["rows"][0])
        return np.append(n, n * arrays["weights"].astype(np.float64))

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Average by rows, and move the weights by the optimiser's rule."""
        if total[0] <= 0:
            return replace(state, candidates=state.solution[None])
        means = (total[1:] / total[0]).reshape(self._n_candidates(round_), -1)
        if self.optimiser == "fedavg" and self.server_rate == 1.0:
            points = means.astype(np.float32)
            return CombinerState(points, points[0], state.memory)
        memory = dict(state.memory)
        old = state.solution.astype(np.float64)
        moved = []
        for number, mean in enumerate(means):
            change = mean - old
            if self.optimiser != "fedavg":
                zeros = np.zeros_like(old)
                momentum = memory.get(f"momentum.{number}", memory.get("momentum.0", zeros))
                if self.optimiser == "fedavgm":
                    momentum = change = self.server_momentum * momentum + change
                else:
                    first, second = _FEDADAM_BETAS
                    square = memory.get(f"square.{number}", memory.get("square.0", zeros))
                    momentum = first * momentum + (1 - first) * change
                    square = second * square + (1 - second) * change**2
                    memory[f"square.{number}"] = square
                    change = momentum / (np.sqrt(square) + _FEDADAM_FLOOR)
                memory[f"momentum.{number}"] = momentum
            moved.append((old + self.server_rate * change).astype(np.float32))
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

    def _n_candidates(self, round_: int) -> int:
        return max(1, len(self.epoch_choices)) if round_ == 1 else 1

    def _epochs(self, round_: int, choice: int) -> tuple[int, ...]:
        if not self.epoch_choices:
            return (self.schedule.epochs,)
        return self.epoch_choices if round_ == 1 else (self.epoch_choices[choice],)
