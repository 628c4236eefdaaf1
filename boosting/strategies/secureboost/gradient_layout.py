"""How many bits the gradients of a vertical job have, and how a plaintext stores them."""

from __future__ import annotations

import math

from hedgerow.crypto.errors import PackingRefused
from hedgerow.crypto.packing import PairLayout

PAILLIER_FRACTION_BITS = 26
ELGAMAL_VALUE_BITS = 16
"""Of a quantised gradient: discrete logarithms of sums have to be found."""
ELGAMAL_SUM_BITS = 40


def layout_of_gradients(
    encryption: str, n_rows: int, bound: tuple[float, float], n_outputs: int, fraction_bits: int
) -> PairLayout:
    """Return how a tree's gradients are stored.

    Parameters
    ----------
    n_rows : int
        Largest number of rows in a sum.
    bound : (float, float)
        Largest magnitude of g and of h.
    n_outputs : int
        Outputs that the tree adds to.
    fraction_bits : int
        The strategy's parameter; 0 for the scheme's own.

    Raises
    ------
    PackingRefused
        They do not fit.
    """
    if encryption == "elgamal":
        return coarse_layout(n_rows, bound, n_outputs, fraction_bits)
    return layout_for(n_rows, bound, n_outputs, fraction_bits or PAILLIER_FRACTION_BITS)


def layout_for(
    n_rows: int, bound: tuple[float, float], n_outputs: int, fraction_bits: int
) -> PairLayout:
    """Return how gradients are stored: ``fraction_bits`` below the smaller bound, sums in 62 bits.

    Raises
    ------
    PackingRefused
        The bounds are too far apart or too large for the rows.
    """
    low, high = min(bound), max(bound)
    bits = fraction_bits - math.ceil(math.log2(low))
    bits = min(bits, 61 - math.ceil(math.log2(high * max(n_rows, 1))), 52)
    return PairLayout.fit(
        n_rows=max(n_rows, 1),
        max_abs_grad=bound[0],
        max_hess=bound[1],
        fraction_bits=bits,
        n_classes=n_outputs,
    )


def coarse_layout(
    n_rows: int, bound: tuple[float, float], n_outputs: int, value_bits: int
) -> PairLayout:
    """Return how gradients are stored for EC-ElGamal: values of a few bits, sums of at most 40.

    Parameters
    ----------
    value_bits : int
        Of the larger bound; 0 for :data:`ELGAMAL_VALUE_BITS`, or as many as the rows leave.

    Raises
    ------
    PackingRefused
        So many rows that hardly any precision is left.
    """
    room = ELGAMAL_SUM_BITS - max(n_rows - 1, 1).bit_length()
    bits = min(value_bits or ELGAMAL_VALUE_BITS, room)
    if bits < 8:
        raise PackingRefused(f"{n_rows} rows leave {bits} bits for a gradient; use paillier")
    fraction_bits = bits - math.ceil(math.log2(max(bound)))
    if not 0 <= fraction_bits <= 52:
        raise PackingRefused("bounds of the gradients are too large or too small for elgamal")
    return PairLayout.fit(
        n_rows=max(n_rows, 1),
        max_abs_grad=bound[0],
        max_hess=bound[1],
        fraction_bits=fraction_bits,
        n_classes=n_outputs,
    )
