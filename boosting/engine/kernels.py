"""Compiled split search: XGBoost's arithmetic on integer sums (see ``splitting`` for the rules)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _soft_threshold(g, alpha):  # type: ignore[no-untyped-def]
    if g > alpha:
        return g - alpha
    if g < -alpha:
        return g + alpha
    return 0.0


@njit(cache=True, nogil=True)
def _weight(g, h, mcw, lam, alpha, max_step, constrained, low, high):  # type: ignore[no-untyped-def]
    if h < mcw or h <= 0.0:
        w = np.float32(0.0)
    else:
        exact = -_soft_threshold(g, alpha) / (h + lam)
        if max_step != 0.0 and abs(exact) > max_step:
            exact = max_step if exact > 0 else -max_step
        w = np.float32(exact)
    if constrained:
        w = min(max(w, low), high)
    return w


@njit(cache=True, nogil=True)
def _score(g, h, w, lam, alpha, by_weight):  # type: ignore[no-untyped-def]
    """Return V(G, H), or the gain of weight ``w`` where ``w`` may have been clipped."""
    if h <= 0.0:
        return np.float32(0.0)
    if by_weight:
        g32, h32, lam32 = np.float32(g), np.float32(h), np.float32(lam)
        return np.float32(-(np.float32(2.0) * g32 * w + (h32 + lam32) * (w * w)))
    t = _soft_threshold(g, alpha)
    return np.float32(t * t / (h + lam))


@njit(cache=True, nogil=True)
def find_scalar(  # type: ignore[no-untyped-def]
    hist,
    totals,
    scale_g,
    scale_h,
    offsets,
    categorical,
    allowed,
    monotone,
    bounds,
    constrained,
    mcw,
    lam,
    alpha,
    max_step,
    max_onehot,
    max_threshold,
    gain,
    used,
    last_left,
    default_left,
    left,
    goes_right,
):
    """Write the best split of every node with one output; see ``splitting.find_splits``."""
    by_weight = constrained or max_step != 0.0
    for s in range(hist.shape[0]):
        tg, th = totals[s, 0], totals[s, 1]
        low, high = bounds[s, 0], bounds[s, 1]
        G, H = tg * scale_g, th * scale_h
        own = _weight(G, H, mcw, lam, alpha, max_step, constrained, bounds[s, 2], bounds[s, 3])
        parent = _score(G, H, own, lam, alpha, by_weight)
        best = np.float32(0.0)
        for k in range(categorical.shape[0]):
            if not allowed[s, k]:
                continue
            begin, n_bins = offsets[k], offsets[k + 1] - offsets[k]
            direction = monotone[k]
            if categorical[k]:
                n_scans = 1 if n_bins < max_onehot else 2
                order = np.arange(n_bins)
                if n_scans == 2:
                    weights = np.empty(n_bins, dtype=np.float32)
                    for b in range(n_bins):
                        weights[b] = _weight(
                            hist[s, begin + b, 0] * scale_g, hist[s, begin + b, 1] * scale_h,
                            mcw, lam, alpha, max_step, False, low, high,
                        )  # fmt: skip
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
                    n_steps = 2 * n_bins if n_scans == 1 else min(max_threshold, n_bins) - 1
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
                        wl = _weight(Gl, Hl, mcw, lam, alpha, max_step, constrained, low, high)
                        wr = _weight(Gr, Hr, mcw, lam, alpha, max_step, constrained, low, high)
                        if (direction > 0 and wl > wr) or (direction < 0 and wl < wr):
                            continue
                    both = np.float32(
                        _score(Gl, Hl, wl, lam, alpha, by_weight)
                        + _score(Gr, Hr, wr, lam, alpha, by_weight)
                    )
                    change = np.float32(both - parent)
                    if not (change > best and change < np.inf):
                        continue
                    best = change
                    used[s] = k
                    left[s, 0], left[s, 1] = lg, lh
                    if not categorical[k]:
                        last_left[s] = b if scan == 0 else b - 1
                        default_left[s] = scan == 1
                    else:
                        last_left[s] = 0
                        goes_right[s, :] = False
                        if n_scans == 1:
                            default_left[s] = step & 1 == 0
                            goes_right[s, b] = True
                        else:
                            default_left[s] = scan == 0
                            n_right = step + 1 if scan == 0 else n_bins - 1 - step
                            for i in range(n_right):
                                goes_right[s, order[i]] = True
        gain[s] = best


@njit(cache=True, nogil=True)
def _vector_score(sums, scale_g, scale_h, lam, alpha):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(0, sums.shape[0], 2):
        h = sums[c + 1] * scale_h
        if h > 0.0:
            t = _soft_threshold(sums[c] * scale_g, alpha)
            total += t * t / (h + lam)
    return total


@njit(cache=True, nogil=True)
def _vector_hess(sums, scale_h):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for c in range(1, sums.shape[0], 2):
        total += sums[c]
    return total * scale_h


@njit(cache=True, nogil=True)
def find_vector(  # type: ignore[no-untyped-def]
    hist,
    totals,
    scale_g,
    scale_h,
    offsets,
    categorical,
    allowed,
    monotone,
    bounds,
    constrained,
    mcw,
    lam,
    alpha,
    max_step,
    max_onehot,
    max_threshold,
    gain,
    used,
    last_left,
    default_left,
    left,
    goes_right,
):
    """Write the best split of every node with several outputs."""
    n_values = totals.shape[1]
    run = np.empty(n_values, dtype=np.int64)
    rest = np.empty(n_values, dtype=np.int64)
    present = np.empty(n_values, dtype=np.int64)
    for s in range(hist.shape[0]):
        parent = _vector_score(totals[s], scale_g, scale_h, lam, alpha)
        best = np.float32(0.0)
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
                        _vector_score(run, scale_g, scale_h, lam, alpha)
                        + _vector_score(rest, scale_g, scale_h, lam, alpha)
                        - parent
                    )
                    if not (change > best and change < np.inf):
                        continue
                    best = change
                    used[s] = k
                    for c in range(n_values):
                        left[s, c] = run[c] if scanned_left else rest[c]
                    if categorical[k]:
                        last_left[s] = 0
                        default_left[s] = step & 1 == 0
                        goes_right[s, :] = False
                        goes_right[s, b] = True
                    else:
                        last_left[s] = b if scan == 0 else b - 1
                        default_left[s] = scan == 1
        gain[s] = best


@njit(cache=True, nogil=True)
def weigh(  # type: ignore[no-untyped-def]
    sums, scale_g, scale_h, mcw, lam, alpha, max_step, constrained, bounds, out
):
    """Write the unshrunken weights of nodes."""
    for s in range(sums.shape[0]):
        least = 0.0 if _vector_hess(sums[s], scale_h) >= mcw else np.inf
        for c in range(out.shape[1]):
            out[s, c] = _weight(
                sums[s, 2 * c] * scale_g, sums[s, 2 * c + 1] * scale_h,
                least, lam, alpha, max_step, constrained, bounds[s, 0], bounds[s, 1],
            )  # fmt: skip


@njit(cache=True, nogil=True)
def gains(left, total, scale_g, scale_h, mcw, lam, alpha, max_step, out):  # type: ignore[no-untyped-def]
    """Write the gain of every candidate division of one node."""
    n_values = total.shape[0]
    by_weight = max_step != 0.0
    low, high = np.float32(-np.inf), np.float32(np.inf)
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
                G, H = sums[0] * scale_g, sums[1] * scale_h
                w = _weight(G, H, mcw, lam, alpha, max_step, False, low, high)
                value = _score(G, H, w, lam, alpha, by_weight)
                if part == 2:
                    parent = value
                else:
                    score = np.float32(score + value)
            out[i] = np.float32(score - parent)
        else:
            out[i] = np.float32(
                _vector_score(left[i], scale_g, scale_h, lam, alpha)
                + _vector_score(right, scale_g, scale_h, lam, alpha)
                - _vector_score(total, scale_g, scale_h, lam, alpha)
            )
