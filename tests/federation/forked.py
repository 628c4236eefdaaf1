"""Programs of ours as processes that share their imports: a second of CPU less for each."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Iterable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hedgerow.coordinator.operator.library import running

in_interpreter = running.command_in_process
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.federation.preloaded"])
_server: Any = forkserver._forkserver  # type: ignore[attr-defined]
_start_own = _server.ensure_running
SHARED = "HEDGEROW_TESTS_FORK_SERVER"
"""Variable of the environment: where the fork server of all workers listens, and its key."""


def share() -> None:
    """Let this process and all that it starts have one fork server."""
    if SHARED not in os.environ:
        _start_own()
        # Python has a key from 3.14 on.
        own_key = getattr(_server, "_forkserver_authkey", None) or b""
        os.environ[SHARED] = f"{_server._forkserver_address} {own_key.hex()}"
    address, _, key = os.environ[SHARED].partition(" ")
    if _server._forkserver_address != address:
        _server._forkserver_address, _server._forkserver_authkey = address, bytes.fromhex(key)
        # It lives as long as whoever started it; this stands for the pipe that tells it so.
        _server._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)


_server.ensure_running = share


def _run(
    module: str, arguments: list[str], files: tuple[str, str, str], cwd: Path, env: dict[str, str]
) -> None:
    """Be ``python -m module`` with these arguments, from here to the process' end."""
    assert "tests.federation.preloaded" in sys.modules, "the fork server has imported nothing"
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_APPEND | os.O_CREAT] * 2)
    for number, (path, mode) in enumerate(zip(files, modes, strict=True)):
        file = os.open(path, mode, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # multiprocessing has put another there
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


class Forked:
    """A process of its own that runs ``python -m module``, as :class:`subprocess.Popen` has it."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        errors: Path | None = None,
        stdin: Path = Path(os.devnull),
        cwd: Path,
        env: Mapping[str, str],
    ) -> None:
        files = (str(stdin), str(log), str(errors or log))
        self._process = _context.Process(
            target=_run, args=(module, [*arguments], files, cwd, dict(env))
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


def hedgerow(
    *words: object,
    cwd: Path | None = None,
    typed: str = "",
    timeout: float = 300,
    under_way: set[Any] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``hedgerow`` with some words to its end, as :func:`subprocess.run` has it.

    Parameters
    ----------
    typed : str
        What is on its standard input.
    timeout : float
        Seconds, after which it is killed and :class:`subprocess.TimeoutExpired` is raised.
    under_way : set, optional
        Has the process while it runs.
    """
    under_way = under_way if under_way is not None else set()
    given = [*map(str, words)]
    with TemporaryDirectory() as folder:
        stdin, out, errors = (Path(folder) / name for name in ("in", "out", "errors"))
        stdin.write_text(typed)
        process = Forked(
            "hedgerow", *given, log=out, errors=errors, stdin=stdin,
            cwd=cwd or Path.cwd(), env=os.environ,
        )  # fmt: skip
        under_way.add(process)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            under_way.discard(process)
        return subprocess.CompletedProcess(given, code, out.read_text(), errors.read_text())


def command_in_process(
    arguments: Iterable[str],
    *,
    quiet: bool,
    under_way: set[Any] | None = None,
    watch: Any = None,
) -> tuple[int, str]:
    """Run a command as :func:`running.command_in_process` does, without a new interpreter."""
    if watch is not None:  # a forked process is not given an open file
        return in_interpreter(arguments, quiet=quiet, under_way=under_way, watch=watch)
    done = hedgerow(*arguments, "--json", timeout=900, under_way=under_way)
    if not quiet:
        print(done.stderr, end="", file=sys.stderr)
    return done.returncode, done.stderr.strip().rpartition("\n")[2].strip()


def spare_interpreters() -> None:
    """Let commands that Hedgerow starts from here on be forked too; before others import it."""
    running.command_in_process = command_in_process  # type: ignore[assignment]
