"""Exact sums over all rows of all silos, and the mean label from them.

A silo adds up its rows in integer steps of ``2**-140`` and sends the sum as seven limbs of 40 bits,
each with the sum's sign. Sums of limbs stay in a 64-bit ring for numbers below ``2**140`` and up to
``2**23`` silos, so silos need no bound to agree on first. The totals are the same bits however
rows are spread over silos, and with or without masks.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError
from hedgerow.crypto.masking import Residues

Floats = NDArray[np.float64]

LIMBS = 7
"""Residues of one exact sum."""

N_LABEL_VALUES = 2 * LIMBS
"""Residues of :func:`label_parts`."""

_LIMB_BITS = 40
_FRACTION_BITS = 140
_LARGEST = 2.0 ** (LIMBS * _LIMB_BITS - _FRACTION_BITS)
_BLOCK = 1 << 20  # rows whose limbs are added before they leave int64


def exact_parts(*columns: Floats) -> NDArray[np.uint64]:
    """Return a silo's part of the exact sums of columns, residues of shape (7 * n_columns,).

    Parameters
    ----------
    *columns : ndarray of shape (n_samples,), float64
        Each number is rounded to the nearest multiple of ``2**-140``.

    Raises
    ------
    DataError
        A number, or a column's sum, is not finite or not below ``2**140``.
    """
    limbs = [limb for column in columns for limb in _limbs(_integer_sum(column))]
    return np.array(limbs, np.int64).view(np.uint64)


def exact_sums(residues: Residues) -> tuple[Fraction, ...]:
    """Return the sums of the columns of summed parts, exactly."""
    totals = residues.view(np.int64).reshape(-1, LIMBS)
    return tuple(
        Fraction(sum(limb << (_LIMB_BITS * k) for k, limb in enumerate(own)), 1 << _FRACTION_BITS)
        for own in totals.tolist()
    )


def label_parts(labels: Floats, weight: Floats | None) -> NDArray[np.uint64]:
    """Return a silo's part of the mean label, residues of shape (14,)."""
    if weight is None:
        return exact_parts(labels, np.ones(labels.shape[0]))
    return exact_parts(weight * labels, weight)


def mean_label(residues: Residues) -> float:
    """Return the weighted mean label of summed parts; the closest float64.

    Raises
    ------
    DataError
        No row has a weight.
    """
    labels, weight = exact_sums(residues)
    if weight <= 0:
        raise DataError("expected rows with a positive weight, no silo has one")
    return float(labels / weight)


def _integer_sum(column: Floats) -> int:
    """Return the sum of a column in steps of ``2**-140``."""
    if not (np.abs(column) < _LARGEST).all():
        raise _unsummable()
    total = 0
    for start in range(0, column.shape[0], _BLOCK):
        rest = np.rint(np.ldexp(column[start : start + _BLOCK], _FRACTION_BITS))
        for k in reversed(range(LIMBS)):
            limb = np.trunc(np.ldexp(rest, -_LIMB_BITS * k))
            total += int(limb.astype(np.int64).sum()) << (_LIMB_BITS * k)
            rest -= np.ldexp(limb, _LIMB_BITS * k)
    return total


def _limbs(total: int) -> list[int]:
    sign, rest = (-1 if total < 0 else 1), abs(total)
    if rest >> (LIMBS * _LIMB_BITS):
        raise _unsummable()
    mask = (1 << _LIMB_BITS) - 1
    return [sign * (rest >> (_LIMB_BITS * k) & mask) for k in range(LIMBS)]


def _unsummable() -> DataError:
    return DataError("expected labels and weights whose sums are finite and below 2**140")
