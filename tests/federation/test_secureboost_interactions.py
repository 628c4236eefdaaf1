"""Interaction constraints over features of several parties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
from hedgerow.boosting.strategies.secureboost import active, passive
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.passive_tree import PassiveTree
from hedgerow.boosting.strategies.secureboost.steps import CandidateCount, StepName
from hedgerow.boosting.trees.ensemble import Tree
from tests import oracles
from tests.federation import vertical
from tests.federation.memory import Outcome
from tests.federation.test_secureboost_constraints import table
from tests.federation.test_secureboost_models import run

WIDTHS = [2, 2, 2]
NAMES = [f"{party}:{party}_{k}" for party in ("guest", "host-1", "host-2") for k in range(2)]
Groups = tuple[tuple[int, ...], ...]
OVERLAPPING: Groups = ((0, 2), (2, 4, 5), (1, 3))
ONE: Groups = ((0, 4),)
"""Four features are in no group: each is followed by itself alone."""


def named(groups: Groups) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(NAMES[k] for k in group) for group in groups)


def paths(tree: Tree) -> list[set[int]]:
    """Return the features on each path from the root to a leaf."""
    found, todo = [], [(0, frozenset[int]())]
    while todo:
        node, features = todo.pop()
        left = int(tree.left[node])
        if left < 0:
            found.append(set(features))
            continue
        features |= {int(tree.feature[node])}
        todo += [(left, features), (left + 1, features)]
    return found


CASES: dict[str, dict[str, Any]] = {
    "overlapping groups": {"groups": OVERLAPPING},
    "paillier": {"groups": OVERLAPPING, "encryption": "paillier", "rounds": 1},
    "most features in no group": {"groups": ONE},
    "a group of one party": {"groups": ((2, 3), (0, 1, 4, 5))},
    "missing values": {"groups": OVERLAPPING, "missing": 0.2},
    "regression": {"groups": OVERLAPPING, "task": Task.REGRESSION},
    "classes": {"groups": OVERLAPPING, "task": Task.MULTICLASS},
    "loss guided": {
        "groups": ONE, "booster": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    },
    "monotone too": {
        "groups": OVERLAPPING, "increasing": (NAMES[2], NAMES[5]), "decreasing": (NAMES[1],),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_trees_are_xgboosts_on_the_joined_table_under_the_same_constraints(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"rounds": 4, "encryption": "plain", **CASES[case]}
    groups = changes.pop("groups")
    task, missing = changes.pop("task", Task.BINARY), changes.pop("missing", 0.0)
    booster = {"max_depth": 4, "max_bin": 16, "base_score": 0.5, **changes.pop("booster", {})}
    for module in (active, passive):
        monkeypatch.setattr(
            module, "local_cuts", lambda data, max_bin, _: oracles.xgboost_cuts(data, max_bin)
        )
    whole = table(task, missing, n=300)
    job = vertical.job(task, booster, interaction_constraints=named(groups), **changes)
    outcome, _ = run(job, vertical.cut_by_columns(whole, WIDTHS), through_wire=True)
    assert outcome.error is None, (outcome.error, outcome.errors)
    ours = joined(*vertical.parts(outcome.kept))[0].trees
    directions = tuple((n in job.parameters.increasing) - (n in job.parameters.decreasing)
                       for n in NAMES)  # fmt: skip
    native = replace(job.booster, monotone_constraints=directions if any(directions) else ())
    rows = vertical.by_id(whole)
    objective = {
        Task.BINARY: "binary:logistic", Task.REGRESSION: "reg:squarederror",
        Task.MULTICLASS: "multi:softprob",
    }[task]  # fmt: skip

    def theirs(**extra: Any) -> list[Tree]:
        return oracles.xgboost_trees(rows, native, objective, 0.5, changes["rounds"], **extra)

    expected = theirs(interaction_constraints=str([list(group) for group in groups]))
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        assert a.left.tolist() == b.left.tolist()
        assert a.feature[~a.is_leaf].tolist() == b.feature[~b.is_leaf].tolist()
        np.testing.assert_allclose(a.threshold, b.threshold, rtol=2e-4, atol=2e-5)
    sets = [set(group) for group in groups]
    for tree in ours:
        for features in paths(tree):
            assert len(features) < 2 or any(features <= group for group in sets)
    free = [paths(tree) for tree in theirs()]
    assert free != [paths(tree) for tree in expected]


@pytest.mark.parametrize("mode", ["mix", "layered"])
def test_every_mode_keeps_to_the_groups(mode: str) -> None:
    names = [f"{party}:{party}_{k}" for party in ("guest", "host-1") for k in range(3)]
    groups: Groups = ((0, 3), (1, 2, 4))
    job = vertical.job(
        booster={"max_depth": 4} if mode != "layered" else {}, mode=mode, rounds=6,
        encryption="plain",
        interaction_constraints=tuple(tuple(names[k] for k in group) for group in groups),
    )  # fmt: skip
    outcome, _ = run(job, vertical.cut_by_columns(table(missing=0.1), [3, 3]))
    assert outcome.error is None, (outcome.error, outcome.errors)
    for tree in joined(*vertical.parts(outcome.kept))[0].trees:
        for features in paths(tree):
            assert len(features) < 2 or any(features <= set(group) for group in groups)


def trained(groups: tuple[tuple[str, ...], ...] = named(OVERLAPPING)) -> Outcome:
    job = vertical.job(encryption="plain", rounds=1, interaction_constraints=groups)
    return run(job, vertical.cut_by_columns(table(n=80), WIDTHS), through_wire=True)[0]


def test_parties_tell_the_groups_of_their_candidates_to_the_active_party_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hedgerow.boosting.strategies.secureboost.courier import SealedChannel

    seen: dict[str, set[str]] = {}
    honest = SealedChannel.send

    def watching(self: SealedChannel, step: Any, **sent: Any) -> Any:
        for receiver, box in sent.get("boxes", {}).items():
            if isinstance(box, CandidateCount) and box.groups:
                seen.setdefault(self.party, set()).add(receiver)
            if step.name == StepName.BITMAPS.value and receiver != "guest":
                assert not box.picked
                assert not box.features
        return honest(self, step, **sent)

    monkeypatch.setattr(SealedChannel, "send", watching)
    assert trained((NAMES[:2], (NAMES[0], NAMES[4]))).error is None
    assert seen == {"host-2": {"guest"}}


LIES: dict[str, tuple[bytes, str]] = {
    "none": (b"", "expected a bitmap of"),
    "more": (b"\xff" * 99, "expected a bitmap of"),
}


@pytest.mark.parametrize("lie", LIES)
def test_groups_that_cannot_be_are_refused_by_name(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, said = LIES[lie]
    monkeypatch.setattr(PassiveTree, "_groups", lambda tree: sent)
    outcome = trained()
    assert said in str(outcome.error)
    assert "host-1" in str(outcome.error)
    assert any(isinstance(error, OfferRejected) for error in outcome.errors.values())


@pytest.mark.parametrize("groups", [(), ((NAMES[0], NAMES[1]),)])
def test_groups_of_a_party_that_the_job_names_in_none_are_refused(
    groups: tuple[tuple[str, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PassiveTree, "_groups", lambda tree: b"\x01")
    assert "sent groups of its candidates, the job has none of its" in str(trained(groups).error)


REFUSED: dict[str, tuple[tuple[str, ...], ...]] = {
    r"interaction_constraints\[1\]: expected PARTY:COLUMN, received 'age'": (
        ("guest:a", "host-1:b"), ("guest:c", "age"),
    ),
    "'guest:a' is there more than once": (("guest:a", "guest:a"),),
    r"interaction_constraints\[0\]: expected features, received none": ((),),
    "expected one of the silos guest, host-1, received 'shop'": (("guest:a", "shop:b"),),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_groups_that_are_none_are_refused(said: str) -> None:
    job = vertical.job(key_bits=2048, interaction_constraints=REFUSED[said])
    job = replace(job, silos=("guest", "host-1"))
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


def test_a_column_that_is_not_there_is_named_to_its_party_alone() -> None:
    outcome = trained((("guest:guest_0", "host-1:nothing"),))
    assert "nothing" not in str(outcome.error)
    assert isinstance(outcome.errors["host-1"], DataError)  # type: ignore[index]
    assert "feature 'nothing'" in str(outcome.errors["host-1"].__cause__)  # type: ignore[index]
    assert "host-9 is no party of the job" in str(trained((("guest:guest_0", "host-9:x"),)).error)


def test_a_job_file_has_groups_as_lists_of_names() -> None:
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    text = (
        'name = "x"\nstrategy = "secureboost"\nmin_silos = 2\n[secureboost]\nactive = "guest"\n'
        'interaction_constraints = [["guest:a", "host-1:b"], ["host-1:c"]]\n'
    )
    spec = job_file.parse(text)
    found = job_wire.decode(spec).parameters.interaction_constraints  # type: ignore[attr-defined]
    assert found == (("guest:a", "host-1:b"), ("host-1:c",))
    assert job_file.parse(job_file.dump(spec)) == spec
    for wrong in ('"guest:a"', '["guest:a"]', "[[1]]"):
        other = text.replace('[["guest:a", "host-1:b"], ["host-1:c"]]', wrong)
        with pytest.raises(InvalidJob, match=r"secureboost\.interaction_constraints"):
            job_file.parse(other)


def test_a_tree_of_one_feature_is_what_follows_a_feature_of_no_group() -> None:
    job = vertical.job(
        booster={"max_depth": 3}, encryption="plain", rounds=3,
        interaction_constraints=((NAMES[0], NAMES[1]),),
    )  # fmt: skip
    whole: Dataset = table()
    X = whole.X.copy()
    y = (np.abs(X[:, 3]) > 0.6).astype(np.float64)  # two edges of one feature of host-1
    outcome, _ = run(job, vertical.cut_by_columns(replace(whole, y=y), WIDTHS))
    trees = joined(*vertical.parts(outcome.kept))[0].trees
    assert set.union(*paths(trees[0])) == {3}
