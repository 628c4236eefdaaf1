"""``hedgerow retrain``: the job that trains a run again without a silo or rows of one."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, RUN, check_free, overwrite_option
from hedgerow.services.process.terminal import command, tell


@command()
@click.argument("run", type=RUN)
@click.option(
    "--from", "first", type=click.IntRange(min=1), metavar="ROUND",
    help="Round in which rows first mattered that are gone from a table: `first-round` says it.",
)  # fmt: skip
@click.option("--without", default="", metavar="SILO", help="Silo that takes part no more.")
@click.option("--out", type=FILE, required=True, help="Job file to write.")
@overwrite_option
def retrain(run: Path, first: int | None, without: str, out: Path, overwrite: bool) -> None:
    """Write the job that trains the model of RUN again, as if a silo or rows had never been there.

    What was trained before they mattered is kept: the job goes on from those rounds of the model.
    Run it as any other job; on this machine with `--model RUN` where rounds are kept, and never
    where none is: all trees of RUN would stay.
    """
    from hedgerow.coordinator.operator.library.retraining import retraining

    check_free(out, overwrite)
    found = retraining(run, first=first, without=without)
    found.job.save(out)
    rest = f"{out}: keeps {found.kept} of {found.rounds} rounds of {run}"
    if found.why:
        rest += f"; from the first round follow {found.why}"
    here = f"on this machine run it with --model {run}" if found.kept else "run it without --model"
    rest += f"; {here}" + ("" if found.kept else f", which would keep what {run} has of the rows")
    told = {"file": str(out), "kept": found.kept, "rounds": found.rounds, "why": found.why}
    tell({**told, "changes": found.changes}, "\n".join((rest, *found.changes)))
