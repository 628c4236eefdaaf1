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


def _silos(command: Any) -> Any:
    return silos_option(command, required=False)


@command()
@click.argument("run", type=RUN)
@_silos
@click.option("--test", metavar="FILE", help="Rows with labels that no silo trained on.")
@click.option(
    "--group",
    multiple=True,
    metavar="COLUMN",
    help="Column of --test whose groups are told apart; with --to-explore COLUMN=A,B names them.",
)
@click.option(
    "--to-explore",
    type=FILE,
    help="Table of --test's predictions by group to write, .parquet or .csv, for an explore job "
    "over all silos; nothing else is done.",
)
@click.option(
    "--explored", type=RUN, help="Run of that explore job: groups are of all silos' rows."
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
    test: str | None,
    group: tuple[str, ...],
    to_explore: Path | None,
    explored: Path | None,
    limits: Path | None,
    out: Path | None,
) -> None:
    """Tell what the model of RUN gives away, whom it serves, and who made it.

    The tables of all silos serve after `hedgerow local`; elsewhere each silo audits the run with
    its own, as `--silo NAME=FILE`. Nothing leaves this machine, and no row is written.
    Groups of all silos' rows are counted under secure sums by an explore job: each silo makes its
    table with --to-explore, and --explored reads what the job has told.
    The exit code is 1 where a limit does not hold, or its number could not be measured.
    """
    from hedgerow.coordinator.operator.library import audit as audits
    from hedgerow.coordinator.operator.library.audit.limits import read
    from hedgerow.coordinator.operator.library.running import Run

    if to_explore is not None:
        if test is None or not group or silos or explored or limits or out:
            raise click.UsageError("--to-explore: expected --test and --group with it, no other")
        _write(run, test, group, to_explore)
        return
    if explored is None and (test is None or not silos):
        raise click.UsageError("expected --silo NAME=FILE and --test FILE, or --explored RUN")
    asked = {} if limits is None else read(limits)
    found = audits.audit(
        run, parse_pairs(silos, "--silo"), test, group=group, explored=explored, limits=asked
    )
    page = Run(run).report(out or run / "audit.html")
    tell({**found, "page": str(page)}, lambda: _show(found, page))
    if not found["passed"]:
        sys.exit(1)


def _write(run: Path, test: str, group: tuple[str, ...], out: Path) -> None:
    """Write a silo's table for an explore job."""
    from hedgerow.coordinator.operator.commands.predict import encoded
    from hedgerow.coordinator.operator.library.audit.explored import group_table
    from hedgerow.crypto.durable import write_atomically

    table = group_table(run, test, group)
    write_atomically(out, encoded(table, out), mode=0o600)
    tell({"file": str(out), "rows": table.num_rows}, f"{out}: {table.num_rows:,} rows")


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
    notes = [f"{one.get('attack') or one.get('group', 'contributions')}: {one['note']}"
             for part in PARTS for one in found[part] if one.get("note")]  # fmt: skip
    for note in dict.fromkeys(notes):
        click.echo(f"not measured: {note}")
    for one in found["limits"]:
        known = "not measured" if one["found"] is None else f"{one['found']:.3f}"
        holds = "holds" if one["passed"] else "does not hold"
        click.echo(f"{one['name']} {one['limit']:g}: {holds}, {known}")
    click.echo(f"{page}: open it in a browser")
