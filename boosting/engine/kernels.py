"""Compiled split search: XGBoost's arithmetic on integer sums (see ``splitting`` for the rules)."""

from __future__ import annotations

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
    if g > alpha:
        return g - alpha
    if g < -alpha:
        return g + alpha
    return 0.0


def _weight(g, h, least, rules):
    """Return the weight of a node with at least ``least`` hessian; 0 for lighter ones."""
    if h < least or h <= 0.0:
        return np.float32(0.0)
    exact = -_soft_threshold(g, rules.alpha) / (h + rules.lam)
    limit = rules.max_delta_step
    if limit != 0.0 and abs(exact) > limit:
        exact = limit if exact > 0 else -limit
    return np.float32(exact)


def _clipped(w, rules, low, high):
    return min(max(w, low), high) if rules.constrained else w


def _score(g, h, w, rules, by_weight):
    """Return V(G, H), or the gain of weight ``w`` where ``w`` may have been clipped."""
    if h <= 0.0:
        return np.float32(0.0)
    if by_weight:
        g32, h32, lam32 = np.float32(g), np.float32(h), np.float32(rules.lam)
        return np.float32(-(np.float32(2.0) * g32 * w + (h32 + lam32) * (w * w)))
    t = _soft_threshold(g, rules.alpha)
    return np.float32(t * t / (h + rules.lam))


@kernel("boosting/search", "possible")
def possible(hists, totals, offsets, most_grad, most_hess):
    """Whether rows can have the sums of bins of each node: see ``grower.check_sums``."""
    return all(
        _possible(hists[s], totals[s], offsets, most_grad, most_hess) for s in range(len(hists))
    )


def _possible(sums, total, offsets, most_grad, most_hess):
    for c in range(0, sums.shape[1], 2):
        # Sums of impossible bins may leave int64; rounding is far below what is looked for.
        shift = 0 if total[c + 1] < 1 << 47 else 16
        for k in range(offsets.shape[0] - 1):
            low, high = np.int64(0), np.int64(0)
            lowest, highest, whole = np.int64(0), np.int64(0), np.int64(0)
            for b in range(offsets[k], offsets[k + 1]):
                g, h = sums[b, c], sums[b, c + 1]
                low, high = min(low, g), max(high, g)
                lowest, highest = min(lowest, h), max(highest, h)
                whole += h >> shift
            if low < -most_grad or high > most_grad or lowest < 0:
                return False
            if highest > min(total[c + 1], most_hess) or whole > total[c + 1] >> shift:
                return False
    return True


def _changes(left, node, rules, direction, bounds, parent, out):
    """Write the gain of each division, -inf where a child is too light; free of branches."""
    scale_g, scale_h, mcw = rules.scale_g, rules.scale_h, rules.min_child_weight
    G, H, grad, hess = node[0], node[1], left[0], left[1]
    alpha, lam, zero, least = rules.alpha, rules.lam, np.float32(0.0), np.float32(-np.inf)
    if not (rules.constrained or rules.max_delta_step != 0.0):
        for i in range(out.shape[0]):
            Gl, Hl = grad[i] * scale_g, hess[i] * scale_h
            Gr, Hr = (G - grad[i]) * scale_g, (H - hess[i]) * scale_h
            tl = max(Gl - alpha, 0.0) + min(Gl + alpha, 0.0)
            tr = max(Gr - alpha, 0.0) + min(Gr + alpha, 0.0)
            vl = np.float32(tl * tl / (Hl + lam)) if Hl > 0.0 else zero
            vr = np.float32(tr * tr / (Hr + lam)) if Hr > 0.0 else zero
            light = (Hl < mcw) | (Hr < mcw) | (hess[i] < 0)
            change = np.float32(np.float32(vl + vr) - parent)
            out[i] = least if light or not change < np.inf else change
        return
    low, high = bounds[0], bounds[1]
    for i in range(out.shape[0]):
        Gl, Hl = grad[i] * scale_g, hess[i] * scale_h
        Gr, Hr = (G - grad[i]) * scale_g, (H - hess[i]) * scale_h
        wl = _clipped(_weight(Gl, Hl, mcw, rules), rules, low, high)
        wr = _clipped(_weight(Gr, Hr, mcw, rules), rules, low, high)
        light = Hl < mcw or Hr < mcw or hess[i] < 0
        if light or (direction > 0 and wl > wr) or (direction < 0 and wl < wr):
            out[i] = least
            continue
        both = np.float32(_score(Gl, Hl, wl, rules, True) + _score(Gr, Hr, wr, rules, True))
        change = np.float32(both - parent)
        out[i] = change if change < np.inf else least


def _greatest(change, least):
    """Return the first position of the greatest change if it is above ``least`` >= 0, or -1."""
    keys = change.view(np.int32)  # ordered as the numbers are where these are not negative
    floor = np.float32(least).view(np.int32)
    top = floor
    for i in range(keys.shape[0]):
        top = max(top, keys[i])
    if top > floor:
        for i in range(keys.shape[0]):
            if keys[i] == top:
                return i
    return -1


def _scan_bins(bins, node, scan, left):
    """Write the left sums of each division of a numeric feature; return whether values miss.

    Scan 0 goes up with missing values on the right, scan 1 down with them on the left. A division
    that has scanned no row yet is marked by a negative hessian.
    """
    n_bins = bins.shape[0]
    g, h, empty = np.int64(0), np.int64(0), True
    for i in range(n_bins):
        b = n_bins - 1 - i if scan else i
        dg, dh = bins[b, 0], bins[b, 1]
        g += dg
        h += dh
        empty &= (dg == 0) & (dh == 0)
        left[0, i] = node[0] - g if scan else g
        left[1, i] = np.int64(-1) if empty else (node[1] - h if scan else h)
    return g != node[0] or h != node[1]


def _scan_categories(bins, node, order, scan, left):
    """Write the left sums of each division of a categorical feature.

    Without ``order`` each category alone goes right, without and with missing values; else the
    first (scan 0) go right or the last (scan 1) go left.
    """
    g, h = np.int64(0), np.int64(0)
    if order.shape[0]:
        for i in range(left.shape[1]):
            b = order[order.shape[0] - 1 - i if scan else i]
            g += bins[b, 0]
            h += bins[b, 1]
            left[0, i], left[1, i] = (g, h) if scan else (node[0] - g, node[1] - h)
        return
    for b in range(bins.shape[0]):
        g += bins[b, 0]
        h += bins[b, 1]
    for b in range(bins.shape[0]):
        for missing in range(2):
            left[0, 2 * b + missing] = node[0] - bins[b, 0] - missing * (node[0] - g)
            left[1, 2 * b + missing] = node[1] - bins[b, 1] - missing * (node[1] - h)


@kernel("boosting/search", "find_scalar")
def find_scalar(hists, first, stop, totals, columns, allowed, bounds, rules, best):
    """Write the best splits of nodes ``first`` to ``stop``: see ``splitting.find_splits``."""
    for s in range(first, stop):
        _find_scalar(hists[s], s, totals, columns, allowed, bounds, rules, best)


def _find_scalar(hist, s, totals, columns, allowed, bounds, rules, best):
    offsets, categorical = columns.offsets, columns.categorical
    mcw, node = rules.min_child_weight, totals[s]
    G, H = node[0] * rules.scale_g, node[1] * rules.scale_h
    own = _clipped(_weight(G, H, mcw, rules), rules, bounds[s, 2], bounds[s, 3])
    parent = _score(G, H, own, rules, rules.constrained or rules.max_delta_step != 0.0)
    gain = np.float32(0.0)
    widest = 0
    for k in range(categorical.shape[0]):
        widest = max(widest, offsets[k + 1] - offsets[k])
    left, change = np.empty((2, 2 * widest), np.int64), np.empty(2 * widest, np.float32)
    unsorted = np.empty(0, np.int64)
    for k in range(categorical.shape[0]):
        if not allowed[s, k]:
            continue
        bins = hist[offsets[k] : offsets[k + 1]]
        n_bins = bins.shape[0]
        order = unsorted
        if categorical[k] and n_bins >= rules.max_cat_to_onehot:
            weights = np.empty(n_bins, dtype=np.float32)
            for b in range(n_bins):
                g, h = bins[b, 0] * rules.scale_g, bins[b, 1] * rules.scale_h
                weights[b] = _weight(g, h, mcw, rules)
            order = np.argsort(weights, kind="mergesort")
        scan, n_scans = 0, 2
        while scan < n_scans:
            n_steps = n_bins
            if not categorical[k]:
                if not _scan_bins(bins, node, scan, left):
                    n_scans = 1
            else:
                n_steps = 2 * n_bins
                if order.shape[0]:
                    n_steps = max(min(rules.max_cat_threshold, n_bins) - 1, 0)
                else:
                    n_scans = 1
                _scan_categories(bins, node, order, scan, left[:, :n_steps])
            part = change[:n_steps]
            _changes(left, node, rules, columns.monotone[k], bounds[s], parent, part)
            found = _greatest(part, gain)
            if found >= 0:
                gain = part[found]
                best.used[s] = k
                best.left[s, 0], best.left[s, 1] = left[0, found], left[1, found]
                if not categorical[k]:
                    best.last_left[s] = found if scan == 0 else n_bins - 2 - found
                    best.default_left[s] = scan == 1
                else:
                    best.last_left[s] = 0
                    best.goes_right[s, :] = False
                    if order.shape[0]:
                        best.default_left[s] = scan == 0
                        n_right = found + 1 if scan == 0 else n_bins - 1 - found
                        for i in range(n_right):
                            best.goes_right[s, order[i]] = True
                    else:
                        best.default_left[s] = found & 1 == 0
                        best.goes_right[s, found >> 1] = True
            scan += 1
    best.gain[s] = gain


def _vector_score(sums, rules):
    total = 0.0
    for c in range(0, sums.shape[0], 2):
        h = sums[c + 1] * rules.scale_h
        if h > 0.0:
            t = _soft_threshold(sums[c] * rules.scale_g, rules.alpha)
            total += t * t / (h + rules.lam)
    return total


def _vector_hess(sums, scale_h):
    total = np.int64(0)
    for c in range(1, sums.shape[0], 2):
        total += sums[c]
    return total * scale_h


@kernel("boosting/search", "find_vector")
def find_vector(hists, first, stop, totals, columns, allowed, bounds, rules, best):
    """Write the best splits of nodes ``first`` to ``stop`` with several outputs."""
    for s in range(first, stop):
        _find_vector(hists[s], s, totals, columns, allowed, bounds, rules, best)


def _find_vector(hist, s, totals, columns, allowed, bounds, rules, best):
    offsets, categorical = columns.offsets, columns.categorical
    scale_h, mcw = rules.scale_h, rules.min_child_weight
    n_values = totals.shape[1]
    run = np.empty(n_values, dtype=np.int64)
    rest = np.empty(n_values, dtype=np.int64)
    present = np.empty(n_values, dtype=np.int64)
    parent = _vector_score(totals[s], rules)
    gain = np.float32(0.0)
    for k in range(categorical.shape[0]):
        if not allowed[s, k]:
            continue
        begin, n_bins = offsets[k], offsets[k + 1] - offsets[k]
        present[:] = 0
        for b in range(n_bins):
            for c in range(n_values):
                present[c] += hist[begin + b, c]
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
                        run[c] = hist[begin + b, c]
                        if step & 1:
                            run[c] += totals[s, c] - present[c]
                else:
                    b = step if scan == 0 else n_bins - 1 - step
                    scanned_left = scan == 0
                    for c in range(n_values):
                        run[c] += hist[begin + b, c]
                for c in range(n_values):
                    rest[c] = totals[s, c] - run[c]
                if _vector_hess(run, scale_h) < mcw or _vector_hess(rest, scale_h) < mcw:
                    continue
                change = np.float32(_vector_score(run, rules) + _vector_score(rest, rules) - parent)
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


@kernel("boosting/search", "weigh")
def weigh(sums, rules, bounds, out):
    """Write the unshrunken weights of nodes."""
    for s in range(sums.shape[0]):
        heavy = _vector_hess(sums[s], rules.scale_h) >= rules.min_child_weight
        least = 0.0 if heavy else np.inf
        for c in range(out.shape[1]):
            g, h = sums[s, 2 * c] * rules.scale_g, sums[s, 2 * c + 1] * rules.scale_h
            out[s, c] = _clipped(_weight(g, h, least, rules), rules, bounds[s, 0], bounds[s, 1])


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
