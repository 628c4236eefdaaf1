"""Rounds over silos that the job draws: the pooled trees of their rows, and no finer sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob, PlacePassed, QuorumLost, SumRefused
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.cohorts import cohort, cohorts, most_drawn, n_close
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import GROWN, GrownTrees
from hedgerow.boosting.sums.groups import groups_of_job
from hedgerow.boosting.sums.steps import KEYS, KeyOffer, KeyRoster
from tests import oracles
from tests.federation.histograms import DATA, model_of, plain_job, run, same, silos_of
from tests.federation.memory import Fault, MemoryJournal, MemoryLink, Outcome
from tests.federation.test_histogram_faults import DeadlyLink, TornJournal, round_of, tree_of_rows

SIZES = (300, 150, 100, 150, 250, 100, 250, 80, 120)
SILOS = silos_of(DATA, SIZES)
NAMES = tuple(map(Silo, SILOS))
ROUNDS = 4
DRAWN = 6  # of nine silos in groups of three; five of them must agree to an unmasking


def job(names: tuple[Silo, ...] = NAMES, count: int = DRAWN, **strategy: Any) -> JobParameters:
    asked = replace(plain_job(ROUNDS, silos_per_round=count, **strategy), silos=names)
    asked.parameters.validate(asked)
    asked.check_cohort(len(names))
    return asked


def drawn(asked: JobParameters) -> list[tuple[Silo, ...]]:
    assert isinstance(asked.parameters, Histogram)
    return list(asked.parameters.cohorts(asked))


SETS = drawn(job())
LAST = next(r for r in range(ROUNDS) if r and "silo-0" in SETS[r])
OUT = next(silo for silo in NAMES if silo not in SETS[LAST])


def check_rounds(
    asked: JobParameters, outcome: Outcome, sets: Sequence[tuple[Silo, ...]], first: int = 0
) -> None:
    """Check that each round's tree is that of the pooled rows of its silos."""
    edges = np.cumsum((0, *SIZES)).tolist()
    own = dict(zip(SILOS, pairwise(edges), strict=True))
    for r, silos in list(enumerate(sets))[first:]:
        rows = np.concatenate([np.arange(*own[silo]) for silo in silos])
        assert same(round_of(outcome, r), tree_of_rows(asked, outcome, r, DATA.take(rows)))


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"secure": False}, {"dropout_recovery": False}], ids=["masked", "plain", "single"]
)
def test_a_rounds_tree_is_the_pooled_one_of_its_cohorts_rows(
    given: dict[str, Any], scored: bool
) -> None:
    asked = job(**given)
    test = None if scored else oracles.generated(Task.BINARY, 100)
    outcome = run(asked, SILOS, test=test, through_wire=True)
    assert not outcome.errors
    assert [result.silos for result in outcome.rounds] == SETS
    assert len(set(SETS)) > 1
    check_rounds(asked, outcome, SETS)


@pytest.mark.parametrize("sampling", ["uniform", "goss", "mvs"])
def test_sampled_coarse_trees_are_the_same_with_masks_and_without(sampling: str) -> None:
    models = []
    for secure in (True, False):
        outcome = run(job(secure=secure, sampling=sampling, coarse_bits=5), SILOS)
        assert not outcome.errors
        models.append(outcome.artefact.files if outcome.artefact else None)
    assert models[0] == models[1]


def test_a_cohort_follows_from_seed_round_and_names_in_fixed_groups() -> None:
    for n in range(6, 31):
        names = tuple(f"s{i:02}" for i in range(n))
        for count in range(1, most_drawn(names, 5, 3) + 1):
            sets = cohorts(names, count, 5, 40)
            assert all(count <= len(own) < n for own in sets)
            assert sets == tuple(cohort(names, count, 5, r) for r in range(40))
            # Silos that are always drawn together are three at least, so that no combination of
            # rounds, whatever their number, is about fewer.
            columns = [tuple(name in own for own in sets) for name in names]
            assert min(columns.count(column) for column in columns) >= 3
            assert n_close(names, sets, 5, 3) == 0
    assert cohorts(names, 6, 5, 40) != cohorts(names, 6, 6, 40)
    assert most_drawn(names[:3], 5, 3) == 2
    assert all(cohort(names[:5], 3, 1, r) != names[:5] for r in range(40))


def test_few_silos_are_drawn_one_by_one_and_the_plan_says_what_that_tells() -> None:
    names = NAMES[:5]
    rows = {silo: SILOS[silo].n_samples for silo in names}
    asked = job(names, 4)
    sets = drawn(asked)
    assert {len(own) for own in sets} == {4}
    # Each first set of four tells the fifth silo apart.
    n_close = len(set(sets))
    assert asked.parameters.safeguards(asked).close_sums == n_close > 0
    (notes,) = [
        note
        for note in asked.strategy.forecast(asked.parameters, asked, DATA.schema, rows).notes
        if "silos apart" in note
    ]
    assert notes.startswith(f"{n_close} of the sets of silos that are drawn tell fewer than three")
    many = job()
    assert many.parameters.safeguards(many).close_sums == 0
    assert many.parameters.safeguards(many).drawn_silos == DRAWN


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 2}, "expected 0 or at least 3, the fewest silos that a sum is over"),
        ({"count": 7}, "expected 0 to 6 of 9 silos, which leaves some out, received 7"),
        ({"blind_coordinator": True, "binning": "recursive"}, "0 with blind_coordinator"),
        ({"sampling": "mvs", "sampling_scope": "global"}, "expected 0 with sampling_scope"),
        ({"threshold": 5}, "expected 0 with threshold"),
    ],
)
def test_what_does_not_go_with_a_draw_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        job(**given)


def test_a_job_that_draws_names_its_silos() -> None:
    asked = replace(job(), silos=())
    with pytest.raises(InvalidJob, match="expected the job to name its silos"):
        asked.parameters.safeguards(asked)


# --- losses ---


def test_a_silo_that_was_not_drawn_may_be_lost_and_changes_nothing() -> None:
    asked = job()
    outcome = run(asked, SILOS, faults=(Fault(OUT, "grown", LAST),))
    assert list(outcome.errors) == [OUT]
    left = [tuple(s for s in own if s != OUT) if r > LAST else own for r, own in enumerate(SETS)]
    check_rounds(asked, outcome, left)


@pytest.mark.parametrize("secure", [True, False])
def test_a_cohort_goes_on_without_a_silo_that_is_lost_before_its_sums(secure: bool) -> None:
    asked = job(secure=secure)
    step = "histograms-masked" if secure else "histograms-plain"
    outcome = run(asked, SILOS, faults=(Fault("silo-0", step, LAST),))
    assert list(outcome.errors) == ["silo-0"]
    left = [
        tuple(s for s in own if s != "silo-0") if r >= LAST else own for r, own in enumerate(SETS)
    ]
    check_rounds(asked, outcome, left)
    assert [result.silos for result in outcome.rounds] == left


def test_a_tree_that_a_loss_closes_is_the_same_for_silos_that_were_not_drawn() -> None:
    asked = job()
    outcome = run(asked, SILOS, faults=(Fault("silo-0", "histograms-single", LAST, 2),))
    assert list(outcome.errors) == ["silo-0"]
    assert round_of(outcome, LAST).trees[0].n_nodes == 3
    left = [
        tuple(s for s in own if s != "silo-0") if r > LAST else own for r, own in enumerate(SETS)
    ]
    check_rounds(asked, outcome, left, LAST + 1)


def test_too_few_of_a_cohort_end_the_job_by_name() -> None:
    """One silo of each group that is drawn is lost: no group of the round is whole."""
    asked = replace(job(), max_close_sums=0)
    groups = [g for g in groups_of_job(asked, NAMES) if set(g) <= set(SETS[LAST])]
    lost = [next(silo for silo in group if silo != "silo-0") for group in groups]
    faults = tuple(Fault(silo, "sum-keys", LAST, passing=1) for silo in lost)
    outcome = run(asked, SILOS, faults=faults)
    assert isinstance(outcome.error, QuorumLost)
    assert all(f"wait for {silo} of their group" in str(outcome.error) for silo in lost)


def test_a_silo_that_comes_late_is_drawn_once_it_has_the_trees() -> None:
    asked = job()
    late = next(silo for silo in NAMES if silo in SETS[0] and silo in SETS[3])
    outcome = run(asked, SILOS, joins_after={late: 0})
    assert not outcome.errors
    assert [late in result.silos for result in outcome.rounds][0::3] == [False, True]


# --- restarts ---


def restarted(asked: JobParameters, first: Outcome, memories: Any, **rest: Any) -> Outcome:
    done = len(first.rounds)
    return run(
        asked,
        SILOS,
        memories=memories,
        checkpoint=first.rounds[-1].checkpoint if done else None,
        first_round=done,
        attempt=2,
        **rest,
    )


@pytest.mark.parametrize("secure", [True, False])
def test_a_restart_between_rounds_gives_the_same_model(secure: bool) -> None:
    asked = job(secure=secure)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    first = run(asked, SILOS, memories=memories, stop_after_rounds=2)
    whole, ended = run(asked, SILOS), restarted(asked, first, memories)
    assert whole.artefact is not None
    assert ended.artefact == whole.artefact


class DeadlyHere(DeadlyLink):
    """The coordinator dies when it reads what the first silo drawn offers inside round 1."""

    def parcel(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        if (self.silo, at.round, at.level) == (SETS[1][0], 1, 1):
            self = replace(self, silo=Silo("silo-0"))
        return super().parcel(step, at, offer)


@pytest.mark.parametrize(("records", "link"), [(2, MemoryLink), (9, DeadlyHere)])
@pytest.mark.parametrize("gone", [False, True])
def test_a_coordinator_killed_inside_a_tree_never_gets_its_sum_over_other_silos(
    records: int, link: type[MemoryLink], gone: bool
) -> None:
    asked = job()
    journal, memories = TornJournal(records), {silo: dict[str, bytes]() for silo in SILOS}
    first = run(asked, SILOS, memories=memories, journal=journal, make_link=link)
    assert first.error is not None
    assert len(first.rounds) == 1
    kept = MemoryJournal(journal.records)
    if not gone:
        ended = restarted(asked, first, memories, journal=kept)
        assert ended.artefact == run(asked, SILOS).artefact
        return
    lost = SETS[1][0]
    ended = restarted(asked, first, memories, journal=kept, faults=(Fault(lost, "sync"),))
    assert ended.rounds[0].silos == SETS[1]  # closed from the record of the sum over all six
    left = [tuple(s for s in own if s != lost) for own in SETS]
    check_rounds(asked, ended, left, 2)


# --- lies ---


class Lying(MemoryLink):
    """A coordinator that lies to one silo of the cohort of a round about the group."""

    change: Any

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if isinstance(reply, KeyRoster) and at == ExchangeKey(LAST, 0, 1) and self.silo == "silo-0":
            return KeyRoster(type(self).change(dict(reply.offers)))
        return reply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda offers: offers | {OUT: next(iter(offers.values()))},
            f"off the cohort of round {LAST}: {OUT}",
        ),
        (
            lambda offers: {s: offers[s] for s in ("silo-0", *sorted(offers)[-3:])},
            "it is no union of whole groups",
        ),
    ],
)
def test_a_silo_refuses_another_cohort_than_the_one_it_has_drawn(change: Any, message: str) -> None:
    link = type("Lies", (Lying,), {"change": staticmethod(change)})
    outcome = run(replace(job(), max_close_sums=0), SILOS, make_link=link)
    assert isinstance(outcome.errors["silo-0"], SumRefused)
    assert message in str(outcome.errors["silo-0"])


JOINED: list[Exception] = []


class Intruder(MemoryLink):
    """A silo that was not drawn offers a key for the round all the same."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        if step is GROWN and at.round == LAST and self.silo == OUT:
            try:
                super().exchange(KEYS, replace(at, passing=1), KeyOffer(bytes(32), b"", b""))
            except PlacePassed as refused:
                JOINED.append(refused)
        return super().exchange(step, at, offer)


def test_a_silo_that_was_not_drawn_does_not_get_in() -> None:
    JOINED.clear()
    asked = job()
    outcome = run(asked, SILOS, make_link=Intruder)
    assert len(JOINED) == 1
    assert not outcome.errors
    check_rounds(asked, outcome, SETS)


class OtherTree(MemoryLink):
    """A coordinator that gives one silo that was not drawn other leaf values."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if isinstance(reply, GrownTrees) and at.round == LAST and self.silo == OUT:
            return replace(reply, closed=replace(reply.closed, values=reply.closed.values * 2))
        return reply


def test_a_silo_that_is_given_another_tree_is_found_out() -> None:
    asked = job()
    outcome = run(asked, SILOS, make_link=OtherTree, lied=True)
    # The next sum that it is in has another view; if there is none, the model is not its own.
    assert OUT in (outcome.errors.keys() | outcome.rejected.keys())
    assert model_of(outcome).trees[LAST] is not None
    check_rounds(asked, outcome, SETS[: LAST + 1])
