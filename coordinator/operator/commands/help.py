"""``hedgerow help``: every key of a job file and of a process' settings, and every metric."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator

import click

from hedgerow.boosting.dataset import Task
from hedgerow.coordinator.operator.processes import SETTINGS, settings_of
from hedgerow.services.process.settings import described
from hedgerow.services.process.terminal import Refused, command, tell

METRICS = "metrics"
TOPICS = ("job.toml", *(f"{process}.toml" for process in SETTINGS), METRICS)
NARROWEST, WIDEST = 40, 100
"""Columns of a page."""


@command()
@click.argument("topic", type=click.Choice(TOPICS))
@click.argument("which", metavar="[STRATEGY|TASK]", required=False)
def help(topic: str, which: str | None) -> None:
    """Print every key of a file, or every metric.

    TOPIC is job.toml, coordinator.toml, agent.toml, crypto.toml, serve.toml or metrics. Of
    job.toml, STRATEGY leaves the keys of its jobs; of metrics, TASK (binary, multiclass or
    regression) leaves those that suit it. For help on a command, add --help to it.
    """
    if topic == METRICS:
        _metrics(which)
    elif topic == "job.toml":
        _job(which or "")
    elif which:
        raise Refused(f"{topic} is the same for all strategies")
    else:
        keys = [*described(settings_of(topic.removesuffix(".toml")))]
        entries = ((k.table, k.key, k.default, [k.kind], k.about) for k in keys)
        tell([k._asdict() for k in keys], "\n".join(_page(entries)))


def _job(strategy: str) -> None:
    from hedgerow.boosting.strategies import NAMES
    from hedgerow.services.wire.job_reference import keys_of

    keys = keys_of(strategy)
    entries = (
        (
            k.table, k.key, k.default,
            [k.kind, k.limits, "" if strategy or k.table in NAMES or k.strategies == NAMES else
             f"of {', '.join(k.strategies)}"],
            k.about,
        )
        for k in keys
    )  # fmt: skip
    tell([k._asdict() for k in keys], "\n".join(_page(entries)))


def _metrics(task: str | None) -> None:
    from hedgerow.boosting.metrics import names

    if task not in (None, *(each.value for each in Task)):
        raise Refused(f"expected a task, {', '.join(each.value for each in Task)}, received {task}")
    found = [*names.described(Task(task) if task else None)]
    entries = (
        ("", m.metric, "", [m.better and f"{m.better} is better", m.tasks],
         m.meaning + (f"; also called {m.also_called}" if m.also_called else ""))
        for m in found
    )  # fmt: skip
    tell([m._asdict() for m in found], "\n".join(_page(entries)))


def _page(entries: Iterable[tuple[str, str, str, list[str], str]]) -> Iterator[str]:
    """Yield lines as wide as the terminal: of each (table, key, default, facts, meaning)."""
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    entered = ""
    for table, key, default, facts, about in entries:
        if table != entered:
            yield from ("", f"[{table}]")
            entered = table
        told = [*(fact for fact in facts if fact), *(["required"] if default == "required" else [])]
        value = f" = {default}" if default not in ("", "required") else ""
        for text, indent in ((f"{key}{value}  ({'; '.join(told)})", "  "), (about, "      ")):
            yield from textwrap.wrap(
                text, width, initial_indent=indent, subsequent_indent="      ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
