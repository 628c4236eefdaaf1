"""Medians and quantiles: what is opened follows from cells of labels, and lies are found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import RoundEntry, RowCounts
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from tests import oracles
from tests.federation.memory import Fault, MemoryLink, Outcome
from tests.federation.test_histogram import job_of, model_of, run, same, silos_of
from tests.pooled import cells_of_labels

SIZES = (300, 250, 200, 150)
DATA = oracles.generated(Task.REGRESSION, sum(SIZES))
ROUNDS = 4


def job(objective: str = "reg:quantileerror", rounds: int = ROUNDS, **parameters: Any) -> Any:
    alpha = {"quantile_alpha": 0.7} if objective == "reg:quantileerror" else {}
    booster = Booster(max_depth=3, max_bin=16, min_child_weight=10.0, objective=objective, **alpha)
    made = job_of(Histogram(rounds=rounds, **parameters), Task.REGRESSION, booster, min_silos=3)
    made.parameters.validate(made)
    return replace(made, max_close_sums=9)


def labelled(labels: NDArray[np.float64]) -> Dataset:
    X = np.nan_to_num(DATA.X)  # where values are missing a silo adds a random flag
    return Dataset(DATA.schema, X, labels)


def opened(data: Dataset, monkeypatch: pytest.MonkeyPatch, objective: str) -> dict[str, bytes]:
    """Return the totals that the coordinator opens, but for those of metrics."""
    found: dict[str, bytes] = {}
    summed = CoordinatorSums.sum

    async def seen(self: Any, steps: Any, at: ExchangeKey, *given: Any, **others: Any) -> Any:
        outcome = await summed(self, steps, at, *given, **others)
        found[f"{steps.name} {at}"] = np.asarray(outcome.total).tobytes()
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(CoordinatorSums, "sum", seen)
        outcome = run(job(objective, secure=False), silos_of(data, SIZES))
    assert not outcome.errors
    return {name: total for name, total in found.items() if not name.startswith(("scores", "sum"))}


@pytest.mark.parametrize("objective", ["reg:absoluteerror", "reg:quantileerror"])
def test_no_opened_total_says_which_row_of_a_cell_has_which_label(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So differences of counts and histograms over all rounds isolate no label within its cell."""
    labels = DATA.labels.astype(np.float32).astype(np.float64)
    cells = cells_of_labels(labelled(labels), 10)
    assert cells.rows.min() >= 10
    cell = np.searchsorted(cells.thresholds, labels.astype(np.float32), side="right")
    moved, rng = labels.copy(), np.random.default_rng(4)
    for k in range(len(cells.rows)):
        rows = np.flatnonzero(cell == k)
        moved[rows] = labels[rng.permutation(rows)]
    assert (moved != labels).mean() > 0.8
    before = opened(labelled(labels), monkeypatch, objective)
    assert {name.split()[0] for name in before} >= {"median", "histograms", "leaf-quantiles"}
    assert opened(labelled(moved), monkeypatch, objective) == before
    other = labels.copy()  # of two cells
    a, b = (int(np.flatnonzero(cell == k)[0]) for k in (5, len(cells.rows) - 5))
    other[[a, b]] = labels[[b, a]]
    assert opened(labelled(other), monkeypatch, objective) != before


@pytest.mark.parametrize("passing", [0, 1])
@pytest.mark.parametrize("name", ["median", "leaf-quantiles"])
def test_made_up_counts_are_refused_by_every_silo(name: str, passing: int) -> None:
    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            made_up = isinstance(reply, RowCounts) and step.name.startswith(f"{name}-")
            if made_up and at == ExchangeKey(0, 0, passing):
                return RowCounts(
                    reply.rows + (np.arange(len(reply.rows)) == min(5, len(reply.rows) - 1))
                )
            return reply

    outcome = run(job(), silos_of(DATA, SIZES), make_link=Told, lied=True)
    assert not outcome.rounds
    for error in outcome.errors.values():
        assert isinstance(error, OfferRejected), error
        assert "do not fit the silos' word" in str(error)


def test_a_silo_that_is_told_other_cells_is_in_no_sum() -> None:
    """Finer cells told to one that enters later would make its counts those of single labels."""

    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, RoundEntry) and reply.state is not None and lies:
                terms = reply.state.terms
                assert terms.labels is not None
                finer = replace(terms.labels, values=terms.labels.values + np.float32(1e-3))
                terms = replace(terms, labels=finer)
                return replace(reply, state=replace(reply.state, terms=terms))
            return reply

    def present() -> list[bool]:
        late: Any = {"joins_after": {"silo-3": 1}, "make_link": Told, "lied": True}
        outcome = run(job(rounds=6), silos_of(DATA, SIZES), **late)
        assert outcome.rounds, outcome.error
        return ["silo-3" in result.silos for result in outcome.rounds]

    lies = False
    assert present()[-1]
    lies = True
    assert not any(present())


def test_a_silo_lost_between_counts_ends_the_tree_with_what_is_known() -> None:
    sizes = (*SIZES, 120)
    data = oracles.generated(Task.REGRESSION, sum(sizes))
    whole = model_of(run(job(), silos_of(data, sizes)))
    for passing in (0, 1):
        fault = Fault("silo-4", "leaf-quantiles-single", 1, 0, "before", passing=passing)
        outcome = run(job(), silos_of(data, sizes), faults=(fault,))
        lost = model_of(outcome)
        assert len(outcome.rounds) == ROUNDS
        assert "silo-4" not in outcome.rounds[-1].silos
        tree, full = lost.trees[1], whole.trees[1]
        leaves = tree.threshold[tree.is_leaf]
        assert np.array_equal(tree.feature, full.feature)
        away = np.abs(leaves - full.threshold[full.is_leaf]) / DATA.labels.std()
        assert away.max() < (0.05 if passing else 0.3)


def test_a_second_attempt_goes_on_with_the_same_cells() -> None:
    silos = silos_of(DATA, SIZES)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in silos}
    first = run(job(), silos, stop_after_rounds=2, memories=memories)
    checkpoint = first.rounds[-1].checkpoint
    second: Outcome = run(
        job(), silos, attempt=2, first_round=2, checkpoint=checkpoint, memories=memories
    )
    assert not second.errors
    assert same(model_of(second), model_of(run(job(), silos)))
