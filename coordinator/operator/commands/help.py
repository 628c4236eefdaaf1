"""``hedgerow help``: every key of a job file, and of a process' settings."""

from __future__ import annotations

import click

from hedgerow.coordinator.operator.processes import SETTINGS, settings_of
from hedgerow.services.process.settings import described
from hedgerow.services.process.terminal import Refused, command, listing, tell

TOPICS = ("job.toml", *(f"{process}.toml" for process in SETTINGS))


@command()
@click.argument("topic", metavar="FILE", type=click.Choice(TOPICS))
@click.argument("strategy", required=False)
def help(topic: str, strategy: str | None) -> None:
    """Print every key of FILE: job.toml, coordinator.toml, agent.toml or crypto.toml.

    Of job.toml, STRATEGY leaves the keys of jobs of this strategy. For help on a command, add
    --help to it.
    """
    if topic == "job.toml":
        _job(strategy or "")
        return
    if strategy:
        raise Refused(f"{topic} is the same for all strategies")
    keys = [*described(settings_of(topic.removesuffix(".toml")))]
    rows = [(f"[{k.table}]" if k.table else "", k.key, k.kind, k.default, k.about) for k in keys]
    headings = ("table", "key", "type", "default", "meaning")
    tell([k._asdict() for k in keys], lambda: listing(headings, rows, keep=("key",)))


def _job(strategy: str) -> None:
    from hedgerow.services.wire.job_reference import keys_of

    keys = keys_of(strategy)
    rows = [
        (f"[{k.table}]" if k.table else "", k.key, k.kind, k.default, k.limits, k.about)
        for k in keys
    ]
    headings = ("table", "key", "type", "default", "limits", "meaning")
    tell([k._asdict() for k in keys], lambda: listing(headings, rows, keep=("key",)))
