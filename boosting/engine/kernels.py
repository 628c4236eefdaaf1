"""Compiled split search: XGBoost's arithmetic on integer sums (see ``splitting`` for the rules)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


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


class Columns(NamedTuple):
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

    def part(self, nodes: slice) -> Best:
        """Return views of some nodes' rows."""
        return Best(
            self.gain[nodes],
            self.used[nodes],
            self.last_left[nodes],
            self.default_left[nodes],
            self.left[nodes],
            self.goes_right[nodes],
        )


@njit(cache=True, nogil=True)
def _soft_threshold(g, alpha):  # type: ignore[no-untyped-def]
    if g > alpha:
        return g - alpha
    if g < -alpha:
        return g + alpha
    return 0.0


@njit(cache=True, nogil=True)
def _weight(g, h, least, rules):  # type: ignore[no-untyped-def]
    """Return the weight of a node with at least ``least`` hessian; 0 for lighter ones."""
    if h < least or h <= 0.0:
        return np.float32(0.0)
    exact = -_soft_threshold(g, rules.alpha) / (h + rules.lam)
    limit = rules.max_delta_step
    if limit != 0.0 and abs(exact) > limit:
        exact = limit if exact > 0 else -limit
    return np.float32(exact)


@njit(cache=True, nogil=True)
def _clipped(w, rules, low, high):  # type: ignore[no-untyped-def]
    return min(max(w, low), high) if rules.constrained else w


@njit(cache=True, nogil=True)
def _score(g, h, w, rules, by_weight):  # type: ignore[no-untyped-def]
    """Return V(G, H), or the gain of weight ``w`` where ``w`` may have been clipped."""
    if h <= 0.0:
        return np.float32(0.0)
    if by_weight:
        g32, h32, lam32 = np.float32(g), np.float32(h), np.float32(rules.lam)
        return np.float32(-(np.float32(2.0) * g32 * w + (h32 + lam32) * (w * w)))
    t = _soft_threshold(g, rules.alpha)
    return np.float32(t * t / (h + rules.lam))


@njit(cache=True, nogil=True)
def find_scalar(hist, totals, columns, allowed, bounds, rules, best):  # type: ignore[no-untyped-def]
    """Write the best split of every node with one output; see ``splitting.find_splits``."""
    offsets, categorical = columns.offsets, columns.categorical
    scale_g, scale_h, mcw = rules.scale_g, rules.scale_h, rules.min_child_weight
    by_weight = rules.constrained or rules.max_delta_step != 0.0
    for s in range(hist.shape[0]):
        tg, th = totals[s, 0], totals[s, 1]
        low, high = bounds[s, 0], bounds[s, 1]
        G, H = tg * scale_g, th * scale_h
        own = _clipped(_weight(G, H, mcw, rules), rules, bounds[s, 2], bounds[s, 3])
        parent = _score(G, H, own, rules, by_weight)
        gain = np.float32(0.0)
        for k in range(categorical.shape[0]):
            if not allowed[s, k]:
                continue
            begin, n_bins = offsets[k], offsets[k + 1] - offsets[k]
            direction = columns.monotone[k]
            if categorical[k]:
                n_scans = 1 if n_bins < rules.max_cat_to_onehot else 2
                order = np.arange(n_bins)
                if n_scans == 2:
                    weights = np.empty(n_bins, dtype=np.float32)
                    for b in range(n_bins):
                        g, h = hist[s, begin + b, 0] * scale_g, hist[s, begin + b, 1] * scale_h
                        weights[b] = _weight(g, h, mcw, rules)
                    order = np.argsort(weights, kind="mergesort")
            else:
                n_scans = 2
                order = np.arange(1)
            present_g, present_h = np.int64(0), np.int64(0)
            if not categorical[k] or n_scans == 1:
                for b in range(n_bins):
                    present_g += hist[s, begin + b, 0]
                    present_h += hist[s, begin + b, 1]
            any_missing = present_g != tg or present_h != th
            if not categorical[k] and not any_missing:
                n_scans = 1
            for scan in range(n_scans):
                n_steps = n_bins
                if categorical[k]:
                    n_steps = (
                        2 * n_bins if n_scans == 1 else min(rules.max_cat_threshold, n_bins) - 1
                    )
                run_g, run_h = np.int64(0), np.int64(0)
                for step in range(n_steps):
                    # run_g, run_h: the scanned side; which side that is depends on the scan.
                    if not categorical[k]:
                        b = step if scan == 0 else n_bins - 1 - step
                        dg, dh = hist[s, begin + b, 0], hist[s, begin + b, 1]
                        if dg == 0 and dh == 0:
                            continue
                        run_g += dg
                        run_h += dh
                        scanned_left = scan == 0
                    elif n_scans == 1:
                        b = step >> 1
                        run_g, run_h = hist[s, begin + b, 0], hist[s, begin + b, 1]
                        if step & 1:
                            run_g += tg - present_g
                            run_h += th - present_h
                        scanned_left = False
                    else:
                        b = order[step if scan == 0 else n_bins - 1 - step]
                        run_g += hist[s, begin + b, 0]
                        run_h += hist[s, begin + b, 1]
                        scanned_left = scan == 1
                    rest_g, rest_h = tg - run_g, th - run_h
                    if scanned_left:
                        lg, lh, rg, rh = run_g, run_h, rest_g, rest_h
                    else:
                        lg, lh, rg, rh = rest_g, rest_h, run_g, run_h
                    Hl, Hr = lh * scale_h, rh * scale_h
                    if Hl < mcw or Hr < mcw:
                        continue
                    Gl, Gr = lg * scale_g, rg * scale_g
                    wl, wr = np.float32(0.0), np.float32(0.0)
                    if by_weight:
                        wl = _clipped(_weight(Gl, Hl, mcw, rules), rules, low, high)
                        wr = _clipped(_weight(Gr, Hr, mcw, rules), rules, low, high)
                        if (direction > 0 and wl > wr) or (direction < 0 and wl < wr):
                            continue
                    both = np.float32(
                        _score(Gl, Hl, wl, rules, by_weight) + _score(Gr, Hr, wr, rules, by_weight)
                    )
                    change = np.float32(both - parent)
                    if not (change > gain and change < np.inf):
                        continue
                    gain = change
                    best.used[s] = k
                    best.left[s, 0], best.left[s, 1] = lg, lh
                    if not categorical[k]:
                        best.last_left[s] = b if scan == 0 else b - 1
                        best.default_left[s] = scan == 1
                    else:
                        best.last_left[s] = 0
                        best.goes_right[s, :] = False
                        if n_scans == 1:
                            best.default_left[s] = step & 1 == 0
                            best.goes_right[s, b] = True
                        else:
                            best.default_left[s] = scan == 0
                            n_right = step + 1 if scan == 0 else n_bins - 1 - step
                            for i in range(n_right):
                                best.goes_right[s, order[i]] = True
        best.gain[s] = gain


@njit(cache=True, nogil=True)
def _vector_score(sums, rules):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(0, sums.shape[0], 2):
        h = sums[c + 1] * rules.scale_h
        if h > 0.0:
            t = _soft_threshold(sums[c] * rules.scale_g, rules.alpha)
            total += t * t / (h + rules.lam)
    return total


@njit(cache=True, nogil=True)
def _vector_hess(sums, scale_h):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for c in range(1, sums.shape[0], 2):
        total += sums[c]
    return total * scale_h


@njit(cache=True, nogil=True)
def find_vector(hist, totals, columns, allowed, bounds, rules, best):  # type: ignore[no-untyped-def]
    """Write the best split of every node with several outputs."""
    offsets, categorical = columns.offsets, columns.categorical
    scale_h, mcw = rules.scale_h, rules.min_child_weight
    n_values = totals.shape[1]
    run = np.empty(n_values, dtype=np.int64)
    rest = np.empty(n_values, dtype=np.int64)
    present = np.empty(n_values, dtype=np.int64)
    for s in range(hist.shape[0]):
        parent = _vector_score(totals[s], rules)
        gain = np.float32(0.0)
        for k in range(categorical.shape[0]):
            if not allowed[s, k]:
                continue
            begin, n_bins = offsets[k], offsets[k + 1] - offsets[k]
            present[:] = 0
            for b in range(n_bins):
                for c in range(n_values):
                    present[c] += hist[s, begin + b, c]
            any_missing = False
            for c in range(n_values):
                any_missing = any_missing or present[c] != totals[s, c]
            if categorical[k]:
                # One category against the rest: there is no order of vectors to scan by.
                n_scans, n_steps = 1, 2 * n_bins
            else:
                n_scans, n_steps = (2 if any_missing else 1), n_bins
            for scan in range(n_scans):
                run[:] = 0
                for step in range(n_steps):
                    if categorical[k]:
                        b = step >> 1
                        scanned_left = False
                        for c in range(n_values):
                            run[c] = hist[s, begin + b, c]
                            if step & 1:
                                run[c] += totals[s, c] - present[c]
                    else:
                        b = step if scan == 0 else n_bins - 1 - step
                        scanned_left = scan == 0
                        for c in range(n_values):
                            run[c] += hist[s, begin + b, c]
                    for c in range(n_values):
                        rest[c] = totals[s, c] - run[c]
                    if _vector_hess(run, scale_h) < mcw or _vector_hess(rest, scale_h) < mcw:
                        continue
                    change = np.float32(
                        _vector_score(run, rules) + _vector_score(rest, rules) - parent
                    )
                    if not (change > gain and change < np.inf):
                        continue
                    gain = change
                    best.used[s] = k
                    for c in range(n_values):
                        best.left[s, c] = run[c] if scanned_left else rest[c]
                    if categorical[k]:
                        best.last_left[s] = 0
                        best.default_left[s] = step & 1 == 0
                        best.goes_right[s, :] = False
                        best.goes_right[s, b] = True
                    else:
                        best.last_left[s] = b if scan == 0 else b - 1
                        best.default_left[s] = scan == 1
        best.gain[s] = gain


@njit(cache=True, nogil=True)
def weigh(sums, rules, bounds, out):  # type: ignore[no-untyped-def]
    """Write the unshrunken weights of nodes."""
    for s in range(sums.shape[0]):
        heavy = _vector_hess(sums[s], rules.scale_h) >= rules.min_child_weight
        least = 0.0 if heavy else np.inf
        for c in range(out.shape[1]):
            g, h = sums[s, 2 * c] * rules.scale_g, sums[s, 2 * c + 1] * rules.scale_h
            out[s, c] = _clipped(_weight(g, h, least, rules), rules, bounds[s, 0], bounds[s, 1])


@njit(cache=True, nogil=True)
def gains(left, total, rules, out):  # type: ignore[no-untyped-def]
    """Write the gain of every candidate division of one node."""
    n_values = total.shape[0]
    scale_h, mcw = rules.scale_h, rules.min_child_weight
    by_weight = rules.max_delta_step != 0.0
    right = np.empty(n_values, dtype=np.int64)
    for i in range(left.shape[0]):
        for c in range(n_values):
            right[c] = total[c] - left[i, c]
        if _vector_hess(left[i], scale_h) < mcw or _vector_hess(right, scale_h) < mcw:
            out[i] = -np.inf
        elif n_values == 2:
            score = np.float32(0.0)
            parent = np.float32(0.0)
            for part in range(3):
                sums = left[i] if part == 0 else (right if part == 1 else total)
                G, H = sums[0] * rules.scale_g, sums[1] * scale_h
                value = _score(G, H, _weight(G, H, mcw, rules), rules, by_weight)
                if part == 2:
                    parent = value
                else:
                    score = np.float32(score + value)
            out[i] = np.float32(score - parent)
        else:
            out[i] = np.float32(
                _vector_score(left[i], rules)
                + _vector_score(right, rules)
                - _vector_score(total, rules)
            )
