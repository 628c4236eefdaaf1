"""``hedgerow audit-log``: whether an audit trail is whole."""

from __future__ import annotations

from pathlib import Path

import click

from hedgerow.coordinator.operator.commands.options import FILE
from hedgerow.services.process import trail
from hedgerow.services.process.ledgers import LedgerBroken
from hedgerow.services.process.terminal import group, tell


@group()
def audit_log() -> None:
    """Check the audit trails of coordinator, console, serve and CA."""


@audit_log.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--head", default="", help="Chain value that was noted earlier: it must be there.")
def verify(files: tuple[Path, ...], head: str) -> None:
    """Check that no line of a trail was changed, removed or moved.

    Several FILEs, the oldest first, are one trail that was rotated. Exit codes: 0 it is whole, 1 a
    line is not, which is named, 2 there is no such file.
    """
    try:
        found = trail.verify(files, head)
    except LedgerBroken as error:
        raise click.ClickException(str(error)) from error
    said = [f"{found.lines:,} lines, whole; the last chain value is {found.head}"]
    if found.continues:
        said.append("the first line goes on with another file, which was not given")
    said += [f"a process began its own chain at {place}" for place in found.begins[1:]]
    document = {
        "lines": found.lines,
        "head": found.head,
        "begins": list(found.begins),
        "continues": found.continues,
    }
    tell(document, "\n".join(said))
