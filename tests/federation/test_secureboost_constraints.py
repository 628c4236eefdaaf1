"""Monotone constraints on features of any party."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.passive_tree import PassiveTree
from hedgerow.boosting.strategies.secureboost.steps import CandidateCount, LeftRows
from tests.federation import vertical
from tests.federation.memory import Outcome
from tests.federation.test_secureboost_models import run

WIDTHS = [2, 2, 2]
DIRECTIONS = (0, -1, 1, 0, -1, 1)
UP = ("host-1:host-1_0", "host-2:host-2_1")
DOWN = ("guest:guest_1", "host-2:host-2_0")


def table(task: Task = Task.BINARY, missing: float = 0.0, n: int = 220) -> Dataset:
    """Return a table whose label does not follow the constraints by itself."""
    whole = vertical.table(n, 6, task, missing=missing)
    rng = np.random.default_rng(11)
    X = np.nan_to_num(whole.X)
    score = X[:, 0] + np.sin(3 * X[:, 2]) + X[:, 4] - X[:, 1] * X[:, 5] + 0.3 * rng.normal(size=n)
    if task is Task.REGRESSION:
        return replace(whole, y=score.astype(np.float64))
    if task is Task.MULTICLASS:
        return replace(whole, y=np.digitize(score, [-0.7, 0.7]).astype(np.float64))
    return replace(whole, y=(score > 0).astype(np.float64))


CASES: dict[str, dict[str, Any]] = {
    "paillier": {},
    "elgamal": {"encryption": "elgamal", "fraction_bits": 26},
    "missing values": {"missing": 0.2, "encryption": "plain"},
    "regression": {"task": Task.REGRESSION, "encryption": "plain"},
    "classes": {"task": Task.MULTICLASS, "encryption": "plain"},
    "loss guided": {
        "booster": {"grow_policy": "lossguide", "max_leaves": 7}, "encryption": "plain",
    },
    "regularised": {
        "booster": {"alpha": 0.2, "gamma": 0.1, "max_delta_step": 0.7}, "encryption": "plain",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_trees_are_those_of_the_joined_table_under_the_same_constraints(case: str) -> None:
    changes = dict(CASES[case])
    task, missing = changes.pop("task", Task.BINARY), changes.pop("missing", 0.0)
    booster = {"max_depth": 4, **changes.pop("booster", {})}
    whole = table(task, missing)
    job = vertical.job(task, booster, rounds=3, increasing=UP, decreasing=DOWN, **changes)
    outcome, memories = run(job, vertical.cut_by_columns(whole, WIDTHS), through_wire=True)
    assert outcome.error is None, (outcome.error, outcome.errors)
    bound = replace(job, booster=replace(job.booster, monotone_constraints=DIRECTIONS))
    ensemble = vertical.pooled(bound, whole, 3)
    active, passive = vertical.parts(outcome.kept)
    assert vertical.joined(active, passive, WIDTHS) == vertical.divisions(ensemble)
    assert {o for tree in active.trees for o in tree.owner} >= {-1, 0, 1}
    rows = vertical.by_id(whole)
    expected = ensemble.margins(xgb.DMatrix(rows.X)).reshape(-1, whole.schema.n_outputs)
    got = vertical.margins(memories["guest"], 2, whole.schema.n_outputs)
    assert np.abs(got - expected).max() < 1e-6
    assert vertical.divisions(ensemble) != vertical.divisions(vertical.pooled(job, whole, 3))


@pytest.mark.parametrize("mode", ["standard", "mix", "layered"])
def test_predictions_follow_the_constraints(mode: str) -> None:
    widths, names = [3, 3], ("guest:guest_2", "host-1:host-1_2")
    whole = table(missing=0.1)
    job = vertical.job(
        booster={"max_depth": 4} if mode != "layered" else {}, mode=mode, rounds=6,
        encryption="plain", increasing=names, min_leaf=3,
    )  # fmt: skip
    outcome, _ = run(job, vertical.cut_by_columns(whole, widths))
    assert outcome.error is None, (outcome.error, outcome.errors)
    booster = joined(*vertical.parts(outcome.kept))[0].booster(n_threads=1)
    booster.feature_names = None
    for column in (2, 5):
        steps = []
        for value in np.linspace(-3, 3, 25):
            X = whole.X.copy()
            X[:, column] = value
            steps.append(booster.predict(xgb.DMatrix(X), output_margin=True))
        assert (np.diff(np.stack(steps), axis=0) >= -1e-6).all()


def trained(**changes: Any) -> Outcome:
    job = vertical.job(encryption="plain", rounds=1, **{"increasing": UP, **changes})
    return run(job, vertical.cut_by_columns(table(n=80), WIDTHS))[0]


def test_what_a_party_says_of_constraints_that_the_job_has_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PassiveTree, "_sides_bound", lambda tree: (b"", b"\x01"))
    outcome = trained(increasing=("guest:guest_0",))
    assert any(isinstance(error, OfferRejected) for error in outcome.errors.values())
    assert "sent monotone constraints, the job has none of its features" in str(outcome.error)


LIES: dict[str, tuple[Any, str]] = {
    "too few bits": (lambda b: (b[0][:-1], b[1]), "expected a bitmap of"),
    "no constraints": (lambda b: (b"", b""), "expected a bitmap of"),
    "both ways": (lambda b: (b"\xff" * len(b[0]), b"\xff" * len(b[0])), "is bound both ways"),
}


@pytest.mark.parametrize("lie", LIES)
def test_constraints_that_cannot_be_are_refused_by_name(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = LIES[lie]
    honest = PassiveTree._sides_bound
    monkeypatch.setattr(PassiveTree, "_sides_bound", lambda tree: change(honest(tree)))
    outcome = trained()
    assert said in str(outcome.error)
    assert "host-1" in str(outcome.error)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda picked: (), "expected which candidates it took"),
        (lambda picked: (*picked, 0), "expected which candidates it took"),
        (lambda picked: (99,) * len(picked), "took a candidate that is none of those that tie"),
    ],
)
def test_a_party_that_does_not_say_which_candidate_it_took_is_refused(
    change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PassiveTree._left_rows

    def lying(*given: Any) -> dict[str, LeftRows]:
        boxes = honest(*given)
        return {p: replace(box, picked=change(box.picked)) for p, box in boxes.items()}

    monkeypatch.setattr(PassiveTree, "_left_rows", lying)
    assert said in str(trained().error)


def test_parties_learn_of_constraints_only_where_they_have_some() -> None:
    seen: list[CandidateCount] = []
    outcome = trained(increasing=("host-2:host-2_0",))
    assert outcome.error is None
    honest = PassiveTree._sides_bound

    def watching(tree: PassiveTree) -> tuple[bytes, ...]:
        found = honest(tree)
        seen.append(CandidateCount(0, *found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassiveTree, "_sides_bound", watching)
        trained(increasing=("host-2:host-2_0",))
    assert sorted(bool(c.no_more or c.no_less) for c in seen) == [False, True]


REFUSED: dict[str, dict[str, Any]] = {
    "expected PARTY:COLUMN, received 'age'": {"increasing": ("age",)},
    "'guest:a' is there more than once": {"increasing": ("guest:a",), "decreasing": ("guest:a",)},
}


@pytest.mark.parametrize("said", REFUSED)
def test_constraints_that_are_none_are_refused(said: str) -> None:
    job = vertical.job(key_bits=2048, **REFUSED[said])
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


def test_constraints_and_trees_with_several_outputs_are_refused_together() -> None:
    job = vertical.job(Task.MULTICLASS, key_bits=2048, multi_output=True, increasing=("guest:a",))
    with pytest.raises(InvalidJob, match="trees with several outputs"):
        job.parameters.validate(job)
    silos = replace(vertical.job(key_bits=2048, increasing=("shop:a",)), silos=("guest", "host-1"))
    with pytest.raises(
        InvalidJob, match="expected one of the silos guest, host-1, received 'shop'"
    ):
        silos.parameters.validate(silos)


def test_a_column_that_is_not_there_is_named_to_its_party_alone() -> None:
    outcome = trained(increasing=("host-1:nothing",))
    assert "nothing" not in str(outcome.error)
    assert isinstance(outcome.errors["host-1"], DataError)  # type: ignore[index]
    assert "feature 'nothing'" in str(outcome.errors["host-1"].__cause__)  # type: ignore[index]
    assert "host-9 is no party of the job" in str(trained(increasing=("host-9:x",)).error)
