"""``hedgerow audit``: what a finished run's model gives away, against limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hedgerow.coordinator.operator.commands.options import FILE, RUN, parse_pairs, silos_option
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("run", type=RUN)
@silos_option
@click.option(
    "--test", required=True, metavar="FILE", help="Rows with labels that no silo trained on."
)
@click.option(
    "--limits", type=FILE, help="TOML file whose [audit] has limits; exit 1 above one of them."
)
@click.option("--out", type=FILE, help="Page to write; audit.html in the run folder if not given.")
def audit(
    run: Path, silos: tuple[str, ...], test: str, limits: Path | None, out: Path | None
) -> None:
    """Tell what the model of RUN gives away of its silos' rows; write audit.json and a page.

    The tables of all silos serve after `hedgerow local`; elsewhere each silo audits the run with
    its own, as `--silo NAME=FILE`. Nothing leaves this machine, and what is written has no row.
    The exit code is 1 where a limit does not hold, or its number could not be measured.
    """
    from hedgerow.coordinator.operator.library import audit as audits
    from hedgerow.coordinator.operator.library.audit.limits import read
    from hedgerow.coordinator.operator.library.running import Run

    asked = {} if limits is None else read(limits)
    found = audits.audit(run, parse_pairs(silos, "--silo"), test, limits=asked)
    page = Run(run).report(out or run / "audit.html")
    tell({**found, "page": str(page)}, lambda: _show(found, page))
    if not found["passed"]:
        sys.exit(1)


def _show(found: dict[str, Any], page: Path) -> None:
    measured = [one for one in found["attacks"] if one["measures"]]
    lines = [
        (one["attack"], one["silo"], f"{one['rows']:,}", name, f"{of['value']:.3f}",
         f"{of['low']:.3f} to {of['high']:.3f}")
        for one in measured for name, of in one["measures"].items()
    ]  # fmt: skip
    headings = ("attack", "silo", "rows", "measure", "value", "95 %")
    listing(headings, lines, keep=headings[2:], right=("rows", "value"))
    for note in dict.fromkeys(f"{o['attack']}: {o['note']}" for o in found["attacks"] if o["note"]):
        click.echo(f"not measured: {note}")
    for one in found["limits"]:
        known = "not measured" if one["found"] is None else f"{one['found']:.3f}"
        holds = "holds" if one["passed"] else "does not hold"
        click.echo(f"{one['name']} {one['limit']:g}: {holds}, {known}")
    click.echo(f"{page}: open it in a browser")
