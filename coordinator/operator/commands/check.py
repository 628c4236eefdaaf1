"""``hedgerow check``: a table before its first job."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, csv_dialect
from hedgerow.services.process.terminal import command, listing, tell

_LONGEST_NAME = 40
"""Characters of a column's name in the table."""


@command()
@click.argument("data")
@click.option("--label", help="Column that is predicted; a party of a vertical job may have none.")
@click.option("--vertical", is_flag=True, help="The table of one party of a vertical job.")
@click.option("--private", is_flag=True,
              help="A job under differential privacy, with ranges by columns' names.")  # fmt: skip
@click.option("--id", "id_column", default="_id", show_default=True,
              help="Column that names the rows of a vertical party.")  # fmt: skip
@click.option(
    "--out", type=FILE, default=Path("job.toml"), show_default=True,
    help="Job file to write; one that is there is kept.",
)  # fmt: skip
@csv_dialect
def check(
    data: str,
    label: str | None,
    vertical: bool,
    private: bool,
    id_column: str,
    out: Path,
) -> None:
    """Tell what each column of DATA is, what a job makes of it, and what is unusual.

    Writes a job file to start from. Nothing leaves this machine; the output quotes values. With
    --vertical it says how well a column names the rows, and writes no job file. With --private the
    job has ranges that names and types of columns tell, and blanks for the others.
    """
    from hedgerow.boosting.tables import is_csv, read_table, short_name
    from hedgerow.boosting.tables.delimited import Dialect
    from hedgerow.coordinator.operator import checking
    from hedgerow.services.process.texts import one_line, told_apart

    if not label and not vertical:
        raise click.UsageError("Missing option '--label'.")
    if private and vertical:
        raise click.UsageError("--private is of horizontal jobs: give it without --vertical")
    table = read_table(data, dialect=Dialect(id_column=id_column))
    columns, task = checking.facts_of(
        table, label or "", id_column if vertical else "", short_name(data)
    )
    if is_csv(data):
        texts = Dialect(id_column=id_column, as_text=True)
        checking.warn_of_codes(columns, read_table(data, dialect=texts))
    named = checking.identifiers(table, id_column) if vertical else []
    domain = checking.private_domain(table.schema, label or "", task) if private else None
    about = f"{task.value} on {label}" if label else "no label"
    kept = out.exists()
    if label and not kept and not vertical:
        name = short_name(data).partition(".")[0]
        text = (
            checking.job_file(name, table, label, task, columns)
            if domain is None
            else checking.private_job_file(name, label, task, domain)
        )
        out.write_text(text, encoding="utf-8")

    def show() -> None:
        short = told_apart([one_line(c.name) for c in columns], _LONGEST_NAME)
        listing(
            ("column", "type", "gaps", "distinct", "range", "use"),
            (
                (short[one_line(c.name)], c.type, f"{c.gaps:,}", f"{c.distinct:,}", c.range, c.use)
                for c in columns
            ),
            title=f"{short_name(data)}: {table.num_rows:,} rows, {about}",
            right=("gaps", "distinct"),
        )
        for c in columns:
            for warning in c.warnings:
                click.echo(f"{one_line(c.name)}: {warning}")
        for line in named:
            click.echo(line)
        if domain and domain.unranged:
            click.echo(f"[columns.ranges] lacks {', '.join(domain.unranged)}")
        if domain and domain.unlisted:
            click.echo(f"[columns.levels] lacks {', '.join(domain.unlisted)}")
        if domain and domain.dates:
            click.echo(f"[columns] dates has parts of {', '.join(domain.dates)}, each with a range")
        if not vertical:
            click.echo(f"{out} is there already: kept" if kept else f"{out}: a job to start from")

    found = {"rows": table.num_rows, "label": label, "task": task.value if label else None}
    found |= {"identifiers": named} if vertical else {}
    found |= {"private": asdict(domain)} if domain else {}
    tell({**found, "columns": [asdict(column) for column in columns]}, show)
