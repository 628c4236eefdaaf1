"""``hedgerow drift``: a table beside what an explore job has counted."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FOLDER, csv_dialect
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("run", type=FOLDER)
@click.argument("data")
@click.option("--max-psi", type=click.FloatRange(min=0, min_open=True), default=0.2,
              show_default=True, help="Index above which a column has drifted.")  # fmt: skip
@csv_dialect
def drift(run: Path, data: str, max_psi: float, delimiter: str, decimal: str) -> None:
    """Tell how far the rows of DATA are from those that the explore job RUN has counted.

    DATA may be today's table beside an earlier count of all silos, or one silo's own beside all of
    them. Nothing leaves this machine. The exit code is 1 where a column has drifted.
    """
    from hedgerow.boosting.tables import read_table, short_name
    from hedgerow.boosting.tables.delimited import Dialect
    from hedgerow.coordinator.operator import drifting, exploring
    from hedgerow.services.wire import job as job_wire

    statistics, spec = exploring.read(run)
    job = job_wire.decode(spec)
    table = read_table(data, job.features, Dialect(delimiter, decimal))
    where = short_name(data)
    found = drifting.drift(statistics, drifting.rows_of(table, job, where), where)

    def show() -> None:
        title = f"{short_name(data)}: {table.num_rows:,} rows, beside {statistics['rows']:,}"
        rows = drifting.lines(found, max_psi)
        listing(drifting.HEADINGS, rows, title=title, keep=("column",), right=drifting.NUMBERS)
        click.echo(f"drifted: {', '.join(drifting.worst(found, max_psi)) or 'none'}")

    tell(drifting.document(found, max_psi), show)
    if drifting.worst(found, max_psi):
        sys.exit(1)
