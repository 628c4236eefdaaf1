"""Histogram boosting when silos or the coordinator are lost at any exchange: sums are exact."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.grower import Grower
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.engine.start import margins_of
from hedgerow.boosting.engine.table import Table
from hedgerow.boosting.errors import OfferRejected, PlacePassed, QuorumLost
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan
from hedgerow.boosting.strategies.histogram.steps import (
    KnownTrees,
    ProposalCount,
)
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.local import matrix
from hedgerow.coordinator.server.barrier import ArrivedOffer
from tests import oracles
from tests.federation.histograms import (
    model_of,
    opening_of,
    plain_job,
    run,
    same,
    silos_of,
)
from tests.federation.memory import Fault, MemoryJournal, MemoryLink, Outcome

SIZES = (500, 400, 300, 200, 100)
DATA = oracles.generated(Task.BINARY, sum(SIZES))
SILOS = silos_of(DATA, SIZES)
VICTIM = "silo-4"
REST = {silo: data for silo, data in SILOS.items() if silo != VICTIM}
DEPTH = 3


def tree_of_sums(
    job: JobParameters,
    outcome: Outcome,
    round_: int,
    silos: dict[str, Dataset],
    levels: int = DEPTH,
) -> Ensemble:
    """Return the tree of ``levels`` levels that sums over the rows of ``silos`` give."""
    rows = np.concatenate(
        [np.arange(a, b) for s, (a, b) in zip(SILOS, spans(), strict=True) if s in silos]
    )
    return tree_of_rows(job, outcome, round_, DATA.take(rows), levels)


def tree_of_rows(
    job: JobParameters, outcome: Outcome, round_: int, data: Dataset, levels: int = DEPTH
) -> Ensemble:
    """Return the tree of ``levels`` levels that sums over some rows give."""
    opening = opening_of(outcome, data)
    plan = HistogramPlan.of(job.parameters, job, data.schema)  # type: ignore[arg-type]
    table = Table.of(data, opening.cuts, margins_of(plan.objective, opening.base_score), 1)
    before = model_of(outcome).slice(round_)
    table.margins[:] = before.margins(matrix(data, 1)).reshape(table.margins.shape)
    g, h = plan.objective.gradients(table.margins, table.y, table.weight)
    bound = plan.row_bound(opening, None)
    assert bound is not None
    quantiser = plan.quantiser(opening, bound)
    sample = Sampler().draw(g, h, np.random.default_rng(0))
    integers = quantiser.lossless(g, h, sample)
    partition = RowPartition(sample.rows)
    totals = node_sums(partition, [0], integers)[0]
    grower = Grower(opening.cuts, plan.tree, quantiser.scale, totals)
    for _ in range(levels):
        if grower.request:
            sums = build_histograms(
                table.binned, partition, grower.request, integers, grower.layout
            )
            partition.split_by_bins(table.binned, grower.supply(sums))
    trees = grower.finish().trees(opening.cuts, [0])
    whole = model_of(outcome)
    return Ensemble(whole.header).extend(trees, n_steps=1)


def spans() -> list[tuple[int, int]]:
    edges = np.cumsum((0, *SIZES)).tolist()
    return list(pairwise(edges))


def round_of(outcome: Outcome, round_: int) -> Ensemble:
    whole = model_of(outcome)
    return Ensemble(whole.header).extend(whole.trees[round_ : round_ + 1], n_steps=1)


# (exchange, when, level) -> sums that the silo is in, of round 1; the last one checks the leaves
KILLS = {
    ("histograms-masked", "before", 0): 0,
    ("histograms-masked", "after", 0): 1,
    ("histograms-unmask", "before", 0): 1,
    ("histograms-unmask", "after", 0): 1,
    ("histograms-single", "before", 1): 1,
    ("histograms-single", "after", 1): 2,
    ("histograms-single", "before", 2): 2,
    ("histograms-single", "after", 2): 3,
    ("leaves-single", "before", 0): 3,
    ("leaves-single", "after", 0): 4,
}


@pytest.mark.parametrize(("step", "when", "level"), KILLS)
def test_sums_are_exactly_those_of_the_silos_that_were_there(
    step: str, when: str, level: int
) -> None:
    """The leaves of that round are nodes of the last sum with the silo; the next lacks the silo."""
    job = plain_job()
    fault = Fault(VICTIM, step, 1, level, when)
    outcome = run(job, SILOS, faults=(fault,))
    n_sums = KILLS[step, when, level]
    silos, levels = (SILOS, n_sums - 1) if n_sums else (REST, DEPTH)
    assert same(round_of(outcome, 0), tree_of_sums(job, outcome, 0, SILOS))
    assert same(round_of(outcome, 1), tree_of_sums(job, outcome, 1, silos, levels))
    for later in (2, 3):
        assert same(round_of(outcome, later), tree_of_sums(job, outcome, later, REST))
    assert outcome.rounds[-1].silos == tuple(REST)


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"growth": "lossguide"}, 2),
        ({"coarse_bits": 5}, 2),
        ({"max_split_nodes": 1}, 3),
        ({"coarse_bits": 5}, None),
        ({"growth": "lossguide"}, None),
    ],
)
def test_all_silos_cut_the_same_from_a_tree_in_which_one_was_lost(
    fields: dict[str, Any], level: int | None
) -> None:
    """The harness has every silo compare the result with the trees that it has derived."""
    step = "leaves-single" if level is None else "histograms-single"
    outcome = run(plain_job(**fields), SILOS, faults=(Fault(VICTIM, step, 1, level or 0),))
    assert outcome.errors.keys() == {VICTIM}
    whole = model_of(run(plain_job(**fields), SILOS)).trees[1]
    cut = model_of(outcome).trees[1]
    assert 1 < cut.n_nodes < whole.n_nodes
    assert cut.cover[0] == whole.cover[0]


@pytest.mark.parametrize("step", ["agree", "seeds"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_silo_lost_while_another_loss_is_mended_is_left_out_as_well(step: str, when: str) -> None:
    job = plain_job(threshold=3)
    faults = (
        Fault(VICTIM, "histograms-masked", 1, 0),
        Fault("silo-3", f"histograms-{step}", 1, 0, when),
    )
    outcome = run(job, SILOS, faults=faults)
    three = {silo: SILOS[silo] for silo in ("silo-0", "silo-1", "silo-2")}
    assert outcome.rounds[-1].silos == tuple(three)
    first = round_of(outcome, 1)
    # Whom the set of round 1 holds depends on whether the offer of silo-3 was in.
    with_it = {silo: SILOS[silo] for silo in (*three, "silo-3")}
    candidates = [
        tree_of_sums(job, outcome, 1, three),
        tree_of_sums(job, outcome, 1, with_it, 0),
    ]
    assert sum(same(first, tree) for tree in candidates) == 1
    for later in (2, 3):
        assert same(round_of(outcome, later), tree_of_sums(job, outcome, later, three))


@pytest.mark.parametrize(("step", "level"), [("masked", 0), ("unmask", 0), ("single", 1)])
def test_below_the_threshold_the_job_ends_with_the_names_before_any_deadline(
    step: str, level: int
) -> None:
    lost = ("silo-2", "silo-3", "silo-4")
    faults = tuple(Fault(silo, f"histograms-{step}", 1, level) for silo in lost)
    outcome = run(plain_job(), SILOS, faults=faults)
    assert isinstance(outcome.error, QuorumLost)
    assert not [reason for _, reason in outcome.lost if "deadline" in reason]
    assert [result.round for result in outcome.rounds] == [0]
    named = [silo for silo in lost if silo in str(outcome.error)]
    assert named, str(outcome.error)


class Dies(OSError):
    """The coordinator's process dies."""


class TornJournal(MemoryJournal):
    """The coordinator dies when it has made the n-th record durable: of a round's first sum."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.left = last

    def remember(self, key: str, value: bytes) -> None:
        super().remember(key, value)
        self.left -= key.startswith("histogram/") and key != "histogram/cut-points"
        if not self.left:
            raise Dies


class DeadlyLink(MemoryLink):
    """The coordinator dies when it reads what this silo offers inside the tree of round 1."""

    level = 1

    def parcel(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> ArrivedOffer[Any]:
        if (self.silo, at.round, at.level) == ("silo-0", 1, self.level):
            return ArrivedOffer(step.call, self._die)
        return super().parcel(step, at, offer)

    @staticmethod
    def _die(_: Any) -> NoReturn:
        raise Dies


class DeadlierLink(DeadlyLink):
    level = 2


Killed = tuple[Outcome, MemoryJournal, dict[str, dict[str, bytes]]]


def killed_coordinator(records: int, make_link: Callable[..., MemoryLink] = MemoryLink) -> Killed:
    journal = TornJournal(records)
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    outcome = run(plain_job(), SILOS, journal=journal, memories=memories, make_link=make_link)
    assert isinstance(outcome.error, Dies)
    return outcome, MemoryJournal(journal.records), memories


def go_on(
    first: Outcome,
    memories: dict[str, dict[str, bytes]],
    journal: MemoryJournal | None,
    *faults: Fault,
) -> Outcome:
    done = len(first.rounds)
    return run(
        plain_job(),
        SILOS,
        memories=memories,
        journal=journal,
        checkpoint=first.rounds[-1].checkpoint if done else None,
        first_round=done,
        attempt=2,
        faults=faults,
    )


AWAY = Fault(VICTIM, "sync")


DEATHS = {
    "first sum of round 0": (1, MemoryLink),
    "first sum of round 1": (2, MemoryLink),
    "second sum of round 1": (9, DeadlyLink),
    "third sum of round 1": (9, DeadlierLink),
}


@pytest.mark.parametrize("when", DEATHS)
def test_a_coordinator_killed_inside_a_tree_makes_it_again_with_all_silos(when: str) -> None:
    whole = model_of(run(plain_job(), SILOS))
    first, journal, memories = killed_coordinator(*DEATHS[when])
    ended = go_on(first, memories, journal)
    assert same(model_of(ended), whole)


@pytest.mark.parametrize("when", [when for when in DEATHS if "round 1" in when])
def test_a_coordinator_killed_inside_a_tree_closes_it_when_a_silo_is_gone(when: str) -> None:
    """No sum is asked for over fewer silos; of the first one the roots' leaf values remain."""
    first, journal, memories = killed_coordinator(*DEATHS[when])
    ended = go_on(first, memories, journal, AWAY)
    job, r = plain_job(), len(first.rounds)
    assert len(first.rounds) + len(ended.rounds) == 4
    assert ended.rounds[0].silos == tuple(SILOS)
    assert same(round_of(ended, r), tree_of_sums(job, ended, r, SILOS, 0))
    for later in range(r + 1, 4):
        assert same(round_of(ended, later), tree_of_sums(job, ended, later, REST))


def test_a_coordinator_killed_in_the_first_round_gets_no_equal_sum_over_fewer_silos() -> None:
    """A root adds nothing to margins at the mean label: the next sum would be the same again."""
    first, journal, memories = killed_coordinator(*DEATHS["first sum of round 0"])
    ended = go_on(first, memories, journal, AWAY)
    assert isinstance(ended.error, QuorumLost)
    for silo in REST:
        assert "the same values" in str(ended.errors[Silo(silo)])


def test_without_a_journal_the_job_ends_by_name_and_no_second_sum_is_opened() -> None:
    """A coordinator without a record of a round's sums does not get them over fewer silos."""
    first, _, memories = killed_coordinator(2)
    kept = dict(memories["silo-0"])
    ended = go_on(first, memories, None, AWAY)
    assert isinstance(ended.error, QuorumLost)
    assert VICTIM in str(ended.error)
    assert memories["silo-0"] == kept  # nobody let anything be unmasked


def test_a_silo_that_missed_the_closed_tree_enters_with_it() -> None:
    first, journal, memories = killed_coordinator(2)
    ended = go_on(first, memories, journal, Fault(VICTIM, "histograms-masked", 2, 0))
    # All were back: round 1 was made again, and the silo was lost in round 2 only.
    job = plain_job()
    assert same(round_of(ended, 1), tree_of_sums(job, ended, 1, SILOS))
    assert same(round_of(ended, 2), tree_of_sums(job, ended, 2, REST))


class UnsteadyLink(MemoryLink):
    """Offers twice, in an order of silos that differs from step to step; replies wait."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        turns = zlib.crc32(f"{self.silo} {step.name} {at}".encode()) % 100
        self._yield(turns)
        first = super().exchange(step, at, offer)
        self._yield(turns)
        try:
            again = super().exchange(step, at, offer)
        except PlacePassed:
            return first
        # What is served at once may have changed meanwhile; a barrier's reply may not.
        assert step.name == "sync" or again is first
        return first

    @staticmethod
    def _yield(turns: int) -> None:
        for _ in range(turns):
            time.sleep(0)


@pytest.mark.parametrize("fields", [{}, {"dropout_recovery": False}, {"secure": False}])
def test_delayed_and_repeated_offers_change_nothing(fields: dict[str, Any]) -> None:
    job = plain_job(**fields)
    steady = run(job, SILOS)
    unsteady = run(job, SILOS, make_link=UnsteadyLink)
    assert not unsteady.errors
    assert same(model_of(steady), model_of(unsteady))


class MalformedLink(MemoryLink):
    """A silo that offers an impossible number at some step."""

    offer: Any = None

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        if self.silo == VICTIM and step.offer is type(self.offer):
            offer = self.offer
        return super().exchange(step, at, offer)


class MalformedEntryLink(MalformedLink):
    offer = KnownTrees(-1)


class MalformedProposalsLink(MalformedLink):
    offer = ProposalCount(-1)


class LongerProposalsLink(MalformedLink):
    offer = ProposalCount(999)


def test_a_silo_whose_offer_is_malformed_is_left_out_and_the_others_go_on() -> None:
    outcome = run(plain_job(), SILOS, make_link=MalformedEntryLink)
    assert outcome.error is None
    assert isinstance(outcome.errors[Silo(VICTIM)], OfferRejected)
    assert all(VICTIM not in result.silos for result in outcome.rounds)


@pytest.mark.parametrize("link", [MalformedProposalsLink, LongerProposalsLink])
def test_a_silo_whose_proposals_are_malformed_is_left_out_by_a_blind_coordinator(
    link: type[MemoryLink],
) -> None:
    job = plain_job(rounds=2, binning="recursive", binning_error=1e-2, blind_coordinator=True)
    outcome = run(job, SILOS, make_link=link)
    assert outcome.error is None
    assert isinstance(outcome.errors[Silo(VICTIM)], OfferRejected)
    assert all(VICTIM not in result.silos for result in outcome.rounds)


def test_too_few_proper_offers_end_the_job_with_the_name_and_the_reason() -> None:
    few = {silo: data for silo, data in SILOS.items() if silo in ("silo-0", "silo-1", VICTIM)}
    outcome = run(plain_job(secure=False), few, make_link=MalformedEntryLink)
    assert isinstance(outcome.error, QuorumLost)
    assert f"{VICTIM} (" in str(outcome.error)


def test_a_silo_lost_while_rows_are_counted_can_come_back() -> None:
    """Counts below other values without its rows were opened, and held the job to that for good."""
    job = plain_job(binning="recursive")
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    kept = {"memories": memories, "journal": MemoryJournal()}
    fault = Fault(VICTIM, "counts-masked", 0, 0, passing=1)
    first = run(job, SILOS, faults=(fault,), **kept)
    assert isinstance(first.error, QuorumLost)
    assert "counts" in str(first.error)
    assert VICTIM in str(first.error)
    second = run(job, SILOS, attempt=2, **kept)
    assert second.error is None
    assert same(model_of(second), model_of(run(job, SILOS)))
