"""``hedgerow compare``: several jobs on one cohort, beside what it reaches without a federation."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

from hedgerow.boosting.errors import FederationError, InvalidJob
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.commands.options import (
    PATH,
    ids_option,
    may_send,
    parse_ids,
    parse_pairs,
    run_out,
    silo_tables,
)
from hedgerow.coordinator.operator.library.running import Run, error_of, in_own_process
from hedgerow.coordinator.operator.progress import size
from hedgerow.services.process.terminal import command, listing, tell, wants_json

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.coordinator.operator.report.runs import Curve

KINDS = {
    "local": "each silo alone",
    "mean": "mean of the silos' models",
    "pooled": "all rows pooled",
}
WIDE = 130
"""Columns of a terminal from which the table has room for what runs reveal."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A job file that takes part in a comparison."""

    name: str
    path: Path
    job: JobParameters


@command()
@click.argument("jobs", metavar="JOB.toml...|RUN...", nargs=-1, required=True, type=PATH)
@partial(silo_tables, required=False)
@partial(run_out, what="Folder: a run folder for each job file, and report.html.")
@may_send
@ids_option
@click.option(
    "--baselines/--no-baselines", "with_baselines", default=True,
    help="Whether to train each silo alone and all rows pooled as well.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(min=0), default=0, help="Threads of each silo.")
def compare(
    jobs: tuple[Path, ...],
    silos: tuple[str, ...],
    tests: tuple[str, ...],
    out: Path,
    overwrite: bool,
    may_send: tuple[str, ...],
    ids: tuple[str, ...],
    with_baselines: bool,
    threads: int,
) -> None:
    """Run several jobs on the same silos; print quality, bytes, seconds and what they reveal.

    Each job runs as `hedgerow local` runs it. Baselines are stock XGBoost with the first job's
    [booster] on the same rows: each silo alone, the mean of those models, and all rows pooled,
    which no federation may have. They need --test. Of vertical jobs they are the active party with
    its own columns, and all columns pooled.

    Run folders, such as those of `hedgerow simulate`, are read in place of job files; nothing runs
    then, and there is no --silo.
    """
    console = Console(stderr=wants_json())
    if any(path.is_dir() for path in jobs):
        _compare_runs(jobs, out, console)
        return
    if not silos:
        raise click.UsageError("job files need --silo NAME=FILE, once for each silo")
    contenders = _contenders(jobs)
    tables = parse_pairs(silos, "--silo")
    for contender in contenders:
        run_folder.claim(out / contender.name, overwrite=overwrite)
    columns = parse_ids(ids, tables)
    more = [f"--may-send={one}" for one in may_send] + [f"--id={one}" for one in ids]
    reports = [_run(c, silos, tests, out / c.name, threads, more, console) for c in contenders]
    curves: tuple[Curve, ...] = ()
    if with_baselines:
        curves, why_not = _baselines(contenders, tables, tests, out, threads, columns)
        if why_not:
            console.print(f"no baselines: {why_not}", markup=False)
    names = [c.name for c in contenders]
    rows = [*map(_row, names, reports), *_baseline_rows(curves)]
    page, said, why = _report([out / name for name in names], out)
    if why:
        console.print(f"no report: {why}", markup=False)
    _tell(names, rows, said, page, console)


def _compare_runs(folders: tuple[Path, ...], out: Path, console: Console) -> None:
    """Compare finished runs."""
    from hedgerow.coordinator.operator.report.runs import read_runs
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    given = click.get_current_context().get_parameter_source
    for name in ("silos", "tests", "with_baselines", "threads"):
        if given(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                "run folders have run: they go without --silo, --test, --no-baselines and --threads"
            )
    for path in folders:
        if not path.is_dir():
            raise InvalidJob(f"{path}: expected a run folder, as the other arguments are")
    names = [run.label for run in read_runs(folders)]
    jobs = (job_wire.decode(job_file.load(path / "job.toml")) for path in folders)
    _check_alike([Contender(*one) for one in zip(names, folders, jobs, strict=True)])
    rows = [_row(name, Run(folder).document) for name, folder in zip(names, folders, strict=True)]
    page, said, why = _report(folders, out)
    if why:
        raise FederationError(why)
    _tell(names, rows, said, page, console)


def _tell(
    names: Sequence[str],
    rows: list[dict[str, Any]],
    said: list[str],
    page: Path | None,
    console: Console,
) -> None:
    """Print the table, sentences and where the report is; exit 1 where a job has failed."""

    def show() -> None:
        _print(console, rows)
        for name, sentence in zip(names, said, strict=False):
            console.print(f"{name}: {sentence}", markup=False, soft_wrap=True)
        if page is not None:
            click.echo(f"{page}: open it in a browser")

    tell({"rows": rows, "sentences": said, "report": str(page) if page else None}, show)
    succeeded = all(row["state"] in ("SUCCEEDED", "baseline") for row in rows)
    sys.exit(0 if succeeded and not any(row.get("lacks") for row in rows) else 1)


def _contenders(paths: tuple[Path, ...]) -> list[Contender]:
    """Read the job files; they must ask for the same thing."""
    from hedgerow.services.wire import job as job_wire
    from hedgerow.services.wire import job_file

    found: list[Contender] = []
    for path in paths:
        job = job_wire.decode(job_file.load(path))
        job.parameters.validate(job)
        if job.warm_start is not None:
            raise InvalidJob(
                f"{path}: [warm_start]: compared jobs start from nothing, as their baselines do; "
                "take the table out, or run the job with hedgerow local --model RUN"
            )
        if path.stem in {c.name for c in found}:
            raise InvalidJob(f"{path}: another job file is called {path.stem} too; rename one")
        found.append(Contender(path.stem, path, job))
    _check_alike(found)
    return found


def _check_alike(found: Sequence[Contender]) -> None:
    """Raise InvalidJob unless all ask for the same thing."""
    first = found[0]
    for other in found[1:]:
        for what in ("labels", "task"):
            mine, theirs = getattr(first.job, what), getattr(other.job, what)
            if what == "labels":
                what, mine, theirs = "label", ", ".join(mine), ", ".join(theirs)
            if mine != theirs:
                raise InvalidJob(
                    f"{other.path}: {what} is {getattr(theirs, 'value', theirs)}, in {first.path} "
                    f"it is {getattr(mine, 'value', mine)}: these jobs cannot be compared"
                )
        if first.job.vertical != other.job.vertical:
            raise InvalidJob(
                f"{other.path}: one job cuts by columns, the other by rows: their silos' tables "
                "cannot be the same"
            )
        asked = set(first.job.metrics), set(other.job.metrics)
        if all(asked) and not set.intersection(*asked):
            raise InvalidJob(
                f"{other.path}: no metric in common with {first.path}: "
                f"{', '.join(other.job.metrics)} and {', '.join(first.job.metrics)}"
            )


def _run(
    contender: Contender,
    silos: tuple[str, ...],
    tests: tuple[str, ...],
    out: Path,
    threads: int,
    more: Sequence[str],
    console: Console,
) -> dict[str, Any]:
    """Run a job in a process of its own and return its report."""
    console.print(f"{contender.name} ({contender.job.strategy.name})", markup=False)
    arguments = [f"--silo={pair}" for pair in silos] + [f"--test={test}" for test in tests]
    arguments += more
    code, said = in_own_process(contender.path, arguments, out, threads)
    if code not in (0, 1) or error_of(said):
        why = error_of(said) or said
        raise FederationError(f"{contender.path} could not be run: {why}")
    return Run(out).document


def _baselines(
    contenders: list[Contender],
    silos: dict[str, str],
    tests: tuple[str, ...],
    out: Path,
    threads: int,
    ids: Mapping[str, str],
) -> tuple[tuple[Curve, ...], str]:
    """Train the baselines and put them into the run folders; or say why there are none."""
    from hedgerow.coordinator.operator.library import baselines
    from hedgerow.crypto.durable import write_atomically

    job = contenders[0].job
    n_steps = max(c.job.parameters.n_steps for c in contenders)
    n_threads = threads or os.cpu_count() or 1
    own: dict[str, tuple[Curve, ...]] = {}
    if job.vertical:
        own_tests = parse_pairs(tests, "--test") if all("=" in test for test in tests) else {}
        if set(own_tests) != set(silos):
            return (), "they are scored on the rows of --test PARTY=FILE, of each party"
        active = str(job.active)
        curves = baselines.of_parties(job, active, silos, own_tests, n_steps, n_threads, ids)
    else:
        if len(tests) != 1:
            return (), "they are scored on the rows of --test"
        cohort = baselines.cohort(job, silos, tests[0], ids)
        curves = baselines.baselines(job, cohort, n_steps, n_threads)
        own = {c.name: baselines.by_silo(out / c.name, c.job, cohort) for c in contenders}
    for contender in contenders:
        shown = baselines.dump((*own.get(contender.name, ()), *curves))
        write_atomically(out / contender.name / "baselines.json", shown, mode=0o644)
    return curves, ""


def _row(name: str, report: dict[str, Any]) -> dict[str, Any]:
    rounds = report["rounds"]
    best = next((r for r in rounds if r["round"] == report["best_round"]), None)
    best = best or (rounds[-1] if rounds else {"metrics": {}})
    scores = best["metrics"]
    data = "test" if "test" in scores else next(iter(scores), "")
    return {
        "name": name,
        "strategy": report["strategy"],
        "state": report["state"],
        "lacks": list(report.get("lacks", ())),
        "data": data,
        "metrics": scores.get(data, {}),
        "bytes_up": report["bytes"]["up"],
        "bytes_down": report["bytes"]["down"],
        "seconds": report["seconds"],
        "rounds": len(rounds),
        "reveals": report["reveals"],
    }


def _baseline_rows(curves: tuple[Curve, ...]) -> list[dict[str, Any]]:
    """Return a row for each kind of baseline; the silos alone are averaged."""
    rows: list[dict[str, Any]] = []
    for kind, name in KINDS.items():
        of_kind = [curve for curve in curves if curve.kind == kind]
        if not of_kind:
            continue
        last = [curve.rounds[-1] for curve in of_kind]
        known = {m: [s[m] for s in last if s.get(m) is not None] for m in last[0]}
        rows.append(
            {
                "name": f"{name}, mean of {len(of_kind)}" if len(of_kind) > 1 else of_kind[0].who,
                "strategy": "",
                "state": "baseline",
                "data": "test",
                "metrics": {
                    m: sum(v for v in values if v is not None) / len(values)
                    for m, values in known.items()
                    if values
                },
                "bytes_up": None,
                "bytes_down": None,
                "seconds": None,
                "rounds": len(of_kind[0].rounds),
                "reveals": "all rows, to the one who pools them" if kind == "pooled" else
                "nothing" if kind == "local" else "the silos' models",
            }
        )  # fmt: skip
    return rows


def _report(folders: Sequence[Path], out: Path) -> tuple[Path | None, list[str], str]:
    """Write the report; return its path, a sentence for each run, and why there is none."""
    from hedgerow.coordinator.operator.report import page_of
    from hedgerow.coordinator.operator.report.runs import read_runs
    from hedgerow.crypto.durable import write_atomically

    page = out / "report.html"
    try:
        text = page_of(tuple(folders), "Comparison")
    except (FederationError, click.ClickException) as error:
        return None, [], str(error)
    from hedgerow.coordinator.operator.report.overview import sentence

    write_atomically(page, text.encode(), mode=0o644)
    return page, [sentence(run) for run in read_runs(folders)], ""


def _print(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the table; where it would be cut off, what runs reveal comes below it."""
    wide = console.is_terminal and console.width >= WIDE
    _table(rows, wide)
    for row in rows if not wide else ():
        shown = f"{row['name']} reveals: {_first_sentence(row['reveals'])}"
        console.print(shown, markup=False, soft_wrap=True)


def _table(rows: list[dict[str, Any]], wide: bool) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    numbers = (*names, "up", "down", "seconds", "rounds")
    reveals = ["reveals (first sentence; the rest is in the report)"] if wide else []
    cells = []
    for row in rows:
        scores = [row["metrics"].get(name) for name in names]
        fault = "" if row["state"] in ("SUCCEEDED", "baseline") else row["state"].lower()
        fault = fault or ", ".join(f"no {one}" for one in row.get("lacks", ()))
        name = f"{row['name']} ({fault})" if fault else row["name"]
        cells.append((
            name,
            *("–" if value is None else f"{value:.4f}" for value in scores),
            *("–" if n is None else size(n) for n in (row["bytes_up"], row["bytes_down"])),
            "–" if row["seconds"] is None else f"{row['seconds']:.1f}",
            str(row["rounds"]),
            *([_first_sentence(row["reveals"])] if wide else []),
        ))  # fmt: skip
    title = "test rows, scores of each model"
    listing(("run", *numbers, *reveals), cells, title=title, keep=numbers, right=numbers)


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.;])\s", text.replace("\n", " ").strip(), maxsplit=1)[0]
    return textwrap.shorten(sentence, 160, placeholder=" …")
