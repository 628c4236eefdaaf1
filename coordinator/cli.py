"""The command ``hedgerow``: every command in a module of its own, imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

_COMMANDS = {
    "check": "hedgerow.coordinator.operator.commands.check:check",
    "split": "hedgerow.coordinator.operator.commands.split:split",
    "local": "hedgerow.coordinator.operator.commands.local:local",
    "simulate": "hedgerow.coordinator.operator.commands.simulate:simulate",
    "coordinator": "hedgerow.coordinator.__main__:main",
    "agent": "hedgerow.client_agent.__main__:main",
    "crypto": "hedgerow.crypto.__main__:main",
    "submit": "hedgerow.coordinator.operator.commands.operate:submit",
    "plan": "hedgerow.coordinator.operator.commands.operate:plan",
    "jobs": "hedgerow.coordinator.operator.commands.operate:jobs",
    "watch": "hedgerow.coordinator.operator.commands.operate:watch",
    "cancel": "hedgerow.coordinator.operator.commands.operate:cancel",
    "download": "hedgerow.coordinator.operator.commands.operate:download",
    "predict": "hedgerow.coordinator.operator.commands.predict:predict",
    "evaluate": "hedgerow.coordinator.operator.commands.predict:evaluate",
    "part": "hedgerow.coordinator.operator.commands.vertical:part",
    "compare": "hedgerow.coordinator.operator.commands.compare:compare",
    "report": "hedgerow.coordinator.operator.commands.report:report",
    "pki": "hedgerow.coordinator.operator.commands.pki:pki",
    "ledger": "hedgerow.client_agent.commands:ledger",
    "privacy": "hedgerow.client_agent.commands:privacy",
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
    from hedgerow.boosting.errors import FederationError
    from hedgerow.crypto.allocator import return_freed_memory

    return_freed_memory()  # processes that are forked from this one have the settings, too
    try:
        main(standalone_mode=True)
    except FederationError as error:
        click.echo(f"hedgerow: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    run()
