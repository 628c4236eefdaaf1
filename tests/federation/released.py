"""The release before this one, from the repository's history, to run beside the present code."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.federation.processes import ROOT


class NoHistory(Exception):
    """The release cannot be had from here; says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """Another version, installed from its wheel.

    Attributes
    ----------
    folder : Path
        What its wheel installs.
    source : Path
        Its repository.
    commit : str
    """

    folder: Path
    source: Path
    commit: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process one of this release."""
        return {"PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a Python program of this release to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


def newest() -> str:
    """Return the commit of the last release that ``releases.toml`` names.

    Raises
    ------
    NoHistory
        This is no clone, or one without that commit.
    """
    named = str([*tomllib.loads((ROOT / "releases.toml").read_text()).values()][-1])
    try:
        found = _git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    except FileNotFoundError as error:
        raise NoHistory("there is no git, which has the release before this one") from error
    if found.returncode != 0:
        raise NoHistory(f"this copy of the repository has no {named}: it needs the whole history")
    return found.stdout.decode().strip()


def export(folder: Path) -> Release:
    """Build the newest release's wheel from its commit and install it in a folder of its own."""
    commit, source, site = newest(), folder / "source", folder / "site"
    cloned = _git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(source))
    assert cloned.returncode == 0, cloned.stderr.decode()
    checked_out = _git("-C", str(source), "checkout", "--quiet", commit)
    assert checked_out.returncode == 0, checked_out.stderr.decode()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    built = subprocess.run(
        [*pip, "--no-deps", "--wheel-dir", str(folder), str(source)],
        env={**os.environ, "HEDGEROW_NATIVE": "require"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("hedgerow-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return Release(site, source, commit)


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False)
