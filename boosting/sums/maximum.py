"""The largest numbers over silos, by a secure sum that tells nothing else.

A silo adds a random residue that is not 0 at each place up to the power of two above its own
number, and 0 above it. The lowest 32 bits of a total are not 0 where those of some silo's residue
are not, regardless of how many they are, except with a chance of 2**-32 that residues cancel: it
tells the greatest place, and no more. Where silos share a key they check the total
(:class:`~hedgerow.crypto.masking.totals.ResiduesCheck`): a largest number that the coordinator
makes up would clip or round away what they add to the next sum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SUM, SumSteps, SumTotal
from hedgerow.crypto.masking.masks import Residues
from hedgerow.crypto.masking.totals import ResiduesCheck

LOWEST, HIGHEST = -100, 128
"""Exponents that are told apart: of gradients in float32, and as low as a bound has to be."""

N_PLACES = HIGHEST - LOWEST
"""Residues of one number."""


_READ = np.uint64((1 << 32) - 1)
"""The bits of a residue that are read."""


def maximum_parts(*exponents: int) -> NDArray[np.uint64]:
    """Return a silo's part of the largest of each exponent, shape (n_exponents * N_PLACES,).

    Exponents outside the range count as its nearest end.
    """
    marked = np.arange(LOWEST, HIGHEST) < np.array(exponents, np.int64)[:, None]
    drawn = np.frombuffer(os.urandom(8 * marked.size), np.uint64).reshape(marked.shape)
    drawn = np.where(drawn & _READ, drawn, drawn | np.uint64(1))
    return np.where(marked, drawn, np.uint64(0)).reshape(-1)


def maxima(total: Residues) -> tuple[int, ...]:
    """Return the largest exponents over the silos of a total of :func:`maximum_parts`."""
    marked = (total.reshape(-1, N_PLACES) & _READ) != 0
    places = np.arange(1, N_PLACES + 1)
    return tuple(int(place) for place in LOWEST + (marked * places).max(axis=1, initial=0))


def add_maximum(
    sums: SiloSums,
    at: ExchangeKey,
    exponents: Sequence[int],
    *,
    state: bytes,
    steps: SumSteps[SumTotal] = SUM,
) -> tuple[int, ...]:
    """Return the largest of each exponent over silos; the silo half.

    ``state`` is as in :meth:`~.silo.SiloSums.total`.
    """
    # The same exponents at another place are not the same data: the rows they are of have changed.
    place = (*steps.name.encode(), at.round, at.level, at.passing)
    content = np.array([*place, *exponents], np.int64)
    own = maximum_parts(*exponents)
    check = ResiduesCheck if sums.checks_totals else None
    total = sums.total(at, own, state=state, content=content, steps=steps, check=check)
    return maxima(total.values)


async def total_maximum(
    sums: CoordinatorSums,
    at: ExchangeKey,
    n_exponents: int,
    steps: SumSteps[SumTotal] = SUM,
) -> tuple[tuple[int, ...], tuple[Silo, ...]]:
    """Return the largest of each exponent over silos, and the silos; the coordinator half.

    A blind coordinator reads numbers that mean nothing.
    """
    check = ResiduesCheck if sums.checks_totals else None
    outcome = await sums.total(at, n_exponents * N_PLACES, steps=steps, check=check)
    assert outcome.total is not None
    return maxima(outcome.total), outcome.present
