"""``hedgerow report``: finished runs as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, PATH, parse_pairs
from hedgerow.services.process.terminal import Refused, command, tell


@command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@click.option("--out", type=FILE, help="File to write; report.html in the run folder if not given.")
@click.option(
    "--test",
    "tests",
    multiple=True,
    help="Table with labels, or NAME=FILE, such as a silo's; of a vertical run PARTY=FILE.",
)
@click.option("--title", default="", help="Heading of the page.")
def report(runs: tuple[Path, ...], out: Path | None, tests: tuple[str, ...], title: str) -> None:
    """Write one HTML file about finished runs, several side by side; it needs no network.

    RUN is a run folder, as `hedgerow local`, `download` and `compare` write it. With --test the
    model is evaluated again, and the run folder keeps the result, which has counts and no rows.
    """
    from hedgerow.coordinator.operator.library import evaluation
    from hedgerow.coordinator.operator.report import page_of
    from hedgerow.crypto.durable import write_atomically

    if out is None and len(runs) > 1:
        raise Refused("several runs: say with --out where their report should be")
    if tests:
        named = [test if "=" in test else f"test={test}" for test in tests]
        for run in runs:
            evaluation.keep(run, parse_pairs(tuple(named), "--test"))
    target = out or runs[0] / "report.html"
    write_atomically(target, page_of(runs, title).encode(), mode=0o644)
    tell({"report": str(target)}, f"{target}: open it in a browser")
