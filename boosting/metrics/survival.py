"""Metrics of events: concordance of pairs, Cox's partial likelihood, the integrated Brier score.

All compare rows with others. Over silos their sums are of comparisons within each silo, so that
no row is compared with one of another silo: Harrell's index of pairs within silos, and the partial
likelihood of a Cox model stratified by silo; the integrated Brier score has censoring, and Cox's
model its baseline hazard, of the silo's own rows. Of one table they are the usual ones.

References
----------
Harrell, Califf, Pryor, Lee and Rosati, Evaluating the yield of medical tests, JAMA 1982. Breslow,
Covariance analysis of censored survival data, Biometrics 1974 (tied events).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.failure_times import is_event

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TIMES = 32


def pairs_by_row(y: Floats, later: Floats) -> tuple[Integers, Integers]:
    """Return of each row its pairs that are in the right order, twice, and all its pairs.

    A pair is a row whose event was seen and one that is known to have had none until then; it is of
    the first. Two predictions that are the same are half right.

    Parameters
    ----------
    y : ndarray of shape (n_samples, 2), float64
        Earliest and latest time. Only rows that were seen, or not until their earliest time, are
        compared.
    later : ndarray of shape (n_samples,), float64
        What is greater of rows whose event is predicted to be later.

    Returns
    -------
    right, pairs : ndarray of shape (n_samples,), int64
    """
    right, pairs = np.zeros((2, len(y)), np.int64)
    seen = is_event(y)
    used = np.flatnonzero(seen | np.isinf(y[:, 1]))
    order = used[np.lexsort((~seen[used], y[used, 0]))]  # at one time events before the others
    time, events = y[order, 0], seen[order]
    n = len(order)
    # Where the rows begin that were still without an event at the time of each row's.
    first = np.searchsorted(time, time, side="left")
    ties = np.concatenate([[0], np.cumsum(events)])
    start = first + ties[np.searchsorted(time, time, side="right")] - ties[first]
    _, rank = np.unique(later[order], return_inverse=True)
    at = np.flatnonzero(events)
    below, same = _counted(rank.reshape(-1).astype(np.int64), start[at], rank.reshape(-1)[at])
    pairs[order[at]] = n - start[at]
    right[order[at]] = 2 * (pairs[order[at]] - below) - same
    return right, pairs


def _counted(rank: Integers, start: Integers, own: Integers) -> tuple[Integers, Integers]:
    """Return how many ranks from ``start`` on are below ``own``, and how many the same.

    Suffixes are cut into blocks of powers of two, in each of which ranks are sorted once.
    """
    n, place = len(rank), start.astype(np.int64).copy()
    below, same = np.zeros((2, len(start)), np.int64)
    n_levels = max(n, 1).bit_length()
    wide = np.int64(n + 2)  # ranks are below; what pads the last block is above all
    padded = np.append(rank, np.full((1 << n_levels) - n, n + 1))
    for level in range(n_levels):
        at = np.flatnonzero((place >> level & 1 == 1) & (place < n))
        if not len(at):
            continue
        block = np.arange(len(padded), dtype=np.int64) >> level
        keys = np.sort(block * wide + padded)
        base = (place[at] >> level) * wide
        low, high = (np.searchsorted(keys, base + own[at], side) for side in ("left", "right"))
        below[at] += low - ((place[at] >> level) << level)
        same[at] += high - low
        place[at] += 1 << level
    return below, same


def partial_losses(y: Floats, margin: Floats) -> tuple[Floats, Floats]:
    """Return each event's negative log partial likelihood, 0 of other rows, and what is an event.

    Rows that are at risk at an event's time are those whose time is not before it, as Breslow and
    XGBoost have it; row weights are not used, as XGBoost uses none.

    Parameters
    ----------
    y : ndarray of shape (n_samples, 2), float64
    margin : ndarray of shape (n_samples,), float64
        Logarithms of relative hazards.
    """
    if not len(y):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(-y[:, 0], kind="stable")
    at_risk = np.logaddexp.accumulate(margin[order])  # of the rows with times from the row's on
    last = np.searchsorted(-y[order, 0], -y[:, 0], side="right") - 1
    seen = is_event(y)
    return np.where(seen, at_risk[last] - margin, 0.0), seen.astype(np.float64)


def integrated_brier(
    y: Floats, chance: Callable[[float], Floats]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each row's squared error of its chance of no event, in the mean over times, and where.

    The mean is over :data:`TIMES` times between the first and the last event of these rows, by
    trapezoids. A row that had its event counts one over the share of rows that are not censored
    until then, one without an event yet that until the time in question, so that for the rows that
    are censored others stand. That share is Kaplan and Meier's, of these rows.

    Parameters
    ----------
    y : ndarray of shape (n_samples, 2), float64
        Earliest and latest time. Rows between two times count as none.
    chance : callable
        Returns each row's chance of no event until a time, above 0.

    References
    ----------
    Graf, Schmoor, Sauerbrei and Schumacher, Assessment and comparison of prognostic classification
    schemes for survival data, Statistics in Medicine 1999.
    """
    time, seen = y[:, 0], is_event(y)
    used = seen | np.isinf(y[:, 1])
    first, last = (f(time[seen], initial=start) for f, start in ((np.min, np.inf), (np.max, 0.0)))
    if not first < last:  # fewer than two times of events
        return np.zeros(len(y)), np.zeros(len(y), np.bool_)
    known, inverse = np.unique(time[used], return_inverse=True)
    events = np.bincount(inverse, weights=seen[used])
    rows = np.bincount(inverse)
    left = np.cumsum(rows[::-1])[::-1] - events  # at one time events before the others
    kept = np.cumprod(1.0 - (rows - events) / np.maximum(left, 1.0))
    kept[kept == 0.0] = np.inf

    def weight(at: Floats) -> Floats:
        place = np.searchsorted(known, at, side="right") - 1
        return np.where(place < 0, 1.0, 1.0 / kept[place])

    found, own = np.zeros(len(y)), weight(time)
    times = np.linspace(first, last, TIMES, endpoint=False)
    for k, (at, then) in enumerate(zip(times, weight(times), strict=True)):
        alive = chance(float(at))
        error = np.where(time > at, np.square(1.0 - alive) * then, seen * np.square(alive) * own)
        found += error * (0.5 if k in (0, TIMES - 1) else 1.0) / (TIMES - 1)
    return np.where(used, found, 0.0), used


def breslow(y: Floats, margin: Floats) -> Callable[[float], Floats]:
    """Return each row's chance of no event until a time, with Breslow's hazard of these rows."""
    hazard = np.exp(margin)
    known, inverse = np.unique(y[:, 0], return_inverse=True)
    events = np.bincount(inverse, weights=is_event(y))
    at_risk = np.cumsum(np.bincount(inverse, weights=hazard)[::-1])[::-1]
    base = np.cumsum(events / at_risk)

    def chance(time: float) -> Floats:
        place = int(np.searchsorted(known, time, side="right"))
        return np.asarray(np.exp(-base[place - 1] * hazard)) if place else np.ones(len(y))

    return chance


def kaplan_meier(events: Integers, rows: Integers) -> tuple[Floats, Floats, Floats]:
    """Return the share of rows without an event after each cell of times, and its 95 % interval.

    Rows that are censored in a cell of d events count as (d + 1) / 2d of a row at risk, as if both
    were even over the cell: all of one at a single event, which is Kaplan and Meier's estimate, and
    half of one at many, which is the life table's. The interval is Greenwood's, on the scale of the
    logarithm of the cumulative hazard.

    Parameters
    ----------
    events, rows : ndarray of shape (n_cells,), int64
        Of each cell, in order of time.

    Returns
    -------
    survival, low, high : ndarray of shape (n_cells,), float64
    """
    gone = (rows - events) * np.maximum(events - 1, 0) / np.maximum(2 * events, 1)
    at_risk = np.cumsum(rows[::-1])[::-1] - gone
    left = at_risk - events
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.cumprod(np.where(at_risk > 0, left / at_risk, 1.0), dtype=np.float64)
        spread = np.cumsum(np.where(at_risk > 0, events / (at_risk * left), 0.0))
        theta = 1.959964 * np.sqrt(spread) / np.abs(np.log(survival))
        low, high = (survival ** np.exp(sign * theta) for sign in (1, -1))
    known = (survival > 0) & (survival < 1)
    return survival, np.where(known, low, survival), np.where(known, high, survival)


def share_of_pairs(total: Floats, n_outputs: int = 1) -> float:
    """Return the concordance from sums of events, of twice the right pairs, and of all pairs."""
    return float(total[1] / (2.0 * total[2])) if total[2] > 0.0 else math.nan
