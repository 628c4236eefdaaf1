"""A coordinator that asks for more than the signed job says, or for what a policy forbids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from hedgerow.boosting.allowances import REPEATS, UNBOUNDED, QuotaChannel, StepQuota
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bisection import Bisector, most_keys
from hedgerow.boosting.errors import (
    FederationError,
    JobStopped,
    OfferRejected,
    PolicyDeclined,
    SumCorrupt,
)
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Receipt, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.rounds.steps import TreeStanding
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.dp_tree.noisy_tree import LEAF, OPEN, BinnedTree
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.steps import GrowthState
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import DEPTHS, SearchPhase, SearchTask
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import NextPoints, PointChoice
from hedgerow.boosting.strategies.histogram import decided_sums
from hedgerow.boosting.strategies.histogram.opening import cut_search
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan
from hedgerow.boosting.strategies.histogram.steps import (
    AfterRound,
    CutPoints,
    LevelDecision,
    RoundEnd,
    RowCounts,
)
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.client_agent.policy import Policy
from tests import oracles
from tests.federation import vertical
from tests.federation.histograms import run as run_horizontal
from tests.federation.histograms import silos_of
from tests.federation.memory import MemoryLink, Outcome, run_in_memory

SILOS = silos_of(oracles.generated(Task.BINARY, 360), (120, 120, 120))
SCHEMA = SILOS["silo-0"].schema
Ask = Callable[[], Any]


@dataclass
class Liar(MemoryLink):
    """A silo's link to a coordinator that lies, to all silos alike."""

    lie: ClassVar[Callable[[Step[Any, Any], ExchangeKey, Ask], Any]]
    sent: ClassVar[list[tuple[str, Discloses]]]

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        type(self).sent.append((step.name, step.discloses))
        return type(self).lie(step, at, lambda: super(Liar, self).exchange(step, at, offer))


def job_of(strategy: Any, **booster: Any) -> JobParameters:
    given = (
        {}
        if isinstance(strategy, DPTree | Explore | FedGA | PrivateBoost)
        else {"max_depth": 2, "max_bin": 8, **booster}
    )
    return JobParameters(
        "test", strategy, seed=3, min_silos=3, booster=Booster(**given), step_timeout_seconds=300.0
    )


def honest(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
    return ask()


def run(job: JobParameters, lie: Callable[..., Any] = honest, **other: Any) -> Outcome:
    job.parameters.validate(job)
    Liar.lie, Liar.sent = staticmethod(lie), []
    return run_horizontal(job, SILOS, make_link=Liar, timeout_seconds=300.0, **other)


# --- what a link sends at all ---


@dataclass
class Taken:
    """The way out behind a guard: what arrives here has left the silo."""

    offers: list[tuple[str, ExchangeKey]] = field(default_factory=list)

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        self.offers.append((step.name, at))

    def check(self) -> None: ...

    def remember(self, key: str, value: bytes) -> None: ...

    def recall(self, key: str) -> bytes | None: ...


JOBS = {
    "histogram": job_of(Histogram(rounds=3)),
    "histogram, loss-guided": job_of(
        Histogram(rounds=3, growth="lossguide", coarse_bits=5), max_leaves=4
    ),
    "histogram, in clear": job_of(Histogram(rounds=2, secure=False, binning="summary")),
    "histogram, blind": job_of(Histogram(rounds=2, blind_coordinator=True)),
    "bagging": job_of(Bagging(rounds=3)),
    "fedxgbllr": job_of(FedXGBllr(trees=6, rounds=2, validation=0.2)),
    "fedxgbllr, masked": job_of(FedXGBllr(trees=6, rounds=2, secure=True, combiner="leaves")),
    "dp_tree": job_of(DPTree(2.0, depth=3)),
    "private_boost": job_of(PrivateBoost(2.0, 1e-4, trees=6, trees_per_exchange=2)),
    "private_boost, in clear": job_of(PrivateBoost(trees=6, secure=False)),
    "fedga": job_of(FedGA(generations=3, population=8, max_depth=3)),
    "explore": job_of(Explore()),
    "simfl": job_of(SimFL(rounds=3)),
    "secureboost": vertical.job(),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_nothing_leaves_beyond_what_the_job_needs(job: JobParameters) -> None:
    allowances = job.strategy.allowances(job.parameters, job, SCHEMA, 3)
    other = Step("more", Call.SUMS, Receipt, Receipt, "nothing", Discloses.NOTHING)
    with pytest.raises(PolicyDeclined, match="which the job does not take"):
        QuotaChannel(Taken(), allowances).exchange(other, ExchangeKey(0), Receipt())
    for allowed in allowances:
        taken = Taken()
        link = QuotaChannel(taken, allowances)
        last = ExchangeKey(allowed.rounds - 1, allowed.levels - 1)
        link.exchange(allowed.step, last, None)
        assert taken.offers == [(allowed.step.name, last)]
        refused = [ExchangeKey(-1)]
        refused += [ExchangeKey(allowed.rounds)] * (allowed.rounds < UNBOUNDED)
        refused += [ExchangeKey(0, allowed.levels)] * (allowed.levels < UNBOUNDED)
        for at in refused:
            with pytest.raises(PolicyDeclined, match="the job ends after"):
                link.exchange(allowed.step, at, None)
        assert len(taken.offers) == 1


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_sum_is_made_once_at_a_place_and_as_often_as_the_job_needs(job: JobParameters) -> None:
    for allowed in job.strategy.allowances(job.parameters, job, SCHEMA, 3):
        if allowed.step.discloses is not Discloses.MASKED:
            continue
        taken = Taken()
        link = QuotaChannel(taken, [allowed])
        link.exchange(allowed.step, ExchangeKey(0), None)
        with pytest.raises(PolicyDeclined, match="where it was made before"):
            link.exchange(allowed.step, ExchangeKey(0), None)
        for passing in range(1, allowed.places):
            link.exchange(allowed.step, ExchangeKey(0, 0, passing), None)
        with pytest.raises(PolicyDeclined, match=f"the job needs {allowed.places} of it"):
            link.exchange(allowed.step, ExchangeKey(0, 0, allowed.places), None)
        assert len(taken.offers) == allowed.places


def test_an_offer_that_is_not_of_a_sum_is_not_repeated_for_ever() -> None:
    """A coordinator that answers FedGA's vote by "vote" would keep the silo busy."""
    link = QuotaChannel(Taken(), [StepQuota(DEPTHS, 1)])
    for _ in range(REPEATS):
        link.exchange(DEPTHS, ExchangeKey(0), None)
    with pytest.raises(PolicyDeclined, match="where it was made before"):
        link.exchange(DEPTHS, ExchangeKey(0), None)


def test_pieces_of_one_offer_count_once() -> None:
    step = Step("pieces", Call.SUMS, Receipt, Receipt, "boxes", Discloses.ENCRYPTED)
    link = QuotaChannel(Taken(), [StepQuota(step, 1, streamed=True)])
    for passing in range(5):
        link.exchange(step, ExchangeKey(0, 0, passing), Receipt())


# --- classes that the policy forbids ---


FORBIDDEN = {
    "quantiles": (Histogram(rounds=2, binning="summary"), Policy(), "cuts", Discloses.QUANTILES),
    "histograms in clear": (
        Histogram(rounds=2, secure=False), Policy(may_send=("keys", "schema", "scores")),
        "counts-plain", Discloses.COUNTS,
    ),
    "sums of labels in clear": (
        Histogram(rounds=2, secure=False), Policy(), "sum-plain", Discloses.SCORES,
    ),
    "bagging": (Bagging(rounds=2), Policy(require_secure=True), "trees", Discloses.TREES),
    "fedxgbllr": (
        FedXGBllr(trees=6, rounds=1), Policy(require_secure=True), "trees", Discloses.TREES,
    ),
    "fedxgbllr, shared cuts": (
        FedXGBllr(trees=6, rounds=1, shared_cuts=8), Policy(), "cuts", Discloses.QUANTILES,
    ),
    "dp_tree without noise": (
        DPTree(2.0, depth=2, secure=False, binning="quantile"), Policy(), "cells-plain",
        Discloses.COUNTS,
    ),
    "simfl": (SimFL(rounds=2), Policy(), "ranges", Discloses.QUANTILES),
    "simfl, hashes": (
        SimFL(rounds=2), Policy(may_send=("keys", "schema", "quantiles", "counts", "trees")),
        "hashes", Discloses.HASHES,
    ),
    "simfl, gradients": (
        SimFL(rounds=2), Policy(may_send=("keys", "schema", "quantiles", "hashes", "trees")),
        "gradients", Discloses.COUNTS,
    ),
    "fedga": (
        FedGA(generations=2, population=6),
        Policy(require_secure=True, may_send=("schema", "scores", "trees")), "proposals",
        Discloses.TREES,
    ),
    "fedga, scores": (
        FedGA(generations=2, population=6), Policy(), "depths", Discloses.SCORES,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "policy", "step", "discloses"), FORBIDDEN.values(), ids=FORBIDDEN
)
def test_no_class_leaves_that_the_policy_forbids(
    strategy: Any, policy: Policy, step: str, discloses: Discloses
) -> None:
    outcome = run(job_of(strategy), may_send=policy.classes)
    refused(outcome, PolicyDeclined, f"may_send: step '{step}' would send {discloses.value}")
    assert discloses not in {found for _, found in Liar.sent}


def test_no_gradient_leaves_in_clear_by_default() -> None:
    parties = vertical.cut_by_columns(vertical.table(40, 4, Task.BINARY), [2, 2])
    Liar.lie, Liar.sent = staticmethod(honest), []
    outcome = run_in_memory(
        vertical.job(encryption="plain"),
        parties,
        schema=parties["guest"].schema,
        vaults=vertical.vaults(),
        make_link=Liar,
        may_send=Policy().classes,
        timeout_seconds=300.0,
    )
    error = outcome.errors[Silo("guest")]
    assert isinstance(error, PolicyDeclined)
    assert "may_send: step 'gradients' would send counts" in str(error)
    assert Discloses.COUNTS not in {found for _, found in Liar.sent}


def refused(outcome: Outcome, kind: type[FederationError], why: str) -> None:
    """Every silo refuses, unless the job has ended before its turn because another one did."""
    assert set(outcome.errors) == set(SILOS)
    refusals = [error for error in outcome.errors.values() if not isinstance(error, JobStopped)]
    assert refusals
    for error in refusals:
        assert isinstance(error, kind), error
        assert why in str(error)


# --- more of what the policy allows ---


def lie_of_another_round(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
    reply = ask()
    if isinstance(reply, RoundEnd) and reply.after is AfterRound.END:
        return RoundEnd(AfterRound.ROUND)
    if isinstance(reply, NextPoints | PointChoice):  # a round ends with either
        return replace(reply, final=False)
    if isinstance(reply, SearchTask) and reply.phase is SearchPhase.END:
        return replace(reply, phase=SearchPhase.SCORE, round=reply.round + 2)
    if isinstance(reply, BinnedTree) and not reply.open_nodes.size:
        return replace(reply, level=3, feature=np.where(reply.feature == LEAF, OPEN, reply.feature))
    return reply


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Histogram(rounds=2), "histograms-masked' in round 2, level 0, pass 0: the job ends after"),
        (Histogram(rounds=2, secure=False), "'histograms-plain' in round 2"),
        (FedXGBllr(trees=6, rounds=2, epochs=1, channels=4), "step 'weights' in round 3"),
        (FedXGBllr(trees=6, rounds=2, combiner="leaves", secure=True), "'sum-keys' in round 3"),
        (FedGA(generations=2, population=6, max_depth=3), "step 'scores' in round 3"),
        (DPTree(float("inf"), depth=2), "in round 3, level 0, pass 0: the job ends after 3"),
    ],
)
def test_another_round_is_refused_by_every_silo(strategy: Any, why: str) -> None:
    outcome = run(job_of(strategy), lie_of_another_round)
    refused(outcome, PolicyDeclined, why)
    assert "more was asked than the signed job needs" in str(outcome.errors["silo-0"])


@pytest.mark.parametrize("secure", [True, False])
def test_another_level_is_refused_by_every_silo(secure: bool) -> None:
    def lie(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        if not isinstance(reply, LevelDecision) or any(tree.request.size for tree in reply.trees):
            return reply
        asked = tuple(  # of the last splits, the left child
            replace(tree, request=np.array([1 + 2 * len(tree.node)], np.int32))
            for tree in reply.trees
        )
        return replace(reply, trees=asked, closed=None)

    outcome = run(job_of(Histogram(rounds=2, secure=secure)), lie)
    refused(outcome, PolicyDeclined, "level 2, pass 0: the job ends after 2 levels of it")


@pytest.mark.parametrize(
    ("request_", "why"),
    [((0,), "one of a pair"), ((1, 2), "one of a pair"), ((1, 1), "one of a pair")],
)
def test_no_nodes_histogram_is_asked_twice(request_: tuple[int, ...], why: str) -> None:
    def lie(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        if not isinstance(reply, LevelDecision) or at.level:
            return reply
        wanted = np.array(request_, np.int32)
        return replace(reply, trees=tuple(replace(tree, request=wanted) for tree in reply.trees))

    refused(run(job_of(Histogram(rounds=1), max_depth=4), lie), OfferRejected, why)


def test_more_bins_than_the_job_says_are_refused_by_every_silo() -> None:
    def lie(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        if not isinstance(reply, CutPoints):
            return reply
        n_columns, each = reply.sizes.shape[0], np.arange(8, dtype=np.float32)
        return CutPoints(np.full(n_columns, 8), np.tile(each, n_columns))

    job = job_of(Histogram(rounds=1, binning="summary"))
    refused(run(job, lie), OfferRejected, "at most 8 bins of feature 0")


@dataclass
class Searcher:
    """A coordinator that makes up counts, so that the search looks for single rows of one column.

    Of the first column it says that some of its rows in order, alike in number, are all there are;
    of the others that they have none. It keeps the true counts that the silos' sums then tell it.
    """

    search: Bisector
    first: int
    n_sought: int
    known: dict[int, int] = field(default_factory=dict)

    def __call__(self, true: np.ndarray) -> RowCounts:
        own = self.search.column == 0
        self.known |= dict(zip(self.search.key[own].tolist(), true[own].tolist(), strict=True))
        sought = np.clip(true - self.first, 0, self.n_sought)
        made_up = RowCounts(np.where(own, sought * (360 // self.n_sought), 0))
        self.search.take(made_up.rows)
        return made_up

    def found(self) -> tuple[int, int]:
        """Return how many values are known to 16 bits and to the bit, of all silos together."""
        keys, counts = np.array(sorted(self.known.items())).T
        alone, width = np.diff(counts) > 0, np.diff(keys)
        rows = np.diff(counts)[alone]
        return tuple(int(rows[width[alone] <= most].sum()) for most in (256, 1))  # type: ignore[return-value]


def test_counts_spent_on_one_column_find_few_values_and_none_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memories: dict[str, dict[str, bytes]] = {silo: {} for silo in SILOS}
    job, known = job_of(Histogram(rounds=1, secure=False)), {}
    plan = HistogramPlan.of(job.parameters, job, SCHEMA)
    for attempt in range(1, 40):
        liar = Searcher(cut_search(plan), first=7 * attempt, n_sought=7)
        # What the coordinator makes of a sum; where it is not blind, silos take its word.
        monkeypatch.setattr(decided_sums, "row_counts", liar)
        outcome = run(job, memories=memories, attempt=attempt)
        known |= liar.known
        if any("over all attempts" in str(error) for error in outcome.errors.values()):
            break
    most = 2 * most_keys(8, 0.0)
    refused(outcome, OfferRejected, f"at most {most} values of a column over all attempts")
    assert len(known) <= most
    liar.known = known
    nearly, exactly = liar.found()
    assert exactly == 0
    assert nearly <= 45, "an eighth of 360 rows, of no silo in particular"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (lambda rows: rows[:-1], "counts: expected"),
        (lambda rows: rows + 360, "at most 360 rows"),
        (lambda rows: -rows - 1, "grow with the values"),
        (lambda rows: np.where(np.arange(len(rows)) % 2, 0, rows), "grow with the values"),
    ],
)
def test_counts_of_no_table_are_refused_by_every_silo(
    rows: Callable[[np.ndarray], np.ndarray], why: str
) -> None:
    def lie(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        if not isinstance(reply, RowCounts) or not at.passing:
            return reply
        return RowCounts(rows(reply.rows))

    refused(run(job_of(Histogram(rounds=1, secure=False)), lie), SumCorrupt, why)


def test_steps_that_the_job_does_not_take_are_refused_by_every_silo() -> None:
    def score(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        return replace(reply, score_train=True) if isinstance(reply, TreeStanding) else reply

    def mean(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        return replace(reply, base_score=None) if isinstance(reply, TreeStanding) else reply

    quiet = job_of(Bagging(rounds=2, evaluate="none"))
    refused(run(quiet, score), OfferRejected, "rows that the signed job does not score")
    refused(run(quiet, mean), OfferRejected, "base score that the job fixes")


def test_deeper_structures_and_more_edges_are_refused_by_every_silo() -> None:
    def deeper(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        return replace(reply, depth=4) if reply and isinstance(reply, SearchTask) else reply

    def finer(step: Step[Any, Any], at: ExchangeKey, ask: Ask) -> Any:
        reply = ask()
        if not isinstance(reply, GrowthState) or reply.search is None:
            return reply
        more = tuple(
            np.arange(5, dtype=own.dtype) if len(own) else own for own in reply.search.intervals
        )
        return GrowthState.of(replace(reply.search, intervals=more))

    genetic = job_of(FedGA(generations=2, population=6, max_depth=3))
    refused(run(genetic, deeper), OfferRejected, "expected a depth of 1 to 3, received 4")
    noisy = job_of(DPTree(2.0, depth=2, bins=5))
    refused(run(noisy, finer), OfferRejected, "expected at most 4 edges a feature")
