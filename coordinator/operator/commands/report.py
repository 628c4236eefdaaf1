"""``hedgerow report``: finished runs as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands import Refused, refusing


@click.command()
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; report.html in the run folder if not given.",
)
@click.option("--title", default="", help="Heading of the page.")
def report(runs: tuple[Path, ...], out: Path | None, title: str) -> None:
    """Write one HTML file about finished runs, several side by side; it needs no network.

    RUN is a run folder, as `hedgerow local`, `download` and `compare` write it.
    """
    from hedgerow.coordinator.operator.report import page_of
    from hedgerow.crypto.durable import write_atomically

    if out is None and len(runs) > 1:
        raise Refused("several runs: say with --out where their report should be")
    target = out or runs[0] / "report.html"
    with refusing():
        write_atomically(target, page_of(runs, title).encode(), mode=0o644)
    click.echo(f"{target}: open it in a browser")
