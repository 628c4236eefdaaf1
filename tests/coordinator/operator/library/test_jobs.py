"""Jobs in Python: the job file's schema, checks and words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.errors import InvalidJob, SchemaMismatch
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
