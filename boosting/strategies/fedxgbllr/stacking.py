"""Combiners that keep the ensemble an ensemble: the trees stay, their leaf values change.

``mean`` weights every silo's trees by 1/K. ``ridge`` and ``logit_ridge`` give every tree one
learnt rate by penalised least squares or Newton steps. ``leaves`` learns every leaf value anew,
by minimising the penalised loss of all silos' rows together. Each needs from a silo only sums over
its rows, which add up, so that the federated result is the pooled one.

Conventions: ``margin[i, c] = intercept[c] + Σ_t value(leaf of row i in tree t)`` over the trees of
output c. Sums run over training rows, weighted where rows have weights. The prior of every
combiner is the mean of the silos' ensembles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable

Floats = NDArray[np.float64]

_ROWS_PER_BLOCK = 4096
_PAIRS_KEPT = 12  # curvature pairs of L-BFGS
_SUFFICIENT_DECREASE = 1e-4
_SMALLEST_STEP = 2.0**-20


def loss_and_derivatives(y: Floats, margins: Floats, task: Task) -> tuple[Floats, Floats, Floats]:
    """Return each row's loss and its derivatives by the margins.

    Parameters
    ----------
    y : ndarray of shape (n_samples,), float64
    margins : ndarray of shape (n_samples, n_outputs), float64

    Returns
    -------
    loss : ndarray of shape (n_samples,)
        Cross-entropy, or half the squared error.
    first, second : ndarray of shape (n_samples, n_outputs)
        The second one is the diagonal of the Hessian.
    """
    if task is Task.REGRESSION:
        residual = margins - y[:, None]
        return 0.5 * residual[:, 0] ** 2, residual, np.ones_like(residual)
    if task is Task.BINARY:
        s = margins[:, 0]
        loss = np.logaddexp(0.0, s) - y * s
        p = np.exp(-np.logaddexp(0.0, -margins))
        return loss, p - y[:, None], p * (1 - p)
    top = margins.max(axis=1, keepdims=True)
    exponentials = np.exp(margins - top)
    total = exponentials.sum(axis=1, keepdims=True)
    rows, classes = np.arange(len(y)), y.astype(np.int64)
    loss = np.log(total[:, 0]) + top[:, 0] - margins[rows, classes]
    p = exponentials / total
    first = p.copy()
    first[rows, classes] -= 1.0
    return loss, first, p * (1 - p)


@dataclass(frozen=True, slots=True)
class TreeRates:
    """One learnt rate a tree and one intercept an output.

    Parameters
    ----------
    rates : ndarray of shape (n_trees,), float64
    intercept : ndarray of shape (n_outputs,), float64
    """

    rates: Floats
    intercept: Floats

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


def gram_sums(
    leaves: LeafOrdinals,
    y: Floats,
    task: Task,
    at: TreeRates,
    row_weights: Floats | None = None,
) -> Floats:
    """Return one silo's part of the normal equations around ``at``.

    For output c with features F (its trees' outputs and a one) the equations are
    ``A = Fᵀ diag(h) F`` and ``b = −Fᵀ g``; the derivatives g and h are taken at ``at``. For
    squared error h = 1, so one solution is the exact one; for several classes the Hessian's
    blocks between classes are left out.

    Returns
    -------
    ndarray of shape (gram_width,), float64
        Output by output: the upper triangle of A by rows, then b.
    """
    n_outputs = len(at.intercept)
    outputs = _by_output(leaves.table, n_outputs)
    grams = [np.zeros((len(trees) + 1,) * 2) for trees in outputs]
    slopes = [np.zeros(len(trees) + 1) for trees in outputs]
    for first in range(0, leaves.n_samples, _ROWS_PER_BLOCK):
        rows = np.arange(first, min(first + _ROWS_PER_BLOCK, leaves.n_samples))
        of_rows = leaves.outputs(rows).astype(np.float64)
        weights = np.ones(len(rows)) if row_weights is None else row_weights[rows]
        features = [np.column_stack([of_rows[:, trees], np.ones(len(rows))]) for trees in outputs]
        margins = np.column_stack(
            [
                F @ np.append(at.rates[trees], at.intercept[c])
                for c, (F, trees) in enumerate(zip(features, outputs, strict=True))
            ]
        )
        _, g, h = loss_and_derivatives(y[rows], margins, task)
        for c, F in enumerate(features):
            weighted = F * (h[:, c] * weights)[:, None]
            grams[c] += weighted.T @ F
            slopes[c] -= F.T @ (g[:, c] * weights)
    parts = []
    for gram, slope in zip(grams, slopes, strict=True):
        parts += [gram[np.triu_indices(len(slope))], slope]
    return np.concatenate(parts)


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
        step = np.linalg.solve(gram, slope)
        rates[trees] += step[:-1]
        intercept[c] += step[-1]
    return TreeRates(rates, intercept)


@dataclass(frozen=True, slots=True)
class LeafSums:
    """What one silo, or all of them added up, say about the loss at a point.

    Parameters
    ----------
    loss : float
        Sum over rows.
    gradient : ndarray of shape (n_leaves + n_outputs,), float64
        By leaf values, then by intercepts.
    curvature : ndarray of shape (n_leaves + n_outputs,), float64, or None
        Diagonal of the Hessian; asked for at the first point only.
    """

    loss: float
    gradient: Floats
    curvature: Floats | None = None


def leaf_sums(
    leaves: LeafOrdinals,
    y: Floats,
    task: Task,
    point: Floats,
    *,
    with_curvature: bool,
    row_weights: Floats | None = None,
) -> LeafSums:
    """Return one silo's sums at ``point`` (leaf values, then intercepts)."""
    n_leaves = leaves.table.n_leaves
    margins = leaves.margins(point[:n_leaves], len(point) - n_leaves) + point[n_leaves:]
    loss, first, second = loss_and_derivatives(y, margins, task)
    if row_weights is not None:
        loss, first = loss * row_weights, first * row_weights[:, None]
        second = second * row_weights[:, None]
    curvature = None
    if with_curvature:
        curvature = np.append(leaves.leaf_sums(second), second.sum(axis=0))
    return LeafSums(
        float(loss.sum()), np.append(leaves.leaf_sums(first), first.sum(axis=0)), curvature
    )


def leaf_pulls(prior: Floats, n_outputs: int) -> Floats:
    """Return how strongly each entry of a point is held to ``prior``, relative to a penalty.

    A leaf's value is expected to move by about as much as it and the other leaves are large: its
    pull is ``2 m / (v² + m)``, with ``m`` the mean of ``v²``. So a leaf that stands out, say for a
    few rows far from the rest, is held less than one that hardly says anything.

    Parameters
    ----------
    prior : ndarray of shape (n_leaves + n_outputs,), float64
        Leaf values, then intercepts.

    Returns
    -------
    ndarray of shape (n_leaves + n_outputs,), float64
        Between 0 and 2; 1 where all leaves are alike, 0 for intercepts.
    """
    pulls = np.zeros(len(prior))
    squares = prior[: len(prior) - n_outputs] ** 2
    mean = float(squares.mean()) if len(squares) else 0.0
    pulls[: len(squares)] = 2 * mean / (squares + mean) if mean > 0 else 1.0
    return pulls


@dataclass(frozen=True, slots=True)
class LeafSearch:
    """State of the search for the leaf values that minimise the penalised loss of all rows.

    L-BFGS. Its first metric lies between the penalty and the loss's second derivatives by single
    leaves, which overstate what a leaf can do on its own: others hold the same rows. Each exchange
    evaluates one point (``trial``); a point that does not lower the loss enough is replaced by the
    middle of its step. Thirty evaluations come close to the minimum, sixteen near enough for most.

    Parameters
    ----------
    prior : ndarray of shape (n_leaves + n_outputs,), float64
    penalty : ndarray of shape (n_leaves + n_outputs,), float64
        Adds ``Σ penalty/2·(point − prior)²``; zero for intercepts. See :func:`leaf_pulls`.
    n_trees : int
        Trees of one output, which scales the first step: every row meets that many leaves.

    References
    ----------
    Nocedal and Wright, "Numerical optimization", 2nd edition, algorithms 7.4 and 3.1.
    """

    prior: Floats
    penalty: Floats
    n_trees: int
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
                return self._with(trial=half, metric=metric)
            change = gradient - self.gradient
            pairs = self.pairs
            if float(change @ step) > 1e-12 * float(step @ step):
                pairs = (*pairs, (step, change))[-_PAIRS_KEPT:]
        direction = _direction(gradient, metric, pairs, self.n_trees)
        return LeafSearch(
            self.prior,
            self.penalty,
            self.n_trees,
            self.trial,
            self.trial - direction,
            value,
            gradient,
            metric,
            pairs,
        )

    def _with(self, *, trial: Floats, metric: Floats) -> LeafSearch:
        return LeafSearch(
            self.prior,
            self.penalty,
            self.n_trees,
            self.point,
            trial,
            self.value,
            self.gradient,
            metric,
            self.pairs,
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


def _by_output(table: LeafTable, n_outputs: int) -> list[NDArray[np.intp]]:
    return [np.flatnonzero(table.groups == c) for c in range(n_outputs)]


def _system_width(n_trees: int) -> int:
    p = n_trees + 1
    return p * (p + 1) // 2 + p
