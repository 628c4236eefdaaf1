"""A silo that adds something else than its rows' sums ends the job; it makes no leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.sums.silo import SiloSums
from tests import oracles
from tests.federation.histograms import job_of, model_of, run, silos_of

DATA = oracles.generated(Task.BINARY, 600)
SILOS = silos_of(DATA, (150, 120, 110, 120, 100))
LIAR = "silo-3"


def job(**parameters: Any) -> Any:
    strategy = Histogram(rounds=2, **parameters)
    return job_of(strategy, Task.BINARY, Booster(max_depth=3, max_bin=16))


def lie(monkeypatch: pytest.MonkeyPatch, step: str, where: ExchangeKey) -> None:
    """Add random residues to the liar's part of one sum, in all its passes."""
    honest = SiloSums.sum

    def summed(self: SiloSums, steps: Any, at: ExchangeKey, residues: Any, **other: Any) -> Any:
        if (self._silo, steps.name, replace(at, passing=0)) == (LIAR, step, where):
            rng = np.random.default_rng(1)
            residues = residues + rng.integers(0, 1 << 64, residues.shape, np.uint64).astype(
                residues.dtype
            )
        return honest(self, steps, at, residues, **other)

    monkeypatch.setattr(SiloSums, "sum", summed)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("secure", [True, False])
def test_random_residues_end_the_job_with_the_round(
    level: int, secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(monkeypatch, "histograms", ExchangeKey(1, level))
    outcome = run(job(secure=secure), SILOS)
    assert isinstance(outcome.error, SumCorrupt)
    assert f"round 1, level {level}" in str(outcome.error)
    assert "a silo has added something else" in str(outcome.error)
    assert len(outcome.rounds) == 1


def test_silos_of_a_blind_coordinator_see_it_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, "histograms", ExchangeKey(1, 1))
    outcome = run(job(blind_coordinator=True), SILOS)
    for silo in SILOS:
        assert isinstance(outcome.errors[silo], SumCorrupt)


def test_renewed_leaves_are_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, "leaves", ExchangeKey(1))
    outcome = run(job(coarse_bits=5), SILOS)
    assert isinstance(outcome.error, SumCorrupt)


@pytest.mark.parametrize("objective", ["reg:squarederror", "lae"])
def test_honest_sums_pass(objective: str) -> None:
    data = oracles.generated(Task.REGRESSION, 400, weighted=True)
    silos = silos_of(data, (150, 130, 120))
    strategy = Histogram(rounds=3)
    booster = Booster(max_depth=5, max_bin=16, objective=objective)
    asked = job_of(strategy, Task.REGRESSION, booster)
    assert len(model_of(run(asked, silos)).trees) == 3
