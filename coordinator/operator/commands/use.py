"""``hedgerow use`` and ``hedgerow completion``: defaults of this machine's user."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from hedgerow.coordinator.operator import federations
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.process.terminal import Refused, command, listing, tell

PLACES = {
    "bash": "bash-completion/completions/hedgerow",
    "zsh": "zsh/site-functions/_hedgerow",
    "fish": "fish/vendor_completions.d/hedgerow.fish",
}
"""Where each shell looks for completions, below the user's share folder."""


@command()
@click.argument("name", required=False)
@click.option("--coordinator", metavar="HOST:PORT", help="Coordinator of the federation.")
@click.option(
    "--identity",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with your tls.key, tls.crt and ca.crt.",
)
@click.option("--server-name", help="Name in the coordinator's certificate, if not the host.")
def use(
    name: str | None, coordinator: str | None, identity: Path | None, server_name: str | None
) -> None:
    """Choose the federation NAME for the commands that follow; options define or change it.

    Without NAME the federations are listed. An option of a command, and HEDGEROW_COORDINATOR and
    HEDGEROW_IDENTITY, win over it.
    """
    chosen, known = federations.read()
    given = {"coordinator": coordinator, "identity": identity, "server_name": server_name}
    changed = {key: value for key, value in given.items() if value}
    if name is None:
        if changed:
            raise click.UsageError("say which federation: hedgerow use NAME ...")
        _list(chosen, known)
        return
    if "identity" in changed:
        changed["identity"] = Path(str(identity)).absolute()
    if name not in known and not {"coordinator", "identity"} <= changed.keys():
        names = ", ".join(sorted(known)) or "none"
        raise Refused(
            f"federation {name} is not known; known: {names}. A new one needs --coordinator and "
            "--identity"
        )
    found = replace(known.get(name, federations.KnownFederation()), **changed)  # type: ignore[arg-type]
    federations.write(name, {**known, name: found})
    tell(
        {"use": name, "file": str(federations.path())},
        f"{name}: {found.coordinator} as {found.identity}",
    )


def _list(chosen: str, known: dict[str, federations.KnownFederation]) -> None:
    rows = [
        {"name": name, "in_use": name == chosen, **asdict(found)}
        for name, found in sorted(known.items())
    ]
    for row in rows:
        row["identity"] = None if row["identity"] is None else str(row["identity"])
    headings = ("name", "in use", "coordinator", "identity", "server name")
    cells = [["yes" if value is True else value or "" for value in row.values()] for row in rows]
    tell(rows, lambda: listing(headings, cells, keep=("name", "coordinator")))


@command()
@click.argument("shell", type=click.Choice(list(PLACES)))
@click.option("--print", "print_", is_flag=True, help="Print the script instead of installing it.")
@click.pass_context
def completion(context: click.Context, shell: str, print_: bool) -> None:
    """Install completion of hedgerow's commands and options for SHELL.

    It takes effect in shells that start afterwards.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(context.find_root().command, {}, "hedgerow", "_HEDGEROW_COMPLETE").source
    try:
        script = source()
    except RuntimeError as error:  # bash itself is asked for its version
        raise Refused(str(error)) from error
    if print_:
        tell({"script": script}, script)
        return
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    target = Path(share) / PLACES[shell]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, script.encode(), mode=0o644)
    note = ""
    if shell == "zsh":
        note = f"; put {target.parent} into fpath before compinit in ~/.zshrc"
    elif shell == "bash" and shutil.which("bash") is None:
        note = "; bash is not on this machine"
    tell({"file": str(target)}, f"{target}: installed{note}")
