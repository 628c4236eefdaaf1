"""Processes that are forked from this one and do not outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hedgerow.boosting.errors import FederationError

START_SECONDS = 60.0
"""Longest time that a process may take to be ready."""
STOP_SECONDS = 8.0
"""How long processes may take to end before they are killed."""


@dataclass
class Family:
    """Processes forked here; they do not outlive this one."""

    logs: Path
    """Folder of their standard output and error."""
    members: dict[str, int] = field(default_factory=dict)

    def fork(self, name: str, main: Callable[[], Any]) -> None:
        """Run ``main`` in a child process."""
        self.logs.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._child(name, main, parent)
        self.members[name] = pid

    def _child(self, name: str, main: Callable[[], Any], parent: int) -> NoReturn:
        code = 1
        try:
            # A group of its own: Ctrl-C reaches the parent only, which stops the others in order.
            os.setpgid(0, 0)
            _die_with(parent)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            sys.stdin = open(os.devnull)  # noqa: SIM115
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # a forked child must not run on in its parent's frames
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def dead(self) -> dict[str, int]:
        """Return members that have ended, with their exit codes, and forget them."""
        ended = {}
        for name, pid in list(self.members.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[name] = os.waitstatus_to_exitcode(status)
                del self.members[name]
        return ended

    def wait_for(self, name: str, file: Path) -> dict[str, int]:
        """Return the ports that a member writes to ``file`` when it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if file.exists() and (text := file.read_text()):
                ports: dict[str, int] = json.loads(text)
                return ports
            if name in self.dead():
                raise FederationError(f"{name} did not start: {self.last_words(name)}")
            time.sleep(0.005)
        raise FederationError(f"{name} was not ready within {START_SECONDS:.0f} s")

    def last_words(self, name: str, about: str = "") -> str:
        """Return the last line of a member's log, of those about something."""
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return next((line for line in reversed(lines) if about in line), "no output")

    def stop(self) -> None:
        """End all members: agents first, then whom they talk to; kill what stays."""
        order = sorted(self.members, key=lambda n: (n == "coordinator", n.startswith("crypto")))
        for name in order:
            _kill(self.members[name], signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.members and time.monotonic() < deadline:
            self.dead()
            time.sleep(0.01)
        for name in list(self.members):
            _kill(self.members[name], signal.SIGKILL)
            os.waitpid(self.members.pop(name), 0)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _die_with(parent: int) -> None:
    """End this process when ``parent`` has ended, also where it was killed."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)
    else:  # no Linux
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
