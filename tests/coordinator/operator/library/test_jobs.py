"""Jobs in Python: the job file's schema, checks and words."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import FederationError, InvalidJob, SchemaMismatch
from tests.coordinator.operator.library.tables import people

TOML = """
strategy = "bagging"
label = "income"
metrics = ["auc"]
[bagging]
rounds = 7
[booster]
eta = 0.25
max_depth = 3
"""


def test_keywords_and_toml_make_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(TOML)
    from_file = hedgerow.Job.load(tmp_path / "job.toml")
    flat = hedgerow.Job(
        "bagging", label="income", metrics=("auc",), rounds=np.int64(7), eta=0.25, max_depth=3
    )
    nested = hedgerow.Job(
        "bagging", label="income", metrics=["auc"], bagging={"rounds": 7},
        booster={"eta": 0.25, "max_depth": 3},
    )  # fmt: skip
    assert flat == nested == from_file == hedgerow.Job.from_toml(TOML)
    flat.save(tmp_path / "saved.toml")
    assert hedgerow.Job.load(tmp_path / "saved.toml") == from_file
    assert "income" in flat._repr_html_()


def test_a_key_of_two_tables_is_the_strategys() -> None:
    job = hedgerow.Job("fedga", max_depth=4)
    assert job.parameters.parameters.max_depth == 4  # type: ignore[attr-defined]
    with pytest.raises(InvalidJob, match=r"\[booster\] max_depth: it would have no effect"):
        hedgerow.Job("fedga", max_depth=4, booster={"max_depth": 9})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"labell": "x"}, "did you mean label"),
        ({"max_dept": 3}, "did you mean max_depth"),
        ({"bagging": {"round": 3}}, "unknown key bagging.round; did you mean rounds"),
        ({"rounds": "ten"}, "bagging.rounds: expected a whole number"),
        ({"rounds": 0}, "rounds"),
        ({"metrics": "auc"}, "metrics: expected a list"),
    ],
)
def test_a_wrong_setting_is_refused_in_the_job_files_words(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidJob, match=says):
        hedgerow.Job("bagging", **settings)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "\ud800"},
        {"label": ["y", "\ud800"]},
        {"loss": "\ud800"},
        {"rename": {"\ud800": "x"}},
        {"class_weight": {"\ud800": 1.0}},
        {"levels": {"x": ["\ud800"]}},
        {"interaction_constraints": [["\ud800", "x"]]},
        {"\ud800": 1},
    ],
    ids=lambda given: ascii(next(iter(given))),
)
def test_half_a_character_is_named_in_words_that_can_be_printed(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"\\ud800") as refused:
        hedgerow.Job("histogram", **given)
    str(refused.value).encode()
    for read in (hedgerow.Job.load, hedgerow.Run, lambda path: plan_of(path, "histogram")):
        with pytest.raises(FederationError, match=r"expected a path, received '\\ud800'"):
            read("\ud800")


def plan_of(table: Any, strategy: str, **given: Any) -> hedgerow.Plan:
    return hedgerow.plan(hedgerow.Job(strategy, **given), dict.fromkeys("abc", table))


def test_a_squared_error_of_two_classes_is_warned_of_in_the_plan() -> None:
    for loss, warned in (("(margin - label)**2", 1), ("log(1 + exp(margin)) - label*margin", 0)):
        found = plan_of(people(60, 0), "histogram", loss=loss)
        assert sum("predictions stay near 0.5" in note for note in found.view.notes) == warned


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(InvalidJob, match="did you mean bagging"):
        hedgerow.Job("baging", rounds=3)


def test_a_plan_needs_no_training_and_checks_the_tables() -> None:
    silos = {"north": people(50, 0), "south": people(60, 1)}
    job = hedgerow.Job("bagging", rounds=5, min_silos=2)
    plan = hedgerow.plan(job, silos, test=people(20, 2))
    assert set(plan["silo"]) == {"north", "south"}
    assert (plan["bytes_up"] > 0).all()
    assert "trees" in plan.reveals
    learns = plan._repr_html_().partition("What each party learns</summary>")[2]
    assert learns.count("<p>") > 3
    assert "<pre>" not in learns
    towns = {
        silo: {**own, "town": np.array([f"{silo} {k % 40}" for k in range(len(own["label"]))])}
        for silo, own in silos.items()
    }
    note = "all silos learn the categories of town (80), site (4)"
    assert hedgerow.plan(job, towns).view.notes[-1] == note
    with pytest.raises(InvalidJob, match="min_silos: the job needs 2 silos and 1 are given"):
        hedgerow.plan(job, {"north": silos["north"]})
    other = {**people(60, 1), "height": np.zeros(60)}
    with pytest.raises(SchemaMismatch, match="height"):
        hedgerow.plan(job, {"north": silos["north"], "south": other})


def test_a_mapping_is_a_job_where_a_path_is(tmp_path: Path) -> None:
    keys = {"strategy": "bagging", "rounds": 2, "eta": 0.25, "metrics": ["auc"]}
    job = hedgerow.Job(**keys)  # type: ignore[arg-type]
    silos = {name: people(60, k) for k, name in enumerate("abc")}
    assert hedgerow.plan(keys, silos).rows() == hedgerow.plan(job, silos).rows()
    scores = np.asarray(hedgerow.cv(keys, silos))
    np.testing.assert_array_equal(scores, np.asarray(hedgerow.cv(job, silos)))
    run = hedgerow.simulate({**keys, "bagging": {"trees_per_round": 1}}, people(90, 1), 3)
    assert run.job.parameters.parameters.rounds == 2  # type: ignore[attr-defined]
    found = hedgerow.search({**keys, "search": {"booster.max_depth": [1, 2]}}, silos, trials=2)
    assert sorted(found.trials["booster.max_depth"]) == [1, 2]
    for wrong, says in (({}, "strategy '' is not known"), ({"strategy": 3}, "as texts"),
                        ({**keys, 3: 1}, "as texts"), ({**keys, "rnds": 1}, "unknown key rnds"),
                        ({**keys, "booster": {3: 1}}, r"unknown key booster\.3")):  # fmt: skip
        with pytest.raises(InvalidJob, match=says):
            hedgerow.plan(wrong, silos)


class Odd:
    """What no argument is."""


@pytest.mark.parametrize(
    "function",
    [pytest.param(hedgerow.local, marks=pytest.mark.process),
     pytest.param(hedgerow.explore, marks=pytest.mark.process), hedgerow.simulate,
     hedgerow.search, hedgerow.cv, hedgerow.plan, hedgerow.split,
     hedgerow.load, hedgerow.Run, hedgerow.Search, hedgerow.Job.load, hedgerow.Job.from_toml,
     hedgerow.connect],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_an_argument_of_a_wrong_type_is_an_error_of_its_own(function: Any, tmp_path: Path) -> None:
    silos = {name: people(60, k) for k, name in enumerate("abc")}
    fitting = {
        "job": hedgerow.Job("bagging", rounds=1), "silos": silos, "data": people(60, 1),
        "path": tmp_path, "folder": tmp_path, "keys": {"booster.eta": [0.1]},
        "address": "localhost:1", "identity": tmp_path,
    }  # fmt: skip
    parameters = inspect.signature(function).parameters
    for name in parameters:
        if name == "settings" or (function is hedgerow.plan and name == "test"):
            continue  # any value will do, or the parameter stands for several
        given = {key: value for key, value in fitting.items() if key in parameters}
        if parameters.get("silos") and "data" in parameters:
            given["silos"] = 3
        for wrong in (Odd(), [Odd()], {"a": Odd()}, {3: Odd()}):
            if name == "keys" and wrong == {"a": Odd()}:
                continue
            with pytest.raises(hedgerow.FederationError):
                function(**{**given, name: wrong})


@pytest.mark.parametrize("wrong", [3, None, b"job.toml", ["job.toml"]])
def test_a_job_of_a_wrong_type_says_what_is_expected(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match="expected a Job, a mapping of a job file's keys or the"):
        hedgerow.simulate(wrong, people(60, 1), 3)


def test_names_that_no_silo_has_and_paths_that_do_not_exist_are_named() -> None:
    job = hedgerow.Job("bagging", rounds=1)
    for name in ("a/b", "", "north east", "a=b"):
        with pytest.raises(hedgerow.FederationError, match=f"silo '{name}': up to 63 letters"):
            hedgerow.local(job, {name: people(60, 1), "b": people(60, 2)})
    with pytest.raises(hedgerow.FederationError, match=r"nowhere\.csv: there is no such file"):
        hedgerow.plan(job, {"a": "nowhere.csv", "b": people(60, 2)})
    with pytest.raises(hedgerow.FederationError, match=r"nowhere is no search"):
        hedgerow.Search("nowhere")
