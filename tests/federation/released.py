"""The release before this one, from the repository's history, to run beside the present code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.federation.processes import ROOT

PARTS = (
    "hedgerow", "proto", "boosting", "services", "coordinator", "client_agent", "crypto",
    "examples", "deploy/compose", "docs/strategies", "pyproject.toml",
)  # fmt: skip


class NoHistory(Exception):
    """The release cannot be had from here; says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """Code of another version in a folder of its own.

    Attributes
    ----------
    folder : Path
        What its repository had, with the metadata that its wheel would install.
    commit : str
    """

    folder: Path
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
    """Write the newest release into a folder, as an import path."""
    commit = newest()
    archive = _git("archive", "--format=tar", commit, *PARTS)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="tar")
    _share_kernels(folder)
    (folder / "hedgerow/commit.txt").write_text(f"{commit}\n")
    number = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    about = folder / f"hedgerow-{number}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hedgerow\nVersion: {number}\n")
    return Release(folder, commit)


def _share_kernels(folder: Path) -> None:
    """Copy what numba has compiled of files that have not changed; it knows them by their time."""
    for kernel in (path for part in PARTS for path in (ROOT / part).rglob("__pycache__/*.nb[ic]")):
        source = kernel.parent.parent / f"{kernel.name.partition('.')[0]}.py"
        twin = folder / source.relative_to(ROOT)
        if twin.is_file() and source.is_file() and twin.read_bytes() == source.read_bytes():
            times = source.stat()
            os.utime(twin, ns=(times.st_atime_ns, times.st_mtime_ns))
            (twin.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy(kernel, twin.parent / "__pycache__" / kernel.name)


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False)
