"""Secure sums while silos die before and after chosen responses, over several attempts.

Silo k adds ``8**k``: each digit of a total says how often the silo is in it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import QuorumLost
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.coordinator.server.barrier import Barrier
from tests.boosting.sums.federation_of_sums import Federation, names
from tests.federation.memory import Fault, KeyedIdentity, MemoryLink

SILOS = names(5)
ROUNDS = 2
FAULTS = st.lists(
    st.builds(
        Fault,
        silo=st.sampled_from(SILOS),
        step=st.sampled_from(
            ["sum-keys", "sum-shares", "sum-masked", "sum-agree", "sum-seeds", "sum-unmask"]
        ),
        round=st.integers(0, ROUNDS - 1),
        when=st.sampled_from(["before", "after"]),
    ),
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=30)
@given(attempts=st.lists(FAULTS, min_size=1, max_size=2), batch=st.sampled_from([1, 8]))
def test_each_total_has_each_silo_of_its_set_once(attempts: list[list[Fault]], batch: int) -> None:
    federation = Federation(SILOS, SumParameters(batch=batch))
    federation.identities = {silo: KeyedIdentity(silo) for silo in SILOS}  # type: ignore[misc]
    opened: dict[int, set[tuple[str, ...]]] = {}

    async def coordinate(sums: CoordinatorSums, hub: Barrier) -> int:
        await sums.setup(ExchangeKey(0))
        for round_ in range(ROUNDS):
            outcome = await sums.total(ExchangeKey(round_), 1)
            assert outcome.total is not None
            digits = [int(outcome.total[0]) >> (3 * k) & 7 for k in range(len(SILOS))]
            assert digits == [int(silo in outcome.present) for silo in SILOS]
            assert int(outcome.total[0]) < 8 ** len(SILOS)
            opened.setdefault(round_, set()).add(tuple(map(str, outcome.present)))
        return ROUNDS

    def participate(sums: SiloSums, link: MemoryLink) -> list[int]:
        sums.setup(ExchangeKey(0))
        part = np.array([8 ** SILOS.index(link.silo)], np.uint64)
        return [
            int(sums.total(ExchangeKey(round_), part, state=b"").values[0])
            for round_ in range(ROUNDS)
        ]

    for number, faults in enumerate(attempts, 1):
        ended = federation.run(coordinate, participate, attempt=number, faults=tuple(faults))
        killed = {fault.silo for fault in faults}
        if ended.error is not None:
            assert isinstance(ended.error, QuorumLost), ended.error
            assert killed or number > 1
            continue
        for silo, totals in ended.silos.items():
            assert all(total >> (3 * SILOS.index(silo)) & 7 == 1 for total in totals)
        assert set(SILOS) - killed <= set(ended.silos) or number > 1
    assert all(len(sets) == 1 for sets in opened.values()), "one vector, summed over two sets"
