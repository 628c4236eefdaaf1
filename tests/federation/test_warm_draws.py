"""What is drawn at random in jobs that go on from a model: as in the later rounds of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import ModelRejected, QuorumLost
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.coordinator.operator.library.simulating import simulate
from tests.adversary.arena import UrgentLink, UrgentLoop
from tests.federation.processes import write_table
from tests.federation.test_warm_start import BINARY, CLASSES, after, job, model, run, silos

FIRST, MORE = 3, 2
DATA = silos(BINARY, 60, 40, 50, 70, 45, 55)
SHARED = Histogram(FIRST, secure=False, sampling="mvs", sampling_scope="global")

DRAWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "rows": (Histogram(FIRST, secure=False, sampling="uniform"), {}),
    "goss": (Histogram(FIRST, secure=False, sampling="goss"), {}),
    "mvs": (replace(SHARED, sampling_scope="local"), {}),
    "mvs of one threshold": (SHARED, {}),
    "columns": (Histogram(FIRST, secure=False), {"colsample_bynode": 0.5}),
    "roundings": (Histogram(FIRST, secure=False, coarse_bits=3), {}),
    "cohorts": (Histogram(FIRST, silos_per_round=3), {}),
    "bagged rows": (Bagging(FIRST, scrub="none"), {"subsample": 0.5}),
    "bagged columns": (Bagging(FIRST, scrub="none"), {"colsample_bytree": 0.5}),
    "bagged silos": (Bagging(FIRST, scrub="none", silos_per_round=2), {}),
    "bagged turns": (Bagging(FIRST, scrub="none", mode="cyclic"), {}),
    "turns": (SimFL(FIRST, hashes=4), {}),
}


def asked_of(case: str) -> JobParameters:
    strategy, booster = DRAWN[case]
    asked = replace(job(BINARY, strategy, **booster), silos=tuple(map(Silo, DATA)), min_silos=2)
    strategy.validate(asked)
    return asked


def rounds(asked: JobParameters, n: int) -> JobParameters:
    return replace(asked, parameters=replace(asked.parameters, rounds=n))  # type: ignore[type-var]


def going_on(asked: JobParameters, first: bytes, n: int, data: Mapping[str, Dataset]) -> Any:
    told = after(asked, first, data)
    assert told.warm_start is not None
    return replace(told, warm_start=replace(told.warm_start, rounds_before=n))


@pytest.mark.parametrize("case", DRAWN)
def test_three_rounds_and_two_more_are_five_to_the_byte(case: str) -> None:
    asked = asked_of(case)
    assert asked.strategy.draws(asked.parameters, asked)
    first = model(run(asked, DATA))
    five = model(run(rounds(asked, FIRST + MORE), DATA))
    more = rounds(asked, MORE)
    ended = [run(going_on(more, first, n, DATA), DATA, starting_model=first) for n in (FIRST, 0)]
    assert model(ended[0]) == five
    assert model(ended[1]) != five, "without the rounds of the model its draws come again"
    twice = rounds(asked, 1)
    four = model(run(going_on(twice, first, FIRST, DATA), DATA, starting_model=first))
    last = run(going_on(twice, four, FIRST + 1, DATA), DATA, starting_model=four)
    assert model(last) == five


@pytest.mark.parametrize("case", DRAWN)
def test_the_first_rounds_of_five_and_two_more_are_five_to_the_byte(case: str) -> None:
    asked = asked_of(case)
    five = model(run(rounds(asked, FIRST + MORE), DATA))
    told = going_on(rounds(asked, MORE), five, FIRST, DATA)
    assert model(run(told, DATA, starting_model=five)) == five


def test_trees_of_several_classes_draw_columns_in_the_order_of_one_run() -> None:
    data = silos(CLASSES, 60, 50, 40)
    asked = job(CLASSES, Histogram(FIRST, secure=False), colsample_bylevel=0.5)
    first = model(run(asked, data))
    told = going_on(rounds(asked, MORE), first, FIRST, data)
    both = model(run(told, data, starting_model=first))
    assert both == model(run(rounds(asked, FIRST + MORE), data))


def test_nothing_is_drawn_for_a_round_of_these() -> None:
    for strategy in (Histogram(2), Histogram(2, validation=0.2), Bagging(2, validation=0.2)):
        asked = job(BINARY, strategy)
        assert not asked.strategy.draws(asked.parameters, asked)


def test_a_job_says_how_many_rounds_its_model_has_only_where_something_is_drawn(
    tmp_path: Path,
) -> None:
    table = write_table(tmp_path / "rows.parquet", 300, 1)
    drawn = {"seed": 4, "max_depth": 2, "subsample": 0.5, "scrub": "none"}
    first = simulate(Job("bagging", rounds=2, **drawn), table, 2)
    more = Job("bagging", rounds=1, **drawn)
    told = more.starting_from(first).parameters.warm_start
    still = Job("bagging", rounds=1).starting_from(first).parameters.warm_start
    assert told is not None
    assert still is not None
    assert (told.rounds_before, still.rounds_before) == (2, 0)
    whole = simulate(Job("bagging", rounds=3, **drawn), table, 2)
    both = simulate(more, table, 2, model=first)
    read = [(one.folder / "model.ubj").read_bytes() for one in (both, whole)]
    assert read[0] == read[1]
    again = more.starting_from(both).parameters.warm_start
    assert again is not None
    assert again.rounds_before == 3


def test_other_rounds_than_the_models_are_refused() -> None:
    first = model(run(asked_of("rows"), DATA))
    told = going_on(asked_of("rows"), first, FIRST + 1, DATA)
    with pytest.raises(
        ModelRejected, match=r"\[warm_start\] rounds_before: expected at most 3, which"
    ):
        warm_start.opened(told, DATA["silo-0"].schema, first, "the coordinator")


def test_a_coordinator_that_draws_silos_for_other_rounds_than_were_signed_gets_no_sum() -> None:
    """Whom a round is over follows from the job that each silo has, signed by its operator."""
    asked = rounds(asked_of("cohorts"), MORE)
    first = model(run(asked_of("cohorts"), DATA))
    signed, other = (going_on(asked, first, n, DATA) for n in (FIRST, 0))
    drawn = [one.parameters.cohorts(one) for one in (signed, other)]
    same = [a == b for a, b in zip(*drawn, strict=True)]
    assert False in same

    def as_signed(_: Any, link: Any, vault: Any, start: Any) -> Any:
        return warm_start.participate(link, vault, replace(start, job=signed))

    outcome = run(
        other, DATA, starting_model=first, participate_as=as_signed,
        make_link=UrgentLink, make_loop=UrgentLoop,
    )  # fmt: skip
    assert len(outcome.rounds) == same.index(False), "in the first that differs no sum is opened"
    assert isinstance(outcome.error, QuorumLost)
