"""What silos answer to a preflight, for people and for programs."""

from __future__ import annotations

from typing import Any

import click

from hedgerow.services.process.terminal import aligned
from hedgerow.services.wire.job_view import (
    CHECKS,
    CheckState,
    PreflightState,
    PreflightView,
    SiloPreflight,
)

MARKS = {CheckState.PASSED: "ok", CheckState.FAILED: "NO", CheckState.OMITTED: "-"}
UNANSWERED = {
    PreflightState.AWAY: "no agent of it is there",
    PreflightState.SILENT: "its agent did not answer, or is older than preflights",
}


def remarks(one: SiloPreflight) -> list[str]:
    """Return why a silo could not take part now; nothing where it could."""
    failed = [c.detail for c in one.checks if c.state is CheckState.FAILED]
    return [UNANSWERED[one.state]] if one.state in UNANSWERED else failed


def show_preflight(found: PreflightView, *, err: bool = False) -> None:
    """Print a table of silos and checks, and why the job could not run; ``err``: as a remark."""
    rows = []
    for one in found.silos:
        marks = {check.name: MARKS[check.state] for check in one.checks}
        cells = [marks.get(name, "?") for name in CHECKS]
        rows.append((one.silo, *cells, "; ".join(remarks(one))))
    for line in aligned(("silo", *CHECKS, "why not"), rows):
        click.echo(line, err=err)
    if found.refusal:
        click.echo(found.refusal, err=err)


def answers(found: PreflightView) -> dict[str, Any]:
    """Return the same for JSON."""
    return {
        "preflight": [
            {
                "silo": one.silo,
                "state": one.state.value,
                "checks": {check.name: check.state.value for check in one.checks},
                "why": remarks(one),
            }
            for one in found.silos
        ],
        "refusal": found.refusal,
    }
