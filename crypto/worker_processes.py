"""Worker processes for loops that hold the interpreter's lock.

gmpy2 multiplies without letting other threads run, so a machine without the C kernels needs
processes to use its cores. A worker is a fresh interpreter that reads jobs from a pipe: nothing is
forked (forking a process with gRPC threads deadlocks), and the caller's main module is not imported
again, so scripts need no guard. All threads share the workers. The k-th job of a call is the k-th
worker's, so that the table it keeps for such jobs is in no other one; where a worker is lost, what
it had to do is asked for once more.

Workers are this process's own children and see the same secrets; the pipes carry moduli of the
private key. They end with the parent, as the pipe does.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import TypeVar, cast

from hedgerow.crypto.allocator import return_freed_memory
from hedgerow.crypto.threads import run_all

_R = TypeVar("_R")


class _Worker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, function: Callable[..., _R], job: tuple[object, ...]) -> _R:
        with self._lock:
            for _ in range(2):
                try:
                    fine, found = self._asked(function, job)
                    break
                except (OSError, EOFError, pickle.UnpicklingError):
                    assert self._process is not None
                    self._process.kill()
                    self._process.communicate()
                    self._process = None
            else:
                raise BrokenExecutor("a worker process ended before it answered, twice")
        if not fine:
            raise cast("Exception", found)
        return cast("_R", found)

    def _asked(
        self, function: Callable[..., object], job: tuple[object, ...]
    ) -> tuple[bool, object]:
        if self._process is None:
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        pipes = self._process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        pipes.stdin.write(pickle.dumps((function, job), pickle.HIGHEST_PROTOCOL))
        pipes.stdin.flush()
        return cast("tuple[bool, object]", pickle.load(pipes.stdout))  # noqa: S301

    def forget(self) -> None:
        """Leave a parent's worker alone, whose pipe has to end with the parent."""
        with open(os.devnull, "r+b") as nothing:
            for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
                assert pipe is not None
                os.dup2(nothing.fileno(), pipe.fileno(), inheritable=False)


_workers: defaultdict[int, _Worker] = defaultdict(_Worker)


def _begin() -> None:
    for worker in _workers.values():
        worker.forget()
    _workers.clear()


os.register_at_fork(after_in_child=_begin)


def run_in_processes(
    function: Callable[..., _R], jobs: Sequence[tuple[object, ...]], workers: int
) -> list[_R]:
    """Return ``function(*job)`` of every job, on as many worker processes as ``workers``.

    A job may run twice: if its worker ends, it runs once more.

    Raises
    ------
    BrokenExecutor
        A worker ended before it answered, twice.
    """

    def of_worker(k: int) -> list[_R]:
        return [_workers[k].run(function, job) for job in jobs[k::workers]]

    parts = run_all([partial(of_worker, k) for k in range(min(workers, len(jobs)))], workers)
    return [parts[k % workers][k // workers] for k in range(len(jobs))]


def serve() -> None:
    """Do what the parent asks for, to the end of its pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    return_freed_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints is no answer
    while True:
        try:
            function, job = pickle.load(sys.stdin.buffer)  # noqa: S301
        except EOFError:
            return
        try:
            answer = True, function(*job)
        except Exception as error:
            answer = False, error
        answers.write(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
        answers.flush()
        del function, job, answer


def begin_worker(parent: int) -> None:
    """Set up a worker process of another kind, which ends with ``parent``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return_freed_memory()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
