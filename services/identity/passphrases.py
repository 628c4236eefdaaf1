"""The passphrase of encrypted private keys: from a file, the environment or the terminal."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

VARIABLE = "HEDGEROW_KEY_PASSPHRASE"
"""Environment variable of the passphrase; with ``_FILE`` appended, of a file that has it."""
LEAST_BYTES = 12

_settings_file: Path | None = None
_typed: dict[Path, bytes] = {}


def use_file(path: Path | None) -> None:
    """Take the passphrase from a file that the process' settings name, before the environment's."""
    global _settings_file
    _settings_file = path


def configured() -> bytes | None:
    """Return the passphrase of the file or the environment; None where neither is set.

    A file is read each time, so that a new key may come with a new passphrase. One line break at
    its end does not count.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    file = _settings_file or os.environ.get(f"{VARIABLE}_FILE")
    if file:
        return Path(file).read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    return os.environ[VARIABLE].encode() if os.environ.get(VARIABLE) else None


def of(path: Path) -> bytes | None:
    """Return the passphrase of a key file; asks at a terminal, once for each file, if there is one.

    Raises
    ------
    OSError
        As :func:`configured`.
    """
    found = configured()
    if found is None and path not in _typed and sys.stdin.isatty():
        return getpass.getpass(f"Passphrase of {path}: ").encode()
    return found or _typed.get(path)


def keep(path: Path, passphrase: bytes) -> None:
    """Remember that a passphrase opens a key file, so that it is typed once."""
    _typed[path] = passphrase
