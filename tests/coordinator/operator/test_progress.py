"""The closing lines of a job."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.coordinator.operator.progress import summary


def report(strategy: str, n_rounds: int, **scores: float | None) -> dict[str, Any]:
    rounds = [{"round": k, "metrics": {"test": scores}} for k in range(n_rounds)]
    moved = {"up": 10, "down": 20, "control": {"up": 1, "down": 2}}
    about = {"strategy": strategy, "state": "SUCCEEDED", "seconds": 1.0, "best_round": 1}
    return {**about, "rounds": rounds, "bytes": moved}


@pytest.mark.parametrize(
    ("auc", "warns"), [(0.5, True), (0.37, True), (0.51, False), (None, False)]
)
def test_an_auc_no_better_than_chance_is_a_warning(auc: float | None, warns: bool) -> None:
    lines = list(summary(report("bagging", 2, auc=auc, logloss=0.5)))
    assert any("no better than chance" in line for line in lines) is warns


def test_rounds_are_counted_as_the_job_names_them() -> None:
    for strategy, n_rounds, best in (("bagging", 3, "round 2,"), ("fedxgbllr", 2, "round 1,")):
        lines = list(summary(report(strategy, 3, auc=0.9)))
        assert lines[0].startswith(f"succeeded: {n_rounds} rounds")
        assert lines[1].startswith(best)
