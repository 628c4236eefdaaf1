"""The coordinator half: it relays sums that it cannot read, and takes what all silos release."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import numpy as np

from hedgerow.boosting.errors import OfferRejected, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo
from hedgerow.boosting.ports import CoordinatorStart, RoundResult
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.explore.release import MOST_PASSES, MOST_VALUES, Release
from hedgerow.boosting.strategies.explore.steps import LENGTH, RELEASE
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.maximum import N_PLACES
from hedgerow.boosting.sums.steps import PlainVector
from hedgerow.crypto.masking.totals import Check, ResiduesCheck, TotalsCheck


async def coordinate(
    parameters: Explore, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half."""
    if start.checkpoint is not None:
        return  # the coordinator was restarted before it had stored the result
    sums = CoordinatorSums.of(hub, start, parameters.sum_parameters(start.job))
    await sums.setup(ExchangeKey(0))
    for passing in range(MOST_PASSES):
        at = ExchangeKey(0, 0, passing)
        lengths = await hub.collect(LENGTH, at, read=_length, silos=sums.participants)
        (most, _), *others = Counter(lengths.values()).most_common()
        hub.answer(LENGTH, at, dict.fromkeys(lengths, Receipt()))
        if others:
            odd = ", ".join(silo for silo, n in lengths.items() if n != most)
            raise SumCorrupt(f"silos would sum vectors of several lengths: {odd} differ")
        if not most:
            break
        residues = most < 0
        check: type[Check] = ResiduesCheck if residues else TotalsCheck
        n_values = -most * N_PLACES if residues else most
        await sums.total(at, n_values, check=check)
    vectors = await hub.collect(RELEASE, ExchangeKey(0), silos=sums.participants)
    found = Counter(own.values.tobytes() for own in vectors.values())
    (table, n_alike), *_ = found.most_common(1)
    differ = [silo for silo, own in vectors.items() if own.values.tobytes() != table]
    if differ:
        whose = ", ".join(differ) if 2 * n_alike > len(vectors) else ", ".join(vectors)
        raise SumCorrupt(f"statistics: expected the same table of all silos, differ: {whose}")
    release = Release.parse(np.frombuffer(table, np.uint64), start.schema)
    hub.answer(RELEASE, ExchangeKey(0), dict.fromkeys(vectors, Receipt()))
    yield RoundResult(0, release.encode(), {}, tuple(vectors), final=True)


def _length(silo: Silo, offer: PlainVector) -> int:
    """Return how many numbers a silo would add; below zero, how many largest ones are asked."""
    if len(offer.values) != 1:
        raise OfferRejected("length: expected one number")
    found = int(offer.values.view(np.int64)[0])
    if abs(found) > MOST_VALUES:
        raise OfferRejected(f"length: expected at most {MOST_VALUES}, received {found}")
    return found
