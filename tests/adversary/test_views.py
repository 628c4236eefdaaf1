"""A coordinator that asks one silo another question than the others opens noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.mirror import TreeReplica
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import LevelDecision
from hedgerow.boosting.sums import silo as silo_sums
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SUM, SumParameters, SumTotal
from hedgerow.crypto.masking.fixed_point import signed
from hedgerow.crypto.masking.totals import N_LIMBS
from tests import oracles
from tests.boosting.sums.federation_of_sums import Federation, names
from tests.boosting.sums.test_secure_sum import N, expected, vector
from tests.federation.histograms import job_of, model_of, run, silos_of
from tests.federation.memory import MemoryLink, Outcome

FIVE = names(5)
VICTIM = FIVE[2]


def believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not compare views, as a liar would not."""
    monkeypatch.setattr(CoordinatorSums, "_alike", lambda self, step, ask, uploads: uploads)


def forget_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos without the defence: every view is the same."""
    monkeypatch.setattr(silo_sums, "sum_view", lambda *view: bytes(32))


def sums_with(blind: bool, *, level: int) -> Any:
    """Sum over a tree's first level and then inside it; the victim's state differs at ``level``."""

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[Any]:
        await sums.setup(ExchangeKey(0))
        outcomes = []
        for number in range(2):
            outcome = await sums.sum(SUM, ExchangeKey(0, number), N, whole=number > 0)
            values = np.zeros(0, np.uint64) if outcome.total is None else outcome.total
            sums.answer(SUM, outcome, SumTotal(values, 64, outcome.present))
            outcomes.append(outcome)
        return outcomes

    def participate(sums: SiloSums, link: Any) -> list[Any]:
        sums.setup(ExchangeKey(0))
        totals = []
        for number in range(2):
            lied_to = link.silo == VICTIM and number == level
            reply = sums.sum(
                SUM,
                ExchangeKey(0, number),
                vector(link.silo, number),
                state=bytes([lied_to] * 32),
                opens_tree=number == 0,
                whole=number > 0,
            )
            totals.append(sums.opened(reply) if reply.values.size else reply)
        return totals

    parameters = SumParameters(batch=2, blind_coordinator=blind)
    return Federation(FIVE, parameters).run(coordinate, participate)


@pytest.mark.parametrize("blind", [False, True])
def test_equal_views_give_the_sum(blind: bool) -> None:
    ended = sums_with(blind, level=-1)
    for number in range(2):
        for silo in FIVE:
            total = ended.silos[silo][number].values
            np.testing.assert_array_equal(total, expected(FIVE, number))


@pytest.mark.parametrize("blind", [False, True])
def test_a_liar_opens_noise_inside_a_tree(blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch)
    ended = sums_with(blind, level=1)
    np.testing.assert_array_equal(ended.silos[VICTIM][0].values, expected(FIVE, 0))
    off = ended.silos[VICTIM][1].values - expected(FIVE, 1)
    assert (off != 0).all()
    assert np.unique(off).shape == off.shape


def test_a_liar_gets_no_signatures_for_the_first_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch)
    ended = sums_with(False, level=0)
    assert "sum-unmask" not in {name for silo, name in ended.traffic if silo == VICTIM}, (
        "the victim verified signatures over another view"
    )


@pytest.mark.parametrize("level", [0, 1])
def test_an_honest_coordinator_leaves_a_silo_with_another_view_out_by_name(level: int) -> None:
    ended = sums_with(False, level=level)
    assert isinstance(ended.errors[VICTIM], OfferRejected)
    assert f"round 0, level {level}: computed from another view" in str(ended.errors[VICTIM])
    if level:
        assert ended.result[1].total is None
    else:
        rest = tuple(silo for silo in FIVE if silo != VICTIM)
        np.testing.assert_array_equal(ended.result[0].total, expected(rest, 0))


def test_inside_a_tree_no_view_is_masked_twice() -> None:
    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(ExchangeKey(0))
        sums.sum(SUM, ExchangeKey(0), vector(link.silo, 0), state=bytes(32), opens_tree=True)
        for _ in range(2):
            sums.sum(SUM, ExchangeKey(0, 1), vector(link.silo, 1), state=bytes(32), whole=True)

    async def coordinate(sums: CoordinatorSums, hub: Any) -> None:
        await sums.setup(ExchangeKey(0))
        for number in range(2):
            outcome = await sums.sum(SUM, ExchangeKey(0, number), N, whole=number > 0)
            assert outcome.total is not None
            sums.answer(SUM, outcome, SumTotal(outcome.total, 64, outcome.present))

    ended = Federation(FIVE).run(coordinate, participate)
    assert all("have one view" in str(ended.errors[silo]) for silo in FIVE)


# --- the attack on a job: four silos are told a split that empties the node that is asked for ---

DATA = oracles.generated(Task.BINARY, 600, missing=0.0, categories=())
SILOS = silos_of(DATA, (150, 120, 110, 120, 100))
SPARED = Silo("silo-2")


class LyingLink(MemoryLink):
    """What the coordinator tells all silos but one of the first level's split."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if self.silo == SPARED or not isinstance(reply, LevelDecision) or at != ExchangeKey(0, 0):
            return reply
        (split,) = reply.trees
        asked_left = int(split.request[0]) == 1
        lie = replace(
            split,
            feature=np.array([0], np.int32),
            bin=np.array([-1 if asked_left else 15], np.int32),
            default_left=np.array([not asked_left]),
        )
        return replace(reply, trees=(lie,))


def attack(monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, dict[Silo, Any], list[Any]]:
    """Return the outcome, each silo's part of level 1, and the totals that were opened."""
    parts: dict[Silo, Any] = {}
    totals: list[Any] = []
    sum_of, sum_in = CoordinatorSums.sum, SiloSums.sum

    def sum_part(self: SiloSums, steps: Any, at: ExchangeKey, residues: Any, **other: Any) -> Any:
        if steps.name == "histograms" and at == ExchangeKey(0, 1):
            parts[self._silo] = residues.copy()
        return sum_in(self, steps, at, residues, **other)

    async def summed(
        self: CoordinatorSums, steps: Any, at: ExchangeKey, *rest: Any, **other: Any
    ) -> Any:
        outcome = await sum_of(self, steps, at, *rest, **other)
        if steps.name == "histograms" and at == ExchangeKey(0, 1):
            totals.append(outcome.total)
        return outcome

    monkeypatch.setattr(SiloSums, "sum", sum_part)
    monkeypatch.setattr(CoordinatorSums, "sum", summed)
    # Vectors of other paths have other fields, so that they do not add up at all; views must hold
    # where a liar finds two questions with the same fields.
    monkeypatch.setattr(
        TreeReplica, "reach", lambda self, node, layout: np.ones(layout.n_bins, np.bool_)
    )
    strategy = Histogram(rounds=1, binning="summary")
    job = job_of(strategy, Task.BINARY, Booster(max_depth=3, max_bin=16))
    job = replace(job, max_close_sums=9)  # five silos are one group
    outcome = run(job, SILOS, make_link=LyingLink, lied=True)
    return outcome, parts, totals


def test_without_views_the_sum_is_one_silos_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack works where the defence is taken out, so the next test can fail."""
    forget_views(monkeypatch)
    believe(monkeypatch)
    _, parts, totals = attack(monkeypatch)
    assert all(not parts[silo].any() for silo in parts if silo != SPARED)
    assert parts[SPARED].any()
    np.testing.assert_array_equal(totals[0][N_LIMBS:], parts[SPARED][N_LIMBS:])


def test_with_views_the_sum_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch)
    _, parts, totals = attack(monkeypatch)
    assert not parts.keys() - set(map(Silo, SILOS))
    values = signed(totals[0], 64)
    assert (totals[0] != parts[SPARED]).all()
    assert np.median(np.abs(values.astype(np.float64))) > 2.0**60


def test_an_honest_coordinator_closes_the_tree_and_names_the_silo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, _, totals = attack(monkeypatch)
    assert totals == [None]
    assert "another view" in str(outcome.errors[SPARED])
    assert outcome.error is None
    # No silo has checked the children of the split, the true ones and the others: it is taken back.
    assert not outcome.rejected
    assert [tree.n_nodes for tree in model_of(outcome).trees] == [1]
