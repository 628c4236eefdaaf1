"""``hedgerow explore``: what the silos' tables are like together, and a job file from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.commands.options import FILE, FOLDER, PATH, silos_option
from hedgerow.services.process.terminal import command, listing, tell


def _silos(command: Any) -> Any:
    return silos_option(command, required=False)


@command()
@click.argument("path", type=PATH)
@_silos
@click.option("--out", type=FOLDER, help="Run folder to write, where tables are given.")
@click.option("--overwrite", is_flag=True, help="Take the result of an earlier run away.")
@click.option("--select", default="iv > 0.02, corr < 0.9", show_default=True,
              help="Which features --job lists.")  # fmt: skip
@click.option("--job", "job_out", type=FILE, help="Job file to write, of the selected features.")
def explore(
    path: Path,
    silos: tuple[str, ...],
    out: Path | None,
    overwrite: bool,
    select: str,
    job_out: Path | None,
) -> None:
    """Show the statistics of a run of strategy "explore", or run such a job and show them.

    PATH is a run folder, as `hedgerow download` writes it; or a job file, with --silo and --out,
    which then runs as with `hedgerow local`. IV is the information value of a column: how far the
    classes of the label differ over its bins. --job writes a job file that trains on the selected
    features.
    """
    from hedgerow.boosting.selection import Selection
    from hedgerow.coordinator.operator import exploring

    rule = Selection.parse(select)
    if job_out is not None and job_out.exists():
        raise InvalidJob(f"--job: {job_out} is there already")
    if silos or not path.is_dir():
        if out is None or not silos:
            raise click.UsageError("a job file needs --silo NAME=FILE for each silo, and --out")
        path = _run(path, silos, out, overwrite=overwrite)
    found, spec = exploring.read(path)
    chosen = rule.of(found)

    def show() -> None:
        rows = exploring.overview(found, chosen)
        label = found["label"]
        classes = ", ".join(f"{one['name']}: {one['rows']:,}" for one in label["classes"])
        title = f"{found['rows']:,} rows, label {label['name']}" + (f" ({classes})" * bool(classes))
        listing(exploring.HEADINGS, rows, title=title, keep=("column",), right=exploring.NUMBERS)
        click.echo(f"selected by {select}: {', '.join(chosen) or 'none'}")
        for pair in exploring.untold(found, chosen):
            click.echo(f"not told how far these go together: {', '.join(pair)}")
        for one in found.get("spellings", ()):
            click.echo(
                f"{one['where']}: {exploring.proposal(one)} (they differ by {one['differ']})"
            )

    tell(found | {"selected": list(chosen)}, show)
    if job_out is not None:
        job_out.write_text(exploring.job_file(found, spec, chosen, select), encoding="utf-8")
        click.echo(f"job file: {job_out}", err=True)


def _run(job: Path, silos: tuple[str, ...], out: Path, *, overwrite: bool) -> Path:
    """Run a job over tables of this machine; return its run folder."""
    from hedgerow.coordinator.operator.commands.local import run
    from hedgerow.coordinator.operator.commands.options import parse_pairs
    from hedgerow.coordinator.operator.library.jobs import Job

    strategy = Job.load(job).parameters.strategy.name
    if strategy != "explore":
        raise InvalidJob(f'{job}: expected strategy = "explore", received "{strategy}"')
    console = Console(stderr=True, emoji=False)
    report = run(job, parse_pairs(silos, "--silo"), (), out, console, overwrite=overwrite)
    if report["state"] != "SUCCEEDED":
        raise InvalidJob(str(report["detail"] or json.dumps(report["state"])))
    return out
