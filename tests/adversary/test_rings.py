"""Narrow widths and bins left out: what overflows is summed again, and nobody learns who it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import OfferRejected, SumRefused
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram import rings as rings_module
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import LevelDecision
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SUM
from tests import oracles
from tests.boosting.sums.federation_of_sums import Federation, names
from tests.federation.histograms import job_of, model_of, pooled_of, run, same, silos_of
from tests.federation.memory import MemoryLink

SIZES = (150, 120, 110, 120, 100)
DATA = oracles.generated(Task.BINARY, 600, categories=())
SPARED = Silo("silo-2")


def job(**parameters: Any) -> Any:
    chosen = {"rounds": 2, "binning": "summary", "filled_bins": True, **parameters}
    strategy = Histogram(**chosen)
    return job_of(strategy, Task.BINARY, Booster(max_depth=4, max_bin=16, eta=1.0))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[ExchangeKey]:
    """Return the places of the sums of histograms that silos add to."""
    seen: list[ExchangeKey] = []
    honest = SiloSums.sum

    def summed(self: SiloSums, steps: Any, at: ExchangeKey, residues: Any, **other: Any) -> Any:
        if steps.name == "histograms":
            seen.append(at)
        return honest(self, steps, at, residues, **other)

    monkeypatch.setattr(SiloSums, "sum", summed)
    return seen


def cancelling() -> Dataset:
    """Gradients cancel in both bins of the first feature, until the second one divides rows."""
    X = np.zeros((600, DATA.X.shape[1]), np.float32)
    X[:, 0], X[:, 1] = np.arange(600) % 2, np.arange(600) // 2 % 2
    y = np.zeros(600)
    for (first, second), share in {(0, 1): 1.0, (0, 0): 0.0, (1, 1): 0.4, (1, 0): 0.6}.items():
        rows = np.flatnonzero((X[:, 0] == first) & (X[:, 1] == second))
        y[rows[: round(share * rows.shape[0])]] = 1.0
    return Dataset(DATA.schema, X, y)


@pytest.mark.parametrize("coarse_bits", [0, 5])
@pytest.mark.parametrize("secure", [True, False])
def test_gradients_that_cancel_in_the_parent_overflow_and_are_summed_again(
    secure: bool, coarse_bits: int, passes: list[ExchangeKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees are those of the pooled engine although widths were guessed far too narrow."""
    monkeypatch.setattr(
        rings_module, "_expected", lambda grad, hess: np.minimum(grad, 1.0)
    )  # a guess that fails wherever a gradient is not 0
    asked = job(secure=secure, coarse_bits=coarse_bits)
    outcome = run(asked, silos_of(DATA, SIZES))
    assert same(model_of(outcome), pooled_of(asked, DATA, outcome, SIZES))
    again = {at for at in passes if at.passing}
    assert {replace(at, passing=1) for at in passes if at.level} == again


def test_a_child_has_gradients_where_the_parent_has_none() -> None:
    data, asked = cancelling(), job()
    outcome = run(asked, silos_of(data, SIZES))
    ensemble = model_of(outcome)
    assert same(ensemble, pooled_of(asked, data, outcome, SIZES))
    assert {0, 1} <= set(ensemble.trees[0].feature.tolist())
    assert ensemble.trees[0].feature[0] == 1


def flag_of(words: Any, ring: Any) -> int:
    rows = np.zeros((ring.n_rows, ring.widths.shape[1]), np.int64)
    signed = np.arange(rows.shape[1]) % 2 == 0
    ring.unpack(words, signed, rows, np.arange(len(rows)), rows[:0])
    return int(rows[-1, 0])


def test_the_flag_says_none_or_some_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each silo that overflows adds another residue whenever it does: no two flags are alike."""
    flags: list[int] = []
    honest = SiloSums.sum

    def summed(self: SiloSums, steps: Any, at: ExchangeKey, residues: Any, **other: Any) -> Any:
        ring = other.get("ring")
        if steps.name == "histograms" and at.level and not at.passing:
            flags.append(flag_of(residues, ring))
        return honest(self, steps, at, residues, **other)

    monkeypatch.setattr(SiloSums, "sum", summed)
    monkeypatch.setattr(rings_module, "_expected", lambda grad, hess: np.minimum(grad, 1.0))
    run(job(), silos_of(DATA, SIZES))
    raised = [flag for flag in flags if flag]
    assert len(raised) > len(SIZES)
    assert len(set(raised)) == len(raised)
    assert np.median(np.abs(np.array(raised, float))) > 2.0**60


def test_a_silo_that_says_overflow_for_nothing_costs_a_pass_and_changes_no_tree(
    passes: list[ExchangeKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = rings_module.BitWidths.overflow
    monkeypatch.setattr(rings_module.BitWidths, "overflow", lambda *_: True)
    asked = job()
    outcome = run(asked, silos_of(DATA, SIZES))
    monkeypatch.setattr(rings_module.BitWidths, "overflow", honest)
    assert same(model_of(outcome), pooled_of(asked, DATA, outcome, SIZES))
    assert any(at.passing for at in passes)


class Liar(MemoryLink):
    """A coordinator that lies to some silos in the rings of the first level's reply."""

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if not isinstance(reply, LevelDecision) or at != ExchangeKey(0, 0):
            return reply
        (split,) = reply.trees
        assert split.rings is not None
        return replace(reply, trees=(replace(split, rings=self.lie(split.rings)),))

    def lie(self, rings: Any) -> Any:
        return rings


class NarrowForOne(Liar):
    def lie(self, rings: Any) -> Any:
        if self.silo != SPARED:
            return rings
        # As many bits in all, so that the vectors are equally long.
        return replace(rings, grad=rings.grad + np.uint8(1), hess=rings.hess - np.uint8(1))


def test_a_silo_that_is_told_other_widths_has_another_view() -> None:
    outcome = run(job(), silos_of(DATA, SIZES), make_link=NarrowForOne)
    assert isinstance(outcome.errors[SPARED], OfferRejected)
    assert "another view" in str(outcome.errors[SPARED])


class SaysFilled(Liar):
    def lie(self, rings: Any) -> Any:
        return replace(rings, filled=np.full(4, 255, np.uint8))


def test_flat_rings_tell_no_bin() -> None:
    """By default no reply says which bins are empty, and silos refuse one that does."""
    told: list[int] = []

    class Listens(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, LevelDecision):
                told.extend(s.rings.filled.shape[0] for s in reply.trees if s.rings is not None)
            return reply

    sparse = Dataset(DATA.schema, np.where(DATA.X > 0, DATA.X, np.nan), DATA.labels)
    for filled_bins in (True, False):
        told.clear()
        asked = job(filled_bins=filled_bins)
        outcome = run(asked, silos_of(sparse, SIZES), make_link=Listens)
        assert same(model_of(outcome), pooled_of(asked, sparse, outcome, SIZES))
        assert told
        assert any(told) is filled_bins
    outcome = run(job(filled_bins=False), silos_of(sparse, SIZES), make_link=SaysFilled)
    assert outcome.errors
    assert all("no bits of filled bins" in str(error) for error in outcome.errors.values())


class NoSuchBin(Liar):
    def lie(self, rings: Any) -> Any:
        return replace(rings, derived=np.full_like(rings.derived, 60_000))


class Wider(Liar):
    def lie(self, rings: Any) -> Any:
        return replace(rings, grad=np.full_like(rings.grad, 64))


@pytest.mark.parametrize(
    ("make_link", "text"),
    [(NoSuchBin, "does not have"), (Wider, "above what the range proof")],
)
def test_silos_refuse_rings_that_do_not_fit(make_link: Any, text: str) -> None:
    outcome = run(job(), silos_of(DATA, SIZES), make_link=make_link)
    assert outcome.errors
    assert all(text in str(error) for error in outcome.errors.values())


@pytest.mark.parametrize("secure", [True, False])
def test_no_silo_refuses_a_reply_that_says_that_nothing_is_missing(
    secure: bool, passes: list[ExchangeKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silos that have missing values raise the level's flag: the last pass derives no bin."""
    X = DATA.X.copy()
    X[: SIZES[0], 0] = np.nan  # in one silo only, which a refusal would name
    data = Dataset(DATA.schema, np.where(np.isnan(DATA.X), 0, X).astype(np.float32), DATA.labels)
    honest = rings_module.PackedRings.open

    def opened(self: Any, words: Any, totals: Any) -> Any:
        found = honest(self, words, totals)
        if found is None:
            return None
        return found[0], [np.zeros_like(chosen) for chosen in found[1]]

    monkeypatch.setattr(rings_module.PackedRings, "open", opened)
    asked = job(secure=secure)
    outcome = run(asked, silos_of(data, SIZES))
    assert not outcome.errors
    assert same(model_of(outcome), pooled_of(asked, data, outcome, SIZES))
    again = {at for at in passes if at.passing}
    assert {replace(at, passing=p) for at in passes if at.level for p in (1, 2)} == again


class Endless(MemoryLink):
    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if isinstance(reply, LevelDecision):
            return LevelDecision((), None, overflowed=True)
        return reply


def test_widths_that_are_proven_do_not_overflow() -> None:
    outcome = run(job(), silos_of(DATA, SIZES), make_link=Endless)
    assert all("proven widths" in str(error) for error in outcome.errors.values())
    assert outcome.errors


def packed_twice(content: np.ndarray) -> Iterator[np.ndarray]:
    """Return vectors of the same data under other flags."""
    for number in range(2):
        vector = content.astype(np.uint64)
        vector[-1] = number + 1
        yield vector


def test_random_flags_do_not_make_the_same_data_new() -> None:
    """Data that were summed are not summed again over another set, however they are packed."""
    silos = names(5)
    victim, data = silos[2], np.arange(1, 9)

    async def coordinate(sums: Any, hub: Any) -> Any:
        await sums.setup(ExchangeKey(0))
        await sums.total(ExchangeKey(0), data.shape[0])
        hub.drop(victim, "said to be lost")
        return await sums.total(ExchangeKey(1), data.shape[0])

    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(ExchangeKey(0))
        for round_, vector in enumerate(packed_twice(data)):
            if link.silo != victim or not round_:
                sums.sum(SUM, ExchangeKey(round_), vector, state=bytes(32), content=data)

    ended = Federation(silos).run(coordinate, participate)
    for silo in silos:
        if silo != victim:
            assert isinstance(ended.errors[silo], SumRefused)
            assert "same values" in str(ended.errors[silo])
