"""Lies in every field of a strategy that is a package of its own."""

from __future__ import annotations

import pytest

from hedgerow.boosting.dataset import Task
from tests import plugin
from tests.adversary import arena, mutate, oracle

NAME = "forest"


def test_lies_in_all_fields_of_a_package_end_with_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = plugin.installed().RandomForest(rounds=2, trees=2)
    made = arena._horizontal(parameters, Task.BINARY)
    monkeypatch.setitem(arena.VARIANTS, NAME, lambda: made)
    faults, results, pairs = [], set(), set()
    # Its silos say trees of their own rows in clear, and no sums: nothing hides whose they are.
    monkeypatch.setattr(mutate, "paired", lambda name: False)
    with oracle.watching():
        for number in range(160):
            case = mutate.case_of((NAME,), 0, number)
            verdict = mutate.judge(case)
            faults += [f"{case}: {fault}" for fault in verdict.faults]
            results.add(verdict.result)
            pairs.add(case.target.pair)
    assert not faults, "\n".join(faults)
    assert {"hedgerow.extension.GrownTrees.trees", "hedgerow.extension.ForestRound.grown"} <= pairs
    assert "hedgerow.extension.ForestRound.WeightedTrees.factor" in pairs
    assert len(results) > 2, results
