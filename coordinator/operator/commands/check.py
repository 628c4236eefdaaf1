"""``hedgerow check``: a table before its first job."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, csv_dialect
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("data")
@click.option("--label", required=True, help="Column that is predicted.")
@click.option(
    "--out", type=FILE, default=Path("job.toml"), show_default=True,
    help="Job file to write; one that is there is kept.",
)  # fmt: skip
@csv_dialect
def check(data: str, label: str, out: Path, delimiter: str, decimal: str) -> None:
    """Tell what each column of DATA is, what a job makes of it, and what is unusual.

    Writes a job file to start from. Nothing leaves this machine; the output quotes values.
    """
    from hedgerow.boosting.tables import read_table, short_name
    from hedgerow.boosting.tables.delimited import Dialect
    from hedgerow.coordinator.operator import checking

    table = read_table(data, dialect=Dialect(delimiter, decimal))
    columns, task = checking.facts_of(table, label)
    kept = out.exists()
    if not kept:
        name = short_name(data).partition(".")[0]
        out.write_text(checking.job_file(name, table, label, task, columns), encoding="utf-8")

    def show() -> None:
        listing(
            ("column", "type", "gaps", "distinct", "range", "use"),
            ((c.name, c.type, f"{c.gaps:,}", f"{c.distinct:,}", c.range, c.use) for c in columns),
            title=f"{short_name(data)}: {table.num_rows:,} rows, {task.value} on {label}",
            right=("gaps", "distinct"),
        )
        for c in columns:
            for warning in c.warnings:
                click.echo(f"{c.name}: {warning}")
        click.echo(f"{out} is there already: kept" if kept else f"{out}: a job to start from")

    found = {"rows": table.num_rows, "label": label, "task": task.value}
    tell({**found, "columns": [asdict(column) for column in columns]}, show)
