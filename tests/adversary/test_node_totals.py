"""A coordinator that makes up leaves, totals, nodes or whole trees is refused by every silo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.errors import ModelRejected, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram import round_trees
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.rows import SiloRows
from hedgerow.boosting.strategies.histogram.steps import (
    WITNESS_PASS,
    ClosedTrees,
    LevelDecision,
    NodeTotals,
    TrainingState,
)
from hedgerow.boosting.strategies.histogram.stored import RoundCheckpoint
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import MaskedVector
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.crypto.masking.totals import N_LIMBS
from tests import oracles
from tests.federation.histograms import job_of, model_of, run, same, silos_of
from tests.federation.memory import Fault, MemoryJournal, MemoryLink, Outcome, SiloKilled

DATA = oracles.generated(Task.BINARY, 600)
SILOS = silos_of(DATA, (150, 120, 110, 120, 100))
DEPTH = 3
ROUND = 1
Lie = Callable[[NodeTotals], "NodeTotals | None"]


def job(rounds: int = 2, *, depth: int = DEPTH, weight: float = 1.0, **parameters: Any) -> Any:
    strategy = Histogram(rounds=rounds, **parameters)
    booster = Booster(max_depth=depth, max_bin=16, min_child_weight=weight)
    return replace(job_of(strategy, Task.BINARY, booster), max_close_sums=9)


def told(change: Callable[[Step[Any, Any], ExchangeKey, Any], Any]) -> Callable[..., MemoryLink]:
    """Return links whose coordinator changes its replies, the same way to all silos."""

    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            return change(step, at, super().exchange(step, at, offer))

    return Told


def changed(level: int | None, lie: Lie) -> Callable[..., MemoryLink]:
    """Return links that change the totals of a level, or of the last sum, of round 1."""

    def change(step: Step[Any, Any], at: ExchangeKey, reply: Any) -> Any:
        wanted = ClosedTrees if level is None else LevelDecision
        place = ExchangeKey(ROUND, level or 0)
        if isinstance(reply, wanted) and (at.round, at.level) == (place.round, place.level):
            return reply if reply.totals is None else replace(reply, totals=lie(reply.totals))
        return reply

    return told(change)


def refused(outcome: Outcome, why: str, kind: type[Exception] = OfferRejected) -> None:
    assert outcome.error is not None
    for silo in SILOS:
        error = outcome.errors[Silo(silo)]
        assert isinstance(error, kind), error
        assert why in str(error), error
        assert "the coordinator" in str(error)


def add(place: int, what: int) -> Lie:
    def lie(totals: NodeTotals) -> NodeTotals:
        sums = totals.sums.copy()
        sums[place] += what
        return replace(totals, sums=sums)

    return lie


LIES: dict[str, Lie] = {
    "one unit of a gradient": add(0, 1),
    "one unit of the last number": add(-1, -1),
    "a high power of two": add(1, 1 << 61),
    "nothing at all": lambda totals: replace(totals, sums=np.zeros_like(totals.sums)),
    "twice the totals and the word": lambda totals: NodeTotals(2 * totals.sums, 2 * totals.word),
    "two nodes for one another": lambda totals: replace(totals, sums=totals.sums[::-1].copy()),
    "another word": lambda totals: replace(totals, word=totals.word + 1),
    "half a word": lambda totals: replace(totals, word=totals.word[:1]),
    "one number more": lambda totals: replace(totals, sums=np.append(totals.sums, 0)),
    "one number less": lambda totals: replace(totals, sums=totals.sums[:-1]),
}


@pytest.mark.parametrize(
    ("what", "level"),
    [*((what, None) for what in LIES), *(("one unit of a gradient", level) for level in range(3)),
     ("nothing at all", 1), ("twice the totals and the word", 2)],
)  # fmt: skip
def test_made_up_totals_are_refused_by_every_silo(what: str, level: int | None) -> None:
    outcome = run(job(), SILOS, make_link=changed(level, LIES[what]), lied=True)
    refused(outcome, f"round {ROUND}, level {DEPTH if level is None else level}")
    assert len(outcome.rounds) == ROUND


@pytest.mark.parametrize("level", [0, 2, None])
@pytest.mark.parametrize("fields", [{}, {"coarse_bits": 5}, {"dropout_recovery": False}])
def test_left_out_totals_are_refused_by_every_silo(
    fields: dict[str, Any], level: int | None
) -> None:
    outcome = run(job(**fields), SILOS, make_link=changed(level, lambda _: None), lied=True)
    refused(outcome, "expected node totals")


@pytest.mark.parametrize(
    "fields",
    [
        {"coarse_bits": 5, "ring_bits": 48},
        {"dropout_recovery": False},
        {"max_split_nodes": 1},
        {"silos_per_round": 4},
    ],
)
def test_made_up_totals_are_refused_in_every_kind_of_job(fields: dict[str, Any]) -> None:
    asked = replace(job(**fields), silos=tuple(map(Silo, SILOS)))
    outcome = run(asked, SILOS, make_link=changed(None, add(0, 1)), lied=True)
    drawn = [error for error in outcome.errors.values() if isinstance(error, OfferRejected)]
    assert len(drawn) >= 4
    assert all("do not fit the silos' word" in str(error) for error in drawn)


@pytest.mark.parametrize("coarse", [0, 5])
def test_a_silo_whose_word_is_not_of_its_rows_ends_the_job(
    coarse: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SiloSums.sum

    def summed(self: SiloSums, steps: Any, at: ExchangeKey, residues: Any, **other: Any) -> Any:
        if self._silo == "silo-3" and (steps.name, at.round) == ("leaves", ROUND):
            other["totals"] = other["totals"] + 1
        return honest(self, steps, at, residues, **other)

    monkeypatch.setattr(SiloSums, "sum", summed)
    outcome = run(job(coarse_bits=coarse), SILOS)
    refused(outcome, "or a silo has added a word of other numbers")


# --- leaves ---


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[GrownTree]:
    """Return the trees that silos add to their margins."""
    found: list[GrownTree] = []
    add_trees = SiloRows.add

    def watch(self: SiloRows, trees: Any, *others: Any) -> None:
        found.extend(trees)
        add_trees(self, trees, *others)

    monkeypatch.setattr(SiloRows, "add", watch)
    return found


def values(n: int) -> Any:
    return np.full(n, 1e-6, np.float32)


def test_made_up_leaf_values_are_not_looked_at(grown: list[GrownTree]) -> None:
    """The first attack of the issue: leaves of 1e-6, so that the next round asks the same again."""

    def change(step: Step[Any, Any], at: ExchangeKey, reply: Any) -> Any:
        return replace(reply, values=values(8)) if isinstance(reply, ClosedTrees) else reply

    outcome = run(job(), SILOS, make_link=told(change), lied=True)
    assert same(model_of(outcome), model_of(run(job(), SILOS)))
    assert not any(np.isclose(tree.value[tree.leaves], 1e-6).any() for tree in grown)


def closing(level: int) -> type[MemoryLink]:
    class Closing(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            if step.name.startswith("scores"):
                raise SiloKilled
            reply = super().exchange(step, at, offer)
            if isinstance(reply, LevelDecision) and (at.round, at.level) == (0, level):
                return replace(reply, closed=ClosedTrees(values(4), None, None, cut=True))
            return reply

    return Closing


def test_trees_do_not_end_before_the_roots_are_known() -> None:
    refused(run(job(1), SILOS, make_link=closing(0), lied=True), "received the end of the trees")


@pytest.mark.parametrize("level", [1, 2])
def test_a_tree_that_is_said_to_be_closed_has_no_other_leaves_than_those_checked(
    level: int, grown: list[GrownTree]
) -> None:
    run(job(1), SILOS, make_link=closing(level), lied=True)
    lied = grown[0]
    grown.clear()
    honest = run(job(1), SILOS, faults=(Fault("silo-4", "histograms-single", 0, level),))
    (tree,) = model_of(honest).trees
    assert lied.left.shape[0] == (1, 1, 3)[level]
    np.testing.assert_array_equal(lied.left, tree.left)
    np.testing.assert_array_equal(lied.value[lied.leaves, 0], tree.threshold[tree.is_leaf])
    np.testing.assert_array_equal(lied.cover, tree.cover)


@pytest.mark.parametrize(("depth", "level"), [(1, 1), (2, 1), (3, 1)])
def test_a_child_with_too_little_weight_is_refused_by_every_silo(
    depth: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator divides where the job's least weight forbids it."""
    honest = round_trees.Grower

    class Greedy(honest):  # type: ignore[misc, valid-type]
        def __init__(self, cuts: Any, parameters: Any, *rest: Any, **named: Any) -> None:
            super().__init__(cuts, replace(parameters, min_child_weight=0.0), *rest, **named)

    monkeypatch.setattr(round_trees, "Grower", Greedy)
    outcome = run(job(1, depth=depth, weight=70.0), SILOS, lied=True)
    refused(outcome, f"round 0, level {level}: ")
    refused(outcome, "less weight than min_child_weight, 70")


# --- models of rounds that are over ---


def made_up(outcome: Outcome) -> bytes:
    """Return the last checkpoint with leaves of 1e-6."""
    checkpoint = RoundCheckpoint.decode(outcome.rounds[-1].checkpoint)
    assert checkpoint.state is not None
    whole = model_of(outcome)
    trees = [
        replace(tree, threshold=np.where(tree.is_leaf, np.float32(1e-6), tree.threshold))
        for tree in whole.trees[: checkpoint.round]
    ]
    lied = Ensemble(whole.header)
    for tree in trees:
        lied = lied.extend([tree], n_steps=1)
    state = TrainingState(np.frombuffer(lied.save(), np.uint8), checkpoint.state.terms)
    return replace(checkpoint, state=state).encode()


def restarted(asked: JobParameters, remember: bool, times: int = 1) -> tuple[Outcome, set[str]]:
    """Return how an attempt on made-up trees ends, and what sums silos added to in it."""
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    whole = run(asked, SILOS, memories=memories)
    stopped = replace(whole, rounds=whole.rounds[:2])
    kept = {silo: dict(own) for silo, own in memories.items()}
    for own in kept.values():
        del own["secure-sums/job"]  # of the third round
        if not remember:
            own.clear()
    added: set[str] = set()

    class Hears(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            if isinstance(offer, MaskedVector):
                added.add(f"{step.name} {at.round} {at.passing} {len(offer.values)}")
            return super().exchange(step, at, offer)

    for k in range(times):
        outcome = run(
            asked, SILOS, memories=kept, checkpoint=made_up(stopped), first_round=2, attempt=2 + k,
            make_link=Hears, lied=True,
        )  # fmt: skip
    return outcome, added


def test_a_silo_refuses_another_model_than_the_one_it_has_checked() -> None:
    outcome, added = restarted(job(3), remember=True)
    refused(outcome, "another model of 2 rounds", ModelRejected)
    assert not added


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"dropout_recovery": False}, {"silos_per_round": 4}])
def test_trees_that_no_silo_has_checked_end_the_job(fields: dict[str, Any], times: int) -> None:
    """Nothing of any row is summed at such trees, however often the coordinator starts anew."""
    asked = replace(job(3, **fields), silos=tuple(map(Silo, SILOS)))
    outcome, added = restarted(asked, remember=False, times=times)
    refused(outcome, "no silo has checked the trees")
    step = "single" if fields.get("dropout_recovery") is False else "masked"
    assert added == {f"sum-{step} 2 {WITNESS_PASS} {N_LIMBS + 2}"}


@pytest.mark.parametrize("done", [1, 2])
def test_a_round_whose_end_reached_no_silo_is_played_again(done: int) -> None:
    """The coordinator has its checkpoint, and its process ends before any reply arrives."""
    asked = job(3)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    faults = tuple(Fault(silo, "leaves-single", done - 1, when="after") for silo in SILOS)
    journal = MemoryJournal()
    first = run(asked, SILOS, memories=memories, faults=faults, journal=journal)
    whole = run(asked, SILOS)
    checkpoint = whole.rounds[done - 1].checkpoint
    attempts, outcome = 0, first
    while outcome.error is not None and attempts < 4:
        attempts += 1
        outcome = run(
            asked, SILOS, memories=memories, checkpoint=checkpoint, first_round=done,
            attempt=1 + attempts, journal=journal,
        )  # fmt: skip
    assert attempts == 2, "one that finds it out, one that plays the round again"
    assert [result.round for result in outcome.rounds] == [*range(done - 1, 3)]
    assert same(model_of(outcome), model_of(whole))
