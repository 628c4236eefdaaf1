"""The budget holds exactly."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.budget import (
    BudgetExceeded,
    BudgetLedger,
    Concentrated,
    Spending,
    epsilon_of,
    portion,
    rho_within,
    total,
)
from tests.late import Late

special: Any = Late("scipy.special")


def spending(epsilon: float) -> Spending:
    return Spending("counts", epsilon, 1, 10)


@settings(max_examples=80)
@given(
    st.floats(1e-3, 100),
    st.lists(st.floats(1e-6, 50), max_size=20),
)
def test_sum_of_budgets_never_exceeds_epsilon(epsilon: float, wanted: list[float]) -> None:
    ledger = BudgetLedger(epsilon)
    for number, part in enumerate(wanted):
        before = ledger.spent
        try:
            ledger.charge({str(number): spending(part)})
        except BudgetExceeded:
            assert ledger.spent == before
            assert before + Fraction(part) > Fraction(epsilon)
        assert ledger.spent <= Fraction(epsilon)


@pytest.mark.slow
@settings(max_examples=80)
@given(st.floats(1e-3, 100), st.integers(1, 60), st.integers(1, 60))
def test_portions_of_a_budget_always_fit_into_it(epsilon: float, n: int, of: int) -> None:
    ledger = BudgetLedger(epsilon)
    for number in range(of):
        ledger.charge({f"a{number}": spending(portion(epsilon, Fraction(1, of + n)))})
    for number in range(n):
        ledger.charge({f"b{number}": spending(portion(epsilon, Fraction(1, of + n)))})
    assert Fraction(epsilon) * Fraction(999, 1000) < ledger.spent <= Fraction(epsilon)


def test_ten_tenths_fit_where_floats_would_not_add_up() -> None:
    ledger = BudgetLedger(1.0)
    for number in range(9):
        ledger.charge({str(number): spending(0.1)})
    # Ten times the float 0.1 is more than one.
    with pytest.raises(BudgetExceeded, match=r"0\.1 of 1 are left"):
        ledger.charge({"last": spending(0.1)})
    ledger.charge({"last": spending(portion(1.0, Fraction(1, 10)) * (1 - 2**-50))})


def test_repeated_query_costs_nothing() -> None:
    ledger = BudgetLedger(1.0)
    ledger.charge({"root": spending(0.7)})
    ledger.charge({"root": spending(0.7)})
    assert ledger.spent == Fraction(0.7)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_budget_must_be_positive(epsilon: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        BudgetLedger(epsilon)


@pytest.mark.parametrize("part", [0.0, -0.1, math.inf, math.nan])
def test_query_without_a_proper_budget_is_refused(part: float) -> None:
    with pytest.raises(BudgetExceeded):
        BudgetLedger(1.0).charge({"root": spending(part)})


@pytest.mark.parametrize("epsilon", [0.5, math.inf])
def test_ledger_survives_its_encoding(epsilon: float) -> None:
    ledger = BudgetLedger(epsilon)
    ledger.charge({"root": spending(portion(epsilon, Fraction(1, 3)))})
    again = BudgetLedger.decode(ledger.encode())
    assert again == ledger
    assert again.spent == ledger.spent


def concentrated(rho: float) -> Concentrated:
    return Concentrated("sums", 0.0, 64, 100, rho=rho, variance=9)


def gaussian_delta(epsilon: float, rho: float) -> float:
    """Return the delta of Gaussian noise of this rho exactly (Balle, Wang 2018)."""
    length = math.sqrt(2.0 * rho)
    normal = special.ndtr
    upper = normal(length / 2 - epsilon / length)
    return float(upper - math.exp(epsilon) * normal(-length / 2 - epsilon / length))


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.02, 0.5, 4.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-3])
def test_epsilon_of_a_rho_covers_gaussian_noise_and_wastes_little(rho: float, delta: float) -> None:
    epsilon = epsilon_of(rho, delta)
    assert gaussian_delta(epsilon, rho) <= delta
    usual = rho + 2.0 * math.sqrt(-rho * math.log(delta))  # Bun and Steinke's conversion
    assert epsilon <= usual
    assert gaussian_delta(0.75 * epsilon, rho) > delta or epsilon < 0.01
    back = rho_within(epsilon, delta)
    assert epsilon_of(back, delta) <= epsilon
    assert back == pytest.approx(rho, rel=2e-3)


def test_costs_of_skellam_noise_add_up_as_divergences() -> None:
    ledger = BudgetLedger(1.0, delta=1e-5)
    one = rho_within(1.0, 1e-5) / 10
    for k in range(10):
        ledger.charge({f"{k}": concentrated(one)})
        ledger.charge({f"{k}": concentrated(one)})  # asked again: free
    assert 0.99 < ledger.spent <= 1.0
    with pytest.raises(BudgetExceeded, match="are left"):
        ledger.charge({"more": concentrated(one)})
    with pytest.raises(BudgetExceeded):
        ledger.charge({"pure": Spending("counts", 0.5, 1, 1)})
    assert len(ledger.entries) == 10
    again = BudgetLedger.decode(ledger.encode())
    assert again == ledger
    assert again.spent == ledger.spent
    assert math.isinf(BudgetLedger(math.inf, ledger.entries).spent)  # at delta 0


def test_pure_queries_and_skellam_noise_cost_the_better_of_two_sums() -> None:
    pure = [Spending("counts", 0.01, 1, 1)] * 100
    both = float(total([*pure, concentrated(0.01)], 1e-6))
    apart = 1.0 + epsilon_of(0.01, 1e-6)
    together = epsilon_of(0.01 + 100 * 0.01**2 / 2, 1e-6)
    assert both == min(apart, together)
    assert float(total(pure, 1e-6)) == pytest.approx(1.0)
