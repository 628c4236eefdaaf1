"""The processes of a federation, and their files of settings."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.services.process import settings

SETTINGS = {
    "coordinator": "hedgerow.coordinator.config:CoordinatorSettings",
    "agent": "hedgerow.client_agent.config:AgentSettings",
    "crypto": "hedgerow.crypto.config:CryptoSettings",
    "serve": "hedgerow.client_agent.serving.config:ServeSettings",
}
"""Settings of each process; the agent's and crypto process' are theirs, and named here only."""


def kind_of(path: Path) -> str:
    """Return which process a file of settings is for, by the keys that only it has."""
    try:
        keys = set(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FederationError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise FederationError(f"{path}: not TOML: {error}") from error
    if keys & {"coordinator", "data", "policy"}:
        return "agent"
    return "crypto" if keys & {"silo", "key_file", "workers", "state"} else "coordinator"


def settings_of(kind: str) -> type[settings.FileSettings]:
    """Return the class of a process' settings."""
    module, _, name = SETTINGS[kind].partition(":")
    found: type[settings.FileSettings] = getattr(import_module(module), name)
    return found


def settings_files(path: Path) -> tuple[Path, ...]:
    """Return a file of settings, or those in a folder."""
    if not path.is_dir():
        return (path,)
    found = tuple(sorted(path.glob("*.toml")))
    if not found:
        raise FederationError(f"{path}: no settings (*.toml) there")
    return found
