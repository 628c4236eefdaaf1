"""Files that are complete or absent, even after a power cut."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path


def write_durably(descriptor: int, data: bytes) -> None:
    """Write all of ``data`` to an open file and wait until it is on the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def write_atomically(
    path: Path,
    data: bytes,
    mode: int = 0o600,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old file or the new one, never a part.

    Missing folders are made with mode 0700. The file gets its name ``within`` a context.

    Raises
    ------
    OSError
        The old file, if any, is as it was, and no part of the new one is left. So is what is there
        and no file: a device, say, which the new name would replace.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "there is something that is no file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            write_durably(descriptor, data)
        finally:
            os.close(descriptor)
        with within():
            beside.rename(path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk has no name of its own
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
