"""Covers, gains and weights of a scrubbed model, over the rows of all silos, from a secure sum.

After the last round each silo drops its rows through every tree, at the margins that the tree was
fitted to, and adds up gradients and hessians by leaf. From the totals over all silos follow each
node's cover (its hessian) and weight and each split's gain, as XGBoost computes them. They describe
all rows together, where the statistics that scrubbing removes describe one silo's. Each row's
gradient and hessian become integers before they are added, whose step follows from the power of two
above the largest silo's rows: the same step, the same bits, however rows are spread over silos.
Their bound is the loss's own, or that of the largest row of all silos.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import max_delta_step_of, objective_of
from hedgerow.boosting.engine.quantising import Pair, Quantiser, bound_of_exponents, row_bound
from hedgerow.boosting.errors import DataError, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, SiloChannel
from hedgerow.boosting.job import ADAPTIVE
from hedgerow.boosting.strategies.bagging.steps import COVERS
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.floats import exponent_of, within
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.maximum import LOWEST, add_maximum, total_maximum
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import KEYS, SumParameters
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.local import MarginRows
from hedgerow.crypto.masking.fixed_point import OutOfRange

if TYPE_CHECKING:
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import CoordinatorStart, JobParameters, SiloStart
    from hedgerow.crypto.vault.interface import Vault

Floats = NDArray[np.float64]
Rounds = Sequence[Sequence[tuple[int, list[Tree]]]]
"""Of each round its blocks: boosting steps, and their trees."""

_BLOCK = 1 << 22  # rows whose integers are added in float64 without rounding
_MOST_NODES = 1 << 24  # of rows and steps that are looked up at once
_MOST = float(np.finfo(np.float32).max)
"""Of gains and covers: a silo refuses a result with any that is not finite."""
LEAST_COVER = 1e-6
"""Least cover of a leaf, as XGBoost has it: a node with 0 would have no SHAP values."""


def cover_parameters(min_silos: int) -> SumParameters:
    """Return how the sums are made: the largest numbers', and that by leaf."""
    return replace(mean_parameters(min_silos, secure=True), batch=2, checks_totals=True)


def n_bounds(job: JobParameters) -> int:
    """Return how many largest numbers silos find before the sum by leaf.

    That of their rows, and those of a row's gradient and hessian where the job does not say them.
    """
    return 1 if _bound(job) is not None else 3


def add_covers(
    link: SiloChannel,
    vault: Vault | None,
    start: SiloStart,
    at: ExchangeKey,
    model: tuple[object, ...],
    blank: Ensemble,
    rounds: Rounds,
) -> None:
    """Add this silo's sums by leaf to the total; the silo half.

    Parameters
    ----------
    model : tuple
        State of the model that the rows are dropped through.
    blank : Ensemble
        The model without trees.
    """
    sums = SiloSums.of(link, vault, start, cover_parameters(start.job.min_silos))
    sums.setup(at)
    own, state = largest(start, blank, rounds), state_digest(*model)
    found = add_maximum(sums, at, own, state=state, steps=COVERS.bound)
    quantiser = quantiser_of(start.job, len(start.silos), found)
    parts = quantiser.grad.residues(leaf_sums(start, blank, rounds, quantiser))
    state = state_digest(state, *found)
    sums.sum(COVERS.secure, at, parts, state=state, ring=COVERS.ring_bits)


async def total_covers(
    hub: CoordinatorEndpoint, start: CoordinatorStart, at: ExchangeKey, n_leaves: int
) -> NDArray[np.float32] | None:
    """Return the sums by leaf over all silos, shape (2 * n_leaves,); the coordinator half.

    None where too few silos are left: the model is whole without covers.
    """
    sums = CoordinatorSums.of(hub, start, cover_parameters(start.job.min_silos))
    try:
        await sums.setup(at)
        found, _ = await total_maximum(sums, at, n_bounds(start.job), COVERS.bound)
        outcome = await sums.sum(COVERS.secure, at, 2 * n_leaves, ring=COVERS.ring_bits)
    except QuorumLost:
        # Silos that have offered keys learn that there is no sum, and end as all others do.
        await hub.collect(KEYS, at, silos=(), quorum=0)
        return None
    assert outcome.total is not None, "only sums over a fixed set are abandoned"
    quantiser = quantiser_of(start.job, len(start.silos), found)
    try:
        grad = quantiser.grad.decode(outcome.total[:n_leaves])
        hess = quantiser.hess.decode(outcome.total[n_leaves:])
    except OutOfRange as error:
        raise SumCorrupt(f"sum {COVERS.name!r} of round {at.round}: {error}") from error
    if (hess < 0).any() or (abs(grad) > _MOST).any() or (hess > _MOST).any():
        raise SumCorrupt(
            f"sum {COVERS.name!r} of round {at.round}: a hessian below zero, or beyond float32"
        )
    sums.answer(COVERS.secure, outcome, Receipt())
    return np.concatenate([grad, hess]).astype(np.float32)


def largest(start: SiloStart, blank: Ensemble, rounds: Rounds) -> tuple[int, ...]:
    """Return the powers of two above a silo's numbers, as many as :func:`n_bounds`."""
    n_rows = exponent_of(np.array([float(start.dataset.n_samples)]))
    if _bound(start.job) is not None:
        return (n_rows,)
    grad = hess = LOWEST
    for rows, _ in _waves(start, blank.unnamed(), rounds):
        g, h = _derivatives(start, rows.margins)
        grad, hess = max(grad, exponent_of(g)), max(hess, exponent_of(h))
    return n_rows, grad, hess


def quantiser_of(job: JobParameters, n_silos: int, found: Sequence[int]) -> Quantiser:
    """Return how rows become integers, by the largest numbers of all silos."""
    # No silo has 2**31 rows: one that says so would make all silos' steps coarse.
    n_rows = n_silos << min(31, max(0, found[0]))
    bound = _bound(job) or bound_of_exponents(*found[1:])
    return Quantiser.fitting(n_rows, bound, ring_bits=COVERS.ring_bits)


def leaf_sums(
    start: SiloStart, blank: Ensemble, rounds: Rounds, quantiser: Quantiser
) -> NDArray[np.int64]:
    """Return a silo's sums of gradients by leaf, then of hessians, shape (2 * n_leaves,).

    They are exact sums of the rows' numbers in the quantiser's steps; one that is no number counts
    as 0, one beyond the bound as the bound.
    """
    blank = blank.unnamed()
    found: dict[int, list[NDArray[np.int64]]] = {}
    for rows, steps in _waves(start, blank, rounds):
        numbers = [
            np.rint(np.ldexp(within(own, scale.bound), scale.fraction_bits))
            for own, scale in zip(
                _derivatives(start, rows.margins), (quantiser.grad, quantiser.hess), strict=True
            )
        ]
        some = max(1, _MOST_NODES // max(1, rows.dataset.n_samples))
        for first in range(0, len(steps), some):  # XGBoost loads many trees in the time of one
            batch = steps[first : first + some]
            trees = [tree for _, step in batch for tree in step]
            nodes = rows.leaves(blank.extend(trees, n_steps=len(batch)))
            places = [place + k for place, step in batch for k in range(len(step))]
            for place, tree, node in zip(places, trees, nodes.T, strict=True):
                found[place] = [_by_leaf(tree, node, own[:, tree.group]) for own in numbers]
    sums = [found[place] for place in sorted(found)]
    return np.concatenate([np.zeros(0, np.int64), *(own[k] for k in (0, 1) for own in sums)])


def _by_leaf(tree: Tree, node: NDArray[np.intp], numbers: Floats) -> NDArray[np.int64]:
    """Return the sums of whole numbers of rows by leaf."""
    total = np.zeros(tree.n_nodes, np.int64)
    for k in range(0, len(node), _BLOCK):
        own = slice(k, k + _BLOCK)
        total += np.bincount(node[own], numbers[own], tree.n_nodes).astype(np.int64)
    return total[tree.is_leaf]


def _waves(
    start: SiloStart, blank: Ensemble, rounds: Rounds
) -> Iterator[tuple[MarginRows, list[tuple[int, list[Tree]]]]]:
    """Yield the rows at margins, and the steps that were fitted to these, by place in the model.

    The first steps of all blocks of a round were fitted to the same.
    """
    rows, place = MarginRows(start.dataset, start.starting or blank, start.n_threads), 0
    for blocks in rounds:
        before, after, parts = rows.margins, blank, []
        for n_steps, trees in blocks:
            each = len(trees) // max(1, n_steps)
            firsts = range(0, len(trees), max(1, each))
            parts.append([(place + k, trees[k : k + each]) for k in firsts])
            place += len(trees)
            after = after.extend(trees, n_steps=n_steps)
        yield rows, [steps[0] for steps in parts if steps]
        for steps in parts:
            rows.margins = before
            for (_, done), step in pairwise(steps):
                rows.add(blank.extend(done, n_steps=1))
                yield rows, [step]
        rows.margins = before
        rows.add(after)


def _derivatives(start: SiloStart, margins: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return gradients and hessians of rows, shape (n_samples, n_outputs), as XGBoost's loss."""
    job, data = start.job, start.dataset
    margins = margins.reshape(data.n_samples, start.schema.n_outputs)
    if job.objective in ADAPTIVE:
        absolute = job.objective == "reg:absoluteerror"
        weight = np.ones(data.n_samples) if data.weight is None else data.weight
        away = margins[:, 0] - data.labels.astype(np.float32)
        alpha = job.booster.quantile_alpha
        slope = np.sign(away) if absolute else np.where(away < 0, -alpha, 1.0 - alpha)
        return (slope * weight)[:, None], weight[:, None]
    objective = objective_of(job.objective, job.task, job.booster)
    g, h = objective.gradients(margins, data.labels, data.weight)
    return g.astype(np.float64), h.astype(np.float64)


def _bound(job: JobParameters) -> Pair | None:
    """Return the most that a row's gradient and hessian are; None where the job does not say."""
    heaviest = job.columns.heaviest
    if job.columns.weight:  # what a row may count at most says little of what rows do
        return None
    if job.objective in ADAPTIVE:
        return heaviest, heaviest
    return row_bound(objective_of(job.objective, job.task, job.booster), heaviest)


def n_leaves(trees: Sequence[Tree]) -> int:
    """Return the number of leaves of trees."""
    return sum(int(np.count_nonzero(tree.is_leaf)) for tree in trees)


def with_covers(ensemble: Ensemble, totals: NDArray[np.float32], booster: Booster) -> Ensemble:
    """Return an ensemble whose nodes have the covers, gains and base weights of sums by leaf.

    Parameters
    ----------
    totals : ndarray of shape (2 * n_leaves,)
        :func:`total_covers`; of more rounds than ``ensemble`` has where it ends earlier.
    """
    grad, hess = totals.reshape(2, -1).astype(np.float64)
    hess = np.maximum(hess, LEAST_COVER)
    if n_leaves(ensemble.trees) > len(hess):
        raise DataError(f"expected sums of {n_leaves(ensemble.trees)} leaves, found {len(hess)}")
    trees, at = [], 0
    for tree in ensemble.trees:
        leaf = tree.is_leaf
        end = at + int(np.count_nonzero(leaf))
        sums = np.zeros((tree.n_nodes, 2))
        sums[leaf] = np.stack([grad[at:end], hess[at:end]], axis=1)
        splits = np.flatnonzero(~leaf)
        for node in splits[::-1]:  # children come after their parent
            sums[node] = sums[tree.left[node]] + sums[tree.right[node]]
        weight = _weights(sums[:, 0], sums[:, 1], booster)
        score = _score(sums[:, 0], sums[:, 1], weight, booster)
        gain = np.zeros(tree.n_nodes)
        gain[splits] = score[tree.left[splits]] + score[tree.right[splits]] - score[splits]
        trees.append(
            replace(
                tree,
                gain=np.clip(gain, -_MOST, _MOST).astype(np.float32),
                cover=np.minimum(sums[:, 1], _MOST).astype(np.float32),
                weight=np.clip(weight, -_MOST, _MOST).astype(np.float32),
            )
        )
        at = end
    return replace(ensemble, trees=tuple(trees))


def falls(trees: Sequence[Tree], booster: Booster) -> Floats:
    """Return by how much each tree lowers the loss over the rows of all silos, to second order.

    At the margins that it was fitted to, shape (n_trees,): ``-(G w + H w^2 / 2)`` summed over its
    leaves of value w, of trees of :func:`with_covers`; 0 where they have no covers. Weights tell G
    without ``alpha`` and ``max_delta_step`` only.
    """
    found = []
    for tree in trees:
        value, hess, weight = (
            own[tree.is_leaf].astype(np.float64)
            for own in (tree.threshold, tree.cover, tree.weight)
        )
        grad = -weight * (hess + booster.lambda_)
        found.append(-(grad @ value + hess @ value**2 / 2) if hess.any() else 0.0)
    return np.array(found)


def _weights(grad: Floats, hess: Floats, booster: Booster) -> Floats:
    """Return the weights that nodes would have, as XGBoost computes them."""
    curved = hess + booster.lambda_
    weight = np.sign(grad) * -np.maximum(np.abs(grad) - booster.alpha, 0.0) / curved
    largest = max_delta_step_of(booster)
    return np.clip(weight, -largest, largest) if largest > 0 else weight


def _score(grad: Floats, hess: Floats, weight: Floats, booster: Booster) -> Floats:
    """Return what nodes' weights gain, twice, as XGBoost computes it."""
    curved = hess + booster.lambda_
    return -(2 * grad * weight + curved * weight**2 + 2 * booster.alpha * np.abs(weight))
