"""The mean label of all silos, by one sum; a regression starts from it.

A label sum is sent as limbs: ``|x| 2**60`` in pieces of 40 bits, each with the sign of ``x``. Their
sums over silos cannot leave a 64-bit ring, whatever the labels' scale, so nobody has to tell a
bound first, and the sum is exact.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import Hub, Link, Place
from hedgerow.boosting.ports import CoordinatorStart, SiloStart
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.crypto.vault import Vault

_FRACTION_BITS = 60
_LIMB_BITS = 40
_LIMBS = 4
_AT = Place(0)


def to_limbs(value: float) -> NDArray[np.int64]:
    """Return a number as limbs, shape (4,); magnitudes below 2**100, to the nearest 2**-60.

    Raises
    ------
    DataError
        Not finite, or too large.
    """
    if not np.isfinite(value) or abs(value) >= 2.0**100:
        raise DataError("a sum of labels that is not finite or is beyond 2**100")
    scaled = round(Fraction(value) * (1 << _FRACTION_BITS))
    rest, limbs = abs(scaled), []
    for _ in range(_LIMBS):
        limbs.append(rest & ((1 << _LIMB_BITS) - 1))
        rest >>= _LIMB_BITS
    return np.array(limbs, np.int64) * (1 if scaled >= 0 else -1)


def from_limbs(limbs: NDArray[np.int64]) -> Fraction:
    """Return the number of (sums of) limbs, exactly."""
    total = sum(int(limb) << (_LIMB_BITS * i) for i, limb in enumerate(limbs.tolist()))
    return Fraction(total, 1 << _FRACTION_BITS)


async def label_mean(hub: Hub, start: CoordinatorStart, *, secure: bool) -> float:
    """Return the weighted mean label; the coordinator half."""
    sums = CoordinatorSums(
        hub,
        job_id=start.job_id,
        attempt=start.attempt,
        parameters=_parameters(start.job.min_silos, secure),
    )
    await sums.setup(_AT)
    outcome = await sums.total(_AT, 2 * _LIMBS)
    assert outcome.total is not None
    return _mean(outcome.total)


def offered_mean(link: Link, vault: Vault | None, start: SiloStart, *, secure: bool) -> float:
    """Return the weighted mean label; the silo half."""
    data = start.dataset
    weight = np.ones(data.n_samples) if data.weight is None else data.weight
    sums = SiloSums(
        link,
        vault,
        start.identity,
        silo=start.silo,
        roster=start.silos,
        job_id=start.job_id,
        attempt=start.attempt,
        parameters=_parameters(start.job.min_silos, secure),
    )
    sums.setup(_AT)
    limbs = np.concatenate([to_limbs(float(weight @ data.labels)), to_limbs(float(weight.sum()))])
    return _mean(sums.total(_AT, limbs.view(np.uint64)).values)


def _parameters(min_silos: int, secure: bool) -> SumParameters:
    return SumParameters(secure=secure, batch=1, least_silos=max(min_silos, 3 if secure else 1))


def _mean(residues: NDArray[np.unsignedinteger]) -> float:
    totals = np.ascontiguousarray(residues, np.uint64).view(np.int64)
    weight = from_limbs(totals[_LIMBS:])
    if weight <= 0:
        raise DataError("no silo has rows with a weight")
    return float(from_limbs(totals[:_LIMBS]) / weight)
