"""The budget holds exactly."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.budget import BudgetExceeded, BudgetLedger, Spending, portion


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
