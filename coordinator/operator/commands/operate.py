"""Operator commands against a coordinator: submit, plan, jobs, watch, cancel, download."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Column, Table

from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.commands.options import parse_pairs
from hedgerow.coordinator.operator.library.clients import client_for, fetch, listed
from hedgerow.coordinator.operator.library.jobs import plan_here
from hedgerow.coordinator.operator.progress import JobProgress, size, summary
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobState, PlanView
from hedgerow.services.wire.signed_job import DEFAULT_DAYS

Command = TypeVar("Command", bound=Callable[..., Any])


def connected(command: Command) -> Command:
    """Add the options that every operator command has."""
    options = (
        click.option(
            "--coordinator",
            "address",
            envvar="HEDGEROW_COORDINATOR",
            required=True,
            metavar="HOST:PORT",
            help="Coordinator to talk to.",
        ),
        click.option(
            "--identity",
            envvar="HEDGEROW_IDENTITY",
            required=True,
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder with the operator's tls.key, tls.crt and ca.crt.",
        ),
        click.option(
            "--server-name",
            envvar="HEDGEROW_SERVER_NAME",
            help="Name in the coordinator's certificate where it is not the host.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


as_json = click.option("--json", "json_", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--watch/--no-watch", "watch_", default=False, help="Watch it until it ends.")
@click.option(
    "--days",
    type=float,
    default=DEFAULT_DAYS,
    show_default=True,
    help="For how long attempts may begin; silos refuse the job afterwards.",
)
@connected
@as_json
def submit(
    job: Path,
    watch_: bool,
    days: float,
    address: str,
    identity: Path,
    server_name: str | None,
    json_: bool,
) -> None:
    """Sign a job file and submit it; prints the job's identifier."""
    client = client_for(address, identity, server_name)
    job_id = client.create(job_file.load(job), days)
    if json_ and not watch_:
        click.echo(json.dumps({"job": job_id}))
    else:
        click.echo(job_id)
    if watch_:
        _watch(client, job_id, json_)


@click.command()
@click.argument("job_id")
@connected
@as_json
def watch(job_id: str, address: str, identity: Path, server_name: str | None, json_: bool) -> None:
    """Show a job as it goes, until it ends."""
    _watch(client_for(address, identity, server_name), job_id, json_)


def _watch(client: JobClient, job_id: str, json_: bool) -> None:
    console = Console(stderr=json_)
    with JobProgress(console) as progress:
        for view in client.watch(job_id):
            progress.show(view)
    report = run_folder.report(client.get(job_id))
    if json_:
        click.echo(json.dumps(report))
    else:
        for line in summary(report):
            click.echo(line)
        if report["detail"]:
            click.echo(report["detail"])
    sys.exit(0 if report["state"] == JobState.SUCCEEDED else 1)


@click.command()
@connected
@as_json
def jobs(address: str, identity: Path, server_name: str | None, json_: bool) -> None:
    """List your jobs, newest first; an admin sees everybody's."""
    views = list(client_for(address, identity, server_name).list())
    if json_:
        click.echo(json.dumps([listed(view) for view in views]))
        return
    table = Table(Column("job", no_wrap=True, min_width=22))
    for name in ("name", "strategy", "state", "attempt", "operator", "detail"):
        table.add_column(name, overflow="fold")
    for view in views:
        table.add_row(*(str(value) for value in listed(view).values()))
    Console().print(table)


@click.command()
@click.argument("job_id")
@connected
def cancel(job_id: str, address: str, identity: Path, server_name: str | None) -> None:
    """Cancel a job; its silos stop within seconds."""
    click.echo(client_for(address, identity, server_name).cancel(job_id).lower())


@click.command()
@click.argument("job_id")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Run folder to write.",
)
@connected
def download(job_id: str, out: Path, address: str, identity: Path, server_name: str | None) -> None:
    """Write a job's run folder: model, report, metrics, job file."""
    fetch(client_for(address, identity, server_name), job_id, out)
    click.echo(str(out))


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--coordinator",
    "address",
    envvar="HEDGEROW_COORDINATOR",
    metavar="HOST:PORT",
    help="Ask this coordinator about its silos; without it give --rows.",
)
@click.option(
    "--identity",
    envvar="HEDGEROW_IDENTITY",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with the operator's tls.key, tls.crt and ca.crt.",
)
@click.option("--server-name", envvar="HEDGEROW_SERVER_NAME", help="Name in its certificate.")
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
@as_json
def plan(
    job: Path,
    address: str | None,
    identity: Path | None,
    server_name: str | None,
    silos: tuple[str, ...],
    test: tuple[str, ...],
    json_: bool,
) -> None:
    """Tell what a job would cost and reveal, before anyone trains."""
    spec = job_file.load(job)
    if silos:
        parties = {pair.partition("=")[0] for pair in silos}
        if any(name.partition("=")[0] not in parties for name in test):  # not a party's own
            message = job_wire.parse(spec)
            message.test_data = "test"
            spec = message.SerializeToString(deterministic=True)
        found = plan_here(spec, parse_pairs(silos, "--silo"))
    elif address and identity:
        found = client_for(address, identity, server_name).plan(spec)
    else:
        raise click.UsageError("give --coordinator and --identity, or --silo NAME=FILE")
    if json_:
        click.echo(json.dumps(_plan_json(found)))
        return
    table = Table("silo", "step", "exchanges", "up", "down")
    for step in found.steps:
        table.add_row(
            step.silo, step.method, str(step.exchanges), size(step.bytes_up), size(step.bytes_down)
        )
    console = Console()
    console.print(f"{found.rounds} rounds, CPU time a silo: {found.cpu_class}")
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    console.print("What each party learns:", found.reveals, sep="\n", markup=False)


def _plan_json(found: PlanView) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "steps": [
            {
                "silo": s.silo,
                "method": s.method,
                "exchanges": s.exchanges,
                "bytes_up": s.bytes_up,
                "bytes_down": s.bytes_down,
            }
            for s in found.steps
        ],
        "bytes": {
            "up": sum(s.bytes_up for s in found.steps),
            "down": sum(s.bytes_down for s in found.steps),
        },
        "reveals": found.reveals,
        "notes": list(found.notes),
        "cpu_class": found.cpu_class,
    }
