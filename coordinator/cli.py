"""The command ``hedgerow``: every command in a module of its own, imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

_COMMANDS = {
    "split": "coordinator.commands.split:split",
    "local": "coordinator.commands.local:local",
    "coordinator": "coordinator.__main__:main",
    "agent": "client_agent.__main__:main",
    "crypto": "crypto.__main__:main",
    "submit": "coordinator.commands.operate:submit",
    "plan": "coordinator.commands.operate:plan",
    "jobs": "coordinator.commands.operate:jobs",
    "watch": "coordinator.commands.operate:watch",
    "cancel": "coordinator.commands.operate:cancel",
    "download": "coordinator.commands.operate:download",
    "predict": "coordinator.commands.predict:predict",
    "evaluate": "coordinator.commands.predict:evaluate",
    "part": "coordinator.commands.vertical:part",
    "compare": "coordinator.commands.compare:compare",
    "report": "coordinator.commands.report:report",
    "pki": "coordinator.commands.pki:pki",
    "ledger": "client_agent.commands:ledger",
}
"""Name to ``module:command``. The agent's and crypto process' commands are theirs; they are named
here as a process table, not imported."""


class _Commands(click.Group):
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
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hedgerow")
def main() -> None:
    """Train gradient-boosted trees across organisations whose data must not move."""


def run() -> None:
    """Run :func:`main`; what goes wrong is one line on standard error and an exit code."""
    from boosting.ports import FederationError
    from crypto.allocator import return_freed_memory

    return_freed_memory()  # processes that are forked from this one have the settings, too
    try:
        main(standalone_mode=True)
    except FederationError as error:
        click.echo(f"hedgerow: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    run()
