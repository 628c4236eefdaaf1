from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from boosting.ports import Place, PlacePassed, QuorumLost, Silo
from boosting.secure_sum import CoordinatorSums, SiloSums, SumRefused
from boosting.sum_exchanges import SUM, SumParameters, Total
from crypto.fixed_point import residue_dtype
from tests.boosting.federation_of_sums import Federation, MemoryJournal, SumsEnded, names
from tests.federation.memory import Fault, SiloKilled

N = 33


def vector(silo: str, round_: int, ring_bits: int = 64) -> np.ndarray:
    rng = np.random.default_rng([round_, *silo.encode()])
    return rng.integers(0, 1 << ring_bits, N, dtype=np.uint64).astype(residue_dtype(ring_bits))


def expected(silos: tuple[Silo, ...], round_: int, ring_bits: int = 64) -> np.ndarray:
    total = np.zeros(N, dtype=residue_dtype(ring_bits))
    for silo in silos:
        total += vector(silo, round_, ring_bits)
    return total & np.uint64((1 << 48) - 1) if ring_bits == 48 else total


def run(
    federation: Federation,
    rounds: int = 1,
    ring_bits: int = 64,
    first: int = 0,
    setups: tuple[int, ...] | None = None,
    **options: Any,
) -> SumsEnded:
    setups = (first,) if setups is None else setups

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[Any]:
        outcomes = []
        for round_ in range(first, first + rounds):
            if round_ in setups:
                await sums.setup(Place(round_))
            outcomes.append(await sums.total(Place(round_), N, ring_bits=ring_bits))
        return outcomes

    def participate(sums: SiloSums, link: Any) -> list[Total]:
        totals = []
        for round_ in range(first, first + rounds):
            if round_ in setups:
                sums.setup(Place(round_))
            values = vector(link.silo, round_, ring_bits)
            totals.append(sums.total(Place(round_), values, ring_bits=ring_bits))
        return totals

    return federation.run(coordinate, participate, **options)


MODES = {
    "plain": SumParameters(secure=False),
    "recovering": SumParameters(batch=2),
    "single": SumParameters(dropout_recovery=False),
    "blind": SumParameters(batch=2, blind_coordinator=True),
    "blind single": SumParameters(dropout_recovery=False, blind_coordinator=True),
}


@pytest.mark.parametrize("ring_bits", [32, 48, 64])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_plain_sum_exactly(mode: str, ring_bits: int) -> None:
    silos = names(4)
    ended = run(Federation(silos, MODES[mode]), rounds=3, ring_bits=ring_bits)
    assert ended.error is None, ended.error
    assert not ended.errors
    for round_ in range(3):
        total = expected(silos, round_, ring_bits)
        outcome = ended.result[round_]
        assert outcome.present == silos
        if "blind" in mode:
            assert not np.array_equal(outcome.total, total)
        else:
            np.testing.assert_array_equal(outcome.total, total)
        for silo in silos:
            np.testing.assert_array_equal(ended.silos[silo][round_].values, total)
