"""``hedgerow search``: keys of a job chosen by trying them over tables of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hedgerow.coordinator.operator.commands.options import FOLDER, PATH, parse_pairs, silos_option
from hedgerow.coordinator.operator.progress import size
from hedgerow.services.process.terminal import command, listing, tell


@command()
@click.argument("job", type=PATH)
@silos_option
@click.option(
    "--out",
    type=FOLDER,
    required=True,
    help="Folder of search.json and best.toml; trials that it has are not run again.",
)
@click.option("--workers", type=int, default=0, help="Silos that compute at the same time.")
def search(job: Path, silos: tuple[str, ...], out: Path, workers: int) -> None:
    """Try the values that JOB's table [search] has for its keys, and write the best job.

    Trials run in this process, on the same tables and without gRPC, masks and encryption. Each silo
    holds rows back, and the scores are on those: keep test rows for the job that is chosen.
    """
    from hedgerow.coordinator.operator.library.searching import BEST_FILE
    from hedgerow.coordinator.operator.library.searching import search as run

    def planned(plan: Mapping[str, Any]) -> None:
        moved = f"{size(plan['bytes_up'])} up and {size(plan['bytes_down'])} down"
        click.echo(
            f"{plan['trials']} trials; between organisations they would move about {moved}",
            err=True,
        )

    def show(trial: Mapping[str, Any]) -> None:
        score = trial["detail"] if trial["score"] is None else f"{trial['score']:.5f}"
        click.echo(f"{_said(trial['settings'])}  {_share(trial)}{score}", err=True)

    found = run(job, parse_pairs(silos, "--silo"), out=out, workers=workers, planned=planned,
                watch=show)  # fmt: skip

    def table() -> None:
        document = found.document
        keys = list(document["best"]["settings"])
        metric, numbers = document["metric"], ("rounds", "up", "down", "seconds")
        listing(
            ("share", *keys, metric, *numbers),
            (
                (f"{t['share']:.3g}", *(t["settings"].get(key) for key in keys),
                 t["detail"] or f"{t['score']:.5f}", t["rounds"], size(t["bytes_up"]),
                 size(t["bytes_down"]), f"{t['seconds']:.1f}")
                for t in found.ranked
            ),
            keep=(metric,),
            right=(metric, *numbers),
        )  # fmt: skip
        click.echo(f"best: {_said(document['best']['settings'])}")
        click.echo(f"job file: {out / BEST_FILE}; its score is on few rows and chosen, so test it")

    tell(found.document, table)


def _said(settings: Mapping[str, Any]) -> str:
    return "  ".join(f"{key} = {value}" for key, value in settings.items())


def _share(trial: Mapping[str, Any]) -> str:
    return "" if trial["share"] == 1.0 else f"at {trial['share']:.3g}  "
