"""``hedgerow scorecard``: an additive model as points by column and bin."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE, PATH, check_free, overwrite_option
from hedgerow.coordinator.operator.commands.predict import SILO
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("run_or_model", type=PATH)
@click.option("--out", type=FILE, help="CSV file to write, a line for each bin.")
@overwrite_option
@click.option(
    "--points-to-double",
    default=20.0,
    show_default=True,
    help="Points that double the odds of the positive class; below 0 they fall.",
)
@click.option("--base", default=600.0, show_default=True, help="Score of a row with --odds.")
@click.option(
    "--odds", default=1.0, show_default=True, help="Odds of the positive class at --base."
)
@SILO  # fmt: skip
def scorecard(
    run_or_model: Path,
    out: Path | None,
    overwrite: bool,
    points_to_double: float,
    base: float,
    odds: float,
    silo: str,
) -> None:
    """Show an additive model as points: those of a row's bins sum to its score.

    The model is a run folder's, or a model file, of two classes, and each of its trees asks of one
    column: with max_depth = 1, or private_boost with structure = "cyclic". The score is an affine
    function of the model's margin. A bin is from one value to below the next, as float32.
    """
    from hedgerow.coordinator.operator.library.models import open_model
    from hedgerow.crypto.durable import write_atomically

    card = open_model(run_or_model, silo).score_card(points_to_double, base, odds)
    if out is not None:
        check_free(out, overwrite)
        write_atomically(out, card.csv(), mode=0o644)
    lines = [(row["column"], row["bin"], f"{row['points']:.1f}") for row in card.rows()]

    def show() -> None:
        title = f"{card.title}, {base:g} points at odds of {odds:g}"
        listing(("column", "bin", "points"), lines, title=title, right=("points",))
        if out is not None:
            click.echo(f"score card: {out}")

    rows = card.rows()
    tell({"bins": rows, "factor": card.factor, "file": None if out is None else str(out)}, show)
