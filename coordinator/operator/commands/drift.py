"""``hedgerow drift``: a table beside rows of before; ``hedgerow reference`` counts those."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import (
    FILE,
    PATH,
    check_free,
    csv_dialect,
    overwrite_option,
)
from hedgerow.coordinator.operator.commands.predict import SILO
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("run", type=PATH)
@click.argument("data")
@click.option("--beside", metavar="TABLE", help="Rows of before, of a run with a model: a table, "
              "what `hedgerow reference` has written, or an explore job's run.")  # fmt: skip
@click.option("--max-psi", type=click.FloatRange(min=0, min_open=True), default=0.2,
              show_default=True, help="Index above which a column has drifted.")  # fmt: skip
@SILO
@csv_dialect
def drift(
    run: Path,
    data: str,
    beside: str | None,
    max_psi: float,
    silo: str,
) -> None:
    """Tell how far the rows of DATA are from those of before.

    Of the run of an explore job these are the rows that it has counted: DATA may be today's table
    beside an earlier count of all silos, or one silo's own beside all of them. Of a run with a
    model, or a model file, they are those of --beside: columns that the model uses are compared by
    its own bins, and so is what it predicts. Nothing leaves this machine. The exit code is 1 where
    a column has drifted.
    """
    from hedgerow.boosting.errors import DataError
    from hedgerow.boosting.selection import FILE as STATISTICS
    from hedgerow.boosting.tables import read_table, short_name
    from hedgerow.coordinator.operator import drifting, exploring
    from hedgerow.coordinator.operator.library import reference
    from hedgerow.coordinator.operator.library.models import open_model
    from hedgerow.services.wire import job as job_wire

    explored = (run / STATISTICS).is_file()
    if explored:
        if beside is not None or silo:
            raise DataError(
                f"{run}: --beside and --silo are of a model; these are an explore job's"
            )
        told, spec = exploring.read(run)
        job = job_wire.decode(spec)
        table = read_table(data, job.features)
        where = short_name(data)
        found = drifting.drift(told, drifting.rows_of(table, job, where), where)
    else:
        model = open_model(run, silo)
        if beside is None:
            raise DataError(f"{run}: {drifting.NOTHING_BESIDE}")
        told = reference.beside(model, beside)
        table = read_table(data, model.names)
        found = reference.drift(model, told, table, short_name(data))

    def show() -> None:
        title = f"{short_name(data)}: {table.num_rows:,} rows, beside {told['rows']:,}"
        rows = drifting.lines(found, max_psi)
        listing(drifting.HEADINGS, rows, title=title, keep=("column",), right=drifting.NUMBERS)
        worst = drifting.worst(found, max_psi)
        click.echo(f"drifted: {', '.join(worst) or 'none'}")
        if worst and explored:
            click.echo(drifting.UNEVEN)

    tell(drifting.document(found, max_psi), show)
    if drifting.worst(found, max_psi):
        sys.exit(1)


@command()
@click.argument("run_or_model", type=PATH)
@click.argument("data")
@click.option("--out", type=FILE, required=True, help="File to write, with the ending .json.")
@overwrite_option
@SILO
@csv_dialect
def reference(
    run_or_model: Path,
    data: str,
    out: Path,
    overwrite: bool,
    silo: str,
) -> None:
    """Count the rows of DATA by a model's bins, for `hedgerow drift` and `hedgerow serve`.

    DATA is the silo's own table, such as it was when the model was trained. The file has its rows
    by bin, small counts too: only this user can read it, and it stays in the silo.
    """
    from hedgerow.boosting.errors import DataError
    from hedgerow.boosting.tables import read_table, short_name
    from hedgerow.coordinator.operator.library import reference as counts
    from hedgerow.coordinator.operator.library.models import open_model
    from hedgerow.crypto.durable import write_atomically

    if out.suffix != ".json":
        raise DataError(f"--out {out}: the ending should be .json")
    check_free(out, overwrite)
    model = open_model(run_or_model, silo)
    table = read_table(data, model.names)
    found = counts.reference(model, counts.rows_of(model, table, short_name(data)))
    write_atomically(out, json.dumps(found, ensure_ascii=False, allow_nan=False).encode(), 0o600)
    columns = [one["name"] for one in found["columns"]]
    about = {"file": str(out), "rows": found["rows"], "columns": columns}
    tell(about, f"{out}: {found['rows']:,} rows by {', '.join(columns)}")
