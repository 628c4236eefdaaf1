"""Cox's partial likelihood from sums over cells of time, so that rows at risk may be anywhere.

An event's term compares its row with all rows that are still at risk, of all silos. Times are first
divided into cells, each of some events. All that rows of other silos matter by is then, of each
cell, the number of events and the sum of ``exp(margin)`` of its rows: with ``D`` and ``S`` the
events of a cell and the sum over the rows of it and of all later cells, a row of cell ``c`` has ::

    g = exp(m) * sum_{b <= c} D_b / S_b - event
    h = exp(m) * sum_{b <= c} D_b / S_b - exp(m)**2 * sum_{b <= c} D_b / S_b**2

Events of a cell are tied, as Breslow's formula has ties; with a cell of its own for each time of an
event these are the gradients of Cox's model, but that rows that are censored before the first event
count as at risk in its cell. Sums are exact, the same bits for rows spread in any way.

References
----------
Breslow, Covariance analysis of censored survival data, Biometrics 1974.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.quantising import FLOAT32_BITS, Pair
from hedgerow.boosting.errors import DataError, SumCorrupt
from hedgerow.boosting.failure_times import is_event
from hedgerow.boosting.sums.exact import LIMBS, exact_parts_by, exact_sums
from hedgerow.crypto.masking.fixed_point import log2_ceil
from hedgerow.crypto.masking.masks import Residues

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]

TIME_CELLS = 256
"""Cells of times at most."""
_ABOVE = 1 + 1e-6  # float32 rounds a gradient up by less


def cell_labels(y: NDArray[np.floating], thresholds: Float32s) -> Float32s:
    """Return what of labels gradients are functions of: the cell of the time, and 1 of an event.

    Parameters
    ----------
    y : ndarray of shape (n_samples, 2)
        Earliest and latest time.
    thresholds : ndarray of shape (n_cells - 1,), float32
        Increasing.

    Returns
    -------
    ndarray of shape (n_samples, 2), float32
    """
    cell = np.searchsorted(thresholds, y[:, 0].astype(np.float32), side="right")
    return np.stack([cell, is_event(y)], axis=1).astype(np.float32)


def n_risk_values(n_cells: int) -> int:
    """Return the number of residues of :func:`risk_parts`."""
    return n_cells * (2 + LIMBS)


def risk_parts(labels: Float32s, margins: Float32s, n_cells: int) -> NDArray[np.uint64]:
    """Return a silo's part: events of each cell, its rows, the exact sums of ``exp(margin)``.

    Parameters
    ----------
    labels : ndarray of shape (n_samples, 2), float32
        Of :func:`cell_labels`.
    margins : ndarray of shape (n_samples, 1), float32
    """
    cell = labels[:, 0].astype(np.intp)
    events = np.bincount(cell[labels[:, 1] > 0], minlength=n_cells).astype(np.uint64)
    rows = np.bincount(cell, minlength=n_cells).astype(np.uint64)
    return np.concatenate([events, rows, exact_parts_by(_hazards(margins), cell, n_cells)])


def _hazards(margins: Float32s) -> Floats:
    """Return ``exp(margin)`` as float32, whose bits do not depend on where in an array a row is."""
    with np.errstate(over="ignore"):
        found = np.exp(margins[:, 0].astype(np.float64)).astype(np.float32)
    return np.minimum(found, np.finfo(np.float32).max).astype(np.float64)


@dataclass(frozen=True, slots=True)
class RiskSets:
    """What all rows of all silos say of each cell, and what gradients follow from it."""

    events: NDArray[np.int64]
    rows: NDArray[np.int64]
    """``events`` and ``rows``: of shape (n_cells,), int64."""
    hazard: Floats
    """Of shape (n_cells,), float64. Sum of ``D_b / S_b`` of the cells up to each."""
    square: Floats
    """Of shape (n_cells,), float64. Sum of ``D_b / S_b**2``."""
    bound: Pair
    """Of ``|g|`` and ``h`` of any row. A row's ``exp(m)`` is at most the sum of its cell, and at
    most ``S_b`` of each cell up to its own: ``g`` is at most the number of events, ``h`` a quarter.
    """
    sums: Floats = field(repr=False)
    """Of shape (n_cells,), float64. Of ``exp(m)`` over the rows of each cell."""

    @classmethod
    def of(cls, total: Residues, n_cells: int) -> RiskSets:
        """Return what the sum of all silos' parts says.

        Raises
        ------
        SumCorrupt
            It is of no table.
        DataError
            No row has an event.
        """
        if total.shape[0] != n_risk_values(n_cells):
            raise SumCorrupt(
                f"risk sets: expected {n_risk_values(n_cells)} numbers, received {total.shape[0]}"
            )
        events, rows = total[: 2 * n_cells].view(np.int64).reshape(2, -1)
        own = exact_sums(total[2 * n_cells :])
        left, found = own[0] * 0, []
        for one in reversed(own):
            left += one
            found.append(left)
        at_risk = np.array([float(one) for one in reversed(found)])
        sums = np.array([float(one) for one in own])
        of_rows = ((events >= 0) & (events <= rows) & (sums >= 0)).all()
        if not of_rows or (at_risk[events > 0] <= 0).any():
            raise SumCorrupt("risk sets: expected events, and rows at risk wherever there are some")
        n_events = int(events.sum())
        if n_events == 0:
            raise DataError("survival:cox: expected rows whose event was seen, no silo has one")
        held = np.where(events > 0, at_risk, 1.0)
        hazard = np.cumsum(events / held)
        square = np.cumsum(events / np.square(held))
        most = float((sums * hazard).max()) * _ABOVE
        grad, hess = max(1.0, min(most, n_events)), min(most, n_events / 4)
        bound = (_power_above(grad), _power_above(hess))
        return cls(events, rows, hazard, square, bound, sums)

    def pairs(self, margins: Float32s, labels: Float32s) -> Float32s:
        """Return g and h of each row, interleaved: shape (n_samples, 2).

        Parameters
        ----------
        margins : ndarray of shape (n_samples, 1), float32
        labels : ndarray of shape (n_samples, 2), float32
            Of :func:`cell_labels`.
        """
        cell, own = labels[:, 0].astype(np.intp), _hazards(margins)
        expected = own * self.hazard[cell]
        curve = np.maximum(expected - np.square(own) * self.square[cell], 0.0)
        return np.stack([expected - labels[:, 1], curve], axis=1).astype(np.float32)


def _power_above(value: float) -> float:
    return 2.0 ** min(log2_ceil(value), FLOAT32_BITS)
