"""The closing lines of a job."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from hedgerow.coordinator.operator.console.seen import example_view, run_of
from hedgerow.coordinator.operator.progress import JobProgress, paragraphs, score, summary
from hedgerow.coordinator.operator.report.overview import overview
from hedgerow.services.wire.job_view import JobState


def report(strategy: str, n_rounds: int, **scores: float | None) -> dict[str, Any]:
    first = 0 if strategy == "fedxgbllr" else 1
    rounds = [{"round": k + first, "metrics": {"test": scores}} for k in range(n_rounds)]
    moved = {"up": 10, "down": 20, "control": {"up": 1, "down": 2}}
    about = {"strategy": strategy, "state": "SUCCEEDED", "seconds": 1.0, "best_round": 1 + first}
    return {**about, "rounds": rounds, "bytes": moved, "silos": []}


@pytest.mark.parametrize(
    ("auc", "warns"), [(0.5, True), (0.37, True), (0.51, False), (None, False)]
)
def test_an_auc_no_better_than_chance_is_a_warning(auc: float | None, warns: bool) -> None:
    lines = list(summary(report("bagging", 2, auc=auc, logloss=0.5)))
    assert any("no better than chance" in line for line in lines) is warns


def test_metrics_have_digits_at_every_scale() -> None:
    scores = (0.5, 0.0, 1.06e-6, -2.5e-4, 1.234567e17, math.inf)
    shown = ["0.50000", "0.00000", "1.06e-06", "-0.00025", "1.2346e+17", "inf"]
    assert list(map(score, scores)) == shown


def test_common_rows_and_warnings_are_said() -> None:
    alignment = {"common": 20, "rows": {"bank": 2000, "shop": 20}}
    told = report("bagging", 1, auc=0.9) | {"alignment": alignment, "warnings": ["a\x1b[2J"]}
    lines = list(summary(told))
    assert lines[1] == "20 rows are common to all parties; rows: bank 2,000, shop 20"
    assert lines[2] == "warning: a\\x1b[2J"


def test_rounds_are_counted_as_the_job_names_them() -> None:
    for strategy, n_rounds, best in (("bagging", 3, "round 2,"), ("fedxgbllr", 2, "round 1,")):
        lines = list(summary(report(strategy, 3, auc=0.9)))
        assert lines[0].startswith(f"succeeded: {n_rounds} rounds")
        assert lines[1].startswith(best)


def test_a_bar_has_no_number_of_rounds_before_the_job_is_known() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with JobProgress(console):
        pass
    assert "waiting for silos" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "None" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_statements_paragraphs_are_its_sentences_and_not_its_lines() -> None:
    told = "To all: the number\nof rows; sums\nof losses. To silos: trees.\nNothing else.\n"
    assert paragraphs(told) == [
        "To all: the number of rows; sums of losses.", "To silos: trees.", "Nothing else.",
    ]  # fmt: skip


def test_silos_that_did_not_take_part_are_named_with_the_reason() -> None:
    silos = [
        {"name": "north", "state": "present", "detail": ""},
        {"name": "south", "state": "declined", "detail": "south.csv: there is no such file"},
        {"name": "west", "state": "present", "detail": "has no rows"},
    ]
    assert list(summary({**report("bagging", 2, auc=0.9), "silos": silos}))[-2:] == [
        "without silo south, declined: south.csv: there is no such file",
        "silo west has no rows",
    ]


def test_a_job_that_runs_has_taken_the_time_since_it_was_submitted() -> None:
    running = replace(example_view(), state=JobState.RUNNING, create_time=1000.0, end_time=None)
    for view, now, took in ((running, 1007.5, "7.5"), (example_view(), 1007.5, "1.0")):
        rows = dict(overview([run_of(view, None, now)])["rows"])
        assert rows["seconds"][0].text == took
