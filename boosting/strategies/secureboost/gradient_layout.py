"""How many bits the gradients of a vertical job have, and how a plaintext stores them.

Both sides derive it from the job and the number of rows. What remains to the active party is the
unit: the power of two above its weights, or above its gradients where the loss has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.quantising import bound_of_exponents, static_bound
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost.parameters import (
    ELGAMAL_VALUE_BITS,
    PAILLIER_FRACTION_BITS,
    SecureBoost,
)
from hedgerow.boosting.strategies.secureboost.steps import size_class
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.errors import PackingRefused

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

ELGAMAL_SUM_BITS = 40


MOST_EXPONENT = 64
"""Of row weights, either way."""


def layout_of_tree(
    parameters: SecureBoost, job: JobParameters, n_fit: int, exponents: tuple[int, int]
) -> PairLayout:
    """Return how the gradients of a job's tree are stored.

    Parameters
    ----------
    n_fit : int
        Rows of training; sums are over at most their size class.
    exponents : (int, int)
        Of the powers of two above g and h where the loss has no bound, else both of the one above
        row weights.

    Raises
    ------
    PackingRefused
        They do not fit.
    """
    objective = objective_of(job.objective, job.task, job.booster)
    n_outputs = parameters.n_outputs(job)
    sampler = parameters.sampler(job.booster)
    bound = static_bound(objective, sampler, n_outputs, 2.0 ** exponents[0])
    return layout_of_gradients(
        parameters.encryption,
        size_class(n_fit),
        bound or bound_of_exponents(*exponents),
        n_outputs if parameters.multi_output else 1,
        parameters.fraction_bits,
    )


def check_layout(
    stated: PairLayout, parameters: SecureBoost, job: JobParameters, n_fit: int, sender: str
) -> None:
    """Refuse a layout that no rows of the active party can give in this job.

    Wider sums would have room for the identity of every row in them.

    Raises
    ------
    OfferRejected
        Names the sender and the first field that differs.
    """
    nearest: PairLayout | None = None
    for exponents in _exponents(stated):
        try:
            expected = layout_of_tree(parameters, job, n_fit, exponents)
        except PackingRefused:
            continue
        if expected == stated:
            return
        nearest = nearest or expected
    if nearest is None:
        raise OfferRejected(f"{sender}: gradients of this job cannot be stored at all")
    for name in ("n_classes", "n_rows", *(field.name for field in fields(stated))):
        if getattr(stated, name) != getattr(nearest, name):
            raise OfferRejected(
                f"{sender}: layout of gradients: expected {name} {getattr(nearest, name)} by the "
                f"job, received {getattr(stated, name)}"
            )


def _exponents(stated: PairLayout) -> Iterator[tuple[int, int]]:
    """Yield what the exponents may be: those of the stated bounds, then any weights'."""
    largest = stated.largest_grad, stated.largest_hess
    g, h = ((value - 1).bit_length() - stated.fraction_bits for value in largest)
    yield 0, 0
    yield g, h
    yield from ((e, e) for k in range(MOST_EXPONENT) for e in (k, -k))


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
        ``n_rows`` leave hardly any bits for a value.
    """
    room = ELGAMAL_SUM_BITS - max(n_rows - 1, 1).bit_length()
    bits = min(value_bits or ELGAMAL_VALUE_BITS, room)
    if bits < 8:
        raise PackingRefused(f"{n_rows} rows leave {bits} bits for a gradient; use paillier")
    fraction_bits = bits - math.ceil(math.log2(max(bound)))
    if not 0 <= fraction_bits <= 52:
        raise PackingRefused(
            "gradients are too large or too small for elgamal: divide the label and the weights by "
            "a power of ten, so that typical ones are near 1"
        )
    return PairLayout.fit(
        n_rows=max(n_rows, 1),
        max_abs_grad=bound[0],
        max_hess=bound[1],
        fraction_bits=fraction_bits,
        n_classes=n_outputs,
    )
