"""``hedgerow check``: a table before its first job."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hedgerow.coordinator.operator.commands import refusing
from hedgerow.coordinator.operator.commands.options import csv_dialect


@click.command()
@click.argument("data")
@click.option("--label", required=True, help="Column that is predicted.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("job.toml"),
    show_default=True,
    help="Job file to write; one that is there is kept.",
)
@csv_dialect
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(data: str, label: str, out: Path, delimiter: str, decimal: str, as_json: bool) -> None:
    """Tell what each column of DATA is, what a job makes of it, and what is unusual.

    Writes a job file to start from. Nothing leaves this machine; the output quotes values.
    """
    from hedgerow.boosting.delimited import Dialect
    from hedgerow.boosting.tables import read_table, short_name
    from hedgerow.coordinator.operator import checking

    with refusing():
        table = read_table(data, dialect=Dialect(delimiter, decimal))
        columns, task = checking.facts_of(table, label)
        kept = out.exists()
        if not kept:
            name = short_name(data).partition(".")[0]
            out.write_text(checking.job_file(name, label, task, columns), encoding="utf-8")
    if as_json:
        found = {"rows": table.num_rows, "label": label, "task": task.value}
        click.echo(json.dumps({**found, "columns": [asdict(column) for column in columns]}))
        return
    heading = f"{short_name(data)}: {table.num_rows:,} rows, {task.value} on {label}"
    shown = Table(title=heading, title_justify="left")
    for title in ("column", "type", "gaps", "distinct", "range", "use"):
        right = title in ("gaps", "distinct")
        shown.add_column(title, justify="right" if right else "left", overflow="fold")
    for c in columns:
        cells = (c.name, c.type, f"{c.gaps:,}", f"{c.distinct:,}", c.range, c.use)
        shown.add_row(*map(escape, cells))
    console = Console()
    console.print(shown)
    for c in columns:
        for warning in c.warnings:
            console.print(f"{c.name}: {warning}", markup=False, soft_wrap=True)
    click.echo(f"{out} is there already: kept" if kept else f"{out}: a job to start from")
