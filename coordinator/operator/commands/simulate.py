"""``hedgerow simulate``: a federation in one process over one table that is dealt to silos."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hedgerow.boosting.errors import InvalidJob, ResultWarning
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.commands.options import PATH, RUN, csv_dialect, run_out
from hedgerow.coordinator.operator.library import schedules
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.coordinator.operator.library.running import (
    Run,
    RunFailed,
    command_in_process,
    error_of,
)
from hedgerow.coordinator.operator.tables import listed_schemes
from hedgerow.services.process.terminal import command, tell, wants_json

if TYPE_CHECKING:
    from hedgerow.services.wire.job_view import FinishedRound


def _numbers(least: int) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], list[int]]:
    """Return what reads whole numbers, with commas between or one after another."""

    def read(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> list[int]:
        try:
            found = [int(number) for text in given for number in text.split(",")]
        except ValueError:
            found = [least - 1]
        if min(found, default=least) < least:
            raise click.BadParameter(
                f"expected whole numbers from {least}, such as 10 or 10,100, "
                f"received {' '.join(given)}"
            )
        return list(dict.fromkeys(found))

    return read


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of a sweep: silos (None where they follow from the table), scheme, seed."""

    silos: int | None
    scheme: str
    seed: int


@command()
@click.argument("job", type=PATH)
@click.option("--data", required=True, metavar="FILE", help="The table to deal.")
@csv_dialect
@click.option(
    "--silos", multiple=True, callback=_numbers(1), metavar="N,N,...", help="Number of silos."
)
@click.option(
    "--scheme",
    "schemes",
    multiple=True,
    default=["iid"],
    show_default=True,
    help="iid, linear, square, dirichlet:ALPHA or column:NAME, as for `hedgerow split`.",
)
@click.option("--parties", default="", help="Of a vertical job: 'bank:label,f0;insurer:f1,f2'.")
@click.option("--test", type=float, default=0.2, show_default=True, help="Share of test rows.")
@click.option("--stratify", is_flag=True, help="As for `hedgerow split`.")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    callback=_numbers(0),
    metavar="N,N,...",
    default=["0"],
    show_default=True,
    help="Of the split and who is away.",
)
@click.option(
    "--away",
    multiple=True,
    metavar="SHARE|SILO@ROUNDS",
    help="Share of silos that are away in a round, or who is away in which: silo-3@2-5.",
)
@click.option(
    "--late",
    multiple=True,
    metavar="SILO@ROUNDS:SECONDS",
    help="Who is how late in which rounds: silo-3@2-5:30. Seconds are simulated then.",
)
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
@click.option("--model", type=RUN, help="Run folder of the model that the job goes on from.")
@partial(run_out, what="Run folder to write; of several runs the folder with theirs.")
def simulate(
    job: Path,
    data: str,
    silos: list[int],
    schemes: tuple[str, ...],
    parties: str,
    test: float,
    stratify: bool,
    seeds: list[int],
    away: tuple[str, ...],
    late: tuple[str, ...],
    crypto: bool,
    workers: int,
    links: tuple[str, ...],
    model: Path | None,
    out: Path,
    overwrite: bool,
) -> None:
    """Deal a table to silos and run JOB over them in this process, without gRPC.

    Model and bytes are those of `hedgerow local` on the same silos.

    --silos, --scheme and --seed take several values, with commas or given again: each combination
    is a run in a process of its own, as many at once as there are cores, with a folder below --out.
    `hedgerow compare OUT/* --out DIR` puts them beside each other.
    """
    asked = [
        SweepRun(*one)
        for one in itertools.product(
            silos or (None,), dict.fromkeys(itertools.chain(*map(listed_schemes, schemes))), seeds
        )
    ]
    absences, delays = schedules.parse_away(away), schedules.parse_late(late)
    if len(asked) > 1:
        same = [
            str(job), f"--data={data}", f"--parties={parties}", f"--test={test}",
            *(["--stratify"] if stratify else []), *(f"--away={text}" for text in away),
            *(f"--late={text}" for text in late), "--crypto" if crypto else "--no-crypto",
            *(f"--link={text}" for text in links), *([f"--model={model}"] if model else []),
        ]  # fmt: skip
        _sweep(asked, same, workers or os.cpu_count() or 1, out, overwrite=overwrite)
        return
    from hedgerow.coordinator.operator.library.simulating import simulate as run

    first = Job.load(job).parameters.strategy.first_round

    from hedgerow.coordinator.operator.progress import score

    def show(done: FinishedRound) -> None:
        scores = "  ".join(f"{s.data} {s.metric} {score(s.value)}" for s in done.scores)
        n = done.round + first
        click.echo(
            f"round {n:>3}  {scores}  {len(done.silos)} silos  {done.seconds:.2f} s",
            err=wants_json(),
        )

    (one,) = asked
    warnings.simplefilter("ignore", ResultWarning)  # the summary has them
    try:
        found = run(
            job, data, one.silos, scheme=one.scheme, parties=parties, test=test, seed=one.seed,
            stratify=stratify, away=absences, late=delays, crypto=crypto, workers=workers,
            links=links, model=model, out=out, overwrite=overwrite, watch=show,
        )  # fmt: skip
    except RunFailed as error:
        if error.run is None:
            raise
        found = error.run
    tell(found.document, f"{found.summary()}\nrun folder: {out}")
    sys.exit(0 if run_folder.as_asked(found.document) else 1)


def _sweep(
    asked: Sequence[SweepRun], same: Sequence[str], workers: int, out: Path, *, overwrite: bool
) -> None:
    """Run several simulations, each in a process; the exit code is 1 where one has failed."""
    folders = dict(zip(asked, _folders(asked, out), strict=True))
    for folder in folders.values():
        run_folder.claim(folder, overwrite=overwrite)
    at_once = min(workers, len(asked))
    under_way: set[subprocess.Popen[str]] = set()

    def stop(number: int, _: object) -> NoReturn:
        for process in list(under_way):
            process.terminate()
        sys.exit(128 + number)

    def run(one: SweepRun) -> tuple[int, str]:
        own = [f"--scheme={one.scheme}", f"--seed={one.seed}"]
        if one.silos is not None:
            own.append(f"--silos={one.silos}")
        own += [f"--workers={workers // at_once}", f"--out={folders[one]}"]
        return command_in_process(["simulate", *same, *own], quiet=True, under_way=under_way)

    before = signal.signal(signal.SIGTERM, stop)  # Ctrl-C reaches the runs by itself
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(run, one): one for one in asked}
        try:
            for ended in as_completed(running):
                folder = folders[running[ended]]
                code, said = ended.result()
                whole = not code or (code == 1 and (folder / "report.json").exists())
                told = Run(folder).summary().replace("\n", "; ") if whole else ""
                if code:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    failed[folder.name] = error_of(said) or told or f"ended with {how}"
                    shown = failed[folder.name]
                else:
                    shown = told
                click.echo(f"{folder.name}: {shown}", err=wants_json())
        finally:  # who is interrupted starts no more
            pool.shutdown(wait=False, cancel_futures=True)
            signal.signal(signal.SIGTERM, before)
    made = [str(folder) for folder in folders.values() if folder.name not in failed]
    tell(
        {"runs": made, "failed": failed},
        f"{len(made)} of {len(asked)} runs below {out}"
        + (
            f"; put them beside each other with\nhedgerow compare {shlex.join(made)} --out DIR"
            if made
            else ""
        ),
    )
    sys.exit(1 if failed else 0)


def _folders(asked: Sequence[SweepRun], out: Path) -> list[Path]:
    """Return a folder for each run, named by what the runs differ in."""
    parts = {
        "silos": [f"silos-{one.silos}" for one in asked],
        "scheme": [one.scheme.replace(":", "-").replace("/", "-") for one in asked],
        "seed": [f"seed-{one.seed}" for one in asked],
    }
    told = [names for names in parts.values() if len(set(names)) > 1]
    folders = [out / "_".join(names) for names in zip(*told, strict=True)]
    if len(set(folders)) < len(asked):
        raise InvalidJob("scheme: two schemes would have the same folder; run them one by one")
    return folders
