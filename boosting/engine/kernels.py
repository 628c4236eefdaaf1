"""Compiled split search: XGBoost's arithmetic on integer sums (see ``splitting`` for the rules)."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.native.kernels import kernel


class Rules(NamedTuple):
    """How sums become weights and gains; the parameters are XGBoost's.

    ``constrained``: weights are clipped to the bounds of monotone constraints.
    """

    scale_g: float
    scale_h: float
    min_child_weight: float
    lam: float
    alpha: float
    max_delta_step: float
    constrained: bool
    max_cat_to_onehot: int
    max_cat_threshold: int


class FeatureBins(NamedTuple):
    """The features of a histogram: ``offsets`` of their bins, kind and monotone direction.

    Shapes (n_used + 1,), (n_used,) and (n_used,).
    """

    offsets: NDArray[np.int64]
    categorical: NDArray[np.bool_]
    monotone: NDArray[np.int64]


class Best(NamedTuple):
    """Where the best split of every node is written, one row a node.

    ``used`` is a position in :class:`Columns`, -1 where nothing splits; ``left`` are the sums of
    the rows that go left, ``goes_right`` the codes of a categorical split that go right.
    """

    gain: NDArray[np.float32]
    used: NDArray[np.int64]
    last_left: NDArray[np.int64]
    default_left: NDArray[np.bool_]
    left: NDArray[np.int64]
    goes_right: NDArray[np.bool_]


def _soft_threshold(g, alpha):
    return np.maximum(g - alpha, 0.0) + np.minimum(g + alpha, 0.0)


def _weight(g, h, least, rules):
    """Return the weight of a node with at least ``least`` hessian; 0 for lighter ones."""
    exact = -_soft_threshold(g, rules.alpha) / (h + rules.lam)
    if rules.max_delta_step != 0.0:
        exact = np.clip(exact, -rules.max_delta_step, rules.max_delta_step)
    return np.where((h < least) | (h <= 0.0), 0.0, exact).astype(np.float32)


def _clipped(w, rules, low, high):
    return np.minimum(np.maximum(w, low), high) if rules.constrained else w


def _score(g, h, w, rules, by_weight):
    """Return V(G, H), or the gain of weight ``w`` where ``w`` may have been clipped."""
    if by_weight:
        g32, h32, lam32 = np.float32(g), np.float32(h), np.float32(rules.lam)
        gain = -(np.float32(2.0) * g32 * w + (h32 + lam32) * (w * w))
    else:
        gain = _soft_threshold(g, rules.alpha) ** 2 / (h + rules.lam)
    return np.where(h > 0.0, gain, 0.0).astype(np.float32)


@kernel("boosting/search", "possible")
def possible(hists, totals, offsets, most_grad, most_hess):
    """Whether rows can have the sums of bins of each node: see ``grower.check_sums``."""
    for sums, total in zip(hists, totals[:, 1::2], strict=True):
        # Sums of impossible bins may leave int64; rounding is far below what is looked for.
        shift = np.where(total < 1 << 47, 0, 16)
        g, h = sums[:, ::2], sums[:, 1::2]
        if (g < -most_grad).any() or (g > most_grad).any():
            return False
        if (h < 0).any() or (h > np.minimum(total, most_hess)).any():
            return False
        for start, stop in pairwise(offsets):
            if ((h[start:stop] >> shift).sum(axis=0) > total >> shift).any():
                return False
    return True


def _changes(left, node, rules, direction, bounds, parent, out):
    """Write the gain of each division, -inf where a child is too light."""
    h, mcw = left[1], rules.min_child_weight
    by_weight = rules.constrained or rules.max_delta_step != 0.0
    sides = [(g * rules.scale_g, h * rules.scale_h) for g, h in (left, node[:, None] - left)]
    weights = [_clipped(_weight(*side, mcw, rules), rules, *bounds[:2]) for side in sides]
    light = (h < 0) | (sides[0][1] < mcw) | (sides[1][1] < mcw)
    if rules.constrained and direction:
        light |= weights[0] > weights[1] if direction > 0 else weights[0] < weights[1]
    scores = [_score(*side, w, rules, by_weight) for side, w in zip(sides, weights, strict=True)]
    change = scores[0] + scores[1] - parent
    out[:] = np.where(light | ~(change < np.inf), -np.inf, change)


def _scans(bins, node, sets, order, rules):
    """Yield the sums of rows on the left of a scan's divisions, and which divisions have any.

    A numeric feature is scanned up with missing values on the right, and down with them on the
    left. Without an order each category alone goes right, without and with missing values; else
    the first go right, or the last go left.
    """
    rest = node - bins.sum(axis=0)
    some = np.ones(2 * bins.shape[0], np.bool_)
    if order is not None:
        n = max(min(rules.max_cat_threshold, bins.shape[0]) - 1, 0)
        yield node - np.cumsum(bins[order[:n]], axis=0), some[:n]
        yield np.cumsum(bins[order[::-1][:n]], axis=0), some[:n]
    elif sets:
        alone = node - bins
        yield np.stack([alone, alone - rest], axis=1).reshape(-1, node.shape[0]), some
    else:
        scanned = [np.logical_or.accumulate((way != 0).any(axis=1)) for way in (bins, bins[::-1])]
        yield np.cumsum(bins, axis=0), scanned[0]
        if rest.any():
            yield node - np.cumsum(bins[::-1], axis=0), scanned[1]


def _find(hist, s, node, columns, allowed, rules, best, changes, order_of):
    """Write the best split of a node: the first of the greatest gains above 0."""
    gain = np.float32(0.0)
    for k in np.flatnonzero(allowed[s]).tolist():
        bins, sets = hist[columns.offsets[k] : columns.offsets[k + 1]], columns.categorical[k]
        n_bins, order = bins.shape[0], None
        if sets and order_of is not None and n_bins >= rules.max_cat_to_onehot:
            order = order_of(bins)
        for scan, (left, some) in enumerate(_scans(bins, node, sets, order, rules)):
            change = np.where(some, changes(left, k), np.float32(-np.inf))
            found = int(change.argmax()) if change.shape[0] else -1
            if found < 0 or not change[found] > gain:
                continue
            gain, best.used[s], best.left[s] = change[found], k, left[found]
            best.last_left[s], best.default_left[s] = found, scan == 1
            if sets:
                n_right = found + 1 if scan == 0 else n_bins - 1 - found
                best.last_left[s], best.goes_right[s] = 0, False
                best.goes_right[s, found >> 1 if order is None else order[:n_right]] = True
                best.default_left[s] = found & 1 == 0 if order is None else scan == 0
            elif scan == 1:
                best.last_left[s] = n_bins - 2 - found
    best.gain[s] = gain


@kernel("boosting/search", "find_scalar")
def find_scalar(hists, first, stop, totals, columns, allowed, bounds, rules, best):
    """Write the best splits of nodes ``first`` to ``stop``: see ``splitting.find_splits``."""
    mcw = rules.min_child_weight
    for s in range(first, stop):
        node, own = totals[s], bounds[s]
        G, H = node[0] * rules.scale_g, node[1] * rules.scale_h
        weight = _clipped(_weight(G, H, mcw, rules), rules, *own[2:])
        parent = _score(G, H, weight, rules, rules.constrained or rules.max_delta_step != 0.0)

        def change(left, k, node=node, own=own, parent=parent):
            out = np.empty(left.shape[0], np.float32)
            _changes(left.T, node, rules, columns.monotone[k], own, parent, out)
            return out

        def order(bins):
            g, h = bins[:, 0] * rules.scale_g, bins[:, 1] * rules.scale_h
            return np.argsort(_weight(g, h, mcw, rules), kind="stable")

        _find(hists[s], s, node, columns, allowed, rules, best, change, order)


def _vector_score(sums, rules):
    total = np.zeros(sums.shape[:-1])
    for c in range(0, sums.shape[-1], 2):
        h = sums[..., c + 1] * rules.scale_h
        t = _soft_threshold(sums[..., c] * rules.scale_g, rules.alpha)
        total += np.where(h > 0.0, t * t / (h + rules.lam), 0.0)
    return total


def _vector_hess(sums, scale_h):
    return sums[..., 1::2].sum(axis=-1) * scale_h


@kernel("boosting/search", "find_vector")
def find_vector(hists, first, stop, totals, columns, allowed, bounds, rules, best):
    """Write the best splits of nodes ``first`` to ``stop`` with several outputs."""
    for s in range(first, stop):
        node = totals[s]

        def change(left, k, node=node):
            sides = left, node - left
            found = sum(_vector_score(side, rules) for side in sides) - _vector_score(node, rules)
            light = [_vector_hess(side, rules.scale_h) < rules.min_child_weight for side in sides]
            found = found.astype(np.float32)
            return np.where(light[0] | light[1] | ~(found < np.inf), np.float32(-np.inf), found)

        # One category against the rest: there is no order of vectors to scan by.
        _find(hists[s], s, node, columns, allowed, rules, best, change, None)


@kernel("boosting/search", "weigh")
def weigh(sums, rules, bounds, out):
    """Write the unshrunken weights of nodes."""
    heavy = _vector_hess(sums, rules.scale_h) >= rules.min_child_weight
    least = np.where(heavy, 0.0, np.inf)[:, None]
    weights = _weight(sums[:, ::2] * rules.scale_g, sums[:, 1::2] * rules.scale_h, least, rules)
    out[:] = _clipped(weights, rules, bounds[:, :1], bounds[:, 1:2])


@kernel("boosting/search", "gains_between")
def gains_between(side, total, rules, direction, bounds, out):
    """Write the gain of divisions that are bound in one direction, or in none."""
    G, H = total[0] * rules.scale_g, total[1] * rules.scale_h
    own = _weight(G, H, rules.min_child_weight, rules)
    own = _clipped(own, rules, bounds[2], bounds[3])
    parent = _score(G, H, own, rules, True)
    _changes(side, total, rules, direction, bounds, parent, out)


@kernel("boosting/search", "gains")
def gains(left, total, rules, out):
    """Write the gain of every candidate division of one node."""
    scale_h, mcw = rules.scale_h, rules.min_child_weight
    sides = left, total - left, total
    light = (_vector_hess(sides[0], scale_h) < mcw) | (_vector_hess(sides[1], scale_h) < mcw)
    if total.shape[0] == 2:
        pairs = [(own[..., 0] * rules.scale_g, own[..., 1] * scale_h) for own in sides]
        by_weight = rules.max_delta_step != 0.0
        scores = [_score(*own, _weight(*own, mcw, rules), rules, by_weight) for own in pairs]
    else:
        scores = [_vector_score(own, rules) for own in sides]
    out[:] = np.where(light, -np.inf, scores[0] + scores[1] - scores[2])
