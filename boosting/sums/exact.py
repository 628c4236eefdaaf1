"""Exact sums over all rows of all silos, and the mean label from them.

A silo cuts the number of each row, in integer steps of ``2**-140``, into nine limbs of 30 bits that
have the number's sign, and sends the sums of each limb over its rows. They stay in a 64-bit ring
for up to ``2**33`` rows of all silos together, so silos need no bound to agree on first. The totals
are the same bits however rows are spread over silos, limb by limb, and with or without masks. A
number outside the range counts as its nearest end and one that is no number as 0, row by row: no
silo refuses because of its own rows.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError
from hedgerow.crypto.masking.masks import Residues

Floats = NDArray[np.float64]

LIMBS = 9
"""Residues of one exact sum."""


def n_label_values(n_labels: int = 1) -> int:
    """Return the number of residues of :func:`label_parts`."""
    return (n_labels + 1) * LIMBS


_LIMB_BITS = 30
_FRACTION_BITS = 140
_LARGEST = 2.0**128
_BLOCK = 1 << 20  # rows whose limbs are added in float64 without rounding


def exact_parts(*columns: Floats) -> NDArray[np.uint64]:
    """Return a silo's part of the exact sums of columns, residues of shape (9 * n_columns,).

    Parameters
    ----------
    *columns : ndarray of shape (n_samples,), float64
        Each number is brought within ``2**128``, as float32 are, and rounded to the nearest
        multiple of ``2**-140``.
    """
    limbs = [_limb_sums(column)[0] for column in columns]
    return np.concatenate([np.zeros(0, np.int64), *limbs]).view(np.uint64)


def exact_parts_by(column: Floats, group: NDArray[np.intp], n_groups: int) -> NDArray[np.uint64]:
    """Return a silo's part of the exact sums of a column's numbers by group.

    Parameters
    ----------
    column : ndarray of shape (n_samples,), float64
        As of :func:`exact_parts`.
    group : ndarray of shape (n_samples,), integers
        Each number's, below ``n_groups``.

    Returns
    -------
    ndarray of shape (9 * n_groups,), uint64
    """
    return _limb_sums(column, group, n_groups).reshape(-1).view(np.uint64)


def exact_sums(residues: Residues) -> tuple[Fraction, ...]:
    """Return the sums of the columns of summed parts, exactly."""
    totals = residues.view(np.int64).reshape(-1, LIMBS)
    return tuple(
        Fraction(sum(limb << (_LIMB_BITS * k) for k, limb in enumerate(own)), 1 << _FRACTION_BITS)
        for own in totals.tolist()
    )


def label_parts(labels: Floats, weight: Floats | None) -> NDArray[np.uint64]:
    """Return a silo's part of the mean labels, residues of shape (9 * (n_labels + 1),).

    Parameters
    ----------
    labels : ndarray of shape (n_samples,) or (n_samples, n_labels), float64
    """
    weights = np.ones(labels.shape[0]) if weight is None else weight
    return exact_parts(*(weights * own for own in np.atleast_2d(labels.T)), weights)


def mean_labels(residues: Residues) -> tuple[float, ...]:
    """Return the weighted mean of each label of summed parts; the closest float64.

    Raises
    ------
    DataError
        No row has a weight.
    """
    *labels, weight = exact_sums(residues)
    if weight <= 0:
        raise DataError("expected rows with a positive weight, no silo has one")
    return tuple(float(label / weight) for label in labels)


def _limb_sums(
    column: Floats, group: NDArray[np.intp] | None = None, n_groups: int = 1
) -> NDArray[np.int64]:
    """Return the sums of each limb of the numbers of each group, the lowest limb first."""
    sums = np.zeros((n_groups, LIMBS), np.int64)
    for start in range(0, column.shape[0], _BLOCK):
        rest = np.clip(column[start : start + _BLOCK], -_LARGEST, _LARGEST)
        rest = np.rint(np.where(np.isnan(rest), 0.0, rest) * 2.0**_FRACTION_BITS)
        while most := float(np.abs(rest).max(initial=0.0)):
            k = (math.frexp(most)[1] - 1) // _LIMB_BITS
            limb = np.trunc(rest * 2.0 ** (-k * _LIMB_BITS))
            if group is None:
                sums[:, k] += int(limb.sum())
            else:
                of = group[start : start + _BLOCK]
                sums[:, k] += np.bincount(of, limb, n_groups).astype(np.int64)
            rest -= limb * 2.0 ** (k * _LIMB_BITS)
    return sums
