"""Files of a process that nobody else of the machine may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger()

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(*paths: Path) -> None:
    """Keep files and folders of this process for its own user alone, under any umask.

    Parameters
    ----------
    *paths : Path
        What there may be from before, which others lose their rights to: folders with all in them.
    """
    os.umask(OTHERS)
    for path in paths:
        closed, left = 0, ""
        for one in _open_to_others(path):
            try:
                one.chmod(stat.S_IMODE(one.lstat().st_mode) & ~OTHERS)
                closed += 1
            except OSError as error:  # a mounted volume is its provider's
                left = left or f"{one}: {error.strerror}"
        if closed:
            log.warning("closed to other users", path=str(path), files=closed)
        if left:
            log.warning("open to other users", path=str(path), why=left)


def _open_to_others(path: Path) -> Iterator[Path]:
    inside = path.rglob("*") if path.is_dir() else ()
    for one in (path, *inside):
        try:
            mode = one.lstat().st_mode
        except OSError:
            continue
        if mode & OTHERS and not stat.S_ISLNK(mode):
            yield one
