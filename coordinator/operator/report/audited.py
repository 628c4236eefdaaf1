"""What ``hedgerow audit`` found of a run, as tables of its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hedgerow.coordinator.operator.report.drawing import (
    Columns,
    Figure,
    Row,
    of_number,
    of_text,
)
from hedgerow.coordinator.operator.report.runs import FinishedRun

_BETWEEN: Columns = [(key, of_number(key, ".3f")) for key in ("value", "low", "high")]
_PARTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "attacks": (
        "Attacks",
        "With 95 % intervals. A random guess has an AUC of 0.5 and catches 0.01 of the members "
        "at 1 % false alarms; what a model of one silo alone gives away stands beside it.",
        ("attack", "silo", "rows"),
    ),
    "groups": (
        "Groups",
        "How the model does on the test rows of each group, with 95 % intervals.",
        ("column", "group", "rows"),
    ),
    "contributions": (
        "Contributions",
        "What each silo's trees add to the score on the test rows, and by how much they lower the "
        "loss over the training rows of all silos; positive is better.",
        ("silo", "metric"),
    ),
}
"""Part of an audit to title, lead and columns."""
_LIMITS: Columns = [
    *((key, of_text(key)) for key in ("run", "name")), ("limit", of_number("limit", "g")),
    ("found", of_number("found", ".3f")), ("holds", of_text("holds")),
]  # fmt: skip


def audited(runs: Sequence[FinishedRun]) -> list[Figure]:
    """Return the tables of the runs' audits, where they have one."""
    found: list[Figure] = []
    limits = [
        {**one, "run": run.label, "holds": "yes" if one["passed"] else "no"}
        for run in runs
        for one in (run.audit.limits if run.audit else ())
    ]
    if limits:
        lead = "A number that could not be measured does not hold."
        found.append(Figure.of("audit-limits", "Limits", lead, None, _LIMITS, limits))
    for part, (title, lead, keys) in _PARTS.items():
        rows = _measured(runs, part)
        known = [(key, of_number(key, ",d") if key == "rows" else of_text(key)) for key in keys]
        columns = [("run", of_text("run")), *known, ("measure", of_text("measure")), *_BETWEEN]
        if rows:
            found.append(Figure.of(f"audit-{part}", title, lead, None, columns, rows))
    return found


def _measured(runs: Sequence[FinishedRun], part: str) -> list[Row]:
    """Return a row for each measure of a part of the audits."""
    every: list[tuple[str, dict[str, Any]]] = [
        (run.label, one) for run in runs for one in (getattr(run.audit, part) if run.audit else ())
    ]
    return [
        {**one, "run": label, "measure": name, **of}
        for label, one in every
        for name, of in one["measures"].items()
    ]
