"""Programs of ours as processes that share their imports: a second of CPU less for each."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.federation.preloaded"])


def _run(module: str, arguments: list[str], log: Path, cwd: Path, env: dict[str, str]) -> None:
    """Be ``python -m module`` with these arguments, from here to the process' end."""
    assert "tests.federation.preloaded" in sys.modules, "the fork server has imported nothing"
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Forked:
    """A process of its own that runs ``python -m module``, as :class:`subprocess.Popen` has it."""

    def __init__(
        self, module: str, *arguments: str, log: Path, cwd: Path, env: Mapping[str, str]
    ) -> None:
        self._process = _context.Process(
            target=_run, args=(module, [*arguments], log, cwd, dict(env))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
