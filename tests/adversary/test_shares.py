"""A silo that reveals a wrong share, or deals shares that fit nothing, is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hedgerow.boosting.errors import OfferRejected, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters, Unmasking
from tests.boosting.sums.federation_of_sums import Federation
from tests.boosting.sums.test_secure_sum import expected
from tests.boosting.sums.test_secure_sum_attacks import SEVEN, VICTIM, honest, take_part


def wrong_share(sums: SiloSums, link: Any) -> Any:
    """Reveal a share that was never dealt, as the victim."""
    exchange = link.exchange

    def lie(step: Any, at: ExchangeKey, offer: Any) -> Any:
        if isinstance(offer, Unmasking) and link.silo == VICTIM:
            offer = Unmasking({**offer.shares, SEVEN[2]: bytes(32)})
        return exchange(step, at, offer)

    link.exchange = lie
    return take_part(sums, link)


def test_a_wrong_share_is_refused_and_the_sum_goes_on_without_it() -> None:
    ended = Federation(SEVEN).run(honest, wrong_share)
    assert ended.error is None
    assert isinstance(ended.errors[VICTIM], OfferRejected)
    assert f"not the share of the mask of {SEVEN[2]}" in str(ended.errors[VICTIM])
    np.testing.assert_array_equal(ended.result.total, expected(SEVEN, 0))


def test_where_all_shares_are_needed_the_sender_of_a_wrong_one_is_named() -> None:
    ended = Federation(SEVEN, SumParameters(threshold=7)).run(honest, wrong_share)
    assert isinstance(ended.error, QuorumLost)
    assert f"{VICTIM} (not the share" in str(ended.error)


def test_a_dealer_of_shares_that_fit_nothing_is_named() -> None:
    def participate(sums: SiloSums, link: Any) -> Any:
        vault = sums._vault
        if link.silo == VICTIM:
            derive = vault.derive_masks

            def derived(*ticket: Any) -> Any:
                return replace(derive(*ticket), commitment=bytes(32))

            vault.derive_masks = derived  # type: ignore[method-assign]
        return take_part(sums, link)

    ended = Federation(SEVEN).run(honest, participate)
    assert isinstance(ended.error, SumCorrupt)
    assert f"{VICTIM} dealt shares" in str(ended.error)
