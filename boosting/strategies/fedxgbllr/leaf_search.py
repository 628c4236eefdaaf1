"""All leaf values learnt again: ``leaves`` minimises the penalised loss over all silos' rows.

The trees stay, their leaf values change. In each round a silo sends the loss and its gradient at
one point, sums over its rows. Rows count by their weight, where they have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.strategies.fedxgbllr.combiners import (
    CombinerState,
    TrainingRows,
    WholePoints,
    linear_margins,
    rates_by_output,
)
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.strategies.fedxgbllr.losses import loss_and_derivatives
from hedgerow.boosting.strategies.fedxgbllr.row_sums import (
    RowBounds,
    decoded,
    largest_margin,
    whole,
)
from hedgerow.boosting.strategies.fedxgbllr.steps import LeafSlopes, RoundVector
from hedgerow.boosting.strategies.fedxgbllr.tree_rates import TreeRates
from hedgerow.crypto.masking.fixed_point import FixedPoint

Floats = NDArray[np.float64]

_PAIRS_KEPT = 12  # curvature pairs of L-BFGS
_SUFFICIENT_DECREASE = 1e-4
_SMALLEST_STEP = 2.0**-20


@dataclass(frozen=True, slots=True)
class LeafSums:
    """Loss and derivatives at a point, over the rows of one silo or of all."""

    loss: float
    """Sum over rows."""
    gradient: Floats
    """Of shape (n_leaves + n_outputs,), float64. By leaf values, then by intercepts."""
    curvature: Floats | None = None
    """Of shape (n_leaves + n_outputs,), float64, or None. Diagonal of the Hessian; at the first
    point only."""


def leaf_sums(rows: TrainingRows, task: Task, point: Floats, *, with_curvature: bool) -> LeafSums:
    """Return one silo's sums at ``point`` (leaf values, then intercepts)."""
    leaves, weight = rows.leaves, rows.weight
    n_leaves = leaves.table.n_leaves
    margins = leaves.margins(point[:n_leaves], len(point) - n_leaves) + point[n_leaves:]
    loss, first, second = loss_and_derivatives(rows.y, margins, task)
    if weight is not None:
        loss, first, second = loss * weight, first * weight[:, None], second * weight[:, None]
    curvature = None
    if with_curvature:
        curvature = np.append(leaves.leaf_sums(second), second.sum(axis=0))
    return LeafSums(
        float(loss.sum()), np.append(leaves.leaf_sums(first), first.sum(axis=0)), curvature
    )


def leaf_pulls(prior: Floats, n_outputs: int) -> Floats:
    """Return how strongly each entry of a point is pulled to ``prior``, relative to a penalty.

    The expected change of a leaf's value v grows with v and with the other leaves' values: the
    pull is ``2 m / (v² + m)``, with ``m`` the mean of ``v²``. So a large value, say of a few rows
    far from the rest, is pulled less than a value near zero.

    Parameters
    ----------
    prior : ndarray of shape (n_leaves + n_outputs,), float64
        Leaf values, then intercepts.

    Returns
    -------
    ndarray of shape (n_leaves + n_outputs,), float64
        Between 0 and 2; 1 where all leaves are equal, 0 for intercepts.
    """
    pulls = np.zeros(len(prior))
    squares = prior[: len(prior) - n_outputs] ** 2
    mean = float(squares.mean()) if len(squares) else 0.0
    pulls[: len(squares)] = 2 * mean / (squares + mean) if mean > 0 else 1.0
    return pulls


@dataclass(frozen=True, slots=True)
class LeafSearch:
    """State of the search for the leaf values that minimise the penalised loss of all rows.

    L-BFGS. Its first metric is between the penalty and the loss's second derivatives by single
    leaves, which overstate the effect of one leaf, since other leaves have the same rows. Each
    exchange evaluates one point (``trial``); a point that does not lower the loss enough is
    replaced by the middle of its step. Thirty evaluations come close to the minimum, sixteen are
    enough for most tables.

    References
    ----------
    Nocedal and Wright, "Numerical optimization", 2nd edition, algorithms 7.4 and 3.1.
    """

    prior: Floats
    """Of shape (n_leaves + n_outputs,), float64."""
    penalty: Floats
    """Of shape (n_leaves + n_outputs,), float64. Adds ``Σ penalty/2·(point − prior)²``; zero for
    intercepts. See :func:`leaf_pulls`."""
    n_trees: int
    """Trees of one output; scales the first step, since each row reaches that many leaves."""
    point: Floats
    trial: Floats
    value: float = np.inf
    gradient: Floats | None = None
    metric: Floats | None = None
    pairs: tuple[tuple[Floats, Floats], ...] = field(default=())

    @classmethod
    def start(cls, prior: Floats, penalty: Floats, n_trees: int) -> LeafSearch:
        """Return the state whose first trial is the prior."""
        return cls(prior, penalty, n_trees, prior, prior)

    def advance(self, sums: LeafSums) -> LeafSearch:
        """Return the state after the sums of all silos at ``trial``."""
        away = self.trial - self.prior
        pull = self.penalty * away
        value = sums.loss + 0.5 * float(pull @ away)
        gradient = sums.gradient + pull
        step = self.trial - self.point
        metric = self.metric
        if sums.curvature is not None:
            coupled = np.sqrt(sums.curvature * np.maximum(self.penalty, 1.0))
            metric = np.maximum(self.penalty + coupled, 1e-12)
        assert metric is not None, "the first sums bring the curvature"
        if self.gradient is None:
            pairs: tuple[tuple[Floats, Floats], ...] = ()
        else:
            slope = float(self.gradient @ step)
            if value > self.value + _SUFFICIENT_DECREASE * slope:
                half = self.point + 0.5 * step
                if np.abs(step).max() < _SMALLEST_STEP * max(1.0, float(np.abs(half).max())):
                    half = self.point
                return replace(self, trial=half, metric=metric)
            change = gradient - self.gradient
            pairs = self.pairs
            if float(change @ step) > 1e-12 * float(step @ step):
                pairs = (*pairs, (step, change))[-_PAIRS_KEPT:]
        direction = _direction(gradient, metric, pairs, self.n_trees)
        return replace(
            self,
            point=self.trial,
            trial=self.trial - direction,
            value=value,
            gradient=gradient,
            metric=metric,
            pairs=pairs,
        )


def _direction(
    gradient: Floats, metric: Floats, pairs: Sequence[tuple[Floats, Floats]], n_trees: int
) -> Floats:
    """Return the quasi-Newton direction (the two-loop recursion)."""
    q = gradient.copy()
    weights = []
    for step, change in reversed(pairs):
        weight = float(step @ q) / float(step @ change)
        weights.append(weight)
        q -= weight * change
    if pairs:
        step, change = pairs[-1]
        r = q / metric * (float(step @ change) / float(change @ (change / metric)))
    else:
        r = q / metric / n_trees
    for (step, change), weight in zip(pairs, reversed(weights), strict=True):
        r += (weight - float(change @ r) / float(step @ change)) * step
    return r


def rescaled_rates(table: LeafTable, values: Floats) -> Floats:
    """Return, for each tree, the factor that brings its own leaf values closest to ``values``.

    Shape (n_trees,); 0 for a tree whose leaves are all zero.
    """
    own = table.values.astype(np.float64)
    n_trees = table.n_trees
    across = np.bincount(table.trees, weights=own * values, minlength=n_trees)
    square = np.bincount(table.trees, weights=own * own, minlength=n_trees)
    return np.divide(across, square, out=np.zeros(n_trees), where=square > 0)


@dataclass(frozen=True, slots=True)
class LeafCombiner(WholePoints):
    """All leaf values, learnt again: the minimum of the penalised loss over all silos' rows.

    Penalties are multiples of :func:`leaf_pulls`.
    """

    table: LeafTable
    task: Task
    n_silos: int
    n_outputs: int
    n_evaluations: int
    """Rounds; each evaluates one point."""
    penalties: tuple[float, ...]
    """One search each; with several, one is chosen on validation rows."""

    @property
    def n_rounds(self) -> int:
        """Evaluations."""
        return self.n_evaluations

    def initial(self) -> CombinerState:
        """Return searches that start at the mean of the ensembles."""
        prior = self._prior()
        pulls = leaf_pulls(prior, self.n_outputs)
        n_trees = max(1, self.table.n_trees // self.n_outputs)
        searches = [LeafSearch.start(prior, p * pulls, n_trees) for p in self.penalties]
        return self._state(searches)

    def width(self, round_: int) -> int:
        """Return the length of losses and gradients; in the first round of the curvature too."""
        size = self._size
        return 1 + 2 * size if round_ == 1 else len(self.penalties) * (1 + size)

    def local(
        self,
        candidates: NDArray[Any],
        rows: TrainingRows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return loss and gradient at each search's point."""
        parts = []
        # all searches start at the same point, so the first round evaluates it once
        for point in candidates[:1] if round_ == 1 else candidates:
            check()
            wide = np.asarray(point, np.float64)
            sums = leaf_sums(rows, self.task, wide, with_curvature=round_ == 1)
            parts += [np.array([sums.loss]), sums.gradient]
            if sums.curvature is not None:
                parts.append(sums.curvature)
        return np.concatenate(parts)

    def n_sums(self, round_: int) -> int:
        """Return the length of :meth:`row_sums`."""
        return self.width(round_)

    def row_sums(
        self, candidates: NDArray[Any], rows: TrainingRows, round_: int, bounds: RowBounds
    ) -> NDArray[np.int64]:
        """Return :meth:`local` as exact sums of the rows' integers."""
        leaves, parts = rows.leaves, []
        for wide in self._asked(candidates, round_):
            found = loss_and_derivatives(rows.y, self.margins(wide, leaves), self.task)
            weight = 1.0 if rows.weight is None else rows.weight[:, None]
            numbers = zip((found[0][:, None], *found[1:]), self._scales(wide, bounds), strict=True)
            loss, first, second = (whole(own * weight, scale) for own, scale in numbers)
            parts += [loss.sum(keepdims=True)[0], leaves.leaf_sums(first), first.sum(axis=0)]
            if round_ == 1:
                parts += [leaves.leaf_sums(second), second.sum(axis=0)]
        return np.concatenate(parts).astype(np.int64)

    def read_sums(
        self, candidates: NDArray[Any], total: NDArray[np.uint64], round_: int, bounds: RowBounds
    ) -> Floats:
        """Return the sum of all silos' :meth:`row_sums` as that of their :meth:`local`."""
        bits: list[int] = []
        for wide in self._asked(candidates, round_):
            loss, first, second = (scale.fraction_bits for scale in self._scales(wide, bounds))
            bits += [loss, *[first] * self._size, *[second] * (self._size * (round_ == 1))]
        curved = np.arange(1 + self._size, len(bits)) if round_ == 1 else np.zeros(0, np.int64)
        positive = np.concatenate([self._losses(round_), curved]).astype(np.int64)
        return decoded(total, np.array(bits, np.int64), positive)

    def _asked(self, candidates: NDArray[Any], round_: int) -> list[Floats]:
        return [np.asarray(c, np.float64) for c in (candidates[:1] if round_ == 1 else candidates)]

    def _scales(self, point: Floats, bounds: RowBounds) -> tuple[FixedPoint, ...]:
        values, intercept = self.leaf_values(point)
        margin = largest_margin(values, self.table.offsets, intercept)
        return tuple(bounds.scale(bound) for bound in bounds.derivatives(margin))

    def write(
        self, vector: Floats, round_: int, known: NDArray[Any], rng: np.random.Generator
    ) -> RoundVector:
        """Return one loss a search in float64, gradients and curvature in float32."""
        losses = self._losses(round_)
        slopes = np.delete(vector, losses).astype(np.float32)
        return RoundVector(slopes=LeafSlopes(vector[losses], slopes))

    def read(self, offer: RoundVector, round_: int, known: NDArray[Any]) -> Floats:
        """Return losses, gradients and curvature in the order of :meth:`local`."""
        if offer.slopes is None:
            raise OfferRejected("vector: expected losses and their gradients")
        losses, width = self._losses(round_), self.width(round_)
        is_loss = np.zeros(width, np.bool_)
        is_loss[losses] = True
        vector = np.empty(width)
        vector[losses] = checked("losses", offer.slopes.losses, (len(losses),))
        vector[~is_loss] = checked("slopes", offer.slopes.slopes, (width - len(losses),))
        return vector

    def _losses(self, round_: int) -> NDArray[np.int64]:
        n_losses = 1 if round_ == 1 else len(self.penalties)
        return np.arange(n_losses) * (1 + self._size)

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Move every search by one evaluation."""
        size = self._size
        searches = []
        for number, search in enumerate(self._searches(state)):
            start = 0 if round_ == 1 else number * (1 + size)
            curvature = total[1 + size :] if round_ == 1 else None
            sums = LeafSums(float(total[start]), total[start + 1 : start + 1 + size], curvature)
            searches.append(search.advance(sums))
        return self._state(searches)

    def choose(self, state: CombinerState, choice: int) -> CombinerState:
        """Name the best search; all continue."""
        return replace(state, solution=state.candidates[choice])

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins with these leaf values."""
        values, intercept = self.leaf_values(point)
        return linear_margins(values, intercept, leaves)

    def rates(self, point: NDArray[Any], active: NDArray[np.int64] | None) -> Floats:
        """Return the rate that would bring each tree closest to its new leaves."""
        found = rescaled_rates(self.table, self.leaf_values(point)[0])
        return rates_by_output(found, self.table, self.n_outputs)

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

    def _state(self, searches: list[LeafSearch]) -> CombinerState:
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
        return CombinerState(
            np.array([search.trial for search in searches], np.float32),
            searches[len(searches) // 2].point,
            memory,
        )

    def _searches(self, state: CombinerState) -> list[LeafSearch]:
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
