"""Unit tests run in one process: those of a package that are not marked as ``process``.

``make unit`` selects them. While one runs, a call that starts a process or listens on a port raises
:class:`NotAlone`. A test that needs either is marked ``process``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

PACKAGES = ("boosting", "client_agent", "coordinator", "crypto", "services")
SELECTED = "not process and not slow"
"""pytest's expression of what ``make unit`` runs, below the packages' folders."""
FOLDERS = tuple(Path(__file__).with_name(name) for name in PACKAGES)
_STARTS = frozenset(
    (
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn",
        "socket.bind", "socket.connect", "subprocess.Popen", "tests.listen", "tests.start",
    )
)  # fmt: skip
"""Audit events of CPython, and two of :func:`watch`."""
_alone = False


class NotAlone(BaseException):
    """A unit test would have started a process, listened or connected.

    No :class:`Exception`, so that code under test does not handle it.
    """


def is_unit(item: pytest.Item) -> bool:
    """Return whether a test may start nothing, as ``make unit`` has selected it."""
    inside = any(folder in item.path.parents for folder in FOLDERS)
    return inside and item.config.getoption("markexpr") == SELECTED


@contextmanager
def alone(enabled: bool = True) -> Iterator[None]:
    """Raise :class:`NotAlone` where a process, server or connection is started inside."""
    global _alone
    before, _alone = _alone, enabled
    try:
        yield
    finally:
        _alone = before


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _alone and event in _STARTS:
        raise NotAlone(f"{event}: a unit test starts nothing; mark it with pytest.mark.process")


def _announced(owner: Any, name: str, event: str) -> None:
    """Let a call that CPython does not announce raise an audit event first."""
    call = getattr(owner, name)

    @functools.wraps(call)
    def announce(*arguments: Any, **named: Any) -> Any:
        sys.audit(event)
        return call(*arguments, **named)

    setattr(owner, name, announce)


@functools.cache
def watch() -> None:
    """Watch this process from here on: audit hooks stay until it ends."""
    import _posixsubprocess

    sys.addaudithook(_audit)
    # multiprocessing and loky call it below subprocess, which announces its own calls.
    _announced(_posixsubprocess, "fork_exec", "tests.start")
    for module in (grpc, grpc.aio):  # whose core is not Python's sockets
        _announced(module, "server", "tests.listen")
