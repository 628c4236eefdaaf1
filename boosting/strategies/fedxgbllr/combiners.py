"""How K ensembles become one prediction: what silos compute in a round, what is made of it.

A combiner's state on the wire is always one flat vector, the *point*: weights of a network,
learnt rates of trees, or leaf values. In a round each silo gets some candidate points, computes
an additive vector from its rows, and the sum over silos moves the point. So plain and secure sums
serve every combiner alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, head_margins
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.strategies.fedxgbllr.learning_rates import Schedule, fit_head_by_epoch
from hedgerow.boosting.strategies.fedxgbllr.stacking import (
    LeafSearch,
    LeafSums,
    TreeRates,
    gram_sums,
    gram_width,
    leaf_pulls,
    leaf_sums,
    newton_step,
    rescaled_rates,
)

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]

_RATE_ROWS = 4096  # rows that a silo averages a network's learnt rates over, at most
_FEDADAM_BETAS = (0.9, 0.99)
_FEDADAM_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class State:
    """What the coordinator keeps of a combiner between rounds.

    Parameters
    ----------
    candidates : ndarray of shape (n_candidates, n_values)
        Points that silos get next; one, but where a choice is made on validation rows.
    solution : ndarray of shape (n_values,)
        The point that predicts, as of now.
    memory : Mapping[str, ndarray]
        Whatever else :meth:`Combiner.advance` needs.
    """

    candidates: NDArray[Any]
    solution: NDArray[Any]
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """One silo's training rows as a combiner sees them.

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
        """Rounds it runs for at most."""
        ...

    def initial(self) -> State:
        """Return the state before the first round, the same wherever it is computed."""
        ...

    def width(self, round_: int) -> int:
        """Return the length of a silo's vector in a round (rounds count from 1)."""
        ...

    def local(
        self,
        candidates: NDArray[Any],
        rows: Rows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return one silo's additive vector; ``choice`` is the candidate chosen before."""
        ...

    @property
    def point_type(self) -> str:
        """Element type of points on a wire."""
        ...

    def form(self, round_: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return element type and shape of the arrays of :meth:`compact`."""
        ...

    def compact(self, vector: Floats, round_: int) -> dict[str, NDArray[Any]]:
        """Return a silo's vector as the fewest bytes that serve, for a sum in the clear."""
        ...

    def expand(self, arrays: Arrays, round_: int) -> Floats:
        """Return the vector of :meth:`compact`'s arrays."""
        ...

    def advance(self, state: State, total: Floats, round_: int) -> State:
        """Return the state after the sum of all silos' vectors."""
        ...

    def choose(self, state: State, choice: int) -> State:
        """Return the state after a choice among its candidates on validation rows."""
        ...

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins (n_samples, n_outputs) at a point."""
        ...

    def rates(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return each tree's learnt rate by output, (n_outputs, n_trees), seen on some rows."""
        ...


def _linear_margins(values: Floats, intercept: Floats, leaves: LeafOrdinals) -> Floats:
    return leaves.margins(values, len(intercept)) + intercept


def _spread(rates: Floats, table: LeafTable, n_outputs: int) -> Floats:
    """Return rates a tree as rates a tree and output: a tree serves its own class only."""
    out = np.zeros((n_outputs, table.n_trees))
    out[table.groups, np.arange(table.n_trees)] = rates
    return out


@dataclass(frozen=True, slots=True)
class RateCombiner:
    """One rate a tree: the mean, or penalised least squares or Newton steps around it.

    Parameters
    ----------
    n_steps : int
        0 for the mean; 1 solves squared error exactly.
    penalties : tuple[float, ...]
        Several are candidates in the last round.
    """

    table: LeafTable
    task: Task
    n_silos: int
    n_outputs: int
    n_steps: int
    penalties: tuple[float, ...] = ()

    @property
    def n_rounds(self) -> int:
        """Newton steps."""
        return self.n_steps

    def initial(self) -> State:
        """Return the mean of the ensembles."""
        point = self._flat(TreeRates.mean(self.table, self.n_silos, self.n_outputs))
        return State(point[None], point)

    def width(self, round_: int) -> int:
        """Return the size of the normal equations."""
        return gram_width(self.table, self.n_outputs)

    def local(
        self,
        candidates: NDArray[Any],
        rows: Rows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return the silo's part of the normal equations at the point."""
        check()
        at = self._rates(candidates[0])
        return gram_sums(rows.leaves, rows.y, self.task, at, rows.weight)

    @property
    def point_type(self) -> str:
        """Float64: normal equations lose digits."""
        return "<f8"

    def form(self, round_: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return that of the normal equations."""
        return {"sum": ("<f8", (self.width(round_),))}

    def compact(self, vector: Floats, round_: int) -> dict[str, NDArray[Any]]:
        """Return the vector as it is."""
        return {"sum": vector}

    def expand(self, arrays: Arrays, round_: int) -> Floats:
        """Return the vector."""
        return np.asarray(arrays["sum"])

    def advance(self, state: State, total: Floats, round_: int) -> State:
        """Solve; in the last round for every penalty."""
        at = self._rates(state.solution)
        prior = TreeRates.mean(self.table, self.n_silos, self.n_outputs)
        middle = self.penalties[len(self.penalties) // 2]
        penalties = self.penalties if round_ == self.n_steps else (middle,)
        points = [self._flat(newton_step(total, self.table, at, prior, p)) for p in penalties]
        return State(np.array(points), points[len(points) // 2])

    def choose(self, state: State, choice: int) -> State:
        """Keep one penalty's solution."""
        point = state.candidates[choice]
        return replace(state, candidates=point[None], solution=point)

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins of the rated trees."""
        at = self._rates(point)
        return _linear_margins(at.leaf_values(self.table), at.intercept, leaves)

    def rates(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the rates themselves."""
        return _spread(self._rates(point).rates, self.table, self.n_outputs)

    def leaf_values(self, point: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the leaf values and intercepts that make a stock model of the point."""
        at = self._rates(point)
        return at.leaf_values(self.table), at.intercept

    def _flat(self, at: TreeRates) -> Floats:
        return np.append(at.rates, at.intercept)

    def _rates(self, point: NDArray[Any]) -> TreeRates:
        wide = np.asarray(point, np.float64)
        return TreeRates(wide[: self.table.n_trees], wide[self.table.n_trees :])


@dataclass(frozen=True, slots=True)
class LeafCombiner:
    """Every leaf value anew: the minimum of the penalised loss over all silos' rows.

    Penalties count in multiples of :func:`boosting.strategies.fedxgbllr.stacking.leaf_pulls`.

    Parameters
    ----------
    n_evaluations : int
        Rounds; each evaluates one point.
    penalties : tuple[float, ...]
        One search each, side by side; several are candidates for a choice on validation rows.
    """

    table: LeafTable
    task: Task
    n_silos: int
    n_outputs: int
    n_evaluations: int
    penalties: tuple[float, ...]

    @property
    def n_rounds(self) -> int:
        """Evaluations."""
        return self.n_evaluations

    def initial(self) -> State:
        """Return searches that begin at the mean of the ensembles."""
        prior = self._prior()
        pulls = leaf_pulls(prior, self.n_outputs)
        n_trees = max(1, self.table.n_trees // self.n_outputs)
        searches = [LeafSearch.start(prior, p * pulls, n_trees) for p in self.penalties]
        return self._state(searches)

    def width(self, round_: int) -> int:
        """Return loss and gradient a search; the first round brings the curvature too."""
        size = self._size
        return 1 + 2 * size if round_ == 1 else len(self.penalties) * (1 + size)

    def local(
        self,
        candidates: NDArray[Any],
        rows: Rows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return loss and gradient at each search's point."""
        parts = []
        # all searches begin at the same point, so the first round evaluates it once
        for point in candidates[:1] if round_ == 1 else candidates:
            check()
            sums = leaf_sums(
                rows.leaves,
                rows.y,
                self.task,
                np.asarray(point, np.float64),
                with_curvature=round_ == 1,
                row_weights=rows.weight,
            )
            parts += [np.array([sums.loss]), sums.gradient]
            if sums.curvature is not None:
                parts.append(sums.curvature)
        return np.concatenate(parts)

    @property
    def point_type(self) -> str:
        """Float32, like the leaf values of a model; searches stay on such points."""
        return "<f4"

    def form(self, round_: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return one loss a search in float64, slopes and curvature in float32."""
        n_losses = 1 if round_ == 1 else len(self.penalties)
        return {
            "losses": ("<f8", (n_losses,)),
            "slopes": ("<f4", (self.width(round_) - n_losses,)),
        }

    def compact(self, vector: Floats, round_: int) -> dict[str, NDArray[Any]]:
        """Return losses and slopes apart."""
        losses = self._losses(round_)
        slopes = np.delete(vector, losses).astype(np.float32)
        return {"losses": vector[losses], "slopes": slopes}

    def expand(self, arrays: Arrays, round_: int) -> Floats:
        """Return losses and slopes as they were."""
        vector = np.empty(self.width(round_))
        losses = self._losses(round_)
        rest = np.ones(len(vector), np.bool_)
        rest[losses] = False
        vector[losses], vector[rest] = arrays["losses"], arrays["slopes"]
        return vector

    def _losses(self, round_: int) -> NDArray[np.int64]:
        n_losses = 1 if round_ == 1 else len(self.penalties)
        return np.arange(n_losses) * (1 + self._size)

    def advance(self, state: State, total: Floats, round_: int) -> State:
        """Move every search by one evaluation."""
        size = self._size
        searches = []
        for number, search in enumerate(self._searches(state)):
            start = 0 if round_ == 1 else number * (1 + size)
            curvature = total[1 + size :] if round_ == 1 else None
            sums = LeafSums(float(total[start]), total[start + 1 : start + 1 + size], curvature)
            searches.append(search.advance(sums))
        return self._state(searches)

    def choose(self, state: State, choice: int) -> State:
        """Name the search that is ahead; all go on."""
        return replace(state, solution=state.candidates[choice])

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins with these leaf values."""
        values, intercept = self.leaf_values(point)
        return _linear_margins(values, intercept, leaves)

    def rates(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the rate that would bring each tree closest to its new leaves."""
        found = rescaled_rates(self.table, self.leaf_values(point)[0])
        return _spread(found, self.table, self.n_outputs)

    def leaf_values(self, point: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the leaf values and intercepts of a point."""
        wide = np.asarray(point, np.float64)
        return wide[: self.table.n_leaves], wide[self.table.n_leaves :]

    @property
    def _size(self) -> int:
        return self.table.n_leaves + self.n_outputs

    def _prior(self) -> Floats:
        mean = TreeRates.mean(self.table, self.n_silos, self.n_outputs)
        return np.append(mean.leaf_values(self.table), mean.intercept)

    def _state(self, searches: list[LeafSearch]) -> State:
        memory: dict[str, NDArray[Any]] = {}
        for number, search in enumerate(searches):
            memory[f"{number}.value"] = np.array([search.value])
            memory[f"{number}.point"] = search.point
            if search.gradient is not None and search.metric is not None:
                memory[f"{number}.gradient"] = search.gradient
                memory[f"{number}.metric"] = search.metric
            for pair, (step, change) in enumerate(search.pairs):
                memory[f"{number}.step.{pair}"] = step
                memory[f"{number}.change.{pair}"] = change
        return State(
            np.array([search.trial for search in searches], np.float32),
            searches[len(searches) // 2].point,
            memory,
        )

    def _searches(self, state: State) -> list[LeafSearch]:
        memory, prior, found = state.memory, self._prior(), []
        pulls = leaf_pulls(prior, self.n_outputs)
        for number, penalty in enumerate(self.penalties):
            pairs: list[tuple[Floats, Floats]] = []
            while f"{number}.step.{len(pairs)}" in memory:
                at = len(pairs)
                pairs.append((memory[f"{number}.step.{at}"], memory[f"{number}.change.{at}"]))
            found.append(
                LeafSearch(
                    prior,
                    penalty * pulls,
                    max(1, self.table.n_trees // self.n_outputs),
                    np.asarray(memory[f"{number}.point"]),
                    np.asarray(state.candidates[number]),
                    float(memory[f"{number}.value"][0]),
                    memory.get(f"{number}.gradient"),
                    memory.get(f"{number}.metric"),
                    tuple(pairs),
                )
            )
        return found


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

    def initial(self) -> State:
        """Return start weights from the seed."""
        weights = self.head.initial(np.random.default_rng(self.seed))
        return State(weights[None], weights)

    def width(self, round_: int) -> int:
        """Return weights, once a candidate number of epochs, and one for the rows."""
        return 1 + self._n_candidates(round_) * self.head.n_parameters

    def local(
        self,
        candidates: NDArray[Any],
        rows: Rows,
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
            rows.leaves,
            rows.y,
            self.task,
            replace(self.schedule, epochs=max(wanted)),
            rng,
            row_weights=rows.weight,
            check=check,
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

    def advance(self, state: State, total: Floats, round_: int) -> State:
        """Average by rows, and move the weights by the optimiser's rule."""
        if total[0] <= 0:
            return replace(state, candidates=state.solution[None])
        means = (total[1:] / total[0]).reshape(self._n_candidates(round_), -1)
        if self.optimiser == "fedavg" and self.server_rate == 1.0:
            points = means.astype(np.float32)
            return State(points, points[0], state.memory)
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
        return State(np.array(moved), moved[0], memory)

    def choose(self, state: State, choice: int) -> State:
        """Keep one candidate's weights and its share of the optimiser's memory."""
        memory = {}
        for key, value in state.memory.items():
            name, _, number = key.partition(".")
            if number == str(choice):
                memory[f"{name}.0"] = value
        point = state.candidates[choice]
        return State(point[None], point, memory)

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
