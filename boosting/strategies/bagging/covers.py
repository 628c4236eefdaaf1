"""Covers and gains of a scrubbed model, over the rows of all silos, from one secure sum.

After the last round each silo drops its rows through every tree, at the margins that the tree was
fitted to, and adds up gradients and hessians by leaf. From the totals over all silos follow each
node's cover (its hessian) and each split's gain, as XGBoost computes them. They describe all rows
together, where the statistics that scrubbing removes describe one silo's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import max_delta_step_of
from hedgerow.boosting.errors import DataError, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, SiloChannel
from hedgerow.boosting.strategies.bagging.steps import COVERS
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.floats import add_securely, total_securely
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import KEYS, SumParameters
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.local import MarginRows

if TYPE_CHECKING:
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import CoordinatorStart, SiloStart
    from hedgerow.crypto.vault import Vault

Floats = NDArray[np.float64]
Rounds = Sequence[Sequence[tuple[int, list[Tree]]]]
"""Of each round its blocks: boosting steps, and their trees."""

_MOST = float(np.finfo(np.float32).max)
"""Of gains and covers: a silo refuses a result with any that is not finite."""
LEAST_COVER = 1e-6
"""Least cover of a leaf, as XGBoost has it: a node with 0 would have no SHAP values."""


def cover_parameters(min_silos: int) -> SumParameters:
    """Return how the sums are made: the largest number's, and that by leaf."""
    return replace(mean_parameters(min_silos, secure=True), batch=2, checks_totals=True)


def add_covers(
    link: SiloChannel,
    vault: Vault | None,
    start: SiloStart,
    at: ExchangeKey,
    model: tuple[object, ...],
    leaf_sums: Floats,
) -> None:
    """Add this silo's sums by leaf to the total; the silo half.

    Parameters
    ----------
    model : tuple
        State of the model that the rows were dropped through.
    leaf_sums : ndarray of shape (2 * n_leaves,)
    """
    sums = SiloSums.of(link, vault, start, cover_parameters(start.job.min_silos))
    sums.setup(at)
    add_securely(sums, COVERS, at, leaf_sums, state_digest(*model))


async def total_covers(
    hub: CoordinatorEndpoint, start: CoordinatorStart, at: ExchangeKey, n_leaves: int
) -> NDArray[np.float32] | None:
    """Return the sums by leaf over all silos, shape (2 * n_leaves,); the coordinator half.

    None where too few silos are left: the model is whole without covers.
    """
    sums = CoordinatorSums.of(hub, start, cover_parameters(start.job.min_silos))
    try:
        await sums.setup(at)
        found = await total_securely(sums, COVERS, at, 2 * n_leaves)
    except QuorumLost:
        # Silos that have offered keys learn that there is no sum, and end as all others do.
        await hub.collect(KEYS, at, silos=(), quorum=0)
        return None
    if (found.total[n_leaves:] < 0).any() or (abs(found.total) > _MOST).any():
        raise SumCorrupt(
            f"sum {COVERS.name!r} of round {at.round}: a hessian below zero, or beyond float32"
        )
    found.answer(Receipt())
    return found.total.astype(np.float32)


def leaf_sums(
    start: SiloStart, blank: Ensemble, rounds: Rounds, native: Mapping[str, Any]
) -> Floats:
    """Return a silo's sums of gradients by leaf, then of hessians, shape (2 * n_leaves,).

    Parameters
    ----------
    blank : Ensemble
        The model without trees.
    """
    blank = blank.unnamed()
    rows = MarginRows(start.dataset, start.starting or blank, start.n_threads)
    found: list[Tree] = []
    for blocks in rounds:
        before, after = rows.margins, blank
        parts = [_steps(n_steps, trees) for n_steps, trees in blocks]
        firsts = iter(_side_by_side(rows, blank, [steps[0] for steps in parts if steps], native))
        for (n_steps, trees), steps in zip(blocks, parts, strict=True):
            rows.margins = before
            found += next(firsts) if steps else []
            for done, step in pairwise(steps):
                rows.add(blank.extend(done, n_steps=1))
                found += rows.refreshed(blank.extend(step, n_steps=1), native)
            after = after.extend(trees, n_steps=n_steps)
        rows.margins = before
        rows.add(after)
    none = np.zeros(0, np.float32)
    hess = np.concatenate([none, *(tree.cover[tree.is_leaf] for tree in found)]).astype(np.float64)
    weight = np.concatenate([none, *(tree.weight[tree.is_leaf] for tree in found)])
    grad = -weight * hess
    if start.job.objective == "count:poisson":  # its hessian has the largest step in it
        hess *= math.exp(max_delta_step_of(start.job.booster))
    return np.concatenate([grad, hess])


def _steps(n_steps: int, trees: list[Tree]) -> list[list[Tree]]:
    each = len(trees) // max(1, n_steps)
    return [trees[k * each : (k + 1) * each] for k in range(n_steps)]


def _side_by_side(
    rows: MarginRows, blank: Ensemble, steps: Sequence[list[Tree]], native: Mapping[str, Any]
) -> list[list[Tree]]:
    """Refresh steps that were all fitted to these margins, as the parallel trees of one step.

    XGBoost takes as long for one tree as for many.
    """
    trees = [tree for step in steps for tree in step]
    if not trees:
        return list(map(list, steps))
    order = sorted(range(len(trees)), key=lambda k: trees[k].group)
    n_parallel = len(trees) // blank.about.n_outputs
    wide = blank.parallel(n_parallel).extend([trees[k] for k in order], n_steps=1)
    found = rows.refreshed(wide, {**native, "num_parallel_tree": n_parallel})
    placed = iter([tree for _, tree in sorted(zip(order, found, strict=True), key=itemgetter(0))])
    return [[next(placed) for _ in step] for step in steps]


def n_leaves(trees: Sequence[Tree]) -> int:
    """Return the number of leaves of trees."""
    return sum(int(np.count_nonzero(tree.is_leaf)) for tree in trees)


def with_covers(ensemble: Ensemble, totals: NDArray[np.float32], booster: Booster) -> Ensemble:
    """Return an ensemble whose nodes have the covers and gains of sums by leaf.

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
        score = _score(sums[:, 0], sums[:, 1], booster)
        gain = np.zeros(tree.n_nodes)
        gain[splits] = score[tree.left[splits]] + score[tree.right[splits]] - score[splits]
        trees.append(
            replace(
                tree,
                gain=np.clip(gain, -_MOST, _MOST).astype(np.float32),
                cover=np.minimum(sums[:, 1], _MOST).astype(np.float32),
            )
        )
        at = end
    return replace(ensemble, trees=tuple(trees))


def _score(grad: Floats, hess: Floats, booster: Booster) -> Floats:
    """Return what nodes' weights gain, twice, as XGBoost computes it."""
    curved = hess + booster.lambda_
    weight = np.sign(grad) * -np.maximum(np.abs(grad) - booster.alpha, 0.0) / curved
    largest = max_delta_step_of(booster)
    if largest > 0:
        weight = np.clip(weight, -largest, largest)
    return -(2 * grad * weight + curved * weight**2 + 2 * booster.alpha * np.abs(weight))
