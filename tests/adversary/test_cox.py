"""Cox's model: what is opened follows from cells of times, and made-up sums are found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.sums.steps import SumTotal
from tests.adversary.test_quantiles import opened_totals
from tests.federation.memory import MemoryLink
from tests.federation.test_cox import job, made
from tests.federation.test_histogram import run, silos_of
from tests.pooled import cells_of_labels

SIZES = (300, 250, 200, 150)


def labelled(y: NDArray[np.float64]) -> Dataset:
    data = made(sum(SIZES))
    return replace(data, features=np.nan_to_num(data.X), y=y)  # a missing value sets a random flag


def opened(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    return opened_totals(job(secure=False), silos_of(data, SIZES), monkeypatch)


def test_no_opened_total_says_which_row_of_a_cell_has_which_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y = made(sum(SIZES)).labels
    cells = cells_of_labels(labelled(y), 10)
    cell = np.searchsorted(cells.thresholds, y[:, 0].astype(np.float32), side="right")
    seen = y[:, 0] == y[:, 1]
    assert np.bincount(cell[seen]).min() >= 10
    moved, rng = y.copy(), np.random.default_rng(4)
    for k in range(len(cells.rows)):
        for kind in (seen, ~seen):
            rows = np.flatnonzero((cell == k) & kind)
            moved[rows] = y[rng.permutation(rows)]
    assert (moved[:, 0] != y[:, 0]).mean() > 0.8
    before = opened(labelled(y), monkeypatch)
    assert {name.split()[0] for name in before} >= {"median", "risk-sets", "histograms"}
    assert opened(labelled(moved), monkeypatch) == before
    other = y.copy()  # of two cells
    a, b = (int(np.flatnonzero((cell == k) & seen)[0]) for k in (2, len(cells.rows) - 2))
    other[[a, b]] = y[[b, a]]
    assert opened(labelled(other), monkeypatch) != before


@pytest.mark.parametrize("number", [0, 40])
def test_made_up_risk_sets_are_refused_by_every_silo(number: int) -> None:
    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, SumTotal) and step.name.startswith("risk-sets-") and at.round == 1:
                values = reply.values.copy()
                values[3 + number] += np.uint64(1)
                return replace(reply, values=values)
            return reply

    outcome = run(job(), silos_of(made(sum(SIZES)), SIZES), make_link=Told, lied=True)
    assert len(outcome.rounds) == 1
    for error in outcome.errors.values():
        assert isinstance(error, OfferRejected), error
        assert "do not fit the silos' word" in str(error)
