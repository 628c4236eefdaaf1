"""Survival in scikit-survival's form."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score

from hedgerow.boosting.errors import InvalidJob
from hedgerow.sklearn import FederatedRegressor, FederatedSurvival

pytestmark = pytest.mark.process


def rows(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    draws = np.random.default_rng(seed)
    X = pd.DataFrame({"a": draws.normal(size=n), "b": draws.normal(size=n)})
    time, last = draws.exponential(np.exp(-X.a)), draws.exponential(2.0, n)
    y = np.empty(n, dtype=[("seen", bool), ("months", float)])
    y["seen"], y["months"] = time <= last, np.minimum(time, last) + 1e-3
    return X, y


@pytest.mark.parametrize(
    ("strategy", "objective"),
    [("histogram", "survival:cox"), ("histogram", "survival:aft"), ("bagging", None)],
)
def test_greater_risks_are_of_rows_whose_event_is_sooner(
    strategy: str, objective: str | None
) -> None:
    (X, y), (others, known) = rows(900, 1), rows(500, 2)
    model = FederatedSurvival(strategy, rounds=8, max_depth=3, objective=objective)
    model.fit(X, y, eval_set=[(others, known)])
    risk = model.predict(others)
    later = known["months"][None, :] > known["months"][:, None]
    pairs = known["seen"][:, None] & later
    above = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    assert model.score(others, known) == pytest.approx(above[pairs].mean())
    assert model.score(others, known) > 0.7
    assert len(model.evals_result()["validation_0"]) >= 1


def test_scikit_learn_s_own_cross_validation_takes_it() -> None:
    X, y = rows(600, 3)
    model = FederatedSurvival("histogram", rounds=4, max_depth=2, objective="survival:cox")
    assert (cross_val_score(model, X, y, cv=2) > 0.6).all()


def test_labels_that_are_no_events_and_times_are_refused() -> None:
    X, y = rows(60, 4)
    model = FederatedSurvival("histogram", rounds=2)
    with pytest.raises(ValueError, match="y: expected a structured array of two fields"):
        model.fit(X, y["months"])
    with pytest.raises(ValueError, match="expected 60 rows as X"):
        model.fit(X, y[:50])
    y["months"][3] = 0.0
    with pytest.raises(ValueError, match="expected finite times above 0"):
        model.fit(X, y)
    with pytest.raises(InvalidJob, match="take FederatedSurvival"):
        FederatedRegressor("histogram", objective="survival:aft").fit(X, y["months"])
    with pytest.raises(InvalidJob, match="loss of times"):
        FederatedSurvival("simfl", rounds=2).fit(*rows(60, 4))
