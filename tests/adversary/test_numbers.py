"""No silo says a number of its rows in clear, nor refuses because of them: coordinators that ask.

A coordinator made up leaves, round after round, and read class, owner and label of single rows from
the power of two that each silo said above its gradients and above its metric sums.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.bisection import MIN_CELL
from hedgerow.boosting.engine.cuts import numeric_features
from hedgerow.boosting.engine.start import weight_exponent
from hedgerow.boosting.errors import OfferRejected, SumCorrupt
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Step
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.strategies.histogram import coordinator, opening
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.rows import SiloRows
from hedgerow.boosting.strategies.histogram.steps import ClosedTrees, RowCounts
from hedgerow.boosting.sums.maximum import LOWEST, N_PLACES, maximum_parts
from hedgerow.boosting.sums.steps import SUM, MaskedVector, SumTotal
from hedgerow.crypto.masking.totals import ResiduesCheck
from tests import oracles
from tests.adversary import mutate, oracle
from tests.adversary.arena import variant
from tests.federation.histograms import job_of, run, silos_of
from tests.federation.memory import MemoryLink

SIZES = (90, 80, 70)
_RANDOM = {Discloses.KEYS, Discloses.MASKED}


_DRAWN = {"coarse_bits", "validation", "sampling"}


def unmasked(told: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return what is said in clear, without the lengths of masked vectors."""
    return {
        silo: [line for line in own if "-masked" not in line and "-single" not in line]
        for silo, own in told.items()
    }


class Hears(MemoryLink):
    """Hears what each silo says."""

    heard: ClassVar[dict[str, list[str]]] = defaultdict(list)

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        masked = isinstance(offer, MaskedVector)
        if masked or step.discloses not in _RANDOM:
            told = offer.values.shape if masked else offer
            self.heard[self.silo].append(f"{step.name} {at} {told}")
        return super().exchange(step, at, offer)


def says_other_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves that part rows: another power of four in each leaf, the same to all silos."""

    def told(self: Any, own: ClosedTrees) -> ClosedTrees:
        values = 4.0 ** ((np.arange(len(own.values)) + len(own.values)) % 4 - 2)
        return replace(own, values=values.astype(np.float32))

    monkeypatch.setattr(coordinator._Coordinator, "_for_silos", told)


def says_exponent(monkeypatch: pytest.MonkeyPatch, told_exponent: int) -> None:
    """All silos are told another power of two above the largest gradients."""

    async def told(sums: Any, at: ExchangeKey, n: int, steps: Any = SUM) -> Any:
        n_words = ResiduesCheck.N_WORDS * sums.checks_totals
        outcome = await sums.sum(steps, at, n_words + n * N_PLACES)
        values = outcome.total.copy()
        values[n_words:] = maximum_parts(*[told_exponent] * n)
        sums.answer(steps, outcome, SumTotal(values, 64, outcome.present))
        return (told_exponent,) * n, outcome.present

    monkeypatch.setattr(coordinator, "total_maximum", told)


def says_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient is above 2**-100, all silos are told."""
    says_exponent(monkeypatch, LOWEST)


def says_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients reach 2**100: all are rounded to nothing, and margins stay where they are."""
    says_exponent(monkeypatch, 100)


def heard_of(data: Dataset, **parameters: Any) -> tuple[Any, dict[str, list[str]]]:
    """Return how a job ends, and what each silo says in clear."""
    Hears.heard.clear()
    booster = Booster(max_depth=3, max_bin=8, objective=parameters.pop("objective"))
    job = job_of(Histogram(rounds=3, **parameters), Task.REGRESSION, booster)
    outcome = run(job, silos_of(data, SIZES), make_link=Hears, lied=True)
    return outcome, {silo: list(told) for silo, told in Hears.heard.items()}


def moved(data: Dataset) -> Dataset:
    """Swap the rows with the largest label and weight with others, of other silos."""
    order = np.arange(sum(SIZES))
    for k, row in enumerate(np.argsort(-data.labels[: len(order)])[:5]):
        other = SIZES[0] + k if row < SIZES[0] else k
        order[[row, other]] = order[[other, row]]
    return data.take(np.concatenate([order, np.arange(len(order), data.n_samples)]))


@pytest.mark.parametrize("lie", [says_other_leaves, says_small, says_large])
@pytest.mark.parametrize(
    "parameters",
    [
        {"objective": "reg:squarederror"},
        {"objective": "count:poisson", "coarse_bits": 5},
        {"objective": "reg:gamma"},
        {"objective": "lae", "validation": 0.2},
        {"objective": "lse", "sampling": "mvs", "sampling_scope": "global"},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)
def test_a_made_up_leaf_shows_no_silo_s_label_in_clear(
    lie: Any, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(monkeypatch)
    data = oracles.generated(Task.REGRESSION, sum(SIZES), weighted=True)
    labels = np.abs(data.labels) + 0.5
    labels[17] = 5000.0
    data = Dataset(data.schema, data.X, labels, data.weight)
    found = [heard_of(rows, **parameters) for rows in (data, moved(data))]
    (before, told), (after, told_after) = found
    bounded = parameters["objective"] in ("lae", "binary:logistic")
    for outcome in (before, after):
        if lie is says_other_leaves or bounded:
            assert not outcome.errors
            continue
        assert len(outcome.errors) == len(SIZES)
        for error in outcome.errors.values():
            assert isinstance(error, OfferRejected)
            assert "the coordinator has sent" in str(error)
            assert "do not fit the silos' word" in str(error)
        assert not outcome.rounds, "nothing was summed with such bounds"
    if _DRAWN & parameters.keys():  # which rows, or how they are rounded, differs by silo
        told, told_after = map(unmasked, (told, told_after))
    assert told == told_after


def test_no_silo_refuses_bounds_that_its_rows_are_outside_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without masks nobody checks: what the rows tell is clipped at the bound, the job goes on."""
    says_small(monkeypatch)
    data = oracles.generated(Task.REGRESSION, sum(SIZES))
    outcome, _ = heard_of(data, objective="reg:squarederror", secure=False)
    assert not outcome.errors
    assert len(outcome.rounds) == 3


OPENING: dict[str, tuple[str, int, dict[str, Any]]] = {
    "the largest weight": ("sum", 0, {}),
    "the mean label": ("sum", 1, {}),
    "the median label": ("median", 0, {"objective": "lae"}),
    "the cut points": ("counts", 0, {"binning": "recursive"}),
    "rows by cut points of summaries": ("counts", 0, {"binning": "summary"}),
    "the sampling threshold": ("thresholds", 0, {"sampling": "mvs", "sampling_scope": "global"}),
}


@pytest.mark.parametrize("what", OPENING)
def test_made_up_totals_before_the_first_round_are_refused(what: str) -> None:
    """Of weights, labels and counts: each silo finds out before anything more leaves it."""
    name, passing, parameters = OPENING[what]
    parameters = {"objective": "reg:squarederror"} | parameters

    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if at == ExchangeKey(0, 0, passing) and step.name.startswith(f"{name}-"):
                if isinstance(reply, SumTotal):
                    values = reply.values.copy()
                    values[-1] ^= np.uint64(1)
                    return replace(reply, values=values)
                if isinstance(reply, RowCounts):
                    return RowCounts(reply.rows + (np.arange(len(reply.rows)) == 3))
            return reply

    data = oracles.generated(Task.REGRESSION, sum(SIZES), weighted=True)
    booster = Booster(max_depth=3, max_bin=8, objective=parameters.pop("objective"))
    job = job_of(Histogram(rounds=3, **parameters), Task.REGRESSION, booster)
    outcome = run(job, silos_of(data, SIZES), make_link=Told, lied=True)
    assert not outcome.rounds
    assert len(outcome.errors) == len(SIZES)
    for error in outcome.errors.values():
        assert isinstance(error, OfferRejected), error
        assert "do not fit the silos' word" in str(error)


def test_places_below_the_largest_tell_neither_whose_they_are_nor_how_many_have_them() -> None:
    """One silo has the largest exponent, or all of them: the totals have the same law."""
    for others in (LOWEST, 5):
        totals = np.array(
            [maximum_parts(5) + maximum_parts(others) + maximum_parts(others) for _ in range(200)]
        )
        assert (totals[:, 5 - LOWEST :] == 0).all()
        marked = totals[:, : 5 - LOWEST]
        assert np.unique(marked).size == marked.size
        assert 0.4 < (marked[:, N_PLACES // 4] / 2.0**64).mean() < 0.6


@pytest.mark.parametrize(
    ("columns", "most"),
    [
        (ColumnRules(), 0),
        (ColumnRules(class_weight=(("1", 3.0),)), 2),
        (ColumnRules(weight="w"), 64),
    ],
)
def test_a_silo_that_makes_up_a_largest_weight_ends_the_job(
    columns: ColumnRules, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had all gradients rounded away, so that the trees were roots alone."""

    def of_liar(n_rows: int, weight: None) -> int:
        return most + 1 if n_rows == SIZES[0] else weight_exponent(n_rows, weight)

    monkeypatch.setattr(opening, "weight_exponent", of_liar)
    data = oracles.generated(Task.BINARY, sum(SIZES))
    job = job_of(Histogram(rounds=2, binning="summary"), Task.BINARY, Booster(), columns=columns)
    outcome = run(job, silos_of(data, SIZES), lied=True)
    assert not outcome.rounds
    assert isinstance(outcome.error, SumCorrupt)
    assert f"expected at most 2^{most} by [columns] of the job" in str(outcome.error)


def test_cut_points_around_one_value_leave_no_bin_of_few_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A summary has values in clear: a bin of one of them alone had the label of its row."""
    data = oracles.generated(Task.REGRESSION, sum(SIZES))
    rows = data.take(np.arange(sum(SIZES)))
    told = []
    for j in numeric_features(data.schema):
        values, counts = np.unique(rows.X[~np.isnan(rows.X[:, j]), j], return_counts=True)
        quarter = len(values) // 4
        rare = quarter + int(counts[quarter : 3 * quarter].argmin())
        told.append(values[rare : rare + 2])

    async def merged(self: Any) -> Any:
        summaries = await self._hub.collect(
            opening.CUTS, ExchangeKey(0), silos=self._sums.participants, quorum=3
        )
        made_up = opening.cuts_from_thresholds(self._plan.schema, told)
        replies = dict.fromkeys(summaries, opening.cut_points(made_up))
        self._hub.answer(opening.CUTS, ExchangeKey(0), replies)
        return made_up

    used = []
    begin = SiloRows.begin

    def began(self: SiloRows, opening: Any) -> None:
        used.append(opening.cuts)
        begin(self, opening)

    monkeypatch.setattr(opening.CoordinatorOpening, "_merge_summaries", merged)
    monkeypatch.setattr(SiloRows, "begin", began)
    outcome, _ = heard_of(data, objective="reg:squarederror", binning="summary")
    assert not outcome.errors
    assert len(used) == len(SIZES)
    for cuts in used:
        for j in numeric_features(data.schema):
            present = rows.X[~np.isnan(rows.X[:, j]), j]
            bins = np.searchsorted(cuts.of(j), present, side="right")
            assert np.bincount(bins, minlength=2).min() >= MIN_CELL
        assert len(cuts.of(0)) == 2, "one of the two is left out"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bagging", "scores"),
        ("bagging", "covers"),
        ("bagging-mean", "covers"),
        ("llr-leaves", "sums"),
        ("llr-secure", "weights"),
    ],
)
def test_made_up_bounds_of_sums_are_refused_by_every_silo(name: str, kind: str) -> None:
    """With a tiny bound numbers were clipped to signs: totals told how many silos have some."""
    with oracle.watching():
        moment, target = next(
            (moment, target)
            for group, lies in mutate.groups((name,))
            if group[1:3] == ("reply", f"{kind}-bound-unmask")
            and group[3].endswith("ResidueVector.data")
            for moment, target, _ in lies
        )
        record = mutate.recording(name)
        silos = frozenset(record.payloads[moment])
        case = mutate.Case(0, name, moment, target, "zeros", silos, "0/0")
        outcome, witness, _ = mutate._run(variant(name), case, record, case.seed)
    assert outcome.errors.keys() == silos
    assert all("do not fit" in str(error) for error in outcome.errors.values())
    assert (f"{kind}-sum", moment[2]) not in witness.totals
