"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedgerow.crypto.durable import write_atomically


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """Root would lose /dev/full to a page that is written there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="there is something that is no file") as failed:
        write_atomically(pipe, b"page")
    assert failed.value.filename == str(pipe)
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]


def test_a_fault_has_the_name_of_the_file(tmp_path: Path) -> None:
    @contextmanager
    def full() -> Iterator[None]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield

    path = tmp_path / "model.ubj"
    with pytest.raises(OSError, match="No space left on device") as failed:
        write_atomically(path, b"model", within=full)
    assert failed.value.filename == str(path)
    assert not [*tmp_path.iterdir()]
