"""One learnt rate a tree: ``mean``, ``ridge`` and ``logit_ridge``.

``mean`` weights every silo's trees by 1/K. ``ridge`` and ``logit_ridge`` learn one rate a tree by
penalised least squares or Newton steps. A silo sends sums over its rows, so that the federated
result is the pooled one. Rows count by their weight, where they have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected, SumCorrupt
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
    EXACT_BITS,
    RowBounds,
    decoded,
    largest_margin,
)
from hedgerow.boosting.strategies.fedxgbllr.steps import RoundVector
from hedgerow.boosting.sums.floats import within
from hedgerow.crypto.masking.fixed_point import log2_ceil

Floats = NDArray[np.float64]

_ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class TreeRates:
    """One learnt rate a tree and one intercept an output."""

    rates: Floats
    """Of shape (n_trees,), float64."""
    intercept: Floats
    """Of shape (n_outputs,), float64."""

    @classmethod
    def mean(cls, table: LeafTable, n_silos: int, n_outputs: int) -> TreeRates:
        """Return the average of the silos' ensembles."""
        return cls(np.full(table.n_trees, 1.0 / n_silos), np.zeros(n_outputs))

    def leaf_values(self, table: LeafTable) -> Floats:
        """Return the leaves' values times their trees' rates, shape (n_leaves,)."""
        return table.values.astype(np.float64) * self.rates[table.trees]


def gram_width(table: LeafTable, n_outputs: int) -> int:
    """Return the length of :func:`gram_sums`."""
    return sum(_system_width(len(trees)) for trees in _by_output(table, n_outputs))


def gram_sums(rows: TrainingRows, task: Task, at: TreeRates) -> Floats:
    """Return one silo's share of the normal equations around ``at``.

    For output c with features F (its trees' outputs and a one) the equations are
    ``A = Fᵀ diag(h) F`` and ``b = −Fᵀ g``; the derivatives g and h are taken at ``at``. For
    squared error h = 1, so one solution is the exact one; for several classes the Hessian's
    blocks between classes are left out.

    Returns
    -------
    ndarray of shape (gram_width,), float64
        Output by output: the upper triangle of A by rows, then b.
    """
    leaves, outputs = rows.leaves, _by_output(rows.leaves.table, len(at.intercept))
    grams = [np.zeros((len(trees) + 1,) * 2) for trees in outputs]
    slopes = [np.zeros(len(trees) + 1) for trees in outputs]
    for first in range(0, leaves.n_samples, _ROWS_PER_BLOCK):
        some = np.arange(first, min(first + _ROWS_PER_BLOCK, leaves.n_samples))
        of_some = leaves.outputs(some).astype(np.float64)
        weights = np.ones(len(some)) if rows.weight is None else rows.weight[some]
        features = [np.column_stack([of_some[:, trees], np.ones(len(some))]) for trees in outputs]
        margins = np.column_stack(
            [
                F @ np.append(at.rates[trees], at.intercept[c])
                for c, (F, trees) in enumerate(zip(features, outputs, strict=True))
            ]
        )
        _, g, h = loss_and_derivatives(rows.y[some], margins, task)
        for c, F in enumerate(features):
            weighted = F * (h[:, c] * weights)[:, None]
            grams[c] += weighted.T @ F
            slopes[c] -= F.T @ (g[:, c] * weights)
    parts = []
    for gram, slope in zip(grams, slopes, strict=True):
        parts += [gram[np.triu_indices(len(slope))], slope]
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class GramScale:
    """How rows become integers whose normal equations are added without rounding.

    The equations of one output are ``ZᵀZ`` and ``−Fᵀg`` of whole numbers: Z of the outputs of trees
    and a one, times the root of the row's second derivative, F of these outputs alone, g of the
    row's first derivative. g has two words, of which the second has what the first leaves out: of
    rows beside one of 10,000 times their weight that is much.
    """

    curved: NDArray[np.int64]
    """``curved`` and ``flat``: of shape (n_trees + 1,), the fraction bits of the columns of Z and
    of F."""
    flat: NDArray[np.int64]
    slope: int
    """The fraction bits of first derivatives."""
    column_bits: int
    """No number of Z and F has more bits."""
    slope_bits: int

    @classmethod
    def of(cls, largest: Floats, margin: float, bounds: RowBounds) -> GramScale:
        """Return the scale of trees whose outputs are at most ``largest``, (n_trees,)."""
        _, first, second = bounds.derivatives(margin)
        n_bits = 61 - log2_ceil(float(bounds.n_silos * bounds.n_rows))
        columns = min((EXACT_BITS - log2_ceil(float(_ROWS_PER_BLOCK))) // 2, n_bits // 2)
        most = [*np.maximum(largest, 2.0**-100).tolist(), 1.0]
        root = second**0.5
        return cls(
            np.array([columns - log2_ceil(root * own) for own in most], np.int64),
            np.array([columns - log2_ceil(own) for own in most], np.int64),
            min(n_bits - columns, EXACT_BITS) - log2_ceil(first),
            columns,
            min(n_bits - columns, EXACT_BITS),
        )

    @property
    def fraction_bits(self) -> NDArray[np.int64]:
        """Of shape (n_values,): of the upper triangle of A by rows, then of both words of b."""
        pairs = (self.curved[:, None] + self.curved)[np.triu_indices(len(self.curved))]
        whole = self.flat + self.slope
        return np.concatenate([pairs, whole, whole + self.slope_bits])


def exact_gram_sums(
    rows: TrainingRows, task: Task, at: TreeRates, scales: Sequence[GramScale]
) -> NDArray[np.int64]:
    """Return :func:`gram_sums` as exact sums of the rows' integers, by the scale of each output.

    Each output's b is there twice, of the first and of the second words.
    """
    leaves, outputs = rows.leaves, _by_output(rows.leaves.table, len(at.intercept))
    grams = [np.zeros((len(trees) + 1,) * 2, np.int64) for trees in outputs]
    slopes = [np.zeros((2, len(trees) + 1), np.int64) for trees in outputs]
    margins = linear_margins(at.leaf_values(leaves.table), at.intercept, leaves)
    _, g, h = loss_and_derivatives(rows.y, margins, task)
    if rows.weight is not None:
        g, h = g * rows.weight[:, None], h * rows.weight[:, None]
    for first in range(0, leaves.n_samples, _ROWS_PER_BLOCK):
        some = np.arange(first, min(first + _ROWS_PER_BLOCK, leaves.n_samples))
        of_some = leaves.outputs(some).astype(np.float64)
        for c, (trees, scale) in enumerate(zip(outputs, scales, strict=True)):
            F = np.column_stack([of_some[:, trees], np.ones(len(some))])
            Z = _whole(F * np.sqrt(h[some, c])[:, None], scale.curved, scale.column_bits)
            grams[c] += (Z.T @ Z).astype(np.int64)
            bits, most = np.int64(scale.slope), scale.slope_bits
            first_word = _whole(g[some, c], bits, most)
            rest = g[some, c] - np.ldexp(first_word, -bits)  # exactly
            words = np.stack([first_word, _whole(rest, bits + most, most)]).astype(np.int64)
            columns = _whole(F, scale.flat, scale.column_bits).astype(np.int64)
            slopes[c] -= words @ columns
    parts = []
    for gram, slope in zip(grams, slopes, strict=True):
        parts += [gram[np.triu_indices(len(gram))], slope.reshape(-1)]
    return np.concatenate(parts)


def _whole(values: Floats, fraction_bits: NDArray[np.int64] | np.int64, most_bits: int) -> Floats:
    """Return numbers as whole ones of at most ``most_bits`` bits."""
    return within(np.rint(np.ldexp(values, fraction_bits)), 2.0**most_bits)


def newton_step(
    sums: Floats, table: LeafTable, at: TreeRates, prior: TreeRates, penalty: float
) -> TreeRates:
    """Return the solution of all silos' normal equations with a pull towards ``prior``.

    Minimises the quadratic model of the loss around ``at`` plus ``penalty/2·|rates − prior|²``;
    intercepts are not penalised.

    Parameters
    ----------
    sums : ndarray of shape (gram_width,), float64
        :func:`gram_sums` of all silos at ``at``, added up.

    Raises
    ------
    SumCorrupt
        The equations have no solution: a silo put in another vector.
    """
    rates, intercept = at.rates.copy(), at.intercept.copy()
    start = 0
    for c, trees in enumerate(_by_output(table, len(intercept))):
        p = len(trees) + 1
        upper = sums[start : start + p * (p + 1) // 2]
        slope = sums[start + len(upper) : start + len(upper) + p].copy()
        start += len(upper) + p
        gram = np.zeros((p, p))
        gram[np.triu_indices(p)] = upper
        gram = gram + np.triu(gram, 1).T
        gram[np.arange(p - 1), np.arange(p - 1)] += penalty
        gram[-1, -1] += 1e-12 * max(1.0, float(gram[-1, -1]))
        slope[:-1] -= penalty * (at.rates[trees] - prior.rates[trees])
        try:
            step = np.linalg.solve(gram, slope)
        except np.linalg.LinAlgError as error:
            raise SumCorrupt("rates: the silos' sums are those of no rows") from error
        rates[trees] += step[:-1]
        intercept[c] += step[-1]
    return TreeRates(rates, intercept)


def _by_output(table: LeafTable, n_outputs: int) -> list[NDArray[np.intp]]:
    return [np.flatnonzero(table.groups == c) for c in range(n_outputs)]


def _system_width(n_trees: int) -> int:
    p = n_trees + 1
    return p * (p + 1) // 2 + p


@dataclass(frozen=True, slots=True)
class RateCombiner(WholePoints):
    """One rate a tree: the mean, or penalised least squares or Newton steps around it."""

    doubles: ClassVar[bool] = True

    table: LeafTable
    task: Task
    n_silos: int
    n_outputs: int
    n_steps: int
    """0 for the mean; 1 solves squared error exactly."""
    penalties: tuple[float, ...] = ()
    """With several, the last round gives a candidate of each."""

    @property
    def n_rounds(self) -> int:
        """Newton steps."""
        return self.n_steps

    def initial(self) -> CombinerState:
        """Return the mean of the ensembles."""
        point = self._flat(TreeRates.mean(self.table, self.n_silos, self.n_outputs))
        return CombinerState(point[None], point)

    def width(self, round_: int) -> int:
        """Return the size of the normal equations."""
        return gram_width(self.table, self.n_outputs)

    def n_sums(self, round_: int) -> int:
        """Return the length of :meth:`row_sums`."""
        return self.width(round_) + self.table.n_trees + self.n_outputs

    def local(
        self,
        candidates: NDArray[Any],
        rows: TrainingRows,
        round_: int,
        choice: int,
        rng: np.random.Generator,
        check: Callable[[], None],
    ) -> Floats:
        """Return the silo's share of the normal equations at the point."""
        check()
        return gram_sums(rows, self.task, self._rates(candidates[0]))

    def row_sums(
        self, candidates: NDArray[Any], rows: TrainingRows, round_: int, bounds: RowBounds
    ) -> NDArray[np.int64]:
        """Return :meth:`local` as exact sums of the rows' integers."""
        at = self._rates(candidates[0])
        return exact_gram_sums(rows, self.task, at, self._scales(at, bounds))

    def read_sums(
        self, candidates: NDArray[Any], total: NDArray[np.uint64], round_: int, bounds: RowBounds
    ) -> Floats:
        """Return the sum of all silos' :meth:`row_sums` as that of their :meth:`local`."""
        bits, positive, start = [], [], 0
        scales = self._scales(self._rates(candidates[0]), bounds)
        for scale in scales:
            rows, columns = np.triu_indices(len(scale.curved))
            positive.append(start + np.flatnonzero(rows == columns))
            bits.append(scale.fraction_bits)
            start += len(bits[-1])
        sums = decoded(total, np.concatenate(bits), np.concatenate(positive))
        parts = []
        for scale, own in zip(
            scales, np.split(sums, np.cumsum(list(map(len, bits)))[:-1]), strict=True
        ):
            p = len(scale.curved)
            parts += [own[: -2 * p], own[-2 * p : -p] + own[-p:]]
        return np.concatenate(parts)

    def _scales(self, at: TreeRates, bounds: RowBounds) -> list[GramScale]:
        table = self.table
        margin = largest_margin(at.leaf_values(table), table.offsets, at.intercept)
        values = np.abs(table.values.astype(np.float64))
        largest = np.maximum.reduceat(values, table.offsets[:-1])
        outputs = _by_output(table, self.n_outputs)
        return [GramScale.of(largest[trees], margin, bounds) for trees in outputs]

    def write(
        self, vector: Floats, round_: int, known: NDArray[Any], rng: np.random.Generator
    ) -> RoundVector:
        """Return the normal equations."""
        return RoundVector(equations=vector)

    def read(self, offer: RoundVector, round_: int, known: NDArray[Any]) -> Floats:
        """Return the normal equations."""
        if offer.equations is None:
            raise OfferRejected("vector: expected normal equations")
        return checked("equations", offer.equations, (self.width(round_),))

    def advance(self, state: CombinerState, total: Floats, round_: int) -> CombinerState:
        """Solve; in the last round for every penalty."""
        at = self._rates(state.solution)
        prior = TreeRates.mean(self.table, self.n_silos, self.n_outputs)
        middle = self.penalties[len(self.penalties) // 2]
        penalties = self.penalties if round_ == self.n_steps else (middle,)
        points = [self._flat(newton_step(total, self.table, at, prior, p)) for p in penalties]
        return CombinerState(np.array(points), points[len(points) // 2])

    def choose(self, state: CombinerState, choice: int) -> CombinerState:
        """Keep one penalty's solution."""
        point = state.candidates[choice]
        return replace(state, candidates=point[None], solution=point)

    def margins(self, point: NDArray[Any], leaves: LeafOrdinals) -> Floats:
        """Return the margins of the rated trees."""
        at = self._rates(point)
        return linear_margins(at.leaf_values(self.table), at.intercept, leaves)

    def rates(self, point: NDArray[Any], active: NDArray[np.int64] | None) -> Floats:
        """Return the rates themselves."""
        return rates_by_output(self._rates(point).rates, self.table, self.n_outputs)

    def leaf_values(self, point: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the leaf values and intercepts that make a stock model of the point."""
        at = self._rates(point)
        return at.leaf_values(self.table), at.intercept

    def _flat(self, at: TreeRates) -> Floats:
        return np.append(at.rates, at.intercept)

    def _rates(self, point: NDArray[Any]) -> TreeRates:
        wide = np.asarray(point, np.float64)
        return TreeRates(wide[: self.table.n_trees], wide[self.table.n_trees :])
