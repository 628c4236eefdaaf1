"""The command ``hedgerow``: every command in a module of its own, imported when it is called."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import click

import hedgerow
from hedgerow.services.process.imports import own_process, staying, without
from hedgerow.services.process.terminal import JsonGroup

_COMMANDS = {
    "demo": "hedgerow.examples.demo:demo",
    "check": "hedgerow.coordinator.operator.commands.check:check",
    "explore": "hedgerow.coordinator.operator.commands.explore:explore",
    "drift": "hedgerow.coordinator.operator.commands.drift:drift",
    "reference": "hedgerow.coordinator.operator.commands.drift:reference",
    "split": "hedgerow.coordinator.operator.commands.split:split",
    "local": "hedgerow.coordinator.operator.commands.local:local",
    "simulate": "hedgerow.coordinator.operator.commands.simulate:simulate",
    "search": "hedgerow.coordinator.operator.commands.search:search",
    "serve": "hedgerow.serving:main",
    "coordinator": "hedgerow.coordinator.__main__:main",
    "agent": "hedgerow.client_agent.__main__:main",
    "crypto": "hedgerow.crypto.__main__:main",
    "submit": "hedgerow.coordinator.operator.commands.operate:submit",
    "plan": "hedgerow.coordinator.operator.commands.operate:plan",
    "jobs": "hedgerow.coordinator.operator.commands.operate:jobs",
    "silos": "hedgerow.coordinator.operator.commands.operate:silos",
    "status": "hedgerow.coordinator.operator.commands.operate:status",
    "watch": "hedgerow.coordinator.operator.commands.operate:watch",
    "approve": "hedgerow.coordinator.operator.commands.operate:approve",
    "cancel": "hedgerow.coordinator.operator.commands.operate:cancel",
    "console": "hedgerow.coordinator.operator.commands.console:console",
    "download": "hedgerow.coordinator.operator.commands.operate:download",
    "predict": "hedgerow.coordinator.operator.commands.predict:predict",
    "evaluate": "hedgerow.coordinator.operator.commands.predict:evaluate",
    "part": "hedgerow.coordinator.operator.commands.vertical:part",
    "scorecard": "hedgerow.coordinator.operator.commands.scorecard:scorecard",
    "compare": "hedgerow.coordinator.operator.commands.compare:compare",
    "report": "hedgerow.coordinator.operator.commands.report:report",
    "audit": "hedgerow.coordinator.operator.commands.audit:audit",
    "verify": "hedgerow.coordinator.operator.commands.verify:verify",
    "retrain": "hedgerow.coordinator.operator.commands.retrain:retrain",
    "pki": "hedgerow.coordinator.operator.commands.pki:pki",
    "init": "hedgerow.coordinator.operator.commands.init:init",
    "join": "hedgerow.coordinator.operator.commands.init:join",
    "run": "hedgerow.coordinator.operator.commands.init:run",
    "help": "hedgerow.coordinator.operator.commands.help:help",
    "backup": "hedgerow.coordinator.operator.commands.backup:backup",
    "restore": "hedgerow.coordinator.operator.commands.backup:restore",
    "doctor": "hedgerow.coordinator.operator.commands.doctor:doctor",
    "use": "hedgerow.coordinator.operator.commands.use:use",
    "completion": "hedgerow.coordinator.operator.commands.use:completion",
    "audit-log": "hedgerow.coordinator.operator.commands.audit_log:audit_log",
    "ledger": "hedgerow.client_agent.commands:ledger",
    "privacy": "hedgerow.client_agent.commands:privacy",
    "scores": "hedgerow.client_agent.commands:scores",
    "first-round": "hedgerow.client_agent.removal:first_round",
}
"""Name to ``module:command``. The agent's and crypto process' commands are theirs; they are named
here as a process table, not imported."""


class _Commands(JsonGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        with staying():
            command: click.Command = getattr(importlib.import_module(module), name)
        return command


def _show_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        commit = _commit()
        click.echo(f"hedgerow {version('hedgerow')}" + (f" (commit {commit})" if commit else ""))
        context.exit()


def _commit() -> str:
    """Return the commit that a package was built from, or that a clone is at."""
    noted = Path(hedgerow.__file__).with_name("commit.txt")
    if noted.exists():
        return noted.read_text().strip()
    if not (noted.parent.parent / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(noted.parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


@click.group(cls=_Commands)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
    help="Show the version and its commit, and exit.",
)  # fmt: skip
def main() -> None:
    """Train gradient-boosted trees across organisations whose data must not move."""


def run() -> None:
    """Run :func:`main`; what goes wrong is one line on standard error and an exit code."""
    from hedgerow.crypto.allocator import return_freed_memory

    # NumPy, which reads this when it is imported, has vectors to multiply where a round is scored:
    # a second thread's waiting for the next one costs more than it saves.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    without("sklearn", "pandas", "coverage")
    own_process()
    return_freed_memory()  # processes that are forked from this one have the settings, too
    main()


if __name__ == "__main__":
    run()
