"""The rules of a tree's roots, of accepted jobs and of approvals, on the code and without each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.claims import jobs
from tests.claims.changed import Change
from tests.claims.test_rules import take_out

Play = Callable[[Path], set[str]]
Rules = Mapping[str, tuple[Change, ...]]
PLAYS: tuple[tuple[Play, Rules], ...] = (
    (lambda folder: jobs.broken_roots(), jobs.ROOTS),
    (jobs.broken_jobs, jobs.JOBS),
    (jobs.broken_approvals, jobs.APPROVALS),
)
RULES = [(play, rule, changes) for play, rules in PLAYS for rule, changes in rules.items()]


@pytest.mark.parametrize("play", [play for play, _ in PLAYS], ids=("roots", "jobs", "approvals"))
def test_the_code_keeps_the_rules(play: Play, tmp_path: Path) -> None:
    assert play(tmp_path) == set()


@pytest.mark.parametrize(
    ("play", "rule", "changes"), RULES, ids=[rule.replace(" ", "-") for _, rule, _ in RULES]
)
def test_code_without_a_rule_is_noticed(
    play: Play,
    rule: str,
    changes: tuple[Change, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for change in changes:
        take_out(change, monkeypatch)
    assert rule in play(tmp_path)
