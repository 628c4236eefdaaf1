"""``hedgerow simulate``: a federation in one process over one table that is dealt to silos."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hedgerow.services.process.terminal import command, tell, wants_json

if TYPE_CHECKING:
    from hedgerow.services.wire.job_view import FinishedRound


@command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--data", required=True, metavar="FILE", help="The table to deal.")
@click.option("--silos", type=click.IntRange(min=1), help="Number of silos.")
@click.option(
    "--scheme",
    default="iid",
    show_default=True,
    help="iid, linear, square, dirichlet:ALPHA or column:NAME, as for `hedgerow split`.",
)
@click.option("--parties", default="", help="Of a vertical job: 'bank:label,f0;insurer:f1,f2'.")
@click.option("--test", type=float, default=0.2, show_default=True, help="Share of test rows.")
@click.option("--stratify", is_flag=True, help="As for `hedgerow split`.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the split and who is away."
)
@click.option("--away", type=float, default=0.0, help="Share of silos that are away in a round.")
@click.option(
    "--crypto/--no-crypto", default=True, help="Whether masks and encryption are the job's."
)
@click.option("--workers", type=int, default=0, help="Silos that compute at the same time.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="MS:MBIT",
    help="A silo's line: round trip and bandwidth; several are dealt to the silos in turn. "
    "Seconds are simulated then.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Run folder of the model that the job goes on from.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Run folder to write.",
)
def simulate(
    job: Path,
    data: str,
    silos: int | None,
    scheme: str,
    parties: str,
    test: float,
    stratify: bool,
    seed: int,
    away: float,
    crypto: bool,
    workers: int,
    links: tuple[str, ...],
    model: Path | None,
    out: Path,
) -> None:
    """Deal a table to silos and run JOB over them in this process, without gRPC.

    Model and bytes are those of `hedgerow local` on the same silos.
    """
    from hedgerow.coordinator.operator.library.simulating import simulate as run

    def show(done: FinishedRound) -> None:
        scores = "  ".join(f"{s.data} {s.metric} {s.value:.5f}" for s in done.scores)
        click.echo(
            f"round {done.round + 1:>3}  {scores}  {len(done.silos)} silos  {done.seconds:.2f} s",
            err=wants_json(),
        )

    found = run(
        job, data, silos, scheme=scheme, parties=parties, test=test, stratify=stratify,
        seed=seed, away=away, crypto=crypto, workers=workers, links=links, model=model, out=out,
        watch=show,
    )  # fmt: skip
    tell(found.document, f"{found.summary()}\nrun folder: {out}")
