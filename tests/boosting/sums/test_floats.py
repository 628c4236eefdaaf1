"""Sums of floats: bounds are found without a number in clear, and no silo refuses its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey
from hedgerow.boosting.sums.floats import add_securely, exponent_of, float_sum, total_securely
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumTotal
from tests.boosting.sums.federation_of_sums import Federation, names

KIND = float_sum("f", Call.SUMS, SumTotal, SumTotal, "numbers", Discloses.WEIGHTS)


@pytest.mark.parametrize("odd", [0.0, 1e-200, np.nan, np.inf, -1e300])
def test_vectors_are_summed_whatever_a_silo_has_in_them(odd: float) -> None:
    silos = names(4)
    vectors = {silo: np.array([1.0, -0.5, k]) for k, silo in enumerate(silos)}
    vectors[silos[2]] = np.array([1.0, -0.5, odd])
    totals = []

    async def coordinate(sums: Any, hub: Any) -> Any:
        await sums.setup(ExchangeKey(0))
        found = await total_securely(sums, KIND, ExchangeKey(0), 3)
        totals.append(found.total)
        found.answer(SumTotal(np.zeros(0, np.uint64), 64, found.present))

    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(ExchangeKey(0))
        add_securely(sums, KIND, ExchangeKey(0), vectors[link.silo], bytes(32))

    ended = Federation(silos).run(coordinate, participate)
    assert not ended.errors
    if abs(odd) < 1e100:
        assert np.allclose(totals[0], [4.0, -2.0, 4.0 + odd], rtol=1e-12)


def test_what_is_not_finite_counts_as_the_most() -> None:
    assert exponent_of(np.array([1.0, np.nan])) == exponent_of(np.array([-np.inf])) == 128
    assert exponent_of(np.array([0.75, -5.0])) == 3
