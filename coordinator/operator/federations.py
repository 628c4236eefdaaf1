"""The federations that an operator has named on this machine, and the one in use."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.durable import write_atomically


@dataclass(frozen=True, slots=True)
class KnownFederation:
    """Where a federation's coordinator is, and the operator's identity in it."""

    coordinator: str | None = None
    identity: Path | None = None
    server_name: str | None = None


def path() -> Path:
    """Return the file: ``HEDGEROW_CONFIG``, or hedgerow/config.toml in the user's settings."""
    given = os.environ.get("HEDGEROW_CONFIG")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "hedgerow/config.toml"


def read() -> tuple[str, dict[str, KnownFederation]]:
    """Return the name in use, or nothing, and all federations by name.

    Raises
    ------
    FederationError
        The file is malformed.
    """
    file = path()
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        known = {
            str(name): KnownFederation(
                coordinator=given.get("coordinator"),
                identity=Path(given["identity"]) if "identity" in given else None,
                server_name=given.get("server_name"),
            )
            for name, given in table.get("federations", {}).items()
        }
        return str(table.get("use", "")), known
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FederationError(f"{file}: expected `use` and [federations.NAME] ({error})") from error


def current() -> KnownFederation:
    """Return the federation in use; one without anything where none is."""
    name, known = read()
    return known.get(name, KnownFederation())


def write(name: str, known: dict[str, KnownFederation]) -> None:
    """Store the federations, and which one is in use."""
    lines = [f"use = {json.dumps(name)}"]
    for each, found in sorted(known.items()):
        lines += ["", f"[federations.{json.dumps(each)}]"]
        lines += [f"{k} = {json.dumps(str(v))}" for k, v in asdict(found).items() if v]
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, ("\n".join(lines) + "\n").encode())
