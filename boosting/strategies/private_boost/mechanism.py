"""What a row adds to a batch's sums, how much noise they get, and what leaf values follow.

All of it is known from the job: one row changes the sums of a batch of ``k`` trees by integers of
at most ``2**grid_bits`` in the L2 norm a tree, for any values that it has. Skellam noise then costs
what :func:`~hedgerow.crypto.masking.noise.skellam_rho` says, and everything after the noisy sums is
public arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.budget import Concentrated, epsilon_of, rho_within
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.engine.objective import Objective, objective_of
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.payloads import UInt16s
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.private_boost.structures import Codes, Domain, Structure
from hedgerow.crypto.masking.noise import skellam_rho

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Leaves = NDArray[np.intp]
Words = NDArray[np.uint64]

_LEAST_NOISE = 13
"""Bits of the noise's deviation on the grid, which a row's part is then far below."""
_HESSIANS = {Task.BINARY: 3.3, Task.MULTICLASS: 1.65}
"""Factors of hessians that leave a row of a logistic loss or a softmax as long as its gradient: a
row is longest where its probability is 0, and has no hessian there."""
_CUT = 0.6
"""Of that length: where a softmax's rows are cut under a budget, whose hessians then enter half as
long. Few rows are longer after the first batches, and noise is in proportion."""
_WAY = 150.0
"""Trees times learning rate of a softmax under a budget: fewer trees take longer steps."""
_NUMBER_SHARE = 0.3
"""Of a regression's row: its constant hessian, beside a gradient of sqrt(1 - share^2)."""
_MOST_VALUE = 8.0
_RING_BITS = 29


class Mechanism:
    """A job's sums: sizes, noise and costs of the batches, from public facts only.

    Parameters
    ----------
    n_silos : int
        On the roster.

    Raises
    ------
    InvalidJob
        The domain of a feature or of the label is not declared, or the budget is too small.
    """

    def __init__(
        self, parameters: PrivateBoost, job: JobParameters, schema: Schema, n_silos: int
    ) -> None:
        self.parameters, self.job, self.schema = parameters, job, schema
        self.n_silos = n_silos
        self.domain = Domain(schema, job.columns, parameters.bins)
        self.rule = parameters.rule
        # Rows of a softmax with a budget have a scale of their own, cut where few are longer.
        self.cuts = self.noisy and job.task is Task.MULTICLASS
        if self.cuts and not parameters.step:
            most = max(self.rule.step, 1 / self.rule.trees_per_exchange)
            step = min(most, 0.5, max(self.rule.step / 2, _WAY / self.rule.trees))
            self.rule = replace(self.rule, step=step)
        self.n_outputs = max(1, schema.n_outputs)
        self.n_leaves = 1 << self.rule.depth
        self.honest = parameters.honest_of(n_silos)
        self.objective: Objective = objective_of(job.objective, job.task, job.booster)
        self.label_range: tuple[float, float] | None = None
        if job.task is Task.REGRESSION:
            ends = dict(job.columns.ranges).get(job.label)
            if ends is None:
                raise InvalidJob(
                    f"[columns.ranges] lacks {job.label}: the range of a regression's label bounds "
                    "what one row adds"
                )
            self.label_range = (ends[0], ends[1])
        if self.noisy and self.rho <= 0.0:
            raise InvalidJob("[private_boost] epsilon: too small for its delta")

    @property
    def noisy(self) -> bool:
        """Whether there is a budget."""
        return self.parameters.epsilon is not None

    @property
    def n_batches(self) -> int:
        """Exchanges of sums."""
        return self.parameters.n_results

    def trees_of(self, batch: int) -> range:
        """Return the numbers of a batch's trees."""
        first = batch * self.rule.trees_per_exchange
        return range(first, min(first + self.rule.trees_per_exchange, self.rule.trees))

    def structures(self, batch: int) -> list[Structure]:
        """Return the trees of a batch, without leaf values."""
        given = self.parameters
        drawn = {"by_node": given.splits == "node", "cyclic": given.structure == "cyclic"}
        depth, seed = self.rule.depth, self.job.seed
        return [self.domain.structure(seed, t, depth, **drawn) for t in self.trees_of(batch)]

    def n_values(self, batch: int) -> int:
        """Return the length of a batch's sum: G and H by tree, output and leaf."""
        return 2 * len(self.trees_of(batch)) * self.n_outputs * self.n_leaves

    # what one row adds

    @property
    def _span(self) -> float:
        assert self.label_range is not None
        return self.label_range[1] - self.label_range[0]

    @property
    def _longest_residual(self) -> float:
        return self._span * self.parameters.clip

    @cached_property
    def units(self) -> tuple[float, float]:
        """Gradient and hessian that a row of length 1 on its axis stands for."""
        if self.label_range is not None:
            return self._longest_residual / math.sqrt(1 - _NUMBER_SHARE**2), 1 / _NUMBER_SHARE
        longest = math.sqrt(2) if self.job.task is Task.MULTICLASS else 1.0
        if self.cuts:
            return _CUT * longest, 2 * _CUT * longest / _HESSIANS[self.job.task]
        return longest, longest / _HESSIANS[self.job.task]

    @property
    def base_score(self) -> float:
        """Where margins start: public, too."""
        if self.job.booster.base_score is not None:
            return self.job.booster.base_score
        if self.label_range is not None:
            return float(np.float32(sum(self.label_range) / 2))
        return self.objective.default_base_score

    def keys(self, codes: Codes, labels: Floats) -> Words:
        """Return a number of each row's content, which decides how it is rounded."""
        found = _mixed(np.ascontiguousarray(labels, np.float64).view(np.uint64) + self._salt(0))
        for k in range(codes.shape[1]):
            found = _mixed(found ^ (codes[:, k].astype(np.uint64) + self._salt(k + 1)))
        return found

    def _salt(self, number: int) -> np.uint64:
        given = np.array([[self.job.seed % (1 << 64)], [number]], np.uint64)
        return np.uint64(_mixed(_mixed(given[0]) + given[1])[0])

    def rows(
        self, batch: int, margins: NDArray[np.float32], labels: Floats, keys: Words
    ) -> Integers:
        """Return what each row adds to a leaf, shape (n_samples, 2 * n_outputs): G's, then H's.

        No row is longer than ``2**grid_bits``; one that would be is cut. A row is rounded up or
        down by its content and the batch, so that many small gradients of one size, those of a rare
        class, come to their sum; no row decides how another is rounded.
        """
        if self.label_range is not None:
            labels = np.clip(labels, *self.label_range)
        grad, hess = self.objective.gradients(margins, labels)
        of_grad, of_hess = self.units
        if self.label_range is not None:
            grad = np.clip(grad, -self._longest_residual, self._longest_residual)
        row = np.concatenate([grad / of_grad, hess / of_hess], axis=1).astype(np.float64)
        row = np.nan_to_num(row, posinf=1.0, neginf=-1.0)
        row /= np.maximum(1.0, np.sqrt((row**2).sum(axis=1, keepdims=True)))
        scaled = row * 2.0**self.grid_bits
        places = np.arange(row.shape[1], dtype=np.uint64) + self._salt((1 << 40) + batch)
        up = (_mixed(keys[:, None] + places) >> np.uint64(11)) * 2.0**-53
        found = np.floor(scaled + up).astype(np.int64)
        over = (found**2).sum(axis=1) > 1 << 2 * self.grid_bits
        found[over] = np.trunc(scaled[over] * (1 - 2.0**-40)).astype(np.int64)
        return found

    def sums(
        self, batch: int, leaves: Sequence[Leaves], margins: NDArray[np.float32], labels: Floats,
        keys: Words,
    ) -> Integers:  # fmt: skip
        """Return a silo's exact sums of a batch, one vector, from the rows' leaves by tree."""
        own = self.rows(batch, margins, labels, keys)
        columns = own.T.astype(np.float64)  # exact: sums are below 2**53
        parts = [np.bincount(own, row, self.n_leaves) for own in leaves for row in columns]
        return np.concatenate(parts).astype(np.int64)

    # noise

    @property
    def _n_paid(self) -> int:
        """Sums that the budget is divided among."""
        return self.n_batches + self.parameters.repeats

    @cached_property
    def _rho_of_batch(self) -> float:
        epsilon, delta = self.parameters.epsilon, self.parameters.delta
        assert epsilon is not None
        assert delta is not None
        return rho_within(epsilon, delta) / self._n_paid

    @cached_property
    def grid_bits(self) -> int:
        """Of a row's length; with noise so few that its deviation has 13 or 14 bits.

        Without noise a row is rounded to 1/4096, which 2**17 rows of 32-bit sums have room for.
        """
        if not self.noisy:
            return 12
        deviation = math.sqrt(self.rule.trees_per_exchange / (2 * self._rho_of_batch))
        return max(1, _LEAST_NOISE + 1 - math.ceil(math.log2(deviation)))

    @cached_property
    def variance(self) -> int:
        """Of the whole noise on each value; 0 without a budget."""
        if not self.noisy:
            return 0
        low, high = 0, 1
        while self._rho(high) > self._rho_of_batch:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._rho(middle) > self._rho_of_batch else (low, middle)
        return high

    def _rho(self, variance: float) -> float:
        square, absolute = self.sensitivities(self.rule.trees_per_exchange)
        return skellam_rho(variance, square=square, absolute=absolute)

    def sensitivities(self, n_trees: int) -> tuple[int, int]:
        """Return the largest square of the change by one row in the L2 norm, and in the L1 norm."""
        longest = 1 << self.grid_bits
        return n_trees * longest**2, n_trees * math.ceil(longest * math.sqrt(2 * self.n_outputs))

    @property
    def rho(self) -> float:
        """What a batch costs, as charged."""
        return self._rho(self.variance)

    def cost(self, batch: int) -> Concentrated:
        """Return what the sums of a batch cost."""
        only = self.parameters.secure and self.honest == self.n_silos
        square, _ = self.sensitivities(self.rule.trees_per_exchange)
        what = f"leaf sums of trees {self.trees_of(batch)[0]} to {self.trees_of(batch)[-1]}"
        n_values = self.n_values(batch)
        sensitivity = math.isqrt(square)
        return Concentrated(what, 0.0, sensitivity, n_values, only, self.rho, self.variance)

    def epsilon_against(self, parts: int) -> float:
        """Return the job's epsilon against who knows all but ``parts`` parts of the noise."""
        if not parts:
            return math.inf
        assert self.parameters.delta is not None
        kept = self.variance * min(1.0, parts / self.honest)
        return epsilon_of(self._rho(kept) * self._n_paid, self.parameters.delta)

    def ring_bits(self, row_bits: int) -> int:
        """Return the ring of the sums for at most ``2**row_bits`` rows of all silos together."""
        return 32 if row_bits + self.grid_bits <= _RING_BITS else 64

    # what follows from the sums

    def read(self, batch: int, total: Integers) -> Floats:
        """Return gradients and hessians of sums, (n_trees, 2, n_outputs, n_leaves).

        A row's gradients of a softmax add up to 0 over the classes, so what noisy sums of a leaf
        add up to is noise, and is taken out.
        """
        found = total.astype(np.float64).reshape(-1, 2, self.n_outputs, self.n_leaves)
        units = np.array(self.units).reshape(1, 2, 1, 1)
        found = found * units / 2.0**self.grid_bits
        if self.cuts:
            found[:, 0] -= found[:, 0].mean(axis=1, keepdims=True)
        return np.asarray(found)

    def leaf_values(self, batch: int, sums: Floats, n_parts: int) -> UInt16s:
        """Return the leaf values of a batch, shape (n_trees * n_outputs * n_leaves,), as float16.

        All trees of a batch see the same mean gradient, which each would step off: it is taken out
        of the leaves, ``-step (G + m H) / (H + s)`` where ``m = -sum G / (sum H + s)`` over the
        batch, and stepped off once. ``s`` is ``damping + shrinkage * deviation``, the deviation of
        the noise on G; ``H`` is no less than 0; and ``step`` falls with the root of the number of
        trees that share gradients.
        """
        grad, hess = sums[:, 0], np.maximum(sums[:, 1], 0.0)
        shrunk = self.added(self.deviation * math.sqrt(n_parts / self.honest))
        n_trees = len(sums)
        step = self.step_of(n_trees)
        mean = -grad.sum(axis=(0, 2)) / n_trees / (hess.sum(axis=(0, 2)) / n_trees + shrunk)
        mean = mean[None, :, None]
        values = mean * min(1.0, self.rule.step * n_trees) / n_trees
        values = values - step * (grad + mean * hess) / (hess + shrunk)
        values = np.clip(values / self.scale, -self.most_value, self.most_value)
        return np.asarray(values.astype(np.float16).reshape(-1).view(np.uint16))

    @property
    def deviation(self) -> float:
        """Least deviation of the noise on a sum of gradients, as read."""
        kept = 1 - 1 / self.n_outputs if self.cuts else 1.0
        return math.sqrt(self.variance * kept) / 2.0**self.grid_bits * self.units[0]

    @property
    def hessian_deviation(self) -> float:
        """The same of hessians."""
        return math.sqrt(self.variance) / 2.0**self.grid_bits * self.units[1]

    def added(self, deviation: float) -> float:
        """Return what is added to the hessians of each leaf where gradients have this deviation.

        Hessians of a regression count rows, so its deviation is one in rows of the longest
        residual: labels in other units have the same trees.
        """
        rows = deviation if self.label_range is None else deviation / self._longest_residual
        return self.parameters.damping + self.parameters.shrinkage * rows

    def step_of(self, n_trees: int) -> float:
        """Return the learning rate of each of ``n_trees`` trees that share gradients."""
        return self.rule.step * (1.0 if n_trees <= 9 else 3.0 / math.sqrt(n_trees))

    @property
    def scale(self) -> float:
        """What a leaf value of 1 stands for: of a regression about the length of its range."""
        if self.label_range is None:
            return 1.0
        return float(2.0 ** math.ceil(math.log2(self._span)))

    @property
    def most_value(self) -> float:
        """Bound of a leaf value, which float16 has exactly."""
        return _MOST_VALUE if self.label_range is None else 1.0

    def start_margins(self, n_samples: int) -> NDArray[np.float32]:
        """Return the margins before all trees, shape (n_samples, n_outputs)."""
        margin = self.objective.margin_of(self.base_score)
        return np.full((n_samples, self.n_outputs), margin, np.float32)

    def values_of(self, batch: int, values: UInt16s) -> NDArray[np.float32]:
        """Return leaf values as trees have them, shape (n_trees, n_outputs, n_leaves), float32."""
        found = values.view(np.float16).astype(np.float32) * np.float32(self.scale)
        return found.reshape(-1, self.n_outputs, self.n_leaves)

    def leaves(self, batch: int, codes: Codes) -> list[Leaves]:
        """Return the rows' leaves in each tree of a batch."""
        return [structure.leaves(codes) for structure in self.structures(batch)]

    def add(
        self,
        batch: int,
        leaves: Sequence[Leaves],
        margins: NDArray[np.float32],
        values: UInt16s,
    ) -> None:
        """Add a batch's trees to the margins of rows, shape (n_samples, n_outputs), in order."""
        for own, of_tree in zip(leaves, self.values_of(batch, values), strict=True):
            margins += of_tree.T[own]


def _mixed(words: Words) -> Words:
    """Return words of which each bit depends on all bits (Steele, Lea, Flood 2014: SplitMix64)."""
    with np.errstate(over="ignore"):
        found = words + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(found ^ (found >> np.uint64(31)))


def check_domain(parameters: PrivateBoost, job: JobParameters, schema: Schema) -> None:
    """Raise :class:`InvalidJob` where the job does not declare the domain of a column."""
    Mechanism(parameters, job, schema, 3)
