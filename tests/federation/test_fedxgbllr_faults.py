"""FedXGBllr when silos are lost, late or empty, and when the coordinator restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import QuorumLost
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import CoordinatorStart, JobParameters, SiloStart
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import (
    StackedModel,
)
from hedgerow.coordinator.server.barrier import Barrier
from tests.federation.memory import Fault, MemoryLink, SiloKilled, run_in_memory
from tests.federation.stacking import job, secure_run, silos, small, table


class Paced:
    """A federation whose coordinator half continues when the test asks for a result."""

    def __init__(self, task: JobParameters, data: dict[str, Dataset], present: tuple[str, ...]):
        self.job, self.data = task, {Silo(name): rows for name, rows in data.items()}
        self.roster = tuple(sorted(self.data))
        self.hub = Barrier(self.roster, tuple(map(Silo, present)), 60.0)
        self.schema = next(iter(data.values())).schema
        n_samples = {name: rows.n_samples for name, rows in self.data.items()}
        start = CoordinatorStart(task, "job", 1, self.roster, self.schema, n_samples)
        self.half = task.strategy.coordinate(task.parameters, self.hub, start)

    def offers_of_round(self, number: int) -> int:
        """Count the silos that have made their first offer of a round."""
        at = ExchangeKey(number)
        return self.hub.n_offered("weights", at) + self.hub.n_offered("sums", at)

    def silo(self, name: str, *faults: Fault) -> asyncio.Future[None]:
        """Start a silo's half in a thread."""
        silo = Silo(name)
        self.hub.join(silo)
        link = MemoryLink(silo, self.hub, asyncio.get_running_loop(), True, faults)
        start = SiloStart(self.job, "job", 1, silo, self.roster, self.schema, self.data[silo])
        return asyncio.ensure_future(
            asyncio.to_thread(self.job.strategy.participate, self.job.parameters, link, None, start)
        )


def test_a_silo_of_one_class_and_a_silo_without_rows_take_part():
    data = silos(Task.BINARY, 4)
    data["s01"] = Dataset(data["s01"].schema, data["s01"].X, np.ones(data["s01"].n_samples))
    data["s02"] = table(Task.BINARY, 0, 1)
    for combiner in ("cnn", "logit_ridge", "leaves"):
        outcome = run_in_memory(job(Task.BINARY, small(combiner=combiner)), data)
        assert outcome.error is None
        assert not outcome.errors
        model = StackedModel.load(outcome.artefact.files)
        assert model.silos == ("s00", "s01", "s03")
        assert np.isfinite(model.margins(data["s00"].X)).all()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_silo_lost_in_a_round_is_left_out_and_its_trees_stay(when):
    data = silos(Task.BINARY, 3)
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=2),
        data,
        faults=(Fault("s01", "weights", round=2, when=when),),
    )
    assert outcome.error is None
    assert [silo for silo, _ in outcome.lost] == ["s01"]
    assert outcome.rounds[-1].silos == ("s00", "s02")
    assert StackedModel.load(outcome.artefact.files).silos == ("s00", "s01", "s02")


def test_a_silo_lost_in_round_zero_has_no_block():
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=2),
        silos(Task.BINARY, 3),
        faults=(Fault("s01", "trees"),),
    )
    model = StackedModel.load(outcome.artefact.files)
    assert model.silos == ("s00", "s02")
    assert len(model.ensemble.trees) == 8  # each silo made 12 / 3


def test_too_few_silos_end_the_attempt():
    outcome = run_in_memory(
        job(Task.BINARY, small(), min_silos=3),
        silos(Task.BINARY, 3),
        faults=(Fault("s01", "weights", round=1),),
    )
    assert isinstance(outcome.error, QuorumLost)


@pytest.mark.parametrize("combiner", ["cnn", "leaves"])
async def test_a_late_silo_adds_no_trees_but_trains_the_head(combiner):
    task = job(Task.BINARY, small(combiner=combiner, rounds=4), min_silos=2)
    paced = Paced(task, silos(Task.BINARY, 3), ("s00", "s01"))
    halves = [paced.silo("s00"), paced.silo("s01")]
    results = [await anext(paced.half), await anext(paced.half)]
    halves.append(paced.silo("s02"))
    while paced.offers_of_round(2) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    results += [result async for result in paced.half]
    await asyncio.gather(*halves)
    assert [len(result.silos) for result in results] == [2, 2, 3, 3, 3]
    artefact = task.strategy.artefact(task.parameters, task, paced.schema, results[-1].checkpoint)
    assert StackedModel.load(artefact.files).silos == ("s00", "s01")


@pytest.mark.parametrize("combiner", ["cnn", "logit_ridge", "leaves"])
async def test_a_silo_that_returns_without_memory_goes_on_beside_its_trees(combiner):
    task = job(Task.BINARY, small(combiner=combiner, rounds=4), min_silos=2)
    paced = Paced(task, silos(Task.BINARY, 3), ("s00", "s01", "s02"))
    step = "weights" if combiner == "cnn" else "sums"
    lost = paced.silo("s02", Fault("s02", step, round=1))
    halves = [paced.silo("s00"), paced.silo("s01")]
    results = [await anext(paced.half)]
    pull = asyncio.ensure_future(anext(paced.half))
    with pytest.raises(SiloKilled):
        await lost
    paced.hub.drop(Silo("s02"), "killed by the test")
    results.append(await pull)
    halves.append(paced.silo("s02"))
    while paced.offers_of_round(2) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    results += [result async for result in paced.half]
    await asyncio.gather(*halves)
    rounds = [3, 2] + [3] * task.parameters.n_rounds
    assert [len(result.silos) for result in results] == rounds[: task.parameters.n_rounds + 1]
    artefact = task.strategy.artefact(task.parameters, task, paced.schema, results[-1].checkpoint)
    assert StackedModel.load(artefact.files).silos == ("s00", "s01", "s02")


async def test_a_silo_that_comes_before_the_trees_are_in_takes_part_from_the_start():
    task = job(Task.REGRESSION, small(combiner="ridge", center_target=False), min_silos=2)
    paced = Paced(task, silos(Task.REGRESSION, 3), ("s00", "s01"))
    pull = asyncio.ensure_future(anext(paced.half))
    halves = [paced.silo("s00")]
    await asyncio.sleep(0)
    halves += [paced.silo("s02"), paced.silo("s01")]
    first = await pull
    assert set(first.silos) >= {"s00", "s01"}
    results = [first, *[result async for result in paced.half]]
    await asyncio.gather(*halves)
    assert results[-1].silos == ("s00", "s01", "s02")


@pytest.mark.parametrize(
    ("combiner", "booster"),
    [
        ("cnn", {}),
        ("leaves", {}),
        ("logit_ridge", {}),
        ("leaves", {"alpha": 2.0, "gamma": 1.0}),
    ],
)
def test_a_restarted_coordinator_goes_on_to_the_same_result(combiner, booster):
    task = job(
        Task.BINARY,
        small(combiner=combiner, rounds=4, share_penalties=bool(booster)),
        booster=Booster(eta=0.3, max_depth=3, **booster),
    )
    data = silos(Task.BINARY, 3)
    whole = run_in_memory(task, data)
    half = run_in_memory(task, data, stop_after_rounds=2)
    rest = run_in_memory(
        task, data, checkpoint=half.rounds[-1].checkpoint, first_round=2, attempt=2
    )
    assert rest.rounds[0].round == 2
    assert rest.rounds[-1].checkpoint == whole.rounds[-1].checkpoint
    assert rest.checks.keys() == data.keys()


@pytest.mark.parametrize("combiner", ["cnn", "leaves", "logit_ridge"])
def test_silos_that_come_back_after_the_best_round_or_the_last_one_know_the_result(combiner):
    changes = {"learning_rate": 100.0} if combiner == "cnn" else {}  # it only becomes worse
    task = job(Task.BINARY, small(combiner=combiner, rounds=3, validation=0.3, **changes))
    data = silos(Task.BINARY, 3)
    whole = run_in_memory(task, data)
    best = whole.rounds[-1].best_round
    assert best == 0 or combiner != "cnn"
    for done in range(2, len(whole.rounds) + 1):
        checkpoint = whole.rounds[done - 1].checkpoint
        rest = run_in_memory(task, data, checkpoint=checkpoint, first_round=done, attempt=2)
        assert rest.checks.keys() == data.keys()
        for knows in rest.checks.values():
            knows(whole.artefact.files)


def test_a_silo_lost_under_secure_sums_is_left_out():
    data = silos(Task.BINARY, 5)
    outcome = secure_run(
        replace(job(Task.BINARY, small(secure=True), min_silos=3), max_close_sums=9),
        data,
        faults=(Fault("s03", "weights-sum-masked", round=2),),
    )
    assert outcome.error is None
    assert "s03" not in outcome.rounds[-1].silos
    assert len(outcome.rounds[-1].silos) == 4
