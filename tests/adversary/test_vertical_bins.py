"""What an active party learns of few rows by comparing the divisions of a whole job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.strategies.secureboost.active_tree import ActiveTree
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.passive_tree import PassiveTree
from hedgerow.boosting.strategies.secureboost.steps import (
    SPLITS,
    LevelDivisions,
    NodeDivision,
    StepName,
)
from hedgerow.client_agent.policy import Policy
from tests.adversary.test_vertical import refused, run, with_limits
from tests.federation import vertical
from tests.federation.memory import run_in_memory


@pytest.mark.parametrize("subsample", [1.0, 0.7])
@pytest.mark.parametrize("least", [1, 5])
def test_no_divisions_of_a_column_in_a_whole_job_tell_few_rows_apart(
    least: int, subsample: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a party divides by, at any node of any tree of two attempts, and compares."""
    found: dict[int, set[bytes]] = {}
    honest = PassiveTree.divide

    def looked_at(self: PassiveTree) -> StepName:
        table, binned = self._table, self._binned
        for allowed in self._allowed.values():
            for d in np.flatnonzero(allowed):
                j = int(table.feature[d])
                left = table.bins_left(int(d), int(binned.n_bins[j]))[binned.by_feature[j]]
                found.setdefault(j, set()).add(left.tobytes())
        return honest(self)

    monkeypatch.setattr(PassiveTree, "divide", looked_at)
    whole = vertical.table(150, 5, missing=0.02)
    X, rng = whole.X.copy(), np.random.default_rng(0)
    for j in (2, 4):  # half of the rows have one category, a few have a row or two
        X[:, j] = np.where(np.isnan(X[:, j]), np.nan, np.minimum(rng.geometric(0.5, 150), 9))
    parties = vertical.cut_by_columns(
        vertical.coded(replace(whole, features=X), {2: 10, 4: 11}), (2, 3)
    )
    booster = {"max_depth": 3, "min_child_weight": 0, "max_bin": 16, "subsample": subsample}
    job = vertical.job(booster=booster, categories="sets", encryption="plain", rounds=5)
    memories: dict[str, dict[str, bytes]] = {name: {} for name in parties}
    for _ in range(2):
        outcome = run_in_memory(
            job, parties, schema=parties["guest"].schema, vaults=vertical.vaults(),
            participate_as=with_limits(least_bin_rows=least), memories=memories,
        )  # fmt: skip
        assert outcome.error is None, outcome.error
    assert set(found) == {0, 1, 2}
    apart = []
    for own in found.values():
        rows = np.stack([np.frombuffer(left, np.bool_) for left in own], axis=1)
        apart.append(int(np.unique(rows, axis=0, return_counts=True)[1].min()))
    assert min(apart) >= least, apart
    assert least > 1 or min(apart) < 5, "without the rule some are told apart"


@pytest.mark.parametrize(
    ("limits", "changes"), [({"least_bin_rows": 20}, {}), ({}, {"min_leaf": 20})]
)
def test_a_division_that_leaves_too_few_rows_is_refused(
    limits: dict[str, int], changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active party names a candidate that it was told is none."""
    trees: list[PassiveTree] = []
    answer, honest = PassiveTree.answer, SealedChannel.send

    def seen(self: PassiveTree) -> StepName:
        trees.append(self)
        return answer(self)

    def lying(self: SealedChannel, step: Any, **sent: Any) -> Any:
        if self.party == "guest" and step is SPLITS:
            (tree,) = trees
            k = int(np.flatnonzero(~tree._allowed[0][tree._order])[0])
            division = NodeDivision(0, 1, (k,))
            sent = {"boxes": {"host-1": LevelDivisions((division,), b"")}, "then": StepName.BITMAPS}
        return honest(self, step, **sent)

    monkeypatch.setattr(PassiveTree, "answer", seen)
    monkeypatch.setattr(SealedChannel, "send", lying)
    job = vertical.job(encryption="plain", **changes)
    outcome = run(job=job, participate_as=with_limits(**limits))
    refused(outcome, "guest chose candidates that host-1 did not allow at the node")


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.BINARY])
def test_two_honest_jobs_around_one_id_tell_its_sides(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left: a merely curious active party leaves out one of its ids in the second job."""
    heard: list[tuple[Any, Any]] = []
    honest = ActiveTree._answer

    def answer(self: ActiveTree, *given: Any) -> Any:
        found = honest(self, *given)
        heard.append((found[0], self._gradients.searched.copy()))
        return found

    monkeypatch.setattr(ActiveTree, "_answer", answer)
    parties = vertical.cut_by_columns(vertical.table(200, 6, task), (2, 4))
    booster = {"max_depth": 1, "max_bin": 16, "base_score": 0.5}
    job = vertical.job(task, booster, encryption="plain", rounds=1)

    def root(guest: Dataset) -> tuple[Any, Any]:
        heard.clear()
        outcome = run_in_memory(
            job, {**parties, "guest": guest}, schema=guest.schema, vaults=vertical.vaults(),
            participate_as=with_limits(least_bin_rows=Policy().min_bin_rows),
        )  # fmt: skip
        assert outcome.error is None, outcome.error
        return heard[0]

    guest = parties["guest"]
    sums, gradients = root(guest)
    told = []
    for gone in (3, 77):
        later, kept = root(guest.take(np.delete(np.arange(200), gone)))
        own = gradients.sum(axis=0) - kept.sum(axis=0)
        known = {tuple(one) for one in later.tolist()}
        right = np.array([tuple(one) in known for one in sums.tolist()])
        left = np.array([tuple(one) in known for one in (sums - own).tolist()])
        told.append(float(np.mean(right ^ left)))
    assert 0.5 < np.mean(told) < 0.95, told
