"""Split finding from summed integer histograms, by XGBoost's rules.

Gain is ``V(left) + V(right) - V(node)`` with ``V = S_α(G)² / (H + λ)``, without the factor ½ and
with γ as a least gain: that is what XGBoost computes and what ``gamma`` means in a job file (FATE's
``min_impurity_split`` is on the same scale). Gains are rounded to float32 as XGBoost does; of equal
gains the first wins in the order: feature, then missing values right before left, then for "right"
the lowest bin and for "left" the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checks import one_of
from hedgerow.boosting.engine import kernels
from hedgerow.boosting.engine.binning import run_all
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.histogram import Layout
from hedgerow.boosting.engine.objective import max_delta_step_of
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.crypto.native.kernels import PointerArray

MIN_GAIN = np.float32(1e-6)
"""XGBoost's ``kRtEps``: a split must gain more than this."""

_UNBOUNDED = np.array([-np.inf, np.inf, -np.inf, np.inf], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class TreeParameters:
    """The booster's parameters that shape a tree, rounded to float32 as XGBoost keeps them.

    ``monotone`` has one entry a feature: -1, 0 or 1; empty means no constraint.
    """

    eta: float
    gamma: float
    max_depth: int
    max_leaves: int
    loss_guided: bool
    min_child_weight: float
    max_delta_step: float
    lambda_: float
    alpha: float
    colsample_bytree: float
    colsample_bylevel: float
    colsample_bynode: float
    max_cat_to_onehot: int
    max_cat_threshold: int
    monotone: tuple[int, ...]
    interactions: tuple[frozenset[int], ...] = ()
    """Groups of features that may divide nodes of one path; none means no constraint."""

    @property
    def samples_columns(self) -> bool:
        """Whether trees, levels or nodes use only some features."""
        return min(self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode) < 1

    @classmethod
    def of(cls, booster: Booster, n_features: int) -> TreeParameters:
        """Check the booster's parameters and take those of a tree.

        As in XGBoost, ``max_delta_step`` of Poisson's objective is 0.7 where it is not set.

        Raises
        ------
        InvalidJob
            Names the parameter, the expected and the received value.
        """
        one_of("booster", "grow_policy", booster.grow_policy, ("depthwise", "lossguide"))
        if booster.max_depth == 0 and booster.max_leaves == 0:
            raise InvalidJob("[booster] max_depth, max_leaves: expected a limit, received 0 and 0")
        for name in ("eta", "colsample_bytree", "colsample_bylevel", "colsample_bynode"):
            if not 0 < getattr(booster, name) <= 1:
                raise InvalidJob(
                    f"[booster] {name}: expected above 0, at most 1, "
                    f"received {getattr(booster, name)}"
                )
        for name in (
            "gamma",
            "max_depth",
            "max_leaves",
            "min_child_weight",
            "max_delta_step",
            "lambda_",
            "alpha",
        ):
            if not getattr(booster, name) >= 0:
                raise InvalidJob(
                    f"[booster] {name.rstrip('_')}: expected at least 0, "
                    f"received {getattr(booster, name)}"
                )
        monotone = tuple(booster.monotone_constraints)
        if len(monotone) > n_features or any(m not in (-1, 0, 1) for m in monotone):
            raise InvalidJob(
                f"[booster] monotone_constraints: expected at most {n_features} of -1, 0 or 1"
            )
        if any(monotone):
            monotone += (0,) * (n_features - len(monotone))
        else:
            monotone = ()
        return cls(
            eta=single(booster.eta),
            gamma=single(booster.gamma),
            max_depth=booster.max_depth,
            max_leaves=booster.max_leaves,
            loss_guided=booster.grow_policy == "lossguide",
            min_child_weight=single(booster.min_child_weight),
            max_delta_step=single(max_delta_step_of(booster)),
            lambda_=single(booster.lambda_),
            alpha=single(booster.alpha),
            colsample_bytree=booster.colsample_bytree,
            colsample_bylevel=booster.colsample_bylevel,
            colsample_bynode=booster.colsample_bynode,
            max_cat_to_onehot=booster.max_cat_to_onehot,
            max_cat_threshold=booster.max_cat_threshold,
            monotone=monotone,
            interactions=tuple(map(frozenset, booster.interaction_constraints)),
        )

    def may_follow(self, path: frozenset[int]) -> frozenset[int] | None:
        """Return the features that may divide a node below those of ``path``; None for all.

        As in XGBoost: those of the path, and of each group that has all of them.
        """
        if not path or not self.interactions:
            return None
        return path.union(*(group for group in self.interactions if path <= group))


def single(value: float) -> float:
    """Return a parameter as XGBoost has it, in float32."""
    return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Scale:
    """Real value of one unit of the integer sums of g and of h (``2 ** -s``, or a step size).

    ``most_grad`` and ``most_hess`` are the proven bounds of any sum's magnitude, in units.
    """

    grad: float
    hess: float
    most_grad: int = 1 << 63
    most_hess: int = 1 << 63


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best split of each of several nodes.

    Parameters
    ----------
    gain : ndarray of shape (n_nodes,), float32
        0 where nothing splits.
    feature : ndarray of shape (n_nodes,), int32
        -1 where nothing splits.
    bin : ndarray of shape (n_nodes,), int32
        Last bin that goes left; -1 when no present value does.
    default_left : ndarray of shape (n_nodes,), bool
    left : ndarray of shape (n_nodes, 2 * n_outputs), int64
        Sums of the rows that go left.
    categories : tuple of (ndarray of int32 or None)
        Codes that go right, for categorical splits.
    """

    gain: NDArray[np.float32]
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    left: NDArray[np.int64]
    categories: tuple[NDArray[np.int32] | None, ...]


def _rules(parameters: TreeParameters, scale: Scale) -> kernels.Rules:
    return kernels.Rules(
        scale.grad,
        scale.hess,
        parameters.min_child_weight,
        parameters.lambda_,
        parameters.alpha,
        parameters.max_delta_step,
        bool(parameters.monotone),
        parameters.max_cat_to_onehot,
        parameters.max_cat_threshold,
    )


def find_splits(
    histograms: Sequence[NDArray[np.int64]] | NDArray[np.int64],
    totals: NDArray[np.int64],
    layout: Layout,
    cuts: Cuts,
    parameters: TreeParameters,
    scale: Scale,
    *,
    allowed: NDArray[np.bool_] | None = None,
    bounds: NDArray[np.float32] | None = None,
    n_threads: int = 1,
) -> Candidates:
    """Find the best split of each node.

    Parameters
    ----------
    histograms : n_nodes ndarrays of shape (n_bins, 2 * n_outputs), int64
    totals : ndarray of shape (n_nodes, 2 * n_outputs), int64
        Sums over all rows of each node, those with missing values included.
    allowed : ndarray of shape (n_nodes, n_used), bool, or None
        Features (of the layout) that each node may use.
    bounds : ndarray of shape (n_nodes, 4), float32, or None
        Under monotone constraints: least and greatest weight of each node's children, then those
        under which the node itself was weighed.
    """
    n_nodes, n_values = totals.shape
    n_used = layout.features.shape[0]
    if allowed is None:
        allowed = np.ones((n_nodes, n_used), dtype=np.bool_)
    allowed = np.ascontiguousarray(allowed)
    constrained = bool(parameters.monotone)
    if bounds is None:
        bounds = np.tile(_UNBOUNDED, (n_nodes, 1))
    monotone = np.zeros(n_used, dtype=np.int64)
    if constrained:
        monotone = np.array(parameters.monotone, dtype=np.int64)[layout.features]
    categorical = cuts.categorical[layout.features]
    sizes = np.diff(layout.offsets)
    widest = int(sizes[categorical].max(initial=0))
    columns = kernels.FeatureBins(layout.offsets, categorical, monotone)
    best = kernels.Best(
        gain=np.zeros(n_nodes, dtype=np.float32),
        used=np.full(n_nodes, -1, dtype=np.int64),
        last_left=np.zeros(n_nodes, dtype=np.int64),
        default_left=np.zeros(n_nodes, dtype=np.bool_),
        left=np.zeros((n_nodes, n_values), dtype=np.int64),
        goes_right=np.zeros((n_nodes, widest), dtype=np.bool_),
    )
    rules = _rules(parameters, scale)
    kernel = kernels.find_scalar if n_values == 2 else kernels.find_vector

    each = PointerArray(histograms) if n_nodes else None

    def search(first: int, stop: int) -> None:
        kernel(each, first, stop, totals, columns, allowed, bounds, rules, best)

    size = max(1, n_nodes if n_threads == 1 else -(-n_nodes // (4 * n_threads)))
    parts = [(first, min(first + size, n_nodes)) for first in range(0, n_nodes, size)]
    run_all([partial(search, *part) for part in parts], n_threads)
    used = layout.features[np.maximum(best.used, 0)]
    feature = np.where(best.used >= 0, used, -1).astype(np.int32)
    return Candidates(
        gain=best.gain,
        feature=feature,
        bin=best.last_left.astype(np.int32),
        default_left=best.default_left,
        left=best.left,
        categories=tuple(
            np.flatnonzero(best.goes_right[i]).astype(np.int32)
            if feature[i] >= 0 and cuts.categorical[feature[i]]
            else None
            for i in range(n_nodes)
        ),
    )


def node_weights(
    sums: NDArray[np.int64],
    parameters: TreeParameters,
    scale: Scale,
    bounds: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return unshrunken weights ``-S_α(G) / (H + λ)``, shape (n_nodes, n_outputs), float32."""
    if bounds is None:
        bounds = np.tile(_UNBOUNDED, (sums.shape[0], 1))
    out = np.zeros((sums.shape[0], sums.shape[1] // 2), dtype=np.float32)
    kernels.weigh(sums, _rules(parameters, scale), bounds, out)
    return out


def gains_of_candidates(
    left: NDArray[np.int64],
    total: NDArray[np.int64],
    parameters: TreeParameters,
    scale: Scale,
) -> NDArray[np.float32]:
    """Return the gain of each way to divide one node; -inf where a child is too light.

    For parties that see only anonymous candidates; without monotone constraints.

    Parameters
    ----------
    left : ndarray of shape (n_candidates, 2 * n_outputs), int64
        Sums of the rows that would go left.
    total : ndarray of shape (2 * n_outputs,), int64
    """
    out = np.empty(left.shape[0], dtype=np.float32)
    kernels.gains(left, total, _rules(parameters, scale), out)
    return out


def gains_under_constraints(
    side: NDArray[np.int64],
    total: NDArray[np.int64],
    parameters: TreeParameters,
    scale: Scale,
    bound: NDArray[np.int8],
    bounds: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the gain of each way to divide one node of a tree with monotone constraints.

    Parameters
    ----------
    side : ndarray of shape (n_candidates, 2), int64
        Sums of one side.
    total : ndarray of shape (2,), int64
    bound : ndarray of shape (n_candidates,), int8
        1 where this side must weigh no more than the other one, -1 where no less, else 0.
    bounds : ndarray of shape (1, 4), float32
        As in :func:`find_splits`.

    Returns
    -------
    ndarray of shape (n_candidates,), float32
        -inf where a child is too light, or weighs what it must not.
    """
    out = np.empty(side.shape[0], dtype=np.float32)
    rules = _rules(parameters, scale)
    for direction in (-1, 0, 1):
        at = np.flatnonzero(bound == direction)
        part = np.empty(at.shape[0], dtype=np.float32)
        columns = np.ascontiguousarray(side[at].T)
        kernels.gains_between(columns, total, rules, direction, bounds[0], part)
        out[at] = part
    return out
