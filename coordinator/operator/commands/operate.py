"""Operator commands against a coordinator: submit, plan, jobs, silos, watch, cancel, ..."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hedgerow.boosting import warm_start
from hedgerow.boosting.errors import InvalidJob, Unauthorised, Unreachable
from hedgerow.boosting.job import Approvals
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.commands.options import (
    PATH,
    RUN,
    CoordinatorOptions,
    connected,
    csv_dialect,
    ids_option,
    parse_ids,
    parse_pairs,
    run_out,
)
from hedgerow.coordinator.operator.library.clients import (
    audit_to_sign,
    fetch,
    files_of,
    listed,
    release_run,
    shown,
)
from hedgerow.coordinator.operator.library.jobs import Job, plan_here
from hedgerow.coordinator.operator.preflight import answers, show_preflight
from hedgerow.coordinator.operator.progress import (
    JobProgress,
    headline,
    outcome,
    paragraphs,
    size,
    summary,
    tenths,
)
from hedgerow.services.process.terminal import Refused, command, listing, tell, wants_json
from hedgerow.services.process.texts import one_line
from hedgerow.services.rpc.errors import NotReleased
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import release as release_wire
from hedgerow.services.wire.job_view import UNDER_WAY, JobState, PlanView, PreflightView
from hedgerow.services.wire.signed_job import DEFAULT_DAYS

_model = click.option(
    "--model",
    type=RUN,
    help="Run folder of the model that the job goes on from; the coordinator has it, too.",
)


@command()
@click.argument("job", type=PATH)
@click.option("--watch/--no-watch", "watch_", default=False, help="Watch it until it ends.")
@click.option(
    "--days",
    type=float,
    default=DEFAULT_DAYS,
    show_default=True,
    help="For how long attempts may begin; silos refuse the job afterwards.",
)
@click.option(
    "--preflight/--no-preflight",
    default=True,
    help="Ask the silos first whether they would take part.",
)
@click.option(
    "--once", is_flag=True, help="Submit nothing that you have submitted and that has not failed."
)
@_model
@connected()
def submit(
    job: Path,
    watch_: bool,
    days: float,
    preflight: bool,
    once: bool,
    model: Path | None,
    connection: CoordinatorOptions,
) -> None:
    """Sign a job file and submit it; prints the job's identifier.

    First each silo says whether it would take part. A job that could not run, even with the silos
    that are away now, is not submitted. With --once, a job of yours of the same content that is
    under way or has succeeded stands for this one.
    """
    spec, client = _spec(job, model), connection.client()
    job_id = _submitted(client, spec) if once else ""
    if not job_id and preflight:
        found = client.preflight(spec, waits=_waits)
        if found.refusal or not wants_json():
            show_preflight(found, err=True)
            click.echo(headline(found.plan), err=True)
            for note in found.plan.notes:
                click.echo(f"note: {note}", err=True)
        if found.refusal:
            raise InvalidJob(f"not submitted: {found.refusal}")
    job_id = job_id or client.create(spec, days)
    asked = job_wire.decode(spec).approvals.without(client.name)
    if asked.approvers:
        click.echo(f"its silos wait for approvals: {asked.described(())}", err=True)
    if not watch_:
        tell({"job": job_id}, job_id)
        return
    click.echo(job_id, err=wants_json())
    _watch(client, job_id)


def _submitted(client: JobClient, spec: bytes) -> str:
    """Return the newest of the caller's jobs with this content, unless it failed; or nothing."""
    wanted = job_file.dump(spec)
    for view in client.list():
        same = view.state not in (JobState.FAILED, JobState.CANCELLED)
        if same and job_file.dump(view.spec) == wanted:
            return view.job_id
    return ""


def _waits(why: str) -> None:
    click.echo(f"waiting: {why}", err=True)


def _spec(job: Path, model: Path | None) -> bytes:
    return job_file.load(job) if model is None else Job.load(job).starting_from(model).spec


@command()
@click.argument("job_id")
@connected()
def watch(job_id: str, connection: CoordinatorOptions) -> None:
    """Show a job as it goes, until it ends."""
    _watch(connection.client(), job_id)


def _watch(client: JobClient, job_id: str) -> None:
    console = Console(stderr=wants_json())
    with JobProgress(console) as progress:
        for view in client.watch(job_id):
            progress.show(view)
    view = client.get(job_id)
    report = run_folder.report(view)
    asked = job_wire.decode(view.spec).parameters
    if report["state"] == JobState.SUCCEEDED and getattr(asked, "interval", 0.0):
        with suppress(NotReleased, Unauthorised):  # who may not see the model learns nothing of it
            report |= run_folder.unusual(files_of(client, view), view)
    closing = [*summary(report), outcome(report["detail"], [s["detail"] for s in report["silos"]])]
    tell(report, "\n".join(map(one_line, filter(None, closing))))
    sys.exit(0 if run_folder.as_asked(report) else 1)


@command()
@click.argument("action", type=click.Choice(["delete"]), required=False)
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@connected()
def jobs(action: str | None, job_ids: tuple[str, ...], connection: CoordinatorOptions) -> None:
    """List your jobs, newest first; an admin sees everybody's.

    `hedgerow jobs delete ID...` deletes jobs that have ended from the coordinator: record, rounds,
    checkpoints and models. Run folders that were downloaded, and what silos keep, stay.
    """
    if action and not job_ids:
        raise click.UsageError("delete needs the identifiers of jobs")
    if action:
        client = connection.client()
        for job_id in job_ids:
            client.delete(job_id)
            click.echo(f"{job_id} is deleted", err=wants_json())
        tell({"deleted": job_ids}, lambda: None)
        return
    rows = [listed(view) for view in connection.client().list()]
    names = ("job", "name", "strategy", "state", "attempt", "operator", "detail")
    tell(rows, lambda: listing(names, (row.values() for row in rows), keep=("job",)))


@command()
@click.argument("action", type=click.Choice(["forget"]), required=False)
@click.argument("name", required=False)
@connected()
def silos(action: str | None, name: str | None, connection: CoordinatorOptions) -> None:
    """List the federation's silos: who is connected, what they announce, who is awaited.

    `hedgerow silos forget NAME`, of an admin, forgets one that has left; jobs keep what it did.
    Where the coordinator has a roster, only silos on it are shown: take it out there.
    """
    if action and not name:
        raise click.UsageError("forget needs the name of a silo")
    if action:
        connection.client().forget_silo(str(name))
        tell({"silo": name, "forgotten": True}, f"{name} is forgotten")
        return
    rows = [shown(view) for view in connection.client().silos()]
    names = list(rows[0]) if rows else ["silo"]
    tell(rows, lambda: listing(names, (row.values() for row in rows), keep=("silo",)))


@command()
@connected()
def status(connection: CoordinatorOptions) -> None:
    """Say in a few lines how the federation is: silos away, jobs under way, who is awaited.

    Ends with code 1 while a silo that has registered before is away, its crypto process does not
    answer, or the coordinator cannot read its jobs.
    """
    client = connection.client()
    views, unknown = client.silos(), ""
    try:
        under_way = [*client.list(UNDER_WAY)]
    except Unreachable as error:  # the coordinator has answered, and its database does not
        under_way, unknown = [], str(error)
    away = [view.name for view in views if view.version and not view.alive]
    mute = [view.name for view in views if view.alive and view.crypto_answers is False]
    awaited = {view.name: list(view.awaited) for view in views if view.awaited}
    connected_now = sum(view.alive for view in views)
    document = {
        "silos": len(views),
        "connected": connected_now,
        "away": away,
        "crypto_does_not_answer": mute,
        "jobs": None if unknown else [listed(job) for job in under_way],
        "awaited": awaited,
    }
    lines = [f"{connected_now} of {len(views)} silos are connected"]
    lines += [f"away: {', '.join(away)}"] if away else []
    lines += [f"crypto process does not answer: {', '.join(mute)}"] if mute else []
    lines += [f"{job.job_id} {job.state.lower()} {job.detail}".rstrip() for job in under_way]
    lines += [f"jobs cannot be read: {unknown}"] if unknown else []
    lines += [f"{silo} is awaited: {'; '.join(what)}" for silo, what in awaited.items()]
    tell(document, "\n".join(map(one_line, lines)))
    sys.exit(1 if away or mute or unknown else 0)


@command()
@click.argument("job_id")
@connected()
def cancel(job_id: str, connection: CoordinatorOptions) -> None:
    """Cancel a job; its silos stop within seconds."""
    state = connection.client().cancel(job_id).lower()
    tell({"job": job_id, "state": state}, state)


@command()
@click.argument("job")
@click.option(
    "--release",
    is_flag=True,
    help="JOB is the folder of a run: sign its audit, by which its model may leave.",
)
@click.option("--yes", is_flag=True, help="Sign without asking.")
@connected()
def approve(job: str, release: bool, yes: bool, connection: CoordinatorOptions) -> None:
    """Sign a job that names you as an approver; its silos wait for that.

    Shows the job file as its operator has signed it, and asks. With --release sign what `hedgerow
    audit` has found of a run, so that the coordinator hands out its model.
    """
    client = connection.client()
    if release:
        statement, rules = audit_to_sign(client, Path(job))
        asked = rules.approvals
        found = {one["name"]: one["found"] for one in json.loads(statement.audit)["limits"]}
        for name, limit in rules.limits:
            click.echo(f"{name} = {limit:g}: found {found[name]:.3f}", err=True)
        about = f"the release of job {statement.job}, with {release_wire.AUDIT} of {job}"
        if not yes and not click.confirm(f"Sign {about}?", err=True):
            raise Refused("not signed")
        by = release_run(client, Path(job), statement)
    else:
        opened = client.signed(job)
        asked = job_wire.decode(opened.statement.spec).approvals.without(opened.operator)
        for line in job_file.dump(opened.statement.spec).splitlines():
            click.echo(one_line(line), err=True)
        about = f"job {job}, signed by {opened.operator}, SHA-256 {opened.signed.digest.hex()}"
        if not yes and not click.confirm(f"Approve {about}?", err=True):
            raise Refused("not approved")
        by = client.approve(opened)
    document = {"job": job, "signed": by, "missing": asked.missing(by)}
    tell(document, asked.described(by))


@command()
@click.argument("job_id")
@run_out
@connected()
def download(job_id: str, out: Path, overwrite: bool, connection: CoordinatorOptions) -> None:
    """Write a job's run folder: model, report, metrics, job file.

    A job with an [audit] is given to its approvers alone until enough of them have signed one.
    """
    client = connection.client()
    view = fetch(client, job_id, out, overwrite=overwrite)
    rules = job_wire.decode(view.spec).audit
    asked = Approvals() if rules is None else rules.without(view.operator).approvals
    if asked.missing(view.released):
        by = asked.described(view.released)
        click.echo(f"for your audit, not released: {by}", err=True)
    for warning in json.loads((out / "report.json").read_text(encoding="utf-8"))["warnings"]:
        click.echo(one_line(f"warning: {warning}"), err=True)
    tell({"job": job_id, "folder": str(out)}, str(out))


@command()
@click.argument("job", type=PATH)
@connected(required=False)
@click.option(
    "--silo",
    "silos",
    multiple=True,
    metavar="NAME=FILE",
    help="Plan for these tables on this machine instead of a coordinator's silos.",
)
@click.option(
    "--test",
    multiple=True,
    metavar="FILE or PARTY=FILE",
    help="The run will be given test rows, as `hedgerow local` takes them.",
)
@ids_option
@csv_dialect
@_model
@click.option(
    "--reveals", "whole", is_flag=True, help="Print all that the strategy's jobs may reveal."
)
def plan(
    job: Path,
    connection: CoordinatorOptions,
    silos: tuple[str, ...],
    test: tuple[str, ...],
    ids: tuple[str, ...],
    model: Path | None,
    whole: bool,
) -> None:
    """Tell what a job would cost and reveal, before anyone trains."""
    spec, asked = _spec(job, model), None
    if silos:
        parties = {pair.partition("=")[0] for pair in silos}
        if any(name.partition("=")[0] not in parties for name in test):  # not a party's own
            message = job_wire.parse(spec)
            message.test_data = "test"
            spec = message.SerializeToString(deterministic=True)
        from hedgerow.boosting.calibration import rates_here

        tables = parse_pairs(silos, "--silo")
        found = plan_here(spec, tables, rates_here(), model, parse_ids(ids, tables))
    else:
        asked = connection.client().preflight(spec, waits=_waits)
        found = asked.plan
    if whole:
        found = replace(found, reveals=warm_start.reveals(job_wire.decode(spec)))
    told = _plan_json(found) | ({} if asked is None else answers(asked))
    tell(told, lambda: _show_plan(found, asked))


def _show_plan(found: PlanView, asked: PreflightView | None) -> None:
    click.echo(headline(found))
    numbers = ("exchanges", "up", "down", "seconds")
    rows = (
        (s.silo, s.method, s.exchanges, size(s.bytes_up), size(s.bytes_down), tenths(s.seconds))
        for s in found.steps
    )
    listing(("silo", "step", *numbers), rows, keep=numbers, right=numbers)
    for note in found.notes:
        click.echo(f"note: {note}")
    click.echo("What each party learns (of other jobs of the strategy, too: --reveals):")
    for sentence in paragraphs(found.reveals):
        click.echo(f"  {sentence}")
    click.echo("What other strategies reach, cost and reveal: docs/which-strategy.md")
    if asked is not None:
        show_preflight(asked)


def _plan_json(found: PlanView) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "steps": [asdict(step) for step in found.steps],
        "bytes": {
            "up": sum(s.bytes_up for s in found.steps),
            "down": sum(s.bytes_down for s in found.steps),
        },
        "reveals": found.reveals,
        "notes": list(found.notes),
        "cpu_class": found.cpu_class,
        "seconds": found.seconds,
    }
