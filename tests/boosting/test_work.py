"""Seconds of a plan: work over rates, the slowest silo of each turn."""

from __future__ import annotations

import pytest

from hedgerow.boosting.work import COORDINATING, ROUND, STARTING, Forecast, Work, seconds, sharing
from hedgerow.services.wire.job_view import PlanView

RATES = {Work.EXCHANGE: 100.0, Work.ROUND_TRIP: 50.0, Work.BYTE: 1e6, Work.CELL: 1e8}
SLOW = {kind: rate / 2 for kind, rate in RATES.items()}
PLAN = Forecast(
    2, {"ExchangeTrees": (10, 400_000, 600_000)}, "all", work={"ExchangeTrees": {Work.CELL: 3e8}}
)
HANDLED = 10 * (1 + 2 * COORDINATING) / 100
STEP = HANDLED + 10 / 50 + 1.0 + 3.0


def test_work_of_an_unknown_rate_takes_no_time() -> None:
    assert seconds({Work.CELL: 5e7, Work.POINT: 1e9}, RATES) == 0.5


def test_silos_that_work_at_once_take_as_long_as_the_slowest() -> None:
    found = PlanView.of({"a": PLAN, "b": PLAN}, {"a": RATES, "b": SLOW})
    assert [s.seconds for s in found.steps] == pytest.approx([STEP, 2 * STEP])
    assert found.seconds == pytest.approx(2 * STEP + (STARTING + 2 * ROUND) / 50)


def test_passive_parties_follow_the_active_one() -> None:
    found = PlanView.of({"a": PLAN, "b": PLAN}, {"a": RATES, "b": SLOW}, "a")
    assert found.seconds == pytest.approx(3 * STEP + (STARTING + 2 * ROUND) / 50)


def test_a_silo_that_announces_no_rates_is_taken_to_be_as_the_slowest() -> None:
    found = PlanView.of({"a": PLAN, "b": PLAN}, {"b": SLOW})
    assert [s.seconds for s in found.steps] == pytest.approx([2 * STEP, 2 * STEP])
    unknown = PlanView.of({"a": PLAN})
    assert unknown.seconds is None
    assert unknown.steps[0].seconds is None


def test_silos_of_one_machine_share_its_cores() -> None:
    rates = RATES | {Work.PAILLIER_ADD: 1e4}
    three = sharing(rates, 3, 2)
    assert three[Work.EXCHANGE] == pytest.approx(100 / 1.5)
    assert three[Work.PAILLIER_ADD] == pytest.approx(1e4 / 3)
    assert three[Work.ROUND_TRIP] == 50
    two = sharing(rates, 2, 8)
    assert (two[Work.EXCHANGE], two[Work.CELL], two[Work.PAILLIER_ADD]) == (100, 4e8, 5e3)
