"""``hedgerow audit``: what a finished run's model gives away, against limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hedgerow.coordinator.operator.commands.options import FILE, RUN, parse_pairs, silos_option
from hedgerow.services.process.terminal import command, listing, tell

PARTS = {
    "attacks": ("attack", "silo", "rows"),
    "groups": ("column", "group", "rows"),
    "contributions": ("silo", "metric"),
}
"""Part of an audit to the columns before its measures."""


@command()
@click.argument("run", type=RUN)
@silos_option
@click.option(
    "--test", required=True, metavar="FILE", help="Rows with labels that no silo trained on."
)
@click.option(
    "--group", multiple=True, metavar="COLUMN", help="Column of --test whose groups are told apart."
)
@click.option(
    "--limits",
    type=FILE,
    help="TOML file whose [audit] has limits, beside those of the job; exit 1 above one of them.",
)
@click.option("--out", type=FILE, help="Page to write; audit.html in the run folder if not given.")
def audit(
    run: Path,
    silos: tuple[str, ...],
    test: str,
    group: tuple[str, ...],
    limits: Path | None,
    out: Path | None,
) -> None:
    """Tell what the model of RUN gives away, whom it serves, and who made it.

    The tables of all silos serve after `hedgerow local`; elsewhere each silo audits the run with
    its own, as `--silo NAME=FILE`. Nothing leaves this machine, and no row is written.
    The exit code is 1 where a limit does not hold, or its number could not be measured.
    """
    from hedgerow.coordinator.operator.library import audit as audits
    from hedgerow.coordinator.operator.library.audit.limits import read
    from hedgerow.coordinator.operator.library.running import Run

    asked = {} if limits is None else read(limits)
    found = audits.audit(run, parse_pairs(silos, "--silo"), test, group=group, limits=asked)
    page = Run(run).report(out or run / "audit.html")
    tell({**found, "page": str(page)}, lambda: _show(found, page))
    if not found["passed"]:
        sys.exit(1)


def _show(found: dict[str, Any], page: Path) -> None:
    for part, keys in PARTS.items():
        lines = [
            (*(f"{one[key]:,}" if key == "rows" else one[key] for key in keys), name,
             f"{of['value']:.4f}", f"{of['low']:.4f} to {of['high']:.4f}")
            for one in found[part] for name, of in one["measures"].items()
        ]  # fmt: skip
        headings = (*keys, "measure", "value", "95 %")
        if lines:
            listing(headings, lines, keep=headings[1:], right=("rows", "value"))
    notes = [f"{one.get('attack', 'contributions')}: {one['note']}"
             for part in PARTS for one in found[part] if one.get("note")]  # fmt: skip
    for note in dict.fromkeys(notes):
        click.echo(f"not measured: {note}")
    for one in found["limits"]:
        known = "not measured" if one["found"] is None else f"{one['found']:.3f}"
        holds = "holds" if one["passed"] else "does not hold"
        click.echo(f"{one['name']} {one['limit']:g}: {holds}, {known}")
    click.echo(f"{page}: open it in a browser")
