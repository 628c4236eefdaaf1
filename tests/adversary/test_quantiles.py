"""Medians and quantiles: what is opened follows from cells of labels, and lies are found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.engine.leaf_quantiles import LeafQuantiles, LeafRows
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import (
    LabelCells,
    RoundEntry,
    RowCounts,
    TrainingState,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from tests import oracles, pooled
from tests.federation.histograms import job_of, model_of, run, same, silos_of
from tests.federation.memory import Fault, MemoryLink, Outcome
from tests.pooled import cells_of_labels

SIZES = (300, 250, 200, 150)
DATA = oracles.generated(Task.REGRESSION, sum(SIZES))
ROUNDS = 4
BOOSTER = Booster(max_depth=3, max_bin=16, min_child_weight=10.0, objective="reg:absoluteerror")


def job(objective: str = "reg:quantileerror", rounds: int = ROUNDS, **parameters: Any) -> Any:
    alpha = 0.7 if objective == "reg:quantileerror" else 0.5
    booster = replace(BOOSTER, objective=objective, quantile_alpha=alpha)
    made = job_of(Histogram(rounds=rounds, **parameters), Task.REGRESSION, booster, min_silos=3)
    made.parameters.validate(made)
    return replace(made, max_close_sums=9)


def labelled(labels: NDArray[np.float64]) -> Dataset:
    X = np.nan_to_num(DATA.X)  # where values are missing a silo adds a random flag
    return Dataset(DATA.schema, X, labels)


def opened(data: Dataset, monkeypatch: pytest.MonkeyPatch, objective: str) -> dict[str, bytes]:
    """Return what :func:`opened_totals` does of a job with an objective."""
    return opened_totals(job(objective, secure=False), silos_of(data, SIZES), monkeypatch)


def opened_totals(
    asked: Any, silos: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """Return the totals that the coordinator opens, but for those of metrics."""
    found: dict[str, bytes] = {}
    summed = CoordinatorSums.sum

    async def seen(self: Any, steps: Any, at: ExchangeKey, *given: Any, **others: Any) -> Any:
        outcome = await summed(self, steps, at, *given, **others)
        found[f"{steps.name} {at}"] = np.asarray(outcome.total).tobytes()
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(CoordinatorSums, "sum", seen)
        outcome = run(asked, silos)
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


def test_counts_of_many_rounds_isolate_labels_without_cells_and_none_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that is alone in a range of a leaf tells a range of its label, each round another.

    The attack is on counts of leaves alone, of a coordinator that knows which leaf a row is in.
    """
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 2)).astype(np.float32)
    labels = (2 * X[:, 0] + rng.normal(size=3000)).astype(np.float32).astype(np.float64)
    schema = Schema((Feature("a"), Feature("b")), "label", Task.REGRESSION, 0)
    data = Dataset(schema, X, labels)
    cells = cells_of_labels(data, 10)
    ranges = np.full((3000, 2), (-np.inf, np.inf))

    class Attacked(LeafRows):
        """Notes the ranges of rows that are alone in one that was counted."""

        def __init__(self, trees: Any) -> None:
            super().__init__(trees)
            (self.given,) = trees

        def below(self, search: LeafQuantiles) -> Any:
            found, at = super().below(search), 0
            node, residual, leaves = self.given
            for leaf, asked in zip(leaves, search.asked, strict=True):
                rows = np.flatnonzero(node == leaf)
                own, at = found[at : at + len(asked)], at + len(asked)
                edges = np.concatenate([[-np.inf], asked, [np.inf]])
                counts = np.diff(np.concatenate([[0], own, [len(rows)]]))
                k = np.searchsorted(edges, residual[rows], side="right") - 1
                alone = np.flatnonzero(counts[k] == 1)
                margins = told(labels[rows[alone]]) - residual[rows[alone]]
                low, high = (edges[k[alone] + end] + margins for end in (0, 1))
                of = rows[alone]
                ranges[of, 0] = np.maximum(ranges[of, 0], low)
                ranges[of, 1] = np.minimum(ranges[of, 1], high)
            return found

    def told(own: NDArray[np.float64]) -> NDArray[np.float64]:
        return own if bare else LabelCells(cells.thresholds, cells.values).of(own).astype(float)

    monkeypatch.setattr(pooled, "LeafRows", Attacked)
    attacked = replace(job("reg:absoluteerror"), booster=replace(BOOSTER, max_depth=6))
    bare = False
    pooled.train_pooled(attacked, data, 60)
    inside = (cells.values >= ranges[:, :1]) & (cells.values <= ranges[:, 1:])
    assert (inside @ cells.rows).min() >= 10
    assert (np.ptp(ranges, axis=1) < np.inf).mean() > 0.3, "the attack is one"
    bare = True
    ranges[:] = -np.inf, np.inf
    monkeypatch.setattr(LabelCells, "of", lambda self, own: own.astype(np.float32))
    pooled.train_pooled(attacked, data, 60)
    ordered = np.sort(labels)
    fitting = np.diff(np.searchsorted(ordered, ranges), axis=1)
    assert (fitting == 1).mean() > 0.02, "labels of so many rows are known"


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


@pytest.mark.parametrize("objective", ["reg:quantileerror", "reg:squarederror"])
def test_no_silo_takes_what_precedes_the_first_round_from_the_coordinator(objective: str) -> None:
    """Told to all silos alike, views agree: cuts around one row's value would open its label."""
    told: list[TrainingState] = []

    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, RoundEntry) and reply.state is not None:
                told.append(reply.state)
            if isinstance(reply, RoundEntry) and reply.round == 0 and lies:
                return replace(reply, state=told[0])
            return reply

    lies = False
    late: Any = {"joins_after": {"silo-3": 1}, "make_link": Told, "lied": True}
    assert run(job(objective), silos_of(DATA, SIZES), **late).rounds
    lies = True
    outcome = run(job(objective), silos_of(DATA, SIZES), make_link=Told, lied=True)
    assert not outcome.rounds
    assert len(outcome.errors) == len(SIZES)
    for error in outcome.errors.values():
        assert "which silos agree on themselves" in str(error)


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
